// What a step of packed documents looks like: the groups of each micro-batch and their ranks, tokens, padding and
// predicted seconds; as values and in words.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/data/packing.hpp>
#include <galvatron/flexsp/prices.hpp>
#include <galvatron/flexsp/solve.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/plan/explain.hpp>
#include <galvatron/plan/find_packed.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/train/pack_plan.hpp>

namespace galvatron::train {

/// Ranks that share a sequence, in a micro-batch. Strided tensor ranks are numbered as if they were neighbours.
struct PackedGroup {
  int first_rank = 0, ranks = 1;  ///< of each stage, counted from its first rank
  std::int64_t documents = 0;
  std::int64_t tokens = 0;   ///< rows of documents
  std::int64_t padding = 0;  ///< other rows
  Seconds seconds;           ///< predicted, forward and backward
};

struct PackedMicroBatch {
  std::vector<PackedGroup> groups;  ///< those with documents, by their ranks
  Seconds seconds;                  ///< of the slowest group, on the slowest stage

  [[nodiscard]] std::int64_t tokens() const { return sum(&PackedGroup::tokens); }
  [[nodiscard]] std::int64_t padding() const { return sum(&PackedGroup::padding); }
  /// Rank-seconds that groups work.
  [[nodiscard]] double busy() const {
    double out = 0;
    for (const PackedGroup& group : groups) out += group.ranks * group.seconds.value;
    return out;
  }

 private:
  [[nodiscard]] std::int64_t sum(std::int64_t PackedGroup::* of) const {
    return std::accumulate(groups.begin(), groups.end(), std::int64_t{0},
                           [of](std::int64_t all, const PackedGroup& group) { return all + group.*of; });
  }
};

struct PackedStep {
  std::vector<PackedMicroBatch> microbatches;
  int ranks = 1;  ///< of a stage
  int stages = 1;
  double capacity = 0;  ///< rows of a rank in a micro-batch, at most
  Seconds update;       ///< of the step, behind its micro-batches

  [[nodiscard]] std::int64_t documents() const {
    std::int64_t out = 0;
    for (const PackedMicroBatch& one : microbatches)
      for (const PackedGroup& group : one.groups) out += group.documents;
    return out;
  }
  [[nodiscard]] std::int64_t tokens() const {
    std::int64_t out = 0;
    for (const PackedMicroBatch& one : microbatches) out += one.tokens();
    return out;
  }
  [[nodiscard]] std::int64_t padding() const {
    std::int64_t out = 0;
    for (const PackedMicroBatch& one : microbatches) out += one.padding();
    return out;
  }
  /// All micro-batches one after the other, on a stage.
  [[nodiscard]] Seconds passes() const {
    Seconds out;
    for (const PackedMicroBatch& one : microbatches) out += one.seconds;
    return out;
  }
  /// Of the step: pipeline stages fill and drain with a mean micro-batch.
  [[nodiscard]] Seconds seconds() const {
    const double fill =
        static_cast<double>(stages - 1) / static_cast<double>(std::max<std::size_t>(1, microbatches.size()));
    return passes() * (1 + fill) + update;
  }
  /// The share of a micro-batch's rank-seconds in which ranks have no group, or wait for the slowest one.
  [[nodiscard]] double idle(const PackedMicroBatch& one) const {
    return one.seconds.value > 0 ? std::max(0.0, 1 - one.busy() / (ranks * one.seconds.value)) : 0;
  }
  /// The same of all micro-batches.
  [[nodiscard]] double idle() const {
    double busy = 0;
    for (const PackedMicroBatch& one : microbatches) busy += one.busy();
    return passes().value > 0 ? std::max(0.0, 1 - busy / (ranks * passes().value)) : 0;
  }
};

namespace detail {

/// Seconds of a document of so many rows in a sequence that such documents fill, on the slowest stage of a plan whose
/// sequences have ranks of their own.
inline Result<flexsp::detail::SecondsTable> document_seconds(const Plan& plan, const ModelSpec& model,
                                                             const Cluster& cluster) {
  const std::int64_t unit = std::int64_t{2} * plan.embedding.context * plan.embedding.tensor;
  const std::int64_t most = std::max(unit, std::min(plan.sequence_length, model.positions()) / unit * unit);
  std::vector<double> rows, rates;
  for (std::int64_t s = unit;; s = std::min(2 * s, most)) {
    Plan equal = plan;
    equal.packed = false;
    equal.sequence_length = s;
    const std::int64_t samples = std::max<std::int64_t>(1, plan.sequence_length / s);
    equal.global_batch = samples * plan.embedding.data * plan.microbatches;
    auto cost = cost_of(equal, model, cluster);
    if (!cost) return tl::unexpected<Error>(std::move(cost.error()));
    double slowest = 0;
    for (const PlanStageCost& stage : cost->stages)
      slowest = std::max(slowest, (stage.seconds.forward + stage.seconds.backward).value);
    rows.push_back(static_cast<double>(s));
    rates.push_back(slowest / static_cast<double>(samples * s));
    if (s == most) break;
  }
  return flexsp::detail::SecondsTable(std::move(rows), std::move(rates));
}

/// @param seconds  of a sequence on so many context ranks
inline PackedStep step_of(const Packing& packing, const Plan& plan,
                          const std::function<double(const PackedSequence&, int)>& seconds, double floor) {
  const StrategySpec& spec = plan.embedding;
  PackedStep out;
  out.ranks = spec.ranks();
  out.stages = static_cast<int>(plan.stages.size());
  out.capacity = static_cast<double>(plan.sequence_length) / (spec.context * spec.tensor);
  for (std::int64_t m = 0; m < packing.microbatches(); ++m) {
    PackedMicroBatch& one = out.microbatches.emplace_back();
    int rank = 0;
    for (std::int64_t g = 0; g < packing.groups(m); ++g) {
      const PackedSequence& sequence = packing.sequence(m, g);
      const int context = sequence.ranks > 0 ? sequence.ranks : spec.context;
      PackedGroup group;
      group.first_rank = rank;
      group.ranks = context * spec.tensor;
      rank += group.ranks;
      if (sequence.documents.empty()) continue;
      for (const Document& document : sequence.documents) {
        const bool is_padding = document.sample == Document::padding;
        (is_padding ? group.padding : group.tokens) += document.rows;
        group.documents += is_padding ? 0 : 1;
      }
      group.seconds = {seconds(sequence, context)};
      one.seconds = max(one.seconds, max(group.seconds, Seconds{floor}));
      one.groups.push_back(group);
    }
  }
  return out;
}

}  // namespace detail

/// How a packed plan computes a step with these documents, as training would pack them. Errors (usage): those of
/// pack() and of group_problem(); a document that no group holds.
/// @param rows  of each document
inline Result<PackedStep> packed_step(const Plan& plan, const ModelSpec& model, const Cluster& cluster,
                                      std::span<const std::int64_t> rows) {
  auto cost = cost_of(plan, model, cluster);
  if (!cost) return tl::unexpected<Error>(std::move(cost.error()));
  PackedStep out;
  if (plan.embedding.groups == SequenceGroupKind::per_batch) {
    const auto problem = group_problem(plan, model, cluster);
    if (!problem) return tl::unexpected<Error>(problem.error());
    const auto solved = flexsp::solve(*problem, rows);
    if (!solved)
      return usage_error(text_of("a document takes ", *std::ranges::max_element(rows),
                                 " rows, and groups of this plan hold ", "at most ", problem->longest()));
    const Packing packing = packing_of(*solved, *problem, plan.embedding, rows);
    out = detail::step_of(
        packing, plan,
        [&](const PackedSequence& sequence, int ranks) {
          const auto option = std::ranges::find(problem->options, ranks, &flexsp::GroupOption::degree);
          double seconds = option->fixed;
          for (const Document& document : sequence.documents)
            if (document.sample != Document::padding) seconds += option->seconds(document.rows);
          return seconds;
        },
        problem->floor);
  } else {
    const auto packing = pack(rows, packing_options(plan, model));
    if (!packing) return tl::unexpected<Error>(packing.error());
    const auto seconds = detail::document_seconds(plan, model, cluster);
    if (!seconds) return tl::unexpected<Error>(seconds.error());
    out = detail::step_of(
        *packing, plan,
        [&](const PackedSequence& sequence, int) {
          double sum = 0;
          for (const Document& document : sequence.documents) sum += (*seconds)(document.rows);
          return sum;
        },
        0);
  }
  out.update = cost->update;
  return out;
}

namespace detail {

/// Groups of a micro-batch that have as many ranks.
struct AlikeGroups {
  int ranks = 1, count = 0;
  std::vector<std::pair<int, int>> runs;  ///< of their ranks: first, last
  std::int64_t documents = 0, tokens = 0, padding = 0, fullest = 0;
  Seconds longest;
};
inline std::vector<AlikeGroups> alike_groups(const PackedMicroBatch& one) {
  std::map<int, AlikeGroups, std::greater<>> out;
  for (const PackedGroup& group : one.groups) {
    AlikeGroups& all = out[group.ranks];
    all.ranks = group.ranks;
    ++all.count;
    const int last = group.first_rank + group.ranks - 1;
    if (!all.runs.empty() && all.runs.back().second + 1 == group.first_rank)
      all.runs.back().second = last;
    else
      all.runs.emplace_back(group.first_rank, last);
    all.documents += group.documents;
    all.tokens += group.tokens;
    all.padding += group.padding;
    all.fullest = std::max(all.fullest, group.tokens + group.padding);
    all.longest = max(all.longest, group.seconds);
  }
  std::vector<AlikeGroups> list;
  for (auto& [ranks, groups] : out) list.push_back(std::move(groups));
  return list;
}

/// `0-7, 12-15`; of many runs the first ones.
inline std::string ranks_text(const std::vector<std::pair<int, int>>& runs) {
  constexpr std::size_t most = 2;
  std::string out;
  for (std::size_t i = 0; i < std::min(runs.size(), most); ++i)
    out += text_of(i > 0 ? ", " : "", runs[i].first,
                   runs[i].second > runs[i].first ? text_of("-", runs[i].second) : std::string());
  return out + (runs.size() > most ? ", .." : "");
}

}  // namespace detail

/// A step in a table of at most 80 columns. @param what  the documents, "the first 128 of lengths.txt"
inline std::string explain(const PackedStep& step, const std::string& what) {
  const auto percent = galvatron::detail::percent;
  const auto rate = static_cast<double>(step.tokens()) / step.seconds().value;
  std::string out = galvatron::detail::wrapped(
      text_of("A step with ", step.documents(), " documents, ", what, ": ", format_seconds(step.seconds()), ", ",
              format_count(static_cast<double>(step.tokens())), " tokens in ", step.microbatches.size(),
              step.microbatches.size() == 1 ? " micro-batch" : " micro-batches", ", ", format_count(rate),
              " tokens/s; padding ",
              percent(static_cast<double>(step.padding()) /
                      static_cast<double>(std::max<std::int64_t>(1, step.tokens() + step.padding()))),
              " of the rows, idle ", percent(step.idle()), " of the ranks' time."),
      0);
  const auto line = [](const std::vector<std::string>& cells) {
    constexpr std::size_t widths[] = {10, 14, 11, 11, 10, 10, 9};
    std::string text;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::string room(widths[i] - std::min(widths[i], cells[i].size()), ' ');
      text += i < 2 ? cells[i] + room : room + cells[i];
    }
    return text + "\n";
  };
  out += "\n" + line({"groups", "ranks", "documents", "tokens", "padding", "fullest", "time"}) +
         std::string(explain_columns, '-') + "\n";
  for (std::size_t m = 0; m < step.microbatches.size(); ++m) {
    const PackedMicroBatch& one = step.microbatches[m];
    for (const detail::AlikeGroups& groups : detail::alike_groups(one)) {
      const double full = static_cast<double>(groups.fullest) / (step.capacity * groups.ranks);
      out += line({text_of(groups.count, " of ", groups.ranks), detail::ranks_text(groups.runs),
                   std::to_string(groups.documents), format_count(static_cast<double>(groups.tokens)),
                   format_count(static_cast<double>(groups.padding)), percent(full), format_seconds(groups.longest)});
    }
    out += galvatron::detail::wrapped(text_of("micro-batch ", m, ": ", format_seconds(one.seconds), ", ",
                                              format_count(static_cast<double>(one.tokens())), " tokens, padding ",
                                              format_count(static_cast<double>(one.padding())), ", idle ",
                                              percent(step.idle(one)), " of the ranks' time"),
                                      2) +
           std::string(explain_columns, '-') + "\n";
  }
  return out + galvatron::detail::wrapped(
                   "Groups of as many ranks share a row: their documents and tokens together, the fullest of them as a "
                   "share of the rows that its ranks hold, and the time of the slowest.",
                   0);
}

}  // namespace galvatron::train
