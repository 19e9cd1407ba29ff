// The batches of a run on documents: those of a step are packed into sequences, and each sequence is a sample.
//
//   document   t h e   c a t       n tokens are n - 1 rows: the last token is predicted, and predicts nothing
//   inputs     t h e   c a
//   targets    h e   c a t
//
// A row for the last token would have no target, and no other row attends to it: it changes neither a loss nor a
// gradient. Without it a document is the sample that TokenSource makes of its n tokens with S = n - 1, so that packed
// documents train as the same documents one by one. No target is a token of another document. Where end-of-text tokens
// are the last of documents, they are predicted.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/data/batch_source.hpp>
#include <galvatron/data/document_source.hpp>
#include <galvatron/data/packing.hpp>

namespace galvatron::train {

/// Step t has the documents of samples [t * global_batch, (t + 1) * global_batch) of the run, however they are packed.
/// As a BatchSource it has packed sequences for samples: number Packing::number(micro-batch, group) of the step, of
/// which a rank asks for the rows that it has. Rows behind the end of a sequence, up to a bucket for instance, are
/// padding too: their input is token 0, and they have no target. Ranks may share one.
class PackedBatches final : public BatchSource {
 public:
  /// How a step is packed: (step, rows of its documents) -> packing. Called once a step, or again if an old step is
  /// asked for, from several threads at once; the same step gives the same packing on every rank.
  using Packer = std::function<Packing(std::int64_t step, std::span<const std::int64_t> rows)>;

  /// By pack(). Errors (usage): those of PackingOptions::check; a document that is longer than a sequence may be, with
  /// the limit that would hold it.
  static Result<std::unique_ptr<PackedBatches>> open(const DocumentSource& source, std::int64_t global_batch,
                                                     const PackingOptions& options) {
    if (auto possible = options.check(); !possible) return tl::unexpected<Error>(std::move(possible.error()));
    const std::int64_t longest = source.longest_document();
    if (const std::int64_t rows = source.length(longest) - 1; rows > options.capacity())
      return usage_error(text_of(source.place(longest), ": the document has ", rows + 1, " tokens, which take ", rows,
                                 " rows, and packed sequences have at most ", options.capacity(),
                                 "; give --max-tokens ", round_up(rows, options.multiple),
                                 " or more, or split the document"));
    return std::make_unique<PackedBatches>(
        source, global_batch,
        [options](std::int64_t, std::span<const std::int64_t> rows) { return value_or_throw(pack(rows, options)); });
  }

  /// @param fixed  what pack_fixed() packs by; none: as `packer`
  PackedBatches(const DocumentSource& source, std::int64_t global_batch, Packer packer, Packer fixed = {})
      : source_(source), global_batch_(global_batch), packer_(std::move(packer)), fixed_(std::move(fixed)) {}

  /// Rows of the documents of a step, in the order of samples. Their sum is the number of targets of the step: what
  /// the mean loss of the step is over, whatever the packing.
  [[nodiscard]] std::vector<std::int64_t> rows(std::int64_t step) const {
    std::vector<std::int64_t> out(static_cast<std::size_t>(global_batch_));
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = source_.length(source_.document(step * global_batch_ + static_cast<std::int64_t>(i))) - 1;
    return out;
  }
  /// The packing of a step; that of the next one is made meanwhile. Throws Failure (internal) if the packer's is not
  /// one (check_packing), and what the packer throws.
  std::shared_ptr<const Packing> packing(std::int64_t step) override {
    const Made made = begun(step);
    if (is_ready(made)) return made.get();
    const double began = steady_seconds();
    auto out = made.get();
    const std::scoped_lock lock(mutex_);
    waited_[step] = std::max(waited_[step], steady_seconds() - began);
    return out;
  }
  void pack_fixed(std::int64_t step) override {
    if (!fixed_) return;
    const std::scoped_lock lock(mutex_);
    if (!packed_fixed_.insert(step).second) return;
    if (const auto late = made_.find(step); late != made_.end()) late_.push_back(late->second);  // it ends some time
    std::promise<std::shared_ptr<const Packing>> made;
    made.set_value(make(step, fixed_));
    made_[step] = made.get_future().share();
    packed_fixed_.erase(packed_fixed_.begin(), packed_fixed_.lower_bound(step - 2));
  }
  bool is_packed(std::int64_t step) override { return is_ready(begun(step)); }
  double waited(std::int64_t step) override {
    const std::scoped_lock lock(mutex_);
    const auto found = waited_.find(step);
    return found == waited_.end() ? 0 : found->second;
  }

  void inputs(std::int64_t step, std::int64_t first, std::int64_t sequences, SequenceRange range,
              View<std::int32_t> out) override {
    fill(step, first, sequences, range, 0, 0, out);
  }
  void targets(std::int64_t step, std::int64_t first, std::int64_t sequences, SequenceRange range,
               View<std::int32_t> out) override {
    fill(step, first, sequences, range, 1, -1, out);
  }

 private:
  using Made = std::shared_future<std::shared_ptr<const Packing>>;

  // The packings of a step and of the one behind it, on threads of their own. Ranks may be in different steps, by one.
  Made begun(std::int64_t step) {
    const std::scoped_lock lock(mutex_);
    for (const std::int64_t t : {step, step + 1})
      if (!made_.contains(t)) made_[t] = std::async(std::launch::async, [this, t] { return make(t, packer_); }).share();
    const Made out = made_.at(step);
    made_.erase(made_.begin(), made_.lower_bound(step - 2));
    waited_.erase(waited_.begin(), waited_.lower_bound(step - 2));
    return out;
  }
  static bool is_ready(const Made& made) { return made.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
  [[nodiscard]] std::shared_ptr<const Packing> make(std::int64_t step, const Packer& packer) const {
    const std::vector<std::int64_t> lengths = rows(step);
    auto out = std::make_shared<const Packing>(packer(step, lengths));
    value_or_throw(check_packing(*out, lengths));
    return out;
  }

  // Token `shift` behind that of each row.
  void fill(std::int64_t step, std::int64_t first, std::int64_t sequences, SequenceRange range, std::int64_t shift,
            std::int32_t none, View<std::int32_t> out) {
    const auto packing = this->packing(step);
    if (first < 0 || first + sequences > std::ssize(packing->sequences) || range.first < 0 || range.count < 0 ||
        out.count != range.count * sequences)
      throw Failure(ErrorKind::internal,
                    text_of("data: ", out.count, " places for ", range.count, " rows of sequences ", first, " to ",
                            first + sequences, " of ", packing->sequences.size()));
    std::ranges::fill(out, none);
    for (std::int64_t i = 0; i < sequences; ++i)
      for (const Document& document : packing->sequences[static_cast<std::size_t>(first + i)].documents) {
        const std::int64_t begin = std::max(document.first, range.first) - document.first;
        const std::int64_t end = std::min(document.first + document.rows, range.first + range.count) - document.first;
        if (document.sample == Document::padding || begin >= end) continue;
        std::int64_t place = (document.first + begin - range.first) * sequences + i;
        source_.read(source_.document(step * global_batch_ + document.sample), {begin + shift, end - begin},
                     [&](std::int32_t token) {
                       out[place] = token;
                       place += sequences;
                     });
      }
  }

  const DocumentSource& source_;
  std::int64_t global_batch_;
  Packer packer_;
  Packer fixed_;
  std::mutex mutex_;
  std::map<std::int64_t, double> waited_;  ///< the longest wait for a step's packing, in seconds
  std::set<std::int64_t> packed_fixed_;
  std::vector<Made> late_;
  std::map<std::int64_t, Made> made_;  ///< the last member: what is not ready is waited for, and reads the others
};

}  // namespace galvatron::train
