// Counts of layers against published arithmetic, against each other, and against what crosses their borders. That plain
// layers do what is counted is tested in tests/runtime/counts.cpp.
#include <galvatron/cost/layer.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <galvatron/cost/memory.hpp>
#include <galvatron/model/build.hpp>
#include <galvatron/model/layers.hpp>
#include <galvatron/model/zoo.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/space.hpp>
#include <galvatron/strategy/spec.hpp>

using namespace galvatron;

namespace {

ModelSpec model_named(const std::string& name) { return value_or_throw(find_model(name)); }

const std::vector<std::string> mixed_models{"bert-large", "vit-huge-32", "t5-large-32", "swin-huge-32", "mixtral-8x7b"};

// Multiply-adds of a sample's forward pass.
double forward_macs(const ModelSpec& model, std::int64_t sequence) {
  const cost::Batch batch{.microbatch = 1, .sequence = sequence};
  Flops sum = cost::layer_counts(model.embedding, {}, batch).forward.flops() + cost::head_flops(model.head, batch);
  for (const LayerSpec& block : model.blocks) sum += cost::layer_counts(block, {}, batch).forward.flops();
  return sum.count / 2;
}

Flops attention_flops(const op::WorkList& list) {
  Flops sum;
  for (const op::Work& work : list)
    if (op::is_attention(work.kind)) sum += op::flops_of(work);
  return sum;
}
Flops all_flops(const cost::LayerCounts& counts) { return counts.forward.flops() + counts.backward.flops(); }

}  // namespace

TEST_CASE("forward arithmetic is what the papers publish") {
  // torchvision: vit_h_14 at 224 pixels 167.29 GMAC, vit_b_16 17.56.
  CHECK(forward_macs(model_named("vit-huge-32"), 257) / 1e9 == doctest::Approx(167.29).epsilon(0.005));
  CHECK(forward_macs(vit("vit-b", {.layers = 12, .hidden = 768, .heads = 12}), 197) / 1e9 ==
        doctest::Approx(17.56).epsilon(0.005));
  // Liu et al., 2021, table 1, at 224 pixels: Swin-T 4.5 GMAC, Swin-S 8.7, Swin-B 15.4, Swin-L 34.5.
  const auto swin_macs = [](std::array<int, 4> depths, std::int64_t hidden, std::array<std::int64_t, 4> heads) {
    return forward_macs(swin("swin", {.depths = depths, .hidden = hidden, .heads = heads}), 56 * 56) / 1e9;
  };
  CHECK(swin_macs({2, 2, 6, 2}, 96, {3, 6, 12, 24}) == doctest::Approx(4.5).epsilon(0.015));
  CHECK(swin_macs({2, 2, 18, 2}, 96, {3, 6, 12, 24}) == doctest::Approx(8.7).epsilon(0.015));
  CHECK(swin_macs({2, 2, 18, 2}, 128, {4, 8, 16, 32}) == doctest::Approx(15.4).epsilon(0.015));
  CHECK(swin_macs({2, 2, 18, 2}, 192, {6, 12, 24, 48}) == doctest::Approx(34.5).epsilon(0.015));
}

TEST_CASE("a multiply-add a parameter and token, and attention") {
  const double s = 512;
  const ModelSpec bert = model_named("bert-large");
  const double bert_table = 30522.0 * 1024;  // the tied table multiplies once, positions and segments do not
  const double bert_matrices = static_cast<double>(parameters(bert)) - 514 * 1024.0;
  CHECK(forward_macs(bert, 512) == doctest::Approx(s * bert_matrices + 24 * 2 * s * s * 1024).epsilon(0.002));
  CHECK(forward_macs(bert, 512) > s * bert_table);

  // Mixtral: 12.88 of 46.70 billion parameters work on a token, of which the embedding's table does not multiply.
  const ModelSpec mixtral = model_named("mixtral-8x7b");
  const double active = 12.88e9 - 32000 * 4096.0;
  CHECK(forward_macs(mixtral, 4096) == doctest::Approx(4096 * active + 32 * 4096.0 * 4096 * 4096).epsilon(0.002));

  // T5, source and target of 512: each side's layers see their own tokens; keys and values of cross attention the
  // source.
  const ModelSpec t5_large = model_named("t5-large-48");
  const double per_token = static_cast<double>(parameters(t5_large));
  const double attention = s * s * 1024 * (24 * 2 + 24 * 1 + 24 * 2);  // bidirectional, causal, cross
  CHECK(forward_macs(t5_large, 512) == doctest::Approx(s * per_token + attention).epsilon(0.002));
  // A target of 4 tokens leaves the encoder and the keys and values of the decoder.
  const ModelSpec answers =
      t5("t5", {.encoder_layers = 24, .decoder_layers = 24, .hidden = 1024, .heads = 16, .ffn = 4096, .target = 4});
  const double encoder = 24 * 12.0 * 1024 * 1024;
  CHECK(forward_macs(answers, 512) ==
        doctest::Approx(s * (encoder + 24 * 2.0 * 1024 * 1024) + 24 * 2 * s * s * 1024).epsilon(0.02));
}

TEST_CASE("the ranks of a strategy do the arithmetic of one rank together") {
  for (const std::string& name : mixed_models) {
    const ModelSpec model = model_named(name);
    const cost::Batch batch{.microbatch = 8, .sequence = model.positions(), .precision = Precision::bf16};
    for (const LayerSpec& block : model.blocks) {
      const double alone = all_flops(cost::layer_counts(block, {}, batch)).count;
      // A router chooses for every rank's own tokens, on all of its tensor ranks where they hold the same ones.
      const double rest = block.experts > 0 ? 1e-3 : 1e-12;
      // Likewise tensor ranks that hold the same tokens merge them alike: a product and its two gradients.
      const auto merged = static_cast<double>(8 * block.tokens.of(model.positions()));
      const auto h = static_cast<double>(block.hidden);
      const double merging = block.merges ? 3 * 2 * merged * h * 2 * h : 0;
      for (const StrategySpec& spec :
           {StrategySpec{.data = 8}, StrategySpec{.tensor = 2, .data = 4, .zero = 3}, StrategySpec{.tensor = 8},
            StrategySpec{.tensor = 4, .sequence = SequenceKind::megatron, .data = 2, .zero = 1},
            StrategySpec{.sequence = SequenceKind::ulysses, .context = 4, .data = 2},
            StrategySpec{.tensor = 2, .sequence = SequenceKind::ring, .context = 2, .data = 2}}) {
        if (!is_fit(block, spec, 8, model.positions())) continue;
        INFO(name << ", layer " << &block - model.blocks.data() << ", " << strategy_text(spec));
        const double together = 8 * all_flops(cost::layer_counts(block, spec, batch)).count;
        const int alike = spec.sequence == SequenceKind::megatron ? 1 : spec.tensor;
        CHECK(together == doctest::Approx(alone + (alike - 1) * merging).epsilon(rest));
      }
      // Backward is twice the forward products; attention's backward computes its scores again.
      const cost::LayerCounts counts = cost::layer_counts(block, {}, batch);
      const Flops core = attention_flops(counts.forward);
      CHECK(counts.backward.flops().count ==
            doctest::Approx((counts.forward.flops().count - core.count) * 2 + core.count * 2.5).epsilon(1e-12));
    }
  }
}

TEST_CASE("attention in windows grows with the tokens, everywhere with their square") {
  LayerSpec block = model_named("swin-huge-32").blocks[1];
  const auto core = [](const LayerSpec& layer, std::int64_t sequence) {
    const cost::Batch batch{.microbatch = 2, .sequence = sequence};
    return attention_flops(cost::layer_counts(layer, {}, batch).forward).count;
  };
  CHECK(core(block, 4 * 3136) == 4 * core(block, 3136));
  block.window = 0;
  CHECK(core(block, 4 * 3136) == 16 * core(block, 3136));
  CHECK(core(block, 3136) == 64 * core(model_named("swin-huge-32").blocks[1], 3136));
}

TEST_CASE("cross attention reads the encoder's tokens") {
  const ModelSpec model =
      t5("t5", {.encoder_layers = 2, .decoder_layers = 2, .hidden = 256, .heads = 4, .ffn = 512, .target = 128});
  const cost::Batch batch{.microbatch = 3, .sequence = 512, .precision = Precision::bf16};
  const cost::LayerCounts counts = cost::layer_counts(model.blocks[3], {}, batch);
  bool self = false;
  bool cross = false;
  bool memory = false;
  for (const op::Work& work : counts.forward) {
    self |= work.kind == op::Kind::attention_forward && work.n == 128 && work.k == 128 && work.causal;
    cross |= work.kind == op::Kind::attention_forward && work.n == 128 && work.k == 512 && !work.causal;
    memory |= work.kind == op::Kind::gemm_nt && work.m == 3 * 512 && work.n == 2 * 256 && work.k == 256;
  }
  CHECK(self);
  CHECK(cross);
  CHECK(memory);
  // A token of the source costs a decoder's layer memory for keys, values and (once a stage) itself.
  cost::Batch longer = batch;
  longer.sequence = 1024;
  LayerSpec block = model.blocks[3];
  block.tokens = {1, 8};
  block.positions = 1024;
  const cost::LayerCounts more = cost::layer_counts(block, {}, longer);
  CHECK((more.stash - counts.stash).count == 3 * 512 * 2 * 256 * 2);
  CHECK((more.pass_through - counts.pass_through).count == 3 * 512 * 256 * 2);
}

TEST_CASE("what goes into a layer is what the layer before hands on, on every rank") {
  for (const std::string& name : mixed_models) {
    const ModelSpec model = model_named(name);
    const std::int64_t sequence = model.positions();
    const cost::Batch batch{.microbatch = 16, .sequence = sequence, .precision = Precision::bf16};
    for (const StrategySpec& spec : {StrategySpec{.data = 8}, StrategySpec{.tensor = 2, .data = 4},
                                     StrategySpec{.tensor = 2, .sequence = SequenceKind::megatron, .data = 4}}) {
      const LayerSpec* before = &model.embedding;
      for (const LayerSpec& block : model.blocks) {
        if (!is_fit(block, spec, 16, sequence) || !is_fit(*before, spec, 16, sequence)) break;
        const cost::LayerCounts counts = cost::layer_counts(block, spec, batch);
        CHECK(cost::layer_counts(*before, spec, batch).activation == counts.input);
        CHECK(counts.input == counts.activation * (block.merges ? 2 : 1));
        before = &block;
      }
    }
  }
}

TEST_CASE("a stage keeps what its layers share once a layout") {
  const ModelSpec model = model_named("t5-large-32");
  const cost::Batch batch{.microbatch = 8, .sequence = 512, .precision = Precision::bf16, .stages = 2};
  const StrategySpec wide{.data = 4};
  const StrategySpec narrow{.tensor = 4};
  const auto memory = [&](const std::vector<StrategySpec>& specs) {
    std::vector<cost::LayerBytes> layers;
    std::vector<ActivationLayout> layouts;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      layers.push_back(cost::layer_counts(model.blocks[20 + i], specs[i], batch));
      layouts.push_back(activation_layout(specs[i], 4, 8, 512));
    }
    return cost::stage_memory(layers, layouts, 3, 0, 1, 1, {});
  };
  const cost::LayerCounts layer = cost::layer_counts(model.blocks[20], wide, batch);
  const cost::LayerCounts other = cost::layer_counts(model.blocks[20], narrow, batch);
  const std::int64_t tensor = 2 * 512 * 1024 * 2;  // of one side, two samples
  CHECK(layer.pass_through.count == tensor);
  CHECK(layer.input.count == 2 * tensor);
  CHECK(memory({wide, wide, wide}).stash == (layer.stash * 3 + layer.pass_through) * 3);
  CHECK(memory({wide, wide, wide}).boundary.count == 4 * tensor);
  CHECK(memory({wide, narrow, narrow}).stash ==
        (layer.stash + layer.pass_through + other.stash * 2 + other.pass_through) * 3);
}

TEST_CASE("recomputation trades stash for work in every kind of layer") {
  for (const std::string& name : mixed_models) {
    const ModelSpec model = model_named(name);
    const cost::Batch batch{.microbatch = 4, .sequence = model.positions(), .precision = Precision::bf16};
    for (const LayerSpec& block : model.blocks) {
      INFO(name << ", layer " << &block - model.blocks.data());
      const cost::LayerCounts none = cost::layer_counts(block, {}, batch);
      const cost::LayerCounts full = cost::layer_counts(block, {.recompute = RecomputeKind::full}, batch);
      CHECK(full.stash < none.stash);
      CHECK(full.stash.count > 0);
      CHECK(full.states == none.states);
      const cost::LayerCounts core = cost::layer_counts(block, {.recompute = RecomputeKind::selective}, batch);
      CHECK(core.stash < none.stash);
      CHECK(core.stash > full.stash);
      CHECK(core.backward.flops().count - none.backward.flops().count ==
            doctest::Approx(attention_flops(none.forward).count));
      const double again = full.backward.flops().count - none.backward.flops().count;
      CHECK(again > 0.5 * none.forward.flops().count);
      CHECK(again <= none.forward.flops().count);
      const cost::LayerCounts never = cost::layer_counts(block, {.recompute = RecomputeKind::none}, batch);
      CHECK(never.stash > none.stash);
      CHECK(never.backward.size() < none.backward.size());
      CHECK(never.backward.flops() == none.backward.flops());
      CHECK(never.forward_workspace <= none.forward_workspace);
      CHECK(never.backward_workspace <= none.backward_workspace);
    }
  }
}

TEST_CASE("no list of work is full") {
  for (const std::string& name : model_names()) {
    const ModelSpec model = model_named(name);
    std::vector<const LayerSpec*> layers{&model.embedding, &model.head};
    for (const LayerSpec& block : model.blocks) layers.push_back(&block);
    const cost::Batch batch{.microbatch = 4, .sequence = model.positions(), .precision = Precision::bf16, .stages = 2};
    for (const LayerSpec* layer : layers)
      for (const SequenceKind sequence : {SequenceKind::none, SequenceKind::megatron}) {
        const StrategySpec spec{
            .tensor = 2, .sequence = sequence, .data = 2, .zero = 3, .recompute = RecomputeKind::full};
        if (!is_fit(*layer, spec, 4, model.positions())) continue;
        const cost::LayerCounts counts = cost::layer_counts(*layer, spec, batch);
        CHECK(counts.backward.size() < op::WorkList::capacity - 8);
        CHECK(counts.forward.size() < op::WorkList::capacity - 8);
      }
  }
}
