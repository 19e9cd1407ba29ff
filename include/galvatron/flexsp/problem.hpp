// Problem: which sequence-parallel groups there may be and how long a document takes in each, as plain numbers.
//
// FlexSP (Wang et al., ASPLOS'25). A batch of documents is trained in micro-batches, one after the other. In each of
// them the N devices form groups that compute side by side; a group of d devices cuts its documents into d shares, each
// attended to by itself. Parameters are sharded over all devices (ZeRO-3), so groups may differ from micro-batch to
// micro-batch.
//
//     seconds of a group         t_p = fixed + sum over its documents of f(tokens)
//     seconds of a micro-batch   the slowest group's, and no less than a floor
//     seconds of a batch         the sum over its micro-batches                        to be minimised
//     memory                     sum over the documents of tokens <= capacity          of each group
//     devices                    sum over the groups of degree <= N                    of each micro-batch
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include <galvatron/strategy/spec.hpp>

namespace galvatron::flexsp {

inline constexpr std::int64_t longest_document = std::int64_t{1} << 31;  ///< tokens

/// A kind of group: how many devices, how they share documents, what they hold and what they take.
struct GroupOption {
  int degree = 1;
  SequenceKind sequence = SequenceKind::ulysses;
  std::int64_t capacity = 0;                    ///< tokens that a group holds at once
  double fixed = 0;                             ///< seconds of a micro-batch whatever its documents
  std::function<double(std::int64_t)> seconds;  ///< of a document of so many tokens; rises with them
};

/// Devices and the groups that they may form. Options are in ascending order of their degrees.
struct Problem {
  int devices = 1;
  int node_devices = 1;  ///< devices of a node; groups of at most as many lie inside one
  std::vector<GroupOption> options;
  double floor = 0;  ///< seconds of a micro-batch at least, whatever its groups: messages of all devices

  /// Tokens of the longest document that some group holds.
  [[nodiscard]] std::int64_t longest() const {
    std::int64_t out = 0;
    for (const GroupOption& option : options) out = std::max(out, option.capacity);
    return out;
  }
};

/// A group of a plan and its documents, by their tokens.
struct Group {
  int option = 0;  ///< of the problem
  std::vector<std::int64_t> lengths;
  double seconds = 0;
};

struct MicroBatch {
  std::vector<Group> groups;  ///< in descending order of their degrees
  double seconds = 0;         ///< of the slowest group
};

/// How a batch is trained, and how good that is at least.
struct BatchPlan {
  std::vector<MicroBatch> microbatches;
  double seconds = 0;
  double bound = 0;  ///< no plan takes less
};

/// Seconds of a group with these documents.
inline double group_seconds(const GroupOption& option, const std::vector<std::int64_t>& lengths) {
  double sum = option.fixed;
  for (const std::int64_t tokens : lengths) sum += option.seconds(tokens);
  return sum;
}

}  // namespace galvatron::flexsp
