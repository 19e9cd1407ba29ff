// The groups of a world, made when they are first asked for.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

namespace galvatron::comm {

/// @tparam G  a Group
template <class G>
class Groups {
 public:
  /// The group of these ranks, in this order; the first call makes it by make() -> std::unique_ptr<G>.
  template <class Make>
  G& find(std::span<const int> ranks, Make&& make) {
    for (auto& group : groups_)
      if (std::ranges::equal(group->ranks(), ranks)) return *group;
    return *groups_.emplace_back(make());
  }
  [[nodiscard]] auto begin() const { return groups_.begin(); }
  [[nodiscard]] auto end() const { return groups_.end(); }

 private:
  std::vector<std::unique_ptr<G>> groups_;
};

}  // namespace galvatron::comm
