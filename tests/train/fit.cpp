// fit: a plan and files in, a trained run out; what cannot be run is refused before a rank starts.
#include <doctest/doctest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <galvatron/model/zoo.hpp>
#include <galvatron/plan/uniform.hpp>
#include <galvatron/train/fit.hpp>

using namespace galvatron;
namespace fs = std::filesystem;

namespace {

// A text of few words, which goes away.
struct Text {
  fs::path path = fs::temp_directory_path() / ("galvatron_fit_" + std::to_string(::getpid()) + ".txt");
  Text() {
    std::ofstream out(path);
    for (int i = 0; i < 200; ++i) out << "all work and no play makes a dull day; ";
  }
  ~Text() { fs::remove(path); }
};

using Split = Strategy<ZeRO<1>, DataParallel<2>>;

ModelSpec tiny() { return gpt("tiny", {.layers = 2, .hidden = 32, .heads = 2, .vocabulary = 256, .positions = 32}); }
Plan split() { return *uniform_plan(Split{}, tiny(), {.global_batch = 4, .sequence = 16}); }

void check_refused(const Result<train::TrainReport>& result, const std::string& part) {
  REQUIRE_FALSE(result.has_value());
  CHECK(result.error().kind == ErrorKind::usage);
  CAPTURE(result.error().message);
  CHECK(result.error().message.find(part) != std::string::npos);
  CHECK(result.error().message.find('\n') == std::string::npos);
}

}  // namespace

TEST_CASE("fit trains as the plan says, with one instantiated strategy") {
  const Text text;
  int told = 0;
  const auto report = train::fit<Split>(split(), tiny(), {text.path},
                                        {.steps = 20,
                                         .learning_rate = {.peak = 1e-2, .floor = 1e-3, .warmup_steps = 2},
                                         .on_step = [&](const train::StepReport&) { ++told; }});
  REQUIRE(report.has_value());
  CHECK(told == 20);
  REQUIRE(report->steps.size() == 20);
  CHECK(report->steps.back().loss < report->steps.front().loss - 1);
  // The rate falls over the whole run although nobody gave its length.
  CHECK(report->steps[1].learning_rate == doctest::Approx(1e-2));
  CHECK(report->steps.back().learning_rate == doctest::Approx(1e-3));
  REQUIRE(report->measured_memory.size() == 2);
  CHECK(report->measured_memory == report->planned_memory);
}

TEST_CASE("fit refuses what the program, the model or the data do not allow, before a rank starts") {
  const Text text;
  check_refused(train::fit<TypeList<Strategy<>, Strategy<ZeRO<3>>>>(split(), tiny(), {text.path}, {}),
                "is not instantiated in this program");
  Plan other = split();
  other.layers.pop_back();
  other.stages.front().last_layer = 0;
  check_refused(train::fit<Split>(other, tiny(), {text.path}, {}), "the plan has 1 layers and the model tiny has 2");
  other = split();
  other.microbatches = 3;
  check_refused(train::fit<Split>(other, tiny(), {text.path}, {}), "3 micro-batches do not divide");
  other = split();
  other.virtual_stages = 2;
  check_refused(train::fit<Split>(other, tiny(), {text.path}, {}), "have virtual stages");
  check_refused(train::fit<Split>(split(), tiny(), {text.path}, {.steps = 0}), "0 steps");
  check_refused(train::fit<Split>(split(), tiny(), {"no such file"}, {}), "no such file");
  check_refused(train::fit<Split>(split(), tiny(), {}, {}), "no data files");
}
