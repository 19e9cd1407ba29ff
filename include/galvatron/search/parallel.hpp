// Pieces of a search on several threads.
//
// The search's classes are templates of an Executor, so that a program which does not search does not pay for compiling
// them: Team, or another that runs pieces in a way of its own, in any order. It is made with a number of threads and
// has `has_idle` and `each`. A null Executor shares nothing; the answers of a search are the same with any.
#pragma once

#include <cstddef>

#include <galvatron/core/team.hpp>

namespace galvatron::search {

/// Calls `piece(i)` for i = 0..count-1 by `executor`, if there is one with an idle thread.
template <class Executor, class F>
constexpr void share(Executor* executor, std::size_t count, const F& piece) {
  if (executor != nullptr && executor->has_idle())
    executor->each(count, piece);
  else
    for (std::size_t i = 0; i < count; ++i) piece(i);
}
/// The same for pieces that look at so many labels together: with fewer than some hundred they take no longer than
/// another thread's coming.
template <class Executor, class F>
constexpr void share(Executor* executor, std::size_t labels, std::size_t count, const F& piece) {
  share(labels >= 256 ? executor : nullptr, count, piece);
}

}  // namespace galvatron::search
