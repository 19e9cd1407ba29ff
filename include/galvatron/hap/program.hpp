// A distributed program: loads, operations and collectives in the order in which all devices execute them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/hap/graph.hpp>
#include <galvatron/hap/prices.hpp>
#include <galvatron/hap/ratios.hpp>
#include <galvatron/hap/rules.hpp>

namespace galvatron::hap {

struct Step {
  enum class Kind : std::uint8_t { load, communicate, compute };
  Kind kind{};
  int tensor = -1;
  Layout layout = replicate;  ///< that the tensor has then
  Layout from = replicate;    ///< of a communication: that it has before

  friend bool operator==(const Step&, const Step&) = default;
};
using Program = std::vector<Step>;

/// What a step costs, and whether it begins a stage: collectives do, slices do not.
struct PricedStep {
  Terms terms;
  bool begins_stage = false;
};

namespace detail {

// Executes a program on layouts.
class Replay {
 public:
  explicit Replay(const Prices& prices)
      : prices_(prices), makers_(prices.graph().tensors.size(), nullptr), held_(prices.graph().tensors.size()) {
    for (const Node& node : prices.graph().nodes) makers_[static_cast<std::size_t>(node.output)] = &node;
  }

  Result<PricedStep> run(const Step& step) {
    const auto wrong = [&](const std::string& why) {
      const bool known = step.tensor >= 0 && step.tensor < static_cast<int>(held_.size());
      return usage_error(
          text_of("program: ", known ? prices_.graph().tensor(step.tensor).name : "a tensor", ": ", why));
    };
    if (step.tensor < 0 || step.tensor >= static_cast<int>(held_.size())) return wrong("there is no such tensor");
    const auto at = static_cast<std::size_t>(step.tensor);
    const Node* maker = makers_[at];
    if (maker == nullptr) return wrong("no operation makes it");
    const bool source = is_source(maker->operation);
    std::vector<Layout>& held = held_[at];
    const int rank = prices_.graph().tensor(step.tensor).rank();
    if (step.layout.code >= rank) return wrong("it has no dimension " + std::to_string(step.layout.code));
    PricedStep out;
    if (step.kind == Step::Kind::communicate) {
      const auto kind = collective_between(step.from, step.layout);
      if (held.size() != 1 || held.front() != step.from || !kind ||
          !can_communicate(maker->operation, prices_.dialect()))
        return wrong("it cannot be communicated so");
      out.terms = prices_.communicating(step.tensor, step.from, step.layout);
      out.begins_stage = *kind != Collective::slice;
    } else {
      if (!held.empty()) return wrong("it is computed twice");
      if (source != (step.kind == Step::Kind::load)) return wrong("sources are loaded, all else is computed");
      if (source) {
        if (step.layout == partial_sums) return wrong("nothing is loaded in parts of a sum");
        out.terms = prices_.loading(*maker, step.layout);
      } else {
        const auto computed = compute(*maker, step.layout);
        if (!computed) return wrong("no rule makes it " + name_of(step.layout) + " of what is there");
        out.terms = *computed;
      }
    }
    held.push_back(step.layout);
    return out;
  }
  [[nodiscard]] bool has(int tensor, Layout layout) const {
    return std::ranges::count(held_[static_cast<std::size_t>(tensor)], layout) > 0;
  }

 private:
  // By the rule that takes least, if several make this layout.
  [[nodiscard]] std::optional<Terms> compute(const Node& node, Layout layout) const {
    std::optional<Terms> out;
    for (const Rule& rule : rules_of(prices_.graph(), node, prices_.dialect())) {
      bool fits = rule.result == layout && (!out || rule.sharded);
      for (std::size_t i = 0; fits && i < rule.operands.size(); ++i) fits = has(node.inputs[i], rule.operands[i]);
      if (fits) out = prices_.computing(node, rule);
    }
    return out;
  }

  const Prices& prices_;
  std::vector<const Node*> makers_;
  std::vector<std::vector<Layout>> held_;  // by tensor
};

}  // namespace detail

/// Prices of a program's steps. Errors (usage): it cannot be executed, or the loss is no partial sum in the end.
inline Result<std::vector<PricedStep>> priced_steps(const Prices& prices, const Program& program) {
  detail::Replay replay(prices);
  std::vector<PricedStep> out;
  for (const Step& step : program) {
    auto priced = replay.run(step);
    if (!priced) return tl::unexpected(priced.error());
    out.push_back(*priced);
  }
  if (!replay.has(prices.graph().loss, partial_sums)) return usage_error("program: it does not compute the loss");
  return out;
}

/// The sum over a program's steps. Errors as priced_steps.
inline Result<Terms> terms_of(const Prices& prices, const Program& program) {
  const auto steps = priced_steps(prices, program);
  if (!steps) return tl::unexpected(steps.error());
  Terms out;
  for (const PricedStep& step : *steps) out += step.terms;
  return out;
}

/// The stages of a program, for HAP's own cost: the slowest device of every stage counts. Errors as priced_steps.
inline Result<std::vector<Stage>> stages_of(const Prices& prices, const Program& program) {
  const auto steps = priced_steps(prices, program);
  if (!steps) return tl::unexpected(steps.error());
  std::vector<Stage> out(1);
  for (const PricedStep& step : *steps) {
    if (step.begins_stage) out.emplace_back();
    Stage& stage = out.back();
    stage.seconds += step.terms.seconds;
    stage.ratio_seconds += step.terms.ratio_seconds;
    stage.replicated_flops += step.terms.replicated_flops;
    stage.sharded_flops += step.terms.sharded_flops;
  }
  return out;
}

/// Seconds of a step, by what each operation takes, or by stages.
enum class CostModel : std::uint8_t {
  operations,  ///< every operation waits for its slowest device, as in the released program
  stages,      ///< devices wait for each other at collectives, as in the paper
};

/// Seconds of stages of one segment.
inline double seconds_of(const std::vector<Stage>& stages, const std::vector<double>& flops, const Ratios& ratios) {
  double out = 0;
  for (const Stage& stage : stages) out += seconds_of(stage, flops, ratios);
  return out;
}

/// Errors as priced_steps.
inline Result<double> seconds_of(const Prices& prices, const Program& program, const Ratios& ratios, CostModel model) {
  if (model == CostModel::operations) {
    const auto terms = terms_of(prices, program);
    if (!terms) return tl::unexpected(terms.error());
    return point_of(prices.devices(), ratios).seconds(*terms);
  }
  const auto stages = stages_of(prices, program);
  if (!stages) return tl::unexpected(stages.error());
  return seconds_of(*stages, prices.devices().flops, ratios);
}

}  // namespace galvatron::hap
