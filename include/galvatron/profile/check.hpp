// What makes a profile doubtful, and which of its measurements other programs disturbed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include <galvatron/cluster/host.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/quantity.hpp>

namespace galvatron::train {

/// Others' share of the cores above which a profile is refused: its ranks then had less of the machine than others.
inline constexpr double most_others_share = 0.5;

/// A figure of a measured host that no machine has, with its bound: "memory of 700 MB/s, less than 1.00 GB/s"; else
/// empty. Only a failed measurement is beyond a bound: processors of the last twenty years are far from them.
inline std::string impossible_figure(const Cluster& cluster) {
  const double threads = cluster.threads_per_rank;
  const auto outside = [](const std::string& what, double rate, double least, double most, const char* unit) {
    if (rate >= least && rate <= most) return std::string();
    return what + " of " + format_count(rate) + unit + (rate < least ? ", less than " : ", more than ") +
           format_count(rate < least ? least : most) + unit;
  };
  std::string out = outside("memory", cluster.device.memory_bandwidth, 1e9, 1e12 * threads, "B/s");
  for (const PrecisionRate& rate : cluster.device.rates)
    if (out.empty())
      out = outside(std::string("products in ") + name_of(rate.precision), rate.peak_flops, 2e8, 2e13 * threads,
                    "FLOP/s");
  return out;
}

/// "other programs took 62 % of the cores"; empty below disturbing_share, where they hardly count.
inline std::string others_text(double share) {
  if (!(share >= disturbing_share)) return {};
  return galvatron::detail::formatted("other programs took %.0f %% of the cores", 100 * share);
}

/// Why a profile should not be used, as one clause; empty when nothing speaks against it.
/// @param others  share of the cores, 0 to 1, that others took meanwhile
inline std::string why_doubtful(const Cluster& cluster, double others) {
  const std::string busy = others_text(others);
  if (const std::string figure = impossible_figure(cluster); !figure.empty())
    return "it has " + figure + ", which no machine has" + (busy.empty() ? "" : "; " + busy);
  return others > most_others_share ? busy + " while it was measured" : "";
}

}  // namespace galvatron::train

namespace galvatron::train::detail {

/// What others took of the cores while tables were measured, by the order of the tables; rank 0's.
class OthersShares {
 public:
  explicit OthersShares(const CoreWatch& watch) : watch_(watch) {}

  void begin() {
    window_.clear();
    watch_.restart();
  }
  /// After every table that was measured. The system counts in coarse ticks, so tables share a window that is long
  /// enough to tell.
  void add(std::size_t table) {
    window_.push_back(table);
    if (watch_.seconds() > 0.4) end();
  }
  void end() {
    if (window_.empty()) return;
    const double seconds = watch_.seconds() / static_cast<double>(window_.size());
    // What is too short to tell has the share of what was before.
    const double share =
        watch_.seconds() < 0.2 ? std::max(watch_.others().value_or(0), last_) : watch_.others().value_or(0);
    last_ = share;
    for (const std::size_t table : window_) {
      if (tables_.size() <= table) tables_.resize(table + 1);
      tables_[table].least = std::min(tables_[table].least, share);
      tables_[table].seconds = std::min(tables_[table].seconds, seconds);
    }
    begin();
  }
  [[nodiscard]] bool disturbed(std::size_t table) const {
    return table < tables_.size() && tables_[table].least > disturbing_share;
  }
  /// Of all tables, each by the sweep in which others took least.
  [[nodiscard]] double mean() const {
    double sum = 0;
    double seconds = 0;
    for (const Table& table : tables_) {
      if (table.least > 1) continue;  // not measured
      sum += table.least * table.seconds;
      seconds += table.seconds;
    }
    return seconds > 0 ? sum / seconds : 0;
  }

 private:
  struct Table {
    double least = 2;  // beyond any share
    double seconds = std::numeric_limits<double>::max();
  };
  CoreWatch watch_;
  std::vector<std::size_t> window_;
  double last_ = 0;
  std::vector<Table> tables_;
};

}  // namespace galvatron::train::detail
