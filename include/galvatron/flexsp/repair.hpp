// Local search: brings a packing below given seconds of its micro-batches.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include <galvatron/flexsp/assignment.hpp>
#include <galvatron/flexsp/packing.hpp>

namespace galvatron::flexsp {

/// Works on the device-seconds above the targets, sum over the groups of degree * max(0, finish - target), until there
/// are none. A document moves to another group or is exchanged with one, wherever that lowers them most. Where nothing
/// does, some groups are dissolved (ruin and recreate, Schrimpf et al. 2000): their documents are assigned anew by
/// branch and bound, or packed anew on their devices, which changes degrees too. Groups may be of several
/// micro-batches, so documents move between these as well.
class Repair {
 public:
  /// @param packing  changed in place; each group's documents are in ascending order of their tokens
  /// @param targets  seconds of each micro-batch
  Repair(const Instance& instance, Packing& packing, std::span<const double> targets, std::mt19937_64& random,
         Work& work)
      : instance_(instance),
        packing_(packing),
        targets_(targets),
        random_(random),
        work_(work),
        powers_(has_powers_only(instance.problem())) {}

  /// Whether no group ends after its target. @param attempts  to dissolve groups, in a row, without success
  bool operator()(int attempts) {
    for (int failures = 0; work_.is_left();) {
      if (descend()) continue;
      const double above = all_above(packing_.bins);
      if (above <= tolerance) return true;
      if (failures >= attempts) return false;
      failures = dissolve(above) ? 0 : failures + 1;
    }
    return all_above(packing_.bins) <= tolerance;
  }

 private:
  static constexpr double tolerance = 1e-12;

  [[nodiscard]] double target(const Bin& bin) const { return targets_[static_cast<std::size_t>(bin.part)]; }
  [[nodiscard]] double above(const Bin& bin, double finish) const {
    return instance_.degree(bin.option) * std::max(0.0, finish - target(bin));
  }
  [[nodiscard]] bool is_late(const Bin& bin) const { return !bin.documents.empty() && bin.finish > target(bin); }
  [[nodiscard]] double all_above(std::span<const Bin> bins) const {
    double out = 0;
    for (const Bin& bin : bins)
      if (is_late(bin)) out += above(bin, bin.finish);
    return out;
  }

  // One move or exchange out of the group that is the most above its target and can be helped.
  bool descend() {
    order_.clear();
    work_.take(static_cast<std::int64_t>(packing_.bins.size()) / 2);
    for (std::size_t p = 0; p < packing_.bins.size(); ++p) {
      const Bin& bin = packing_.bins[p];
      if (is_late(bin)) order_.emplace_back(-above(bin, bin.finish), p);
    }
    std::ranges::sort(order_);
    return std::ranges::any_of(order_, [&](const auto& one) { return relieve(one.second); });
  }

  bool relieve(std::size_t p) {
    Bin& from = packing_.bins[p];
    const double before = above(from, from.finish);
    const double degree_from = instance_.degree(from.option);
    constexpr std::size_t none = static_cast<std::size_t>(-1);
    struct {
      double score = 0;
      std::size_t a = none;
      std::size_t q = none;
      std::size_t b = none;  // none: a move
    } best;
    // Of two that help alike, the one that takes fewer device-seconds.
    const auto offer = [&](double change, double area, std::size_t a, std::size_t q, std::size_t b) {
      const double score = change + 0.05 * area;
      if (change <= -tolerance && (best.a == none || score < best.score)) best = {score, a, q, b};
    };
    for (std::size_t q = 0; q < packing_.bins.size(); ++q) {
      const Bin& to = packing_.bins[q];
      work_.take(1);
      if (q == p || to.finish >= target(to)) continue;
      work_.take(static_cast<std::int64_t>(from.documents.size() * (1 + to.documents.size()) / 4 + 1));
      const double degree_to = instance_.degree(to.option);
      for (std::size_t a = 0; a < from.documents.size(); ++a) {
        const int i = from.documents[a];
        const std::int64_t tokens = instance_.tokens(i);
        if (a > 0 && tokens == instance_.tokens(from.documents[a - 1])) continue;
        const double leaves = instance_.cost(from.option, i);
        const double arrives = instance_.cost(to.option, i);
        if (fits(instance_, to, i))
          offer(above(from, from.finish - leaves) - before + above(to, to.finish + arrives),
                degree_to * arrives - degree_from * leaves, a, q, none);
        for (std::size_t b = 0; b < to.documents.size(); ++b) {
          const int j = to.documents[b];
          const std::int64_t difference = tokens - instance_.tokens(j);
          if (difference <= 0) break;  // those behind are as long
          if (to.tokens + difference > instance_.capacity(to.option)) continue;
          const double lowers = leaves - instance_.cost(from.option, j);
          const double raises = arrives - instance_.cost(to.option, j);
          offer(above(from, from.finish - lowers) - before + above(to, to.finish + raises),
                degree_to * raises - degree_from * lowers, a, q, b);
        }
      }
    }
    if (best.a == none) return false;
    Bin& to = packing_.bins[best.q];
    const int i = take(instance_, from, best.a);
    if (best.b != none) insert(from, take(instance_, to, best.b));
    insert(to, i);
    return true;
  }

  void insert(Bin& bin, int document) const {
    put(instance_, bin, document);
    for (std::size_t k = bin.documents.size() - 1; k > 0 && bin.documents[k - 1] < bin.documents[k]; --k)
      std::swap(bin.documents[k - 1], bin.documents[k]);
  }

  // A late group and some others, mostly of its micro-batch.
  void choose() {
    const std::vector<Bin>& bins = packing_.bins;
    work_.take(static_cast<std::int64_t>(bins.size()) * 2);
    order_.clear();
    for (std::size_t p = 0; p < bins.size(); ++p)
      if (is_late(bins[p])) order_.emplace_back(0, p);
    chosen_.assign(1, order_[random_() % order_.size()].second);
    const int part = bins[chosen_.front()].part;
    const std::size_t wanted = 2 + random_() % 4;
    for (std::size_t tries = 0; chosen_.size() < wanted && tries < 4 * wanted; ++tries) {
      const std::size_t p = random_() % bins.size();
      if (bins[p].part != part && tries % 3 != 0) continue;
      if (std::ranges::find(chosen_, p) == chosen_.end()) chosen_.push_back(p);
    }
    documents_.clear();
    for (const std::size_t p : chosen_)
      documents_.insert(documents_.end(), bins[p].documents.begin(), bins[p].documents.end());
    std::ranges::sort(documents_);
  }

  bool dissolve(double before) {
    choose();
    return random_() % 2 == 0 ? assign_anew() : pack_anew(before);
  }

  bool assign_anew() {
    constexpr std::int64_t nodes = 1000;
    std::vector<Bin> bins;
    for (const std::size_t p : chosen_) {
      const Bin& bin = packing_.bins[p];
      bins.push_back({bin.option, bin.part, instance_.fixed(bin.option), 0, {}});
    }
    Assignment assignment(instance_, bins, documents_, targets_);
    const bool found = assignment(nodes) == Answer::yes;
    work_.take((nodes - assignment.nodes_left()) * static_cast<std::int64_t>(bins.size()) +
               static_cast<std::int64_t>(documents_.size()));
    if (found)
      for (std::size_t k = 0; k < chosen_.size(); ++k) packing_.bins[chosen_[k]] = std::move(bins[k]);
    return found;
  }

  bool pack_anew(double before) {
    std::vector<Bin>& bins = packing_.bins;
    std::vector<FreeDevices> free(targets_.size(), FreeDevices(instance_.problem(), powers_));
    double dissolved = 0;
    std::vector<std::pair<int, std::size_t>> stay;  // degree and group
    for (std::size_t p = 0; p < bins.size(); ++p)
      if (std::ranges::find(chosen_, p) == chosen_.end())
        stay.emplace_back(instance_.degree(bins[p].option), p);
      else if (is_late(bins[p]))
        dissolved += above(bins[p], bins[p].finish);
    if (!powers_) std::ranges::sort(stay, std::ranges::greater());  // as they are placed
    for (const auto& [degree, p] : stay) {
      FreeDevices& own = free[static_cast<std::size_t>(bins[p].part)];
      if (!own.holds(degree)) return false;
      own.take(degree);
    }
    Packing packed;
    std::vector<int> left;
    const FitRule rule{.headroom = random_() % 2 == 0 ? 1 : 0.5 + 0.05 * static_cast<double>(random_() % 10)};
    FirstFit(instance_, targets_, free, rule, work_)(documents_, packed, left);
    if (!force(instance_, left, targets_, packed, work_)) return false;
    const double after = before - dissolved + all_above(packed.bins);
    // Now and then a packing that is hardly worse, as others can be reached from it.
    if (after > before - tolerance && (after > before * 1.02 || random_() % 8 != 0)) return false;
    packed.sort();
    std::ranges::sort(chosen_, std::ranges::greater());
    for (const std::size_t p : chosen_) {
      std::swap(bins[p], bins.back());
      bins.pop_back();
    }
    for (Bin& bin : packed.bins) bins.push_back(std::move(bin));
    return after < before - tolerance;
  }

  const Instance& instance_;
  Packing& packing_;
  std::span<const double> targets_;
  std::mt19937_64& random_;
  Work& work_;
  bool powers_;
  std::vector<std::pair<double, std::size_t>> order_;
  std::vector<std::size_t> chosen_;  // groups to dissolve
  std::vector<int> documents_;       // theirs
};

}  // namespace galvatron::flexsp
