// The divisors of a number of ranks, layers or samples: the degrees that split it evenly.
#pragma once

#include <vector>

namespace galvatron {

/// Divisors of n >= 1 in ascending order; with `powers_of_two` only those that are.
constexpr std::vector<int> divisors(int n, bool powers_of_two = false) {
  std::vector<int> low;
  std::vector<int> high;
  const auto wanted = [powers_of_two](int d) { return !powers_of_two || (d & (d - 1)) == 0; };
  for (int d = 1; d <= n / d; ++d) {
    if (n % d != 0) continue;
    if (wanted(d)) low.push_back(d);
    if (d != n / d && wanted(n / d)) high.push_back(n / d);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

}  // namespace galvatron
