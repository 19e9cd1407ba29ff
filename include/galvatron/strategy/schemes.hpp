// The standard schemes with one strategy for all layers, which plans are compared with.
#pragma once

#include <galvatron/strategy/spec.hpp>

namespace galvatron {

/// One strategy for all layers, by what it uses.
struct Scheme {
  const char* name;
  bool (*has)(int stages, const StrategySpec& spec);
};

namespace detail {
inline bool is_data(int p, const StrategySpec& s, int zero) {
  return p == 1 && s.tensor == 1 && s.context == 1 && s.zero == zero;
}
inline bool is_context(int p, const StrategySpec& s, SequenceKind kind) {
  return p == 1 && s.tensor == 1 && s.sequence == kind;
}
}  // namespace detail

inline constexpr Scheme schemes[] = {
    {"data parallel", [](int p, const StrategySpec& s) { return detail::is_data(p, s, 0); }},
    {"ZeRO-1", [](int p, const StrategySpec& s) { return detail::is_data(p, s, 1); }},
    {"ZeRO-2", [](int p, const StrategySpec& s) { return detail::is_data(p, s, 2); }},
    {"ZeRO-3", [](int p, const StrategySpec& s) { return detail::is_data(p, s, 3); }},
    {"Ulysses", [](int p, const StrategySpec& s) { return detail::is_context(p, s, SequenceKind::ulysses); }},
    {"ring attention", [](int p, const StrategySpec& s) { return detail::is_context(p, s, SequenceKind::ring); }},
    {"tensor parallel", [](int p, const StrategySpec& s) { return p == 1 && s.shards() == 1; }},
    {"pipeline parallel", [](int p, const StrategySpec& s) { return p > 1 && s.ranks() == 1; }},
    {"tensor + data",
     [](int p, const StrategySpec& s) { return p == 1 && s.tensor > 1 && s.data > 1 && s.context == 1; }},
    {"pipeline + data",
     [](int p, const StrategySpec& s) { return p > 1 && s.tensor == 1 && s.data > 1 && s.context == 1; }},
    {"pipeline + tensor",
     [](int p, const StrategySpec& s) { return p > 1 && s.tensor > 1 && s.data == 1 && s.context == 1; }},
    {"pipeline + tensor + data",
     [](int p, const StrategySpec& s) { return p > 1 && s.tensor > 1 && s.data > 1 && s.context == 1; }},
};

}  // namespace galvatron
