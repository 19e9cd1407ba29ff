// The files of a run of train.
#include "run_files.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include <galvatron/core/quantity.hpp>
#include <galvatron/plan/stage_plan.hpp>

namespace galvatron::tools {

void add_start_options(Options& options, RunFileArguments& a) {
  options.text("--resume", a.resume, "DIR",
               "go on after the newest checkpoint of a folder, or after the one named; with the same plan or another. "
               "With --checkpoint of the same folder a new run begins while there is none");
  options.text("--init-from", a.initial, "PATH",
               "start from these weights: a Hugging Face checkpoint of GPT-2 or Llama (a folder, a .safetensors file, "
               "or an index of several), or a folder of --checkpoint");
  options.choice_of("--on-nan", a.on_nan, {{"stop", train::OnNan::stop}, {"skip", train::OnNan::skip}},
                    "when the loss or a gradient is infinite or not a number: end with exit code 4, or leave the "
                    "step's update out (default: stop)");
}

void add_output_options(Options& options, RunFileArguments& a) {
  options.text("--checkpoint", a.checkpoint, "DIR", "write checkpoints to this folder while training goes on");
  options.integer("--checkpoint-every", a.checkpoint_every, 1, 10'000'000,
                  "steps between two, beside that of the last step (default: a tenth of --steps)");
  options.integer("--checkpoint-keep", a.checkpoint_keep, 1, 1'000'000, "how many of the newest stay (default: 2)");
  options.text("--metrics", a.metrics, "FILE", "write a line of JSON here after every step");
  options.text("--tensorboard", a.tensorboard, "DIR", "write an event file for TensorBoard to this folder");
}

namespace {

std::filesystem::path whole_path(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::weakly_canonical(path, ignored);
}

// One command line that begins a run and goes on with it.
bool restarts_itself(const RunFileArguments& a) {
  return !a.checkpoint.empty() && !a.resume.empty() && whole_path(a.resume) == whole_path(a.checkpoint);
}

void check(const RunFileArguments& a) {
  if (a.checkpoint.empty() && a.checkpoint_every > 0) refuse("--checkpoint-every needs --checkpoint DIR");
  if (!a.initial.empty() && !a.resume.empty() && !restarts_itself(a))
    refuse(
        "--resume and --init-from exclude each other; the former goes on with a run, the latter begins one (a run that "
        "begins with these weights and goes on by the same command has --resume and --checkpoint in one folder)");
}

// @param checksums  whether the files are read
RunStart found_start(const RunFileArguments& a, train::Checksums checksums) {
  const bool has_checkpoints = !a.checkpoint.empty() && !train::list_checkpoints(a.checkpoint).empty();
  if (restarts_itself(a) && !has_checkpoints) return {};
  if (has_checkpoints) {
    const auto resumed = train::find_checkpoint(a.resume);
    if (a.resume.empty() || !resumed || whole_path(*resumed).parent_path() != whole_path(a.checkpoint))
      refuse("--checkpoint: ", a.checkpoint, " has checkpoints of another run; go on with that one by --resume ",
             a.checkpoint, ", or name another folder");
  }
  if (a.resume.empty()) return {};
  auto usable = value_of("--resume", train::Checkpoint::find_usable(a.resume, checksums));
  if (checksums == train::Checksums::compared)
    for (const std::string& why : usable.passed_over)
      note({}, "Passed over a newer checkpoint: ", why, ". The run goes on after ", usable.path.string(), ".");
  return {.checkpoint = usable.path.string(), .manifest = std::move(usable.manifest)};
}

}  // namespace

RunStart run_start(const RunFileArguments& a, Launcher& launcher) {
  check(a);
  RunStart start;
  if (launcher.shows()) {
    std::shared_ptr<train::FolderLock> lock;
    if (!a.checkpoint.empty()) lock = value_of("--checkpoint", train::FolderLock::take(a.checkpoint));
    start = found_start(a, train::Checksums::compared);
    start.lock = std::move(lock);
    if (!a.checkpoint.empty())  // also of a run that has nothing else to do
      if (auto done = train::prepare_checkpoint_folder(a.checkpoint); !done) refuse(done.error().message);
    if (restarts_itself(a) && start.checkpoint.empty())
      note({}, "There is no checkpoint in ", a.resume, " yet: a new run begins.");
    if (!a.metrics.empty()) value_of("--metrics", train::MetricsFile::check(a.metrics));
  }
  start.checkpoint = launcher.shared(start.checkpoint);
  if (!launcher.shows() && !start.checkpoint.empty())
    start.manifest = value_of("--resume", train::Checkpoint::read_manifest(start.checkpoint));
  return start;
}

RunStart likely_run_start(const RunFileArguments& a) {
  check(a);
  return found_start(a, train::Checksums::known);
}

std::string newest_checkpoint(const RunFileArguments& a) {
  if (a.checkpoint.empty()) return "";
  const auto all = train::list_checkpoints(a.checkpoint);
  return all.empty() ? "" : all.back().path.string();
}

std::string way_to_go_on(const RunFileArguments& a) {
  return restarts_itself(a) ? "the same command goes on after it" : "--resume " + a.checkpoint + " goes on after it";
}

void settle(const TrainingConstants& c, const std::optional<train::CheckpointManifest>& resumed,
            train::TrainOptions& options) {
  if (resumed && c.seed >= 0 && static_cast<std::uint64_t>(c.seed) != resumed->training.seed)
    refuse("--seed says ", c.seed, ", but the checkpoint was made with the seed ", resumed->training.seed,
           ", which orders the data; leave the option out");
  train::TrainingState from;  // what a new run has
  from.learning_rate = {.peak = 1e-3, .floor = 1e-4, .warmup_steps = std::min<std::int64_t>(options.steps / 10, 100)};
  from.clip = 1;
  from.seed = 1;
  if (resumed) from = resumed->training;
  const auto given_or = [](auto given, auto otherwise) { return given < 0 ? otherwise : given; };
  options.learning_rate = {
      .peak = given_or(c.learning_rate, from.learning_rate.peak),
      .floor = given_or(c.least_rate, c.learning_rate < 0 ? from.learning_rate.floor : c.learning_rate / 10),
      .warmup_steps = given_or(c.warmup, from.learning_rate.warmup_steps),
      .steps = options.steps};
  options.adam.weight_decay = given_or(static_cast<float>(c.weight_decay), from.adam.weight_decay);
  options.adam.rounding = c.rounding.value_or(from.adam.rounding);
  options.clip = given_or(c.clip, from.clip);
  options.seed = c.seed < 0 ? from.seed : static_cast<std::uint64_t>(c.seed);
}

bool continues(const train::CheckpointManifest& resumed, const Plan& plan, const train::Data& data,
               std::int64_t steps) {
  const train::TrainingState& from = resumed.training;
  const auto differs = [](const char* what, std::int64_t here, std::int64_t there) {
    if (here != there)
      refuse("--resume: the run has ", what, " of ", here, ", the checkpoint one of ", there,
             "; go on as it was begun");
  };
  differs("a global batch", plan.global_batch, from.global_batch);
  if (!plan.packed) differs("a sequence length", plan.sequence_length, from.sequence_length);
  if (from.data_tokens != 0 && data.size() != from.data_tokens)
    refuse("--resume: the data have ", data.size(), " tokens, and the checkpoint was trained on ", from.data_tokens,
           "; give the same --data");
  if (from.data_crc32c && data.checksum() != *from.data_crc32c)
    refuse(
        "--resume: the data are as large as those that the checkpoint was trained on, but others: samples of them have "
        "the checksum ",
        data.checksum(), " instead of ", *from.data_crc32c, "; give the same --data, in the same order");
  if (steps < from.step)
    refuse("--resume: the checkpoint has ", from.step, " steps behind it, and --steps says ", steps,
           " in all; give more");
  return from.step < steps;
}

std::vector<Bytes> checkpoint_copies(const RunFileArguments& a, const Plan& plan, const ModelSpec& model) {
  std::vector<Bytes> out;
  if (a.checkpoint.empty()) return out;
  for (int rank = 0; rank < plan.ranks(); ++rank)
    out.push_back(train::snapshot_bytes(train::stage_plan(plan, model, rank), rank));
  return out;
}

RunFiles::RunFiles(const RunFileArguments& a, const RunStart& start, const ModelSpec& model, bool writes_metrics,
                   train::TrainOptions& options) {
  options.on_nan = a.on_nan;
  options.checkpoint.folder = a.checkpoint;
  options.checkpoint.every =
      a.checkpoint_every > 0 ? a.checkpoint_every : std::max<std::int64_t>(options.steps / 10, 1);
  options.checkpoint.keep = a.checkpoint_keep;
  options.checkpoint.lock = start.lock;
  if (!start.checkpoint.empty()) {
    resumed_ = value_of("--resume", train::Checkpoint::open(start.checkpoint, model, train::Checksums::known));
    options.resume = &*resumed_;
  } else if (!a.initial.empty() && train::find_checkpoint(a.initial)) {
    initial_ = value_of("--init-from", train::Checkpoint::open(a.initial, model));
    options.initial = initial_->weights();
  } else if (!a.initial.empty()) {
    huggingface_ = value_of("--init-from", train::HuggingFaceWeights::open(a.initial, model));
    options.initial = huggingface_->weights();
  }
  if (!writes_metrics) return;
  const std::int64_t done = train::first_step(options);
  metrics_path_ = a.metrics;
  written_ = done;
  if (!a.metrics.empty()) metrics_ = value_or_throw(train::MetricsFile::resume(a.metrics, done));
  if (!a.tensorboard.empty()) tensorboard_ = value_or_throw(train::TensorBoardFile::create(a.tensorboard, done + 1));
}

void RunFiles::go_back_to(std::int64_t step) {
  if (step >= written_) return;
  written_ = step;
  if (metrics_) metrics_ = value_or_throw(train::MetricsFile::resume(metrics_path_, step));
  if (tensorboard_)
    tensorboard_ = value_or_throw(train::TensorBoardFile::create(tensorboard_->path().parent_path(), step + 1));
}

void RunFiles::add(const train::StepReport& step) {
  written_ = step.step + 1;
  if (metrics_) value_or_throw(metrics_->append(step));
  if (tensorboard_) value_or_throw(tensorboard_->append(step.step + 1, train::metrics_scalars(step)));
}

void add_files_json(nlohmann::ordered_json& out, const RunFileArguments& a, const train::TrainReport& report) {
  const auto skipped = std::ranges::count_if(report.steps, [](const auto& step) { return !step.skipped.empty(); });
  if (!report.steps.empty()) out["first_step"] = report.steps.front().step + 1;
  if (a.on_nan == train::OnNan::skip) out["skipped_steps"] = skipped;
  add_texts(out, {{"resume", a.resume},
                  {"init_from", a.initial},
                  {"metrics", a.metrics},
                  {"tensorboard", a.tensorboard},
                  {"checkpoint", a.checkpoint}});
  if (a.checkpoint.empty()) return;
  out["checkpoints_written"] = report.checkpoints.front().count;
  for (const train::CheckpointReport& rank : report.checkpoints) out["checkpoint_bytes"].push_back(rank.bytes);
  using Report = train::CheckpointReport;
  for (const auto& [key, seconds] : {std::pair("checkpoint_pause_seconds", &Report::pause_seconds),
                                     {"checkpoint_wait_seconds", &Report::wait_seconds},
                                     {"checkpoint_write_seconds", &Report::write_seconds}})
    out[key] = std::ranges::max(report.checkpoints, {}, seconds).*seconds;
}

std::string files_text(const RunFileArguments& a, const train::TrainReport& report) {
  std::string out;
  if (!a.checkpoint.empty()) {
    Bytes bytes;
    for (const train::CheckpointReport& rank : report.checkpoints) bytes += Bytes{rank.bytes};
    const double pause =
        std::ranges::max(report.checkpoints, {}, &train::CheckpointReport::pause_seconds).pause_seconds;
    out += row("checkpoints", a.checkpoint, ": ", report.checkpoints.front().count, " of ", format_bytes(bytes),
               ", for which training paused ", format_seconds({pause}));
  }
  return out + row("metrics", a.metrics) + row("tensorboard", a.tensorboard);
}

}  // namespace galvatron::tools
