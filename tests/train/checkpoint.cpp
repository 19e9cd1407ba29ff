// Checkpoints: a run goes on as if nothing had happened, bit for bit under its plan and to rounding under others.
// labels: tsan
#include <doctest/doctest.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/checkpoint/checkpointer.hpp>
#include <galvatron/train/compiled.hpp>

#include "../folder.hpp"
#include "toy_mixed.hpp"

using namespace galvatron;
using namespace galvatron::train;
using galvatron::test::Folder;
namespace fs = std::filesystem;

namespace {

constexpr StrategySpec zero3{.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 3};

std::string content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TrainOptions options_for(std::int64_t steps) {
  TrainOptions options;
  options.steps = steps;
  options.learning_rate = {.peak = 3e-3, .floor = 3e-4, .warmup_steps = 3, .steps = 12};
  options.seed = 5;
  options.threads_per_rank = 1;
  return options;
}

TrainReport run(const Plan& plan, const ModelSpec& model, const TrainOptions& options) {
  const auto source = toy::source_of(model, plan.sequence_length);
  return train::train(plan, model, *source, options);
}

std::vector<double> losses(const TrainReport& report) {
  std::vector<double> out;
  for (const StepReport& step : report.steps) out.push_back(step.loss);
  return out;
}

/// The plans of the tests: of 8, 4, 2 and 1 ranks.
std::vector<Plan> plans(const ModelSpec& model) {
  Plan mixed = toy::uniform(model, 1, {.tensor = 4}, 1, ScheduleKind::one_f_one_b);
  mixed.layers[1] = {.data = 4, .zero = 1};
  return {toy::uniform(model, 2, zero3, 2, ScheduleKind::one_f_one_b),
          mixed,
          toy::uniform(model, 2, {}, 4, ScheduleKind::gpipe),
          toy::uniform(model, 2, {}, 4, ScheduleKind::interleaved, 2),
          toy::uniform(model, 2, {}, 4, ScheduleKind::zb_h1),
          toy::uniform(model, 1, {.data = 2, .zero = 1}, 1, ScheduleKind::one_f_one_b),
          toy::single_rank(model)};
}

/// Relative L2 difference of a state of all tensors.
double difference(const Checkpoint& a, const Checkpoint& b, const ModelSpec& model, StateKind state) {
  double square = 0;
  double sum = 0;
  for_each_parameter(model, [&](int layer, const ParameterTensor& tensor) {
    const TensorShape shape = a.shape(layer, tensor.name);
    std::vector<float> x(static_cast<std::size_t>(shape.count()));
    std::vector<float> y(x.size());
    a.read(layer, tensor.name, state, {0, shape.rows, 0, shape.columns}, x.data());
    b.read(layer, tensor.name, state, {0, shape.rows, 0, shape.columns}, y.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      square += (static_cast<double>(x[i]) - y[i]) * (static_cast<double>(x[i]) - y[i]);
      sum += static_cast<double>(y[i]) * y[i];
    }
  });
  return std::sqrt(square / sum);
}

void check_refused(const Result<Checkpoint>& result, const std::string& cause) {
  REQUIRE_FALSE(result.has_value());
  CAPTURE(result.error().message);
  CHECK(result.error().kind == ErrorKind::usage);
  CHECK(result.error().message.find(cause) != std::string::npos);
  CHECK(result.error().message.find('\n') == std::string::npos);
}

/// @param all  goes on under each of them; the first, of 8 ranks, writes
void check_family(const ModelSpec& model, const std::vector<Plan>& all) {
  const Folder folder;
  const std::vector<double> whole = losses(run(all.front(), model, options_for(12)));
  TrainOptions saving = options_for(12);
  saving.checkpoint = {.folder = folder.path / "first", .every = 6, .keep = 9};
  const TrainReport first = run(all.front(), model, saving);
  CHECK(losses(first) == whole);  // writing changes nothing
  for (int rank = 0; rank < 8; ++rank) {
    CHECK(first.checkpoints[static_cast<std::size_t>(rank)].count == 2);
    CHECK(first.checkpoints[static_cast<std::size_t>(rank)].bytes ==
          snapshot_bytes(stage_plan(all.front(), model, rank), rank).count);
  }
  const auto end = Checkpoint::open(folder.path / "first", model);
  REQUIRE(end.has_value());
  CHECK(end->training().step == 12);
  CHECK(end->training().samples() == 12 * toy::global_batch);
  CHECK(end->manifest().ranks == 8);
  const auto middle = Checkpoint::open(folder.path / "first" / checkpoint_name(6), model);
  REQUIRE(middle.has_value());
  CHECK(difference(*middle, *end, model, StateKind::master) > 1e-4);

  for (std::size_t i = 0; i < all.size(); ++i) {
    INFO(toy::text(all[i]));
    TrainOptions options = options_for(12);
    options.resume = &*middle;
    const fs::path written = folder.path / ("again" + std::to_string(i));
    options.checkpoint = {.folder = written};
    const TrainReport report = run(all[i], model, options);
    REQUIRE(report.steps.size() == 6);
    CHECK(report.steps.front().step == 6);
    CHECK(report.steps.back().learning_rate == first.steps.back().learning_rate);
    const std::vector<double> rest(whole.begin() + 6, whole.end());
    CHECK(toy::difference(losses(report), rest) < 1e-5);
    for (int rank = 0; rank < all[i].ranks(); ++rank)
      CHECK(report.checkpoints[static_cast<std::size_t>(rank)].bytes ==
            snapshot_bytes(stage_plan(all[i], model, rank), rank).count);
    const auto again = Checkpoint::open(written, model);
    REQUIRE(again.has_value());
    CHECK(difference(*again, *end, model, StateKind::master) < 1e-5);
    CHECK(difference(*again, *end, model, StateKind::first_moment) < 1e-4);
    CHECK(difference(*again, *end, model, StateKind::second_moment) < 1e-4);
    if (i > 0) continue;
    CHECK(losses(report) == rest);
    for (const auto& entry : fs::directory_iterator(end->path()))
      CHECK(content(entry.path()) == content(written / checkpoint_name(12) / entry.path().filename()));
  }
}

}  // namespace

TEST_CASE("a GPT goes on under any plan") { check_family(toy::model(false, 4), plans(toy::model(false, 4))); }
TEST_CASE("a GPT whose ranks have unequal shares goes on under its plan and others") {
  const ModelSpec gpt = toy::model(false, 4);
  Plan uneven = toy::uniform(
      gpt, 1,
      {.tensor = 4, .sequence = SequenceKind::megatron, .data = 2, .zero = 1, .shard_kind = ShardKind::by_ratio}, 2,
      ScheduleKind::one_f_one_b);
  uneven.stages.front().sample_ratios = {3, 3, 3, 3, 1, 1, 1, 1};
  uneven.stages.front().head_ratios = {1, 0, 1, 2, 1, 0, 1, 2};
  uneven.stages.front().width_ratios = {1, 10, 0, 3, 1, 10, 0, 3};
  uneven.stages.front().vocabulary_ratios = {0, 1, 1, 0, 0, 1, 1, 0};
  uneven.stages.front().token_ratios = {3, 0, 1, 2, 3, 0, 1, 2};
  Plan other = uneven;
  other.stages.front().head_ratios = {4, 1, 1, 2, 1, 0, 1, 2};
  other.stages.front().width_ratios.clear();
  other.stages.front().vocabulary_ratios = {1, 1, 0, 0, 0, 0, 0, 0};
  other.stages.front().token_ratios = {0, 0, 1, 0, 0, 0, 0, 0};
  check_family(gpt, {uneven, other, toy::uniform(gpt, 2, {}, 4, ScheduleKind::gpipe)});
}
TEST_CASE("a Llama goes on under any plan") { check_family(toy::model(true, 4), plans(toy::model(true, 4))); }

TEST_CASE("a model with experts goes on whatever ranks share them") {
  const ModelSpec model = toy::experts(8);
  std::vector<Plan> all;
  for (const StrategySpec& spec :
       {StrategySpec{
            .tensor = 2, .sequence = SequenceKind::megatron, .data = 4, .zero = 3, .expert = 4, .expert_tensor = 1},
        {.tensor = 2, .data = 2, .zero = 1, .expert = 2},
        {.data = 4, .zero = 2, .expert = 2, .expert_tensor = 2},
        {.tensor = 4},
        {}})
    all.push_back(toy::uniform(model, 1, spec, 2, ScheduleKind::one_f_one_b));
  check_family(model, all);
}

TEST_CASE("a BERT, a ViT, a Swin and a T5 go on: bit for bit under the same plan, with the same loss under another") {
  for (const ModelSpec& model : {toy::bert(4), toy::vit(4), toy::swin({2, 2, 0, 0}), toy::t5(4)}) {
    INFO(model.name);
    const std::vector<Plan> all = plans(model);
    const Folder folder;
    TrainOptions saving = options_for(8);
    saving.checkpoint = {.folder = folder.path, .every = 4, .keep = 9};
    const TrainReport first = run(all.front(), model, saving);
    for (int rank = 0; rank < 8; ++rank)
      CHECK(first.checkpoints[static_cast<std::size_t>(rank)].bytes ==
            snapshot_bytes(stage_plan(all.front(), model, rank), rank).count);
    const auto middle = Checkpoint::open(folder.path / checkpoint_name(4), model);
    REQUIRE(middle.has_value());
    const std::vector<double> whole = losses(first);
    TrainOptions options = options_for(8);
    options.resume = &*middle;
    CHECK(losses(run(all.front(), model, options)) == std::vector<double>(whole.begin() + 4, whole.end()));
    for (const Plan& plan : all) {
      INFO(toy::text(plan));
      CHECK(losses(run(plan, model, options)).front() == doctest::Approx(whole[4]).epsilon(1e-5));
    }
  }
}

TEST_CASE("large tensors are read in large pieces, with the bits of small ones") {
  ModelSpec model = toy::model(false, 2);
  for (LayerSpec* layer : {&model.embedding, &model.blocks[0], &model.blocks[1], &model.head}) {
    layer->hidden = 256;
    layer->head_dim = 32;
    layer->ffn = 512;
  }
  const std::vector<Plan> all{toy::uniform(model, 1, zero3, 1, ScheduleKind::one_f_one_b),
                              toy::uniform(model, 1, {.tensor = 2}, 1, ScheduleKind::one_f_one_b),
                              toy::uniform(model, 1, {.data = 2, .zero = 1}, 1, ScheduleKind::one_f_one_b)};
  const Folder folder;
  TrainOptions saving = options_for(3);
  saving.checkpoint = {.folder = folder.path, .every = 1, .keep = 9};
  const std::vector<double> whole = losses(run(all.front(), model, saving));
  const auto begin = Checkpoint::open(folder.path / checkpoint_name(1), model);
  REQUIRE(begin.has_value());
  for_each_parameter(model, [&](int layer, const ParameterTensor& tensor) {
    CAPTURE(std::string(name_of(tensor.name)));
    const TensorShape shape = begin->shape(layer, tensor.name);
    for (const StateKind state : {StateKind::master, StateKind::second_moment}) {
      std::vector<float> at_once(static_cast<std::size_t>(shape.count()));
      std::vector<float> by_row(at_once.size());
      begin->read(layer, tensor.name, state, {0, shape.rows, 0, shape.columns}, at_once.data());
      for (std::int64_t row = 0; row < shape.rows; ++row)
        begin->read(layer, tensor.name, state, {row, 1, 0, shape.columns}, by_row.data() + row * shape.columns);
      CHECK((at_once == by_row));
    }
  });
  for (const Plan& plan : all) {
    INFO(toy::text(plan));
    TrainOptions options = options_for(3);
    options.resume = &*begin;
    const std::vector<double> rest = losses(run(plan, model, options));
    if (&plan == &all.front()) CHECK(rest == std::vector<double>(whole.begin() + 1, whole.end()));
    CHECK(toy::difference(rest, std::vector<double>(whole.begin() + 1, whole.end())) < 1e-5);
  }
}

TEST_CASE("bf16 goes on bit for bit") {
  if (!device::Host::supports(Precision::bf16)) return;
  const ModelSpec model = toy::model(false, 4);
  Plan plan = plans(model).front();
  plan.precision = Precision::bf16;
  const Folder folder;
  TrainOptions options = options_for(8);
  options.checkpoint = {.folder = folder.path, .every = 4, .keep = 9};
  const std::vector<double> whole = losses(run(plan, model, options));
  const auto middle = Checkpoint::open(folder.path / checkpoint_name(4), model);
  REQUIRE(middle.has_value());
  options.checkpoint = {};
  options.resume = &*middle;
  CHECK(losses(run(plan, model, options)) == std::vector<double>(whole.begin() + 4, whole.end()));
}

TEST_CASE("the newest stay, what a crash left goes, what is complete already is replaced") {
  const ModelSpec model = toy::model(false, 2);
  const Plan plan = toy::single_rank(model);
  const Folder folder;
  fs::create_directories(folder.path / "step-00000007.tmp");
  std::ofstream(folder.path / "step-00000007.tmp" / "rank-0000.safetensors") << "half";
  fs::create_directories(folder.path / "step-00000009");  // without a manifest: not one
  TrainOptions options = options_for(5);
  options.checkpoint = {.folder = folder.path, .every = 1, .keep = 2};
  for (int i = 0; i < 2; ++i) {
    const TrainReport report = run(plan, model, options);
    CHECK(report.checkpoints.front().count == 5);
    std::vector<std::int64_t> steps;
    for (const CheckpointPlace& place : list_checkpoints(folder.path)) steps.push_back(place.step);
    CHECK(steps == std::vector<std::int64_t>{4, 5});
    CHECK_FALSE(fs::exists(folder.path / "step-00000007.tmp"));
  }
  for (const auto& entry : fs::directory_iterator(folder.path)) CHECK(entry.path().extension() != ".tmp");
  const auto newest = Checkpoint::open(folder.path, model);
  REQUIRE(newest.has_value());
  CHECK(newest->training().step == 5);
}

TEST_CASE("a damaged checkpoint and one of another model are refused with the reason") {
  const ModelSpec model = toy::model(false, 2);
  const Plan plan = toy::uniform(model, 1, {.data = 2, .zero = 1}, 1, ScheduleKind::one_f_one_b);
  const Folder folder;
  TrainOptions options = options_for(2);
  options.checkpoint = {.folder = folder.path, .every = 1, .keep = 2};
  run(plan, model, options);
  const fs::path last = folder.path / checkpoint_name(2);
  const fs::path shard = last / shard_name(1);
  const std::string good = content(shard);
  const auto put = [](const fs::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  };
  for (const std::size_t at : {std::size_t{0}, std::size_t{20}, good.size() / 2, good.size() - 1}) {
    std::string bad = good;
    bad[at] ^= 4;
    put(shard, bad);
    check_refused(Checkpoint::open(folder.path, model), "rank-0001.safetensors");
    check_refused(Checkpoint::open(folder.path, model), "there is also " + (folder.path / checkpoint_name(1)).string());
  }
  put(shard, good.substr(0, good.size() - 5));
  check_refused(Checkpoint::open(folder.path, model), "is damaged: it has");
  fs::remove(shard);
  check_refused(Checkpoint::open(folder.path, model), "No such file");
  put(shard, good);
  REQUIRE(Checkpoint::open(folder.path, model).has_value());

  const std::string manifest = content(last / manifest_name);
  const auto changed = [&](const std::string& from, const std::string& to, const std::string& cause) {
    std::string bad = manifest;
    const auto at = bad.find(from);
    REQUIRE(at != std::string::npos);
    bad.replace(at, from.size(), to);
    put(last / manifest_name, bad);
    check_refused(Checkpoint::open(last, model), cause);
  };
  changed("\"step\": 2", "\"step\": 3", "its checksum is");
  changed("\"version\": 1", "\"version\": 2", "has version 2; this galvatron reads version 1");
  changed("\"seed\"", "\"sed\"", "\"seed\" is missing");
  changed("galvatron-checkpoint", "something", "not the manifest of a galvatron checkpoint");
  changed("rank-0001.safetensors", "../../x", "not the name of a file");
  put(last / manifest_name, manifest.substr(0, manifest.size() / 2));
  check_refused(Checkpoint::open(last, model), "not valid JSON");
  put(last / manifest_name, manifest);

  ModelSpec other = toy::model(false, 3);
  check_refused(Checkpoint::open(last, other), "with layers 2, and toy-gpt has 3");
  check_refused(Checkpoint::open(last, toy::model(true, 2)), "it is of the model toy-gpt with");
  check_refused(Checkpoint::open(folder.path / "nothing", model), "No such file");
  fs::create_directories(folder.path / "empty");
  check_refused(Checkpoint::open(folder.path / "empty", model), "no complete checkpoint");
}

TEST_CASE("a manifest has a checksum of the data, and may be of before there was one") {
  const ModelSpec model = toy::model(false, 2);
  const Folder folder;
  TrainOptions options = options_for(1);
  options.checkpoint = {.folder = folder.path};
  options.data_tokens = 1000;
  options.data_crc32c = 0xFFFFFFF0;
  run(toy::single_rank(model), model, options);
  const auto manifest = Checkpoint::read_manifest(folder.path);
  REQUIRE(manifest.has_value());
  CHECK(manifest->training.data_crc32c == 0xFFFFFFF0U);
  CheckpointManifest before = *manifest;
  before.training.data_crc32c.reset();
  const std::string text = manifest_text(before);
  CHECK(text.find("data_crc32c") == std::string::npos);
  const auto again = parse_manifest(text, "manifest.json");
  REQUIRE(again.has_value());
  CHECK_FALSE(again->training.data_crc32c.has_value());
  CHECK(again->training.data_tokens == 1000);
}

TEST_CASE("of a folder the newest checkpoint that is whole is found, and why newer ones are not") {
  const ModelSpec model = toy::model(false, 2);
  const Folder folder;
  TrainOptions options = options_for(3);
  options.checkpoint = {.folder = folder.path, .every = 1, .keep = 3};
  run(toy::single_rank(model), model, options);
  const auto damage = [&](std::int64_t step, const std::string& name) {
    std::string bytes = content(folder.path / checkpoint_name(step) / name);
    bytes[bytes.size() / 2] ^= 1;
    std::ofstream(folder.path / checkpoint_name(step) / name, std::ios::binary) << bytes;
  };
  CHECK(Checkpoint::find_usable(folder.path).value().manifest.training.step == 3);
  damage(3, shard_name(0));
  const auto found = Checkpoint::find_usable(folder.path);
  REQUIRE(found.has_value());
  CHECK(found->path == folder.path / checkpoint_name(2));
  CHECK(found->manifest.training.step == 2);
  REQUIRE(found->passed_over.size() == 1);
  CHECK(found->passed_over[0].find("step-00000003/rank-0000.safetensors is damaged: its checksum is") !=
        std::string::npos);
  CHECK(Checkpoint::find_usable(folder.path, Checksums::known)->manifest.training.step == 3);  // its size is right
  damage(2, manifest_name);
  CHECK(Checkpoint::find_usable(folder.path)->manifest.training.step == 1);
  const auto named = Checkpoint::find_usable(folder.path / checkpoint_name(2));
  REQUIRE_FALSE(named.has_value());
  CHECK(named.error().message.find("there is also") != std::string::npos);
  damage(1, shard_name(0));
  const auto none = Checkpoint::find_usable(folder.path);
  REQUIRE_FALSE(none.has_value());
  CHECK(none.error().message.find("step-00000003") != std::string::npos);
  CHECK(none.error().message.find("are damaged too") != std::string::npos);
}

TEST_CASE("a run that is asked to stop ends after a step with its checkpoint, and goes on from there bit for bit") {
  const ModelSpec model = toy::model(false, 2);
  for (const Plan& plan : {plans(model).front(), toy::single_rank(model)}) {
    INFO(toy::text(plan));
    const Folder folder;
    std::atomic<int> stop = 0;
    TrainOptions options = options_for(1000);
    options.checkpoint = {.folder = folder.path, .every = 400};
    options.stop = &stop;
    options.on_step = [&](const StepReport& step) {
      if (step.step == 5) stop = 15;
    };
    const TrainReport report = run(plan, model, options);
    CHECK(report.stopped == 15);
    const auto done = static_cast<std::int64_t>(report.steps.size());
    CHECK(done >= 6);
    CHECK(done <= 6 + 32);
    const auto checkpoint = Checkpoint::open(folder.path, model);
    REQUIRE(checkpoint.has_value());
    CHECK(checkpoint->training().step == done);

    const std::vector<double> whole = losses(run(plan, model, options_for(done + 3)));
    CHECK(losses(report) == std::vector<double>(whole.begin(), whole.begin() + done));
    TrainOptions rest = options_for(done + 3);
    rest.resume = &*checkpoint;
    stop = 0;
    rest.stop = &stop;
    const TrainReport more = run(plan, model, rest);
    CHECK(more.stopped == 0);
    CHECK(losses(more) == std::vector<double>(whole.begin() + done, whole.end()));

    stop = 2;  // before anything is done
    const TrainReport none = run(plan, model, rest);
    CHECK(none.stopped == 2);
    CHECK(none.steps.empty());
  }
}

TEST_CASE("what the caller's report throws ends the run after a checkpoint") {
  const ModelSpec model = toy::model(false, 2);
  for (const Plan& plan : {plans(model).front(), toy::single_rank(model)}) {
    const Folder folder;
    TrainOptions options = options_for(1000);
    options.checkpoint = {.folder = folder.path};
    int calls = 0;
    options.on_step = [&](const StepReport& step) {
      ++calls;
      if (step.step == 3) throw Failure(ErrorKind::usage, "the disk of the metrics is full");
    };
    CHECK_THROWS_WITH_AS(run(plan, model, options), "the disk of the metrics is full", Failure);
    CHECK(calls == 4);
    const auto checkpoint = Checkpoint::open(folder.path, model);
    REQUIRE(checkpoint.has_value());
    CHECK(checkpoint->training().step >= 4);
    CHECK(checkpoint->training().step <= 4 + 32);
  }
}

TEST_CASE("a checkpoint that cannot be written leaves nothing, and those before stay") {
  const ModelSpec model = toy::model(false, 2);
  const Plan plan = plans(model).front();
  const Folder folder;
  TrainOptions options = options_for(4);
  options.checkpoint = {.folder = folder.path, .every = 1, .keep = 9};
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  options.on_step = [&](const StepReport& step) {
    rlimit limit = before;
    limit.rlim_cur = 5000;
    if (step.step == 2) ::setrlimit(RLIMIT_FSIZE, &limit);
  };
  std::string why;
  try {
    run(plan, model, options);
  } catch (const Failure& failure) {
    CHECK(failure.kind() == ErrorKind::usage);
    why = failure.what();
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_DFL);
  CHECK(why.find(".safetensors: File too large") != std::string::npos);
  for (const auto& entry : fs::directory_iterator(folder.path)) {
    CAPTURE(entry.path().string());
    CHECK(entry.path().extension() != ".tmp");
    CHECK(entry.path().filename() != lock_name);
  }
  const auto checkpoint = Checkpoint::open(folder.path, model);
  REQUIRE(checkpoint.has_value());
  CHECK(checkpoint->training().step >= 1);
  CHECK(checkpoint->training().step <= 3);
}

TEST_CASE("two runs do not write to one folder") {
  const ModelSpec model = toy::model(false, 2);
  const Folder folder;
  TrainOptions options = options_for(2);
  options.checkpoint = {.folder = folder.path};
  {
    const auto other = FolderLock::take(folder.path);
    REQUIRE(other.has_value());
    try {
      run(plans(model).front(), model, options);
      FAIL("both wrote");
    } catch (const Failure& failure) {
      CHECK(failure.kind() == ErrorKind::usage);
      CHECK(std::string(failure.what()).find(" is in use by process ") != std::string::npos);
    }
  }
  run(plans(model).front(), model, options);
  CHECK_FALSE(fs::exists(folder.path / lock_name));
}

TEST_CASE("a system that refuses a thread for the writer is no defect") {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit none{0, 0};
    if (::setrlimit(RLIMIT_NPROC, &none) != 0 || (::geteuid() == 0 && ::setuid(65534) != 0)) ::_exit(3);
    try {
      const BackgroundThread thread;
      ::_exit(4);
    } catch (const DeviceFailure& failure) {
      const std::string why = failure.what();
      ::_exit(why.starts_with("cannot start the thread that writes checkpoints: Resource temporarily unavailable; ")
                  ? 0
                  : 5);
    }
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("what a task in the background throws is its error") {
  for (const bool device : {true, false}) {
    train::BackgroundThread thread;
    thread.post([device](const std::stop_token&) -> Result<void> {
      if (device) throw DeviceFailure("the GPU is gone");
      throw std::logic_error("not thought of");
    });
    while (!thread.wait_for(std::chrono::milliseconds(100))) {
    }
    const auto error = thread.error();
    REQUIRE(error);
    CHECK(error->kind == (device ? ErrorKind::machine : ErrorKind::internal));
    CHECK(error->message == (device ? "the GPU is gone" : "not thought of"));
  }
}

TEST_CASE("a folder that cannot be written ends the run with the reason") {
  const ModelSpec model = toy::model(false, 2);
  TrainOptions options = options_for(2);
  const Folder folder;
  std::ofstream(folder.path / "file") << "x";
  options.checkpoint = {.folder = folder.path / "file"};
  try {
    run(toy::single_rank(model), model, options);
    FAIL("it was written");
  } catch (const Failure& failure) {
    CHECK(failure.kind() == ErrorKind::usage);
    CHECK(std::string(failure.what()).find("cannot write") != std::string::npos);
  }
}
