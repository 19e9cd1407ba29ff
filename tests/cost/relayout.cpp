#include <galvatron/cost/relayout.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <galvatron/core/text.hpp>
#include <galvatron/strategy/layout.hpp>

using namespace galvatron;

namespace {

// All layouts of `ranks` ranks for a micro-batch that every one of them divides.
std::vector<ActivationLayout> layouts(int ranks, int first = 0) {
  std::vector<ActivationLayout> out;
  for (int replicas = 1; replicas <= ranks; ++replicas)
    for (int parts = 1; replicas * parts <= ranks; ++parts) {
      if (ranks % (replicas * parts) != 0) continue;
      for (const bool zigzag : {false, true}) {
        if (zigzag && parts == 1) continue;
        const int data = ranks / replicas / parts;
        const auto add = [&](int cut, int outer) {
          out.push_back({.first_rank = first,
                         .replicas = replicas,
                         .parts = parts,
                         .data = data,
                         .zigzag = zigzag,
                         .batch = ranks * 2,
                         .sequence = ranks * 6,
                         .cut = cut,
                         .outer = outer});
        };
        add(1, 1);
        if (replicas > 1 && data * parts > 1) add(1, replicas);
        for (int tensor = 2; replicas == 1 && tensor <= parts; ++tensor) {  // that cut sequences
          if (parts % tensor != 0 || (zigzag && tensor == parts)) continue;
          const int cut = zigzag ? tensor : 1;
          if (zigzag) add(cut, 1);
          if (data * parts > tensor) add(cut, tensor);
        }
      }
    }
  return out;
}

struct Moved {
  std::int64_t tokens = 0;
  int farthest = 0;  // run of ranks, aligned, in which it and those that send lie
};

// What `receiver` gets from others, by the transfers between all pairs.
Moved received(const ActivationLayout& from, const ActivationLayout& to, int receiver) {
  Moved out;
  for (int sender = from.first_rank; sender < from.first_rank + from.ranks(); ++sender) {
    std::int64_t tokens = 0;
    for (int i = 0; i < from.pieces(); ++i)
      for (int j = 0; j < to.pieces(); ++j) tokens += transfer(from, to, sender, receiver, i, j).tokens();
    if (sender == receiver || tokens == 0) continue;
    out.tokens += tokens;
    out.farthest = std::max(out.farthest, sender ^ receiver);
  }
  return out;
}

std::string text(const ActivationLayout& l) {
  return std::to_string(l.replicas) + " replicas, " + std::to_string(l.parts) + " parts" + (l.zigzag ? " zigzag" : "") +
         (l.cut > 1 ? " cut over " + std::to_string(l.cut) : "") +
         (l.outer > 1 ? ", " + std::to_string(l.outer) + " around the data ranks" : "");
}

}  // namespace

TEST_CASE("every rank holds its share, and together they hold every token as often as there are replicas") {
  for (const int ranks : {1, 2, 6, 8})
    for (const ActivationLayout& layout : layouts(ranks, 3)) {
      INFO(text(layout));
      std::vector<int> held(static_cast<std::size_t>(layout.batch * layout.sequence), 0);
      for (int rank = 3; rank < 3 + ranks; ++rank) {
        std::int64_t tokens = 0;
        for (int i = 0; i < layout.pieces(); ++i) {
          const Region r = layout.region(rank, i);
          tokens += r.tokens();
          for (std::int64_t b = r.batch_begin; b < r.batch_end; ++b)
            for (std::int64_t s = r.sequence_begin; s < r.sequence_end; ++s)
              ++held[static_cast<std::size_t>(b * layout.sequence + s)];
        }
        CHECK(layout.rank_at(layout.place(rank)) == rank);
        CHECK(tokens == layout.batch * layout.sequence * layout.replicas / ranks);
      }
      CHECK(std::count(held.begin(), held.end(), layout.replicas) == layout.batch * layout.sequence);
    }
}

TEST_CASE("the parts of tensor ranks one after the other are those of their context rank, in zigzag too") {
  const auto tokens = [](const ActivationLayout& layout, int rank) {
    std::vector<std::int64_t> out;
    for (int i = 0; i < layout.pieces(); ++i)
      for (std::int64_t s = layout.region(rank, i).sequence_begin; s < layout.region(rank, i).sequence_end; ++s)
        out.push_back(s);
    return out;
  };
  for (const int tensor : {2, 3, 4})
    for (const int context : {2, 3, 4})
      for (const auto& [kind, strided] :
           {std::pair(SequenceKind::ring, false), std::pair(SequenceKind::ring, true),
            std::pair(SequenceKind::ulysses, false), std::pair(SequenceKind::ulysses, true)}) {
        const StrategySpec spec{.tensor = tensor, .sequence = kind, .context = context, .data = 2, .strided = strided};
        const std::int64_t sequence = std::int64_t{4} * tensor * context;
        const ActivationLayout whole = activation_layout(spec, 5, 4, sequence);
        const ActivationLayout cut = activation_layout(spec.with_cut(true), 5, 4, sequence);
        CHECK(region_layout(spec.with_cut(true), 5, 4, sequence) == whole);
        for (int shard = 0; shard < spec.shards(); ++shard) {
          std::vector<std::int64_t> together;
          const int first = 5 + shard * spec.shard_stride();
          for (int t = 0; t < tensor; ++t) {
            const std::vector<std::int64_t> own = tokens(cut, first + t * spec.tensor_stride());
            together.insert(together.end(), own.begin(), own.end());
          }
          INFO(text(cut), ", shard ", shard);
          CHECK(together == tokens(whole, first));
        }
        CHECK(cost::relayout_of(whole, cut).share == 0);  // everyone has its part
      }
}

TEST_CASE("in zigzag every rank has the same causal work") {
  const ActivationLayout layout{0, 1, 4, 1, true, 1, 32};
  for (int rank = 0; rank < 4; ++rank) {
    std::int64_t pairs = 0;
    for (int i = 0; i < 2; ++i)
      for (std::int64_t s = layout.region(rank, i).sequence_begin; s < layout.region(rank, i).sequence_end; ++s)
        pairs += s + 1;
    CHECK(pairs == 32 * 33 / 2 / 4);
  }
}

TEST_CASE("the busiest receiver gets what the transfers between ranks say") {
  for (const int ranks : {1, 2, 4, 6, 8, 12})
    for (const int first : {0, ranks})
      for (const ActivationLayout& from : layouts(ranks))
        for (const ActivationLayout& to : layouts(ranks, first)) {
          Moved most;
          int farthest = 0;
          for (int receiver = first; receiver < first + ranks; ++receiver) {
            const Moved moved = received(from, to, receiver);
            farthest = std::max(farthest, moved.farthest);
            if (moved.tokens > most.tokens) most = moved;
          }
          INFO(ranks << " ranks, " << text(from) << " to " << text(to));
          CHECK(cost::most_received(from, to) == most.tokens);
          if (first > 0) continue;
          const cost::Relayout move = cost::relayout_of(from, to);
          const double all = static_cast<double>(from.batch * from.sequence);
          CHECK(move.share == doctest::Approx(static_cast<double>(most.tokens) / all));
          if ((ranks & (ranks - 1)) == 0) CHECK(farthest < move.span);
        }
}

TEST_CASE("samples that are cut by ratio are held once for each replica, and moves give every rank its own") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  for (int trial = 0; trial < 400; ++trial) {
    const int ranks = std::array{2, 3, 4, 6, 8}[random() % 5];
    const std::vector<ActivationLayout> all = layouts(ranks, 2);
    std::vector<int> ratios(static_cast<std::size_t>(ranks));
    for (int& ratio : ratios) ratio = static_cast<int>(random() % 4);
    ratios[random() % ratios.size()] = 10;
    ActivationLayout from = all[random() % all.size()];
    ActivationLayout to = all[random() % all.size()];
    from.batch = to.batch = 1 + static_cast<std::int64_t>(random() % 13);
    if (from.batch % from.data != 0 || random() % 2 == 0) from.ratios = ratios;
    if (to.batch % to.data != 0 || random() % 2 == 0) to.ratios = ratios;
    INFO(text(from) << " to " << text(to) << ", batch " << from.batch << ", ratios " << joined(ratios));
    Moved most;
    for (int rank = 2; rank < 2 + ranks; ++rank) {
      std::int64_t held = 0;
      for (int j = 0; j < to.pieces(); ++j) held += to.region(rank, j).tokens();
      std::int64_t arrived = 0;
      for (int sender = 2; sender < 2 + ranks; ++sender)
        for (int i = 0; i < from.pieces(); ++i)
          for (int j = 0; j < to.pieces(); ++j) arrived += transfer(from, to, sender, rank, i, j).tokens();
      CHECK(arrived == held);
      if (const Moved moved = received(from, to, rank); moved.tokens > most.tokens) most = moved;
    }
    std::int64_t sum = 0;
    for (int rank = 2; rank < 2 + ranks; ++rank)
      for (int j = 0; j < to.pieces(); ++j) sum += to.region(rank, j).tokens();
    CHECK(sum == to.batch * to.sequence * to.replicas);
    if (from == to || (from.ratios.empty() && to.ratios.empty())) continue;
    CHECK(cost::most_received(from, to) == most.tokens);
    CHECK(cost::relayout_of(from, to).share ==
          doctest::Approx(static_cast<double>(most.tokens) / static_cast<double>(to.batch * to.sequence)));
  }
}

TEST_CASE("the share of a re-layout is that of the busiest of all ranks, on many ranks") {
  for (const int ranks : {16, 24, 30, 36, 64, 128})
    for (const ActivationLayout& from : layouts(ranks))
      for (const ActivationLayout& to : layouts(ranks)) {
        INFO(ranks << " ranks, " << text(from) << " to " << text(to));
        const double all = static_cast<double>(from.batch * from.sequence);
        const std::int64_t most = from == to ? 0 : cost::most_received(from, to);
        CHECK(cost::relayout_of(from, to).share == doctest::Approx(static_cast<double>(most) / all).epsilon(1e-12));
      }
}

TEST_CASE("a layout that stays costs nothing, and taking one's own part of what is replicated neither") {
  const ActivationLayout whole{0, 4, 1, 2, false, 8, 16};
  const ActivationLayout cut{0, 1, 4, 2, false, 8, 16};
  CHECK(cost::relayout_of(whole, whole).share == 0);
  CHECK(cost::relayout_of(whole, cut).share == 0);
  CHECK(whole != cut);
  CHECK(cost::relayout_of(cut, whole).share == doctest::Approx(0.5 * 3 / 4));
  CHECK(cost::relayout_of(cut, whole).span == 4);
}

TEST_CASE("strategies that lay out tokens alike need no move, whatever they are called") {
  const auto of = [](const StrategySpec& spec) { return activation_layout(spec, 0, 8, 64); };
  const StrategySpec megatron{.tensor = 4, .sequence = SequenceKind::megatron, .data = 2};
  const StrategySpec ulysses{.sequence = SequenceKind::ulysses, .context = 4, .data = 2};
  const StrategySpec ring{.sequence = SequenceKind::ring, .context = 4, .data = 2};
  CHECK(of(megatron) == of(ulysses));
  CHECK(of({.tensor = 2, .sequence = SequenceKind::megatron_ulysses, .context = 2, .data = 2}) == of(ulysses));
  CHECK(of(ulysses) != of(ring));
  CHECK(cost::relayout_of(of(ulysses), of(ring)).share > 0);
  CHECK(cost::relayout_of(of(ulysses), of(ring)).span == 4);
  // Strided tensor ranks 2 hold each half of the stage a copy: what moves between data ranks stays in it.
  const auto strided = [](StrategySpec spec) {
    spec.strided = true;
    return spec;
  };
  const cost::Relayout inside =
      cost::relayout_of(of(strided({.tensor = 2, .data = 4})),
                        of(strided({.tensor = 2, .sequence = SequenceKind::ulysses, .context = 4})));
  CHECK(inside.share == doctest::Approx(3.0 / 4 / 4));
  CHECK(inside.span == 4);
  CHECK(cost::relayout_of(of({.tensor = 2, .data = 4}), of(strided({.tensor = 2, .data = 4}))).span == 8);
  // Data ranks that divide samples instead: every rank has an eighth of the tokens before and after.
  CHECK(cost::relayout_of(of(ring), of({.data = 8})).share == doctest::Approx(3.0 / 4 / 8));
}
