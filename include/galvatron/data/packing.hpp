// Packing: which documents of a batch a rank group computes on together, as one sequence of rows.
//
//                 group 0                            group 1
//   micro-batch 0 |document 5     |2 |               |document 0    |3  |-|       - padding, up to a multiple
//   micro-batch 1 |document 4  |1   |                |document 6 |7  |
//
// Every document is whole, in one micro-batch of one group. A sequence of rows is at most so long as a stated limit.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/core/compiled.hpp>
#include <galvatron/core/document.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/core/units.hpp>

namespace galvatron::train {

/// What a rank group computes on in a micro-batch: nothing where it has no document.
struct PackedSequence {
  std::vector<Document> documents;  ///< they follow each other without gaps
  int ranks = 0;                    ///< that share it, neighbours; 0: the context ranks of the plan

  [[nodiscard]] std::int64_t rows() const {
    return documents.empty() ? 0 : documents.back().first + documents.back().rows;
  }
  /// Where documents begin, and the end of the last: 0, n_0, n_0 + n_1, ...; padding is the last of them. What varlen
  /// attention calls cu_seqlens.
  [[nodiscard]] std::vector<std::int32_t> cumulative_lengths() const {
    std::vector<std::int32_t> out{0};
    for (const Document& document : documents) out.push_back(static_cast<std::int32_t>(document.first + document.rows));
    return out;
  }
  /// A document behind the others.
  void add(std::int64_t sample, std::int64_t rows) { documents.push_back({this->rows(), rows, sample}); }
  /// Padding behind the documents, to a multiple of rows: that of the ranks that share the sequence, for instance.
  void pad_to(std::int64_t multiple) {
    if (const std::int64_t rest = rows() % multiple; rest > 0) add(Document::padding, multiple - rest);
  }

  friend bool operator==(const PackedSequence&, const PackedSequence&) = default;
};

/// The documents of a batch, packed. A plan for the batch may give micro-batches different numbers of groups.
struct Packing {
  std::vector<PackedSequence> sequences;  ///< of micro-batch 0 and its groups, then of micro-batch 1, ...
  std::vector<std::int64_t> begins{0};    ///< number of the first sequence of each micro-batch, and the end

  [[nodiscard]] std::int64_t microbatches() const { return std::ssize(begins) - 1; }
  [[nodiscard]] std::int64_t groups(std::int64_t microbatch) const {
    return begins[static_cast<std::size_t>(microbatch + 1)] - begins[static_cast<std::size_t>(microbatch)];
  }
  /// The number of a group's sequence in the step.
  [[nodiscard]] std::int64_t number(std::int64_t microbatch, std::int64_t group) const {
    return begins[static_cast<std::size_t>(microbatch)] + group;
  }
  [[nodiscard]] const PackedSequence& sequence(std::int64_t microbatch, std::int64_t group) const {
    return sequences[static_cast<std::size_t>(number(microbatch, group))];
  }
  /// One more micro-batch behind the others, with a sequence for each of its groups.
  void add(std::vector<PackedSequence> groups) {
    std::ranges::move(groups, std::back_inserter(sequences));
    begins.push_back(std::ssize(sequences));
  }
  /// Rows of documents. Each has a target: the loss of the step is the mean over so many.
  [[nodiscard]] std::int64_t tokens() const { return sum(false); }
  /// Rows of none.
  [[nodiscard]] std::int64_t padding() const { return sum(true); }

  friend bool operator==(const Packing&, const Packing&) = default;

 private:
  [[nodiscard]] std::int64_t sum(bool padding) const {
    std::int64_t rows = 0;
    for (const PackedSequence& sequence : sequences)
      for (const Document& document : sequence.documents)
        if ((document.sample == Document::padding) == padding) rows += document.rows;
    return rows;
  }
};

/// The ranks of the sequences of each micro-batch, `<4 2x2> <8>`; those without a document are left out.
/// @param context  ranks of a sequence that does not say
inline std::string groups_text(const Packing& packing, int context) {
  std::string out;
  for (std::int64_t m = 0; m < packing.microbatches(); ++m) {
    std::map<int, int, std::greater<>> counts;  // of sequences, by ranks
    for (std::int64_t g = 0; g < packing.groups(m); ++g)
      if (const PackedSequence& sequence = packing.sequence(m, g); sequence.rows() > 0)
        ++counts[sequence.ranks > 0 ? sequence.ranks : context];
    out += m > 0 ? " <" : "<";
    for (bool first = true; const auto& [ranks, count] : counts) {
      out += (first ? "" : " ") + std::to_string(ranks) + (count > 1 ? "x" + std::to_string(count) : "");
      first = false;
    }
    out += ">";
  }
  return out;
}

struct PackingOptions {
  static constexpr std::int64_t most_groups = std::int64_t{1} << 24;

  std::int64_t max_tokens = 0;  ///< rows of a sequence, at most; below 2^31
  std::int64_t groups = 1;      ///< of every micro-batch
  std::int64_t multiple = 1;    ///< of which the rows of a sequence are one
  /// c: a document of s rows takes work s^2 + c s, so that s^2 is attention. About 12 H for a GPT block: its products
  /// take 24 H^2 flops a row forward, causal attention 2 s H. Below 2^31.
  std::int64_t linear = 0;

  /// Rows of documents that a sequence holds.
  [[nodiscard]] constexpr std::int64_t capacity() const { return max_tokens / multiple * multiple; }
  [[nodiscard]] constexpr std::int64_t work(std::int64_t rows) const { return rows * (rows + linear); }

  /// Errors (usage): a limit that is not in range, or below the multiple.
  [[nodiscard]] Result<void> check() const {
    constexpr std::int64_t end = std::int64_t{1} << 31;
    if (max_tokens < 1 || max_tokens >= end)
      return usage_error(
          text_of("cannot pack sequences of at most ", max_tokens, " tokens; give a limit of 1 to ", end - 1));
    if (groups < 1 || groups > most_groups || multiple < 1 || linear < 0 || linear >= end)
      return usage_error(text_of("cannot pack for ", groups, " groups, sequences of a multiple of ", multiple,
                                 " tokens and a linear work of ", linear, "; give 1 to ", most_groups,
                                 ", at least 1, and 0 to ", end - 1));
    if (max_tokens < multiple)
      return usage_error(text_of("sequences of at most ", max_tokens, " tokens hold no document, because they are a ",
                                 "multiple of ", multiple, "; give --max-tokens ", multiple, " or more"));
    return {};
  }
};

namespace detail {

// The documents of one sequence, while it is filled.
struct Bin {
  std::vector<std::int64_t> samples;
  std::int64_t rows = 0;
  std::int64_t work = 0;
};

// Puts the documents of a batch into bins, the longest first. No bins: not all documents fit.
class BinFiller {
 public:
  BinFiller(std::span<const std::int64_t> rows, const PackingOptions& options) : rows_(rows), options_(options) {
    order_.resize(rows.size());
    std::iota(order_.begin(), order_.end(), std::int64_t{0});
    std::ranges::stable_sort(order_, std::greater{}, [this](std::int64_t sample) { return rows_of(sample); });
  }

  /// Each into the bin with the least work of those that it fits ("longest processing time first", Graham, 1969).
  [[nodiscard]] std::vector<Bin> least_work(std::int64_t microbatches) const {
    std::vector<std::int64_t> rest;
    auto out = fill_by_work(microbatches * options_.groups, order_, std::numeric_limits<double>::infinity(), rest);
    if (!rest.empty()) out.clear();
    return out;
  }
  /// Each into the fullest bin that it fits ("best fit decreasing", Johnson, 1974).
  [[nodiscard]] std::vector<Bin> best_fit(std::int64_t microbatches) const {
    std::vector<Bin> out(static_cast<std::size_t>(microbatches * options_.groups));
    std::set<std::pair<std::int64_t, std::size_t>> open;  // rows that are free, bin
    for (std::size_t b = 0; b < out.size(); ++b) open.emplace(options_.capacity(), b);
    for (const std::int64_t sample : order_) {
      const auto at = open.lower_bound({rows_of(sample), 0});
      if (at == open.end()) return {};
      const std::size_t b = at->second;
      open.erase(at);
      add(out[b], sample);
      open.emplace(options_.capacity() - out[b].rows, b);
    }
    return out;
  }
  /// One micro-batch after the other: with no more work for a group than the longest document takes, or than is to be
  /// done in each micro-batch from there on, if that is more. Long documents are together then, and micro-batches
  /// without them are short.
  [[nodiscard]] std::vector<Bin> one_by_one(std::int64_t microbatches) const {
    std::vector<Bin> out;
    std::vector<std::int64_t> order = order_, rest;
    for (; microbatches > 0; --microbatches, order.swap(rest)) {
      double work = 0;
      for (const std::int64_t sample : order) work += static_cast<double>(options_.work(rows_of(sample)));
      double most = work / static_cast<double>(options_.groups * microbatches);
      if (!order.empty()) most = std::max(most, static_cast<double>(options_.work(rows_of(order.front()))));
      if (microbatches == 1) most = std::numeric_limits<double>::infinity();
      std::ranges::move(fill_by_work(options_.groups, order, most, rest), std::back_inserter(out));
    }
    if (!order.empty()) out.clear();
    return out;
  }

 private:
  [[nodiscard]] std::int64_t rows_of(std::int64_t sample) const { return rows_[static_cast<std::size_t>(sample)]; }
  void add(Bin& bin, std::int64_t sample) const {
    bin.samples.push_back(sample);
    bin.rows += rows_of(sample);
    bin.work += options_.work(rows_of(sample));
  }

  // Each document into the bin with the least work of those that it fits, unless it has more than `most` then.
  // @param rest  of the documents, those that are in no bin
  std::vector<Bin> fill_by_work(std::int64_t bins, std::span<const std::int64_t> order, double most,
                                std::vector<std::int64_t>& rest) const {
    std::vector<Bin> out(static_cast<std::size_t>(bins));
    std::set<std::pair<std::int64_t, std::size_t>> open;  // work, bin
    for (std::size_t b = 0; b < out.size(); ++b) open.emplace(0, b);
    rest.clear();
    for (const std::int64_t sample : order) {
      const auto at = std::ranges::find_if(
          open, [&](const auto& bin) { return out[bin.second].rows + rows_of(sample) <= options_.capacity(); });
      if (at == open.end() || static_cast<double>(at->first + options_.work(rows_of(sample))) > most) {
        rest.push_back(sample);
        continue;
      }
      const std::size_t b = at->second;
      open.erase(at);
      add(out[b], sample);
      if (out[b].rows + rows_of(order.back()) <= options_.capacity()) open.emplace(out[b].work, b);
    }
    return out;
  }

  std::span<const std::int64_t> rows_;
  const PackingOptions& options_;
  std::vector<std::int64_t> order_;  // of samples, the longest first
};

// Sums of the largest works of micro-batches, whose bins follow each other.
inline double time_of_bins(std::span<const Bin> bins, std::int64_t groups) {
  double time = 0;
  for (std::size_t b = 0; b < bins.size(); b += static_cast<std::size_t>(groups))
    time += static_cast<double>(bins[b].work);
  return time;
}

}  // namespace detail

/// Packs the documents of a batch into the fewest micro-batches that one of three fillings finds (BinFiller), by the
/// one with the least time of a step whose groups wait for each other in every micro-batch: the sum of the largest
/// works. The work of a micro-batch is spread over groups so that their sums are similar too. Packing by work instead
/// of tokens is WLB-LLM's (OSDI 2025). Deterministic.
/// @param rows  of each document of the batch, at least 1
/// Errors (usage): those of check(); a document that is longer than a sequence may be.
template <class = void>
Result<Packing> pack(std::span<const std::int64_t> rows, const PackingOptions& options) {
  if (auto possible = options.check(); !possible) return tl::unexpected<Error>(std::move(possible.error()));
  const std::int64_t capacity = options.capacity();
  std::int64_t all = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 1 || rows[i] > capacity)
      return usage_error(text_of("document ", i, " of the batch takes ", rows[i], " rows, and a sequence holds 1 to ",
                                 capacity, "; give --max-tokens ",
                                 round_up(std::max(rows[i], std::int64_t{1}), options.multiple), " or more"));
    all += rows[i];
  }

  const detail::BinFiller filler(rows, options);
  std::vector<detail::Bin> bins;
  const auto consider = [&](std::vector<detail::Bin> others) {
    // Of all ways to put sequences into micro-batches, that in the order of their work has the least sum of maxima.
    std::ranges::stable_sort(others, std::greater{}, &detail::Bin::work);
    if (bins.empty() ||
        (!others.empty() && detail::time_of_bins(others, options.groups) < detail::time_of_bins(bins, options.groups)))
      bins = std::move(others);
  };
  for (std::int64_t m = divide_up(all, options.groups * capacity); m > 0 && bins.empty(); ++m) {
    consider(filler.least_work(m));
    consider(filler.one_by_one(m));
    consider(filler.best_fit(m));
  }

  Packing out;
  std::vector<double> done(static_cast<std::size_t>(options.groups), 0);
  for (auto bin = bins.begin(); bin != bins.end();) {
    std::vector<std::size_t> groups(done.size());
    std::iota(groups.begin(), groups.end(), std::size_t{0});
    std::ranges::stable_sort(groups, std::less{}, [&](std::size_t g) { return done[g]; });
    std::vector<PackedSequence> sequences(done.size());
    for (const std::size_t g : groups) {
      // Documents of like lengths next to each other: a GPU's attention computes neighbours at once.
      std::ranges::sort(bin->samples, [&](std::int64_t a, std::int64_t b) {
        const auto rows_of = [&](std::int64_t sample) { return rows[static_cast<std::size_t>(sample)]; };
        return rows_of(a) != rows_of(b) ? rows_of(a) > rows_of(b) : a < b;
      });
      for (const std::int64_t sample : bin->samples) sequences[g].add(sample, rows[static_cast<std::size_t>(sample)]);
      sequences[g].pad_to(options.multiple);
      done[g] += static_cast<double>(bin->work);
      ++bin;
    }
    out.add(std::move(sequences));
  }
  return out;
}
GALVATRON_IN_TRAINER(Result<Packing> pack<>(std::span<const std::int64_t>, const PackingOptions&))

/// Whether a packing has every document of a batch whole and once, in rows that follow each other, with padding behind
/// them. Errors (internal): which it has not.
inline Result<void> check_packing(const Packing& packing, std::span<const std::int64_t> rows) {
  const auto wrong = [](const auto&... what) {
    return tl::unexpected<Error>(Error{ErrorKind::internal, text_of("packing: ", what...)});
  };
  if (packing.begins.empty() || packing.begins.front() != 0 || packing.begins.back() != std::ssize(packing.sequences) ||
      !std::ranges::is_sorted(packing.begins))
    return wrong("its micro-batches do not have the ", packing.sequences.size(), " sequences");
  std::vector<bool> seen(rows.size(), false);
  for (std::size_t s = 0; s < packing.sequences.size(); ++s) {
    std::int64_t end = 0;
    for (const Document& document : packing.sequences[s].documents) {
      if (document.first != end || document.rows < 1)
        return wrong("sequence ", s, " has ", document.rows, " rows from ", document.first, " on behind row ", end);
      end += document.rows;
      if (document.sample == Document::padding) {
        if (&document != &packing.sequences[s].documents.back())
          return wrong("sequence ", s, " has padding before its end");
        continue;
      }
      if (document.sample < 0 || document.sample >= std::ssize(rows))
        return wrong("document ", document.sample, " of ", rows.size());
      const auto i = static_cast<std::size_t>(document.sample);
      if (document.rows != rows[i]) return wrong("document ", i, " has ", document.rows, " of its ", rows[i], " rows");
      if (seen[i]) return wrong("document ", i, " is there twice");
      seen[i] = true;
    }
  }
  if (const auto missing = std::ranges::find(seen, false); missing != seen.end())
    return wrong("document ", missing - seen.begin(), " is missing");
  return {};
}

}  // namespace galvatron::train
