// The closed formulas of cost/layer.hpp against the layers themselves on the counting device: work, states, stash,
// workspace.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/cost/layer.hpp>
#include <galvatron/model/adapters.hpp>
#include <galvatron/model/build.hpp>
#include <galvatron/model/components.hpp>
#include <galvatron/runtime/make_layer.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/spec.hpp>
#include "../counting_device.hpp"
#include "../counting_world.hpp"

using namespace galvatron;
using op::Work;

namespace {

using DryContext = runtime::Context<device::Counting>;

constexpr std::int64_t endless = std::numeric_limits<std::int64_t>::max() / 4;

ModelSpec small_gpt() {
  return gpt("gpt", {.layers = 3, .hidden = 96, .heads = 24, .vocabulary = 1000, .positions = 512});
}
ModelSpec small_llama() {
  return llama("llama", {.layers = 3,
                         .hidden = 96,
                         .heads = 24,
                         .kv_heads = 8,
                         .ffn = 240,
                         .vocabulary = 777,
                         .positions = 512,
                         .head_dim = 8});
}

ModelSpec small_bert() {
  return bert("bert", {.layers = 3, .hidden = 96, .heads = 24, .vocabulary = 777, .positions = 512});
}

// 3 x 3 or 7 x 7 patches and a class token.
ModelSpec small_vit(int across) {
  return vit("vit", {.layers = 3, .hidden = 96, .heads = 24, .image = 4 * across, .patch = 4, .classes = 70});
}

// Two stages of the model: images of 12 x 12 and 6 x 6 tokens in windows of 3 x 3, or of 8 x 8 and 4 x 4 in windows of
// 4 x 4.
ModelSpec small_swin(int image, int window) {
  return swin("swin", {.depths = {2, 2, 0, 0},
                       .hidden = 96,
                       .heads = {24, 24, 0, 0},
                       .image = image,
                       .patch = 2,
                       .window = window,
                       .classes = 70});
}

// A dense block, and two with experts: with losses of their router, and with a shared expert beside them.
ModelSpec small_experts() {
  ModelSpec model = small_llama();
  for (std::size_t i = 1; i < model.blocks.size(); ++i) {
    LayerSpec& block = model.blocks[i];
    block.experts = 6;
    block.active_experts = 2;
    block.router = {.balance_loss = 0.01, .z_loss = 1e-3, .jitter = 0.1};
  }
  LayerSpec& last = model.blocks.back();
  last.router = {.kind = RouterKind::sigmoid,
                 .groups = 2,
                 .balance_loss = 1e-4,
                 .balance_scope = BalanceScope::data_ranks,
                 .bias_rate = 1e-3};
  last.shared_ffn = 48;
  last.shared_gate = true;
  return model;
}

LlamaShape small_normed(int layers, bool qkv_bias) {
  return {.layers = layers,
          .hidden = 96,
          .heads = 24,
          .kv_heads = 8,
          .ffn = 240,
          .vocabulary = 777,
          .positions = 512,
          .head_dim = 8,
          .qkv_bias = qkv_bias,
          .query_key_norm = QueryKeyNorm::heads};
}

// A block with norms of heads and biases, one with norms of all queries and keys, two with latent attention.
ModelSpec small_attention_kinds() {
  ModelSpec model = llama("llama", small_normed(4, true));
  model.blocks[1].query_key_norm = QueryKeyNorm::all;
  for (std::size_t i = 2; i < 4; ++i) {
    LayerSpec& block = model.blocks[i];
    block.qkv_bias = false;
    block.query_key_norm = QueryKeyNorm::none;
    block.kv_heads = 24;
    block.latent = {.rank = 40, .query_rank = 0, .rotary_dim = 4, .value_dim = 8};
  }
  model.blocks[3].latent = {.rank = 32, .query_rank = 64, .rotary_dim = 2, .value_dim = 6};
  return model;
}

// Blocks of Gemma 3's and of Phi's kind, and ends of both.
ModelSpec small_decoder_kinds() {
  ModelSpec model = llama("llama", small_normed(2, false));
  LayerSpec& gemma = model.blocks[0];
  gemma.norm = NormKind::rms_norm_from_one;
  gemma.activation = ActivationKind::geglu;
  gemma.sliding_window = 50;
  gemma.score_cap = 5;
  gemma.norm_order = NormOrder::around;
  LayerSpec& phi = model.blocks[1];
  phi.norm = NormKind::layer_norm;
  phi.activation = ActivationKind::gelu;
  phi.query_key_norm = QueryKeyNorm::none;
  phi.bias = phi.parallel = true;
  phi.rotary_dim = 4;
  model.embedding.embedding_scale = 2;
  model.head.logits_bias = true;
  model.head.logits_cap = 3;
  return model;
}

// An encoder and a decoder of three blocks each, whose target is a quarter of the source.
ModelSpec small_t5(bool gated) {
  return t5("t5", {.encoder_layers = 3,
                   .decoder_layers = 3,
                   .hidden = 96,
                   .heads = 24,
                   .ffn = 240,
                   .vocabulary = 777,
                   .source = 512,
                   .target = 128,
                   .tied = !gated,
                   .activation = gated ? ActivationKind::swiglu : ActivationKind::relu});
}

// Layers of components, with samples of two tokens: adaptor, projections and a contrastive loss.
ModelSpec small_towers() {
  ModelSpec model = small_gpt();
  model.embedding.tied = false;
  model.blocks.clear();
  for (const bool class_token : {false, true})
    for (const bool pools : {false, true})
      model.blocks.push_back(component_layers({.kind = ComponentKind::patches,
                                               .hidden = 48,
                                               .tokens = 2,
                                               .patch = 8,
                                               .class_token = class_token,
                                               .output = 40,
                                               .pools = pools})
                                 .back());
  model.blocks.push_back(
      component_layers(
          {.kind = ComponentKind::text, .hidden = 48, .vocabulary = 9, .tokens = 2, .output = 40, .end_token = 3})
          .back());
  model.head = component_layers({.kind = ComponentKind::contrastive, .hidden = 40}).front();
  return model;
}

// The layers of a model that differ.
std::vector<LayerSpec> kinds_of_layers(const ModelSpec& model) {
  std::vector<LayerSpec> out{model.embedding, model.head};
  for (const LayerSpec& block : model.blocks)
    if (std::find(out.begin(), out.end(), block) == out.end()) out.push_back(block);
  return out;
}

// The micro-batch of an iteration that a pass is for.
enum class Turn { first, later };

// How often each operation happens; those of adamw and norm_squared are elements, since a shard may be stepped or
// squared in two calls, which is the same work.
auto tally(auto begin, auto end, Turn turn) {
  using Key = std::tuple<op::Kind, std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool, int, bool, bool>;
  std::map<Key, std::int64_t> out;
  for (; begin != end; ++begin) {
    const Work& w = *begin;
    const bool writes = turn == Turn::first ? w.writes_one_in != 0 : w.always_writes();
    if (w.kind == op::Kind::adamw || w.kind == op::Kind::adamw_bf16 || w.kind == op::Kind::norm_squared)
      out[Key{w.kind, 0, 0, 0, 0, false, 1, false, false}] += w.m * w.times;
    else
      out[Key{w.kind, w.m, w.n, w.k, w.l, w.causal, w.stride, w.eight_bit, writes}] += w.times;
  }
  return out;
}

// One phrase for each operation that the two do not do equally often.
std::string difference(const std::vector<Work>& done, const op::WorkList& formula, Turn turn) {
  const auto left = tally(done.begin(), done.end(), turn);
  const auto right = tally(formula.begin(), formula.end(), turn);
  if (left == right) return {};
  std::string out;
  const auto tell = [&out](const auto& key, std::int64_t layer, std::int64_t expected) {
    const auto& [kind, m, n, k, l, causal, stride, eight_bit, writes] = key;
    out += "work kind " + std::to_string(static_cast<int>(kind)) + " (" + std::to_string(m) + ", " + std::to_string(n) +
           ", " + std::to_string(k) + ", " + std::to_string(l) + ")" + (causal ? " causal" : "") +
           (eight_bit ? " of 8 bits" : "") + (writes ? " written" : "") + " with stride " + std::to_string(stride) +
           ": the layer " + std::to_string(layer) + " times, the formula " + std::to_string(expected) + "; ";
  };
  for (const auto& [key, times] : left) {
    const auto found = right.find(key);
    const std::int64_t expected = found == right.end() ? 0 : found->second;
    if (times != expected) tell(key, times, expected);
  }
  for (const auto& [key, times] : right)
    if (!left.contains(key)) tell(key, 0, times);
  return out;
}

std::string difference(const char* what, Bytes done, Bytes formula) {
  if (done == formula) return {};
  return std::string(what) + ": the layer " + std::to_string(done.count) + " bytes, the formula " +
         std::to_string(formula.count) + "; ";
}

// A layer on a rank of a stage, and what it does and takes.
template <class T>
class CountedLayer {
 public:
  CountedLayer(const ModelSpec& model, const LayerSpec& layer, const StrategySpec& spec, const cost::Batch& batch,
               int local)
      : batch_(batch), device_(log_), world_(rank_of(layer, spec, local), spec.ranks() * batch.stages, &log_) {
    DryContext context = runtime::make_context(
        device_, workspace_, world_, world_.rank() - local, spec, batch.microbatch / spec.data, batch.sequence, true,
        batch.precision == Precision::fp8, batch.moments, batch.expert_imbalance, batch.lsh);
    context.ratios = batch.ratios;
    context.local_rank = local;
    runtime::LayerArguments<T> around;
    if (layer.kind != LayerKind::block && layer.tied && batch.stages > 1)
      around.replicas = &world_.group(std::vector<int>{local, (batch.stages - 1) * spec.ranks() + local});
    if (cost::shares_table(layer, batch)) {
      embedding_ = value_or_throw(
          runtime::make_layer<InstantiatedStrategies, T>(context, model.embedding, around, embedding_states_));
      around.embedding = embedding_.get();
    }
    around.number = layer.kind == LayerKind::embedding ? 0 : layer.kind == LayerKind::block ? 1 : layer.layers + 1;
    layer_ = value_or_throw(runtime::make_layer<InstantiatedStrategies, T>(context, layer, around, states_));
    layer_->take_stash(stash_, slots, batch.splits_backward ? put_off : 0);
    const auto of_rank = [&](std::int64_t elements) {
      return elements * context.rows_local() / batch.sequence;  // of a sample, to those of this rank
    };
    for (int part = 0; part < most_parts; ++part)
      if (layer.is_pass_through(part))
        layer_->set_pass_through(0, part, {nullptr, of_rank(layer.before(part).elements(batch.sequence))});
    output_ = {nullptr, of_rank(layer.tokens.of(batch.sequence) * layer.hidden)};
    given_ = of_rank(layer.output_elements(batch.sequence));
    gradient_ = {nullptr, of_rank(layer.input_elements(batch.sequence))};
  }

  // What differs from the formulas, in words; empty when nothing does.
  std::string differences(const cost::LayerCounts& counts, bool counts_norm) {
    std::string out;
    for (const Turn turn : {Turn::first, Turn::later}) microbatch(counts, turn, out);
    pass("synchronise", counts.synchronise, out,
         [&] { layer_->for_each_store([](runtime::Store& store) { store.synchronise(); }); });
    out += difference("workspace of synchronise", workspace_.peak(), {0});
    op::WorkList update;
    for (const Work& work : counts.update)
      if (counts_norm || work.kind != op::Kind::norm_squared) update.push(work);
    pass("update", update, out, [&] {
      layer_->for_each_store([](runtime::Store& store) { store.zero_gradients(); });
      if (counts_norm) layer_->for_each_store([](runtime::Store& store) { store.add_gradient_squares(); });
      layer_->for_each_store([](runtime::Store& store) { store.update(); });
    });
    out += difference("workspace of update", workspace_.peak(), {0});
    out += difference("states", states_.peak(), counts.states);
    out += difference("stash", stash_.peak(), counts.stash * slots + counts.deferred * put_off);
    const Bytes activation{aligned_bytes(given_ * static_cast<std::int64_t>(sizeof(T)))};
    out += difference("activation", activation, counts.activation);
    const Bytes input{aligned_bytes(gradient_.count * static_cast<std::int64_t>(sizeof(T)))};
    out += difference("input", input, counts.input);
    return out;
  }

 private:
  void microbatch(const cost::LayerCounts& counts, Turn turn, std::string& out) {
    pass("forward", counts.forward, out, [&] { layer_->forward(0, output_); }, turn);
    out += difference("forward workspace", workspace_.peak(), counts.forward_workspace);
    const auto backward = [&] {
      workspace_.take<std::byte>((counts.input - counts.activation).count);  // by which the gradient grows
      if (batch_.splits_backward)
        layer_->backward(0, 0, gradient_);
      else
        layer_->backward(0, -1, gradient_);
    };
    pass("backward", counts.backward, out, backward, turn);
    out += difference("backward workspace", workspace_.peak(), counts.backward_workspace);
    const auto weights = [&] {
      if (batch_.splits_backward) layer_->backward_weight(0, 0);
    };
    pass("weights", counts.weights, out, weights, turn);
    out += difference("workspace of weights", workspace_.peak(), counts.weights_workspace);
  }

  static constexpr int slots = 3;
  static constexpr int put_off = 2;

  // The embedding is on the first stage and the head on the last.
  int rank_of(const LayerSpec& layer, const StrategySpec& spec, int local) const {
    const int stage = layer.kind == LayerKind::embedding ? 0 : batch_.stages - 1;
    return stage * spec.ranks() + local;
  }
  void pass(const char* name, const op::WorkList& formula, std::string& out, const auto& body,
            Turn turn = Turn::first) {
    log_.clear();
    workspace_ = {"workspace", nullptr, endless};
    body();
    const std::string found = difference(log_, formula, turn);
    if (!found.empty()) out += std::string(name) + (turn == Turn::first ? ": " : ", later: ") + found;
  }

  cost::Batch batch_;
  std::vector<Work> log_;
  device::Counting device_;
  comm::counting::World world_;
  device::Region workspace_{"workspace", nullptr, endless};
  device::Region states_{"states", nullptr, endless};
  device::Region stash_{"stash", nullptr, endless};
  device::Region embedding_states_{"embedding states", nullptr, endless};
  std::unique_ptr<runtime::Layer<T>> embedding_;
  std::unique_ptr<runtime::Layer<T>> layer_;
  View<T> output_;
  std::int64_t given_ = 0;  ///< elements that go to the next layer
  View<T> gradient_;        ///< of all that comes from the layer before; at first of what goes to the next
};

template <class T>
std::string differences(const ModelSpec& model, const LayerSpec& layer, const StrategySpec& spec,
                        const cost::Batch& batch, int local) {
  static cost::ProgramStore programs;  // of layers that were counted before
  // On the first tensor rank the norm is that of the formula; others leave out what all have in common. The shard that
  // has a router's bias leaves that out.
  const bool has_bias = layer.experts > 0 && layer.router.kind == RouterKind::sigmoid;
  return CountedLayer<T>(model, layer, spec, batch, local)
      .differences(programs.layer_counts(layer, spec, batch), spec.tensor_rank(local) == 0 && !has_bias);
}

std::vector<StrategySpec> strategies(int most_tensor, int most_data) {
  std::vector<StrategySpec> out;
  for (const int tensor : {1, 2, 3, 4, 6, 8})
    for (const int data : {1, 2, 3, 4, 6, 8})
      for (const int context : {1, 2, 3, 4, 6, 12}) {
        // Every degree of two axes together is enough.
        if (context > 1 && (tensor > 2 || data > 2)) continue;
        for (const SequenceKind sequence : sequence_kinds)
          for (int zero = 0; zero <= 3; ++zero)
            for (const RecomputeKind recompute : recompute_kinds) {
              const StrategySpec spec{
                  .tensor = tensor,
                  .sequence = sequence,
                  .context = context,
                  .data = data,
                  .zero = zero,
                  .recompute = recompute,
                  .strided = tensor > 1 && context * data > 1 && (tensor + context + zero) % 2 == 1};
              const bool runs = is_instantiated(InstantiatedStrategies{}, spec);
              if (tensor <= most_tensor && data <= most_data && runs) out.push_back(spec);
            }
      }
  return out;
}

// Ranks of a stage that do what the formulas say. Of images that are cut, the first rank has the class tokens: a
// classifier works there, and an embedding more elsewhere.
std::vector<int> counted_ranks(const LayerSpec& layer, const StrategySpec& spec) {
  const bool uneven = layer.class_token && spec.cuts_over_tensor();
  // The formulas are of the last rank of a ring.
  const int first = spec.uses_ring() ? (spec.context - 1) * spec.shard_stride() : 0;
  std::vector<int> out;
  if (!uneven || layer.kind == LayerKind::head) out.push_back(first);
  if (spec.ranks() > first + 1 && (!uneven || layer.kind == LayerKind::embedding)) out.push_back(spec.ranks() - 1);
  return out;
}

// Of 8 ranks and more, whose tokens go to experts.
std::vector<StrategySpec> exchanging_strategies() {
  std::vector<StrategySpec> out;
  for (StrategySpec spec : strategies(4, 4))
    for (spec.expert = 1; spec.expert <= 6; ++spec.expert)
      for (spec.expert_tensor = 1; spec.expert_tensor <= 4; ++spec.expert_tensor)
        for (spec.expert_nodes = 1; spec.expert_nodes <= spec.expert; ++spec.expert_nodes)
          if (spec.exchanges_tokens() && is_legal(spec)) out.push_back(spec);
  return out;
}
std::vector<StrategySpec> compressing_strategies() {
  std::vector<StrategySpec> out = exchanging_strategies();
  std::erase_if(out, &StrategySpec::relays_tokens);
  for (StrategySpec& spec : out) spec.dispatch = DispatchKind::lsh;
  return out;
}

struct Samples {
  int microbatch;
  int sequence;
};

// Runs every layer kind of the model under every strategy and batch; returns how many.
int check_model(const ModelSpec& model, int stages, bool splits_backward = false,
                const std::vector<Samples>& batches = {{24, 24}, {24, 96}, {48, 120}},
                const std::vector<StrategySpec>& specs = strategies(8, 8)) {
  int checked = 0;
  for (const auto& [microbatch, sequence] : batches)
    for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp8})
      for (const StrategySpec& spec : specs)
        for (const LayerSpec& layer : kinds_of_layers(model)) {
          if (!is_fit(layer, spec, microbatch, sequence)) continue;
          const cost::Batch batch{.microbatch = microbatch,
                                  .sequence = sequence,
                                  .precision = precision,
                                  .microbatches = 2,
                                  .stages = stages,
                                  .splits_backward = splits_backward,
                                  .overlap = false,  // no neighbours
                                  .moments = spec.zero % 2 == 0 ? Precision::fp32 : Precision::bf16,
                                  .lsh = {.hashes = 5, .width = 3, .rate = 0.3}};
          for (const int local : counted_ranks(layer, spec)) {
            const std::string found = precision == Precision::fp32
                                          ? differences<float>(model, layer, spec, batch, local)
                                          : differences<bfloat16>(model, layer, spec, batch, local);
            ++checked;
            if (found.empty()) continue;
            FAIL_CHECK(model.name << ", layer kind " << static_cast<int>(layer.kind) << ", " << strategy_text(spec)
                                  << ", " << std::string(name_of(precision)) << ", " << microbatch << " samples of "
                                  << sequence << " tokens, rank " << local << " of a stage, " << stages
                                  << " stages: " << found);
          }
        }
  return checked;
}

constexpr LayerSpec constant_block{.hidden = 8, .heads = 2, .kv_heads = 2, .head_dim = 4, .ffn = 16, .positions = 8};
static_assert(cost::layer_counts(constant_block, {.tensor = 2}, {.sequence = 8}).forward.flops() > Flops{0},
              "the formulas work at compile time");

}  // namespace

TEST_CASE("The formulas of a GPT-2 model count what its layers do and take, byte for byte") {
  CHECK(check_model(small_gpt(), 1) > 3000);
}

TEST_CASE("The formulas of a GPT-2 model count the two copies of a tied table over several stages") {
  CHECK(check_model(small_gpt(), 2) > 3000);
  CHECK(check_model(small_gpt(), 3) > 3000);
}

TEST_CASE("The formulas of a Llama model count what its layers do and take, byte for byte") {
  CHECK(check_model(small_llama(), 1) > 3000);
  CHECK(check_model(small_llama(), 2) > 3000);
}

TEST_CASE("The formulas count a backward in two parts, and what lies between them") {
  CHECK(check_model(small_gpt(), 2, true) > 3000);
  CHECK(check_model(small_llama(), 2, true) > 3000);
  CHECK(check_model(small_bert(), 2, true, {{24, 24}}) > 1000);  // whose backward stays in one
}

TEST_CASE("The formulas count adapters and frozen parameters, byte for byte") {
  const auto adapted = [](const ModelSpec& model, const char* targets) {
    return value_or_throw(with_adapters(model, *with_adapter_targets({.rank = 5, .alpha = 8}, targets)));
  };
  CHECK(check_model(adapted(small_gpt(), "qkv,o,up,down"), 1) > 3000);
  CHECK(check_model(adapted(small_llama(), "q,v,gate"), 2) > 3000);
  CHECK(check_model(adapted(small_llama(), "k,o,gate,up,down"), 2, true) > 3000);
  CHECK(check_model(adapted(small_decoder_kinds(), "q,k,v,down"), 1) > 3000);
}

TEST_CASE("The formulas of a BERT model count what its layers do and take, byte for byte") {
  CHECK(check_model(small_bert(), 1) > 3000);
  CHECK(check_model(small_bert(), 2) > 3000);
}

TEST_CASE("The formulas of a model with experts count what its layers do and take, byte for byte") {
  CHECK(check_model(small_experts(), 1) > 3000);
  CHECK(check_model(small_experts(), 2, true, {{24, 96}}) > 1000);
  CHECK(check_model(small_experts(), 2, false, {{24, 24}}, exchanging_strategies()) > 1000);
}

TEST_CASE("The formulas count compressed dispatch at its stated rate, and the memory of no compression at all") {
  CHECK(check_model(small_experts(), 2, false, {{24, 24}, {48, 120}}, compressing_strategies()) > 1000);
  ModelSpec scaled = small_experts();
  for (LayerSpec& block : scaled.blocks) block.router.residual_gain = block.experts > 0;
  CHECK(check_model(scaled, 2, true, {{24, 24}}, compressing_strategies()) > 1000);
}

TEST_CASE("The formulas count experts in blocks of other families, byte for byte") {
  const auto with_experts = [](ModelSpec model) {
    for (std::size_t i = 1; i < model.blocks.size(); i += 2) {
      LayerSpec& block = model.blocks[i];
      block.experts = 6;
      block.active_experts = 2;
      block.router.balance_loss = 0.01;
    }
    return model;
  };
  CHECK(check_model(with_experts(small_gpt()), 1, false, {{24, 24}}) > 1000);
  CHECK(check_model(with_experts(small_bert()), 1, false, {{24, 24}}) > 1000);
  CHECK(check_model(with_experts(small_t5(false)), 1, false, {{24, 96}}) > 1000);
  CHECK(check_model(with_experts(small_swin(24, 3)), 1, false, {{24, 144}}) > 500);
}

TEST_CASE("The formulas count norms of queries and keys, and latent attention, byte for byte") {
  CHECK(check_model(small_attention_kinds(), 1) > 3000);
  CHECK(check_model(small_attention_kinds(), 2, true, {{24, 96}}) > 1000);
}

TEST_CASE("The formulas count norms behind parts, parts side by side, and biases of logits, byte for byte") {
  CHECK(check_model(small_decoder_kinds(), 1) > 3000);
  CHECK(check_model(small_decoder_kinds(), 2, true, {{24, 96}}) > 1000);
}

TEST_CASE("The formulas count what each of unequal context ranks does and takes, byte for byte") {
  const std::vector<int> ratios{3, 1, 1, 2, 10, 1, 2, 1, 4, 1, 1, 5};
  int checked = 0;
  for (const ModelSpec& model : {small_gpt(), small_llama(), small_attention_kinds()})
    for (const SequenceKind sequence :
         {SequenceKind::ulysses, SequenceKind::ring, SequenceKind::megatron_ulysses, SequenceKind::megatron})
      for (const int context : {2, 3})
        for (const RecomputeKind recompute : recompute_kinds) {
          const StrategySpec spec{.tensor = cuts_over_tensor(sequence) ? 2 : 1,
                                  .sequence = sequence,
                                  .context = context,
                                  .data = 2,
                                  .zero = context,
                                  .shard_kind = ShardKind::by_ratio,
                                  .recompute = recompute};
          if (spec.uses_ring() && context > 2) continue;  // whose steps count as so many of the mean size
          const RankRatios own{.tokens = std::span(ratios).first(static_cast<std::size_t>(spec.ranks()))};
          for (const LayerSpec& layer : kinds_of_layers(model))
            for (int local = 0; local < spec.ranks() && is_fit(layer, spec, 8, 50, own); ++local) {
              cost::Batch batch{.microbatch = 8, .sequence = 50, .precision = Precision::bf16, .overlap = false};
              batch.ratios = own;
              batch.local_rank = local;
              INFO(model.name << ", layer kind " << static_cast<int>(layer.kind) << ", " << strategy_text(spec)
                              << ", rank " << local);
              CHECK(differences<bfloat16>(model, layer, spec, batch, local) == "");
              ++checked;
            }
        }
  CHECK(checked > 300);
}

TEST_CASE("The formulas of a ViT model count what its layers do and take, byte for byte") {
  CHECK(check_model(small_vit(3), 1, false, {{24, 10}}) > 800);
  CHECK(check_model(small_vit(7), 2, true, {{48, 50}}) > 800);
}

TEST_CASE("The formulas of a Swin model count what its layers do and take, byte for byte") {
  CHECK(check_model(small_swin(24, 3), 1, false, {{24, 144}}) > 800);
  CHECK(check_model(small_swin(16, 4), 2, true, {{48, 64}}) > 800);
}

TEST_CASE("The formulas of a T5 model count what its layers do and take, byte for byte") {
  CHECK(check_model(small_t5(false), 1, false, {{24, 24}, {24, 96}}) > 3000);
  CHECK(check_model(small_t5(false), 2, true, {{24, 96}}) > 1500);
  CHECK(check_model(small_t5(true), 2, false, {{48, 192}}) > 1500);
}

TEST_CASE("The formulas of adaptors, projections and contrastive losses count what they do and take, byte for byte") {
  CHECK(check_model(small_towers(), 1, false, {{24, 2}}) > 500);
  CHECK(check_model(small_towers(), 2, false, {{1200, 2}}) > 500);
}

TEST_CASE("The comparison with the formulas sees one operation or one byte too many") {
  const ModelSpec model = small_gpt();
  const StrategySpec spec{.tensor = 2, .data = 2, .zero = 2};
  const cost::Batch batch{.microbatch = 8, .sequence = 16, .overlap = false};
  cost::LayerCounts counts = cost::layer_counts(model.blocks[0], spec, batch);
  const auto found = [&] {
    return CountedLayer<float>(model, model.blocks[0], spec, batch, 0).differences(counts, true);
  };
  CHECK(found().empty());
  counts.forward.push({.kind = op::Kind::add, .m = 1});
  CHECK(!found().empty());
  counts = cost::layer_counts(model.blocks[0], spec, batch);
  counts.update.push({.kind = op::Kind::adamw, .m = 1});
  CHECK(!found().empty());
  counts = cost::layer_counts(model.blocks[0], spec, batch);
  counts.stash += Bytes{1};
  CHECK(!found().empty());
  counts = cost::layer_counts(model.blocks[0], spec, batch);
  counts.backward_workspace += Bytes{64};
  CHECK(!found().empty());
}
