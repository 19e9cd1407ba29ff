// The closed formulas of all dimensions: what ranks share adds up to the whole, messages are those of the papers.
// That they are what the layers of nn/ do is in tests/runtime/counts.cpp.
#include <galvatron/cost/layer.hpp>

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/cost/plan_cost.hpp>
#include <galvatron/model/build.hpp>
#include <galvatron/model/zoo.hpp>
#include <galvatron/program/expert_nodes.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/space.hpp>
#include <galvatron/strategy/spec.hpp>

using namespace galvatron;
using cost::LayerCounts;

namespace {

LayerSpec llama_block(std::int64_t kv_heads) {
  return llama("llama", {.layers = 2,
                         .hidden = 512,
                         .heads = 32,
                         .kv_heads = kv_heads,
                         .ffn = 1536,
                         .vocabulary = 1000,
                         .positions = 4096})
      .blocks.front();
}

LayerCounts counts(const LayerSpec& layer, const StrategySpec& spec, std::int64_t microbatch = 8,
                   Precision precision = Precision::bf16) {
  const cost::Batch batch{.microbatch = microbatch, .sequence = 1024, .precision = precision};
  REQUIRE(is_legal(spec));
  REQUIRE(why_unfit(layer, spec, microbatch, 1024) == "");
  return cost::layer_counts(layer, spec, batch);
}

std::int64_t times(const op::WorkList& list, op::Kind kind) {
  std::int64_t sum = 0;
  for (const op::Work& work : list)
    if (work.kind == kind) sum += work.times;
  return sum;
}
std::int64_t bytes(const op::WorkList& list, op::Kind kind) {
  std::int64_t sum = 0;
  for (const op::Work& work : list)
    if (work.kind == kind) sum += work.m * work.times;
  return sum;
}

StrategySpec ulysses(int context, int tensor = 1, int data = 1) {
  return {.tensor = tensor, .sequence = SequenceKind::ulysses, .context = context, .data = data};
}
StrategySpec ring(int context, int tensor = 1, int data = 1) {
  return {.tensor = tensor, .sequence = SequenceKind::ring, .context = context, .data = data};
}

}  // namespace

TEST_CASE("the arithmetic of all ranks is that of one rank, whatever the strategy") {
  for (const bool causal : {true, false})
    for (const int ranks : {1, 2, 4, 6, 8, 16}) {
      LayerSpec block = llama_block(8);
      block.causal = causal;
      const double forward = counts(block, {}, 16).forward.flops().count;
      const double backward = counts(block, {}, 16).backward.flops().count;
      int checked = 0;
      for (const StrategySpec& spec : strategies({}, ranks)) {
        if (!is_fit(block, spec, 16, 1024)) continue;
        INFO(strategy_text(spec) << (causal ? ", causal" : ""));
        const LayerCounts c = counts(block, spec, 16);
        CHECK(c.forward.flops().count * ranks == doctest::Approx(forward).epsilon(1e-12));
        if (spec.recompute == RecomputeKind::cheap || spec.recompute == RecomputeKind::none)
          CHECK(c.backward.flops().count * ranks == doctest::Approx(backward).epsilon(1e-12));
        ++checked;
      }
      CHECK((ranks == 6 || checked > 2));
    }
}

TEST_CASE("a sliding window leaves its share of the pairs of query and key, to every rank") {
  LayerSpec block = llama_block(8);
  const auto attention_flops = [](const LayerCounts& c) {
    double sum = 0;
    for (const op::Work& work : c.forward)
      if (work.kind == op::Kind::attention_forward) sum += op::flops_of(work).count;
    return sum;
  };
  const double all = attention_flops(counts(block, {}, 16));  // of 1024 tokens
  for (const std::int64_t window : {1, 2, 100, 1000, 1023, 1024, 5000}) {
    block.sliding_window = window;
    std::int64_t pairs = 0, seen = 0;
    for (std::int64_t query = 0; query < 1024; ++query) {
      pairs += query + 1;
      seen += std::min(query + 1, window);
    }
    const double share = static_cast<double>(seen) / static_cast<double>(pairs);
    CHECK(attention_flops(counts(block, {}, 16)) == doctest::Approx(share * all));
    CHECK(attention_flops(counts(block, {.tensor = 2}, 16)) * 2 == doctest::Approx(share * all));
    CHECK(attention_flops(counts(block, ulysses(4), 16)) * 4 == doctest::Approx(share * all));
  }
}

TEST_CASE("Ulysses sends queries, keys, values and output: four all-to-alls a pass") {
  const LayerSpec block = llama_block(32);
  for (const int tensor : {1, 2})
    for (const int context : {2, 4, 16}) {
      const LayerCounts c = counts(block, ulysses(context, tensor));
      // Each of S / c x b x H / t elements of two bytes.
      const std::int64_t activation = 8 * 1024 / context * 512 / tensor * 2;
      for (const op::WorkList* pass : {&c.forward, &c.backward}) {
        CHECK(times(*pass, op::Kind::all_to_all) == 4);
        CHECK(bytes(*pass, op::Kind::all_to_all) == 4 * activation);
        CHECK(times(*pass, op::Kind::send) == 0);
        for (const op::Work& work : *pass)
          if (work.kind == op::Kind::all_to_all) {
            CHECK(work.n == context);
            CHECK(work.stride == tensor);
            CHECK(work.overlap == 0);
          }
      }
      CHECK(times(counts(block, {.tensor = 2}).forward, op::Kind::all_to_all) == 0);
    }
}

TEST_CASE("Ulysses copies key/value heads that are fewer than its ranks") {
  const LayerSpec block = llama_block(4);
  const auto key_bytes = [&](int context) {
    const LayerCounts c = counts(block, ulysses(context));
    const std::int64_t queries = 8 * 1024 / context * 512 * 2;
    return (bytes(c.forward, op::Kind::all_to_all) - 2 * queries) / 2;
  };
  const std::int64_t head = std::int64_t{8} * 1024 * 16 * 2;  // S x b x head_dim elements
  CHECK(key_bytes(2) == head * 4 / 2);
  CHECK(key_bytes(4) == head * 4 / 4);
  CHECK(key_bytes(8) == head * 8 / 8);  // eight copies of four heads among eight ranks
  CHECK(key_bytes(16) == head * 16 / 16);
  // The gradients of the copies are added up.
  CHECK(times(counts(block, ulysses(8)).backward, op::Kind::add) ==
        times(counts(block, ulysses(4)).backward, op::Kind::add) + 2);
  CHECK(why_unfit(block, ulysses(6), 8, 1020) != "");
}

TEST_CASE("ring attention sends keys and values c - 1 times, and their gradients home") {
  const LayerSpec block = llama_block(8);
  for (const int tensor : {1, 4})
    for (const int context : {2, 4, 8}) {
      const LayerCounts c = counts(block, ring(context, tensor));
      const std::int64_t keys_and_values = 2 * 8 * (1024 / context) * (8 / tensor) * 16;
      CHECK(times(c.forward, op::Kind::send) == context - 1);
      CHECK(bytes(c.forward, op::Kind::send) == (context - 1) * keys_and_values * 2);
      CHECK(times(c.backward, op::Kind::send) == context - 1 + context);
      CHECK(bytes(c.backward, op::Kind::send) == (context - 1) * keys_and_values * 2 + context * keys_and_values * 4);
      CHECK(times(c.forward, op::Kind::attention_forward) == context);
      CHECK(times(c.backward, op::Kind::attention_backward) == context);
      CHECK(times(c.forward, op::Kind::all_to_all) == 0);
      for (const op::Work& work : c.backward)
        if (work.kind == op::Kind::send) {
          CHECK(work.k == context);
          CHECK(work.stride == tensor);
        }
    }
}

TEST_CASE("every turn of a ring but one has a send beside it, and takes the longer of the two") {
  const LayerSpec block = llama_block(8);
  for (const int context : {2, 3, 8}) {
    const cost::Batch batch{.microbatch = 8, .sequence = 1008, .precision = Precision::bf16};
    const LayerCounts c = cost::layer_counts(block, ring(context), batch);
    std::vector<std::int64_t> attention(op::overlaps + 1, 0);
    std::vector<std::int64_t> sends(op::overlaps + 1, 0);
    for (const op::Work& work : c.forward) {
      if (work.kind == op::Kind::attention_forward) attention[work.overlap] += work.times;
      if (work.kind == op::Kind::send) sends[work.overlap] += work.times;
    }
    CHECK(attention[0] == 1);
    CHECK(sends[0] == 0);
    for (int i = 1; i <= op::overlaps; ++i)
      CHECK(attention[static_cast<std::size_t>(i)] == sends[static_cast<std::size_t>(i)]);
  }
  // Where the network is slow, the sends are what counts; where it is fast, they are free.
  Cluster cluster = value_or_throw(find_cluster("64xh100-80g"));
  cluster.overlap_slowdown = 1;
  const cost::Batch batch{.microbatch = 1, .sequence = 4096, .precision = Precision::bf16};
  const LayerCounts c = cost::layer_counts(block, ring(16), batch);
  const auto attention_seconds = [&] {
    Seconds sum;
    for (const op::Work& work : c.forward)
      if (work.kind == op::Kind::attention_forward) sum += cost::time_of(work, Precision::bf16, cluster);
    return sum;
  };
  cluster.across_nodes.send_bandwidth = 1e15;
  cluster.across_nodes.latency = {1e-9};
  const cost::LayerSeconds fast = cost::layer_seconds(c, ring(16), Precision::bf16, cluster, 64);
  CHECK(fast.forward_communication.value < 1e-9);
  cluster.across_nodes.send_bandwidth = 1e6;
  const cost::LayerSeconds slow = cost::layer_seconds(c, ring(16), Precision::bf16, cluster, 64);
  const double sent = 15.0 * 2 * 256 * 8 * 16 * 2 / 1e6;
  CHECK(slow.forward.value ==
        doctest::Approx(fast.forward.value - 15.0 / 16 * attention_seconds().value + sent).epsilon(0.01));
}

TEST_CASE("the bytes of activations fall with the context degree, those of states with all ranks that share") {
  const LayerSpec block = llama_block(8);
  const auto close = [](Bytes part, Bytes whole, std::int64_t degree) {
    // Statistics and paddings aside.
    return static_cast<double>(part.count * degree) == doctest::Approx(static_cast<double>(whole.count)).epsilon(0.02);
  };
  const LayerCounts one = counts(block, {}, 8);
  for (const int context : {2, 4, 8}) {
    CHECK(close(counts(block, ring(context)).stash, one.stash, context));
    CHECK(counts(block, ring(context)).activation * context == one.activation);
    CHECK(counts(block, ulysses(context)).activation * context == one.activation);
    // Ulysses keeps the output in both layouts.
    const std::int64_t output = std::int64_t{8} * 1024 / context * 512 * 2;
    CHECK(close(counts(block, ulysses(context)).stash - Bytes{output}, one.stash, context));
    for (const SequenceKind kind : {SequenceKind::ulysses, SequenceKind::ring}) {
      StrategySpec spec{.sequence = kind, .context = context, .data = 2, .zero = 3};
      const StrategySpec data{.data = 2 * context, .zero = 3};
      CHECK(counts(block, spec).states == counts(block, data, 8 * context).states);
      spec.zero = 0;
      CHECK(counts(block, spec).states == one.states);
    }
  }
}

TEST_CASE("gradients are reduced over data and context ranks together") {
  const LayerSpec block = llama_block(8);
  for (int zero = 0; zero <= 3; ++zero) {
    StrategySpec spec = ring(4, 2, 2);
    spec.zero = zero;
    const LayerCounts c = counts(block, spec);
    int groups = 0;
    for (const op::WorkList* list : {&c.forward, &c.backward, &c.synchronise, &c.update})
      for (const op::Work& work : *list) {
        if (!is_communication(work.kind) || work.kind == op::Kind::send) continue;
        if (work.kind == op::Kind::all_reduce && work.n == 2) continue;  // of tensor ranks
        CHECK(work.n == 8);
        CHECK(work.stride == 2);
        ++groups;
      }
    CHECK(groups == (zero == 0 ? 1 : zero == 3 ? 3 : 2));
  }
}

TEST_CASE("selective recomputation keeps queries, keys and values, and repeats the attention core alone") {
  for (StrategySpec spec : {StrategySpec{}, StrategySpec{.tensor = 2}, ring(4), ulysses(4)}) {
    INFO(strategy_text(spec));
    const LayerSpec block = llama_block(8);
    const LayerCounts none = counts(block, spec);
    spec.recompute = RecomputeKind::selective;
    const LayerCounts selective = counts(block, spec);
    spec.recompute = RecomputeKind::full;
    const LayerCounts full = counts(block, spec);
    CHECK(none.forward.flops() == selective.forward.flops());
    CHECK(full.stash < selective.stash);
    CHECK(selective.stash < none.stash);
    const std::int64_t rows = 8 * 1024 / spec.context;
    const std::int64_t output = rows * 512 / spec.tensor * 2;
    const std::int64_t statistics = rows * 32 / spec.tensor * 4;
    const bool twice = spec.exchanges_heads();
    CHECK((none.stash - selective.stash).count == (twice ? 2 : 1) * output + statistics);
    CHECK(times(selective.backward, op::Kind::attention_forward) == times(none.forward, op::Kind::attention_forward));
    CHECK(times(none.backward, op::Kind::attention_forward) == 0);
    Flops core;
    for (const op::Work& work : none.forward)
      if (work.kind == op::Kind::attention_forward) core += flops_of(work);
    CHECK(selective.backward.flops().count == doctest::Approx(none.backward.flops().count + core.count));
    // One more exchange or round of the ring; full recomputation repeats all of forward's.
    CHECK(times(selective.backward, op::Kind::all_to_all) == (twice ? 5 : 0));
    CHECK(times(full.backward, op::Kind::all_to_all) == (twice ? 8 : 0));
    CHECK(times(selective.backward, op::Kind::send) == times(full.backward, op::Kind::send));
  }
}

TEST_CASE("what norms and activations give can be kept: 12 bytes for each token and hidden unit, and no work again") {
  for (const bool cut : {false, true})
    for (const bool splits : {false, true}) {
      const LayerSpec block =
          gpt("gpt", {.layers = 2, .hidden = 4096, .heads = 32, .vocabulary = 1000, .positions = 2048}).blocks.front();
      StrategySpec spec{.tensor = cut ? 2 : 1, .sequence = cut ? SequenceKind::megatron : SequenceKind::none};
      const cost::Batch batch{
          .microbatch = 2, .sequence = 2048, .precision = Precision::bf16, .splits_backward = splits};
      const LayerCounts none = cost::layer_counts(block, spec, batch);
      spec.recompute = RecomputeKind::none;
      const LayerCounts never = cost::layer_counts(block, spec, batch);
      INFO(strategy_text(spec) << ", in two parts " << splits);
      const std::int64_t tensor = 2 * 2048 * 4096 / spec.tensor * 2;  // in bf16
      CHECK((never.stash - none.stash).count == 6 * tensor);
      // The activation's output is nowhere twice: not in the workspace, nor between the parts of backward.
      CHECK(never.forward_workspace < none.forward_workspace);
      CHECK(never.backward_workspace <= none.backward_workspace);
      CHECK((none.deferred - never.deferred).count == (splits ? 4 * tensor : 0));
      for (const auto& [kind, again] : {std::pair{op::Kind::norm_forward, 2}, {op::Kind::activation_forward, 1}}) {
        CHECK(times(none.backward, kind) + times(none.weights, kind) == again);
        CHECK(times(never.backward, kind) + times(never.weights, kind) == 0);
        CHECK(times(never.forward, kind) == times(none.forward, kind));
      }
      CHECK(times(never.backward, op::Kind::all_gather) == times(none.backward, op::Kind::all_gather));
      CHECK(never.backward.flops() == none.backward.flops());
      CHECK(never.states == none.states);
    }
}

TEST_CASE("any strategy of any layer has a positive and finite price that more samples never lower") {
  const unsigned seed = 11;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const auto one_of = [&](const auto& list) { return list[random() % std::size(list)]; };
  const std::vector<Cluster> clusters{value_or_throw(find_cluster("64xa100-80g")), host_cluster(4, 2)};
  int checked = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::int64_t kv_heads = one_of(std::array{1, 2, 8, 32});
    ModelSpec model = llama("llama", {.layers = 2,
                                      .hidden = 32 * one_of(std::array{4, 6}),
                                      .heads = 32,
                                      .kv_heads = kv_heads,
                                      .ffn = 96,
                                      .vocabulary = 333,
                                      .positions = 4096,
                                      .head_dim = 8});
    LayerSpec layer = one_of(std::array{model.embedding, model.blocks[0], model.blocks[0], model.head});
    layer.causal = round % 5 != 0;
    layer.bias = round % 2 == 0;
    const StrategySpec spec{.tensor = one_of(std::array{1, 1, 2, 3, 4, 8}),
                            .sequence = static_cast<SequenceKind>(random() % 5),
                            .context = one_of(std::array{1, 2, 3, 4, 8, 16}),
                            .data = one_of(std::array{1, 2, 3, 4}),
                            .zero = static_cast<int>(random() % 4),
                            .recompute = recompute_kinds[random() % recompute_kinds.size()]};
    const std::int64_t microbatch = spec.data * one_of(std::array{1, 2, 5});
    const std::int64_t sequence = one_of(std::array{48, 96, 768});
    if (!is_legal(spec) || !is_fit(layer, spec, microbatch, sequence)) continue;
    ++checked;
    const Precision precision = round % 3 == 0 ? Precision::fp32 : Precision::bf16;
    const Cluster& cluster = clusters[random() % 2];
    cost::Batch batch{
        .microbatch = microbatch, .sequence = sequence, .precision = precision, .stages = one_of(std::array{1, 2})};
    const LayerCounts c = cost::layer_counts(layer, spec, batch);
    const cost::LayerSeconds s = cost::layer_seconds(c, spec, precision, cluster, spec.ranks());
    batch.microbatch *= 2;
    const LayerCounts more = cost::layer_counts(layer, spec, batch);
    const cost::LayerSeconds longer = cost::layer_seconds(more, spec, precision, cluster, spec.ranks());
    INFO(strategy_text(spec) << ", layer kind " << static_cast<int>(layer.kind) << ", " << microbatch << " samples of "
                             << sequence);
    for (const Seconds seconds : {s.forward, s.backward, s.update}) {
      CHECK(seconds.value > 0);
      CHECK(std::isfinite(seconds.value));
    }
    CHECK(s.synchronise.value >= 0);
    CHECK(s.forward_communication.value >= 0);
    CHECK(s.forward_communication <= s.forward);
    CHECK(s.backward_communication <= s.backward);
    CHECK(longer.forward.value >= s.forward.value * (1 - 1e-9));
    CHECK(longer.backward.value >= s.backward.value * (1 - 1e-9));
    for (const auto& [small, large] : {std::pair{c.stash, more.stash},
                                       {c.activation, more.activation},
                                       {c.forward_workspace, more.forward_workspace},
                                       {c.backward_workspace, more.backward_workspace}}) {
      CHECK(small.count >= 0);
      CHECK(small <= large);
    }
    CHECK(c.states == more.states);
  }
  CHECK(checked > 1000);
}

namespace {
constexpr LayerSpec constant_block{.hidden = 64, .heads = 8, .kv_heads = 2, .head_dim = 8, .ffn = 128, .positions = 64};
constexpr cost::Batch constant_batch{.microbatch = 2, .sequence = 64};
static_assert(cost::layer_counts(constant_block,
                                 {.sequence = SequenceKind::ring, .context = 4, .recompute = RecomputeKind::full},
                                 constant_batch)
                      .backward.flops() > Flops{0},
              "ring attention is counted at compile time");
static_assert(cost::layer_counts(constant_block, {.sequence = SequenceKind::ulysses, .context = 4}, constant_batch)
                      .stash > Bytes{0},
              "and Ulysses");
}  // namespace

TEST_CASE("by nodes, tokens cross between nodes once, rows of experts stay in a node, and the exchange is faster") {
  const ModelSpec model = value_or_throw(find_model("deepseek-v3"));
  const Cluster cluster = value_or_throw(find_cluster("128xh100-80g"));
  const LayerSpec& layer = model.blocks.back();
  constexpr std::int64_t tokens = 4096;  // of a rank
  const std::int64_t k = layer.active_experts;
  for (const int etp : {1, 2}) {
    const cost::Batch batch{.microbatch = 128, .sequence = tokens, .precision = Precision::bf16};
    StrategySpec spec{.data = 128, .expert = 64 / etp, .expert_tensor = etp == 1 ? 0 : etp, .expert_nodes = 8};
    // Of the rank that has most, at the stated imbalance.
    const auto sent = static_cast<std::int64_t>(program::nodes_of_token(layer, 8) * tokens * batch.expert_imbalance);
    const auto rows = static_cast<std::int64_t>(static_cast<double>(tokens * k * etp) * batch.expert_imbalance);
    const std::int64_t row = layer.hidden * 2;
    std::int64_t between = 0, within = 0;
    const op::WorkList messages = cost::expert_messages(layer, spec, batch);
    for (const op::Work& work : messages) {
      if (work.kind != op::Kind::all_to_all) continue;
      CHECK(work.n == 8);
      CHECK((work.stride == 8 || work.stride == 1));
      (work.stride == 8 ? between : within) += work.m * work.times;
    }
    // Tokens with choices and weights, and back their sums; in backward also the gradients of weights.
    CHECK(std::abs(between - (sent + 1) * (4 * row + (2 + 2 + 1) * k * 4)) < 4 * 8);
    CHECK(std::abs(within - (rows + 1) * (4 * row + 2 * 4)) < 6 * 8 * row);
    StrategySpec direct = spec;
    direct.expert_nodes = 1;
    CHECK(cost::time_of(messages, Precision::bf16, cluster) <
          cost::time_of(cost::expert_messages(layer, direct, batch), Precision::bf16, cluster) * 0.75);
  }
}

TEST_CASE("the exchange of counts runs beside the shared expert") {
  const ModelSpec model = value_or_throw(find_model("deepseek-v3"));
  const Cluster cluster = value_or_throw(find_cluster("128xh100-80g"));
  const cost::Batch batch{.microbatch = 128, .sequence = 4096, .precision = Precision::bf16};
  const StrategySpec spec{.data = 128, .expert = 64};
  LayerSpec layer = model.blocks.back();
  const auto beside_counts = [&] {
    op::WorkList out;
    for (const op::Work& work : cost::layer_counts(layer, spec, batch).forward)
      if (work.overlap > 0) out.push(work);
    return out;
  };
  const auto seconds = [&](const auto& work) { return cost::time_of(work, Precision::bf16, cluster); };
  const Seconds counts = seconds(op::Work{.kind = op::Kind::all_gather, .m = (256 + 1) * 64 * 4, .n = 64});
  const op::WorkList together = beside_counts();
  Seconds one_by_one;
  for (const op::Work& work : together) one_by_one += seconds(work);
  CHECK(one_by_one > counts);
  CHECK(seconds(together) < one_by_one - min(counts, one_by_one - counts) * 0.5);
  layer.shared_ffn = 0;  // nothing is beside them
  CHECK(seconds(beside_counts()) == counts);
}
