// The choices of a layer type by what the layers before and after them can feel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <galvatron/search/problem.hpp>

namespace galvatron::search {

/// The choices of a layer type, sorted by what their neighbours feel of them.
struct TypeIndex {
  struct Class {
    int layout = 0;
    std::int64_t input = 0;
    std::int64_t pass_through = 0;
    std::int64_t activation = 0;
    std::int64_t forward_workspace = 0;  // 0 where backward needs no less: then that is what bounds a move behind it
    std::vector<std::int32_t> choices;

    explicit Class(const Choice& c)
        : layout(c.layout),
          input(c.input),
          pass_through(c.pass_through),
          activation(c.activation),
          forward_workspace(c.forward_workspace > c.backward_workspace ? c.forward_workspace : 0) {}
    /// Labels arrive at both alike.
    [[nodiscard]] bool begins_like(const Class& other) const {
      return layout == other.layout && input == other.input && pass_through == other.pass_through;
    }
    [[nodiscard]] bool ends_like(const Class& other) const {
      return activation == other.activation && forward_workspace == other.forward_workspace;
    }
    friend bool operator<(const Class& a, const Class& b) {
      if (a.layout != b.layout) return a.layout < b.layout;
      if (a.input != b.input) return a.input < b.input;
      if (a.pass_through != b.pass_through) return a.pass_through < b.pass_through;
      return a.activation != b.activation ? a.activation < b.activation : a.forward_workspace < b.forward_workspace;
    }
  };
  std::vector<Class> classes;

  /// Choices that another one of their layout makes superfluous are left out.
  /// @param only_tag        only choices with that tag, or all when it is negative
  /// @param most_workspace  only choices with no more bytes
  TypeIndex(const LayerType& type, const Objective& objective, const Slots& slots, int only_tag,
            std::int64_t most_workspace, bool memory_only) {
    for (const std::int32_t i : irreplaceable(type, only_tag, [&](const Choice& a, const Choice& b) {
           return replaces(a, b, objective, slots, memory_only);
         })) {
      const Choice& choice = type[static_cast<std::size_t>(i)];
      if (workspace_of(choice) > most_workspace) continue;
      const Class own(choice);
      auto found = std::find_if(classes.begin(), classes.end(),
                                [&](const Class& k) { return k.begins_like(own) && k.ends_like(own); });
      if (found == classes.end()) found = classes.insert(classes.end(), own);
      found->choices.push_back(i);
    }
    std::sort(classes.begin(), classes.end());
  }
};

}  // namespace galvatron::search
