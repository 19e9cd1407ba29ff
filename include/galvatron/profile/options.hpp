// What a profile of this machine may be asked for.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron::train {

struct ProfileProgress {
  std::string step;   ///< what is being measured
  double share = 0;   ///< of the whole, 0..1
  double others = 0;  ///< of a host, when all is measured: the share of its cores that other programs took, 0..1
};

struct ProfileOptions {
  int ranks = 0;                                           ///< 0: one for each core
  int threads_per_rank = 0;                                ///< 0: the cores divided by the ranks, at least 1
  std::vector<Precision> precisions{};                     ///< empty: all that the processor has; with fp8 goes bf16
  Seconds time_budget{35};                                 ///< about what it takes; less is coarser
  std::vector<ModelSpec> models{};                         ///< whose products are measured as they are besides
  bool accepts_busy = false;                               ///< a doubtful profile of a host too (profile_check.hpp)
  std::function<void(const ProfileProgress&)> progress{};  ///< called on rank 0's thread
};

namespace detail {
/// Puts bf16 before an fp8 that comes without: 8-bit products are all that fp8 measures besides.
inline void complete(std::vector<Precision>& precisions) {
  const auto has = [&](Precision p) { return std::find(precisions.begin(), precisions.end(), p) != precisions.end(); };
  if (has(Precision::fp8) && !has(Precision::bf16)) precisions.insert(precisions.begin(), Precision::bf16);
}
}  // namespace detail

}  // namespace galvatron::train
