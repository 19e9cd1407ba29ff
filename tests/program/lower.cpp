// Programs of the layers of all families under all kinds of strategies: the verifier finds nothing wrong with them, and
// finds what is made wrong.
#include <galvatron/program/lower.hpp>

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/cost/trainer_json.hpp>
#include <galvatron/model/layers.hpp>
#include <galvatron/model/zoo.hpp>
#include <galvatron/program/verify.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/spec.hpp>

using namespace galvatron;
using program::Code;
using program::LayerProgram;
using program::Phase;
using program::Step;
using program::Storage;

namespace {

std::vector<LayerSpec> layers_of_gpt_and_llama() {
  std::vector<LayerSpec> out;
  for (const char* name : {"gpt2-tiny", "llama-tiny"}) {
    const ModelSpec model = value_or_throw(find_model(name));
    out.insert(out.end(), {model.embedding, model.blocks[0], model.head});
  }
  return out;
}

// Every layer that differs from the others, of all families.
std::vector<LayerSpec> layers_of_all_families() {
  std::vector<LayerSpec> out;
  const auto add = [&out](const LayerSpec& layer) {
    for (const LayerSpec& there : out)
      if (there == layer) return;
    out.push_back(layer);
  };
  for (const char* name : {"gpt2-tiny", "llama-tiny", "bert-tiny", "vit-tiny", "swin-toy", "t5-tiny", "mixtral-8x7b",
                           "qwen2-57b-a14b", "qwen3-30b-a3b", "olmoe-1b-7b", "deepseek-v2-lite", "deepseek-v3"}) {
    const ModelSpec model = value_or_throw(find_model(name));
    add(model.embedding);
    for (const LayerSpec& block : model.blocks) add(block);
    add(model.head);
  }
  return out;
}

// One strategy of every kind: with and without context ranks under Megatron's sequence parallelism.
std::vector<StrategySpec> kinds() {
  std::vector<StrategySpec> out;
  for (const SequenceKind sequence : sequence_kinds)
    for (const int context : {1, 2})
      for (int zero = 0; zero <= 3; ++zero)
        for (const RecomputeKind recompute : recompute_kinds) {
          const StrategySpec spec{
              .tensor = 2, .sequence = sequence, .context = context, .data = 2, .zero = zero, .recompute = recompute};
          if (is_legal(spec)) out.push_back(spec);
        }
  return out;
}

int count(const LayerProgram& program, Phase phase, Code code) {
  int found = 0;
  for (const Step& step : program.steps(phase)) found += step.code == code ? 1 : 0;
  return found;
}

LayerProgram block_program(const StrategySpec& spec, bool splits = false) {
  return program::lower(forward_of(layers_of_gpt_and_llama()[1]), spec, splits);
}

}  // namespace

TEST_CASE("every program reads what was written and not overwritten, and its frames do not overlap") {
  int programs = 0;
  for (const LayerSpec& layer : layers_of_all_families())
    for (const StrategySpec& spec : kinds())
      for (const bool splits : {false, true}) {
        if (spec.context > 1 && !splits_over_context(layer)) continue;
        const LayerProgram made = program::lower(forward_of(layer), spec, splits);
        INFO(strategy_text(spec) << (splits ? ", split backward" : "") << ", kind " << static_cast<int>(layer.kind));
        CHECK(program::why_wrong(made) == "");
        ++programs;
      }
  CHECK(programs > 3000);
}

TEST_CASE("so does every program that sends tokens to experts, or means of them") {
  int programs = 0;
  for (const bool gains : {false, true})
    for (LayerSpec layer : layers_of_all_families()) {
      if (layer.experts == 0) continue;
      layer.router.residual_gain = gains;
      for (StrategySpec spec : kinds())
        for (const DispatchKind dispatch : dispatch_kinds)
          for (const bool splits : {false, true}) {
            spec.expert = 2;
            spec.dispatch = dispatch;
            INFO(strategy_text(spec) << (splits ? ", split backward" : ""));
            CHECK(program::why_wrong(program::lower(forward_of(layer), spec, splits)) == "");
            ++programs;
          }
    }
  CHECK(programs > 1000);
}

TEST_CASE("programs of other trainers are whole, too") {
  for (const std::string& trainer : cost::trainer_names())
    for (const LayerSpec& layer : layers_of_all_families())
      for (const StrategySpec& spec : kinds()) {
        if (spec.context > 1 && !splits_over_context(layer)) continue;
        const LayerProgram made =
            program::lower(forward_of(layer), spec, false, cost::find_trainer(trainer)->traits.passes);
        INFO(trainer << ": " << strategy_text(spec) << ", kind " << static_cast<int>(layer.kind));
        CHECK(program::why_wrong(made) == "");
      }
}

TEST_CASE("the peaks of a frame give its size, whatever the buffers' sizes are") {
  constexpr unsigned seed = 71;
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> any(0, 1000);
  for (const StrategySpec& spec : kinds())
    for (const bool splits : {false, true}) {
      const LayerProgram made = block_program(spec, splits);
      for (int round = 0; round < 10; ++round) {
        std::array<std::int64_t, LayerProgram::most_buffers> sizes{};
        for (std::int64_t& size : sizes) size = 64 * any(random);
        const auto bytes = [&](const program::Buffer& buffer) {
          return sizes[static_cast<std::size_t>(&buffer - made.buffers.begin())];
        };
        for (const Phase phase : {Phase::forward, Phase::backward, Phase::weights})
          CHECK(program::frame_bytes(made, phase, bytes) ==
                program::frame_bytes(made, phase, bytes, [](const Step&) { return std::int64_t{0}; }));
      }
    }
}

TEST_CASE("the verifier finds a step that is missing, out of order, or that writes to the wrong buffer") {
  const LayerProgram right = block_program({.tensor = 2, .sequence = SequenceKind::megatron, .data = 2});
  REQUIRE(program::why_wrong(right).empty());
  // Every step that writes a value which another step reads cannot be left out.
  int caught = 0;
  int tried = 0;
  for (int phase = 0; phase < 2; ++phase)
    for (int i = 0; i < right.phase[static_cast<std::size_t>(phase)].size; ++i) {
      LayerProgram wrong = right;
      Step& step = wrong.phase[static_cast<std::size_t>(phase)][i];
      if (step.out[0] < 0 || step.code == Code::copy) continue;
      ++tried;
      step = Step{.code = Code::acquire};
      caught += program::why_wrong(wrong).empty() ? 0 : 1;
    }
  CHECK(tried > 20);
  CHECK(caught == tried);

  LayerProgram early = right;  // the norm's gradient before the product that it reads
  auto& backward = early.phase[1];
  for (int i = 1; i < backward.size; ++i)
    if (backward[i].code == Code::norm_backward) {
      std::swap(backward[i], backward[i - 1]);
      break;
    }
  CHECK(!program::why_wrong(early).empty());

  LayerProgram overlapping = right;
  for (int b = 0; b < overlapping.buffers.size; ++b)
    if (overlapping.buffer(b).below >= 0) {
      overlapping.buffers[b].below = -1;
      break;
    }
  CHECK(!program::why_wrong(overlapping).empty());
}

TEST_CASE("Megatron's sequence parallelism replaces all-reduces by reduce-scatters and all-gathers") {
  const LayerProgram plain = block_program({.tensor = 2, .data = 2});
  const LayerProgram cut = block_program({.tensor = 2, .sequence = SequenceKind::megatron, .data = 2});
  CHECK(count(plain, Phase::forward, Code::all_reduce) == 2);
  CHECK(count(plain, Phase::backward, Code::all_reduce) == 2);
  CHECK(count(plain, Phase::forward, Code::all_gather) == 0);
  CHECK(count(cut, Phase::forward, Code::all_reduce) == 0);
  CHECK(count(cut, Phase::forward, Code::reduce_scatter) == 2);
  CHECK(count(cut, Phase::forward, Code::all_gather) == 2);
  // Gradients of both regions' outputs, and both regions' inputs once more for the weights.
  CHECK(count(cut, Phase::backward, Code::all_gather) == 4);
  CHECK(count(cut, Phase::backward, Code::reduce_scatter) == 2);
}

TEST_CASE("what is recomputed follows the kind: norms and activations, the attention core, the layer, nothing") {
  const auto recomputed = [](RecomputeKind kind) {
    const LayerProgram made = block_program({.data = 2, .recompute = kind});
    return std::vector<int>{
        count(made, Phase::backward, Code::norm_recompute), count(made, Phase::backward, Code::activation_forward),
        count(made, Phase::backward, Code::attention_forward), count(made, Phase::backward, Code::linear)};
  };
  CHECK(recomputed(RecomputeKind::cheap) == std::vector<int>{2, 1, 0, 0});
  CHECK(recomputed(RecomputeKind::selective) == std::vector<int>{2, 1, 1, 0});
  CHECK(recomputed(RecomputeKind::full) == std::vector<int>{2, 1, 1, 3});  // not the last product of the MLP
  CHECK(recomputed(RecomputeKind::none) == std::vector<int>{0, 0, 0, 0});
}

TEST_CASE("a split backward has its weight gradients in a phase of their own, unless the layer is recomputed") {
  const LayerProgram split = block_program({.data = 2}, true);
  CHECK(split.splits);
  CHECK(count(split, Phase::backward, Code::weight_gradient) == 0);
  CHECK(count(split, Phase::weights, Code::weight_gradient) == 4);
  CHECK(count(split, Phase::weights, Code::bias_gradient) == 4);
  const LayerProgram whole = block_program({.data = 2, .recompute = RecomputeKind::full}, true);
  CHECK(!whole.splits);
  CHECK(count(whole, Phase::backward, Code::weight_gradient) == 4);
  CHECK(whole.steps(Phase::weights).size == 0);
}

namespace {

// A layer that the library does not have: a gated MLP with a square ReLU.
constexpr forward::Graph square_relu_forward(const LayerSpec& l) {
  forward::Builder b(l);
  const forward::Width h = forward::Builder::whole(l.hidden);
  const forward::Width f = forward::Builder::split(l.ffn);
  const forward::Tensor x = b.input(h);
  const forward::Tensor n = b.norm(x, b.vector(ParameterName::norm1_gamma, h, ParameterInit::one));
  const forward::Tensor gate = b.linear(n, b.weight(ParameterName::qkv_weight, f, h));
  const forward::Tensor up = b.linear(n, b.weight(ParameterName::mlp_in_weight, f, h));
  const forward::Tensor relu = b.activation(ActivationKind::relu, gate, f);
  const forward::Tensor g = b.multiply(b.multiply(relu, relu), up);
  b.output(b.add(x, b.linear(g, b.weight(ParameterName::mlp_out_weight, h, f))));
  return b.graph();
}

// Two activations whose sum has one gradient, which the first of them must not overwrite for the second.
constexpr forward::Graph shared_gradient_forward(const LayerSpec& l) {
  forward::Builder b(l);
  const forward::Width h = forward::Builder::whole(l.hidden);
  const forward::Width f = forward::Builder::split(l.ffn);
  const forward::Tensor x = b.input(h);
  const forward::Tensor left = b.linear(x, b.weight(ParameterName::qkv_weight, f, h));
  const forward::Tensor right = b.linear(x, b.weight(ParameterName::mlp_in_weight, f, h));
  const forward::Tensor sum =
      b.add(b.activation(ActivationKind::gelu, left, f), b.activation(ActivationKind::relu, right, f));
  b.output(b.linear(sum, b.weight(ParameterName::mlp_out_weight, h, f)));
  return b.graph();
}

}  // namespace

TEST_CASE("a made-up layer is lowered from its forward pass alone") {
  LayerSpec layer = layers_of_gpt_and_llama()[1];
  for (const StrategySpec& spec : kinds())
    for (const bool splits : {false, true}) {
      INFO(strategy_text(spec) << (splits ? ", split backward" : ""));
      for (const forward::Graph& graph : {square_relu_forward(layer), shared_gradient_forward(layer)}) {
        const LayerProgram made = program::lower(graph, spec, splits);
        CHECK(program::why_wrong(made) == "");
        CHECK(count(made, made.splits ? Phase::weights : Phase::backward, Code::weight_gradient) == 3);
      }
    }
}

namespace {

constexpr LayerSpec constant_block{.hidden = 8, .heads = 2, .kv_heads = 2, .head_dim = 4, .ffn = 16, .positions = 8};
constexpr LayerProgram constant_program =
    program::lower(forward_of(constant_block), {.tensor = 2, .sequence = SequenceKind::megatron});
static_assert(constant_program.steps(Phase::forward).size > 10, "programs are made at compile time");

}  // namespace
