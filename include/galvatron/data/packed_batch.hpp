// PackedBatch: how the documents of a step lie in packed sequences, and these on ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <galvatron/core/document.hpp>

namespace galvatron::train {

/// Documents one behind the other, whose tokens are shared equally by the ranks of a group.
struct PackedSequence {
  int first_rank = 0;       ///< of the group, among the ranks that share a layer's parameters (shard_modes)
  int ranks = 1;            ///< neighbours from there on: the context degree of this sequence
  std::int64_t tokens = 0;  ///< padding included
  /// They cover all tokens: padding is a document, too.
  std::vector<Document> documents;
  std::vector<std::int64_t> samples;  ///< of each document, counted from the step's first; -1: padding
};

/// The sequences that are computed on at the same time, which cover all ranks in their order.
using PackedMicroBatch = std::vector<PackedSequence>;

/// The sequence of which the rank `shard` of those that share parameters has a part.
inline const PackedSequence& sequence_of(const PackedMicroBatch& microbatch, int shard) {
  return *std::ranges::find_if(microbatch, [shard](const PackedSequence& one) {
    return one.first_rank <= shard && shard < one.first_rank + one.ranks;
  });
}

struct PackedBatch {
  std::vector<PackedMicroBatch> microbatches;
  std::int64_t tokens = 0;   ///< without padding
  std::int64_t targets = 0;  ///< predictions of the step, over which its loss is the mean
};

}  // namespace galvatron::train
