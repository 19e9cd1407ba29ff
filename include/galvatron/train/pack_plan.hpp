// How a plan packs the documents of a step: with sequences of the same ranks, or with groups for every batch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/data/packed_batches.hpp>
#include <galvatron/flexsp/placement.hpp>
#include <galvatron/flexsp/solve.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/find_packed.hpp>
#include <galvatron/plan/plan.hpp>

namespace galvatron::train {

/// Rows of which a sequence on `ranks` context ranks has a multiple.
constexpr std::int64_t rows_multiple(const StrategySpec& spec, int ranks) {
  const int cut = spec.cuts_over_tensor() ? spec.tensor : 1;
  return std::int64_t{ranks} * cut * (spec.uses_ring() ? 2 : 1);
}

/// For sequences on the plan's own context ranks.
inline PackingOptions packing_options(const Plan& plan, const ModelSpec& model) {
  const StrategySpec& spec = plan.embedding;
  // The work of a document is a s^2 + b s, with a and b from two lengths.
  const auto flops = [&](std::int64_t s) {
    return cost::layer_counts(model.blocks.front(), {}, {.microbatch = 1, .sequence = s}).forward.flops().count;
  };
  const double square = (flops(128) - 2 * flops(64)) / (128.0 * 128.0 - 2 * 64.0 * 64.0);
  const double linear = flops(64) / 64 - square * 64;
  return {.max_tokens = plan.sequence_length,
          .groups = spec.data,
          .multiple = rows_multiple(spec, spec.context),
          .linear = static_cast<std::int64_t>(linear / square)};
}

/// The groups that the solver chose as sequences on ranks. Ranks without a group get an empty sequence each.
/// @param rows  of the documents of the batch, which the solver knows by their rows
inline Packing packing_of(const flexsp::BatchPlan& plan, const flexsp::Problem& problem, const StrategySpec& spec,
                          std::span<const std::int64_t> rows) {
  std::multimap<std::int64_t, std::int64_t> samples;  // by rows
  for (std::size_t i = 0; i < rows.size(); ++i) samples.emplace(rows[i], static_cast<std::int64_t>(i));
  Packing out;
  for (const flexsp::MicroBatch& microbatch : plan.microbatches) {
    std::vector<int> degrees;
    for (const flexsp::Group& group : microbatch.groups)
      degrees.push_back(problem.options[static_cast<std::size_t>(group.option)].degree);
    const auto places = flexsp::place(problem, degrees);
    if (!places) throw Failure(ErrorKind::internal, "the groups of a micro-batch do not fit the ranks");
    std::map<int, PackedSequence> by_rank;
    for (std::size_t g = 0; g < degrees.size(); ++g) {
      PackedSequence& sequence = by_rank[(*places)[g]];
      sequence.ranks = degrees[g];
      for (const std::int64_t length : microbatch.groups[g].lengths) {
        const auto sample = samples.find(length);
        sequence.add(sample->second, length);
        samples.erase(sample);
      }
      sequence.pad_to(rows_multiple(spec, sequence.ranks));
    }
    std::vector<PackedSequence> sequences;
    int next = 0;
    const auto leave_idle = [&](int until) {
      for (; next < until; ++next) sequences.push_back({.documents = {}, .ranks = 1});
    };
    for (auto& [first, sequence] : by_rank) {
      leave_idle(first);
      next += sequence.ranks;
      sequences.push_back(std::move(sequence));
    }
    leave_idle(problem.devices);
    out.add(std::move(sequences));
  }
  return out;
}

/// Why documents are too long to train a model with; no error when none is.
/// @param max_tokens  of a packed sequence; 0: any number
/// Errors (usage): the document, and what would hold it.
inline Result<void> check_documents(const DocumentSource& documents, const ModelSpec& model, std::int64_t max_tokens) {
  const std::int64_t longest = documents.longest_document();
  const std::int64_t rows = documents.length(longest) - 1;
  if (rows > model.positions())
    return usage_error(text_of(documents.place(longest), ": the document takes ", rows, " positions, and ", model.name,
                               " has ", model.positions(), "; split it, or train a model with more"));
  if (max_tokens > 0 && rows > max_tokens)
    return usage_error(text_of(documents.place(longest), ": the document has ", rows + 1, " tokens, which take ", rows,
                               " rows, and packed sequences have at most ", max_tokens, "; give --max-tokens ", rows,
                               " or more, or split the document"));
  return {};
}

/// The batches of a run of a packed plan. They read from `documents`, which outlives them.
/// @param cluster  by whose prices groups are chosen; unused where they stay
/// Errors (usage): those of PackedBatches::open, of group_problem() for groups of every batch; a document with more
/// tokens than the model has positions.
inline Result<std::unique_ptr<PackedBatches>> packed_batches(const DocumentSource& documents, const Plan& plan,
                                                             const ModelSpec& model, const Cluster* cluster) {
  if (auto fit = check_documents(documents, model, 0); !fit) return tl::unexpected<Error>(std::move(fit.error()));
  const PackingOptions fixed = packing_options(plan, model);
  auto out = PackedBatches::open(documents, plan.global_batch, fixed);
  if (!out || plan.embedding.groups == SequenceGroupKind::fixed) return out;
  if (cluster == nullptr) return usage_error("groups of every batch are chosen by the prices of a cluster: give one");
  auto problem = group_problem(plan, model, *cluster);
  if (!problem) return tl::unexpected<Error>(std::move(problem.error()));
  if (const std::int64_t longest = documents.length(documents.longest_document()) - 1; longest > problem->longest())
    return usage_error(text_of(documents.place(documents.longest_document()), ": the document takes ", longest,
                               " rows, and groups of this plan hold at most ", problem->longest(), "; split it"));
  return std::make_unique<PackedBatches>(
      documents, plan.global_batch,
      [problem = std::move(*problem), spec = plan.embedding](std::int64_t, std::span<const std::int64_t> rows) {
        const auto solved = flexsp::solve(problem, rows);
        if (!solved) throw Failure(ErrorKind::internal, "documents that fit the groups have no plan");
        return packing_of(*solved, problem, spec, rows);
      },
      [fixed](std::int64_t, std::span<const std::int64_t> rows) { return value_or_throw(pack(rows, fixed)); });
}

/// The rows of the documents of the first steps of a run, to plan with.
inline std::vector<std::vector<std::int64_t>> rows_of_steps(const DocumentSource& documents, std::int64_t batch,
                                                            int steps) {
  std::vector<std::vector<std::int64_t>> out(static_cast<std::size_t>(steps));
  std::int64_t sample = 0;
  for (auto& step : out)
    for (std::int64_t i = 0; i < batch; ++i) step.push_back(documents.length(documents.document(sample++)) - 1);
  return out;
}

}  // namespace galvatron::train
