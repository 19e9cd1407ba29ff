// The options of a model on a cluster, by the prices and bytes of the programs that the runtime executes.
//
// A group of degree d is d context ranks (Ulysses or ring attention); parameters are sharded over all N devices
// (ZeRO-3). A layer is counted for the strategy `cp d dp N/d zero3`, so that one data rank is one group, with
// micro-batches of n documents of s tokens in each. n is as large as a group holds:
//
//     f(s) = seconds of the layers' forward and backward passes, but for the messages of parameters, over n
//
// What this approximates: documents of different lengths add up as if each were among documents of its own length. Of
// attention and of the loss that is so; all other work is on rows of tokens, of which a full group has as many either
// way, and an emptier one computes them at a somewhat lower rate. Messages of ring attention run beside attention for
// all documents of a group together, and are priced document by document: too dear where long and short ones mix.
//
// The messages of parameters (ZeRO-3 gathers and reduces) take P seconds a micro-batch whatever the groups. Beside
// computation they slow it down by what the cluster says (`fixed`), and no micro-batch ends before them (`floor`).
// Optimizer steps come once a batch and are the same for all plans: they are not in the prices.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/compiled.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/memory.hpp>
#include <galvatron/cost/plan_cost.hpp>
#include <galvatron/flexsp/problem.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/strategy/layout.hpp>
#include <galvatron/strategy/legality.hpp>

namespace galvatron::flexsp {

/// Which options a problem of a model has.
struct GroupSpace {
  bool any_degrees = true;  ///< not only powers of two
  bool ulysses = true;
  bool ring = true;
  bool single_devices = true;  ///< groups of one device
  RecomputeKind recompute = RecomputeKind::none;
};

namespace detail {

/// Seconds of a document by a table over tokens: seconds a token are linear between its points, so that attention,
/// whose seconds grow with the square, is met.
class SecondsTable {
 public:
  /// @param tokens  ascending  @param rates  seconds a token
  SecondsTable(std::vector<double> tokens, std::vector<double> rates)
      : tokens_(std::move(tokens)), rates_(std::move(rates)) {}
  double operator()(std::int64_t tokens) const {
    const auto s = static_cast<double>(tokens);
    if (tokens_.size() == 1 || s <= tokens_.front()) return s * rates_.front();
    const auto above = std::upper_bound(tokens_.begin() + 1, tokens_.end() - 1, s);
    const auto i = static_cast<std::size_t>(above - tokens_.begin());
    const double share = (s - tokens_[i - 1]) / (tokens_[i] - tokens_[i - 1]);
    return s * (rates_[i - 1] + share * (rates_[i] - rates_[i - 1]));
  }

 private:
  std::vector<double> tokens_;
  std::vector<double> rates_;
};

/// Counts and prices the layers of a model for groups of one degree and kind.
class GroupPricer {
 public:
  GroupPricer(const ModelSpec& model, const Cluster& cluster, Precision precision, int degree, SequenceKind sequence,
              RecomputeKind recompute)
      : model_(model), cluster_(cluster), precision_(precision) {
    // Degrees that do not divide N: as many groups as are nearest.
    const int groups = std::max(1, (cluster.devices + degree / 2) / degree);
    spec_.context = degree;
    spec_.sequence = degree == 1 ? SequenceKind::none : sequence;
    spec_.data = groups;
    spec_.zero = 3;
    spec_.recompute = recompute;
    for (int number = 0; number < model.layers(); ++number) {
      const LayerSpec& layer = model.layer(number);
      const bool again = number > 0 && !distinct_.empty() && distinct_.back().layer->costs_like(layer);
      if (again)
        ++distinct_.back().times;
      else
        distinct_.push_back({&layer, 1});
    }
  }

  /// Documents that every degree can cut: a multiple of these tokens.
  [[nodiscard]] std::int64_t unit() const { return std::int64_t{2} * spec_.context; }
  [[nodiscard]] std::string why_unfit(std::int64_t tokens) const {
    for (const Part& part : distinct_)
      if (const auto why = galvatron::why_unfit(*part.layer, spec_, spec_.data, tokens); !why.empty())
        return std::string(why);
    return {};
  }

  /// Bytes of a device whose group has so many documents of `tokens` tokens.
  [[nodiscard]] Bytes bytes(std::int64_t documents, std::int64_t tokens) const {
    std::vector<cost::LayerBytes> layers;
    const cost::Batch batch = batch_of(documents, tokens);
    for (const Part& part : distinct_) {
      const cost::LayerBytes one = cost::layer_counts(*part.layer, spec_, batch);
      layers.insert(layers.end(), static_cast<std::size_t>(part.times), one);
    }
    const std::vector<ActivationLayout> layouts(layers.size(), activation_layout(spec_, 0, 1, 1));
    return cost::stage_memory(layers, layouts, 1, 0, 0, 0, cluster_.device.library_workspace).total();
  }

  /// Of forward and backward passes of groups with so many documents, without the messages of parameters.
  [[nodiscard]] double seconds(std::int64_t documents, std::int64_t tokens) const {
    double out = 0;
    const cost::Batch batch = batch_of(documents, tokens);
    const int busy = cost::busy_ranks(cluster_, cluster_.devices);
    for (const Part& part : distinct_) {
      const cost::LayerCounts counts = cost::layer_counts(*part.layer, spec_, batch);
      const auto prices = cost::layer_prices(counts, spec_, cluster_, [&](const op::Work& work) {
        return work.parameters ? galvatron::Seconds{} : cost::time_of(work, precision_, cluster_, busy);
      });
      for (std::size_t pass = 0; pass < 3; ++pass) out += part.times * prices.passes[pass].alone().value;
    }
    return out;
  }

  /// Of the messages of parameters and their gradients in a micro-batch.
  [[nodiscard]] double parameter_seconds() const {
    double out = 0;
    const int busy = cost::busy_ranks(cluster_, cluster_.devices);
    for (const Part& part : distinct_) {
      const cost::LayerCounts counts = cost::layer_counts(*part.layer, spec_, batch_of(1, unit()));
      for (const op::WorkList* list : {&counts.forward, &counts.backward, &counts.weights})
        for (const op::Work& work : *list)
          if (work.parameters) out += part.times * cost::time_of(work, precision_, cluster_, busy).value;
    }
    return out;
  }

 private:
  struct Part {
    const LayerSpec* layer;
    int times;
  };
  [[nodiscard]] cost::Batch batch_of(std::int64_t documents, std::int64_t tokens) const {
    return {.microbatch = documents * spec_.data,
            .sequence = tokens,
            .precision = precision_,
            .overlap = cost::can_overlap(cluster_)};
  }

  const ModelSpec& model_;
  const Cluster& cluster_;
  Precision precision_;
  StrategySpec spec_;
  std::vector<Part> distinct_;
};

/// Degrees worth a look: all inside a node, then multiples of it, ever further apart.
inline std::vector<int> degrees_up_to(int devices, int node, bool any) {
  std::vector<int> out;
  int step = 1;
  for (int d = 1; d <= devices; d += step) {
    if (d >= 8 * step && d >= node && d % (2 * step) == 0) step *= 2;
    if (step < node && d >= node) step = node;
    out.push_back(d);
  }
  for (int d = 1; d <= devices; d *= 2) out.push_back(d);
  std::ranges::sort(out);
  out.erase(std::ranges::unique(out).begin(), out.end());
  if (!any) std::erase_if(out, [](int d) { return (d & (d - 1)) != 0; });
  return out;
}

}  // namespace detail

/// The groups that a model's documents may have on a cluster. Errors: no group holds a document (infeasible), the model
/// cannot be cut (usage).
/// @param memory  of each device  @param longest  tokens of the longest document: positions are at least as many
template <class = void>
Result<Problem> problem_of(ModelSpec model, const Cluster& cluster, Precision precision, Bytes memory,
                           std::int64_t longest, const GroupSpace& space = {}) {
  const int node = std::min(cluster.devices_per_node, cluster.devices);
  Problem out{.devices = cluster.devices, .node_devices = node, .options = {}};
  // Documents are counted in multiples of what their group cuts them into, and a full group may have one alone.
  const auto with_positions = [&](std::int64_t tokens) {
    for (LayerSpec* end : {&model.embedding, &model.head}) end->positions = std::max(end->positions, tokens);
    for (LayerSpec& block : model.blocks) block.positions = std::max(block.positions, tokens);
  };
  with_positions(2);
  const double parameters =
      detail::GroupPricer(model, cluster, precision, 1, SequenceKind::none, space.recompute).parameter_seconds();
  out.floor = parameters;
  std::string why = "groups of one device are left out";
  Bytes least{};
  for (const int degree : detail::degrees_up_to(cluster.devices, node, space.any_degrees)) {
    if (degree == 1 && !space.single_devices) continue;
    std::vector<GroupOption> kinds;
    for (const SequenceKind sequence : {SequenceKind::ulysses, SequenceKind::ring}) {
      if (degree == 1 ? sequence == SequenceKind::ring
                      : (sequence == SequenceKind::ulysses && !space.ulysses) ||
                            (sequence == SequenceKind::ring && !space.ring))
        continue;
      const std::int64_t unit = std::int64_t{2} * degree;
      const std::int64_t whole = (longest + unit - 1) / unit * unit;
      with_positions(whole);
      const detail::GroupPricer pricer(model, cluster, precision, degree, sequence, space.recompute);
      if (const std::string one = pricer.why_unfit(unit); !one.empty()) {
        if (out.options.empty()) why = one;
        continue;
      }
      // The most documents of some tokens that fit. Bytes grow with rows.
      const std::int64_t each = std::min<std::int64_t>(whole, 64 * unit);
      const auto fits = [&](std::int64_t documents) { return pricer.bytes(documents, each) <= memory; };
      std::int64_t low = 0;
      std::int64_t high = 1;
      while (high * each < longest_document && fits(high)) {
        low = high;
        high *= 2;
      }
      while (high - low > 1) {
        const std::int64_t middle = low + (high - low) / 2;
        (fits(middle) ? low : high) = middle;
      }
      if (low == 0) {
        const Bytes needed = pricer.bytes(1, each);
        if (least.count == 0 || needed < least) least = needed;
        continue;
      }
      GroupOption option{.degree = degree,
                         .sequence = degree == 1 ? SequenceKind::none : sequence,
                         .capacity = low * each,
                         .fixed = 0,
                         .seconds = {}};
      std::vector<double> tokens;
      std::vector<double> rates;
      const std::int64_t most = std::min(whole, option.capacity / unit * unit);
      for (std::int64_t s = unit * 8;; s *= 2) {
        s = std::min(s, most);
        const std::int64_t documents = std::max<std::int64_t>(1, option.capacity / s);
        tokens.push_back(static_cast<double>(s));
        rates.push_back(pricer.seconds(documents, s) / static_cast<double>(documents) / static_cast<double>(s));
        if (s == most) break;
      }
      option.fixed = parameters * (cost::can_overlap(cluster) ? cluster.overlap_slowdown - 1 : 1);
      option.seconds = detail::SecondsTable(std::move(tokens), std::move(rates));
      kinds.push_back(std::move(option));
    }
    // Of two kinds, one is left out that is nowhere better.
    const auto is_better = [&](const GroupOption& a, const GroupOption& b) {
      if (a.capacity < b.capacity || a.fixed > b.fixed) return false;
      for (std::int64_t s = 64; s <= b.capacity; s *= 2)
        if (a.seconds(s) > b.seconds(s)) return false;
      return true;
    };
    if (kinds.size() == 2) {
      if (is_better(kinds[0], kinds[1]))
        kinds.pop_back();
      else if (is_better(kinds[1], kinds[0]))
        kinds.erase(kinds.begin());
    }
    for (GroupOption& option : kinds) out.options.push_back(std::move(option));
  }
  if (out.options.empty()) {
    if (least.count > 0)
      return tl::unexpected(Error{ErrorKind::infeasible,
                                  text_of("the memory of a device, ", format_bytes(memory), ", holds no tokens of ",
                                          model.name, " whose states are sharded over ", cluster.devices, " devices; ",
                                          format_bytes(least), " would, or more devices")});
    return usage_error(text_of(model.name, " cannot be cut over groups of devices: ", why));
  }
  return out;
}
GALVATRON_IN_PLANNER(Result<Problem> problem_of<>(ModelSpec, const Cluster&, Precision, Bytes, std::int64_t,
                                                  const GroupSpace&))

}  // namespace galvatron::flexsp
