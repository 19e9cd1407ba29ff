// LanguageModel: a model that predicts the next token, on one rank, forward alone: its layers are those that train,
// made without gradients and moments. An encoder reads a text once, and its decoder goes on with another.
//
//   states    | parameters of all layers | keys and values of all blocks | logits | statistics of scores |
//             | of an encoder and a decoder: the encoder's output, and keys and values of it for each decoder's block |
//   stash     | even layers | odd layers |     what a layer keeps in a pass: nobody reads it behind the next layer
//   workspace | frame of a forward pass |
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/thread/world.hpp>
#include <galvatron/core/document.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/cost/memory.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/device/host/host.hpp>
#include <galvatron/device/kernels/softmax.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/rank/host_rank.hpp>
#include <galvatron/rank/rank_memory.hpp>
#include <galvatron/runtime/implemented.hpp>
#include <galvatron/runtime/make_layer.hpp>
#include <galvatron/strategy/parameters.hpp>
#include <galvatron/strategy/ratios.hpp>

namespace galvatron::generate {

/// Why a model cannot go on with a text; empty when it can.
inline std::string why_not_generative(const ModelSpec& model) {
  const bool pair = model.is_encoder_decoder();
  const auto is_causal = [pair](const LayerSpec& block) {
    return block.kind == LayerKind::block && block.window == 0 &&
           (pair ? block.causal == block.memory.any()
                 : block.causal && block.tokens == all_tokens && block.position != PositionKind::relative);
  };
  if (model.takes_images() || model.head.head != HeadKind::language || !std::ranges::all_of(model.blocks, is_causal))
    return "the model " + model.name +
           " does not predict the next token from those before; GPT, Llama and mixtures of " +
           "experts of their kind do, and T5's decoders";
  return "";
}
/// Why a model cannot score texts, whose tokens it reads one after the other; empty when it can.
inline std::string why_not_scoring(const ModelSpec& model) {
  if (!model.is_encoder_decoder()) return why_not_generative(model);
  return "the model " + model.name +
         " has an encoder that reads another text than the one that is scored; a model of decoders scores texts";
}

/// What a model is made for.
struct Capacity {
  std::int64_t samples = 1;  ///< b: texts that go on side by side
  std::int64_t tokens = 0;   ///< of each, in a pass; of an encoder and a decoder those that the encoder reads
  std::int64_t cached = 0;   ///< positions whose keys and values are kept; 0: none
};

/// What a model says of a token that follows others.
struct TokenScore {
  double loss = 0;       ///< -log of its probability, in nats
  bool is_best = false;  ///< no other token is likelier
};

/// Of one thread at a time.
class LanguageModel {
 public:
  LanguageModel() = default;
  LanguageModel(const LanguageModel&) = delete;
  LanguageModel& operator=(const LanguageModel&) = delete;
  virtual ~LanguageModel() = default;

  /// Of a model with an encoder: it reads a text, and what goes on is the decoder's text from its beginning.
  /// @param tokens  (Capacity::tokens, b): token s of sample i at s * b + i
  virtual void read([[maybe_unused]] std::span<const std::int32_t> tokens) {}
  [[nodiscard]] virtual bool has_encoder() const { return false; }
  /// Goes on behind the tokens of the passes before, of which a pass that has more than one token per sample is the
  /// first; of a decoder behind an encoder each has one. Of the token that follows the last one: logits (b, V).
  /// @param tokens  (n, b): token s of sample i at s * b + i
  virtual std::span<const float> go_on(std::span<const std::int32_t> tokens) = 0;
  /// Forgets all tokens.
  virtual void restart() = 0;
  /// Scores of texts that know nothing of each other: of every token but the first of each. Together they have at most
  /// Capacity::tokens + count tokens. With b = 1.
  virtual std::vector<std::vector<TokenScore>> score(std::span<const std::span<const std::int32_t>> texts) = 0;
  [[nodiscard]] virtual std::int64_t vocabulary() const = 0;
};

/// A model on one rank of a world.
/// @tparam Platform  how the rank is made: train::HostPlatform, or that of a GPU
/// @tparam T         element type of activations and parameters
template <class Platform, class T>
class RankLanguageModel : public LanguageModel {
  using Rank = typename Platform::Rank;
  using Device = typename Rank::Device;

 public:
  /// @param world  of this rank alone; outlives this
  /// Throws Failure (usage) for a model that does not predict the next token, DeviceFailure when memory is refused, and
  /// what `source` throws.
  RankLanguageModel(comm::World& world, const Platform& platform, const ModelSpec& model, const Capacity& capacity,
                    const runtime::ParameterSource& source)
      : model_(model), capacity_(capacity), world_(world) {
    if (const std::string why = why_not_generative(model_); !why.empty()) refuse(why);
    value_or_throw(runtime::check_implemented(model_));
    // Layers of a rank without memory tell how much they take.
    cost::StageMemory planned;
    planned.library = platform.library_workspace();
    rank_.reset(new Rank(platform.make(planned)));
    constexpr std::int64_t any = std::numeric_limits<std::int64_t>::max() / 4;
    for (device::Region* region : regions()) *region = device::Region("measured", nullptr, any);
    make_layers();
    const auto taken = [](const device::Region& region) { return Bytes{aligned_bytes(region.peak().count)}; };
    planned.states = taken(states_);
    planned.stash = taken(even_);
    planned.boundary = taken(odd_);
    planned.workspace = taken(workspace_);
    layers_.clear();
    rank_.reset();
    rank_.reset(new Rank(platform.make(planned)));
    train::RankMemory& memory = rank_->memory();
    states_ = memory.states;
    even_ = memory.stash;
    odd_ = memory.boundary;
    workspace_ = memory.workspace;
    make_layers();
    for (auto& layer : layers_) layer->for_each_store([&](runtime::Store& store) { store.initialise(source); });
  }

  [[nodiscard]] bool has_encoder() const override { return pair_; }
  void read(std::span<const std::int32_t> tokens) override {
    const std::int64_t count = std::ssize(tokens) / capacity_.samples;
    if (!pair_ || count != capacity_.tokens || count * capacity_.samples != std::ssize(tokens))
      throw Failure(ErrorKind::internal, text_of("generate: an encoder with ", tokens.size(), " tokens of ",
                                                 capacity_.tokens, " of ", capacity_.samples, " samples"));
    for (std::size_t i = 0; i < decoder_; ++i) layers_[i]->infer(runtime::Inference<T>{.tokens = count});
    write(layers_.front()->tokens(0), tokens);
    for (std::size_t i = 0; i < decoder_; ++i)
      layers_[i]->forward(0, i + 1 < decoder_ ? layers_[i + 1]->input(0) : memory_);
    seen_ = 0;
  }

  std::span<const float> go_on(std::span<const std::int32_t> tokens) override {
    const auto count = static_cast<std::int64_t>(tokens.size()) / capacity_.samples;
    if (count < 1 || count * capacity_.samples != std::ssize(tokens) || count > (pair_ ? 1 : capacity_.tokens) ||
        seen_ + count > capacity_.cached)
      throw Failure(ErrorKind::internal, text_of("generate: ", tokens.size(), " tokens behind ", seen_, " of ",
                                                 capacity_.samples, " samples"));
    for (std::size_t i = 0; i < layers_.size(); ++i)
      if (!is_encoder(i))
        layers_[i]->infer(runtime::Inference<T>{.tokens = count,
                                                .first = seen_,
                                                .cache = caches_[i],
                                                .memory = memories_[i],
                                                .biases = biases_,
                                                .logits = logits_,
                                                .statistics = {}});
    pass(tokens, {});
    seen_ += count;
    fetched_.resize(static_cast<std::size_t>(logits_.count));
    rank_->device().fetch(View<const float>(logits_), fetched_.data());
    for (float& logit : fetched_) device::kernels::soft_cap(logit, static_cast<float>(model_.head.logits_cap), logit);
    // Rows of the table's padding are no tokens.
    const std::int64_t shard = RankShares::even(1).vocabulary_rows(model_.head.vocabulary);
    for (std::int64_t i = 1; i < capacity_.samples && shard != vocabulary(); ++i)
      std::copy_n(fetched_.data() + i * shard, vocabulary(), fetched_.data() + i * vocabulary());
    return {fetched_.data(), static_cast<std::size_t>(capacity_.samples * vocabulary())};
  }
  void restart() override { seen_ = 0; }

  std::vector<std::vector<TokenScore>> score(std::span<const std::span<const std::int32_t>> texts) override {
    if (const std::string why = why_not_scoring(model_); !why.empty()) refuse(why);
    std::vector<Document> documents;
    std::vector<std::int32_t> inputs, targets;
    for (const auto& text : texts) {
      if (text.size() < 2) continue;
      documents.push_back({.first = std::ssize(inputs),
                           .rows = std::ssize(text) - 1,
                           .sample = static_cast<std::int64_t>(documents.size())});
      inputs.insert(inputs.end(), text.begin(), text.end() - 1);
      targets.insert(targets.end(), text.begin() + 1, text.end());
    }
    std::vector<std::vector<TokenScore>> out(texts.size());
    if (inputs.empty()) return out;
    const std::int64_t rows = std::ssize(inputs);
    if (rows > capacity_.tokens || capacity_.samples != 1)
      throw Failure(ErrorKind::internal, text_of("generate: ", rows, " rows of ", capacity_.tokens));
    for (auto& layer : layers_) {
      layer->pack(0, 0, 1, rows, documents);
      layer->infer(runtime::Inference<T>{.statistics = statistics_.slice(0, rows * 3)});
    }
    pass(inputs, targets);
    std::vector<float> statistics(static_cast<std::size_t>(rows * 3));
    rank_->device().fetch(View<const float>(statistics_.slice(0, rows * 3)), statistics.data());
    std::size_t row = 0;
    for (std::size_t i = 0; i < texts.size(); ++i)
      for (std::size_t t = 1; t < texts[i].size(); ++t, ++row) {
        const float maximum = statistics[3 * row], sum = statistics[3 * row + 1], own = statistics[3 * row + 2];
        out[i].push_back({double{maximum} + std::log(double{sum}) - double{own}, own >= maximum});
      }
    return out;
  }
  [[nodiscard]] std::int64_t vocabulary() const override { return model_.head.vocabulary; }

 private:
  std::vector<device::Region*> regions() { return {&states_, &even_, &odd_, &workspace_}; }

  // The layer as it is made here. Of an encoder and a decoder one embedding looks up the tokens of either, and layers
  // behind the encoder have one token of their text and all of the encoder's.
  [[nodiscard]] LayerSpec part_of(int number) const {
    LayerSpec layer = model_.layer(number);
    if (!pair_) return layer;
    layer.target = no_tokens;
    layer.tokens = all_tokens;
    layer.place = {};
    if (!layer.memory.any()) return layer;
    layer.memory = {capacity_.tokens, 1};
    const BundlePart own{all_tokens, layer.hidden}, read{layer.memory, layer.hidden};
    layer.place = {.before = {own, read}, .after = {own, read}, .inputs = {0, 1}, .outputs = {0, -1}, .arrives = 0};
    return layer;
  }
  // Of an encoder and a decoder: a block of the former.
  [[nodiscard]] bool is_encoder(std::size_t layer) const { return pair_ && layer > 0 && layer < decoder_; }

  void make_layers() {
    layers_.clear();
    caches_.clear();
    memories_.clear();
    StrategySpec spec;
    spec.recompute = RecomputeKind::full;  // nothing is kept but a layer's input
    const auto context_for = [&](std::int64_t tokens) {
      auto context = runtime::make_context(rank_->device(), workspace_, world_, 0, spec, capacity_.samples, tokens);
      context.trains = false;
      return context;
    };
    const auto context = context_for(capacity_.tokens);
    const auto of_decoder = context_for(pair_ ? 1 : capacity_.tokens);
    std::int64_t frame = 0, bias_heads = 0;
    if (pair_) memory_ = states_.template take<T>(capacity_.tokens * capacity_.samples * model_.hidden());
    for (int number = 0; number < model_.layers(); ++number) {
      const LayerSpec layer = part_of(number);
      const bool decodes = static_cast<std::size_t>(number) >= decoder_;
      runtime::LayerArguments<T> around;
      around.number = number;
      if (layer.kind == LayerKind::head && layer.tied) around.embedding = layers_.front().get();
      layers_.push_back(runtime::make_program_layer<T>(decodes ? of_decoder : context, layer, around, states_));
      device::Region& stash = number % 2 == 0 ? even_ : odd_;
      stash.restore_low(0);
      layers_.back()->take_stash(stash, 1, 0);
      frame = std::max(frame, layers_.back()->forward_bytes().count);
      const auto keys_and_values = [&](bool has, std::int64_t tokens) {
        const std::int64_t width = 2 * layer.kv_heads * layer.head_dim;
        return has ? states_.template take<T>(tokens * capacity_.samples * width) : View<T>{};
      };
      const bool caches = layer.kind == LayerKind::block && decodes && capacity_.cached > 0;
      caches_.push_back(keys_and_values(caches, capacity_.cached));
      memories_.push_back(keys_and_values(caches && layer.memory.any(), capacity_.tokens));
      if (layer.memory.any()) layers_.back()->set_pass_through(0, 1, memory_);
      if (caches && layer.position == PositionKind::relative) bias_heads = std::max(bias_heads, layer.heads);
    }
    biases_ = states_.template take<float>(bias_heads * (2 * capacity_.cached - 1));
    const device::Scope scope(workspace_);
    workspace_.template take<std::byte>(frame);
    logits_ = states_.template take<float>(
        capacity_.cached > 0 ? capacity_.samples * RankShares::even(1).vocabulary_rows(model_.head.vocabulary) : 0);
    statistics_ = states_.template take<float>(capacity_.samples == 1 ? capacity_.tokens * 3 : 0);
  }

  void write(View<std::int32_t> to, std::span<const std::int32_t> from) {
    rank_->device().write(to.slice(0, std::ssize(from)),
                          [from](View<std::int32_t> out) { std::ranges::copy(from, out.begin()); });
  }

  // All layers forward but those of an encoder: one reads what the one before has written to its place.
  void pass(std::span<const std::int32_t> inputs, std::span<const std::int32_t> targets) {
    write(layers_.front()->tokens(0), inputs);
    for (std::size_t i = 0, next = 0; i + 1 < layers_.size(); i = next) {
      next = pair_ && i == 0 ? decoder_ : i + 1;
      layers_[i]->forward(0, layers_[next]->input(0));
    }
    if (!targets.empty()) write(layers_.back()->tokens(0), targets);  // where a block before had its memory
    layers_.back()->forward(0, {});
  }

  ModelSpec model_;
  Capacity capacity_;
  bool pair_ = model_.is_encoder_decoder();
  /// Of an encoder and a decoder: the number of the first layer of the latter.
  std::size_t decoder_ =
      pair_ ? static_cast<std::size_t>(
                  1 + std::ranges::count_if(model_.blocks, [](const LayerSpec& block) { return !block.memory.any(); }))
            : 0;
  comm::World& world_;
  std::unique_ptr<Rank> rank_;
  device::Region states_, even_, odd_, workspace_;
  std::vector<std::unique_ptr<runtime::Layer<T>>> layers_;
  std::vector<View<T>> caches_;    ///< of each layer
  std::vector<View<T>> memories_;  ///< of each layer: keys and values of the encoder's output
  View<T> memory_;                 ///< the encoder's output, (tokens * b, H)
  View<float> biases_;             ///< by distance, of the block that computes
  View<float> logits_;             ///< of the last rows, with the table's padding
  View<float> statistics_;         ///< of all rows
  std::vector<float> fetched_;
  std::int64_t seen_ = 0;  ///< tokens of each sample
};

/// Calls use(LanguageModel&) with a model in fp32 or bf16 on one rank. Throws as RankLanguageModel does.
template <class Platform>
void with_language_model(comm::World& world, const Platform& platform, const ModelSpec& model, const Capacity& capacity,
                         const runtime::ParameterSource& source, Precision precision, const auto& use) {
  const auto in = [&]<class T>(T) {
    RankLanguageModel<Platform, T> made(world, platform, model, capacity, source);
    use(made);
  };
  precision == Precision::fp32 ? in(float{}) : in(bfloat16{});
}

namespace detail {

/// The world of one rank of its own.
struct OwnWorld {
  comm::thread::Job job{1, {}};
  comm::thread::World world{job, 0};
};

template <class T>
class HostLanguageModel final : OwnWorld, public RankLanguageModel<train::HostPlatform, T> {
 public:
  HostLanguageModel(const ModelSpec& model, const Capacity& capacity, const runtime::ParameterSource& source,
                    int threads)
      : RankLanguageModel<train::HostPlatform, T>(world, {threads, nullptr}, model, capacity, source) {}
};

}  // namespace detail

/// A model on this machine's cores, in fp32 or bf16. Throws as RankLanguageModel does.
inline std::unique_ptr<LanguageModel> make_language_model(const ModelSpec& model, const Capacity& capacity,
                                                          const runtime::ParameterSource& source, Precision precision,
                                                          int threads) {
  if (!device::Host::supports(precision))
    throw DeviceFailure(std::string("this CPU has no ") + name_of(precision) + " arithmetic: use --precision fp32");
  if (precision == Precision::fp32)
    return std::make_unique<detail::HostLanguageModel<float>>(model, capacity, source, threads);
  return std::make_unique<detail::HostLanguageModel<bfloat16>>(model, capacity, source, threads);
}

}  // namespace galvatron::generate
