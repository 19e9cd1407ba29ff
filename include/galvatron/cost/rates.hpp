// The rules behind cost/time.hpp: tables first, then rates of devices and links.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <optional>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/attention_kernels.hpp>
#include <galvatron/cost/product_8bit.hpp>
#include <galvatron/op/work.hpp>

namespace galvatron::cost::detail {

/// How much longer an operation takes when `busy` ranks share fewer cores.
constexpr double oversubscription(const Cluster& cluster, int busy) {
  if (cluster.cores <= 0) return 1;
  return std::max(1.0, static_cast<double>(busy) * cluster.threads_per_rank / cluster.cores);
}

/// Brings a table's time, measured with `measured` busy ranks, to `busy` ranks: core time stays, its share changes.
constexpr double with_busy_ranks(const Cluster& cluster, double seconds, int measured, int busy) {
  if (measured == 0 || measured == busy) return seconds;
  return seconds * oversubscription(cluster, busy) / oversubscription(cluster, measured);
}

/// Between two tables: core time grows from the one to the other until every core is busy, and then stays.
constexpr double between_busy_ranks(const Cluster& cluster, double low, int low_busy, double high, int high_busy,
                                    int busy) {
  const double low_core = low / oversubscription(cluster, low_busy);
  const double high_core = high / oversubscription(cluster, high_busy);
  const int full = cluster.cores > 0 ? std::max(cluster.cores / cluster.threads_per_rank, low_busy + 1) : high_busy;
  const double way = static_cast<double>(busy - low_busy) / (std::min(full, high_busy) - low_busy);
  return (low_core + (high_core - low_core) * std::min(way, 1.0)) * oversubscription(cluster, busy);
}

/// The tables measured with the numbers of busy ranks nearest to `busy` from below and from above.
template <class Table>
struct Bracket {
  const Table* low = nullptr;
  const Table* high = nullptr;

  constexpr void offer(const Table& table, int busy) {
    if (table.concurrency == 0) {
      low = high = &table;
    } else if (table.concurrency <= busy && (low == nullptr || table.concurrency > low->concurrency)) {
      low = &table;
    }
    if (table.concurrency >= busy && (high == nullptr || table.concurrency < high->concurrency)) high = &table;
  }
  [[nodiscard]] constexpr bool found() const { return low != nullptr || high != nullptr; }
  /// `read` gives the seconds of one table.
  template <class Read>
  [[nodiscard]] constexpr double seconds(const Cluster& cluster, int busy, Read read) const {
    if (low == high || high == nullptr) return with_busy_ranks(cluster, read(*low), low->concurrency, busy);
    if (low == nullptr) return with_busy_ranks(cluster, read(*high), high->concurrency, busy);
    return between_busy_ranks(cluster, read(*low), low->concurrency, read(*high), high->concurrency, busy);
  }
};

constexpr double real(std::int64_t x) { return static_cast<double>(x); }

/// The rate in this precision, or in whichever the device has.
constexpr PrecisionRate rate_of(const DeviceSpec& device, Precision precision) {
  if (const PrecisionRate* rate = device.rate(precision); rate != nullptr) return *rate;
  return device.rates.empty() ? PrecisionRate{precision, "", 1e12, 0.8} : device.rates.front();
}

constexpr double streaming_seconds(const DeviceSpec& device, double bytes) {
  return bytes / (device.memory_bandwidth * device.memory_share);
}

/// A GEMM without a table. On a GPU tiles are dealt to multiprocessors in waves, the last one as long as the others,
/// and the k loop of a tile pays a fixed start (NVIDIA, "Matrix Multiplication Background"); splitting k fills idle
/// multiprocessors at the price of another pass over the result. The best tile and split win. Smaller tiles load more
/// for each product; the shares of tiles, and limit and start of every preset, are those that come nearest to published
/// cuBLAS sweeps (tests/cost/curves.cpp). In a long run power bounds the rate. Tiles of a grouped product are 128 x
/// 128; those of all experts fill the waves of one launch, of which a part is priced without its start.
constexpr double gemm_model_seconds(const op::Work& w, Precision precision, const DeviceSpec& device) {
  const PrecisionRate rate = rate_of(device, precision);
  const double peak = rate.peak_flops * device.clock_share();
  const double reach = peak * rate.gemm_share;
  const double e = w.eight_bit ? 1 : static_cast<double>(element_bytes(precision));  // of operands
  const double cell = w.kind != op::Kind::gemm_tn ? static_cast<double>(element_bytes(precision))
                      : w.always_writes()         ? 4.0
                                                  : 8.0;
  const double result = real(w.m) * real(w.n) * cell;
  const double streamed = streaming_seconds(device, e * (real(w.m) + real(w.n)) * real(w.k) + result);
  const double powered = 2 * real(w.m) * real(w.n) * real(w.k) / (peak * rate.sustained_share);
  double computed = std::numeric_limits<double>::max();
  if (device.multiprocessors == 0) {
    const auto padded = [](std::int64_t x) { return real(x) + 8; };
    computed = 2 * padded(w.m) * padded(w.n) * padded(w.k) / reach;
  } else {
    struct Tile {
      std::int64_t rows, columns;
      double share;
    };
    constexpr std::array tiles{Tile{256, 128, 1.0}, Tile{128, 256, 1.0}, Tile{128, 128, 0.90},
                               Tile{128, 64, 0.61}, Tile{64, 128, 0.61}, Tile{64, 64, 0.46}};
    const auto pieces_of = [&w](const Tile& tile) { return divide_up(w.m, tile.rows) * divide_up(w.n, tile.columns); };
    const auto area_of = [&](const Tile& tile) {
      return 2.0 * real(tile.rows * tile.columns) * device.multiprocessors / (reach * tile.share);
    };
    if (w.grouped) {
      const Tile& tile = tiles[2];
      computed = real(pieces_of(tile)) / device.multiprocessors * area_of(tile) * (real(w.k) + device.gemm_start);
      return std::max({computed, streamed, powered});
    }
    for (const Tile& tile : tiles) {
      const std::int64_t pieces = pieces_of(tile);
      const double area = area_of(tile);
      for (const int split : {1, 2, 4, 8}) {
        const double waves = real(divide_up(pieces * split, device.multiprocessors));
        const double merge = split == 1 ? 0 : streaming_seconds(device, 8.0 * split * real(w.m) * real(w.n));
        computed = std::min(computed, waves * area * (real(w.k) / split + device.gemm_start) + merge);
      }
    }
  }
  return device.launch.value + std::max({device.gemm_launch.value + computed, streamed, powered});
}

/// What rounding both operands to 8 bits takes: passes over each that memory bounds, and scales that are written and
/// read by the product.
constexpr double rounding_seconds(const op::Work& w, Fp8Recipe recipe, const DeviceSpec& device) {
  const std::int64_t scales = scale_bytes(w.m, w.n, w.k, recipe, w.kind != op::Kind::gemm_tn);
  const double bytes = real(rounding_bytes((w.m + w.n) * w.k, recipe) + 2 * scales);
  return 2 * rounding_passes(recipe) * device.launch.value + streaming_seconds(device, bytes);
}

/// By a table, if there is one of this weight alone by that, which of fp8 has the seconds of a product with the
/// rounding before it by the recipe tensorwise, or else by the model. What is written for a reduction is priced like
/// what is written elsewhere, and that like what is added to, where only that was measured; and a part of a grouped
/// product like a product by itself.
constexpr double gemm_seconds(const op::Work& w, Precision precision, const Cluster& cluster, int busy) {
  if (w.writes_one_in > 1) {  // the mean
    op::Work one = w;
    one.writes_one_in = 1;
    const double writes = gemm_seconds(one, precision, cluster, busy);
    one.writes_one_in = 0;
    return (writes + (w.writes_one_in - 1) * gemm_seconds(one, precision, cluster, busy)) / w.writes_one_in;
  }
  const std::array<std::int64_t, 3> extents{w.m, w.n, w.k};
  Bracket<GemmTable> tables;
  const auto offer_those_with = [&](bool grouped, bool writes, bool reduces) {
    Bracket<GemmTable> exact;
    for (const GemmTable& table : cluster.gemm) {
      if (table.kind != w.kind || table.precision != precision || table.grouped != grouped || table.writes != writes ||
          table.for_reduction != reduces)
        continue;
      if (!table.is_of_one_weight())
        tables.offer(table, busy);
      else if (table.is_of(extents))
        exact.offer(table, busy);
    }
    if (exact.found()) tables = exact;
    return tables.found();
  };
  const bool writes = w.always_writes();
  const bool reduces = w.writes_one_in == op::Work::for_reduction;
  for (const bool grouped : {w.grouped, false})
    if (offer_those_with(grouped, writes, reduces) || offer_those_with(grouped, writes, false) ||
        offer_those_with(grouped, false, false))
      break;
  if (tables.found())
    return tables.seconds(cluster, busy, [&](const GemmTable& table) {
      const double measured = table.seconds({real(w.m), real(w.n), real(w.k)}, {1, 1, 1});
      if (!w.eight_bit || w.recipe == Fp8Recipe::tensorwise) return measured;
      const double usual = rounding_seconds(w, Fp8Recipe::tensorwise, cluster.device);
      const double product = std::max(measured - usual, measured / 4);  // on a host rounding is no pass over memory
      return product + std::min(measured - product, usual) / usual * rounding_seconds(w, w.recipe, cluster.device);
    });
  const double rounding = w.eight_bit ? rounding_seconds(w, w.recipe, cluster.device) : 0;
  return (gemm_model_seconds(w, precision, cluster.device) + rounding) * oversubscription(cluster, busy);
}

/// The share of the peak at (tokens, head dim): log-linear in tokens on the nearest curves, linear in head dim between.
constexpr double attention_share(const DeviceSpec& device, op::Kind kind, double tokens, double head_dim) {
  const auto on_curve = [tokens](const AttentionCurve& curve) {
    const auto& points = curve.shares;
    if (tokens <= real(points.front().first)) return points.front().second * tokens / real(points.front().first);
    for (std::size_t i = 1; i < points.size(); ++i)
      if (tokens <= real(points[i].first)) {
        const double way =
            std::log(tokens / real(points[i - 1].first)) / std::log(real(points[i].first) / real(points[i - 1].first));
        return points[i - 1].second + way * (points[i].second - points[i - 1].second);
      }
    return points.back().second;
  };
  const AttentionCurve* below = nullptr;
  const AttentionCurve* above = nullptr;
  for (const AttentionCurve& curve : device.attention) {
    if (curve.kind != kind || curve.shares.empty()) continue;
    if (curve.head_dim <= head_dim && (below == nullptr || curve.head_dim > below->head_dim)) below = &curve;
    if (curve.head_dim >= head_dim && (above == nullptr || curve.head_dim < above->head_dim)) above = &curve;
  }
  if (below == nullptr && above == nullptr) return 0.4 * tokens / (tokens + 512);
  if (below == nullptr) return on_curve(*above) * head_dim / above->head_dim;
  if (above == nullptr || above == below) return on_curve(*below);
  const double way = (head_dim - below->head_dim) / (above->head_dim - below->head_dim);
  return on_curve(*below) * (1 - way) + on_curve(*above) * way;
}

constexpr double attention_model_seconds(const op::Work& w, Precision precision, const DeviceSpec& device,
                                         double tokens) {
  op::Work once = w;
  once.times = 1;
  // Without a mask FlashAttention-2 reaches the share that it reaches with one at four times the length.
  double share = attention_share(device, w.kind, w.causal ? tokens : 4 * tokens, real(w.l));
  // A block computes one head of 128 queries. Few blocks leave multiprocessors idle: 32 / 16 / 8 / 4 heads of one
  // sequence reach 1 / .88 / .69 / .45, taken as of 4096 tokens.
  if (device.multiprocessors > 0) {
    const double blocks = real(w.m) * std::max(tokens, 128.0) / 128 / device.multiprocessors;
    share *= std::min(1.0, 1.18 * blocks / (blocks + 1.4));
  }
  const double peak = rate_of(device, precision).peak_flops * device.clock_share();
  const double e = static_cast<double>(element_bytes(precision));
  const double passes = w.kind == op::Kind::attention_forward ? 2 : 4;
  const double streamed = streaming_seconds(device, e * real(w.m) * real(w.l) * passes * real(w.n + w.k));
  return device.launch.value + std::max(flops_of(once).count / (peak * share), streamed);
}

/// Attention in single kernels: the scores of all pairs of tokens are written, masked, normalised, dropped and read
/// again, in backward with their gradients. Products are priced like any other, the rest by its bytes: forward reads
/// and writes the scores once for the softmax and once for dropout, backward reads gradient and scores and writes the
/// gradient, and as much for dropout. Masks are a byte.
constexpr double unfused_attention_seconds(const op::Work& w, Precision precision, const DeviceSpec& device) {
  const double e = static_cast<double>(element_bytes(precision));
  const double scores = real(w.m) * real(w.n) * real(w.k);
  const auto product = [&](op::Kind kind, std::int64_t rows, std::int64_t columns, std::int64_t depth) {
    return misaligned_times(w.l) *
           gemm_model_seconds({.kind = kind, .m = w.m * rows, .n = columns, .k = depth}, precision, device);
  };
  const auto pass = [&](double bytes) { return device.launch.value + streaming_seconds(device, bytes * scores); };
  const double dropped = w.dropout ? pass(2 * e + 1) : 0;
  if (w.kind == op::Kind::attention_forward)
    return product(op::Kind::gemm_nt, w.n, w.k, w.l) + pass(2 * e) + dropped +
           product(op::Kind::gemm_nt, w.n, w.l, w.k);
  return product(op::Kind::gemm_nn, w.k, w.l, w.n) + product(op::Kind::gemm_nt, w.n, w.k, w.l) + dropped + pass(3 * e) +
         product(op::Kind::gemm_nn, w.n, w.l, w.k) + product(op::Kind::gemm_nn, w.k, w.l, w.n);
}

constexpr double attention_seconds(const op::Work& w, Precision precision, const Cluster& cluster, int busy) {
  if (w.kernel == op::AttentionKernel::unfused)
    return unfused_attention_seconds(w, precision, cluster.device) * oversubscription(cluster, busy);
  if (w.kernel != op::AttentionKernel::device) {
    op::Work best = w;
    best.kernel = op::AttentionKernel::device;
    best.l = computed_head_dim(w.kernel, w.l);
    return times_of_best(w.kernel, cluster.device.attention_kernel) * attention_seconds(best, precision, cluster, busy);
  }
  const double tokens = w.n == w.k ? real(w.n) : std::sqrt(real(w.n) * real(w.k));
  // A table of the other mask serves too: the FLOPs differ by two.
  for (const bool causal : {w.causal, !w.causal}) {
    Bracket<AttentionTable> tables;
    for (const AttentionTable& table : cluster.attention)
      if (table.kind == w.kind && table.precision == precision && table.causal == causal) tables.offer(table, busy);
    if (!tables.found()) continue;
    const double other = causal == w.causal ? 1.0 : w.causal ? 0.5 : 2.0;
    return other * w.seen * tables.seconds(cluster, busy, [&](const AttentionTable& table) {
      return table.seconds({tokens, real(w.l), real(w.m)}, {2, 1, 1});
    });
  }
  return attention_model_seconds(w, precision, cluster.device, tokens) * oversubscription(cluster, busy);
}

constexpr double memory_seconds(const op::Work& w, Bytes bytes, Precision precision, const Cluster& cluster, int busy) {
  const double columns = real(std::max<std::int64_t>(w.n, 1));
  Bracket<MemoryTable> tables;
  const auto look_for = [&](op::Kind wanted) {
    for (const MemoryTable& table : cluster.memory_bound)
      if (table.kind == wanted && table.precision == precision) tables.offer(table, busy);
  };
  look_for(w.kind);
  if (!tables.found() && is_in_product(w.kind)) look_for(unfused(w.kind));
  if (tables.found())
    return tables.seconds(cluster, busy, [&](const MemoryTable& table) {
      const auto& widths = table.seconds.axes()[1];
      const bool flat = widths.size() == 1 && widths.front() == 1;
      return flat ? table.seconds({real(w.m) * columns, 1}, {1, 1}) : table.seconds({real(w.m), columns}, {1, 1});
    });
  const DeviceSpec& device = cluster.device;
  return (device.launch.value + streaming_seconds(device, real(bytes.count))) * oversubscription(cluster, busy);
}

/// Members of a group that share a node. The ranks of a group are `stride` apart, and the groups of one kind tile the
/// ranks of the cluster; where they lie across the borders of nodes in different ways, the group with the fewest
/// members behind a border counts. With p = devices_per_node / stride places of a group in a node and n members, groups
/// begin at multiples of n, so what a border cuts off is a multiple of gcd(n, p).
constexpr int members_per_node(const Cluster& cluster, int group, int stride) {
  if (cluster.devices <= cluster.devices_per_node) return group;
  if (stride > cluster.devices_per_node || cluster.devices_per_node % stride != 0) return 1;
  return std::gcd(group, cluster.devices_per_node / stride);
}

/// Ring formulas (Thakur, Rabenseifner and Gropp 2005; Patarasuk and Yuan 2009): all-reduce 2(n-1) steps of 1/n of the
/// message, all-gather and reduce-scatter n-1; broadcast as scatter and all-gather pipelined, n-1 steps; all-to-all
/// n-1 exchanges with one peer after the other.
constexpr double ring_seconds(const Link& link, op::Kind kind, int n, double bytes, double bandwidth) {
  const bool reduce = kind == op::Kind::all_reduce;
  if (kind == op::Kind::send) return link.latency.value + bytes / bandwidth;
  const double share = static_cast<double>(n - 1) / n;
  return (reduce ? 2 : 1) * ((n - 1) * link.latency.value + share * bytes / bandwidth);
}

constexpr double bandwidth_of(const Link& link, op::Kind kind) {
  if (kind == op::Kind::send) return link.send_bandwidth;
  return kind == op::Kind::all_reduce ? link.all_reduce_bandwidth : link.bandwidth;
}

/// A collective inside a node by the table of the group size nearest to it. Of another size, the volume on the busiest
/// link scales the time, and steps beyond those measured add their latency.
constexpr std::optional<double> message_table_seconds(const Cluster& cluster, op::Kind kind, int group, bool strided,
                                                      double bytes, int busy) {
  double best = std::numeric_limits<double>::max();
  int nearest = 0;
  bool same_kind = false;
  for (const MessageTable& table : cluster.messages) {
    if (table.kind != kind) continue;
    const double distance = kind == op::Kind::send ? 0 : std::abs(std::log(static_cast<double>(table.group) / group));
    const bool alike = table.strided == strided;
    if (distance < best || (distance == best && alike && !same_kind)) {
      best = distance;
      nearest = table.group;
      same_kind = alike;
    }
  }
  if (nearest == 0) return std::nullopt;
  Bracket<MessageTable> tables;
  for (const MessageTable& table : cluster.messages)
    if (table.kind == kind && table.group == nearest && (table.strided == strided || !same_kind))
      tables.offer(table, busy);
  const double seconds = tables.seconds(
      cluster, busy, [&](const MessageTable& table) { return table.seconds({std::max(bytes, 1.0)}, {1}); });
  if (kind == op::Kind::send || nearest == group) return seconds;
  double volume = (1.0 - 1.0 / group) / (1.0 - 1.0 / nearest);
  // Where switches add, every member sends and receives the message once, however few they are; a ring may be faster.
  if (kind == op::Kind::all_reduce && group < nearest)
    volume = std::min(1.0, volume * cluster.inside_node.all_reduce_bandwidth / cluster.inside_node.bandwidth);
  const int steps = (kind == op::Kind::all_reduce ? 2 : 1) * std::max(group - nearest, 0);
  return seconds * volume + steps * cluster.inside_node.latency.value;
}

/// Inside a node: by a table, else by rates. An all-to-all that has no table takes what an all-gather does with as many
/// bytes on its links.
constexpr double inside_seconds(const Cluster& cluster, op::Kind kind, int group, int stride, double bytes, int busy) {
  for (const op::Kind like : {kind, kind == op::Kind::all_to_all ? op::Kind::all_gather : kind})
    if (const auto seconds = message_table_seconds(cluster, like, group, stride > 1, bytes, std::max(busy, group)))
      return *seconds;
  return ring_seconds(cluster.inside_node, kind, group, bytes, bandwidth_of(cluster.inside_node, kind));
}

/// A small all-reduce goes up and down a tree of nodes (Sanders, Speck and Traeff 2009), as in NCCL: a ring of hundreds
/// of ranks has too many steps. Large ones follow the published ring figures.
constexpr double tree_seconds(const Cluster& cluster, const Link& network, int group, int members, double bytes,
                              double bandwidth) {
  constexpr double largest = 1 << 20;
  if (bytes > largest) return std::numeric_limits<double>::infinity();
  const double inside =
      members > 1 ? inside_seconds(cluster, op::Kind::all_reduce, members, 1, bytes, cluster.devices_per_node) : 0;
  const double levels = std::ceil(std::log2(static_cast<double>(divide_up(group, members))));
  return inside + 2 * (levels * network.latency.value + bytes / bandwidth);
}

/// Over several nodes with `members` of the group in each. Each member brings its own network card; inside the nodes a
/// ring uses the faster links. In an all-to-all a member sends through its own card all that leaves the node. The
/// slowest link of a group sets its pace: `across` is that between pods where it leaves its pod.
constexpr double across_seconds(const Cluster& cluster, const Link& across, op::Kind kind, int group, int members,
                                double bytes) {
  const Link& inside = cluster.inside_node;
  if (kind == op::Kind::all_to_all) {
    const double leaves = bytes * (group - members) / group / across.bandwidth;
    const double stays = bytes * (members - 1) / group / inside.bandwidth;
    return (group - 1) * across.latency.value + std::max(leaves, stays);
  }
  const double bandwidth = std::min(bandwidth_of(across, kind) * members, bandwidth_of(inside, kind));
  const double ring = ring_seconds(across, kind, group, bytes, bandwidth);
  return kind == op::Kind::all_reduce ? std::min(ring, tree_seconds(cluster, across, group, members, bytes, bandwidth))
                                      : ring;
}

constexpr double message_seconds(const op::Work& w, const Cluster& cluster, int busy) {
  const op::Kind kind = w.kind;
  const bool send = kind == op::Kind::send;
  // Peers of a send may be anywhere unless it says in which group; the slowest of them sets the pace.
  const std::int64_t ranks = !send ? w.n : w.k > 0 ? w.k : cluster.devices;
  const int group = static_cast<int>(std::clamp<std::int64_t>(ranks, 1, 1 << 20));
  if (!send && group < 2) return 0;
  const int members = members_per_node(cluster, group, w.stride);
  const bool across = members < group;
  const Link& link = cluster.network(std::int64_t{group} * (send ? 1 : w.stride));
  const double seconds = send && across ? ring_seconds(link, kind, 2, real(w.m), link.send_bandwidth)
                         : send         ? inside_seconds(cluster, kind, 2, 1, real(w.m), busy)
                         : across       ? across_seconds(cluster, link, kind, group, members, real(w.m))
                                        : inside_seconds(cluster, kind, group, w.stride, real(w.m), busy);
  return seconds * cluster.calibration.factor(term_of(kind, across));
}

}  // namespace galvatron::cost::detail
