// Collectives and messages of ranks, timed by the wall with all ranks in them.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/profile/compute.hpp>
#include <galvatron/rank/stopwatch.hpp>

namespace galvatron::train::detail {

/// One rank's side of the measurements; every rank calls the same functions in the same order.
template <class Platform>
class MessageBench {
 public:
  MessageBench(comm::World& world, Bench<Platform>& bench) : world_(world), bench_(bench) {}

  /// The members of this rank's group when every run of `span` ranks is cut into groups of n: consecutive ranks, or
  /// every (span / n)th.
  [[nodiscard]] std::vector<int> members(int span, int n, bool strided) const {
    const int groups = span / n;
    const int first = world_.rank() / span * span;
    const int place = world_.rank() - first;
    std::vector<int> ranks;
    for (int i = 0; i < n; ++i) ranks.push_back(first + (strided ? place % groups + i * groups : place / n * n + i));
    return ranks;
  }

  /// Seconds of one collective of `bytes` (as op::Kind counts them) in every group at once.
  double collective(op::Kind kind, comm::Group& group, std::int64_t bytes, double least) {
    const View<std::byte> buffer = bench_.buffer();
    const int n = group.size();
    const std::int64_t share = std::max<std::int64_t>(bytes / 4 / n, 1);
    const std::int64_t whole = kind == op::Kind::all_gather || kind == op::Kind::reduce_scatter ? share * n : bytes / 4;
    Walk walk(buffer.slice(0, std::min(buffer.count, std::max<std::int64_t>(std::int64_t{1} << 21, 2 * bytes))));
    return together(least, [&] {
      const View<float> data = walk.next<float>(whole);
      const View<float> own = data.slice(share * group.rank(), share);
      if (kind == op::Kind::all_reduce) group.all_reduce(data, comm::ReduceOp::sum);
      if (kind == op::Kind::all_gather) group.all_gather<float>(own, data);
      if (kind == op::Kind::reduce_scatter) group.reduce_scatter<float>(data, own);
      if (kind == op::Kind::broadcast) group.broadcast(data, 0);
    });
  }

  /// Seconds of one message of `bytes` from every rank to the next of its ring.
  double send(const std::vector<int>& ring, std::int64_t bytes, double least) {
    const View<std::byte> buffer = bench_.buffer();
    const std::int64_t half = buffer.count / 2;
    const std::int64_t used = std::min(half, std::max<std::int64_t>(std::int64_t{1} << 20, bytes));
    Walk out(buffer.slice(0, used));
    Walk in(buffer.slice(half, used));
    const auto own = static_cast<std::size_t>(std::ranges::find(ring, world_.rank()) - ring.begin());
    const int next = ring[(own + 1) % ring.size()];
    const int before = ring[(own + ring.size() - 1) % ring.size()];
    return together(least, [&] {
      const std::array sent{comm::Piece::flat(next, out.next<std::byte>(bytes).data, bytes)};
      const std::array received{comm::Piece::flat(before, in.next<std::byte>(bytes).data, bytes)};
      world_.post(sent);
      world_.receive(received);
      world_.wait_sent();
    });
  }

  /// How much longer a rank computes while it communicates: rank 0's figure, for ranks with devices of their own.
  double own_overlap_slowdown(double least) {
    comm::Group& all = world_.everybody();
    const View<float> data(reinterpret_cast<float*>(bench_.buffer().data),
                           std::min<std::int64_t>(bench_.buffer().count / 16, 16 << 20));
    const std::int64_t n = 1024;
    const auto compute = [&] {
      return bench_.template gemm<float>({.kind = op::Kind::gemm_nt, .m = n, .n = n, .k = n}, least);
    };
    const double once = together(least, [&] { all.all_reduce(data, comm::ReduceOp::sum); });
    const double alone = compute();
    world_.control().everybody().barrier();
    std::vector<comm::Pending> under_way;
    const auto calls = static_cast<std::size_t>(std::clamp(std::ceil(3 * least / once), 1.0, 1000.0));
    for (std::size_t i = 0; i < calls; ++i) under_way.push_back(all.start_all_reduce(data, comm::ReduceOp::sum));
    const double beside = compute();
    for (auto& pending : under_way) all.finish(pending);
    return agreed(std::clamp(beside / std::max(alone, 1e-9), 1.0, 4.0));
  }

  /// How much longer rank 0 computes while all others communicate.
  double overlap_slowdown(double least) {
    const auto compute = [&] {
      bench_.template gemm<float>({.kind = op::Kind::gemm_nt, .m = 64, .n = 64, .k = 64}, 0);
    };
    std::vector<int> others;
    for (int r = 1; r < world_.size(); ++r) others.push_back(r);
    std::array<double, 2> seconds{};
    constexpr int calls = 2000;
    for (const bool communicating : {false, true}) {
      world_.control().everybody().barrier();
      if (world_.rank() == 0) {
        seconds[communicating ? 1 : 0] = bench_.time(least, compute);
      } else if (communicating && others.size() > 1) {
        comm::Group& group = world_.group(others);
        const View<float> data(reinterpret_cast<float*>(bench_.buffer().data), 1 << 18);
        const double end = wall_seconds() + 5 * least;
        for (int i = 0; i < calls; ++i) {
          std::int32_t go = wall_seconds() < end ? 1 : 0;
          world_.control().group(others).broadcast(View<std::int32_t>(&go, 1), 0);
          if (go == 0) break;
          group.all_reduce(data, comm::ReduceOp::sum);
          bench_.device().wait();
        }
      }
    }
    return agreed(std::clamp(seconds[1] / std::max(seconds[0], 1e-9), 1.0, 4.0));
  }

 private:
  /// Rank 0's value, on all ranks.
  template <class T>
  T agreed(T value) {
    world_.control().everybody().broadcast(View<T>(&value, 1), 0);
    return value;
  }

  /// Seconds of one op() that all ranks call: the second best of five windows, so that neither a lucky one nor those in
  /// which something else ran on this machine count. All ranks get the same answer.
  template <class Op>
  double together(double least, const Op& op) {
    const auto meet = [&] {
      bench_.device().wait();
      world_.control().everybody().barrier();
    };
    op();
    meet();
    double begin = wall_seconds();
    op();
    meet();
    const double once = std::max(wall_seconds() - begin, 1e-7);
    const auto calls = agreed(static_cast<std::int32_t>(std::clamp(std::ceil(least / 5 / once), 1.0, 5000.0)));
    const auto windows = agreed<std::int32_t>(once > least ? 2 : 5);
    std::vector<double> times;
    for (int window = 0; window < windows; ++window) {
      meet();
      begin = wall_seconds();
      for (int i = 0; i < calls; ++i) op();
      meet();
      times.push_back((wall_seconds() - begin) / calls);
    }
    std::sort(times.begin(), times.end());
    return agreed(std::max(times.size() > 2 ? times[1] : times[0], 1e-8));
  }

  comm::World& world_;
  Bench<Platform>& bench_;
};

}  // namespace galvatron::train::detail
