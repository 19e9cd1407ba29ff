// What does packing save? Trains a Llama on documents of any length on one rank: packed, and with every document padded
// to the longest of its step, or of all.
//
//   benchmark_packed_training --data FILE... [--steps N] [--batch N] [--tokens N] [--hidden H] [--layers L]
//
// scripts/text_documents makes documents. All runs go on together, a step of each after the other, on the same
// documents and with as many rows in a micro-batch, at most; they end with the same loss. Tokens are those of
// documents, without padding. Padding attends to itself here, which is less work than in a batch of samples of one
// length.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <galvatron/data/data.hpp>
#include <galvatron/model/build.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/train/pack_plan.hpp>

#include "guarded.hpp"
#include "in_turn.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::in_turn;

struct Arguments {
  std::vector<std::string> data;
  int steps = 8;
  std::int64_t batch = 64;
  std::int64_t tokens = 2048;
  std::int64_t hidden = 256;
  int layers = 4;
};

void options(CLI::App& app, Arguments& a) {
  app.add_option("--data", a.data, "documents: JSON lines, or a text each (bytes are tokens)")->required();
  app.add_option("--steps", a.steps, "steps to train")->capture_default_str()->check(CLI::Range(3, 1000000));
  app.add_option("--batch", a.batch, "documents of a step")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--tokens", a.tokens, "rows of a micro-batch, at most")->capture_default_str();
  app.add_option("--hidden", a.hidden, "width of the model")->capture_default_str()->check(CLI::Range(64, 8192));
  app.add_option("--layers", a.layers, "of the model")->capture_default_str()->check(CLI::PositiveNumber);
}

/// Every document alone in a micro-batch, with padding up to `rows` rows.
train::Packing padded(std::span<const std::int64_t> lengths, std::int64_t rows) {
  train::Packing out;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    train::PackedSequence sequence;
    sequence.add(static_cast<std::int64_t>(i), lengths[i]);
    sequence.pad_to(rows);
    out.add({std::move(sequence)});
  }
  return out;
}

struct Way {
  const char* name;
  train::PackedBatches::Packer pack;
  std::vector<train::StepReport> steps{};
};

int report(const Arguments& a) {
  const ModelSpec model = llama("llama", {.layers = a.layers,
                                          .hidden = a.hidden,
                                          .heads = a.hidden / 32,
                                          .kv_heads = a.hidden / 32,
                                          .ffn = a.hidden * 4,
                                          .vocabulary = 256,
                                          .positions = a.tokens,
                                          .head_dim = 32});
  Plan plan;
  plan.model = model.name;
  plan.cluster = "host";
  plan.packed = true;
  plan.global_batch = a.batch;
  plan.sequence_length = a.tokens;
  plan.stages = {{0, a.layers - 1, 0, 1}};
  plan.layers.assign(model.blocks.size(), {});
  if (const std::string why = why_unfit(plan, model); !why.empty()) throw Failure(ErrorKind::usage, why);
  const train::Data data =
      value_or_throw(train::Data::open(std::vector<std::filesystem::path>(a.data.begin(), a.data.end()), model,
                                       {.seed = 1, .documents = train::DocumentOptions{.skip_empty = true}}));
  value_or_throw(train::check_documents(*data.documents(), model, plan.sequence_length));

  const train::PackingOptions packing = train::packing_options(plan, model);
  std::vector<Way> ways;
  ways.push_back({"packed", [&](std::int64_t, std::span<const std::int64_t> rows) {
                    return value_or_throw(train::pack(rows, packing));
                  }});
  ways.push_back({"padded to the longest of the step", [](std::int64_t, std::span<const std::int64_t> rows) {
                    return padded(rows, std::ranges::max(rows));
                  }});
  ways.push_back({"padded to the rows of a micro-batch",
                  [&](std::int64_t, std::span<const std::int64_t> rows) { return padded(rows, a.tokens); }});

  std::vector<std::unique_ptr<train::PackedBatches>> batches;
  for (const Way& way : ways)
    batches.push_back(std::make_unique<train::PackedBatches>(*data.documents(), a.batch, way.pack));
  Turns turns(ways.size(), 1);
  train_all(ways.size(), turns, [&](std::size_t i) {
    train::TrainOptions training{.steps = a.steps};
    training.learning_rate.steps = a.steps;
    training.on_step = [&](const train::StepReport& step) { ways[i].steps.push_back(step); };
    train_one(plan, model, *batches[i], training, {}, turns, i);
  });

  std::printf(
      "%s of %lld x %d on one rank and core, fp32, %lld documents a step, %lld rows a micro-batch\n\n"
      "| documents | micro-batches | padding | tokens/s | ms a step | packed is faster | loss |\n"
      "|---|---|---|---|---|---|---|\n",
      model.name.c_str(), static_cast<long long>(a.hidden), a.layers, static_cast<long long>(a.batch),
      static_cast<long long>(a.tokens));
  for (std::size_t i = 0; i < ways.size(); ++i) {
    double tokens = 0, padding = 0, seconds = 0, microbatches = 0;
    std::vector<double> ratios;
    for (std::size_t step = 1; step < ways[i].steps.size(); ++step) {
      const auto packed = batches[i]->packing(static_cast<std::int64_t>(step));
      tokens += static_cast<double>(packed->tokens());
      padding += static_cast<double>(packed->padding());
      microbatches += static_cast<double>(packed->microbatches());
      seconds += turns.seconds(i)[step];
      ratios.push_back(turns.seconds(i)[step] / turns.seconds(0)[step]);
    }
    const auto count = static_cast<double>(ratios.size());
    std::printf("| %s | %.1f | %.1f %% | %.0f | %.0f | %.1f times | %.3f |\n", ways[i].name, microbatches / count,
                100 * padding / (tokens + padding), tokens / seconds, 1e3 * seconds / count, median(ratios),
                ways[i].steps.back().loss);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("benchmark_packed_training", "What packing saves.", argc, argv, options, report);
}
