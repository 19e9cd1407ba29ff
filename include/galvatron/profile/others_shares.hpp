// Which measurements of a profile other programs disturbed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include <galvatron/cluster/host_load.hpp>

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
