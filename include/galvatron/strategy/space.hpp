// The space of strategies that a search looks at, and its notation `--space a,b,...`.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <galvatron/core/compiled.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/quantity.hpp>
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

  [[nodiscard]] constexpr bool is_limited() const { return forced != 0 || most != 0; }
  [[nodiscard]] constexpr bool allows(int degree) const {
    if (forced != 0) return degree == forced;
    return degree == 1 || (open && (most == 0 || degree <= most));
  }
};

/// Everything that a search may choose from. The default is all that can be priced, and all that the trainer of this
/// version carries out (InstantiatedStrategies), for the layers that runtime/implemented.hpp names.
struct Space {
  DegreeRange data;
  DegreeRange tensor;
  DegreeRange context;
  DegreeRange pipeline;
  DegreeRange expert;                                ///< of experts, where a model has some
  DegreeRange expert_tensor;                         ///< open: 1 and the tensor degree; forced: that one
  std::int64_t experts = 0;                          ///< the most of a layer: expert degrees divide it
  std::array<bool, 4> zero{true, true, true, true};  ///< stages allowed where data x context degree is above 1
  /// None applies where the context degree is 1, Ulysses and ring where it is above. Megatron's applies to both, to the
  /// latter together with Ulysses or ring.
  std::vector<SequenceKind> sequence{named_sequence_kinds.begin(), named_sequence_kinds.end()};
  std::vector<RecomputeKind> recompute{recompute_kinds.begin(), recompute_kinds.end()};
  std::vector<DispatchKind> dispatch{DispatchKind::plain};  ///< of tokens that go to experts on other ranks
  bool by_nodes = true;        ///< besides, tokens cross once to each node that has experts of theirs
  bool strided = true;         ///< besides, tensor ranks across nodes, with all data and context ranks inside them
  bool spread = true;          ///< data ranks on several groups of a mixed cluster: shards by ratio, or pipelines
  bool powers_of_two = false;  ///< of degrees; otherwise any divisor
  OneForAll one_for_all = OneForAll::no;  ///< all layers, embedding and head too, have the same strategy
  friend bool operator==(const Space&, const Space&) = default;
};

/// The axes that have degrees, as --space calls them.
inline constexpr std::pair<std::string_view, DegreeRange Space::*> degree_axes[] = {
    {"dp", &Space::data},     {"tp", &Space::tensor}, {"cp", &Space::context},
    {"pp", &Space::pipeline}, {"ep", &Space::expert}, {"etp", &Space::expert_tensor}};

/// The pipeline degrees of a space for `ranks` ranks: divisors, ascending.
inline std::vector<int> pipeline_degrees(const Space& space, int ranks) {
  std::vector<int> out;
  for (const int degree : divisors(ranks, space.powers_of_two))
    if (space.pipeline.allows(degree)) out.push_back(degree);
  return out;
}

namespace detail {

/// The kinds of sequence parallelism of a space for these degrees. Where it allows Megatron's and not none, that is no
/// choice but the rule for tensor degrees above 1; so it is for Ulysses where it allows Megatron's at all, which saves
/// memory at next to no time.
constexpr std::vector<SequenceKind> kinds_for(const Space& space, int tensor, int context) {
  const auto allows = [&space](SequenceKind kind) {
    return std::find(space.sequence.begin(), space.sequence.end(), kind) != space.sequence.end();
  };
  const bool cuts = tensor > 1 && allows(SequenceKind::megatron);
  const bool may_be_whole = !cuts || allows(SequenceKind::none);  // between tensor ranks
  std::vector<SequenceKind> out;
  if (context == 1 && may_be_whole) out.push_back(SequenceKind::none);
  if (cuts && (context == 1 || allows(SequenceKind::ring))) out.push_back(SequenceKind::megatron);
  if (context > 1 && allows(SequenceKind::ulysses))
    out.push_back(cuts ? SequenceKind::megatron_ulysses : SequenceKind::ulysses);
  if (context > 1 && allows(SequenceKind::ring) && may_be_whole) out.push_back(SequenceKind::ring);
  return out;
}

/// The expert degree and the tensor degree of experts (0: the layer's) that a space has for these ranks.
constexpr std::vector<std::pair<int, int>> expert_degrees(const Space& space, int tensor, int ranks) {
  std::vector<std::pair<int, int>> out;
  if (space.experts == 0) return {{1, 0}};
  const auto add = [&](int expert, int expert_tensor) {
    const StrategySpec spec{.tensor = tensor, .data = ranks / tensor, .expert = expert, .expert_tensor = expert_tensor};
    if (spreads_experts_evenly(spec)) out.emplace_back(expert, expert_tensor);
  };
  for (const int expert : divisors(ranks, space.powers_of_two)) {
    if (space.experts % expert != 0 || !space.expert.allows(expert)) continue;
    const int forced = space.expert_tensor.forced;
    if (forced != 0) {
      add(expert, forced == tensor ? 0 : forced);
      continue;
    }
    // Where tensor ranks could have whole experts of their own, they share none: the same states and products of as
    // many rows, but each row would go to all of them.
    const bool shares = expert == 1 || tensor == 1 || !space.expert_tensor.open ||
                        space.experts % (std::int64_t{expert} * tensor) != 0 || !space.expert.allows(expert * tensor);
    if (shares && (space.expert_tensor.most == 0 || tensor <= space.expert_tensor.most)) add(expert, 0);
    if (space.expert_tensor.open && tensor > 1) add(expert, 1);
  }
  return out;
}

/// Ways of tokens to experts, as nodes that they go by: 1, and the nodes that the ranks of experts lie in. These are
/// neighbours, of which the fewest behind the border of a node count.
constexpr std::vector<int> expert_nodes(const Space& space, int tensor, int ranks, int expert, int expert_tensor,
                                        int node) {
  std::vector<int> out{1};
  StrategySpec spec{.tensor = tensor, .data = ranks / tensor, .expert = expert, .expert_tensor = expert_tensor};
  if (!space.by_nodes || node == 0 || !spec.exchanges_tokens()) return out;
  spec.expert_nodes = spec.exchange_ranks() / std::gcd(spec.exchange_ranks(), node);
  if (spec.relays_tokens() && is_legal(spec)) out.push_back(spec.expert_nodes);
  return out;
}

}  // namespace detail

/// The strategies of a space for a layer on a stage of `ranks` ranks: every division of the ranks into tensor, context
/// and data degree, and for experts into their degrees, with every kind that is legal for it. In a fixed order, without
/// repetition.
/// @param node  ranks that fast links join; on larger stages tensor ranks may be strided where that brings the data and
///              context ranks into one node, and tokens may go to experts by nodes. 0: links are all alike
constexpr std::vector<StrategySpec> strategies(const Space& space, int ranks, int node = 0) {
  std::vector<StrategySpec> out;
  const auto brings_together = [&](int shards) { return shards > 1 && ranks > node && node % shards == 0; };
  const auto add_kinds = [&](int tensor, int context, int data, bool strided) {
    auto experts = detail::expert_degrees(space, tensor, ranks);
    if (strided) std::erase_if(experts, [](const auto& degrees) { return degrees != std::pair(1, 0); });
    for (const SequenceKind sequence : detail::kinds_for(space, tensor, context))
      for (const auto& [expert, expert_tensor] : experts)
        for (const int nodes : detail::expert_nodes(space, tensor, ranks, expert, expert_tensor, node))
          for (int zero = 0; zero <= 3; ++zero) {
            if (data * context > 1 ? !space.zero[static_cast<std::size_t>(zero)] : zero != 0) continue;
            for (const RecomputeKind recompute : space.recompute) {
              StrategySpec spec{.tensor = tensor,
                                .sequence = sequence,
                                .context = context,
                                .data = data,
                                .zero = zero,
                                .expert = expert,
                                .expert_tensor = expert_tensor,
                                .expert_nodes = nodes,
                                .recompute = recompute,
                                .strided = strided};
              if (!spec.exchanges_tokens()) out.push_back(spec);
              for (const DispatchKind dispatch : space.dispatch) {
                spec.dispatch = dispatch;
                if (spec.exchanges_tokens() && (nodes == 1 || !spec.compresses_tokens())) out.push_back(spec);
              }
            }
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
    "all, runnable, dp, zero1, zero2, zero3 (or sdp), tp, strided, sp, ulysses, ring, cp (both), pp, ep, etp, nodes, "
    "spread, recompute, selective, keep, pow2, uniform, megatron, torchtitan, deepspeed, accelerate, hetu, dp=N, tp=N, "
    "cp=N, pp=N, "
    "ep=N, "
    "etp=N, max-dp=N, max-tp=N, max-cp=N, max-pp=N, max-ep=N, max-etp=N, sp=none|megatron|ulysses|ring, "
    "recompute=none|cheap|selective|full";

/// A space from its notation, a comma-separated list of what the search may use:
///
///     all                    everything (also the default), narrowed by what else is given
///     runnable               likewise: `galvatron train` carries out all of it
///     dp, zero1, zero2, zero3 (= sdp)   data parallelism with that ZeRO stage
///     tp, sp, pp             tensor, Megatron sequence (also with Ulysses or ring), pipeline parallelism
///     strided                tensor ranks also in different nodes, with the other ranks of the layer in one
///     ulysses, ring, cp      context parallelism by Ulysses, by ring attention, by either
///     ep, etp                experts spread over ranks; each whole on its ranks beside tensor parallelism
///     nodes                  besides, tokens cross once to each node that has experts of theirs; together with ep
///     spread                 data ranks on several groups of a mixed cluster: shards by ratio, or several pipelines
///     recompute, selective   recomputation of the layer, of the attention core
///     keep                   no recomputation at all, not even of what norms and activations give
///     tp=4, max-tp=8         the degree is 4; at most 8 (dp, cp, pp, ep, etp likewise); each allows its axis
///     sp=megatron, recompute=full       wherever possible, not as a choice; sp= may be given for several kinds
///     pow2                   degrees are powers of two
///     uniform                one strategy for all layers, embedding and head too, which keeps what norms and
///                            activations give unless the whole layer is recomputed: for trainers of other makers
///     megatron, torchtitan, deepspeed, accelerate, hetu
///                                             likewise, and no more than this trainer can be told (one_for_all.hpp)
///
/// What is not in the list is not used, but uniform and the names after it leave all open where only degrees and rules
/// are beside them. Errors (usage): an unknown or empty name, a degree that is no positive number, degrees that
/// contradict each other, sp or strided without tp, strided or another trainer beside uniform.
template <class = void>
Result<Space> parse_space(std::string_view text) {
  const auto refuse = [text](const std::string& why) {
    return usage_error("bad --space \"" + std::string(text.substr(0, 80)) + "\": " + why);
  };
  constexpr std::string_view uses[] = {"all", "runnable", "dp",    "zero1",   "zero2",     "zero3",     "sdp",
                                       "tp",  "strided",  "sp",    "ulysses", "ring",      "cp",        "pp",
                                       "ep",  "etp",      "nodes", "spread",  "recompute", "selective", "keep"};
  const auto is_use = [&uses](std::string_view name) { return std::ranges::find(uses, name) != std::end(uses); };
  const auto add_kind = [](const auto& kinds, std::string_view name, auto& into) {
    const auto kind = std::ranges::find_if(kinds, [name](auto each) { return name == name_of(each); });
    if (kind != kinds.end()) into.push_back(*kind);
    return kind != kinds.end();
  };
  Space space;
  std::set<std::string_view> given;  // without a value
  std::vector<SequenceKind> only_sequence;
  std::vector<RecomputeKind> only_recompute;
  for (const std::string_view item : detail::parts_of(text, ',')) {
    const std::size_t equals = item.find('=');
    std::string_view name = item.substr(0, equals);
    const std::string shown(item.substr(0, 40));
    const auto unknown = [&] {
      return refuse((item.empty() ? std::string("a name is missing") : "unknown name \"" + shown + "\"") +
                    "; valid are " + std::string(space_names));
    };
    if (equals == std::string_view::npos) {
      const auto is_it = [name](OneForAll trainer) { return name == name_of(trainer); };
      if (!is_use(name) && name != "pow2" && std::ranges::none_of(one_for_all_names, is_it)) return unknown();
      given.insert(name);
      continue;
    }
    const std::string_view value = item.substr(equals + 1);
    if (name == "sp" || name == "recompute") {
      if (!(name == "sp" ? add_kind(named_sequence_kinds, value, only_sequence)
                         : add_kind(recompute_kinds, value, only_recompute)))
        return unknown();
      continue;
    }
    const bool cap = name.starts_with("max-");
    if (cap) name.remove_prefix(4);
    const auto* axis = std::ranges::find_if(degree_axes, [name](const auto& known) { return known.first == name; });
    if (axis == std::end(degree_axes)) return unknown();
    int degree = 0;
    const auto [end, failure] = std::from_chars(value.data(), value.data() + value.size(), degree);
    if (failure != std::errc{} || end != value.data() + value.size() || degree < 1)
      return refuse("\"" + shown + "\" needs a degree of at least 1");
    DegreeRange& range = space.*axis->second;
    int& limit = cap ? range.most : range.forced;
    if (limit != 0 && limit != degree)
      return refuse("\"" + shown + "\" contradicts " + std::to_string(limit) + " before it; give one of them");
    limit = degree;
    if (range.forced != 0 && range.most != 0 && range.forced > range.most)
      return refuse(std::string(name) + "=" + std::to_string(range.forced) + " is above max-" + std::string(name) +
                    "=" + std::to_string(range.most) + "; leave one of them out");
  }
  const auto has = [&given](std::string_view name) { return given.contains(name); };
  space.powers_of_two = has("pow2");
  for (const auto& [name, axis] : degree_axes)
    if (const int forced = (space.*axis).forced; space.powers_of_two && (forced & (forced - 1)) != 0)
      return refuse(std::to_string(forced) + " is no power of two; leave pow2 out");
  for (const OneForAll trainer : one_for_all_names) {
    if (!has(name_of(trainer))) continue;
    if (space.one_for_all != OneForAll::no && space.one_for_all != OneForAll::uniform)
      return refuse(std::string(name_of(space.one_for_all)) + " and " + name_of(trainer) +
                    " are two trainers; name one");
    space.one_for_all = trainer;
  }
  const bool uniform = space.one_for_all != OneForAll::no;
  if (uniform && has("strided"))
    return refuse("trainers with one strategy for all layers make tensor ranks neighbours; leave strided or " +
                  std::string(name_of(space.one_for_all)) + " out");
  if (has("all") || has("runnable") || (uniform && std::ranges::none_of(given, is_use))) {
    if (uniform) {
      space.strided = false;
      space.by_nodes = false;
      space.spread = false;
      space.recompute = {RecomputeKind::none, RecomputeKind::full};
    }
    if (!only_sequence.empty()) space.sequence = only_sequence;
    if (!only_recompute.empty()) space.recompute = only_recompute;
    return space;
  }
  const auto forces = [&](SequenceKind kind) { return std::ranges::find(only_sequence, kind) != only_sequence.end(); };
  const bool megatron = has("sp") || forces(SequenceKind::megatron);
  space.tensor.open = has("tp") || space.tensor.is_limited();
  if (megatron && !space.tensor.open) return refuse("sp splits sequences over tensor-parallel ranks; add tp");
  if (has("strided") && !space.tensor.open) return refuse("strided says where tensor-parallel ranks lie; add tp");
  const std::array zero{has("dp"), has("zero1"), has("zero2"), has("zero3") || has("sdp")};
  const bool any_zero = std::ranges::find(zero, true) != zero.end();
  if (has("spread") && !any_zero)
    return refuse("spread says where data-parallel ranks lie; add dp, zero1, zero2 or zero3");
  if (has("nodes") && !has("ep") && !space.expert.is_limited())
    return refuse("nodes says how tokens go to experts on other ranks; add ep");
  // `cp` alone is either kind of context parallelism.
  bool ulysses = has("ulysses") || forces(SequenceKind::ulysses);
  bool ring = has("ring") || forces(SequenceKind::ring);
  if (!ulysses && !ring) ulysses = ring = has("cp") || space.context.is_limited();
  space.data.open = any_zero || space.data.is_limited();
  space.strided = has("strided");
  space.by_nodes = has("nodes");
  space.spread = has("spread");
  space.context.open = ulysses || ring;
  space.pipeline.open = has("pp") || space.pipeline.is_limited();
  space.expert.open = has("ep") || space.expert.is_limited();
  space.expert_tensor.open = has("etp") || space.expert_tensor.is_limited();
  space.zero = any_zero ? zero : std::array{true, false, false, false};
  space.sequence.clear();
  if (!forces(SequenceKind::megatron) || has("sp")) space.sequence.push_back(SequenceKind::none);
  if (megatron) space.sequence.push_back(SequenceKind::megatron);
  if (ulysses) space.sequence.push_back(SequenceKind::ulysses);
  if (ring) space.sequence.push_back(SequenceKind::ring);
  space.recompute = only_recompute;
  if (only_recompute.empty()) {
    space.recompute.push_back(uniform ? RecomputeKind::none : RecomputeKind::cheap);
    if (has("selective")) space.recompute.push_back(RecomputeKind::selective);
    if (has("recompute")) space.recompute.push_back(RecomputeKind::full);
    if (has("keep") && !uniform) space.recompute.push_back(RecomputeKind::none);
  }
  return space;
}
GALVATRON_IN_PLANNER(Result<Space> parse_space<>(std::string_view))

/// What to tell those who wrote `--space pp=8`, which allows nothing but pipelines, and may have meant all plans with 8
/// stages. Empty for a space that allows more than some degrees.
inline std::string hint_at_all(const Space& space) {
  if (space.sequence.size() != 1 || space.recompute != std::vector{RecomputeKind::cheap}) return {};
  std::string degrees;
  bool closed = false;
  for (const auto& [name, axis] : degree_axes) {
    const DegreeRange& range = space.*axis;
    if (range.forced != 0) degrees += "," + std::string(name) + "=" + std::to_string(range.forced);
    if (range.most != 0) degrees += ",max-" + std::string(name) + "=" + std::to_string(range.most);
    if (range.is_limited()) continue;
    if (range.open) return {};
    closed = true;
  }
  if (degrees.empty() || !closed) return {};
  return "--space " + degrees.substr(1) + " allows nothing else, --space all" + degrees + " leaves the rest open";
}

}  // namespace galvatron
