// The Device concept: the operations that layer code is written against.
//
// device::Host executes them on this machine's cores, a device of the tests counts them, and a GPU device launches
// them. Every operation takes views of memory that the caller owns, works on row-major dense rows, and is
// deterministic: the same inputs and the same number of threads give the same bits. Element types T are float or
// bfloat16; sums, statistics, gradients of parameters and optimizer states are float. Activations are overwritten,
// parameter gradients accumulate. What an operation computes is said here alone: host/ and cuda/ have a function of its
// name each, and say how.
//
// Rows of activations are tokens in sequence-major order: row s * b + i is token s of sample i, so that a run of the
// sequence is a run of memory.
#pragma once

#include <cmath>
#include <compare>
#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/attention_shape.hpp>
#include <galvatron/device/kernels/embedding.hpp>
#include <galvatron/device/kernels/jitter.hpp>
#include <galvatron/device/kernels/lsh.hpp>
#include <galvatron/device/kernels/router.hpp>
#include <galvatron/device/product.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/strategy/lsh_options.hpp>

namespace galvatron::device {

/// Runs of `width` elements at equal distances in three directions: run (block, repeat, row) begins at
/// block * block distance + repeat * repeat distance + row * row distance of its tensor.
struct Runs {
  struct Distances {
    std::int64_t block = 0, repeat = 0, row = 0;
    friend constexpr bool operator==(const Distances&, const Distances&) = default;
  };
  std::int64_t blocks = 1, repeats = 1, rows = 1;
  std::int64_t width = 0;
  Distances from{}, to{};
  friend constexpr bool operator==(const Runs&, const Runs&) = default;

  [[nodiscard]] constexpr std::int64_t elements() const { return blocks * repeats * rows * width; }
};

/// An operand that is read, whose element type follows from another argument; takes mutable views too.
template <class T>
using In = std::type_identity_t<View<const std::remove_const_t<T>>>;

/// What loops and kernels take for an operand: the address of a view, null where it is empty; anything else as it is.
template <class T>
constexpr T* plain(const View<T>& view) {
  return view.empty() ? nullptr : view.data;
}
template <class T>
constexpr const T& plain(const T& value) {
  return value;
}

/// How a number becomes a bfloat16: the nearest, or one of its two neighbours at random with the number as the mean.
enum class Rounding : std::uint8_t { nearest, stochastic };

constexpr const char* name_of(Rounding rounding) { return rounding == Rounding::nearest ? "nearest" : "stochastic"; }
constexpr Rounding rounding_of(std::string_view name) {
  return name == name_of(Rounding::stochastic) ? Rounding::stochastic : Rounding::nearest;
}

/// AdamW (Loshchilov & Hutter 2019, decoupled decay): one step's constants.
struct AdamW {
  float learning_rate = 1e-3F;
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  float epsilon = 1e-8F;
  float weight_decay = 0.1F;
  std::int64_t step = 1;                  ///< counts from 1, for bias correction
  Rounding rounding = Rounding::nearest;  ///< of masters to working parameters
  std::uint64_t seed = 0;                 ///< of stochastic rounding, of working parameters and moments
};

/// The parameters that one operation steps.
struct AdamWPart {
  bool decays = true;
  std::uint32_t stream = 0;  ///< of the random bits of their rounding, of which every step has its own
  std::uint64_t first = 0;   ///< the first one's place in the stream, so that it does not matter who steps it
};

/// Weights of a router's losses of a row: the balance loss is balance * counts . probabilities, the z-loss z * lse^2.
struct RouterLoss {
  float balance = 0;
  float z = 0;
};

/// How choices of experts are put in the order of the experts.
struct ChoiceOrder {
  std::int64_t experts = 0;   ///< E
  std::int64_t active = 0;    ///< k: choices of a row
  std::int64_t capacity = 0;  ///< choices that an expert takes; 0: all
  DropOrder drops = DropOrder::position;
  std::int64_t first = 0;  ///< of the experts, where there is no capacity: choices of others count as dropped
};

/// Choices of experts in buckets of tokens that hash alike (LSH-MoE, Nie et al., NeurIPS 2024). Row i, in the order of
/// experts, is choice order[i], of token order[i] / k; those of expert e are [offsets[e], offsets[e + 1]). TokenBuckets
/// of an expert follow each other, numbered by their first row; bucket j has the rows members[begins[j]] to
/// members[begins[j + 1]], in order.
struct TokenBuckets {
  std::int64_t experts = 0;            ///< E
  std::int64_t active = 1;             ///< k
  std::int64_t rows = 0;               ///< at most: places in the views
  View<const std::int32_t> order{};    ///< (rows)
  View<const std::int32_t> offsets{};  ///< (E + 1)
  View<std::int32_t> bucket{};         ///< (rows)
  View<std::int32_t> members{};        ///< (rows)
  View<std::int32_t> begins{};         ///< (rows + 1)
  View<std::int32_t> bounds{};         ///< (E + 1): the buckets of expert e are [bounds[e], bounds[e + 1])

  /// Places of the table that number_buckets() searches.
  static constexpr std::int64_t table_places(std::int64_t rows) { return LshOptions::table_places(rows); }
};

/// How much of a token's distance from its bucket's mean is added to what an expert makes of the mean.
struct ResidualGain {
  float of_all = 1;
  View<const float> of_expert{};  ///< (E); empty: of_all
};

/// Elements of Device::loads().
inline constexpr std::int64_t most_loads = 1 << 16;

/// What a rank adds up in a step: the places in Device::sums().
enum StepSum : std::uint8_t {
  loss_sum,                                       ///< of cross-entropies, in nats: of the model's last layer
  gradient_squares,                               ///< of this rank's part of the gradient
  other_losses,                                   ///< sums of the losses inside of the model
  balance_loss = other_losses + most_losses - 1,  ///< of routers, as it is in the model's loss
  z_loss,                                         ///< the same
  step_sums                                       ///< their number
};
/// What compressed dispatch adds up in a step, for each layer.
enum DispatchSum : std::uint8_t {
  bucket_sums,                        ///< four of Device::bucket_distances()
  hashing_seconds = bucket_sums + 4,  ///< in which buckets and their means were found
  dispatch_sums                       ///< their number
};
/// Elements of Device::layer_sums().
inline constexpr std::int64_t most_layer_sums = 1 << 13;
/// Where a loss is summed: 0 that of the last layer, then the others in the order of the layers.
constexpr int sum_of_loss(int loss) { return loss == 0 ? loss_sum : other_losses + loss - 1; }

template <class D>
concept Device = requires(
    D& d, View<float> f, View<const float> cf, View<const std::int32_t> tokens, View<const bfloat16> half,
    View<std::byte> raw, std::int64_t n, AttentionShape shape, AttentionBias bias, DocumentRows documents,
    WindowShape windows, AdamW adam, AdamWPart part, Runs runs, RelativePositions relative, kernels::Router router,
    RouterLoss router_loss, ChoiceOrder order, kernels::CrossPolytope hashing, kernels::Jitter jitter,
    TokenBuckets buckets, ResidualGain gain, RowStrides strides, View<std::int32_t> numbers, View<double> sum,
    View<const double> sums, float* host, void (*writer)(View<float>), void (*body)()) {
  /// True when nothing is computed and views may be null.
  { D::counts_only } -> std::convertible_to<bool>;
  /// True when gemm_grouped() is an operation of its own, not a gemm() for each expert.
  { D::groups_products } -> std::convertible_to<bool>;
  /// Threads that one operation uses.
  { d.threads() } -> std::convertible_to<int>;

  // c (m, n) = a * b [+ bias (n)], or c += a * b when `accumulate`; operands as op::Kind says. With T = bfloat16, a and
  // b are bfloat16 and c is bfloat16 or float (tn: float). Bias only without accumulate.
  d.gemm(op::Kind::gemm_nt, n, n, n, cf, cf, f, /*accumulate=*/false, /*bias=*/cf);
  // The same with a and b bfloat16 that are scaled and rounded to 8 bits first (device/product.hpp), for extents
  // that cost::fits_8bit; c bfloat16 or float; `buffer` of cost::buffer_bytes_8bit(m, n, k) bytes.
  d.gemm_8bit(op::Kind::gemm_nt, n, n, n, half, half, f, /*accumulate=*/false, /*bias=*/half, /*buffer=*/raw);

  // c = scale * a * b, or c += scale * a * b, of operands that are columns of wider matrices (device/product.hpp);
  // every extent at least 1.
  d.gemm_columns(op::Kind::gemm_nt, n, n, n, strides, /*scale=*/1.0F, cf, cf, f, /*accumulate=*/true);

  // o (queries * b rows) and lse (b, heads, queries): natural-log sum of exponentials. Blocked; no (S, S) matrix.
  d.attention_forward(shape, /*q=*/cf, /*k=*/cf, /*v=*/cf, /*o=*/f, /*lse=*/f);
  // dq, dk, dv have the strides of q, k, v; delta (b, heads, queries) is scratch for row sums of o * do.
  d.attention_backward(shape, cf, cf, cf, /*o=*/cf, /*lse=*/cf, /*d_o=*/cf, /*dq=*/f, /*dk=*/f, /*dv=*/f, /*delta=*/f);
  // The same with biases.
  d.attention_forward(shape, cf, cf, cf, f, f, bias);
  d.attention_backward(shape, cf, cf, cf, cf, cf, cf, f, f, f, f, bias);
  // The same of packed documents, in the rows of one sample.
  d.attention_forward(shape, cf, cf, cf, f, f, AttentionBias{}, documents);
  d.attention_backward(shape, cf, cf, cf, cf, cf, cf, f, f, f, f, AttentionBias{}, documents);
  // bias (heads, distances) = the rows of the table (buckets, heads), by distance; dtable += the sums of dbias.
  d.relative_bias_forward(relative, /*heads=*/n, /*table=*/cf, /*bias=*/f);
  d.relative_bias_backward(relative, /*heads=*/n, /*dbias=*/cf, /*dtable=*/f);

  // Attention to two parts of the keys as attention to both: o and lse take in o_part and lse_part of the shape's
  // queries; o and o_part have rows of out_stride, lse and lse_part heads of lse_stride.
  d.attention_merge(shape, /*o_part=*/cf, /*lse_part=*/cf, /*o=*/f, /*lse=*/f);

  // o and lse (b, heads, tokens) from q, k, v and the table (bias rows, heads).
  d.window_attention_forward(windows, /*q=*/cf, /*k=*/cf, /*v=*/cf, /*table=*/cf, /*o=*/f, /*lse=*/f);
  // dq, dk, dv; the gradient of the table accumulates.
  d.window_attention_backward(windows, cf, cf, cf, /*table=*/cf, /*lse=*/cf, /*d_o=*/cf, /*dq=*/f, /*dk=*/f, /*dv=*/f,
                              /*dtable=*/f);

  // y = norm(x) * (gamma_offset(kind) + gamma) + beta (RMSNorm: empty); y may be x; stats (rows, 2) = mean and
  // 1/deviation (RMSNorm: 0 and 1/rms).
  d.norm_forward(NormKind::layer_norm, /*rows=*/n, /*hidden=*/n, /*epsilon=*/1e-5, cf, cf, cf, /*y=*/f, /*stats=*/f);
  // sum = x + r, rounded to T; y and stats as norm_forward has them of the sum. sum may be x or r, y may be r.
  d.add_norm_forward(NormKind::layer_norm, n, n, 1e-5, /*x=*/cf, /*r=*/cf, /*gamma=*/cf, /*beta=*/cf, /*sum=*/f,
                     /*y=*/f, /*stats=*/f);
  // y again from the statistics kept.
  d.norm_recompute(NormKind::layer_norm, n, n, cf, cf, cf, /*stats=*/cf, /*y=*/f);
  // dx = d_residual (empty: 0) + dnorm/dx * dy; dx may be d_residual, dy or x; dgamma, dbeta (RMSNorm: empty) +=
  // theirs. Both are empty where gamma and beta are frozen.
  d.norm_backward(NormKind::layer_norm, n, n, /*dy=*/cf, /*x=*/cf, /*gamma=*/cf, /*stats=*/cf, /*d_residual=*/cf,
                  /*dx=*/f, /*dgamma=*/f, /*dbeta=*/f);

  // out = a + b, and a * b, element by element; out may be a or b.
  d.add(n, cf, cf, f);
  d.multiply(n, cf, cf, f);
  // y (rows, columns) = x * noise, of the SampleStream that the words hold; y may be x. Its gradient is the same of dy.
  d.jitter(jitter, /*rows=*/n, /*stream=*/tokens, /*x=*/cf, /*y=*/f);
  // g (rows, n) from u (rows, n) for GELU and ReLU, (rows, 2n) = gate | up for gated kinds.
  d.activation_forward(ActivationKind::gelu, n, n, /*u=*/cf, /*g=*/f);
  // du from u and dg; du may be u, or dg where it has its shape (GELU and ReLU).
  d.activation_backward(ActivationKind::gelu, n, n, /*u=*/cf, /*dg=*/cf, /*du=*/f);
  // u (m, n), or (m, 2n) for gated kinds, = a (m, k) * b^T [+ bias], and g (m, n) of it, before its rounding or after.
  d.gemm_activation(ActivationKind::gelu, n, n, n, /*a=*/cf, /*b=*/cf, /*bias=*/cf, /*u=*/f, /*g=*/f);
  // du from u and dg = a (m, k) * b (k, n), which is rounded or not; dg is scratch; du may be u or dg as above.
  d.gemm_activation_backward(ActivationKind::gelu, n, n, n, /*a=*/cf, /*b=*/cf, /*u=*/cf, /*dg=*/f, /*du=*/f);
  // db (n) += column sums of dy (rows, n).
  d.bias_gradient(n, n, /*dy=*/cf, /*db=*/f);

  // Rotates the first heads of rows in place: pairs (j, j + head_dim/2) by s * kernels::rotary_frequency(); rows =
  // tokens * b with row r of token r / b; `inverse` rotates back (the gradient).
  d.rotary(/*rows=*/n, /*b=*/n, TokenPositions(n), /*rotated heads=*/n, /*head_dim=*/n, /*row stride=*/n,
           kernels::RotaryFrequencies(10000.0), /*inverse=*/false, f);

  // out (rows, H) = scale * table[token - first] for tokens in [first, first + count), else 0.
  d.embedding_forward(n, /*hidden=*/n, tokens, /*first=*/n, /*count=*/n, /*scale=*/1.0F, /*table=*/cf, /*out=*/f);
  // dtable[token - first] += scale * dout; deterministic.
  d.embedding_backward(n, n, tokens, n, n, 1.0F, /*dout=*/cf, /*dtable=*/f);
  // out[row] += table[first_position + row / b]; and its gradient.
  d.position_forward(/*rows=*/n, /*b=*/n, /*hidden=*/n, /*first_position=*/n, cf, f);
  d.position_backward(n, n, n, n, /*dout=*/cf, /*dtable=*/f);

  // out (b, H) = scale * sum of a sample's `tokens` rows of x; dx of every token = scale * dout.
  d.pool_forward(/*tokens=*/n, /*b=*/n, /*hidden=*/n, /*scale=*/1.0F, /*x=*/cf, /*out=*/f);
  d.pool_backward(n, n, n, 1.0F, /*dout=*/cf, /*dx=*/f);

  // A target below 0 means that the row has none: no loss and no gradient.
  // Over a shard of the vocabulary: logits (rows, columns) of which the first `valid` columns exist and stand for
  // tokens first, first + 1, ...; stats (rows, 3) = maximum, sum of exp(logit - maximum), the target's logit (or -inf).
  // Logits are soft-capped first: kernels::soft_cap().
  d.softmax_statistics(/*rows=*/n, /*columns=*/n, /*valid=*/n, /*first=*/n, /*logits=*/cf, /*targets=*/tokens, f,
                       /*cap=*/0.0F);
  // From the statistics (shards, rows, 3): lse (rows), and loss (1, or empty) += sum of (lse - target logit).
  d.softmax_merge(/*rows=*/n, /*shards=*/n, cf, /*lse=*/f, /*loss=*/sum);
  // logits become gradients in place: scale * (exp(logit - lse) - [column is the target]); 0 beyond `valid`. Balanced:
  // the shard is all of the vocabulary and has all targets, whose gradients are minus the sums of their rows' others. A
  // row sums to 0 then, where the rounding of lse would leave scale * 2^-24 |lse|. With a cap, which balanced gradients
  // have none of, times the slope of soft_cap().
  d.softmax_backward(n, n, n, n, /*lse=*/cf, tokens, /*scale=*/1.0F, /*balanced=*/false, /*logits=*/f, /*cap=*/0.0F);
  // row (n) = factor * exp(log), log (1) or empty for 0; and d_log (1) += the sum of row * d_row, in a fixed order.
  d.exponential_row(n, /*factor=*/1.0F, /*log=*/cf, /*row=*/f);
  d.exponential_row_backward(n, /*row=*/cf, /*d_row=*/cf, /*d_log=*/f);
  // weights and chosen (rows, k) of the experts of each row, from logits (rows, E); bias (E; may be empty) as in
  // kernels/router.hpp.
  d.route(router, /*rows=*/n, /*logits=*/cf, /*bias=*/cf, /*weights=*/f, /*chosen=*/numbers);
  // counts (samples, E) = choices among the rows of a sample, of which row r is of sample r % samples; of sigmoid those
  // without bias and groups.
  d.count_choices(router, n, /*samples=*/n, /*logits=*/cf, /*chosen=*/tokens, /*counts=*/f);
  // sums (1 each) += the losses of all rows. counts may be empty: no balance loss.
  d.router_losses(router, n, /*samples=*/n, /*logits=*/cf, /*counts=*/cf, router_loss, /*balance=*/sum, /*z=*/sum);
  // d_logits (rows, E, of type T) from the gradient of the weights and those losses.
  d.route_backward(router, n, /*samples=*/n, /*logits=*/cf, /*chosen=*/tokens, /*d_weights=*/cf, /*counts=*/cf,
                   router_loss, /*d_logits=*/f);
  // loads (E) += the choices of each expert.
  d.add_loads(/*choices=*/n, /*chosen=*/tokens, /*loads=*/f);
  // Choice i, of row i / k, has place places[i] (-1: dropped) in the order of experts, then of choices; order is the
  // inverse, -1 behind the last; those of expert e are [offsets[e], offsets[e + 1]). Both (rows, k), offsets (E + 1).
  d.order_choices(order, /*rows=*/n, /*chosen=*/tokens, /*weights=*/cf, /*order=*/numbers, /*places=*/numbers,
                  /*offsets=*/numbers);
  // Of nodes with equal runs of the experts: nodes (rows, N) = n where a choice of the row with a place is of node n,
  // else -1; kept (rows, k) = the choices that have places, else -1.
  d.choose_nodes(/*experts of a node=*/n, /*N=*/n, /*k=*/n, /*rows=*/n, /*chosen=*/tokens, /*places=*/tokens,
                 /*nodes=*/numbers, /*kept=*/numbers);
  // to[i] (rows, width) = from[order[i] / k], of type T, float or integer; what order is -1 of stays as it is.
  d.gather_rows(/*k=*/n, /*width=*/n, /*rows=*/n, /*order=*/tokens, /*from=*/cf, /*to=*/f);
  // to (rows, width) = the weighted sum of the k places of a row, in order; empty weights: 1.
  d.combine_rows(/*rows=*/n, /*k=*/n, /*width=*/n, /*places=*/tokens, /*weights=*/cf, /*from=*/cf, /*to=*/f);
  // gemm() of each expert: nt and nn multiply its rows with its b, one after the other; tn sums over its rows to its c.
  // `rows` are those of all experts together with the space behind them.
  d.gemm_grouped(op::Kind::gemm_nt, /*experts=*/n, /*rows=*/n, n, n, /*offsets=*/tokens, cf, cf, f,
                 /*accumulate=*/false);
  // Of y = w g with g an activation of u: d (rows, n) is the gradient of w g and becomes w g; du from it; d_weights
  // (rows) by choice, 0 where dropped. du may be u. An empty order: row i is of choice i; empty weights: 1;
  // empty d_weights are not made.
  d.expert_activation_backward(ActivationKind::gelu, /*rows=*/n, n, /*order=*/tokens, /*weights=*/cf, /*u=*/cf, /*d=*/f,
                               /*du=*/f, /*d_weights=*/f);
  // y = x * sigmoid(l), l (rows); and its gradients, of which dx may be x or dy.
  d.gate_forward(/*rows=*/n, n, /*x=*/cf, /*l=*/cf, /*y=*/f);
  d.gate_backward(n, n, /*x=*/cf, /*l=*/cf, /*dy=*/cf, /*dx=*/f, /*dl=*/f);
  // master and working (n) move by rate * sign(mean - load).
  d.balance_bias(n, /*mean=*/1.0F, /*rate=*/1.0F, /*loads=*/cf, /*master=*/f, /*working=*/f);

  // v (rows, H p) from x (rows, width): for each hash the first p numbers of the row after its rounds of signs
  // (H, rounds, padded width) and Hadamard transforms, see kernels/lsh.hpp.
  d.rotate_by_signs(hashing, /*rows=*/n, /*width=*/n, /*x=*/cf, /*signs=*/cf, /*v=*/f);
  // codes (rows, H) of rotated rows v (rows, H p).
  d.hash_rows(hashing, /*rows=*/n, /*v=*/cf, /*codes=*/numbers);
  // bucket, members, begins and bounds of `buckets`, from its order and offsets, and the codes (tokens, H).
  d.number_buckets(hashing, buckets, /*codes=*/tokens, /*table=*/numbers);
  // The same with a bucket for each row: what plain dispatch is in these terms.
  d.single_buckets(buckets);
  // sums (buckets, width), added in fp32 in order, of the rows of x (tokens, width) times the weights of the choices
  // (tokens, k; empty: 1); where `mean`, divided by their number.
  d.bucket_sums(buckets, /*width=*/n, /*mean=*/true, /*weights=*/cf, /*x=*/cf, /*sums=*/f);
  // sums (4) += the squares of x - c of all rows, those of x, the rows, and their buckets: in double and in a fixed
  // order.
  d.bucket_distances(buckets, n, /*x=*/cf, /*c=*/cf, /*sums=*/sum);
  // y (tokens, width) = the sum over a token's choices, in order, of weight * (e + gain * (x - c)), with the rows of e
  // and c (buckets, width) of their buckets. Dropped choices (places -1) add nothing; empty weights: 1.
  d.combine_buckets(buckets, /*tokens=*/n, /*width=*/n, gain, /*places=*/tokens, /*weights=*/cf, /*e=*/cf, /*x=*/cf,
                    /*c=*/cf, /*y=*/f);
  // d_weights (tokens, k) = <dy, e + gain * (x - c)>, 0 where dropped.
  d.bucket_weights_backward(buckets, n, n, gain, /*places=*/tokens, /*e=*/cf, /*x=*/cf, /*c=*/cf, /*dy=*/cf,
                            /*d_weights=*/f);
  // d_gains (E) += the sums over the rows of each expert of weight * <dy, x - c>.
  d.gain_backward(buckets, n, /*weights=*/cf, /*x=*/cf, /*c=*/cf, /*dy=*/cf, /*d_gains=*/f);
  // dx (tokens, width) = the sum over a token's choices of gain * weight * dy + (dc - gain * s) / n, with dc the
  // gradient of c through the expert, s the bucket_sums() of dy with the weights, and n the rows of the bucket.
  d.combine_buckets_backward(buckets, n, n, gain, /*places=*/tokens, /*weights=*/cf, /*dy=*/cf, /*dc=*/cf, /*s=*/cf,
                             /*dx=*/f);

  // sum (1) += the sum of squares, in double and in a fixed order.
  d.norm_squared(n, cf, sum);
  // scale (1) = what makes a gradient with the squares sums[gradient_squares] no longer than `clip` (0: any length is
  // right); NaN when one of the sums is not finite.
  d.clip_scale(sums, /*clip=*/1.0, /*scale=*/f);
  // The constants of the steps of AdamW that follow.
  d.begin_update(adam);
  // master, m, v (n) step with gradient g * scale[0]; `working` (n, type T) receives the rounded master; it may be the
  // master. m and v are float or bfloat16. Nothing changes when the scale is not finite.
  d.adamw(n, part, /*scale=*/cf, /*master=*/f, /*g=*/cf, f, f, /*working=*/f);

  // The sums of a step (step_sums) and the scale of its gradient (1), in memory of the device.
  { d.sums() } -> std::same_as<View<double>>;
  { d.gradient_scale() } -> std::same_as<View<float>>;
  d.clear_sums();
  // Counts of choices of experts in a step, where somebody asks for them (most_loads), in memory of the device.
  { d.loads() } -> std::same_as<View<float>>;
  // What layers add up in a step, where there are any that do (most_layer_sums), in memory of the device.
  { d.layer_sums() } -> std::same_as<View<double>>;
  // sum (1) += sign times the seconds of the device's clock, when all that was asked for before is done: with -1 and
  // then 1 the time between.
  d.add_time(/*sign=*/-1.0, sum);
  // To memory of the program, elements of any type; returns when they are there. Other threads may call it too.
  d.fetch(cf, host);
  // Calls the writer with memory of the program, whose contents go to the device's.
  d.write(/*to=*/f, writer);
  // Returns when all that was asked for is done.
  d.wait();
  // Calls body(). With the same number it asks for the same operations on the same memory every time; only what `write`
  // and `begin_update` bring differs. A device may remember the operations and do them at once when body() has
  // returned. body() fetches nothing and waits for nothing.
  d.repeat(/*number=*/int{}, body);
  // Sets to zero; copies; to += from (float, in any T of from).
  d.zero(raw);
  d.copy(raw, raw);
  d.accumulate(n, /*from=*/cf, /*to=*/f);
  // to = from, run by run, and to += from in the order of blocks and repeats. The two may differ in type (rounding
  // once) and do not overlap; runs of `to` are apart or the same.
  d.copy_runs(runs, /*from=*/cf, /*to=*/f);
  d.add_runs(runs, /*from=*/cf, /*to=*/f);
};

}  // namespace galvatron::device
