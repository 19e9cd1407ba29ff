// The groups of a world, made when they are first asked for.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <galvatron/comm/check.hpp>
#include <galvatron/comm/communicator.hpp>

namespace galvatron::comm {

/// @tparam G  a Group
template <class G>
class Groups {
 public:
  /// The group of these ranks, in this order; the first call makes it, G(arguments...). Errors: see World::group().
  template <class... Arguments>
  G& find(const World& world, std::span<const int> ranks, Arguments&&... arguments) {
    for (const auto& group : groups_)
      if (std::ranges::equal(group->ranks(), ranks)) return *group;
    check_members(ranks, world.rank(), world.size());
    return *groups_.emplace_back(std::make_unique<G>(std::forward<Arguments>(arguments)...));
  }
  [[nodiscard]] auto begin() const { return groups_.begin(); }
  [[nodiscard]] auto end() const { return groups_.end(); }

 private:
  std::vector<std::unique_ptr<G>> groups_;
};

}  // namespace galvatron::comm
