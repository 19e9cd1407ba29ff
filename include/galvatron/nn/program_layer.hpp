// ProgramLayer: a layer that executes its program (program/program.hpp): one loop over steps, whatever the layer and
// the strategy are.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/model/layers.hpp>
#include <galvatron/nn/attention.hpp>
#include <galvatron/nn/end_layers.hpp>
#include <galvatron/nn/layer.hpp>
#include <galvatron/nn/linear.hpp>
#include <galvatron/nn/logits.hpp>
#include <galvatron/nn/parameter_store.hpp>
#include <galvatron/nn/ring.hpp>
#include <galvatron/nn/ulysses.hpp>
#include <galvatron/program/lower.hpp>
#include <galvatron/strategy/legality.hpp>

namespace galvatron::nn {

template <class D, class T>
class ProgramLayer final : public Layer<T> {
  using Program = program::LayerProgram;
  using Step = program::Step;
  using Code = program::Code;
  using Phase = program::Phase;
  using Storage = program::Storage;

 public:
  /// @param number    of the layer in the model; the embedding is 0
  /// @param shared    the embedding's table where a tied model has both ends on one stage; else null
  /// @param replicas  as for Table
  /// @param scale     of a head: the weight of a prediction in the loss
  ProgramLayer(Context<D> context, const LayerSpec& layer, int number, Table<D, T>* shared, comm::Group* replicas,
               float scale, device::Region& states)
      : context_(context),
        layer_(layer),
        graph_(forward_of(layer)),
        numbers_(layer, context.spec, context.samples * context.spec.data, context.sequence, precision_of<T>),
        splits_(program::can_split(graph_, context.spec)),
        number_(number),
        scale_(scale),
        rest_(context_, states,
              parameter_layout(layer, ParameterPart::rest, context.spec.tensor, static_cast<int>(context.shards()))) {
    if (layer.kind == LayerKind::block) return;
    if (shared == nullptr) {
      const bool second = layer.kind == LayerKind::head && replicas != nullptr;
      const int table_number = layer.kind == LayerKind::head && !layer.tied ? number : 0;
      own_table_ = std::make_unique<Table<D, T>>(context, layer, table_number, replicas, !second, states);
    }
    table_ = shared != nullptr ? shared : own_table_.get();
  }

  /// The vocabulary's table; null in blocks.
  Table<D, T>* table() { return table_; }

  /// True for a strategy of the same kinds: two layers that share a table have it.
  [[nodiscard]] bool has_strategy_of(const StrategySpec& spec) const {
    return context_.spec.sequence == spec.sequence && context_.spec.zero == spec.zero;
  }

  void take_stash(device::Region& stash, int slots, int postponed) override {
    program_ = std::make_shared<const Program>(program::lower(graph_, context_.spec, postponed > 0));
    place_frames();
    slots_.assign(static_cast<std::size_t>(slots), Kept());
    for (Kept& slot : slots_) {
      take(stash, Storage::input, slot);
      take(stash, Storage::slot, slot);
      if (layer_.kind != LayerKind::block) slot.tokens = stash.take<std::int32_t>(context_.rows());
    }
    deferred_.assign(program_->splits ? static_cast<std::size_t>(postponed) : 0, Kept());
    for (Kept& deferred : deferred_) {
      take(stash, Storage::deferred, deferred);
      deferred.uncut = stash.take<T>(uncut().count());
      deferred.d_uncut = stash.take<float>(uncut().count());
    }
  }
  View<T> input(int slot) override {
    const Kept& kept = slots_[static_cast<std::size_t>(slot)];
    for (int b = 0; b < program_->buffer_count; ++b)
      if (program_->buffer(b).storage == Storage::input)
        return {reinterpret_cast<T*>(kept.buffers[static_cast<std::size_t>(b)]),
                numbers_(program_->buffer(b).elements)};
    return {};
  }
  View<std::int32_t> tokens(int slot) override { return slots_[static_cast<std::size_t>(slot)].tokens; }

  void forward(int slot, View<T> y) override { run(Phase::forward, slot, -1, y); }
  void backward(int slot, View<T> d) override { run(Phase::backward, slot, -1, d); }
  void backward_input(int slot, int kept, View<T> d) override { run(Phase::backward, slot, kept, d); }
  void backward_weight(int slot, int kept) override {
    if (program_->splits) run(Phase::weights, slot, kept, {});
  }

  void initialise(const ParameterSource& source) override {
    if (own_table_) own_table_->initialise(source);
    rest_.initialise(source, number_);
  }
  void zero_gradients() override {
    if (own_table_) own_table_->store().zero_gradients();
    rest_.zero_gradients();
  }
  void start_synchronise() override {
    if (own_table_) own_table_->start_synchronise();
    rest_.start_synchronise();
  }
  void synchronise() override {
    if (own_table_) own_table_->synchronise();
    rest_.synchronise();
  }
  Streaming streaming() override {
    if (layer_.kind != LayerKind::block || context_.spec.zero < 2 || !context_.overlap) return {};
    return {&rest_, splits_};
  }
  void add_gradient_squares() override {
    if (own_table_) own_table_->add_gradient_squares();
    rest_.add_gradient_squares();
  }
  void update() override {
    if (own_table_) own_table_->update();
    rest_.update(number_);
  }
  void visit(const StoreVisitor& visitor) override {
    if (own_table_) visitor(own_table_->view());
    if (!rest_.empty()) visitor(rest_.view(number_));
  }

 private:
  /// What a micro-batch keeps: buffers of the program by number.
  struct Kept {
    std::array<std::byte*, Program::most_buffers> buffers{};
    View<std::int32_t> tokens;  ///< of an embedding; targets of a head
    View<T> uncut;              ///< parameters that no tensor rank shares, for the phase of weight gradients
    View<float> d_uncut;        ///< and their gradients
  };

  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] std::int64_t bytes(int buffer) const {
    return program::bytes_of(program_->buffer(buffer), numbers_, static_cast<std::int64_t>(sizeof(T)));
  }
  [[nodiscard]] std::int64_t of(const program::Extent& extent) const { return numbers_(extent); }
  [[nodiscard]] std::int64_t of(program::Letter letter) const { return numbers_(letter); }
  void take(device::Region& stash, Storage storage, Kept& kept) const {
    for (int b = 0; b < program_->buffer_count; ++b)
      if (program_->buffer(b).storage == storage) kept.buffers[at(b)] = stash.take<std::byte>(bytes(b)).data;
  }
  void place_frames() {
    const auto size = [this](const program::Buffer& buffer) {
      return program::bytes_of(buffer, numbers_, static_cast<std::int64_t>(sizeof(T)));
    };
    for (const Phase phase : {Phase::forward, Phase::backward, Phase::weights})
      frames_[at(static_cast<int>(phase))] =
          program::frame_bytes(*program_, phase, size, [this](const Step& step) { return rounded_operands(step); });
    for (int b = 0; b < program_->buffer_count; ++b) {
      const program::Buffer& buffer = program_->buffer(b);
      if (buffer.phase < 0) continue;
      offsets_[at(b)] = program::frame_offset(*program_, b, frames_[at(buffer.phase)], size);
    }
  }

  // ---- a pass

  void run(Phase phase, int slot, int kept, View<T> border) {
    const device::Scope scope(context_.workspace);
    phase_ = phase;
    slot_ = &slots_[at(slot)];
    deferred_kept_ = kept >= 0 && program_->splits ? &deferred_[at(kept)] : nullptr;
    border_ = border;
    frame_ = nullptr;
    const Program::Steps& steps = program_->steps(phase);
    bool framed = false;
    for (step_ = 0; step_ < steps.size; ++step_) {
      const Step& step = steps.steps[at(step_)];
      const bool parameters = step.code == Code::acquire || step.code == Code::open_gradients;
      if (!framed && !parameters) {  // what ZeRO gathers lies before the frame
        frame_ = context_.workspace.template take<std::byte>(frames_[at(static_cast<int>(phase))]).data;
        framed = true;
      }
      execute(step);
    }
  }

  // A value; its own rows where it is local.
  template <class U = T>
  View<U> value(int id) const {
    if (id < 0) return {};
    const program::Value& v = program_->value(id);
    const std::int64_t count = of(program_->buffer(v.buffer).elements);
    std::byte* const data = address(v.buffer);
    const View<U> all{reinterpret_cast<U*>(data), count};
    if (!v.local) return all;
    const std::int64_t own = count / context_.spec.tensor;
    return all.slice(context_.tensor_rank() * own, own);
  }
  [[nodiscard]] std::byte* address(int b) const {
    switch (program_->buffer(b).storage) {
      case Storage::input:
      case Storage::slot:
        return slot_->buffers[at(b)];
      case Storage::deferred:
        return deferred_kept_->buffers[at(b)];
      case Storage::output:
      case Storage::gradient:
        return reinterpret_cast<std::byte*>(border_.data);
      case Storage::frame:
        break;
    }
    return D::counts_only ? nullptr : frame_ + offsets_[at(b)];
  }

  // Parameters and gradients of the groups while a pass works.
  struct Group {
    View<const T> parameters;
    View<float> gradients;
  };
  [[nodiscard]] bool is_table(int group) const { return table_ != nullptr && group == 0; }
  ParameterStore<D, T>& store(int group) { return is_table(group) ? table_->store() : rest_; }
  Group& group_of(int weight) { return groups_[table_ != nullptr && !graph_.weight(weight).is_table ? 1 : 0]; }
  [[nodiscard]] const ParameterLayout& layout_of(int weight) {
    return graph_.weight(weight).is_table ? table_->store().layout() : rest_.layout();
  }
  View<const T> parameter(int weight) {
    if (weight < 0) return {};
    return tensor_of(layout_of(weight), group_of(weight).parameters, graph_.weight(weight).name);
  }
  View<float> gradient(int weight) {
    if (weight < 0) return {};
    return tensor_of(layout_of(weight), group_of(weight).gradients, graph_.weight(weight).name);
  }
  [[nodiscard]] Range uncut() const { return {rest_.layout().whole_begin, rest_.layout().whole_end}; }
  // Of an uncut parameter, its part of the deferred copies.
  template <class U>
  View<U> uncut_part(View<U> copies, int weight) {
    if (weight < 0) return {};
    const ParameterTensor* tensor = rest_.layout().find(graph_.weight(weight).name);
    return copies.slice(tensor->offset - uncut().begin, tensor->count());
  }
  View<const T> norm_parameter(const Step& step, int i) {
    const int weight = step.weights[at(i)];
    if (step.deferred_norm && phase_ == Phase::weights) return uncut_part(View<const T>(deferred_kept_->uncut), weight);
    return parameter(weight);
  }
  View<float> norm_gradient(const Step& step, int i) {
    const int weight = step.weights[at(i)];
    return step.deferred_norm ? uncut_part(deferred_kept_->d_uncut, weight) : gradient(weight);
  }
  template <class U>
  static View<std::byte> raw(View<U> v) {
    return {reinterpret_cast<std::byte*>(const_cast<std::remove_const_t<U>*>(v.data)),
            v.count * static_cast<std::int64_t>(sizeof(U))};
  }

  // ---- products of 8-bit operands

  [[nodiscard]] bool rounds(const Step& step, std::int64_t m, std::int64_t n, std::int64_t k) const {
    return step.eight_bit && rounds_operands<T>(context_, m, n, k);
  }
  [[nodiscard]] std::int64_t rounded_operands(const Step& step) const {
    const std::int64_t widths = step.code == Code::linear_activation ? inputs_of(step.activation) : 1;
    const std::int64_t m = of(step.m);
    const std::int64_t n = widths * of(step.n);
    const std::int64_t k = of(step.k);
    return rounds(step, m, n, k) ? cost::room_8bit(m, n, k) : 0;
  }
  // Rounded operands lie between the two ends of the frame's stack.
  [[nodiscard]] View<std::byte> rounding_scratch(std::int64_t count) const {
    std::int64_t low = 0;
    for (int b = 0; b < program_->buffer_count; ++b) {
      const program::Buffer& buffer = program_->buffer(b);
      const bool lives = buffer.phase == static_cast<int>(phase_) && buffer.first <= step_ && step_ <= buffer.last;
      if (lives && !buffer.high) low = std::max(low, offsets_[at(b)] + bytes(b));
    }
    return {D::counts_only ? nullptr : frame_ + low, count};
  }
  template <class C>
  void product(const Step& step, op::Kind kind, std::int64_t m, std::int64_t n, std::int64_t k, View<const T> a,
               View<const T> b, View<C> c, bool accumulate = false, View<const T> bias = {}) {
    if constexpr (std::is_same_v<T, bfloat16>) {
      if (rounds(step, m, n, k)) {
        context_.device.gemm_8bit(kind, m, n, k, a, b, c, accumulate, bias, rounding_scratch(cost::room_8bit(m, n, k)));
        return;
      }
    }
    context_.device.gemm(kind, m, n, k, a, b, c, accumulate, bias);
  }

  // ---- steps

  void execute(const Step& step) {
    D& device = context_.device;
    const std::int64_t m = of(step.m);
    const std::int64_t n = of(step.n);
    const std::int64_t k = of(step.k);
    const View<T> in = value(step.in[0]);
    const View<T> out = value(step.out[0]);
    const int weight = step.weights[0];
    switch (step.code) {
      case Code::linear:
        product(step, op::Kind::gemm_nt, m, n, k, View<const T>(in), parameter(weight), out, false, bias(step));
        break;
      case Code::linear_activation: {
        const std::int64_t width = inputs_of(step.activation) * n;
        const View<T> g = value(step.out[1]);
        if (rounds(step, m, width, k)) {
          product(step, op::Kind::gemm_nt, m, width, k, View<const T>(in), parameter(weight), out, false, bias(step));
          device.activation_forward(step.activation, m, n, out, g);
        } else {
          device.gemm_activation(step.activation, m, n, k, in, parameter(weight), bias(step), out, g);
        }
        break;
      }
      case Code::input_gradient:
        product(step, op::Kind::gemm_nn, m, n, k, View<const T>(in), parameter(weight), out);
        break;
      case Code::activation_gradient: {
        const View<T> u = value(step.in[1]);
        const View<T> dg = value(step.scratch[0]);
        if (rounds(step, m, n, k)) {
          product(step, op::Kind::gemm_nn, m, n, k, View<const T>(in), parameter(weight), dg);
          device.activation_backward(step.activation, m, n, u, dg, out);
        } else {
          device.gemm_activation_backward(step.activation, m, n, k, in, parameter(weight), u, dg, out);
        }
        break;
      }
      case Code::weight_gradient:
        product(step, op::Kind::gemm_tn, m, n, k, View<const T>(in), View<const T>(value(step.in[1])), gradient(weight),
                rest_adds_ || rest_.layout().written_end == 0);
        break;
      case Code::bias_gradient:
        device.bias_gradient(m, n, in, gradient(step.weights[1]));
        break;
      case Code::norm_forward:
        device.norm_forward(layer_.norm, m, n, layer_.norm_epsilon, in, norm_parameter(step, 0),
                            norm_parameter(step, 1), out, value<float>(step.out[1]));
        break;
      case Code::add_norm_forward:
        device.add_norm_forward(layer_.norm, m, n, layer_.norm_epsilon, in, value(step.in[1]), norm_parameter(step, 0),
                                norm_parameter(step, 1), out, value(step.out[1]), value<float>(step.out[2]));
        break;
      case Code::norm_recompute:
        device.norm_again(layer_.norm, m, n, in, norm_parameter(step, 0), norm_parameter(step, 1),
                          value<float>(step.in[1]), out);
        break;
      case Code::norm_backward:
        device.norm_backward(layer_.norm, m, n, in, value(step.in[1]), norm_parameter(step, 0),
                             value<float>(step.in[2]), value(step.in[3]), out, norm_gradient(step, 0),
                             norm_gradient(step, 1));
        break;
      case Code::activation_forward:
        device.activation_forward(step.activation, m, n, in, out);
        break;
      case Code::activation_backward:
        device.activation_backward(step.activation, m, n, in, value(step.in[1]), out);
        break;
      case Code::add:
        device.add(m, in, value(step.in[1]), out);
        break;
      case Code::multiply:
        device.multiply(m, in, value(step.in[1]), out);
        break;
      case Code::rotate:
      case Code::rotate_back:
        rotate(out, m, step.code == Code::rotate_back);
        break;
      case Code::attention_forward:
      case Code::attention_backward:
      case Code::ring_forward:
      case Code::ring_backward:
      case Code::to_heads:
      case Code::projection_to_heads:
      case Code::to_tokens:
      case Code::projection_to_tokens:
        attend(step, in, out);
        break;
      case Code::look_up:
        device.embedding_forward(m, n, slot_->tokens, first_token(), of(program::Letter::vocabulary),
                                 table_->rows(groups_[0].parameters), out);
        break;
      case Code::look_up_backward:
        device.embedding_backward(m, n, slot_->tokens, first_token(), of(program::Letter::vocabulary), in,
                                  table_->rows(groups_[0].gradients));
        break;
      case Code::add_positions:
        for (int i = 0; i < context_.pieces(); ++i)
          device.position_forward(m, context_.samples, n, context_.first_position_local(i), parameter(weight),
                                  out.slice(i * m * n, m * n));
        break;
      case Code::positions_gradient:
        for (int i = 0; i < context_.pieces(); ++i)
          device.position_backward(m, context_.samples, n, context_.first_position_local(i), in.slice(i * m * n, m * n),
                                   gradient(weight));
        break;
      case Code::cross_entropy:
        Logits<D, T>(context_, layer_)
            .cross_entropy(m, table_->rows(groups_[0].parameters), {}, table_->rows(groups_[0].gradients), {},
                           slot_->tokens, scale_, out,
                           {value(step.scratch[0]), value<float>(step.scratch[1]), value<float>(step.scratch[2])});
        break;
      case Code::copy:
        device.copy(raw(in), raw(out));
        break;
      case Code::all_gather:
        context_.tensor.all_gather(View<const T>(in), out);
        break;
      case Code::all_reduce:
        if (context_.spec.tensor > 1) context_.tensor.all_reduce(out, comm::ReduceOp::sum);
        break;
      case Code::reduce_scatter:
        context_.tensor.reduce_scatter(in, out);
        break;
      case Code::acquire:
        groups_[at(step.group)].parameters = store(step.group).acquire();
        break;
      case Code::open_gradients:
        if (!is_table(step.group)) rest_adds_ = rest_.adds_gradients();
        groups_[at(step.group)].gradients = store(step.group).open_gradients();
        break;
      case Code::close_gradients:
        store(step.group).close_gradients(groups_[at(step.group)].gradients);
        break;
      case Code::keep_uncut:
        device.copy(raw(groups_[0].parameters.slice(uncut().begin, uncut().count())), raw(deferred_kept_->uncut));
        device.zero(raw(deferred_kept_->d_uncut));
        break;
      case Code::add_uncut:
        device.accumulate(uncut().count(), View<const float>(deferred_kept_->d_uncut),
                          groups_[0].gradients.slice(uncut().begin, uncut().count()));
        break;
    }
  }

  // The bias of a product whose results are added up over tensor ranks enters the sum once.
  View<const T> bias(const Step& step) {
    return step.bias_once && context_.tensor_rank() > 0 ? View<const T>{} : parameter(step.weights[1]);
  }
  // The first token of this rank's part of the vocabulary.
  [[nodiscard]] std::int64_t first_token() const { return context_.tensor_rank() * of(program::Letter::vocabulary); }
  // Queries and keys, piece by piece of the sequence; `rows` of a piece.
  void rotate(View<T> qkv, std::int64_t rows, bool inverse) {
    const AttentionHeads heads(layer_, context_.spec.tensor);
    for (int i = 0; i < context_.pieces(); ++i)
      context_.device.rotary(rows, context_.samples, context_.first_position(i), heads.heads + heads.kv_heads,
                             layer_.head_dim, heads.qkv(), layer_.rope_theta, inverse,
                             qkv.slice(i * rows * heads.qkv(), rows * heads.qkv()));
  }
  void attend(const Step& step, View<T> in, View<T> out) {
    const bool forward = step.code == Code::attention_forward || step.code == Code::ring_forward;
    const bool backward = step.code == Code::attention_backward || step.code == Code::ring_backward;
    AttentionResults<T> results;
    if (forward) results = {out, value<float>(step.out[1]), out};
    if (backward) results = {value(step.in[1]), value<float>(step.in[2]), value(step.in[1])};
    const View<T> d_out = backward ? value(step.in[3]) : View<T>{};
    const auto scratch = [&](int i) { return value(step.scratch[at(i)]); };
    const auto sums = [&](int i) { return value<float>(step.scratch[at(i)]); };
    if (step.code == Code::ring_forward || step.code == Code::ring_backward) {
      Attention<D, T, SequenceKind::ring> ring(context_, layer_);
      if (forward)
        ring.again(in, results, {scratch(0), scratch(1), scratch(2), sums(3), sums(4)});
      else
        ring.backward(in, results, d_out, out,
                      {sums(0), scratch(1), scratch(2), sums(3), sums(4), scratch(5), scratch(6), sums(7)});
      return;
    }
    if (context_.spec.sequence != SequenceKind::ulysses) {
      Attention<D, T, SequenceKind::none> whole(context_, layer_);
      if (forward)
        whole.again(in, results);
      else
        whole.backward(in, results, d_out, sums(0), out);
      return;
    }
    Attention<D, T, SequenceKind::ulysses> ulysses(context_, layer_);
    switch (step.code) {
      case Code::attention_forward:
        ulysses.core_forward(in, results);
        break;
      case Code::attention_backward:
        ulysses.core_backward(in, results, d_out, sums(0), out);
        break;
      case Code::to_heads:
        ulysses.to_heads(in, scratch(0), out);
        break;
      case Code::projection_to_heads:
        ulysses.projection_to_heads(in, scratch(0), out);
        break;
      case Code::to_tokens:
        ulysses.to_tokens(in, scratch(0), out);
        break;
      default:
        ulysses.projection_to_tokens(in, scratch(0), out);
        break;
    }
  }

  Context<D> context_;
  LayerSpec layer_;
  forward::Graph graph_;
  program::Numbers numbers_;
  bool splits_;  ///< backward may come in two phases
  int number_;
  float scale_;
  std::unique_ptr<Table<D, T>> own_table_;
  Table<D, T>* table_ = nullptr;
  ParameterStore<D, T> rest_;
  std::shared_ptr<const Program> program_;
  std::array<std::int64_t, program::phases> frames_{};         ///< bytes
  std::array<std::int64_t, Program::most_buffers> offsets_{};  ///< of buffers in their frame
  std::vector<Kept> slots_;
  std::vector<Kept> deferred_;

  // Of the pass that runs now.
  Phase phase_ = Phase::forward;
  int step_ = 0;
  const Kept* slot_ = nullptr;
  const Kept* deferred_kept_ = nullptr;
  View<T> border_;
  std::byte* frame_ = nullptr;
  std::array<Group, 2> groups_{};
  bool rest_adds_ = true;  ///< weight gradients are added to, not written
};

}  // namespace galvatron::nn
