// LayerPricer: one layer under many strategies, whose counts and prices have much in common; PassPrices: what it has in
// common with others of its kind.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/cost/counts.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/plan_cost.hpp>
#include <galvatron/cost/time.hpp>
#include <galvatron/cost/trainer.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/program/program.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::cost {

struct PricedLayer {
  LayerPrices prices;
  LayerBytes bytes;
};

/// Prices of the passes of one kind of layers under many strategies, for batches that differ in nothing but stages and
/// micro-batches. They are the same wherever a rank has equally many samples, but for the gradients of a block's
/// weights: see op::Work::writes_one_in. An embedding and a head do not depend on what is recomputed.
class PassPrices {
 public:
  using Pass = LayerPrices::Pass;

  /// Of a micro-batch under one strategy, without the passes that have gradients of weights.
  struct Forward {
    bool known = false;
    LayerBytes bytes;
    Pass pass;
  };
  /// Backward and weights: first of a micro-batch that writes gradients for a reduction, then on average, by the
  /// numbers of micro-batches.
  using Backward = std::array<Pass, 2>;

  /// @param microbatches  all numbers that the batches have
  constexpr PassPrices(const LayerSpec& layer, std::vector<int> microbatches)
      : layer_(layer), microbatches_(std::move(microbatches)) {
    if (kinds_ == 1) microbatches_.clear();
  }

  /// All numbers that make a difference.
  [[nodiscard]] constexpr const std::vector<int>& microbatches() const { return microbatches_; }
  /// Where backward() has the prices of batches with so many micro-batches.
  [[nodiscard]] constexpr std::size_t place_of(int microbatches) const {
    const auto at = std::ranges::find(microbatches_, microbatches);
    return microbatches_.empty() ? 0 : 1 + static_cast<std::size_t>(at - microbatches_.begin());
  }
  /// The number of the entry of a strategy's degrees, which may be new.
  constexpr std::size_t entry(const StrategySpec& spec, const Batch& batch) {
    if (2 * entries_.size() >= places_.size()) grow();
    Key key{spec.degrees(), batch.microbatch / spec.data};
    // The only other work that depends on how many data ranks there are: messages between ranks that they lie between,
    // of the balance of experts over all of them, and of a loss over the rows of all.
    const bool balances = layer_.router.balance_scope == BalanceScope::data_ranks && layer_.router.balance_loss > 0;
    if (!spec.strided && !balances && layer_.head != HeadKind::contrastive) key.degrees.data = 1;
    const std::size_t at = place(key);
    if (places_[at] == 0) {
      entries_.push_back(key);
      forward_.resize(entries_.size() * kinds_);
      backward_.resize(entries_.size() * kinds_ * (1 + microbatches_.size()));
      places_[at] = entries_.size();
    }
    return places_[at] - 1;
  }
  [[nodiscard]] constexpr Forward& forward(std::size_t entry, RecomputeKind kind) {
    return forward_[number(entry, kind)];
  }
  [[nodiscard]] constexpr std::span<Backward> backward(std::size_t entry, RecomputeKind kind) {
    const std::size_t each = 1 + microbatches_.size();
    return std::span(backward_).subspan(number(entry, kind) * each, each);
  }

 private:
  struct Key {
    StrategySpec degrees;
    std::int64_t samples = 0;  // of a rank

    friend constexpr bool operator==(const Key&, const Key&) = default;
  };

  [[nodiscard]] constexpr std::size_t number(std::size_t entry, RecomputeKind kind) const {
    return entry * kinds_ + (kinds_ == 1 ? 0 : static_cast<std::size_t>(kind));
  }
  [[nodiscard]] constexpr std::size_t place(const Key& key) const {
    const StrategySpec& d = key.degrees;
    std::uint64_t mixed = static_cast<std::uint64_t>(key.samples);
    for (const int part : {d.tensor, static_cast<int>(d.sequence), d.context, d.expert, d.expert_tensor, d.expert_nodes,
                           static_cast<int>(d.dispatch), d.strided ? d.data : 0})
      mixed = (mixed ^ static_cast<std::uint64_t>(part)) * 0x9E3779B97F4A7C15u;
    std::size_t at = (mixed >> 32) % places_.size();
    while (places_[at] != 0 && !(entries_[places_[at] - 1] == key)) at = at + 1 == places_.size() ? 0 : at + 1;
    return at;
  }
  constexpr void grow() {
    places_.assign(std::max<std::size_t>(64, 2 * places_.size()), 0);
    for (std::size_t i = 0; i < entries_.size(); ++i) places_[place(entries_[i])] = i + 1;
  }

  const LayerSpec& layer_;
  std::size_t kinds_ = layer_.kind == LayerKind::block ? recompute_kinds.size() : 1;  // of recomputation
  std::vector<int> microbatches_;
  std::vector<Key> entries_;
  std::vector<Forward> forward_;     // (entries, kinds)
  std::vector<Backward> backward_;   // (entries, kinds, 1 + numbers of micro-batches)
  std::vector<std::size_t> places_;  // numbers of entries from 1, by what their keys mix to; 0: free
};

/// Prices a layer under strategies of which those with equal degrees come one after the other, and among them those
/// with equal degrees but for experts'. They share most of what is to be counted and priced: of ZeRO the passes of a
/// layer depend on whether micro-batches add weight gradients or write them, its parameters do not depend on
/// recomputation, and only what experts have and do depends on their degrees.
class LayerPricer {
 public:
  /// @param programs  of the layer under all strategies that it is asked about
  /// @param passes    of this kind of layers; one of its numbers of micro-batches is that of the batch
  constexpr LayerPricer(const LayerPrograms& programs, const Batch& batch, const Cluster& cluster, WorkPrices& prices,
                        PassPrices& passes)
      : programs_(programs), batch_(batch), cluster_(cluster), prices_(prices), passes_(passes) {}

  constexpr PricedLayer operator()(const StrategySpec& spec) {
    if (const StrategySpec degrees = spec.degrees(); !(degrees == degrees_)) {
      if (!(degrees.layout_degrees() == degrees_.layout_degrees()) ||
          degrees.exchanges_tokens() != degrees_.exchanges_tokens() || degrees.dispatch != degrees_.dispatch)
        others_ = {}, rest_ = {};
      degrees_ = degrees;
      parameters_ = {};
      stores_ = {};
      entry_ = passes_.entry(spec, batch_);
    }
    const program::LayerProgram& program = programs_.of(spec, batch_);
    PassPrices::Forward& forward = passes_.forward(entry_, spec.recompute);
    const std::span<PassPrices::Backward> backwards = passes_.backward(entry_, spec.recompute);
    if (!forward.known) price_passes(spec, program, forward, backwards);
    const auto& [backward, weights] = backwards[spec.zero >= 2 ? 0 : microbatches_];
    const bool splits = batch_.splits_backward && splits_backward(layer_, spec);
    std::optional<PricedLayer>& parameters = parameters_[2 * static_cast<std::size_t>(spec.zero) + (splits ? 1 : 0)];
    if (!parameters) parameters = priced_parameters(spec, program, splits);
    return sum({{{forward.pass, backward, weights}}, forward.bytes}, *parameters);
  }
  /// The prices `priced` of an embedding or a head, where the copies of a tied table are on the two sides of `ends`.
  [[nodiscard]] constexpr PricedLayer over(const Link& ends, const StrategySpec& spec, PricedLayer priced) {
    const op::Work& tie = ties_[static_cast<std::size_t>(spec.zero)];
    Seconds& waited = priced.prices.passes[LayerPrices::synchronise].waited;
    if (tie.between_ends) waited += prices_.over(ends, tie) - prices_(tie);
    return priced;
  }

 private:
  static constexpr PricedLayer sum(const PricedLayer& a, const PricedLayer& b) {
    PricedLayer out{a.prices + b.prices, a.bytes};
    out.bytes.add(b.bytes);
    return out;
  }
  constexpr PricedLayer priced_parameters(const StrategySpec& spec, const program::LayerProgram& program, bool splits) {
    const auto of = [&](std::span<const ParameterPart> parts) {
      const LayerCounts counts = parameter_counts(spec, batch_, program, stores_, parts);
      op::Work& tie = ties_[static_cast<std::size_t>(spec.zero)] = {};
      for (const op::Work& work : counts.synchronise)
        if (work.between_ends) tie = work;
      return PricedLayer{layer_prices(counts, spec, cluster_, prices_), counts};
    };
    const std::span<const ParameterPart> parts(LayerStores::parts);
    if (layer_.experts == 0) return of(parts);
    std::optional<PricedLayer>& rest = rest_[2 * static_cast<std::size_t>(spec.zero) + (splits ? 1 : 0)];
    if (!rest) rest = of(parts.first(3));
    return sum(*rest, of(parts.last(1)));
  }
  // Messages that run beside products are priced with all of these, and not by parts.
  constexpr void price_passes(const StrategySpec& spec, const program::LayerProgram& program,
                              PassPrices::Forward& forward, std::span<PassPrices::Backward> backward) {
    using detail::Steps;
    if (layer_.experts == 0 || batch_.trainer->tensor_pieces > 0)
      return price_steps(spec, program, Steps::all, forward, backward);
    const auto kind = static_cast<std::size_t>(spec.recompute);
    const std::span<PassPrices::Backward> others = std::span(others_backward_).subspan(kind * backward.size());
    if (!others_[kind].known) price_steps(spec, program, Steps::others, others_[kind], others);
    price_steps(spec, program, Steps::experts, forward, backward);
    forward.pass = forward.pass + others_[kind].pass;
    for (std::size_t i = 0; i < backward.size(); ++i)
      for (std::size_t j = 0; j < 2; ++j) backward[i][j] = backward[i][j] + others[i][j];
  }
  constexpr void price_steps(const StrategySpec& spec, const program::LayerProgram& program, detail::Steps steps,
                             PassPrices::Forward& forward, std::span<PassPrices::Backward> backward) {
    LayerCounts counts = pass_counts(spec, batch_, program, steps);
    std::array<Seconds, 3 * op::WorkList::capacity> known;  // of the work, in the order in which it is asked for
    const auto price = [&](int microbatches, bool again) {
      for (op::WorkList* list : {&counts.backward, &counts.weights}) list->write_one_in(microbatches);
      auto seconds = [&, at = std::size_t{0}](const op::Work& work) mutable {
        Seconds& one = known[at++];
        if (!again || work.writes_one_in != 0) one = prices_(work);
        return one;
      };
      return layer_prices(counts, spec, cluster_, seconds).passes;
    };
    const auto reduced = price(op::Work::for_reduction, false);
    forward = {true, counts, reduced[0]};
    backward[0] = {reduced[1], reduced[2]};
    for (std::size_t i = 0; i < passes_.microbatches().size(); ++i) {
      const auto mixed = price(passes_.microbatches()[i], true);
      backward[i + 1] = {mixed[1], mixed[2]};
    }
  }

  const LayerPrograms& programs_;
  const LayerSpec& layer_ = programs_.layer();
  const Batch& batch_;
  const Cluster& cluster_;
  WorkPrices& prices_;
  PassPrices& passes_;
  std::size_t microbatches_ = passes_.place_of(batch_.microbatches);
  StrategySpec degrees_{.tensor = 0};  // of what follows
  std::size_t entry_ = 0;
  std::array<op::Work, 4> ties_{};  // by stage of ZeRO: what joins the copies of a tied table
  // Of steps but experts', by what is recomputed.
  std::array<PassPrices::Forward, recompute_kinds.size()> others_{};
  std::vector<PassPrices::Backward> others_backward_ =
      std::vector<PassPrices::Backward>(others_.size() * (1 + passes_.microbatches().size()));
  std::array<std::optional<PricedLayer>, 8> parameters_{};  // by stage of ZeRO, and whether backward is split
  std::array<std::optional<PricedLayer>, 8> rest_{};        // the same of all but experts
  LayerStores stores_;
};

}  // namespace galvatron::cost
