// The files of a run of train.
#include "run_files.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include <galvatron/core/quantity.hpp>
#include <galvatron/plan/stage_plan.hpp>

#include "tasks.hpp"

namespace galvatron::tools {

void add_start_options(Options& options, RunFileArguments& a) {
  options.text("--resume", a.resume, "DIR",
               "go on after the newest checkpoint of a folder, or after the one named; with the same plan or another. "
               "With --checkpoint of the same folder a new run begins while there is none");
  options.text("--init-from", a.initial, "PATH",
               "start from these weights: a Hugging Face checkpoint of GPT-2 or Llama (a folder, a .safetensors file, "
               "or an index of several), or a folder of --checkpoint; of several tasks COMPONENT[,COMPONENT]=FOLDER");
  adapter_option(options, a.adapter, "with --init-from BASE, what the plan's adapters begin as");
  options.choice_of("--on-nan", a.on_nan, {{"stop", train::OnNan::stop}, {"skip", train::OnNan::skip}},
                    "when the loss or a gradient is infinite or not a number: end with exit code 4, or leave the "
                    "step's update out (default: stop)");
}

void add_constants_options(Options& options, TrainingConstants& c) {
  options.number("--lr", c.learning_rate, 0, 1e3, "learning rate after warm-up (default: 0.001)");
  options.number("--min-lr", c.least_rate, 0, 1e3, "learning rate at the last step (default: a tenth of --lr)");
  options.integer("--warmup", c.warmup, 0, 10'000'000,
                  "steps of linear warm-up (default: a tenth of --steps, at most 100)");
  options.choice("--lr-schedule", c.schedule,
                 {train::RateSchedule::cosine, train::RateSchedule::linear, train::RateSchedule::wsd,
                  train::RateSchedule::constant},
                 "how the rate goes on: along half a cosine or a line, first stable and then along a line, or constant "
                 "(default: cosine)");
  options.integer("--decay-steps", c.decay_steps, 0, 10'000'000,
                  "of wsd: the last steps, in which the rate falls (default: a fifth of --steps)");
  options.number("--weight-decay", c.weight_decay, 0, 1e3,
                 "of AdamW, times the learning rate; biases and norms do not decay (default: 0.1)");
  options.number("--beta1", c.beta1, 0, 0.999999, "of AdamW's mean of gradients (default: 0.9)");
  options.number("--beta2", c.beta2, 0, 0.999999, "of AdamW's mean of their squares (default: 0.95)");
  options.number("--epsilon", c.epsilon, 0, 1, "of AdamW (default: 1e-8)");
  options.choice("--rounding", c.rounding, {device::Rounding::nearest, device::Rounding::stochastic},
                 "of bf16 parameters from their masters (default: nearest)");
  options.number("--clip", c.clip, 0, 1e9, "largest gradient norm, 0 for no clipping (default: 1)");
  options.integer("--seed", c.seed, 0, std::int64_t{1} << 62, "of initial values and of the data's order (default: 1)");
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
  if (!a.adapter.empty() && a.initial.empty())
    refuse("--adapter: the adapter's base has no name; give it with --init-from BASE");
  if (a.checkpoint.empty() && a.checkpoint_every > 0) refuse("--checkpoint-every needs --checkpoint DIR");
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
  if (!a.initial.empty() && !restarts_itself(a) && !usable.manifest.training.architecture.contains("lora"))
    refuse(
        "--resume and --init-from exclude each other; the former goes on with a run, the latter begins one (a run that "
        "begins with these weights and goes on by the same command has --resume and --checkpoint in one folder)");
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
      .steps = options.steps,
      .schedule = c.schedule.value_or(from.learning_rate.schedule),
      .decay_steps = given_or(c.decay_steps, from.learning_rate.decay_steps)};
  train::LearningRate& rate = options.learning_rate;
  if (c.decay_steps >= 0 && rate.schedule != train::RateSchedule::wsd)
    refuse("--decay-steps is for --lr-schedule wsd, and the schedule is ", name_of(rate.schedule));
  if (rate.schedule == train::RateSchedule::wsd && rate.decay_steps == 0 && c.decay_steps < 0)
    rate.decay_steps = std::max<std::int64_t>(options.steps / 5, 1);
  options.adam.beta1 = given_or(static_cast<float>(c.beta1), from.adam.beta1);
  options.adam.beta2 = given_or(static_cast<float>(c.beta2), from.adam.beta2);
  options.adam.epsilon = given_or(static_cast<float>(c.epsilon), from.adam.epsilon);
  options.adam.weight_decay = given_or(static_cast<float>(c.weight_decay), from.adam.weight_decay);
  options.adam.rounding = c.rounding.value_or(from.adam.rounding);
  options.clip = given_or(c.clip, from.clip);
  options.seed = c.seed < 0 ? from.seed : static_cast<std::uint64_t>(c.seed);
}

bool continues(const train::CheckpointManifest& resumed, std::int64_t global_batch, std::int64_t sequence,
               const train::Data& data, std::int64_t steps) {
  const train::TrainingState& from = resumed.training;
  const auto differs = [](const char* what, std::int64_t here, std::int64_t there) {
    if (here != there)
      refuse("--resume: the run has ", what, " of ", here, ", the checkpoint one of ", there,
             "; go on as it was begun");
  };
  differs("a global batch", global_batch, from.global_batch);
  if (sequence != 0) differs("a sequence length", sequence, from.sequence_length);
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

runtime::ParameterSource RunFiles::initial_weights(const std::string& path, const ModelSpec& model, std::uint64_t seed,
                                                   const std::string& adapter) {
  const bool adapts = is_adapted(model);
  const ModelSpec plain = adapts ? without_adapters(model) : model;
  auto base = weights_.emplace("--init-from", path, plain).source();
  auto fresh = runtime::initial_values(seed);
  if (!adapter.empty()) {
    peft_ = value_of("--adapter", train::PeftAdapter::open(adapter, plain));
    if (const AdapterSpec theirs = adapters_of(peft_->model()); theirs != adapters_of(model))
      refuse("--adapter: ", adapter, " has other adapters than the plan; make one with --lora ", theirs.rank,
             " --lora-alpha ", galvatron::detail::shortest_text(theirs.alpha), " --lora-targets ",
             adapter_target_names(theirs));
    fresh = peft_->weights();
  }
  if (!adapts) return base;
  return [base = std::move(base), fresh = std::move(fresh)](int layer, const ParameterTensor& tensor,
                                                            std::int64_t index, View<float> values) {
    (tensor.frozen ? base : fresh)(layer, tensor, index, values);
  };
}

runtime::ParameterSource RunFiles::initial_weights(const std::string& path, const MultiTaskModel& model,
                                                   std::uint64_t seed, const std::string& adapter) {
  if (!adapter.empty()) refuse("--adapter is of a model of one task");
  if (path.find('=') != std::string::npos) {
    const ComponentsOf of = components_of("--init-from", path);
    components_ = value_of("--init-from", train::ComponentWeights::open(of.path, model, of.names));
    return components_->weights(runtime::initial_values(seed, 1));
  }
  initial_ = value_of("--init-from", train::Checkpoint::open(path, model));
  return initial_->weights();
}

void RunFiles::begin_metrics(const RunFileArguments& a, std::int64_t done) {
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

void RunFiles::add(std::int64_t step, const std::string& line, const std::vector<train::Scalar>& scalars) {
  go_back_to(step);  // a step that was written by a process which then was lost is written again
  written_ = step + 1;
  if (metrics_) value_or_throw(metrics_->append_line(line));
  if (tensorboard_) value_or_throw(tensorboard_->append(step + 1, scalars));
}

void add_files_json(nlohmann::ordered_json& out, const RunFileArguments& a, const RunSummary& run) {
  if (run.steps > 0) out["first_step"] = run.first_step + 1;
  if (a.on_nan == train::OnNan::skip) out["skipped_steps"] = run.skipped;
  add_texts(out, {{"resume", a.resume},
                  {"init_from", a.initial},
                  {"adapter", a.adapter},
                  {"metrics", a.metrics},
                  {"tensorboard", a.tensorboard},
                  {"checkpoint", a.checkpoint}});
  if (a.checkpoint.empty()) return;
  out["checkpoints_written"] = run.checkpoints.front().count;
  for (const train::CheckpointReport& rank : run.checkpoints) out["checkpoint_bytes"].push_back(rank.bytes);
  using Report = train::CheckpointReport;
  for (const auto& [key, seconds] : {std::pair("checkpoint_pause_seconds", &Report::pause_seconds),
                                     {"checkpoint_wait_seconds", &Report::wait_seconds},
                                     {"checkpoint_write_seconds", &Report::write_seconds}})
    out[key] = std::ranges::max(run.checkpoints, {}, seconds).*seconds;
}

std::string files_text(const RunFileArguments& a, const RunSummary& run) {
  std::string out;
  if (!a.checkpoint.empty()) {
    Bytes bytes;
    for (const train::CheckpointReport& rank : run.checkpoints) bytes += Bytes{rank.bytes};
    const double pause = std::ranges::max(run.checkpoints, {}, &train::CheckpointReport::pause_seconds).pause_seconds;
    out += row("checkpoints", a.checkpoint, ": ", run.checkpoints.front().count, " of ", format_bytes(bytes),
               ", for which training paused ", format_seconds({pause}));
  }
  return out + row("metrics", a.metrics) + row("tensorboard", a.tensorboard);
}

std::string interruption(const RunSummary& run, const RunFileArguments& a, std::int64_t steps) {
  const auto goes_on = [&](const std::string& checkpoint) { return checkpoint + ", and " + way_to_go_on(a); };
  const std::string newest = newest_checkpoint(a);
  if (run.steps == 0)
    return "interrupted before the first step" +
           (newest.empty() ? "" : "; the newest checkpoint is " + goes_on(newest));
  const std::int64_t done = run.first_step + run.steps;
  const std::filesystem::path folder = a.checkpoint;
  return text_of("interrupted after step ", done, " of ", steps, "; ",
                 folder.empty() ? "without --checkpoint nothing of it is kept"
                                : "its checkpoint is " + goes_on((folder / train::checkpoint_name(done)).string()));
}

}  // namespace galvatron::tools
