// The space of strategies that a search looks at, and its notation `--space a,b,...`.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/strategy/decision_tree.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron {

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

/// Everything that a search may choose from. The default is all that the runtime carries out.
struct Space {
  DegreeRange data;
  DegreeRange tensor;
  DegreeRange pipeline;
  std::array<bool, 4> zero{true, true, true, true};  ///< stages allowed where the data degree is above 1
  std::vector<SequenceKind> sequence{SequenceKind::none, SequenceKind::megatron};
  std::vector<RecomputeKind> recompute{RecomputeKind::none, RecomputeKind::full};
  bool powers_of_two = false;  ///< of degrees; otherwise any divisor
  friend bool operator==(const Space&, const Space&) = default;
};

/// The pipeline degrees of a space for `ranks` ranks: divisors, ascending.
inline std::vector<int> pipeline_degrees(const Space& space, int ranks) {
  std::vector<int> out;
  for (const int degree : divisors(ranks, space.powers_of_two))
    if (space.pipeline.allows(degree)) out.push_back(degree);
  return out;
}

/// The strategies of a space for a layer on a stage of `ranks` ranks: every division of the ranks into tensor
/// (consecutive ranks) and data degree, with every kind that is legal for it. Sequence parallelism that the space
/// allows only as Megatron's applies where the tensor degree is above 1. In a fixed order, without repetition.
inline std::vector<StrategySpec> strategies(const Space& space, int ranks) {
  std::vector<StrategySpec> out;
  for (const int tensor : divisors(ranks, space.powers_of_two)) {
    const int data = ranks / tensor;
    if (!space.tensor.allows(tensor) || !space.data.allows(data)) continue;
    if (space.powers_of_two && (data & (data - 1)) != 0) continue;
    std::vector<SequenceKind> sequences = space.sequence;
    if (tensor == 1) sequences = {SequenceKind::none};
    for (const SequenceKind sequence : sequences)
      for (int zero = 0; zero <= 3; ++zero) {
        if (data > 1 ? !space.zero[static_cast<std::size_t>(zero)] : zero != 0) continue;
        for (const RecomputeKind recompute : space.recompute) {
          const StrategySpec spec{
              .tensor = tensor, .sequence = sequence, .data = data, .zero = zero, .recompute = recompute};
          if (is_legal(spec) && std::find(out.begin(), out.end(), spec) == out.end()) out.push_back(spec);
        }
      }
  }
  return out;
}

/// The names that parse_space knows, for messages and help texts.
inline constexpr std::string_view space_names =
    "all, dp, zero1, zero2, zero3 (or sdp), tp, sp, pp, recompute, pow2, dp=N, tp=N, pp=N, max-dp=N, max-tp=N, "
    "max-pp=N, sp=none|megatron, recompute=none|full";

/// A space from its notation, a comma-separated list of what the search may use:
///
///     all                    everything (also the default), narrowed by what else is given
///     dp, zero1, zero2, zero3 (= sdp)   data parallelism with that ZeRO stage
///     tp, sp, pp, recompute  tensor, Megatron sequence, pipeline parallelism; full recomputation
///     tp=4, max-tp=8         the degree is 4; at most 8 (dp, pp likewise); each allows its axis
///     sp=megatron, recompute=full       wherever possible, not as a choice
///     pow2                   degrees are powers of two
///
/// What is not in the list is not used. Errors (usage): an unknown or empty name, a degree that is no positive number,
/// degrees that contradict each other, sp without tp.
inline Result<Space> parse_space(std::string_view text) {
  const auto refuse = [text](const std::string& why) {
    return usage_error("bad --space \"" + std::string(text.substr(0, 80)) + "\": " + why);
  };
  Space space;
  bool everything = false;
  std::array<bool, 4> zero{};
  bool data = false;
  bool tensor = false;
  bool pipeline = false;
  bool sequence = false;
  bool recompute = false;
  const std::pair<std::string_view, bool*> switches[] = {
      {"all", &everything},
      {"dp", &zero[0]},
      {"zero1", &zero[1]},
      {"zero2", &zero[2]},
      {"zero3", &zero[3]},
      {"sdp", &zero[3]},
      {"tp", &tensor},
      {"sp", &sequence},
      {"pp", &pipeline},
      {"recompute", &recompute},
      {"pow2", &space.powers_of_two},
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
    } else if (name == "sp" && (value == "none" || value == "megatron")) {
      sequence = true;
      space.sequence = {value == "none" ? SequenceKind::none : SequenceKind::megatron};
    } else if (name == "recompute" && (value == "none" || value == "full")) {
      recompute = true;
      space.recompute = {value == "none" ? RecomputeKind::none : RecomputeKind::full};
    } else {
      const bool cap = name.substr(0, 4) == "max-";
      if (cap) name.remove_prefix(4);
      if (name != "dp" && name != "tp" && name != "pp") return unknown();
      int degree = 0;
      const auto [end, failure] = std::from_chars(value.data(), value.data() + value.size(), degree);
      if (failure != std::errc{} || end != value.data() + value.size() || degree < 1)
        return refuse("\"" + shown + "\" needs a degree of at least 1");
      DegreeRange& range = name == "dp" ? space.data : name == "tp" ? space.tensor : space.pipeline;
      int& value_of = cap ? range.most : range.forced;
      if (value_of != 0 && value_of != degree)
        return refuse("\"" + shown + "\" contradicts " + std::to_string(value_of) + " before it; give one of them");
      value_of = degree;
      if (range.forced != 0 && range.most != 0 && range.forced > range.most)
        return refuse(std::string(name) + "=" + std::to_string(range.forced) + " is above max-" + std::string(name) +
                      "=" + std::to_string(range.most) + "; leave one of them out");
      (name == "dp" ? data : name == "tp" ? tensor : pipeline) = true;
    }
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  for (const DegreeRange* range : {&space.data, &space.tensor, &space.pipeline})
    if (space.powers_of_two && (range->forced & (range->forced - 1)) != 0)
      return refuse(std::to_string(range->forced) + " is no power of two; leave pow2 out");
  if (everything) return space;
  const bool any_zero = std::find(zero.begin(), zero.end(), true) != zero.end();
  space.data.open = data || any_zero;
  space.tensor.open = tensor;
  space.pipeline.open = pipeline;
  if (any_zero || data) space.zero = any_zero ? zero : std::array{true, false, false, false};
  if (sequence && !tensor && space.sequence != std::vector{SequenceKind::none})
    return refuse("sp splits sequences over tensor-parallel ranks; add tp");
  if (!sequence) space.sequence = {SequenceKind::none};
  if (!recompute) space.recompute = {RecomputeKind::none};
  return space;
}

}  // namespace galvatron
