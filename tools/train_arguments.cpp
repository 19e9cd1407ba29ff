#include "train_arguments.hpp"

#include <cstdlib>
#include <utility>

#include <galvatron/core/text.hpp>
#include <galvatron/device/device.hpp>

#include "output.hpp"
#include "texts.hpp"

namespace galvatron::tools {

bool read_train_arguments(const Arguments& arguments, TrainArguments& a, Common& common) {
  Options options("train",
                  "Trains a model on this machine as a plan says, every rank a group of threads, and shows what was "
                  "predicted beside what was measured.");
  options.section("Plan (one of the first two)");
  CLI::Option* plan = options.text("--plan", a.plan_path, "FILE", "a plan of `galvatron plan --out`");
  options.require_one(
      {plan, options.flag("--auto", a.automatic, "profile this machine, search a plan and train with it")});
  const auto automatic = [&a] { return a.automatic; };
  options.require_one(
      {options.text("--model", a.model, "MODEL",
                    "a preset's name, or the path of a Hugging Face config.json or of a model of several tasks "
                    "(default: the plan's)")},
      automatic);
  options.require_one({options.integer("--global-batch", a.global_batch, 1, 1 << 30,
                                       "samples of a step (default: the plan's, or those of all tasks)")},
                      [&a] { return a.automatic && !a.has_tasks(); });
  options.integer("--seq", a.sequence, 1, 1 << 24,
                  "tokens of a sample (default: the plan's, else all the model takes)");
  options.integer("--ranks", a.ranks, 1, 1024,
                  "ranks (default: the plan's or the cluster's, else one a core, or one a GPU)");
  options.size("--memory", a.memory, "memory of each rank that training may take");
  options.choice("--precision", a.precision, {Precision::bf16, Precision::fp32, Precision::fp8},
                 "with --auto (default: bf16 where the processor has it)");
  moments_option(options, a.moments);
  expert_imbalance_option(options, a.expert_imbalance);
  dispatch_options(options, a.dispatch);
  lora_options(options, a.lora, "with --auto: ");
  options.text("--space", a.space, "a,b,...",
               "with --auto: what to choose from: " + std::string(space_names) + " (default: runnable)");
  options.text("--cluster", a.cluster, "FILE", "with --auto: a cluster file, instead of profiling first");
  options.number("--profile-seconds", a.profile_seconds, 0.01, 3600, "with --auto: how long to profile (default: 8)");
  busy_option(options, a.accepts_busy, "with --auto: ");
  options.text("--save-plan", a.save_plan, "FILE", "with --auto: write the plan here");
  options.text("--save-cluster", a.save_cluster, "FILE", "with --auto: write the profile here, as a cluster file");
  options.section("Training");
  options.require_one(
      {options.texts(
          "--data", a.data, "FILE...",
          "texts and JSON lines, files of tokens, .bin or .npy, or .images files for models of images; for models of "
          "several tasks a folder with one for each task, or synthetic (docs/data.md)")},
      [&a] { return !a.has_tasks(); });
  options.require(options.integer("--steps", a.options.steps, 1, 10'000'000, "steps to train"));
  add_constants_options(options, a.constants);
  options.integer("--mask-token", a.mask_token, 0, (std::int64_t{1} << 31) - 1,
                  "what hides a token from a masked language model (default: the last of the vocabulary)");
  tokenizer_option(options, a.tokenizer);
  add_start_options(options, a.files);
  options.section("Several tasks (docs/multitask.md)");
  task_schedule_option(options, a.schedule, "with --auto: ");
  options.integer("--held-out", a.held_out, 1, 1 << 30,
                  "samples at the end of every task's data that are not trained on but measured: losses, and how often "
                  "pairs find each other");
  options.integer("--evaluate-every", a.evaluate_every, 1, 10'000'000,
                  "with --held-out: steps between two measurements (default: a tenth of --steps)");
  options.texts("--mix-at", a.mixes, "STEP:TASK=BATCH,...",
                "from this step on train these tasks alone, with so many samples each; may be given several times. "
                "Plans follow, and states move while the run goes on");
  options.section("Validation");
  options.texts(
      "--validate", a.validation, "FILE...",
      "data of the same kind that are not trained on: their loss is shown while the run goes on, and at its end");
  options.integer("--validate-every", a.validate_every, 1, 10'000'000,
                  "steps between two validations (default: a tenth of --steps)");
  options.integer("--validate-samples", a.validate_samples, 1, std::int64_t{1} << 40,
                  "samples of a validation, the same ones every time (default: all, but no more than 65,536 tokens)");
  options.section("Documents (docs/flexsp.md)");
  options.flag("--pack", a.pack,
               "with --auto: samples are documents of any length, a file each or as below, packed into sequences");
  packing_options(options, a.max_tokens, a.groups, "--pack");
  options.choice_of("--late-plan", a.options.late_groups_fixed, {{"wait", false}, {"static", true}},
                    "a step whose groups are not chosen yet waits, or takes those of the plan, so that such a run does "
                    "not repeat to the bit (default: wait)");
  options.text("--document-separator", a.documents.separator, "TEXT", "what lies between the documents of a text");
  options.integer("--end-token", a.documents.end_token, 0, (std::int64_t{1} << 31) - 1,
                  "the token that ends a document: in .bin files without an index it is there, to texts it is added");
  options.choice_of("--empty-documents", a.documents.skip_empty, {{"refuse", false}, {"skip", true}},
                    "documents of less than two tokens end the run, or are left out (default: refuse)");
  options.section("Machine");
  options.choice(
      "--device", a.device, {"host", "cuda"},
      "what to compute on (default: host); cuda: rank r on GPU r, over NCCL; more ranks than GPUs share the first one. "
      "With processes that torchrun, mpirun or srun has started, each is a rank with a GPU of its own");
  options.choice_of("--cuda-graph", a.options.repeats, {{"on", true}, {"off", false}},
                    "with --device cuda and one rank: record the second step and launch it whole (default: on)");
  options.choice_of(
      "--tune", a.options.searches, {{"on", true}, {"off", false}},
      "with --device cuda and one rank: search the fastest algorithm of each matrix product first and keep "
      "it on disk (default: on)");
  deterministic_option(options, a.options.deterministic);
  options.choice(
      "--launcher", a.launcher, {"threads", "mpi"},
      "what a rank is: a thread, or a process (default: threads; processes when a launcher has started several)");
  options.text("--mpirun", a.mpirun, "COMMAND",
               "with --launcher mpi: what starts processes, with its options (default: mpirun)");
  options.number("--rank-timeout", a.rank_timeout, 0.1, 1e7,
                 "seconds that a rank waits for another one before the run ends with exit code 4 (default: 600)");
  adapt_options(options, a.adapt);
  options.section("Output");
  add_output_options(options, a.files);
  options.text("--trace", a.trace, "FILE",
               "write a trace of the last step and its prediction, for ui.perfetto.dev or chrome://tracing");
  options.text("--report", a.report, "FILE", "write an HTML report of the last step beside its prediction");
  options.flag(
      "--live", a.live,
      "show curves of loss, speed and gradient norm and the ranks' work above the progress line of a terminal");
  options.flag("--json", common.json, "print one JSON object instead of text");
  options.flag("--quiet", common.quiet, "show no progress");
  const std::string optimizer =
      "The optimizer is AdamW with bias correction; the rate rises linearly, then goes on as --lr-schedule says; the "
      "gradient is clipped by its norm over the whole model (docs/optimizer.md).";
  options.examples(
      wrapped(optimizer, static_cast<std::size_t>(help_width()), 0) +
      "\n\nExamples:\n  galvatron train --plan plan.json --data text.txt --steps 100\n  galvatron train --auto --model "
      "gpt2-tiny --ranks 4 --memory 16MiB \\\n      --data text.txt --steps 100 --global-batch 16");
  return options.parse(arguments, common);
}

void check_train_arguments(const TrainArguments& a, const train::LearningRate& rate, const Launcher& launcher) {
  for (const auto& [given, option] : {std::pair(a.held_out != 0, "--held-out"),
                                      {a.evaluate_every != 0, "--evaluate-every"},
                                      {!a.mixes.empty(), "--mix-at"},
                                      {a.schedule != simulate::TaskSchedule::fastest, "--task-schedule"}})
    if (given && !a.has_tasks()) refuse(option, " is for models of several tasks; leave it out");
  if (a.evaluate_every != 0 && a.held_out == 0) refuse("--evaluate-every needs --held-out N");
  if (a.automatic && !a.plan_path.empty()) refuse("--plan and --auto exclude each other; give one of them");
  if (a.launcher == "mpi") require_mpi();
  if (a.launcher == "threads" && launcher.ranks() > 0)
    refuse(launcher.starter(), " has started ", launcher.ranks(),
           " processes, and --launcher threads trains in one; leave ", launcher.starter(), " out, or the option");
  if (!a.automatic)
    for (const auto& [given, option] : {std::pair(!a.cluster.empty(), "--cluster"),
                                        {a.precision.has_value(), "--precision"},
                                        {a.moments.has_value(), "--moments"},
                                        {a.expert_imbalance != 0, "--expert-imbalance"},
                                        {a.dispatch.given(), "--expert-dispatch, like --lsh-...,"},
                                        {a.lora.rank != 0, "--lora"},
                                        {!a.space.empty(), "--space"},
                                        {a.schedule != simulate::TaskSchedule::fastest, "--task-schedule"},
                                        {a.max_tokens != 0, "--max-tokens"},
                                        {a.groups.has_value(), "--sequence-groups"},
                                        {a.accepts_busy.has_value(), "--on-busy"},
                                        {!a.save_plan.empty(), "--save-plan"},
                                        {!a.save_cluster.empty(), "--save-cluster"}})
      if (given) refuse(option, " belongs to --auto; leave it out, the plan says it");
  if (a.automatic && !a.pack)
    for (const auto& [given, option] : {std::pair(a.max_tokens != 0, "--max-tokens"),
                                        {a.groups.has_value(), "--sequence-groups"},
                                        {a.options.late_groups_fixed, "--late-plan"},
                                        {!a.documents.separator.empty(), "--document-separator"},
                                        {a.documents.end_token >= 0, "--end-token"},
                                        {a.documents.skip_empty, "--empty-documents"}})
      if (given) refuse(option, " is for documents; add --pack");
  if (!a.adapt.on)
    for (const auto& [given, option] : {std::pair(a.adapt.margin != AdaptArguments{}.margin, "--adapt-margin"),
                                        {a.adapt.spare_ranks > 0, "--spare-ranks"}})
      if (given) refuse(option, " is for runs that adapt; add --adapt");
  if (a.adapt.on && a.device != "host")
    refuse("--adapt measures ranks that compute on this machine's cores; leave it out with --device ", a.device);
  if (a.adapt.on && a.pack) refuse("--adapt: documents are packed for equal ranks; leave --adapt or --pack out");
  if (a.adapt.on && a.adapt.spare_ranks > 0 && a.launcher != "mpi" && launcher.ranks() > 0 &&
      std::getenv(JobFolder::variable) == nullptr)
    refuse("--spare-ranks: ", launcher.starter(),
           " itself ends a job that has lost ranks; start them with --launcher mpi");
  if (a.pack && a.sequence != 0)
    refuse("--seq is for samples of one length, and documents have their own; give --max-tokens for packed sequences");
  if (rate.warmup_steps > a.options.steps)
    refuse("--warmup ", rate.warmup_steps, " is longer than --steps ", a.options.steps, "; shorten it");
  if (rate.floor > rate.peak)
    refuse(galvatron::detail::formatted("--min-lr %g is larger than --lr %g", rate.floor, rate.peak),
           "; choose a smaller one");
  std::vector<NamedFile> read{{"--plan", a.plan_path}, {"--cluster", a.cluster}, {"--model", a.model}};
  for (const std::string& path : a.data)
    if (!a.has_tasks()) read.push_back({"--data", path});
  for (const std::string& path : a.validation) read.push_back({"--validate", path});
  if (a.validation.empty() && (a.validate_every != 0 || a.validate_samples != 0))
    refuse("--validate-every and --validate-samples need --validate FILE...");
  require_files({{"--metrics", a.files.metrics},
                 {"--trace", a.trace},
                 {"--report", a.report},
                 {"--save-plan", a.save_plan},
                 {"--save-cluster", a.save_cluster}},
                read);
}

}  // namespace galvatron::tools
