// Experts whose tokens go to other ranks as means of those that hash alike (runtime/lsh.hpp): the steps of a program
// with compressed dispatch.
//
//   rows (T, H) -> buckets, means (B, H) -> [bounds of all ranks] -> [to the ranks of their experts] -> experts
//   [-> back] -> outputs (B, H) -> y (T, H) = sum over k of weight (output + g (row - mean))
//
// Backward sends the sums of the output's gradient, and gets those of the means. A rank has room for a bucket of each
// choice. Where the ranks of a group have more buckets for their choices than LshOptions::most_rate, each choice gets a
// bucket of its own, which is plain dispatch by the same steps; all of them know that from the bounds of all.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/op/kind.hpp>
#include <galvatron/program/program.hpp>
#include <galvatron/runtime/context.hpp>
#include <galvatron/runtime/experts.hpp>
#include <galvatron/runtime/lsh.hpp>

namespace galvatron::runtime {

/// The rotations of a layer, drawn from the plan's seed and the layer's number: equal on all ranks, no parameters.
template <class D, class T>
class LayerRotations {
 public:
  /// Takes their memory from `states`: none for a layer that compresses nothing.
  LayerRotations(const Context<D>& context, const LayerSpec& layer, int number, device::Region& states) {
    if (layer.experts == 0 || !context.spec.compresses_tokens()) return;
    drawn_ = states.take<T>(context.lsh.rotation_elements(layer.hidden));
    if constexpr (!D::counts_only) {
      std::vector<float> values(static_cast<std::size_t>(drawn_.count));
      draw_rotations(Rotation::drawn, context.lsh.seed, number, View<float>{values.data(), drawn_.count});
      context.device.write(drawn_, [&values](View<T> to) {
        std::ranges::transform(values, to.begin(), [](float value) { return T(value); });
      });
    }
  }
  [[nodiscard]] Rotations<T> view() const { return {.drawn = drawn_}; }

 private:
  View<T> drawn_;  // (H p, width)
};

/// @tparam Values  as of ExpertSteps
template <class D, class T, class Values>
class CompressedExperts : ExpertSteps<D, T, Values> {
  using Base = ExpertSteps<D, T, Values>;
  using Step = program::Step;
  using Exchange = typename Base::Exchange;

 public:
  /// @param gains  of experts (E), or none
  CompressedExperts(Context<D>& context, const LayerSpec& layer, const Step& step, float token_weight,
                    const program::Numbers& numbers, const Values& values, const Rotations<T>& rotations,
                    View<const T> gains)
      : Base(context, layer, step, token_weight, numbers, values),
        compression_(context.device, {context.lsh.hashes, context.lsh.width}, rotations, layer.hidden,
                     {.of_all = context.lsh.residual == ResidualKind::off ? 0.0F : 1.0F, .of_expert = in_fp32(gains)}) {
  }

  /// @param rows  of this rank, here and below
  void compress(std::int64_t rows) {
    if (rows == 0) return this->c_.device.zero(raw_bytes(out_number(2)));  // no buckets
    const HashingScratch scratch(of_step<float>(this->step_.scratch[0]), of_step<std::int32_t>(this->step_.scratch[1]),
                                 of_step<std::int32_t>(this->step_.scratch[2]));
    add_time(-1);
    compression_.compress(rows, own(0, rows), scratch, buckets(number(1), number(2), out_number(1), out_number(2)),
                          this->template out<T>(0));
    add_time(1);
  }
  void exchange_bounds(std::int64_t rows) {
    const View<std::int32_t> all = out_number(0);
    const device::TokenBuckets found = buckets(number(2), number(3), out_number(2), out_number(3));
    const View<T> means = this->template out<T>(1);
    gather_bounds(found, all);
    if (exceeds_rate(all)) {
      if (rows > 0) compression_.pass(own(1, rows), found, means);
      gather_bounds(found, all);
    }
    if (rows == 0) return;
    if (const View<double> sums = this->c_.dispatch.sums; D::counts_only || !sums.empty())
      this->c_.device.bucket_distances(found, this->layer_.hidden, own(1, rows), View<const T>(means),
                                       sums.slice(device::bucket_sums, 4));
  }
  void bucket_means(std::int64_t rows) {
    this->c_.device.bucket_sums(buckets(number(1), number(2), number(3), number(4)), this->layer_.hidden, true,
                                View<const float>{}, own(0, rows), this->template out<T>(0));
  }

  /// @param w1, w2  as of ExpertSteps
  void forward(View<const T> w1, View<const T> w2) {
    const Exchange exchange = exchange_of_buckets();
    const View<T> received = this->template out<T>(2);
    for (int round = 0; round < exchange.rounds(); ++round) {
      const std::int64_t n = exchange.rows(round);
      this->send(exchange, round, this->template in<T>(0), this->layer_.hidden, received);
      this->compute(n, this->own_offsets(exchange, round), received, w1, w2, this->scratch(0));
      give_back(exchange, round, this->scratch(0), this->template out<T>(0));
    }
    add(exchange, this->template out<T>(0));
  }
  void decompress(std::int64_t rows) {
    compression_.decompress(rows, buckets(number(5), number(6), number(7), number(8)), number(4), own_weights(3, rows),
                            View<const T>(this->template in<T>(0)), own(1, rows),
                            View<const T>(this->template in<T>(2)), this->template out<T>(0));
  }

  void compress_gradient(std::int64_t rows) {
    compression_.compress_gradient(buckets(number(2), number(3), number(4), number(5)), own_weights(1, rows),
                                   own(0, rows), this->template out<T>(0));
  }
  void weights_backward(std::int64_t rows) {
    const View<float> d_weights = this->template out<float>(0);
    compression_.weights_backward(rows, buckets(number(5), number(6), number(7), number(8)), number(4),
                                  View<const T>(this->template in<T>(1)), own(2, rows),
                                  View<const T>(this->template in<T>(3)), own(0, rows),
                                  this->own_choices(d_weights, rows * this->router_.active));
  }
  /// @param d_gains  (E): grow by the gradient of the gains
  void residual_gradient(std::int64_t rows, View<float> d_gains) {
    const View<float> sums = of_step<float>(this->step_.scratch[0]);
    this->c_.device.zero(raw_bytes(sums));
    compression_.gain_backward(buckets(number(4), number(5), number(6), number(7)), own_weights(1, rows), own(2, rows),
                               View<const T>(this->template in<T>(3)), own(0, rows), sums);
    // Tensor ranks that have the same rows have sent a part of them each.
    if (this->c_.spec.tensor > 1 && !this->c_.spec.cuts_over_tensor())
      this->c_.tensor.all_reduce(sums, comm::ReduceOp::sum);
    this->c_.device.accumulate(sums.count, View<const float>(sums), d_gains);
  }
  /// @param adds1, adds2  as of ExpertSteps
  void backward(View<const T> w1, View<const T> w2, View<float> d_w1, bool adds1, View<float> d_w2, bool adds2) {
    const std::int64_t h = this->layer_.hidden;
    const Exchange exchange = exchange_of_buckets();
    const View<T> u = this->template out<T>(1);
    const View<T> received = this->template out<T>(2);
    for (int round = exchange.rounds() - 1; round >= 0; --round) {
      const std::int64_t n = exchange.rows(round);
      const bool first = round == exchange.rounds() - 1;
      const View<const std::int32_t> offsets = this->own_offsets(exchange, round);
      if (!first) {
        this->send(exchange, round, this->template in<T>(0), h, received);
        this->product(op::Kind::gemm_nt, n, this->inputs(), h, offsets, View<const T>(received), w1, u);
      }
      this->send(exchange, round, this->template in<T>(4), h, this->scratch(0));
      const View<T> g = this->scratch(1).slice(0, n * this->width());
      const View<T> d_received = this->scratch(1).slice(0, n * h);
      this->backward_to_inputs(n, offsets, {}, {}, this->scratch(0), u, g, {}, w2, d_w2, adds2 || !first);
      this->backward_to_rows(n, offsets, u, received, d_received, w1, d_w1, adds1 || !first);
      give_back(exchange, round, d_received, this->template out<T>(0));
    }
    add(exchange, this->template out<T>(0));
  }
  void decompress_gradient(std::int64_t rows) {
    compression_.decompress_gradient(rows, buckets(number(5), number(6), number(7), number(8)), number(4),
                                     own_weights(3, rows), own(0, rows), View<const T>(this->template in<T>(1)),
                                     View<const T>(this->template in<T>(2)), this->template out<T>(0));
  }

 private:
  void add_time(double sign) {
    if (const View<double> sums = this->c_.dispatch.sums; !sums.empty())
      this->c_.device.add_time(sign, sums.slice(device::hashing_seconds, 1));
  }
  template <class U>
  View<U> of_step(int id) const {
    return this->values_(std::type_identity<U>{}, id);
  }
  /// In a step that reads the gains.
  View<const float> in_fp32(View<const T> gains) const {
    if constexpr (std::is_same_v<T, float>) return gains;
    const int id = this->step_.scratch[0];
    if (gains.empty() || !reads_gains()) return {};
    const View<float> out = of_step<float>(id);
    this->c_.device.zero(raw_bytes(out));
    this->c_.device.accumulate(gains.count, gains, out);
    return out;
  }
  [[nodiscard]] bool reads_gains() const {
    using Code = program::Code;
    return this->step_.code == Code::decompress || this->step_.code == Code::bucket_weights_back ||
           this->step_.code == Code::decompress_gradient;
  }
  View<std::int32_t> number(int i) const { return this->template in<std::int32_t>(i); }
  View<std::int32_t> out_number(int i) const { return this->template out<std::int32_t>(i); }
  /// This rank's rows of an operand.
  View<const T> own(int i, std::int64_t rows) const { return this->own_rows(this->template in<T>(i), rows); }
  View<const float> own_weights(int i, std::int64_t rows) const {
    return this->own_choices(this->template in<float>(i), rows * this->router_.active);
  }
  /// @param indices  bucket, members and begins
  device::TokenBuckets buckets(View<const std::int32_t> order, View<const std::int32_t> offsets,
                               View<std::int32_t> indices, View<std::int32_t> bounds) const {
    const std::int64_t rows = order.count;
    return {.experts = this->router_.experts,
            .active = this->router_.active,
            .rows = rows,
            .order = order,
            .offsets = offsets,
            .bucket = indices.slice(0, rows),
            .members = indices.slice(rows, rows),
            .begins = indices.slice(2 * rows, rows + 1),
            .bounds = bounds};
  }

  void gather_bounds(const device::TokenBuckets& found, View<std::int32_t> all) {
    this->c_.experts.all_gather(View<const std::int32_t>(found.bounds), all);
  }
  /// The same on all ranks of the group. @param all  (ranks, E + 1)
  bool exceeds_rate(View<std::int32_t> all) {
    if (D::counts_only || this->c_.lsh.most_rate >= 1) return false;
    std::vector<std::int32_t> bounds(static_cast<std::size_t>(all.count));
    this->c_.device.fetch(View<const std::int32_t>(all), bounds.data());
    std::int64_t sum = 0;
    const auto ranks = static_cast<std::size_t>(this->c_.experts.size());
    for (std::size_t rank = 1; rank <= ranks; ++rank)
      sum += bounds[rank * static_cast<std::size_t>(this->router_.experts + 1) - 1];
    const auto choices = static_cast<double>(this->numbers().exchanged_tokens() * this->router_.active);
    return static_cast<double>(sum) > this->c_.lsh.most_rate * choices;
  }

  // On a device that only counts there are as many buckets as stated.
  Exchange exchange_of_buckets() {
    Exchange out = this->exchange_of(1);
    if (!out.plan) out.capacity = this->c_.lsh.buckets(out.capacity);
    return out;
  }
  /// Where several ranks have parts of an expert, their results come to scratch memory.
  void give_back(const Exchange& exchange, int round, View<T> rows, View<T> to) {
    const std::int64_t h = this->layer_.hidden;
    const View<T> parts = this->c_.spec.etp() > 1 && exchange.plan ? this->scratch(3) : to;
    this->send_back(exchange, round, rows, h, parts, to.count / h);
  }
  /// And become their sum.
  void add(const Exchange& exchange, View<T> to) {
    const std::int64_t h = this->layer_.hidden;
    const std::int64_t n = (exchange.plan ? exchange.plan->sent_rows() : this->c_.lsh.buckets(to.count / h)) * h;
    for (std::int64_t part = 1; part < this->c_.spec.etp(); ++part) {
      const View<T> before = part == 1 ? this->scratch(3).slice(0, n) : to.slice(0, n);
      const View<T> more = this->scratch(3).slice(part * to.count, n);
      this->c_.device.add(n, View<const T>(before), View<const T>(more), to.slice(0, n));
    }
  }

  Compression<D, T> compression_;
};

}  // namespace galvatron::runtime
