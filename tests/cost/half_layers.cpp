// Halves of a block add up to the block where they have one strategy.
#include <galvatron/cost/layer.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/model/split.hpp>
#include <galvatron/model/zoo.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/text.hpp>

namespace {

using namespace galvatron;
using namespace galvatron::cost;

// Times of every kind of work, but for that whose extents are the parameters of a store: halves have two.
op::WorkList of_tokens(const op::WorkList& a, const StrategySpec& spec) {
  op::WorkList out;
  for (const op::Work& work : a)
    if (!(is_communication(work.kind) && work.n == spec.data * spec.context && work.stride == spec.tensor) &&
        work.kind != op::Kind::fill && work.kind != op::Kind::copy)
      out.push(work);
  return out;
}

// The halves' forward work as that of the block, which has the sum between them and its norm as one operation.
op::WorkList joined(const op::WorkList& halves) {
  op::WorkList out;
  std::int64_t elements = 0;
  for (const op::Work& work : halves)
    if (work.kind == op::Kind::norm_forward) elements = work.m * work.n;
  for (op::Work work : halves) {
    if (work.kind == op::Kind::norm_forward) {
      op::Work joined = work;
      joined.kind = op::Kind::add_norm_forward;
      joined.times = 1;
      out.push(joined);
      --work.times;
    }
    if (work.kind == op::Kind::add && work.m == elements) --work.times;
    out.push(work);
  }
  return out;
}

bool same_work(const op::WorkList& a, const op::WorkList& b) {
  if (a.size() != b.size()) return false;
  for (const op::Work& x : a) {
    bool found = false;
    for (const op::Work& y : b) found = found || x == y;
    if (!found) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("two halves do and keep what the block does and keeps") {
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  INFO("seed " << seed);
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  int checked = 0;
  for (int round = 0; round < 4000; ++round) {
    const ModelSpec model = value_or_throw(find_model(pick(2) == 0 ? "gpt-6.7b" : "llama3-8b"));
    const ModelSpec split = value_or_throw(split_layers(model));
    REQUIRE(split.blocks.size() == 2 * model.blocks.size());
    const StrategySpec spec{.tensor = 1 << pick(4),
                            .sequence = static_cast<SequenceKind>(pick(4)),
                            .context = 1 << pick(3),
                            .data = 1 << pick(3),
                            .zero = pick(4),
                            .recompute = recompute_kinds[static_cast<std::size_t>(pick(4))]};
    const Batch batch{.microbatch = 8, .sequence = 2048, .precision = pick(2) == 0 ? Precision::bf16 : Precision::fp32};
    const LayerSpec& block = model.blocks.front();
    if (!is_legal(spec) || !is_fit(block, spec, batch.microbatch, batch.sequence)) continue;
    ++checked;
    const std::string name = model.name + " " + strategy_text(spec);
    INFO(name);
    const LayerCounts whole = layer_counts(block, spec, batch);
    const LayerCounts attention = layer_counts(split.blocks[0], spec, batch);
    const LayerCounts mlp = layer_counts(split.blocks[1], spec, batch);
    REQUIRE(split.blocks[0].part == BlockPart::attention);

    const auto both = [&](auto part) {
      op::WorkList sum = attention.*part;
      sum.append(mlp.*part);
      return of_tokens(sum, spec);
    };
    CHECK(same_work(joined(both(&LayerCounts::forward)), of_tokens(whole.forward, spec)));
    CHECK(attention.input == whole.input);
    CHECK(mlp.input == attention.activation);
    CHECK(mlp.activation == whole.activation);
    // Stores are padded, each for itself.
    const double states = static_cast<double>((attention.states + mlp.states).count);
    CHECK(states == doctest::Approx(static_cast<double>(whole.states.count)).epsilon(1e-4));
    if (spec.recompute == RecomputeKind::full) {
      CHECK(attention.stash + mlp.stash == whole.stash + attention.activation);
      CHECK((attention.backward.flops() + mlp.backward.flops()).count < whole.backward.flops().count);
      continue;
    }
    if (spec.zero < 2)  // else gradients of a store are added up in backward
      CHECK(same_work(both(&LayerCounts::backward), of_tokens(whole.backward, spec)));
    CHECK((attention.backward.flops() + mlp.backward.flops()).count == doctest::Approx(whole.backward.flops().count));
    CHECK(attention.stash + mlp.stash == whole.stash);
    if (spec.zero < 2) {
      CHECK(max(attention.forward_workspace, mlp.forward_workspace) == whole.forward_workspace);
      CHECK(max(attention.backward_workspace, mlp.backward_workspace) == whole.backward_workspace);
    } else {  // only one half's parameters are whole at a time
      CHECK(max(attention.forward_workspace, mlp.forward_workspace) <= whole.forward_workspace);
      CHECK(max(attention.backward_workspace, mlp.backward_workspace) < whole.backward_workspace);
    }
  }
  CHECK(checked > 100);
}

TEST_CASE("halves need of a strategy what they have") {
  const ModelSpec model = value_or_throw(split_layers(value_or_throw(find_model("gpt2-1.5b"))));  // 25 heads
  const StrategySpec tensor{.tensor = 4};
  CHECK(!is_fit(model.blocks[0], tensor, 1, 1024));
  CHECK(is_fit(model.blocks[1], tensor, 1, 1024));
  CHECK(!split_layers(value_or_throw(find_model("t5-3b"))));
  CHECK(has_split_layers(model));
  CHECK(value_or_throw(split_layers(model)) == model);
}
