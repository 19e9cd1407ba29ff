// Chunk: a run of layers of one stage, forward and backward, with what passes between it and its neighbours.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/data/batch_source.hpp>
#include <galvatron/plan/stage_plan.hpp>
#include <galvatron/rank/rank_memory.hpp>
#include <galvatron/runtime/make_layer.hpp>
#include <galvatron/train/border.hpp>
#include <galvatron/train/non_finite.hpp>
#include <galvatron/train/zero_prefetch.hpp>

namespace galvatron::train {

/// Makes a layer of a stage: (context, layer, arguments, states) -> layer. See runtime::make_layer.
template <class D, class T>
using LayerMaker =
    std::function<std::unique_ptr<runtime::Layer<T>>(const runtime::Context<D>& context, const LayerSpec& layer,
                                                     const runtime::LayerArguments<T>& around, device::Region& states)>;

/// @tparam D  the device  @tparam T  element type of activations and working parameters
template <class D, class T>
class Chunk {
 public:
  /// Takes all memory that the chunk will ever use but transient tensors.
  Chunk(D& device, comm::World& world, const StagePlan& stage, const ChunkPlan& plan, const ModelSpec& model,
        RankMemory& memory, const LayerMaker<D, T>& make)
      : device_(device), world_(world), memory_(memory), stage_(stage), plan_(plan), prefetch_(memory.workspace) {
    for (std::size_t i = 0; i < plan_.layers.size(); ++i) {
      add_layer(i, model, make);
      prefetch_.add(layers_.back()->streaming(), i > 0 && changes_after(i - 1));
    }
    for (auto& layer : layers_) layer->take_stash(memory.stash, plan_.slots, plan_.deferred);
    keep_pass_through();
    for (std::size_t i = 0; i + 1 < plan_.layers.size(); ++i) {
      const bool changes = changes_after(i);
      down_.push_back(changes ? border(i + 1, plan_.layouts[i], plan_.layouts[i + 1], inner_lane) : Border{});
      up_.push_back(changes ? border(i + 1, plan_.layouts[i + 1], plan_.layouts[i], inner_lane) : Border{});
    }
    if (plan_.has_previous) {
      const int before = stage_.index > 0 ? plan_.index : plan_.index - 1;  // the chunk that sends, in its stage
      receive_activation_ = border(0, plan_.previous, plan_.layouts.front(), activation_lane(before));
      send_gradient_ = border(0, plan_.layouts.front(), plan_.previous, gradient_lane(plan_.index));
      gradient_out_ = memory.boundary.template take<T>(input_elements(0));
    }
    if (plan_.has_next) {
      const int after = stage_.index + 1 < stage_.stages ? plan_.index : plan_.index + 1;
      const std::size_t end = layers_.size();
      send_activation_ = border(end, plan_.layouts.back(), plan_.next, activation_lane(plan_.index));
      receive_gradient_ = border(end, plan_.next, plan_.layouts.back(), gradient_lane(after));
      activation_out_ = memory.boundary.template take<T>(elements(layers_.size() - 1));
    }
  }

  [[nodiscard]] const std::vector<std::unique_ptr<runtime::Layer<T>>>& layers() const { return layers_; }

  void receive_activation(int microbatch) { receive_activation_.receive(world_, input(0, slot_of(microbatch))); }
  void send_activation() { send_activation_.post(world_, sides(layers_.size() - 1, activation_out_)); }
  /// Into the workspace, where backward finds it.
  void receive_gradient() {
    gradient_ = memory_.workspace.template take<T>(elements(layers_.size() - 1));
    receive_gradient_.receive(world_, sides(layers_.size() - 1, gradient_));
  }
  void send_gradient() { send_gradient_.post(world_, sides(0, gradient_out_)); }

  /// All layers forward. The device's sum of losses grows by this rank's samples, if the head is here.
  /// @param source  null on a device that only counts
  void forward(std::int64_t step, int microbatch, BatchSource* source) {
    const int slot = slot_of(microbatch);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const device::Scope scope(memory_.workspace);
      const LayerKind kind = plan_.layers[i].layer.kind;
      if constexpr (!D::counts_only) {
        if (plan_.layers[i].layer.patch_width > 0)
          device_.write(layers_[i]->patches(slot), [&](View<T> out) {
            source->patches(step, first_sample(i, microbatch), samples(i), patches_of(i), out);
          });
        else if (kind == LayerKind::embedding)
          device_.write(layers_[i]->tokens(slot),
                        [&](View<std::int32_t> out) { read_sides(i, microbatch, step, source, out); });
        if (kind == LayerKind::head && plan_.layers[i].layer.head == HeadKind::classifier)
          device_.write(layers_[i]->tokens(slot), [&](View<std::int32_t> out) {
            source->targets(step, first_sample(i, microbatch), samples(i), {0, 1}, out);
          });
        else if (kind == LayerKind::head)
          device_.write(layers_[i]->tokens(slot), [&](View<std::int32_t> out) {
            read(i, microbatch, plan_.layers[i].layer.tokens.of(stage_.batch.sequence), out,
                 [&](auto... part_and_out) { source->targets(step, part_and_out...); });
          });
      }
      prefetch_.before(StreamPass::forward, i, true);
      const bool last = i + 1 == layers_.size();
      if (last) {
        send_activation_.wait_sent(world_);  // the last micro-batch has left the buffer
        const ActivationBundle<T> out = sides(i, activation_out_);
        layers_[i]->forward(slot, decodes(i) ? out.target : out.source);
        if (plan_.has_next && pass_through(i, slot).count > 0)
          device_.copy(raw_bytes(passed(i, slot)), raw_bytes(decodes(i) ? out.source : out.target));
      } else if (!changes_after(i)) {
        const ActivationBundle<T> next = input(i + 1, slot);
        layers_[i]->forward(slot, decodes(i) ? next.target : next.source);
      } else {
        ActivationBundle<T> out = sides(i, memory_.workspace.template take<T>(elements(i)));
        layers_[i]->forward(slot, decodes(i) ? out.target : out.source);
        if (pass_through(i, slot).count > 0) (decodes(i) ? out.source : out.target) = passed(i, slot);
        move(down_[i], out, input(i + 1, slot));
      }
      prefetch_.after(StreamPass::forward, i);
    }
  }

  /// All layers backward.
  void backward(int microbatch) {
    const int slot = slot_of(microbatch);
    pass_back(StreamPass::backward, [&](runtime::Layer<T>& layer) {
      layer.backward(slot, gradient_);
      if (is_last(microbatch)) layer.start_synchronise();
    });
  }
  /// The first part of backward: without the gradients of weights.
  void backward_input(int microbatch) {
    const int slot = slot_of(microbatch);
    const int kept = microbatch % plan_.deferred;
    pass_back(StreamPass::backward_input,
              [&](runtime::Layer<T>& layer) { layer.backward_input(slot, kept, gradient_); });
  }
  /// The second part.
  void backward_weight(int microbatch) {
    for (std::size_t i = layers_.size(); i-- > 0;) {
      prefetch_.before(StreamPass::backward_weight, i, true);
      layers_[i]->backward_weight(slot_of(microbatch), microbatch % plan_.deferred);
      prefetch_.after(StreamPass::backward_weight, i);
      if (is_last(microbatch)) layers_[i]->start_synchronise();
    }
  }

  /// After a step: what is not finite here.
  void look_for_non_finite(NonFiniteSearch& search) {
    search.look(device_, memory_.workspace, plan_, layers_, View<const T>(activation_out_));
  }

 private:
  // The gradient lies at one end of the workspace; a change of layout moves it to the other. Behind the last
  // decoder it is that of the decoder's rows; that of the encoder's output starts as zeros.
  template <class F>
  void pass_back(StreamPass pass, F&& through) {
    device::Region& ws = memory_.workspace;
    bool low = true;
    const std::size_t last = layers_.size() - 1;
    View<T> whole = gradient_;
    if (!plan_.has_next) {
      const bool joint = begins_source(last) && !changes_after(last - 1);
      whole = ws.template take<T>(elements(joint ? last - 1 : last));
      gradient_ = joint ? sides(last - 1, whole).target : whole;
    }
    for (std::size_t i = layers_.size(); i-- > 0;) {
      if (input_elements(i) > gradient_.count) {  // grows at the low end, where its beginning stays
        const View<T> before = gradient_;
        ws.restore_low(0);
        gradient_ = whole = ws.template take<T>(input_elements(i));
        if (!low) device_.copy(raw_bytes(before), raw_bytes(whole.slice(0, before.count)));
        ws.restore_high(0);
        low = true;
      }
      prefetch_.before(pass, i, low);
      through(*layers_[i]);
      prefetch_.after(pass, i);
      if (i == 0) continue;
      if (!changes_after(i - 1)) {
        if (begins_source(i)) device_.zero(raw_bytes(sides(i - 1, whole).source));
        gradient_ = whole;
        continue;
      }
      const View<T> to = low ? ws.template take_high<T>(elements(i - 1)) : ws.template take<T>(elements(i - 1));
      move(up_[i - 1], sides(i, gradient_), sides(i - 1, to));
      if (begins_source(i)) device_.zero(raw_bytes(sides(i - 1, to).source));
      gradient_ = whole = to;
      if (low)
        ws.restore_low(0);
      else
        ws.restore_high(0);
      low = !low;
    }
    if (plan_.has_previous) {
      send_gradient_.wait_sent(world_);
      device_.copy(raw_bytes(gradient_), raw_bytes(gradient_out_));
    }
    ws.restore_low(0);
    ws.restore_high(0);
  }

  // Messages travel in lanes of their own, named by the chunk that sends them: with two stages the activations of one
  // chunk and the gradients of another go from the same rank to the same rank.
  static constexpr int inner_lane = 0;
  static constexpr int activation_lane(int chunk) { return 1 + 2 * chunk; }
  static constexpr int gradient_lane(int chunk) { return 2 + 2 * chunk; }

  void add_layer(std::size_t i, const ModelSpec& model, const LayerMaker<D, T>& make) {
    const ChunkPlan::Entry& entry = plan_.layers[i];
    const auto context = runtime::make_context(
        device_, memory_.workspace, world_, stage_.first_rank, entry.spec, plan_.layouts[i].batch / entry.spec.data,
        stage_.batch.sequence, stage_.batch.overlap, stage_.batch.precision == Precision::fp8, stage_.batch.moments);
    runtime::LayerArguments<T> around;
    around.number = entry.number;
    around.token_weight = static_cast<float>(stage_.token_weight);
    if (entry.layer.kind == LayerKind::head && entry.layer.tied && !plan_.has_previous)
      around.embedding = layers_.front().get();
    const bool end = entry.layer.kind != LayerKind::block;
    if (end && model.head.tied && (plan_.has_previous || plan_.has_next)) {  // both ends have one strategy
      const int local = world_.rank() - stage_.first_rank;
      around.replicas = &world_.group(std::vector{local, stage_.batch.last_first_rank + local});
    }
    layers_.push_back(make(context, entry.layer, around, memory_.states));
    const bool behind_decoder = entry.layer.kind == LayerKind::head && i > 0 && decodes(i - 1);
    tokens_.push_back(bundle_tokens(entry.layer, stage_.batch.sequence));
    if (behind_decoder) std::swap(tokens_.back().source, tokens_.back().target);
  }

  // A change of layout before the chunk's layer `crossing`, or behind the last.
  [[nodiscard]] Border border(std::size_t crossing, const ActivationLayout& from, const ActivationLayout& to,
                              int lane) const {
    const bool end = crossing == layers_.size();
    const std::size_t i = end ? crossing - 1 : crossing;
    const LayerSpec& layer = plan_.layers[i].layer;
    BundleTokens tokens = tokens_[i];
    if (!end && layer.merges) tokens.source = layer.input_tokens(stage_.batch.sequence);
    return Border(from, to, tokens, world_.rank(), end ? layer.hidden : layer.input_hidden(),
                  static_cast<std::int64_t>(sizeof(T)), lane);
  }
  // What layers share is kept from the chunk's first layer on, and once more in every other layout.
  void keep_pass_through() {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const LayerSpec& layer = plan_.layers[i].layer;
      const std::int64_t count =
          rows(i, layer.pass_through_elements(stage_.batch.sequence) / layer.hidden) * layer.hidden;
      for (int slot = 0; slot < plan_.slots; ++slot) {
        const bool shared = i > 0 && !changes_after(i - 1);
        pass_through_.push_back(count == 0 ? View<T>{}
                                : shared   ? passed(i - 1, slot)
                                           : memory_.stash.template take<T>(count));
        layers_[i]->set_pass_through(slot, pass_through_.back());
      }
    }
  }
  [[nodiscard]] View<T> pass_through(std::size_t layer, int slot) const {
    return pass_through_[layer * static_cast<std::size_t>(plan_.slots) + static_cast<std::size_t>(slot)];
  }
  // What the layer leaves to the next as it is: a decoder the encoder's output, an encoder the target.
  [[nodiscard]] View<T> passed(std::size_t layer, int slot) const {
    return plan_.layers[layer].layer.begins_decoder ? layers_[layer]->input(slot) : pass_through(layer, slot);
  }
  [[nodiscard]] bool decodes(std::size_t layer) const { return plan_.layers[layer].layer.memory.any(); }
  // True for a head that takes the target alone.
  [[nodiscard]] bool begins_source(std::size_t layer) const { return tokens_[layer].source == 0; }
  // Where what comes from the layer before goes.
  [[nodiscard]] ActivationBundle<T> input(std::size_t layer, int slot) const {
    const View<T> own = layers_[layer]->input(slot);
    const bool target = begins_source(layer) || (decodes(layer) && !plan_.layers[layer].layer.begins_decoder);
    return target ? ActivationBundle<T>{pass_through(layer, slot), own}
                  : ActivationBundle<T>{own, pass_through(layer, slot)};
  }
  // The parts of a tensor of both sides.
  [[nodiscard]] ActivationBundle<T> sides(std::size_t layer, View<T> both) const {
    if (tokens_[layer].target == 0) return {both, {}};
    const std::int64_t source = std::min(rows(layer, tokens_[layer].source) * hidden(layer), both.count);
    return {both.slice(0, source), both.slice(source, both.count - source)};
  }

  [[nodiscard]] bool is_last(int microbatch) const { return microbatch + 1 == stage_.batch.microbatches; }
  [[nodiscard]] int slot_of(int microbatch) const { return microbatch % plan_.slots; }
  // Rows of this rank where sequences have so many tokens.
  [[nodiscard]] std::int64_t rows(std::size_t layer, std::int64_t tokens) const {
    ActivationLayout layout = plan_.layouts[layer];
    layout.sequence = tokens;
    return layout.pieces() * layout.region(world_.rank()).tokens();
  }
  // Of both sides.
  [[nodiscard]] std::int64_t elements(std::size_t layer) const {
    return (rows(layer, tokens_[layer].source) + rows(layer, tokens_[layer].target)) * hidden(layer);
  }
  [[nodiscard]] std::int64_t input_elements(std::size_t layer) const {
    return (plan_.layers[layer].layer.merges ? 2 : 1) * elements(layer);
  }
  [[nodiscard]] std::int64_t hidden(std::size_t layer) const { return plan_.layers[layer].layer.hidden; }
  [[nodiscard]] bool changes_after(std::size_t layer) const { return plan_.layouts[layer] != plan_.layouts[layer + 1]; }
  [[nodiscard]] std::int64_t first_sample(std::size_t layer, int microbatch) const {
    const ActivationLayout& layout = plan_.layouts[layer];
    return microbatch * layout.batch + layout.region(world_.rank()).batch_begin;
  }
  [[nodiscard]] std::int64_t samples(std::size_t layer) const {
    return plan_.layouts[layer].batch / plan_.layouts[layer].data;
  }
  // The tokens of the encoder, and behind them those of the decoder.
  void read_sides(std::size_t layer, int microbatch, std::int64_t step, BatchSource* source,
                  View<std::int32_t> out) const {
    const BundleTokens& tokens = tokens_[layer];
    const std::int64_t end = out.count / (tokens.source + tokens.target) * tokens.source;
    read(layer, microbatch, tokens.source, out.slice(0, end),
         [&](auto... part_and_out) { source->inputs(step, part_and_out...); });
    if (tokens.target > 0)
      read(layer, microbatch, tokens.target, out.slice(end, out.count - end),
           [&](auto... part_and_out) { source->decoder_inputs(step, part_and_out...); });
  }
  // The tokens or targets of this rank in sequences of so many, piece by piece; whole sequences unless they are cut
  // over context ranks.
  template <class Read>
  void read(std::size_t layer, int microbatch, std::int64_t tokens, View<std::int32_t> out, Read&& from_source) const {
    const ActivationLayout& between = plan_.layouts[layer];
    const ActivationLayout layout = region_layout(plan_.layers[layer].spec, between.first_rank, between.batch, tokens);
    const std::int64_t samples = layout.batch / layout.data;
    std::int64_t row = 0;
    for (int piece = 0; piece < layout.pieces(); ++piece) {
      const galvatron::Region part = layout.region(world_.rank(), piece);
      const SequenceRange range{part.sequence_begin, part.sequence_end - part.sequence_begin};
      from_source(microbatch * layout.batch + part.batch_begin, samples, range, out.slice(row, range.count * samples));
      row += range.count * samples;
    }
  }
  // Of every image, those that this rank has as tokens.
  [[nodiscard]] SequenceRange patches_of(std::size_t layer) const {
    const galvatron::Region part = plan_.layouts[layer].region(world_.rank());
    const std::int64_t before = plan_.layers[layer].layer.class_token ? 1 : 0;  // tokens that are no patches
    const std::int64_t first = std::max(part.sequence_begin - before, std::int64_t{0});
    return {first, part.sequence_end - before - first};
  }

  void move(Border& border, const ActivationBundle<T>& from, const ActivationBundle<T>& to) {
    border.post(world_, from);
    border.receive(world_, to);
    border.wait_sent(world_);
  }

  D& device_;
  comm::World& world_;
  RankMemory& memory_;
  const StagePlan& stage_;
  const ChunkPlan& plan_;
  std::vector<std::unique_ptr<runtime::Layer<T>>> layers_;
  ZeroPrefetch prefetch_;
  std::vector<BundleTokens> tokens_;   ///< that come from each layer; to a head
  std::vector<View<T>> pass_through_;  ///< of each layer, slot by slot; empty for most
  std::vector<Border> down_;           ///< activations from layer i to i + 1
  std::vector<Border> up_;             ///< gradients from layer i + 1 to i
  Border receive_activation_, send_activation_, receive_gradient_, send_gradient_;
  View<T> activation_out_;
  View<T> gradient_out_;
  View<T> gradient_;  ///< of the layer that is next in backward
};

}  // namespace galvatron::train
