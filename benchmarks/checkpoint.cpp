// Checkpoints against dd: seconds to save and to resume, and how long training pauses.
//
//   benchmark_checkpoint [FOLDER [LAYERS [HIDDEN [ROUNDS]]]]     default: the temporary folder, 8, 512, 5
//
// Trains a GPT on two ranks, saves it, and resumes it; each time the same bytes are written with `dd conv=fsync` or
// read with dd. Both find the machine alike: nothing is left to be written or discarded, the source of dd is in the
// page cache, what is read from the disk is not, and free memory is at hand. Of the rounds the medians count. Exits
// with 1 when saving or resuming takes more than 1.5 times as long as dd, or training pauses for 5 % of the time or
// more.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <galvatron/model/zoo.hpp>
#include <galvatron/rank/host_rank.hpp>
#include <galvatron/train/trainer.hpp>

#include "cheap_tokens.hpp"
#include "guarded.hpp"

namespace {

using namespace galvatron;
namespace fs = std::filesystem;

using Strategies = TypeList<Strategy<DataParallel<>, ZeRO<1>>>;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void shell(const std::string& line) {
  if (std::system(line.c_str()) != 0) throw Failure(ErrorKind::machine, "this failed: " + line);
}

/// The next reader of these files reads from the disk.
void drop_from_cache(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const galvatron::detail::FileHandle file(::open(entry.path().c_str(), O_RDONLY));
    ::fsync(file.get());
    ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

/// What was written or removed before is over, and memory for `bytes` of page cache is at hand, with as much to spare:
/// a virtual machine gives back what is free, and gets it again much slower than a disk writes.
void level(double bytes) {
  ::sync();
  const auto size = static_cast<std::size_t>(2 * bytes);
  const std::unique_ptr<volatile char[]> pages(new char[size]);
  for (std::size_t at = 0; at < size; at += 4096) pages[at] = 1;
}

/// The next reader of this file finds it in the page cache.
void bring_to_cache(const fs::path& path) { shell("cat '" + path.string() + "' > /dev/null"); }

struct Round {
  double save = 0;
  double pause = 0;
  double write_dd = 0;
  double resume = 0;
  double open = 0;  ///< of it: reading everything and comparing checksums
  double read_dd = 0;
  double bytes = 0;
};

Round measure(const Plan& plan, const ModelSpec& model, const fs::path& folder, bool dd_first) {
  Round out;
  CheapTokens tokens(model.vocabulary());
  const auto train = [&](const char* name, std::int64_t steps, std::int64_t every) {
    train::TrainOptions options;
    options.steps = steps;
    options.checkpoint = {.folder = folder / name, .every = every, .keep = 1};
    return train::train<Strategies>(plan, model, tokens, options).checkpoints;
  };
  for (const train::CheckpointReport& rank : train("first", 3, 2)) {  // the third step's update waits for the copy
    out.pause = std::max(out.pause, rank.pause_seconds);
    out.bytes += static_cast<double>(rank.bytes);
  }
  const auto save = [&] {
    ::sync();
    for (const train::CheckpointReport& rank : train("saved", 1, 0)) out.save = std::max(out.save, rank.wait_seconds);
  };
  // Into a new folder, as checkpoints are.
  const fs::path copies = folder / "dd" / "copies";
  const auto source = [&](int rank) { return folder / "first" / train::checkpoint_name(3) / train::shard_name(rank); };
  const auto write_dd = [&] {
    fs::create_directories(copies);
    for (int rank = 0; rank < plan.ranks(); ++rank) bring_to_cache(source(rank));
    level(out.bytes);
    const double begin = seconds();
    for (int rank = 0; rank < plan.ranks(); ++rank)
      shell("dd if='" + source(rank).string() + "' of='" + (copies / std::to_string(rank)).string() +
            "' bs=4M conv=fsync 2>/dev/null");
    out.write_dd = seconds() - begin;
  };
  if (dd_first) write_dd();
  save();
  if (!dd_first) write_dd();

  drop_from_cache(folder);
  level(out.bytes);
  double begin = seconds();
  for (int rank = 0; rank < plan.ranks(); ++rank)
    shell("dd if='" + (copies / std::to_string(rank)).string() + "' of=/dev/null bs=4M 2>/dev/null");
  out.read_dd = seconds() - begin;

  drop_from_cache(folder);
  level(out.bytes);
  begin = seconds();
  const auto checkpoint = value_or_throw(train::Checkpoint::open(folder / "saved", model));
  out.open = seconds() - begin;
  comm::thread::run(plan.ranks(), [&](comm::thread::World& world) {
    const auto mine = train::stage_plan(plan, model, world.rank());
    train::HostRank rank(train::memory_of(mine, train::HostPlatform{}.library_workspace()), 1);
    train::Stage<device::Host, float> stage(rank.device(), world, plan, model, rank.memory(),
                                            train::layer_maker<Strategies, device::Host, float>());
    const comm::SendGuard guard(world);
    world.everybody().barrier();
    const double start = seconds();
    train::restore(stage, checkpoint);
    world.everybody().barrier();
    if (world.rank() == 0) out.resume = out.open + seconds() - start;
  });
  for (const auto& entry : fs::directory_iterator(folder)) fs::remove_all(entry.path());
  std::printf("  save %.3f s (dd %.3f)  resume %.3f s, of it open %.3f (dd %.3f)  pause %.4f s\n", out.save,
              out.write_dd, out.resume, out.open, out.read_dd, out.pause);
  std::fflush(stdout);
  return out;
}

struct Arguments {
  std::string folder;
  int layers = 8;
  int hidden = 512;
  int rounds = 5;
};

void options(CLI::App& app, Arguments& a) {
  app.add_option("folder", a.folder, "on the disk to measure; the system's folder for temporary files by default");
  app.add_option("layers", a.layers, "of the model")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("hidden", a.hidden, "width of the model")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("rounds", a.rounds, "of saving and resuming")->capture_default_str()->check(CLI::PositiveNumber);
}

int benchmark(const Arguments& a) {
  std::string name =
      ((a.folder.empty() ? fs::temp_directory_path() : fs::path(a.folder)) / "galvatron-benchmark-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw Failure(ErrorKind::usage, "cannot make a folder like " + name);
  const fs::path folder = name;
  const ModelSpec model =
      gpt("gpt", {.layers = a.layers, .hidden = a.hidden, .heads = 8, .vocabulary = 8192, .positions = 64});
  const StrategySpec spec{.data = 2, .zero = 1};
  Plan plan;
  plan.model = model.name;
  plan.cluster = "host";
  plan.global_batch = 4;
  plan.sequence_length = 64;
  plan.stages = {{0, static_cast<int>(model.blocks.size()) - 1, 0, 2}};
  plan.layers.assign(model.blocks.size(), spec);
  plan.embedding = plan.head = spec;

  std::vector<Round> rounds;
  try {
    for (int i = 0; i < a.rounds; ++i) rounds.push_back(measure(plan, model, folder, i % 2 == 0));
  } catch (...) {
    fs::remove_all(folder);
    throw;
  }
  fs::remove_all(folder);
  const auto median_of = [&](double Round::* member) {
    std::vector<double> values;
    for (const Round& round : rounds) values.push_back(round.*member);
    return train::detail::median_of(values);
  };
  const double save = median_of(&Round::save);
  const double pause = median_of(&Round::pause);
  const double write_dd = median_of(&Round::write_dd);
  const double resume = median_of(&Round::resume);
  const double read_dd = median_of(&Round::read_dd);
  const double bytes = median_of(&Round::bytes);
  std::printf("%.0f MB on two ranks, medians of %zu rounds\n", bytes / 1e6, rounds.size());
  std::printf("save    %.3f s  %6.0f MB/s   dd %.3f s   ratio %.2f\n", save, bytes / 1e6 / save, write_dd,
              save / write_dd);
  std::printf("resume  %.3f s  %6.0f MB/s   dd %.3f s   ratio %.2f\n", resume, bytes / 1e6 / resume, read_dd,
              resume / read_dd);
  std::printf("pause   %.4f s, %.1f %% of saving\n", pause, 100 * pause / save);
  return save <= 1.5 * write_dd && resume <= 1.5 * read_dd && pause < 0.05 * save ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("benchmark_checkpoint", "Saving and resuming against dd on the same bytes.", argc, argv, options,
                 benchmark);
}
