// The words of what goes wrong among ranks.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <galvatron/core/text.hpp>

namespace galvatron::comm {

/// "rank 3", "ranks 0, 2 and 3"
inline std::string rank_list(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

/// The ranks in ascending order, each once.
inline std::vector<int> each_once(std::vector<int> ranks) {
  std::ranges::sort(ranks);
  ranks.erase(std::ranges::unique(ranks).begin(), ranks.end());
  return ranks;
}

/// "rank 0 gave up after 0.7 s: rank 1 did not send a block"
inline std::string gave_up(int rank, std::chrono::nanoseconds timeout, const std::string& who_did_not) {
  std::string seconds = std::to_string(std::chrono::duration<double>(timeout).count());
  seconds.erase(std::max(seconds.find_last_not_of('0') + 1, seconds.find('.') + 2));
  return "rank " + std::to_string(rank) + " gave up after " + seconds + " s: " + who_did_not;
}
/// "rank 0 waits in vain: rank 1 did not send a block before the end"
inline std::string waits_in_vain(int rank, const std::string& who_did_not) {
  return "rank " + std::to_string(rank) + " waits in vain: " + who_did_not + " before the end";
}

}  // namespace galvatron::comm
