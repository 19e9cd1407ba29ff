// The space of strategies that a search looks at, and its notation `--space a,b,...`.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/one_for_all.hpp>
#include <galvatron/strategy/spec.hpp>

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

/// The degrees that an axis may have.
struct DegreeRange {
  bool open = true;  ///< false: only degree 1
  int forced = 0;    ///< only this degree, where 0 forces none
  int most = 0;      ///< at most this degree, where 0 is no cap
  friend constexpr bool operator==(const DegreeRange&, const DegreeRange&) = default;

  [[nodiscard]] constexpr bool allows(int degree) const {
    if (forced != 0) return degree == forced;
    return degree == 1 || (open && (most == 0 || degree <= most));
  }
};

/// Everything that a search may choose from. The default is all that can be priced.
struct Space {
  DegreeRange data;
  DegreeRange tensor;
  DegreeRange context;
  DegreeRange pipeline;
  std::array<bool, 4> zero{true, true, true, true};  ///< stages allowed where data x context degree is above 1
  /// None applies where the context degree is 1, Ulysses and ring where it is above. Megatron's applies to both, to the
  /// latter together with ring.
  std::vector<SequenceKind> sequence{sequence_kinds.begin(), sequence_kinds.end()};
  std::vector<RecomputeKind> recompute{recompute_kinds.begin(), recompute_kinds.end()};
  bool strided = true;         ///< besides, tensor ranks across nodes, with all data and context ranks inside them
  bool powers_of_two = false;  ///< of degrees; otherwise any divisor
  OneForAll one_for_all = OneForAll::no;  ///< all layers, embedding and head too, have the same strategy
  friend bool operator==(const Space&, const Space&) = default;
};

/// All that the trainer of this version carries out (InstantiatedStrategies): whatever a search chooses from, for the
/// layers that runtime/implemented.hpp names.
constexpr Space runnable_space() { return {}; }

/// The pipeline degrees of a space for `ranks` ranks: divisors, ascending.
inline std::vector<int> pipeline_degrees(const Space& space, int ranks) {
  std::vector<int> out;
  for (const int degree : divisors(ranks, space.powers_of_two))
    if (space.pipeline.allows(degree)) out.push_back(degree);
  return out;
}

namespace detail {

/// The kinds of sequence parallelism of a space for these degrees. Where it allows Megatron's and not none, that is no
/// choice but the rule for tensor degrees above 1.
constexpr std::vector<SequenceKind> kinds_for(const Space& space, int tensor, int context) {
  const auto allows = [&space](SequenceKind kind) {
    return std::find(space.sequence.begin(), space.sequence.end(), kind) != space.sequence.end();
  };
  const bool cuts = tensor > 1 && allows(SequenceKind::megatron);
  const auto applies = [&](SequenceKind kind) {
    switch (kind) {
      case SequenceKind::none:
        return context == 1 && tensor > 1;
      case SequenceKind::megatron:
        return cuts && (context == 1 || allows(SequenceKind::ring));
      case SequenceKind::ulysses:
        return context > 1;
      case SequenceKind::ring:
        return context > 1 && (!cuts || allows(SequenceKind::none));
    }
    return false;
  };
  std::vector<SequenceKind> out;
  for (const SequenceKind kind : space.sequence)
    if (applies(kind)) out.push_back(kind);
  if (context == 1 && out.empty()) out.push_back(SequenceKind::none);
  return out;
}

}  // namespace detail

/// The strategies of a space for a layer on a stage of `ranks` ranks: every division of the ranks into tensor, context
/// and data degree, with every kind that is legal for it. In a fixed order, without repetition.
/// @param node  ranks that fast links join; on larger stages tensor ranks may be strided where that brings the data and
///              context ranks into one node. 0: links are all alike
constexpr std::vector<StrategySpec> strategies(const Space& space, int ranks, int node = 0) {
  std::vector<StrategySpec> out;
  const auto brings_together = [&](int shards) { return shards > 1 && ranks > node && node % shards == 0; };
  const auto add_kinds = [&](int tensor, int context, int data, bool strided) {
    for (const SequenceKind sequence : detail::kinds_for(space, tensor, context))
      for (int zero = 0; zero <= 3; ++zero) {
        if (data * context > 1 ? !space.zero[static_cast<std::size_t>(zero)] : zero != 0) continue;
        for (const RecomputeKind recompute : space.recompute)
          out.push_back({.tensor = tensor,
                         .sequence = sequence,
                         .context = context,
                         .data = data,
                         .zero = zero,
                         .recompute = recompute,
                         .strided = strided});
      }
  };
  for (const int tensor : divisors(ranks, space.powers_of_two)) {
    if (!space.tensor.allows(tensor)) continue;
    for (const int context : divisors(ranks / tensor, space.powers_of_two)) {
      const int data = ranks / tensor / context;
      if (!space.context.allows(context) || !space.data.allows(data)) continue;
      if (space.powers_of_two && (data & (data - 1)) != 0) continue;
      add_kinds(tensor, context, data, false);
      if (space.strided && node > 0 && tensor > 1 && brings_together(context * data))
        add_kinds(tensor, context, data, true);
    }
  }
  return out;
}

/// The names that parse_space knows, for messages and help texts.
inline constexpr std::string_view space_names =
    "all, runnable, dp, zero1, zero2, zero3 (or sdp), tp, strided, sp, ulysses, ring, cp (both), pp, recompute, "
    "selective, keep, pow2, uniform, megatron, torchtitan, deepspeed, hetu, dp=N, tp=N, cp=N, pp=N, max-dp=N, "
    "max-tp=N, "
    "max-cp=N, max-pp=N, "
    "sp=none|megatron|ulysses|ring, "
    "recompute=none|cheap|selective|full";

/// A space from its notation, a comma-separated list of what the search may use:
///
///     all                    everything (also the default), narrowed by what else is given
///     runnable               likewise, of what `galvatron train` carries out
///     dp, zero1, zero2, zero3 (= sdp)   data parallelism with that ZeRO stage
///     tp, sp, pp             tensor, Megatron sequence (also with ring), pipeline parallelism
///     strided                tensor ranks also in different nodes, with the other ranks of the layer in one
///     ulysses, ring, cp      context parallelism by Ulysses, by ring attention, by either
///     recompute, selective   recomputation of the layer, of the attention core
///     keep                   no recomputation at all, not even of what norms and activations give
///     tp=4, max-tp=8         the degree is 4; at most 8 (dp, cp, pp likewise); each allows its axis
///     sp=megatron, recompute=full       wherever possible, not as a choice; sp= may be given for several kinds
///     pow2                   degrees are powers of two
///     uniform                one strategy for all layers, embedding and head too, which keeps what norms and
///                            activations give unless the whole layer is recomputed: for trainers of other makers
///     megatron, torchtitan, deepspeed, hetu   likewise, and no more than this trainer can be told (one_for_all.hpp)
///
/// What is not in the list is not used, but uniform and the names after it leave all open where only degrees and rules
/// are beside them. Errors (usage): an unknown or empty name, a degree that is no positive number, degrees that
/// contradict each other, sp or strided without tp, strided or another trainer beside uniform.
inline Result<Space> parse_space(std::string_view text) {
  const auto refuse = [text](const std::string& why) {
    return usage_error("bad --space \"" + std::string(text.substr(0, 80)) + "\": " + why);
  };
  Space space;
  bool everything = false;
  bool runnable = false;
  std::array<bool, 4> zero{};
  bool data = false;
  bool tensor = false;
  bool context = false;
  bool pipeline = false;
  bool strided = false;
  bool sequence = false;
  bool ulysses = false;
  bool ring = false;
  bool recompute = false;
  bool selective = false;
  bool keep = false;
  std::array<bool, one_for_all_names.size()> alike{};  // of these names
  bool named_any = false;                              // of what may be used
  std::vector<SequenceKind> only_sequence;
  std::vector<RecomputeKind> only_recompute;
  const std::pair<std::string_view, bool*> switches[] = {
      {"all", &everything},      {"runnable", &runnable}, {"dp", &zero[0]},
      {"zero1", &zero[1]},       {"zero2", &zero[2]},     {"zero3", &zero[3]},
      {"sdp", &zero[3]},         {"tp", &tensor},         {"strided", &strided},
      {"sp", &sequence},         {"ulysses", &ulysses},   {"ring", &ring},
      {"cp", &context},          {"pp", &pipeline},       {"recompute", &recompute},
      {"selective", &selective}, {"keep", &keep},         {"pow2", &space.powers_of_two},
      {"uniform", &alike[0]},    {"megatron", &alike[1]}, {"torchtitan", &alike[2]},
      {"deepspeed", &alike[3]},  {"hetu", &alike[4]},
  };
  const std::pair<std::string_view, std::pair<DegreeRange*, bool*>> degrees[] = {{"dp", {&space.data, &data}},
                                                                                 {"tp", {&space.tensor, &tensor}},
                                                                                 {"cp", {&space.context, &context}},
                                                                                 {"pp", {&space.pipeline, &pipeline}}};
  const auto named = [](const auto& kinds, std::string_view name, auto& into) {
    for (const auto kind : kinds) {
      if (name != name_of(kind)) continue;
      into.push_back(kind);
      return true;
    }
    return false;
  };
  while (true) {
    const std::size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    const std::size_t equals = item.find('=');
    std::string_view name = item.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? std::string_view{} : item.substr(equals + 1);
    const std::string shown(item.substr(0, 40));
    const auto unknown = [&] {
      return refuse((item.empty() ? std::string("a name is missing") : "unknown name \"" + shown + "\"") +
                    "; valid are " + std::string(space_names));
    };
    if (equals == std::string_view::npos) {
      const auto* found = std::find_if(std::begin(switches), std::end(switches),
                                       [name](const auto& known) { return known.first == name; });
      if (found == std::end(switches)) return unknown();
      *found->second = true;
      named_any = named_any || (found->second != &space.powers_of_two &&
                                std::none_of(alike.begin(), alike.end(), [&](bool& b) { return &b == found->second; }));
    } else if (name == "sp" || name == "recompute") {
      if (!(name == "sp" ? named(sequence_kinds, value, only_sequence) : named(recompute_kinds, value, only_recompute)))
        return unknown();
    } else {
      const bool cap = name.substr(0, 4) == "max-";
      if (cap) name.remove_prefix(4);
      const auto* found = std::find_if(std::begin(degrees), std::end(degrees),
                                       [name](const auto& known) { return known.first == name; });
      if (found == std::end(degrees)) return unknown();
      int degree = 0;
      const auto [end, failure] = std::from_chars(value.data(), value.data() + value.size(), degree);
      if (failure != std::errc{} || end != value.data() + value.size() || degree < 1)
        return refuse("\"" + shown + "\" needs a degree of at least 1");
      DegreeRange& range = *found->second.first;
      int& value_of = cap ? range.most : range.forced;
      if (value_of != 0 && value_of != degree)
        return refuse("\"" + shown + "\" contradicts " + std::to_string(value_of) + " before it; give one of them");
      value_of = degree;
      if (range.forced != 0 && range.most != 0 && range.forced > range.most)
        return refuse(std::string(name) + "=" + std::to_string(range.forced) + " is above max-" + std::string(name) +
                      "=" + std::to_string(range.most) + "; leave one of them out");
      *found->second.second = true;
    }
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  for (const DegreeRange* range : {&space.data, &space.tensor, &space.context, &space.pipeline})
    if (space.powers_of_two && (range->forced & (range->forced - 1)) != 0)
      return refuse(std::to_string(range->forced) + " is no power of two; leave pow2 out");
  for (std::size_t i = 0; i < alike.size(); ++i) {
    if (!alike[i]) continue;
    if (space.one_for_all != OneForAll::no && space.one_for_all != OneForAll::uniform)
      return refuse(std::string(name_of(space.one_for_all)) + " and " + std::string(name_of(one_for_all_names[i])) +
                    " are two trainers; name one");
    space.one_for_all = one_for_all_names[i];
  }
  const bool uniform = space.one_for_all != OneForAll::no;
  if (uniform && strided)
    return refuse("trainers with one strategy for all layers make tensor ranks neighbours; leave strided or " +
                  std::string(name_of(space.one_for_all)) + " out");
  if (runnable || everything || (uniform && !named_any)) {
    if (uniform) {
      space.strided = false;
      space.recompute = {RecomputeKind::none, RecomputeKind::full};
    } else if (runnable) {
      const Space can = runnable_space();
      space.context.open = can.context.open;
      space.sequence = can.sequence;
      space.recompute = can.recompute;
    }
    if (!only_sequence.empty()) space.sequence = only_sequence;
    if (!only_recompute.empty()) space.recompute = only_recompute;
    return space;
  }
  const auto has = [&](SequenceKind kind) {
    return std::find(only_sequence.begin(), only_sequence.end(), kind) != only_sequence.end();
  };
  const bool any_zero = std::find(zero.begin(), zero.end(), true) != zero.end();
  if ((sequence || has(SequenceKind::megatron)) && !tensor)
    return refuse("sp splits sequences over tensor-parallel ranks; add tp");
  if (strided && !tensor) return refuse("strided says where tensor-parallel ranks lie; add tp");
  // `cp` alone is either kind of context parallelism.
  const bool either = context && !ulysses && !ring && !has(SequenceKind::ulysses) && !has(SequenceKind::ring);
  ulysses = ulysses || either || has(SequenceKind::ulysses);
  ring = ring || either || has(SequenceKind::ring);
  space.data.open = data || any_zero;
  space.tensor.open = tensor;
  space.strided = strided;
  space.context.open = ulysses || ring;
  space.pipeline.open = pipeline;
  space.zero = any_zero ? zero : std::array{true, false, false, false};
  space.sequence.clear();
  if (!has(SequenceKind::megatron) || sequence) space.sequence.push_back(SequenceKind::none);
  if (sequence || has(SequenceKind::megatron)) space.sequence.push_back(SequenceKind::megatron);
  if (ulysses) space.sequence.push_back(SequenceKind::ulysses);
  if (ring) space.sequence.push_back(SequenceKind::ring);
  space.recompute = only_recompute;
  if (only_recompute.empty()) {
    space.recompute.push_back(uniform ? RecomputeKind::none : RecomputeKind::cheap);
    if (selective) space.recompute.push_back(RecomputeKind::selective);
    if (recompute) space.recompute.push_back(RecomputeKind::full);
    if (keep && !uniform) space.recompute.push_back(RecomputeKind::none);
  }
  return space;
}

/// What to tell those who wrote `--space pp=8`, which allows nothing but pipelines, and may have meant all plans with 8
/// stages. Empty for a space that allows more than some degrees.
inline std::string hint_at_all(const Space& space) {
  const std::pair<const char*, const DegreeRange*> axes[] = {
      {"dp", &space.data}, {"tp", &space.tensor}, {"cp", &space.context}, {"pp", &space.pipeline}};
  if (space.sequence.size() != 1 || space.recompute != std::vector{RecomputeKind::cheap}) return {};
  std::string degrees;
  bool closed = false;
  for (const auto& [name, range] : axes) {
    if (range->forced != 0) degrees += "," + std::string(name) + "=" + std::to_string(range->forced);
    if (range->most != 0) degrees += ",max-" + std::string(name) + "=" + std::to_string(range->most);
    if (range->forced != 0 || range->most != 0) continue;
    if (range->open) return {};
    closed = true;
  }
  if (degrees.empty() || !closed) return {};
  return "--space " + degrees.substr(1) + " allows nothing else, --space all" + degrees + " leaves the rest open";
}

}  // namespace galvatron
