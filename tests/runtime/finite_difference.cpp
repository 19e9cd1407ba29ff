// Values and gradients of the layers against a plain forward pass in double precision and its central differences.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/device/host/host.hpp>
#include <galvatron/model/build.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/spec.hpp>

#include "encoder_decoder_reference.hpp"
#include "layer_run.hpp"
#include "reference.hpp"
#include "reference_swin.hpp"

using namespace galvatron;
using galvatron::test::LayerInput;
using galvatron::test::LayerOutput;
using galvatron::test::Parameters;
using galvatron::test::Tensor;

namespace {

constexpr unsigned seed = 20261121;

LayerSpec gpt_layer(LayerKind kind) {
  LayerSpec layer = gpt("gpt", {.layers = 2, .hidden = 32, .heads = 4, .vocabulary = 83, .positions = 128}).blocks[0];
  layer.kind = kind;
  return layer;
}
constexpr LlamaShape llama_shape{
    .layers = 2, .hidden = 32, .heads = 8, .kv_heads = 2, .ffn = 48, .vocabulary = 97, .positions = 128, .head_dim = 8};
LayerSpec llama_layer(LayerKind kind) {
  LayerSpec layer = llama("llama", llama_shape).blocks[0];
  layer.kind = kind;
  return layer;
}
LayerSpec bert_layer(LayerKind kind) {
  const ModelSpec model =
      bert("bert", {.layers = 2, .hidden = 32, .heads = 4, .vocabulary = 83, .positions = 128, .norm_epsilon = 1e-5});
  return kind == LayerKind::embedding ? model.embedding : kind == LayerKind::head ? model.head : model.blocks[0];
}
LayerSpec vit_layer(LayerKind kind) {
  const ModelSpec model =
      vit("vit", {.layers = 2, .hidden = 32, .heads = 4, .image = 6, .patch = 2, .classes = 83, .norm_epsilon = 1e-5});
  return kind == LayerKind::embedding ? model.embedding : model.head;
}
// Blocks of one image of 6 x 6 tokens, whose windows are shifted or not, or which it fits.
LayerSpec swin_block(std::int64_t window, std::int64_t shift, bool merges) {
  LayerSpec layer =
      swin("swin",
           {.depths = {1, 0, 0, 0}, .hidden = 32, .heads = {4, 0, 0, 0}, .image = 12, .patch = 2, .window = window})
          .blocks[0];
  layer.shift = shift;
  layer.merges = merges;
  return layer;
}
LayerSpec swin_end(LayerKind kind) {
  const ModelSpec model = swin("swin", {.depths = {1, 0, 0, 0},
                                        .hidden = 32,
                                        .heads = {4, 0, 0, 0},
                                        .image = 12,
                                        .patch = 2,
                                        .window = 3,
                                        .classes = 83});
  return kind == LayerKind::embedding ? model.embedding : model.head;
}
// Two blocks a side: the second of them has a closing norm, the third begins the decoder.
ModelSpec t5_model(bool gated) {
  return t5("t5", {.encoder_layers = 2,
                   .decoder_layers = 2,
                   .hidden = 32,
                   .heads = 4,
                   .ffn = 48,
                   .vocabulary = 83,
                   .source = 128,
                   .target = 32,
                   .activation = gated ? ActivationKind::swiglu : ActivationKind::relu});
}
// A Llama block with experts; its tokens are few, so that no step moves one to another expert.
LayerSpec expert_block(std::int64_t experts, std::int64_t active, const RouterSpec& router) {
  LayerSpec layer = llama_layer(LayerKind::block);
  layer.experts = experts;
  layer.active_experts = active;
  layer.ffn = 24;
  layer.router = router;
  return layer;
}
// A Llama block whose queries and keys differ.
LayerSpec norms_block(QueryKeyNorm norms, bool bias = false) {
  LayerSpec layer = llama_layer(LayerKind::block);
  layer.query_key_norm = norms;
  layer.qkv_bias = bias;
  return layer;
}
LayerSpec latent_block(const LatentAttention& latent) {
  LayerSpec layer = llama_layer(LayerKind::block);
  layer.heads = layer.kv_heads = 6;
  layer.head_dim = 12;
  layer.latent = latent;
  return layer;
}
// Gemma 3's norms, activation, scores and window, and Gemma 2's soft caps.
LayerSpec gemma_layer(LayerKind kind) {
  GemmaShape shape{.decoder = llama_shape, .norms_around = true, .score_width = 20, .score_cap = 0.5, .logits_cap = 2};
  shape.decoder.query_key_norm = QueryKeyNorm::heads;
  shape.decoder.sliding_window = 7;
  const ModelSpec model = gemma("gemma", shape);
  return kind == LayerKind::embedding ? model.embedding : kind == LayerKind::head ? model.head : model.blocks[0];
}
LayerSpec phi_layer(LayerKind kind) {
  const ModelSpec model =
      phi("phi",
          {.layers = 2, .hidden = 32, .heads = 4, .kv_heads = 2, .vocabulary = 83, .positions = 128, .rotary_dim = 4});
  return kind == LayerKind::embedding ? model.embedding : kind == LayerKind::head ? model.head : model.blocks[0];
}
// Neither family: what the families never combine.
LayerSpec mixed_block() {
  LayerSpec layer = llama_layer(LayerKind::block);
  layer.norm = NormKind::layer_norm;
  layer.bias = true;
  layer.causal = false;
  return layer;
}

// Everything that T holds exactly, so that rounding the inputs is no difference.
template <class T>
double rounded(double x) {
  return static_cast<double>(static_cast<float>(T(static_cast<float>(x))));
}

template <class T>
Tensor random_tensor(std::mt19937& random, std::int64_t count, double mean, double deviation) {
  std::normal_distribution<double> normal(mean, deviation);
  Tensor out(test::reference::at(count));
  for (double& x : out) x = rounded<T>(normal(random));
  return out;
}

template <class T>
Parameters random_parameters(std::mt19937& random, const LayerSpec& layer) {
  Parameters out;
  for (const ParameterPart part : parameter_parts) {
    if (part == ParameterPart::table &&
        (layer.head == HeadKind::contrastive || layer.kind == LayerKind::block || layer.patch_width > 0))
      continue;
    for (const ParameterTensor& tensor : parameter_layout(layer, part, 1, 1)) {
      const std::int64_t count = tensor.name == ParameterName::table         ? layer.vocabulary * layer.hidden
                                 : tensor.name == ParameterName::logits_bias ? layer.vocabulary
                                                                             : tensor.count();
      const bool gamma = tensor.init == ParameterInit::one;
      const double deviation = tensor.columns > 1 ? 1.0 / std::sqrt(static_cast<double>(layer.hidden)) : 0.2;
      out[tensor.name] = random_tensor<T>(random, count, gamma ? 1.0 : 0.0, deviation);
    }
  }
  return out;
}

template <class T>
LayerInput random_input(std::mt19937& random, const LayerSpec& layer, test::Tokens shape) {
  LayerInput in;
  in.shape = shape;
  const std::int64_t rows = test::rows_of(layer, shape);
  in.x = random_tensor<T>(random, shape.samples * layer.input_elements(shape.sequence), 0.1, 1.0);
  in.dy = random_tensor<T>(random, rows * layer.hidden, 0.0, 1.0);
  if (layer.patch_width > 0)
    in.patches = random_tensor<T>(random, (shape.rows() - (layer.class_token ? shape.samples : 0)) * layer.patch_width,
                                  0.0, 1.0);
  const auto vocabulary = static_cast<std::int32_t>(std::max<std::int64_t>(layer.vocabulary, 1));  // images have none
  std::uniform_int_distribution<std::int32_t> token(0, vocabulary - 1);
  const bool classes = layer.kind == LayerKind::head && layer.head == HeadKind::classifier;
  in.tokens.resize(test::reference::at(classes ? shape.samples : layer.patch_width > 0 ? 0 : rows));
  for (std::int32_t& t : in.tokens) t = token(random);
  if (layer.kind == LayerKind::head && layer.head == HeadKind::masked_language)
    for (std::size_t i = 0; i < in.tokens.size(); i += 3) in.tokens[i] = -1;  // not to be found out
  if (layer.head == HeadKind::contrastive)                                    // numbers of samples
    for (std::size_t i = 0; i < in.tokens.size(); ++i)
      in.tokens[i] = static_cast<std::int32_t>(i % test::reference::at(shape.samples));
  in.token_weight = 1.0 / static_cast<double>(shape.rows());
  return in;
}

Tensor embedding(const LayerSpec& layer, const Parameters& p, const LayerInput& in) {
  if (layer.patch_width > 0 && !layer.class_token) return test::reference::patch_embedding(layer, p, in.patches);
  if (layer.patch_width > 0) return test::reference::image_embedding(layer, in.shape, p, in.patches);
  const test::Tokens all{test::rows_of(layer, in.shape) / in.shape.samples, in.shape.samples};
  return test::reference::embedding(layer, all, p, in.tokens);
}

Tensor block(const LayerSpec& layer, const Parameters& p, const LayerInput& in, double* router_losses,
             test::reference::RowBuckets* buckets = nullptr) {
  if (layer.window > 0) return test::reference::window_block(layer, in.shape, p, in.x);
  return layer.position == PositionKind::relative
             ? test::reference::encoder_decoder_block(layer, in.shape, p, in.x)
             : test::reference::block(layer, in.shape, p, in.x, router_losses, buckets);
}
double head(const LayerSpec& layer, const Parameters& p, const LayerInput& in) {
  if (layer.head == HeadKind::contrastive) return test::reference::contrast(layer, p, in.x);
  const bool pools = layer.head == HeadKind::classifier && !layer.class_token;
  return pools ? test::reference::mean_classifier(layer, p, in.x, in.tokens)
               : test::reference::head(layer, p, in.x, in.tokens);
}

// The scalar whose gradients the layer computes: y . dy of a block or an embedding, the weighted loss of a head.
double scalar(const LayerSpec& layer, const Parameters& p, const LayerInput& in,
              test::reference::RowBuckets* buckets = nullptr) {
  if (layer.kind == LayerKind::head) return in.token_weight * head(layer, p, in);
  double sum = 0;
  const Tensor y = layer.kind == LayerKind::block ? block(layer, p, in, &sum, buckets) : embedding(layer, p, in);
  sum *= in.token_weight;
  for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * in.dy[i];
  return sum;
}

// One question about a gradient and the right answer: the derivative along `direction`, which is 0 beyond the pairs.
struct Derivative {
  std::vector<std::pair<std::size_t, double>> direction;  // place and size
  double value = 0;
};

// Derivatives of f with respect to `at`, by central differences: along directions that touch every entry, and along
// single entries. The error of a step of 3e-5 is about its square, 1e-9, and rounding, 1e-10.
std::vector<Derivative> derivatives(std::mt19937& random, Tensor& at, const std::function<double()>& f, double step) {
  std::vector<Derivative> out;
  const auto add = [&](Derivative question) {
    const Tensor before = at;
    const auto move = [&](double distance) {
      for (const auto& [place, size] : question.direction) at[place] = before[place] + distance * size;
      return f();
    };
    question.value = (move(step) - move(-step)) / (2 * step);
    at = before;
    out.push_back(std::move(question));
  };
  for (int i = 0; i < 3; ++i) {
    Derivative all;
    for (std::size_t place = 0; place < at.size(); ++place)
      all.direction.emplace_back(place, random() % 2 == 0 ? 1.0 : -1.0);
    add(std::move(all));
  }
  for (int i = 0; i < 5; ++i) add({.direction = {{random() % at.size(), 1.0}}});
  return out;
}

// All that is asked of a layer's gradients, and its values.
struct Reference {
  Tensor y;
  double loss = 0;
  double router_losses = 0;
  std::vector<Derivative> input;
  std::map<ParameterName, std::vector<Derivative>> parameters;
};

Reference reference_of(std::mt19937& random, const LayerSpec& layer, Parameters p, LayerInput in,
                       test::reference::RowBuckets* buckets = nullptr) {
  Reference out;
  if (layer.kind == LayerKind::block) out.y = block(layer, p, in, &out.router_losses, buckets);
  if (layer.kind == LayerKind::embedding) out.y = embedding(layer, p, in);
  if (layer.kind == LayerKind::head) out.loss = head(layer, p, in);
  const auto f = [&] { return scalar(layer, p, in, buckets); };
  // No hidden unit may pass the kink of ReLU in a step.
  const double step = layer.activation == ActivationKind::relu ? 1e-7 : 3e-5;
  if (layer.kind != LayerKind::embedding) out.input = derivatives(random, in.x, f, step);
  for (auto& [name, values] : p)
    if (name != ParameterName::router_bias) out.parameters[name] = derivatives(random, values, f, step);
  return out;
}

// The greatest error of the answers, relative to what such a derivative is like: the norm for the directions, the
// greatest entry for single ones. What lies beyond the reference's tensor is the padding of a vocabulary: it has no
// gradient.
double error_of(const Tensor& gradient, const std::vector<Derivative>& derivatives) {
  double norm = 0;
  double greatest = 1e-30;
  for (const double g : gradient) {
    norm += g * g;
    greatest = std::max(greatest, std::abs(g));
  }
  double error = 0;
  for (const Derivative& wanted : derivatives) {
    double got = 0;
    for (const auto& [place, size] : wanted.direction) {
      if (place >= gradient.size()) return INFINITY;
      got += gradient[place] * size;
    }
    const double e = std::abs(got - wanted.value) / (wanted.direction.size() > 1 ? std::sqrt(norm) : greatest);
    if (std::isnan(e)) return INFINITY;
    error = std::max(error, e);
  }
  for (std::size_t i = derivatives.front().direction.size(); i < gradient.size(); ++i)
    if (gradient[i] != 0) return INFINITY;
  return error;
}

double error_of(const Tensor& got, const Tensor& wanted) {
  double error = got.size() == wanted.size() ? 0.0 : INFINITY;
  double greatest = 1e-30;
  for (std::size_t i = 0; i < got.size() && i < wanted.size(); ++i) {
    error = std::isnan(got[i]) ? INFINITY : std::max(error, std::abs(got[i] - wanted[i]));
    greatest = std::max(greatest, std::abs(wanted[i]));
  }
  return error / greatest;
}

// Several ranks have to agree with the reference just as one has.
const std::vector<StrategySpec>& compared_strategies() {
  static const std::vector<StrategySpec> all{
      {},
      {.recompute = RecomputeKind::full},
      {.recompute = RecomputeKind::none},
      {.tensor = 2, .recompute = RecomputeKind::full},
      {.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 1},
      {.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 3, .recompute = RecomputeKind::full},
      {.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 1, .recompute = RecomputeKind::selective},
      {.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 3, .recompute = RecomputeKind::none},
      {.sequence = SequenceKind::ulysses, .context = 2},
      {.sequence = SequenceKind::ulysses, .context = 4, .data = 2},
      {.tensor = 2, .sequence = SequenceKind::ulysses, .context = 2, .zero = 3, .recompute = RecomputeKind::selective},
      {.sequence = SequenceKind::ring, .context = 2},
      {.sequence = SequenceKind::ring, .context = 3},
      {.sequence = SequenceKind::ring, .context = 4, .data = 2},
      {.tensor = 2, .sequence = SequenceKind::ring, .context = 2, .zero = 3, .recompute = RecomputeKind::selective},
      {.tensor = 2, .sequence = SequenceKind::ring, .context = 2, .zero = 3, .recompute = RecomputeKind::full},
      {.tensor = 2,
       .sequence = SequenceKind::megatron,
       .context = 2,
       .data = 2,
       .zero = 3,
       .recompute = RecomputeKind::none},
      {.tensor = 3, .sequence = SequenceKind::megatron, .context = 2, .zero = 3, .recompute = RecomputeKind::full},
      {.tensor = 2, .sequence = SequenceKind::megatron_ulysses, .context = 2, .data = 2, .zero = 3},
      {.tensor = 2,
       .sequence = SequenceKind::megatron_ulysses,
       .context = 4,
       .zero = 1,
       .recompute = RecomputeKind::selective},
      {.tensor = 2, .sequence = SequenceKind::megatron_ulysses, .context = 2, .recompute = RecomputeKind::full},
      {.tensor = 2,
       .sequence = SequenceKind::megatron_ulysses,
       .context = 2,
       .zero = 2,
       .recompute = RecomputeKind::none},
      {.tensor = 2, .sequence = SequenceKind::megatron, .context = 3, .zero = 1, .recompute = RecomputeKind::selective},
  };
  return all;
}

// Tokens go to other ranks, with every way in which ranks may share tokens, experts and parts of experts.
const std::vector<StrategySpec>& exchanging_strategies() {
  static const std::vector<StrategySpec> all = [] {
    std::vector<StrategySpec> out;
    const std::vector<StrategySpec> attention{
        {.data = 4},
        {.tensor = 2, .data = 2},
        {.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 3},
        {.tensor = 4, .sequence = SequenceKind::megatron},
        {.tensor = 4, .recompute = RecomputeKind::full},
        {.sequence = SequenceKind::ulysses, .context = 2, .data = 2, .zero = 1, .recompute = RecomputeKind::none},
        {.tensor = 2, .sequence = SequenceKind::ring, .context = 2, .zero = 2, .recompute = RecomputeKind::full},
        {.tensor = 2,
         .sequence = SequenceKind::megatron,
         .context = 2,
         .data = 2,
         .recompute = RecomputeKind::selective},
        {.tensor = 2, .sequence = SequenceKind::megatron_ulysses, .context = 2}};
    for (StrategySpec spec : attention)
      for (spec.expert = 1; spec.expert <= 4; spec.expert *= 2)
        for (spec.expert_tensor = 1; spec.expert_tensor <= 4; spec.expert_tensor *= 2)
          for (spec.expert_nodes = 1; spec.expert_nodes <= 4; spec.expert_nodes *= 2)
            if (spec.exchanges_tokens() && is_legal(spec)) out.push_back(spec);
    return out;
  }();
  return all;
}

// What the layer gives under a strategy, and its gradients.
template <class T>
void compare_one(const LayerSpec& layer, const StrategySpec& spec, const Parameters& parameters, const LayerInput& in,
                 const Reference& wanted, double tolerance, const test::LayerRunOptions& options) {
  const LayerOutput got = test::run_layer(layer, spec, parameters, in, options);
  CHECK(error_of(got.y, wanted.y) < tolerance);
  CHECK(std::abs(got.loss - wanted.loss) <= tolerance * wanted.loss);
  if (layer.kind != LayerKind::embedding) CHECK(error_of(got.dx, wanted.input) < tolerance);
  CHECK(std::abs(got.router_losses - in.token_weight * wanted.router_losses) <=
        tolerance * in.token_weight * wanted.router_losses);
  if (const auto loads = got.gradients.find(ParameterName::router_bias); loads != got.gradients.end()) {
    double sum = 0;  // a choice of each token and place
    for (const double load : loads->second) sum += load;
    CHECK(sum == static_cast<double>(in.shape.rows() * layer.active_experts));
  }
  CHECK(got.gradients.size() == wanted.parameters.size() + got.gradients.count(ParameterName::router_bias));
  for (const auto& [name, derivatives] : wanted.parameters) {
    INFO("parameter ", static_cast<int>(name));
    CHECK(error_of(got.gradients.at(name), derivatives) < tolerance);
  }
}

// `least`: strategies that the layer has at least.
template <class T>
void compare(const LayerSpec& layer, test::Tokens shape, double tolerance, int least = 6,
             const std::vector<StrategySpec>& strategies = compared_strategies(),
             double expert_imbalance = program::default_expert_imbalance, const LshOptions& lsh = {}) {
  if (!device::Host::supports(precision_of<T>)) {
    MESSAGE("this processor has no bfloat16 arithmetic: nothing compared");
    return;
  }
  INFO("seed ", seed);
  std::mt19937 random(seed);
  const Parameters parameters = random_parameters<T>(random, layer);
  const LayerInput in = random_input<T>(random, layer, shape);
  const Reference wanted = reference_of(random, layer, parameters, in);
  int compared = 0;
  for (const StrategySpec& spec : strategies) {
    if (!is_fit(layer, spec, shape.samples, shape.sequence)) continue;
    ++compared;
    for (const bool split : {false, true}) {
      if (split && !splits_backward(layer, spec)) continue;
      INFO("strategy ", strategy_text(spec), split ? ", backward in two parts" : "");
      compare_one<T>(
          layer, spec, parameters, in, wanted, tolerance,
          {.precision = precision_of<T>, .splits_backward = split, .expert_imbalance = expert_imbalance, .lsh = lsh});
    }
  }
  CHECK(compared >= least);
}

constexpr double fp32 = 1e-5;
constexpr double bf16 = 4e-2;

std::vector<StrategySpec> compressing_strategies() {
  std::vector<StrategySpec> out = exchanging_strategies();
  std::erase_if(out, &StrategySpec::relays_tokens);
  for (StrategySpec& spec : out) spec.dispatch = DispatchKind::lsh;
  return out;
}

// With compressed dispatch, in the buckets of the ranks of each strategy.
void compare_compressed(const LayerSpec& layer, test::Tokens shape, const LshOptions& lsh, double expert_imbalance) {
  INFO("seed ", seed);
  std::mt19937 random(seed);
  const Parameters parameters = random_parameters<float>(random, layer);
  const LayerInput in = random_input<float>(random, layer, shape);
  int compared = 0;
  for (const StrategySpec& spec : compressing_strategies()) {
    if (!is_fit(layer, spec, shape.samples, shape.sequence)) continue;
    INFO("strategy ", strategy_text(spec));
    test::reference::RowBuckets buckets{.options = lsh, .layer = 1, .source = test::sources_of_rows(spec, shape)};
    const Reference wanted = reference_of(random, layer, parameters, in, &buckets);
    // Some have several rows.
    CHECK(static_cast<double>(buckets.found.size()) < 0.9 * static_cast<double>(shape.rows() * layer.active_experts));
    compare_one<float>(layer, spec, parameters, in, wanted, fp32, {.expert_imbalance = expert_imbalance, .lsh = lsh});
    ++compared;
  }
  CHECK(compared >= 20);
}

}  // namespace

TEST_CASE("A GPT-2 block agrees with finite differences in double precision") {
  compare<float>(gpt_layer(LayerKind::block), {.sequence = 72, .samples = 2}, fp32);
  compare<bfloat16>(gpt_layer(LayerKind::block), {.sequence = 12, .samples = 2}, bf16);
}

TEST_CASE("Blocks with CLIP's activations and with squared ReLU agree with finite differences in double precision") {
  for (const ActivationKind kind :
       {ActivationKind::quick_gelu, ActivationKind::exact_gelu, ActivationKind::squared_relu}) {
    LayerSpec layer = gpt_layer(LayerKind::block);
    layer.activation = kind;
    compare<float>(layer, {.sequence = 24, .samples = 2}, fp32);
    compare<bfloat16>(layer, {.sequence = 12, .samples = 2}, bf16);
  }
}

TEST_CASE("A Llama block with an MLP of squared ReLU, as Nemotron's, agrees with finite differences") {
  LayerSpec layer = llama_layer(LayerKind::block);
  layer.activation = ActivationKind::squared_relu;
  compare<float>(layer, {.sequence = 72, .samples = 2}, fp32);
  compare<bfloat16>(layer, {.sequence = 12, .samples = 2}, bf16);
}

TEST_CASE("A Llama block with grouped queries agrees with finite differences in double precision") {
  compare<float>(llama_layer(LayerKind::block), {.sequence = 72, .samples = 2}, fp32);
  compare<bfloat16>(llama_layer(LayerKind::block), {.sequence = 12, .samples = 2}, bf16);
}

TEST_CASE("A block with experts agrees with finite differences in double precision, whatever its router") {
  const RouterSpec plain{.balance_loss = 0.2, .z_loss = 0.05};
  compare<float>(expert_block(4, 2, plain), {.sequence = 24, .samples = 4}, fp32);
  compare<float>(expert_block(8, 3, {.renormalise = false, .scale = 2.5, .groups = 4, .top_groups = 2}),
                 {.sequence = 24, .samples = 4}, fp32);
  RouterSpec micro_batch = plain;
  micro_batch.balance_scope = BalanceScope::data_ranks;
  micro_batch.renormalise = false;
  compare<float>(expert_block(6, 1, micro_batch), {.sequence = 24, .samples = 4}, fp32);
  LayerSpec shared =
      expert_block(8, 2, {.kind = RouterKind::sigmoid, .scale = 2, .groups = 2, .top_groups = 1, .balance_loss = 0.3});
  shared.shared_ffn = 36;
  compare<float>(shared, {.sequence = 24, .samples = 4}, fp32);
  shared.router.renormalise = false;
  shared.shared_gate = true;
  compare<float>(shared, {.sequence = 12, .samples = 4}, fp32);
  // Where all experts are chosen, rounding moves no token to another one.
  compare<bfloat16>(expert_block(3, 3, plain), {.sequence = 12, .samples = 2}, bf16);
  LayerSpec all = expert_block(2, 2, {.kind = RouterKind::sigmoid, .balance_loss = 0.1, .z_loss = 0.1});
  all.shared_ffn = 24;
  all.shared_gate = true;
  compare<bfloat16>(all, {.sequence = 12, .samples = 2}, bf16);
}

TEST_CASE("Experts whose tokens are exchanged agree with finite differences, whatever ranks share them") {
  compare<float>(expert_block(8, 3, {.renormalise = false, .scale = 2.5, .groups = 4, .top_groups = 2, .z_loss = 0.05}),
                 {.sequence = 24, .samples = 4}, fp32, 20, exchanging_strategies());
  LayerSpec shared =
      expert_block(8, 2, {.kind = RouterKind::sigmoid, .groups = 2, .top_groups = 1, .balance_loss = 0.3});
  shared.shared_ffn = 24;
  // Relays have room for all.
  compare<float>(shared, {.sequence = 24, .samples = 4}, fp32, 20, exchanging_strategies(), 8);
  compare<bfloat16>(expert_block(4, 4, {.balance_loss = 0.2}), {.sequence = 24, .samples = 4}, bf16, 20,
                    exchanging_strategies());
}

TEST_CASE("A token with all its experts in one node crosses to it once") {
  INFO("seed ", seed);
  std::mt19937 random(seed);
  constexpr std::int64_t k = 3;
  for (const int nodes : {2, 4})
    for (StrategySpec spec : {StrategySpec{.data = 4, .expert = 4}, StrategySpec{.data = 8, .expert = 8},
                              StrategySpec{.data = 8, .expert = 4, .expert_tensor = 2}}) {
      // A group of experts is that of a node.
      const LayerSpec layer = expert_block(16, k, {.groups = nodes, .top_groups = 1});
      const Parameters parameters = random_parameters<float>(random, layer);
      const LayerInput in = random_input<float>(random, layer, {.sequence = 24, .samples = 8});
      const auto node_of = [&](int rank) { return rank * nodes / spec.ranks(); };
      const auto run = [&] { return test::run_layer(layer, spec, parameters, in, {.expert_imbalance = 16}); };
      // Bytes between nodes, and within them between ranks.
      const auto bytes = [&](const LayerOutput& out) {
        std::pair<std::int64_t, std::int64_t> sums;
        for (int from = 0; from < spec.ranks(); ++from)
          for (int to = 0; to < spec.ranks(); ++to)
            if (from != to)
              (node_of(from) == node_of(to) ? sums.second : sums.first) +=
                  out.posted[test::reference::at(from)][test::reference::at(to)];
        return sums;
      };
      const LayerOutput direct = run();
      spec.expert_nodes = nodes;
      const LayerOutput by_nodes = run();
      const std::int64_t row = layer.hidden * 4;
      const std::int64_t parts = spec.etp();
      // Rows of k experts, to all their parts and back, in both passes; in backward with weights and their gradients.
      const std::int64_t crossing = bytes(direct).first / (k * parts * (4 * row + 2 * 4));
      CHECK(crossing > 0);
      CHECK(bytes(direct).first == crossing * k * parts * (4 * row + 2 * 4));
      // A row of each, with numbers and weights of its choices, and in backward gradients of weights.
      CHECK(bytes(by_nodes).first == crossing * (4 * row + (2 + 2 + 1) * k * 4));
      CHECK((bytes(by_nodes).second > bytes(direct).second) == (spec.ranks() > nodes));
      CHECK(error_of(by_nodes.y, direct.y) < fp32);
      CHECK(error_of(by_nodes.dx, direct.dx) < fp32);
      for (const auto& [name, gradient] : direct.gradients)
        CHECK(error_of(by_nodes.gradients.at(name), gradient) < fp32);
    }
}

TEST_CASE("By nodes, experts drop the choices that they drop without") {
  INFO("seed ", seed);
  std::mt19937 random(seed);
  for (const DropOrder drops : {DropOrder::position, DropOrder::weight}) {
    const LayerSpec layer = expert_block(8, 3, {.capacity = 1, .drops = drops});
    const Parameters parameters = random_parameters<float>(random, layer);
    const LayerInput in = random_input<float>(random, layer, {.sequence = 24, .samples = 4});
    const auto run = [&](int nodes) {
      return test::run_layer(layer, {.data = 4, .expert = 4, .expert_nodes = nodes}, parameters, in,
                             {.expert_imbalance = 8});
    };
    const LayerOutput direct = run(1);
    for (const int nodes : {2, 4}) {
      const LayerOutput by_nodes = run(nodes);
      CHECK(error_of(by_nodes.y, direct.y) < fp32);
      CHECK(error_of(by_nodes.dx, direct.dx) < fp32);
      for (const auto& [name, gradient] : direct.gradients)
        CHECK(error_of(by_nodes.gradients.at(name), gradient) < fp32);
    }
  }
}

TEST_CASE(
    "Noise in what experts get is the same on all ranks and in all passes, and its gradient is that of a product") {
  LayerSpec layer = expert_block(8, 3, {.renormalise = false, .balance_loss = 0.2, .z_loss = 0.05, .jitter = 0.3});
  compare<float>(layer, {.sequence = 24, .samples = 4}, fp32);
  compare<float>(layer, {.sequence = 24, .samples = 4}, fp32, 20, exchanging_strategies());
  compare_compressed(layer, {.sequence = 24, .samples = 4}, {.hashes = 1, .width = 2}, 1.5);
  layer.shared_ffn = 36;
  layer.shared_gate = true;
  compare<float>(layer, {.sequence = 12, .samples = 4}, fp32);
  compare<bfloat16>(expert_block(3, 3, {.balance_loss = 0.2, .jitter = 0.3}), {.sequence = 12, .samples = 2}, bf16);
}

TEST_CASE("Rows of experts beyond their memory come in more rounds, with the same values and gradients") {
  LayerSpec layer = expert_block(8, 2, {.balance_loss = 0.2});
  for (const double imbalance : {1.0, 0.4, 0.05})
    compare<float>(layer, {.sequence = 24, .samples = 4}, fp32, 20, exchanging_strategies(), imbalance);
}

TEST_CASE("Experts that get means of tokens agree with finite differences, whatever ranks share them") {
  LayerSpec layer = expert_block(8, 3, {.renormalise = false, .scale = 2.5, .z_loss = 0.05});
  compare_compressed(layer, {.sequence = 24, .samples = 4}, {.hashes = 1, .width = 2}, 1.5);
  compare_compressed(layer, {.sequence = 24, .samples = 4}, {.hashes = 2, .width = 1, .residual = ResidualKind::off},
                     0.2);
  layer.shared_ffn = 24;
  compare_compressed(layer, {.sequence = 24, .samples = 4}, {.hashes = 1, .width = 1}, 0.05);
  layer.router.residual_gain = true;
  compare_compressed(layer, {.sequence = 24, .samples = 4}, {.hashes = 1, .width = 2, .residual = ResidualKind::scaled},
                     1.5);
}

TEST_CASE("Compressed dispatch with a bucket for each choice is plain dispatch, whatever ranks share the experts") {
  const LshOptions falls_back{.hashes = 1, .width = 1, .most_rate = 0};
  const LshOptions wide{.hashes = 24, .width = 64};
  LayerSpec layer =
      expert_block(8, 2, {.kind = RouterKind::sigmoid, .groups = 2, .top_groups = 1, .balance_loss = 0.3});
  layer.shared_ffn = 24;
  for (const LshOptions& lsh : {falls_back, wide})
    for (const double imbalance : {1.5, 0.2}) {
      compare<float>(layer, {.sequence = 24, .samples = 4}, fp32, 20, compressing_strategies(), imbalance, lsh);
      compare<bfloat16>(expert_block(4, 4, {.balance_loss = 0.2}), {.sequence = 24, .samples = 4}, bf16, 20,
                        compressing_strategies(), imbalance, lsh);
    }
  std::mt19937 random(seed);
  const Parameters parameters = random_parameters<float>(random, layer);
  const LayerInput in = random_input<float>(random, layer, {.sequence = 24, .samples = 4});
  for (StrategySpec spec : compressing_strategies()) {
    if (!is_fit(layer, spec, 4, 24)) continue;
    INFO("seed ", seed, ", strategy ", strategy_text(spec));
    const LayerOutput compressed = test::run_layer(layer, spec, parameters, in, {.lsh = falls_back});
    spec.dispatch = DispatchKind::plain;
    const LayerOutput plain = test::run_layer(layer, spec, parameters, in);
    CHECK(error_of(compressed.y, plain.y) < 1e-6);
    CHECK(error_of(compressed.dx, plain.dx) < 1e-6);
    for (const auto& [name, gradient] : plain.gradients) {
      INFO("parameter ", static_cast<int>(name));
      CHECK(error_of(compressed.gradients.at(name), gradient) < 1e-6);
    }
  }
}

TEST_CASE("Blocks of other families with experts agree with finite differences in double precision") {
  const auto with_experts = [](LayerSpec layer, std::int64_t experts, std::int64_t active) {
    layer.experts = experts;
    layer.active_experts = active;
    layer.ffn = 24;
    layer.router = {.renormalise = false, .scale = 1.5};
    return layer;
  };
  compare<float>(with_experts(gpt_layer(LayerKind::block), 4, 2), {.sequence = 24, .samples = 4}, fp32);
  compare<float>(with_experts(bert_layer(LayerKind::block), 4, 2), {.sequence = 24, .samples = 4}, fp32);
  compare<float>(with_experts(swin_block(3, 1, false), 4, 2), {.sequence = 36, .samples = 2}, fp32);
  for (const LayerSpec& layer : t5_model(true).blocks)
    compare<float>(with_experts(layer, 4, 2), {.sequence = 16, .samples = 2}, fp32, 5);
  compare<float>(with_experts(t5_model(false).blocks[3], 3, 3), {.sequence = 16, .samples = 2}, fp32, 5);
  compare<bfloat16>(with_experts(bert_layer(LayerKind::block), 3, 3), {.sequence = 12, .samples = 2}, bf16);
}

TEST_CASE("A block with biases of queries, keys and values, and one with norms of queries and keys, agree too") {
  compare<float>(norms_block(QueryKeyNorm::none, true), {.sequence = 24, .samples = 4}, fp32);
  compare<float>(norms_block(QueryKeyNorm::heads), {.sequence = 24, .samples = 4}, fp32);
  compare<float>(norms_block(QueryKeyNorm::all, true), {.sequence = 24, .samples = 4}, fp32);
  compare<bfloat16>(norms_block(QueryKeyNorm::none, true), {.sequence = 12, .samples = 2}, bf16);
  compare<bfloat16>(norms_block(QueryKeyNorm::heads, true), {.sequence = 12, .samples = 2}, bf16);
  compare<bfloat16>(norms_block(QueryKeyNorm::all), {.sequence = 12, .samples = 2}, bf16);
}

TEST_CASE("Blocks of Gemma and Phi agree with finite differences in double precision") {
  compare<float>(gemma_layer(LayerKind::block), {.sequence = 24, .samples = 4}, fp32);
  compare<bfloat16>(gemma_layer(LayerKind::block), {.sequence = 12, .samples = 2}, bf16);
  LayerSpec first = gemma_layer(LayerKind::block);
  first.norm_order = NormOrder::before;
  first.query_key_norm = QueryKeyNorm::none;
  first.score_width = 0;
  compare<float>(first, {.sequence = 24, .samples = 4}, fp32);
  compare<float>(phi_layer(LayerKind::block), {.sequence = 24, .samples = 4}, fp32);
  compare<bfloat16>(phi_layer(LayerKind::block), {.sequence = 12, .samples = 2}, bf16);
}

TEST_CASE("A block with latent attention agrees with finite differences in double precision") {
  const LatentAttention full{.rank = 20, .query_rank = 28, .rotary_dim = 4, .value_dim = 8, .norm_epsilon = 1e-2};
  compare<float>(latent_block(full), {.sequence = 24, .samples = 4}, fp32);
  compare<float>(latent_block({.rank = 16, .query_rank = 0, .rotary_dim = 6, .value_dim = 12}),
                 {.sequence = 24, .samples = 4}, fp32);
  compare<bfloat16>(latent_block(full), {.sequence = 12, .samples = 2}, bf16);
}

TEST_CASE("Blocks with scaled rotary positions agree with finite differences in double precision") {
  LayerSpec llama = llama_layer(LayerKind::block);
  llama.rope_theta = 100;
  llama.rotary_scaling = {.factor = 4, .positions = 64, .fast = 4, .slow = 0.5, .amplitude = 1.2};
  compare<float>(llama, {.sequence = 24, .samples = 4}, fp32);
  llama.rotary_scaling = {.ramp = RotaryRamp::turns, .factor = 4, .positions = 64, .fast = 4, .slow = 0.5};
  compare<float>(llama, {.sequence = 24, .samples = 4}, fp32);
  llama.rotary_scaling = {.ramp = RotaryRamp::none, .factor = 4};
  compare<float>(llama, {.sequence = 24, .samples = 4}, fp32);
  LayerSpec latent = latent_block({.rank = 20, .query_rank = 28, .rotary_dim = 8, .value_dim = 8});
  latent.rope_theta = 100;
  latent.rotary_scaling = {.factor = 8, .positions = 40, .fast = 4, .slow = 0.2, .amplitude = 0.9, .score_rate = 0.8};
  compare<float>(latent, {.sequence = 24, .samples = 4}, fp32);
  compare<bfloat16>(latent, {.sequence = 12, .samples = 2}, bf16);
}

TEST_CASE("A BERT block agrees with finite differences in double precision") {
  compare<float>(bert_layer(LayerKind::block), {.sequence = 72, .samples = 2}, fp32);
  compare<bfloat16>(bert_layer(LayerKind::block), {.sequence = 12, .samples = 2}, bf16);
}

TEST_CASE("A block of LayerNorm, rotary positions, SwiGLU with biases and two-way attention agrees too") {
  compare<float>(mixed_block(), {.sequence = 24, .samples = 4}, fp32);
  compare<bfloat16>(mixed_block(), {.sequence = 12, .samples = 2}, bf16);
}

TEST_CASE("The blocks of a T5 encoder and decoder agree with finite differences in double precision") {
  for (const bool gated : {false, true})
    for (const LayerSpec& layer : t5_model(gated).blocks) {
      INFO("gated ", gated, ", cross attention ", layer.memory.any(), ", closing norm ", layer.closing_norm);
      compare<float>(layer, {.sequence = gated ? 48 : 16, .samples = 2}, fp32, 5);
      // bf16 rounds to 1/256. Of hidden units that are about that near to ReLU's kink, one or two in a hundred,
      // rounding takes some to the other side, where all of their gradient is wrong: sqrt(0.02) = 0.14 of its norm.
      compare<bfloat16>(layer, {.sequence = 24, .samples = 2}, gated ? bf16 : 5 * bf16, 5);
    }
}

TEST_CASE("The embeddings agree with finite differences in double precision") {
  for (const LayerSpec& layer : {gpt_layer(LayerKind::embedding), llama_layer(LayerKind::embedding),
                                 bert_layer(LayerKind::embedding), gemma_layer(LayerKind::embedding)}) {
    compare<float>(layer, {.sequence = 72, .samples = 6}, fp32);
    compare<bfloat16>(layer, {.sequence = 72, .samples = 6}, bf16);
  }
  compare<float>(t5_model(false).embedding, {.sequence = 72, .samples = 6}, fp32, 5);
  compare<bfloat16>(t5_model(false).embedding, {.sequence = 72, .samples = 6}, bf16, 5);
}

TEST_CASE("The heads agree with finite differences in double precision, also beyond one chunk of tokens") {
  for (const LayerSpec& layer : {gpt_layer(LayerKind::head), llama_layer(LayerKind::head), bert_layer(LayerKind::head),
                                 gemma_layer(LayerKind::head), phi_layer(LayerKind::head)}) {
    compare<float>(layer, {.sequence = 12, .samples = 2}, fp32);
    compare<float>(layer, {.sequence = 120, .samples = 6}, fp32);
    compare<bfloat16>(layer, {.sequence = 12, .samples = 2}, bf16);
  }
}

TEST_CASE("A contrastive loss agrees with finite differences in double precision, over all data ranks") {
  const LayerSpec layer{
      .kind = LayerKind::head, .hidden = 24, .vocabulary = 1, .positions = 2, .head = HeadKind::contrastive};
  const std::vector<StrategySpec> strategies{{},
                                             {.data = 2},
                                             {.data = 3, .zero = 1},
                                             {.data = 6, .zero = 2},
                                             {.tensor = 2, .data = 2, .zero = 3},
                                             {.tensor = 2, .recompute = RecomputeKind::full}};
  compare<float>(layer, {.sequence = 2, .samples = 6}, fp32, 6, strategies);
  compare<float>(layer, {.sequence = 2, .samples = 1104}, fp32, 6, strategies);  // several chunks
  compare<bfloat16>(layer, {.sequence = 2, .samples = 6}, bf16, 6, strategies);
}

TEST_CASE("The ends of a model of images agree with finite differences in double precision") {
  LayerSpec clip = vit_layer(LayerKind::embedding);  // a norm behind it, and no bias
  clip.bias = false;
  clip.closing_norm = true;
  for (const LayerSpec& layer : {vit_layer(LayerKind::embedding), clip, vit_layer(LayerKind::head)}) {
    compare<float>(layer, {.sequence = 10, .samples = 6}, fp32);
    compare<bfloat16>(layer, {.sequence = 10, .samples = 6}, bf16);
  }
}

TEST_CASE("A Swin block agrees with finite differences: windows, shifted ones, one window, merged tokens") {
  for (const auto& [window, shift, merges] : {std::tuple{3, 0, false}, {3, 1, false}, {2, 1, true}, {6, 0, true}}) {
    INFO("window ", window, ", shift ", shift, ", merges ", merges);
    compare<float>(swin_block(window, shift, merges), {.sequence = 36, .samples = 2}, fp32);
    compare<bfloat16>(swin_block(window, shift, merges), {.sequence = 36, .samples = 2}, bf16);
  }
}

TEST_CASE("The ends of a Swin agree with finite differences in double precision") {
  for (const LayerSpec& layer : {swin_end(LayerKind::embedding), swin_end(LayerKind::head)}) {
    compare<float>(layer, {.sequence = 36, .samples = 6}, fp32);
    compare<bfloat16>(layer, {.sequence = 36, .samples = 6}, bf16);
  }
}
