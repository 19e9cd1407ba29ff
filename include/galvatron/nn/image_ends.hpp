// The ends of a model of images: patches to tokens, and a classifier of the class token (ViT).
//
//   patches -> linear --+--> [class token |] patches [-> + positions] [-> norm]        class token's rows: the first b
//   [class token -------+]
//
// Class token and positions are ViT's, the norm is Swin's. Under Megatron sequence parallelism only the first tensor
// rank has the class tokens. Shapes as in nn/block.hpp; P numbers of a patch.
#pragma once

#include <cstdint>
#include <vector>

#include <galvatron/device/device.hpp>
#include <galvatron/nn/closing_norm.hpp>
#include <galvatron/nn/context.hpp>
#include <galvatron/nn/layer.hpp>
#include <galvatron/nn/logits.hpp>
#include <galvatron/nn/parameter_store.hpp>

namespace galvatron::nn {

/// Rows of class tokens on this rank, at the front.
template <SequenceKind kind, class D>
std::int64_t class_rows(const Context<D>& context, const LayerSpec& layer) {
  const bool elsewhere = kind == SequenceKind::megatron && context.tensor_rank() > 0;
  return elsewhere || !layer.class_token ? 0 : context.samples;
}

template <class D, class T, SequenceKind kind>
class PatchEmbedding {
  using Closing = ClosingNorm<D, T>;

 public:
  /// What backward needs besides the patches.
  using Internals = typename Closing::Internals;

  PatchEmbedding(Context<D>& context, const LayerSpec& layer)
      : c_(context),
        layer_(layer),
        layout_(parameter_layout(layer, ParameterPart::rest, context.spec.tensor, static_cast<int>(context.shards()))),
        closing_(c_, layer_, layout_),
        class_rows_(class_rows<kind>(context, layer)),
        rows_(context.rows_local() - class_rows_) {}

  [[nodiscard]] const ParameterLayout& layout() const { return layout_; }
  [[nodiscard]] bool backward_needs_parameters() const { return closing_.exists(); }
  Internals take_internals(device::Region& from) const { return closing_.take_internals(from); }

  /// Room for the patches of a micro-batch, as much on every rank; those of this rank are (rows, P).
  View<T> take_patches(device::Region& from) const {
    const bool cut = kind == SequenceKind::megatron;
    const std::int64_t most = c_.rows_local() - (cut || !layer_.class_token ? 0 : c_.samples);
    return from.take<T>(most * layer_.patch_width).slice(0, rows_ * layer_.patch_width);
  }

  /// patches (rows, P) -> y (rows_local, H).
  void forward(View<const T> parameters, View<const T> patches, const Internals& in, View<T> y) {
    const std::int64_t h = layer_.hidden;
    const View<T> sum = closing_.input(in, y);
    if (rows_ > 0)
      c_.device.gemm(op::Kind::gemm_nt, rows_, h, layer_.patch_width, patches,
                     of(parameters, ParameterName::patch_weight), behind_class(sum), false,
                     of(parameters, ParameterName::patch_bias));
    if (class_rows_ > 0) {
      const View<T> tokens = sum.slice(0, class_rows_ * h);
      c_.device.zero({reinterpret_cast<std::byte*>(tokens.data), tokens.count * static_cast<std::int64_t>(sizeof(T))});
      c_.device.position_forward(class_rows_, class_rows_, h, 0, of(parameters, ParameterName::class_token), tokens);
    }
    if (layer_.position == PositionKind::learned)
      c_.device.position_forward(c_.rows_local(), c_.samples, h, first_position(),
                                 of(parameters, ParameterName::positions), sum);
    closing_.forward(parameters, in, y);
  }

  /// d (rows_local, H): the gradient of y. `parameters` may be empty where backward does not need them.
  void backward(View<const T> parameters, View<float> gradients, View<const T> patches, const Internals& in,
                View<T> d) {
    const std::int64_t h = layer_.hidden;
    closing_.backward(parameters, gradients, in, d);
    if (layer_.position == PositionKind::learned)
      c_.device.position_backward(c_.rows_local(), c_.samples, h, first_position(), d,
                                  of(gradients, ParameterName::positions));
    if (class_rows_ > 0)
      c_.device.bias_gradient(class_rows_, h, d.slice(0, class_rows_ * h), of(gradients, ParameterName::class_token));
    if (rows_ == 0) return;
    c_.device.gemm(op::Kind::gemm_tn, h, layer_.patch_width, rows_, behind_class(d), patches,
                   of(gradients, ParameterName::patch_weight), true, {});
    c_.device.bias_gradient(rows_, h, behind_class(d), of(gradients, ParameterName::patch_bias));
  }

 private:
  template <class U>
  View<U> of(View<U> store, ParameterName name) const {
    return tensor_of(layout_, store, name);
  }
  View<T> behind_class(View<T> all) const { return all.slice(class_rows_ * layer_.hidden, rows_ * layer_.hidden); }
  [[nodiscard]] std::int64_t first_position() const {
    return kind == SequenceKind::megatron ? c_.tensor_rank() * (c_.sequence / c_.spec.tensor) : 0;
  }

  Context<D>& c_;
  LayerSpec layer_;
  ParameterLayout layout_;
  Closing closing_;
  std::int64_t class_rows_;
  std::int64_t rows_;  ///< of patches
};

template <class D, class T, class Kinds>
class PatchEmbeddingLayer final : public Layer<T> {
 public:
  PatchEmbeddingLayer(Context<D> context, const LayerSpec& layer, device::Region& states)
      : context_(context), body_(context_, layer), store_(context_, states, body_.layout()) {}

  void take_stash(device::Region& stash, int slots, int) override {
    patches_.clear();
    internals_.clear();
    for (int i = 0; i < slots; ++i) {
      patches_.push_back(body_.take_patches(stash));
      internals_.push_back(body_.take_internals(stash));
    }
  }
  View<T> input(int) override { return {}; }
  View<std::int32_t> tokens(int) override { return {}; }
  View<T> patches(int slot) override { return patches_[static_cast<std::size_t>(slot)]; }

  void forward(int slot, View<T> y) override {
    const device::Scope scope(context_.workspace);
    body_.forward(store_.acquire(), patches(slot), internals_[static_cast<std::size_t>(slot)], y);
  }
  void backward(int slot, View<T> d) override {
    const device::Scope scope(context_.workspace);
    const View<float> gradients = store_.open_gradients();
    const View<const T> parameters = body_.backward_needs_parameters() ? store_.acquire() : View<const T>{};
    body_.backward(parameters, gradients, patches(slot), internals_[static_cast<std::size_t>(slot)], d);
    store_.close_gradients(gradients);
  }

  void initialise(const ParameterSource& source) override { store_.initialise(source, 0); }
  void zero_gradients() override { store_.zero_gradients(); }
  void start_synchronise() override { store_.start_synchronise(); }
  void synchronise() override { store_.synchronise(); }
  void add_gradient_squares() override { store_.add_gradient_squares(); }
  void update() override { store_.update(0); }
  void visit(const StoreVisitor& visitor) override { visitor(store_.view(0)); }

 private:
  Context<D> context_;
  using Body = PatchEmbedding<D, T, Kinds::sequence>;
  Body body_;
  ParameterStore<D, T> store_;
  std::vector<View<T>> patches_;
  std::vector<typename Body::Internals> internals_;
};

/// Norm and logits of the class token; the arithmetic of a HeadLayer.
template <class D, class T, SequenceKind kind>
class Classifier : public HeadBase<D, T> {
  using Base = HeadBase<D, T>;
  using Base::c_, Base::layer_, Base::layout_, Base::logits_;

 public:
  using Base::Base;

  /// Rows that have a target: the samples.
  [[nodiscard]] std::int64_t targets() const { return c_.samples; }

  /// x (rows_local, H) becomes the gradient of the loss with respect to x; targets (b) are classes. The other
  /// arguments as for Head.
  void forward_backward(View<const T> table, View<const T> rest, View<float> d_table, View<float> d_rest,
                        View<const std::int32_t> targets, float scale, View<T> x) {
    const device::Scope scope(c_.workspace);
    device::Region& ws = c_.workspace;
    const std::int64_t h = layer_.hidden;
    const std::int64_t b = c_.samples;
    const std::int64_t own = class_rows<kind>(c_, layer_);
    const auto of = [this](auto store, ParameterName name) { return tensor_of(layout_, store, name); };
    const View<const T> gamma = of(rest, ParameterName::norm1_gamma);
    const View<T> n = ws.take<T>(b * h);  // (b, H)
    const View<float> stats = ws.take<float>(b * 2);
    const View<T> token = x.slice(0, own * h);
    if (own > 0)
      c_.device.norm_forward(layer_.norm, b, h, layer_.norm_epsilon, token, gamma, of(rest, ParameterName::norm1_beta),
                             n, stats);
    if constexpr (kind == SequenceKind::megatron) c_.tensor.broadcast(n, 0);
    logits_.cross_entropy(b, table, of(rest, ParameterName::logits_bias), d_table,
                          of(d_rest, ParameterName::logits_bias), targets, scale, n);
    if (c_.spec.tensor > 1) c_.tensor.all_reduce(n, comm::ReduceOp::sum);
    if (own > 0)
      c_.device.norm_backward(layer_.norm, b, h, n, token, gamma, stats, {}, token,
                              of(d_rest, ParameterName::norm1_gamma), of(d_rest, ParameterName::norm1_beta));
    const View<T> others = x.slice(own * h, x.count - own * h);
    c_.device.zero({reinterpret_cast<std::byte*>(others.data), others.count * static_cast<std::int64_t>(sizeof(T))});
  }
};

}  // namespace galvatron::nn
