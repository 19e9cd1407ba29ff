// Documents of any length as training data of toy models, and random ways to pack them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include <galvatron/core/units.hpp>
#include <galvatron/data/packing.hpp>
#include <galvatron/strategy/legality.hpp>

#include "random_strategy.hpp"
#include "toy.hpp"

namespace toy {

/// Documents of which a step has the given rows, packed as `pack` says: (step, rows) -> packing. A target is the token
/// that follows in the document.
class PackedTokens final : public train::BatchSource {
 public:
  using Pack = std::function<train::Packing(std::int64_t step, const std::vector<std::int64_t>& rows)>;

  PackedTokens(std::vector<std::vector<std::int64_t>> rows, Pack pack)
      : rows_(std::move(rows)), pack_(std::move(pack)), tokens_(1 << 20) {}

  std::shared_ptr<const train::Packing> packing(std::int64_t step) override {
    const std::lock_guard lock(mutex_);
    auto& out = packings_[step];
    const auto& rows = rows_[static_cast<std::size_t>(step)];
    if (out == nullptr) {
      out = std::make_shared<const train::Packing>(pack_(step, rows));
      value_or_throw(train::check_packing(*out, rows));
    }
    return out;
  }
  void inputs(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
              View<std::int32_t> out) override {
    fill(step, first, samples, range, 0, out, [this](auto... a) { tokens_.inputs(a...); });
  }
  void targets(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
               View<std::int32_t> out) override {
    fill(step, first, samples, range, -1, out, [this](auto... a) { tokens_.targets(a...); });
  }

 private:
  template <class Read>
  void fill(std::int64_t step, std::int64_t number, std::int64_t samples, train::SequenceRange range, std::int32_t none,
            View<std::int32_t> out, const Read& read) {
    if (samples != 1 || out.count != range.count) throw Failure(ErrorKind::internal, "sequences are read one by one");
    std::ranges::fill(out, none);
    for (const Document& document : packing(step)->sequences[static_cast<std::size_t>(number)].documents) {
      const std::int64_t begin = std::max(document.first, range.first);
      const std::int64_t end = std::min(document.first + document.rows, range.first + range.count);
      if (begin < end && document.sample != Document::padding)
        read(step, document.sample, std::int64_t{1}, train::SequenceRange{begin - document.first, end - begin},
             out.slice(begin - range.first, end - begin));
    }
  }

  std::vector<std::vector<std::int64_t>> rows_;
  Pack pack_;
  Tokens tokens_;
  std::mutex mutex_;
  std::map<std::int64_t, std::shared_ptr<const train::Packing>> packings_;
};

/// With padding to a multiple of `unit` rows. @param ranks  that share it; 0: as the plan says
inline train::PackedSequence sequence_with(int ranks, std::int64_t unit, const std::vector<std::int64_t>& samples,
                                           const std::vector<std::int64_t>& rows) {
  train::PackedSequence out;
  out.ranks = ranks;
  for (const std::int64_t sample : samples) out.add(sample, rows[static_cast<std::size_t>(sample)]);
  out.pad_to(unit);
  return out;
}

/// One document after the other on one rank.
inline train::Packing one_by_one(const std::vector<std::int64_t>& lengths) {
  train::Packing out;
  for (std::size_t i = 0; i < lengths.size(); ++i)
    out.add({sequence_with(0, 1, {static_cast<std::int64_t>(i)}, lengths)});
  return out;
}

/// Documents in a random order, each where a random sequence of the last micro-batch has room, or in a new one. With
/// groups of every batch, sequences have random degrees from `degrees`, which with those after them fill the ranks.
/// @param most  tokens of a rank
inline train::Packing random_packing(std::mt19937& random, const std::vector<std::int64_t>& lengths,
                                     const StrategySpec& spec, const std::vector<int>& degrees, std::int64_t most) {
  const auto below = [&random](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const bool ring = spec.uses_ring();
  const std::int64_t cut = spec.cuts_over_tensor() ? spec.tensor : 1;
  std::vector<std::int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::shuffle(order.begin(), order.end(), random);
  train::Packing out;
  std::size_t next = 0;
  while (next < order.size()) {
    // Groups of this micro-batch: at first one that holds the next document.
    std::vector<int> sizes;
    if (spec.groups == SequenceGroupKind::fixed) {
      sizes.assign(static_cast<std::size_t>(spec.data), spec.context);
    } else {
      int left = spec.shards();
      std::vector<int> fitting;
      for (const int degree : degrees)
        if (degree <= left && degree * most >= lengths[static_cast<std::size_t>(order[next])])
          fitting.push_back(degree);
      sizes.push_back(fitting[below(fitting.size())]);
      for (left -= sizes.front(); left > 0; left -= sizes.back()) {
        fitting.clear();
        for (const int degree : degrees)
          if (degree <= left) fitting.push_back(degree);
        sizes.push_back(fitting[below(fitting.size())]);
      }
    }
    std::vector<std::vector<std::int64_t>> samples(sizes.size());
    std::vector<std::int64_t> tokens(sizes.size());
    for (bool first = true; next < order.size(); ++next, first = false) {
      const std::int64_t length = lengths[static_cast<std::size_t>(order[next])];
      std::vector<std::size_t> fitting;
      for (std::size_t g = 0; g < sizes.size(); ++g)
        if (tokens[g] + length <= sizes[g] * most) fitting.push_back(g);
      if (fitting.empty() || (!first && below(8) == 0)) break;
      const std::size_t chosen =
          first && spec.groups == SequenceGroupKind::per_batch ? 0 : fitting[below(fitting.size())];
      samples[chosen].push_back(order[next]);
      tokens[chosen] += length;
    }
    std::vector<train::PackedSequence> sequences;
    for (std::size_t g = 0; g < sizes.size(); ++g)
      sequences.push_back(sequence_with(spec.groups == SequenceGroupKind::fixed ? 0 : sizes[g],
                                        sizes[g] * cut * (ring ? 2 : 1), samples[g], lengths));
    out.add(std::move(sequences));
  }
  return out;
}

inline constexpr std::int64_t longest_document = 32;  // positions of the toy models
inline constexpr std::size_t packed_documents = 12;

/// Every layer with the same strategy. @param tokens  of a rank
inline Plan packed_plan(const ModelSpec& model, int stages, const StrategySpec& spec, std::int64_t tokens) {
  Plan plan = uniform(model, stages, spec, 4, ScheduleKind::one_f_one_b);
  plan.packed = true;
  plan.global_batch = packed_documents;
  plan.sequence_length = tokens * spec.context;
  return plan;
}

/// On up to 16 ranks; none where the numbers drawn do not go together.
inline std::optional<Plan> random_packed_plan(std::mt19937& random, const ModelSpec& model) {
  const int stages = one_of(random, std::array{1, 1, 1, 2, 3});
  StrategySpec spec{.tensor = one_of(random, std::array{1, 1, 2, 4}),
                    .sequence = one_of(random, sequence_kinds),
                    .context = one_of(random, std::array{1, 2, 3, 4, 8}),
                    .data = one_of(random, std::array{1, 1, 2, 4}),
                    .zero = one_of(random, std::array{0, 1, 2, 3}),
                    .recompute = one_of(random, recompute_kinds),
                    .strided = random() % 4 == 0};
  if (random() % 2 == 0 && stages == 1) {
    spec.groups = SequenceGroupKind::per_batch;
    spec.sequence = one_of(random, std::array{SequenceKind::ulysses, SequenceKind::ring});
    spec.zero = 3;
    spec.strided = false;
  }
  if (stages * spec.ranks() > 16) return std::nullopt;
  const std::int64_t tokens = one_of(random, std::array{16, 32, 48, 64});
  if (tokens * spec.context < longest_document) return std::nullopt;
  Plan plan = packed_plan(model, stages, spec, tokens);
  plan.overlap = random() % 2 == 0;
  if (!why_inconsistent(plan).empty() || !why_unfit(plan, model).empty()) return std::nullopt;
  return plan;
}

/// Context degrees that a sequence of the model may have under a strategy, up to the strategy's.
inline std::vector<int> context_degrees(const ModelSpec& model, StrategySpec spec) {
  std::vector<int> out;
  const int most = spec.context;
  for (spec.context = 1; spec.context <= most; ++spec.context)
    if (spec.context == 1 || splits_heads_evenly(model.blocks.front(), spec)) out.push_back(spec.context);
  return out;
}

/// Lengths of the documents of `steps` steps, from 1 to `most`.
inline std::vector<std::vector<std::int64_t>> random_lengths(std::mt19937& random, int steps, std::size_t batch,
                                                             std::int64_t most) {
  std::vector<std::vector<std::int64_t>> out(static_cast<std::size_t>(steps));
  for (auto& lengths : out) {
    for (std::size_t i = 0; i < batch; ++i)
      lengths.push_back(1 + static_cast<std::int64_t>(random()) % (random() % 4 == 0 ? most : most / 4));
  }
  return out;
}

}  // namespace toy
