// Trainer: whose code carries a plan out, as facts. Plans are for the library's own runtime unless they say otherwise;
// those that are exported, or compared with published runs, are priced as their trainer works.
//
// Nothing here is fitted to a training run. The facts of other trainers, each with its source, are JSON
// (cost/trainer_files.hpp); cost/trainer_json.hpp reads them.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/program/program.hpp>
#include <galvatron/strategy/one_for_all.hpp>
#include <galvatron/strategy/schedule_kind.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::cost {

/// How a trainer carries out layers, and what it takes besides. The defaults are those of this library: runtime/ and
/// train/.
///
/// Megatron-LM keeps what forward computes. Bytes for each token and hidden unit of a GPT block in 16 bits, without
/// tensor parallelism (Korthikanti et al., arXiv 2205.05198, section 4.1):
///
///     inputs of the norms 4, of the linear layers 2 + 2 + 2 + 8, queries, keys and values 6, hidden units 8;
///     with dropout its masks 2;  attention that is not fused: scores 2 A S / H, with dropout 5 A S / H
///
/// Selective recomputation gives up the scores, full recomputation all but the input. Where weight gradients are
/// deferred, what they need takes the place of what the first part no longer needs (Qi et al., arXiv 2401.10241,
/// section 2.3): nothing is kept besides.
struct RuntimeTraits {
  bool own = true;               ///< this library's runtime
  program::Options passes{};     ///< of which programs are lowered
  bool writes_gradients = true;  ///< of a block's weights where it can; else they are added to zeros
  op::AttentionKernel attention = op::AttentionKernel::device;
  Fp8Recipe fp8_recipe = Fp8Recipe::tensorwise;  ///< of products in precision fp8
  // How often an operation goes over memory where a fused kernel does once.
  int norm_passes = 1;
  int activation_passes = 1;
  int rotary_passes = 1;
  // What runs beside what.
  int tensor_pieces = 0;            ///< of products, beside which messages of tensor ranks run inside a node under
                                    ///< Megatron-SP: one piece has none to hide behind; 0: messages are waited for
  bool overlaps_gradients = true;   ///< of ZeRO-0/1: their messages run beside the last backward pass
  bool overlaps_parameters = true;  ///< of ZeRO-1/2: they are gathered beside the next forward pass
  bool prefetches = true;           ///< of ZeRO-2/3: messages of every micro-batch run beside computation
  bool scatters_sends = false;      ///< tensor ranks with whole activations send a part each to the next stage
  // States.
  bool keeps_parameters = true;  ///< in the precision of activations beside the fp32 master of the same shard
  int gradient_bytes = 4;        ///< of a parameter's gradient as it is kept
  int message_bytes = 4;         ///< of a parameter's gradient as it is summed over ranks
  int logit_bytes = 0;           ///< of an element of whole logits at their peak; 0: what the program has
  bool shares_slots = false;     ///< virtual stages take memory when they need it, and have no slots of their own
  // Memory that is no plan's.
  Bytes context;             ///< of the framework, its kernels and libraries
  Bytes collectives;         ///< of the communicators
  double fragmentation = 0;  ///< share of the device that the allocator leaves unused
  // Time that is no device's.
  Seconds host;              ///< that the host takes for an operation, a floor under the device's time
  double device_spread = 0;  ///< relative standard deviation of devices of one kind: all wait for the slowest
  // What the model of cost leaves unexplained, as relative standard deviations.
  double time_spread = 0.03;
  double memory_spread = 0;

  friend constexpr bool operator==(const RuntimeTraits&, const RuntimeTraits&) = default;
};

inline constexpr RuntimeTraits own_runtime{};

/// How many standard deviations the largest of n normal numbers is above their mean, to first order (Cramer 1946,
/// section 28.6).
constexpr double expected_largest(int n) {
  if (n < 2) return 0;
  const double root = std::sqrt(2 * std::log(static_cast<double>(n)));
  return root - (std::log(std::log(static_cast<double>(n))) + std::log(4 * 3.14159265358979)) / (2 * root);
}

/// What plans a trainer can be told.
struct Expressible {
  OneForAll target = OneForAll::no;  ///< whose limits they keep to (strategy/one_for_all.hpp): with an exporter
  std::vector<ScheduleKind> schedules{schedule_kinds.begin(), schedule_kinds.end()};
  std::vector<SequenceKind> sequence{named_sequence_kinds.begin(), named_sequence_kinds.end()};
  std::vector<RecomputeKind> recompute{recompute_kinds.begin(), recompute_kinds.end()};
  std::array<bool, 4> zero{true, true, true, true};
  std::vector<Fp8Recipe> fp8_recipes{Fp8Recipe::tensorwise};
  bool tensor = true;
  bool context = true;
  bool pipeline = true;
  bool experts = true;

  friend bool operator==(const Expressible&, const Expressible&) = default;
};

/// A fact's source, by the section of the file that it is in.
struct FactSource {
  std::string section;
  std::string text;

  friend bool operator==(const FactSource&, const FactSource&) = default;
};

struct Trainer {
  std::string name = "galvatron";  ///< or the path of its file
  RuntimeTraits traits{};
  Expressible expressible{};
  std::vector<FactSource> sources{};

  [[nodiscard]] bool is_own() const { return traits.own; }
  friend bool operator==(const Trainer&, const Trainer&) = default;
};

/// Why this trainer does not compute so; empty when it does.
inline std::string why_no_recipe(const Trainer& trainer, Precision precision) {
  const std::vector<Fp8Recipe>& known = trainer.expressible.fp8_recipes;
  const Fp8Recipe wanted = trainer.traits.fp8_recipe;
  if (precision != Precision::fp8 || std::ranges::find(known, wanted) != known.end()) return {};
  return "the FP8 recipe of " + trainer.name + " is " +
         joined(
             known, ", ", [](Fp8Recipe each) { return std::string(name_of(each)); }, " or ") +
         ", not " + name_of(wanted);
}

/// What a rank's libraries take beside its tensors. Of other trainers it is in what they keep free (reserve_of).
/// @param workspace  DeviceSpec::library_workspace
constexpr Bytes library_of(const RuntimeTraits& traits, Bytes workspace) { return traits.own ? workspace : Bytes{}; }

/// Of a device's memory, what no plan of this trainer takes.
/// @param own  what this library's runtime takes of the device beside its arena (DeviceSpec::reserve)
constexpr Bytes reserve_of(const RuntimeTraits& traits, Bytes memory, Bytes own) {
  if (traits.own) return min(own, memory);
  const auto share = static_cast<std::int64_t>(traits.fragmentation * static_cast<double>(memory.count));
  return min(traits.context + traits.collectives + Bytes{share}, memory);
}

}  // namespace galvatron::cost
