// A batch as the solver sees it: documents in descending order, and what each takes in each kind of group.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <galvatron/flexsp/problem.hpp>

namespace galvatron::flexsp {

/// Work that a solver may still do, counted in steps of its inner loops, so that a plan does not depend on the clock.
class Work {
 public:
  explicit Work(std::int64_t steps) : left_(steps) {}
  /// Takes steps; false when none are left.
  bool take(std::int64_t steps) {
    left_ -= steps;
    return left_ > 0;
  }
  [[nodiscard]] bool is_left() const { return left_ > 0; }
  [[nodiscard]] std::int64_t left() const { return left_; }

 private:
  std::int64_t left_;
};

/// Documents are numbered in descending order of their tokens.
class Instance {
 public:
  Instance(const Problem& problem, std::span<const std::int64_t> lengths)
      : problem_(problem), tokens_(lengths.begin(), lengths.end()) {
    std::ranges::sort(tokens_, std::ranges::greater());
    const std::size_t n = tokens_.size();
    for (const GroupOption& option : problem.options) {
      degrees_.push_back(option.degree);
      capacities_.push_back(option.capacity);
      fixed_.push_back(option.fixed);
    }
    costs_.resize(n * options());
    for (std::size_t o = 0; o < options(); ++o)
      for (std::size_t i = 0; i < n; ++i)
        costs_[o * n + i] =
            i > 0 && tokens_[i] == tokens_[i - 1] ? costs_[o * n + i - 1] : problem.options[o].seconds(tokens_[i]);
    for (const std::int64_t one : tokens_) all_tokens_ += one;
  }

  [[nodiscard]] const Problem& problem() const { return problem_; }
  [[nodiscard]] int devices() const { return problem_.devices; }
  [[nodiscard]] int documents() const { return static_cast<int>(tokens_.size()); }
  [[nodiscard]] std::size_t options() const { return degrees_.size(); }
  [[nodiscard]] std::int64_t tokens(int document) const { return tokens_[static_cast<std::size_t>(document)]; }
  [[nodiscard]] std::span<const std::int64_t> lengths() const { return tokens_; }
  [[nodiscard]] std::int64_t all_tokens() const { return all_tokens_; }
  [[nodiscard]] int degree(int option) const { return degrees_[static_cast<std::size_t>(option)]; }
  [[nodiscard]] std::int64_t capacity(int option) const { return capacities_[static_cast<std::size_t>(option)]; }
  [[nodiscard]] double fixed(int option) const { return fixed_[static_cast<std::size_t>(option)]; }
  /// Seconds that a document adds to a group of an option.
  [[nodiscard]] double cost(int option, int document) const {
    return costs_[static_cast<std::size_t>(option) * tokens_.size() + static_cast<std::size_t>(document)];
  }
  /// Device-seconds of a document in an option.
  [[nodiscard]] double area(int option, int document) const { return degree(option) * cost(option, document); }
  /// Whether a group of this option may have the document alone and end within `seconds`.
  [[nodiscard]] bool fits(int option, int document, double seconds) const {
    return tokens(document) <= capacity(option) && fixed(option) + cost(option, document) <= seconds;
  }
  /// The least fixed seconds of an option.
  [[nodiscard]] double least_fixed() const { return *std::ranges::min_element(fixed_); }
  /// Seconds that no micro-batch ends before.
  [[nodiscard]] double least_seconds() const { return std::max(problem_.floor, least_fixed()); }
  /// Tokens of a device, the most of all options.
  [[nodiscard]] double device_capacity() const {
    double out = 0;
    for (std::size_t o = 0; o < options(); ++o) out = std::max(out, static_cast<double>(capacities_[o]) / degrees_[o]);
    return out;
  }

 private:
  const Problem& problem_;
  std::vector<std::int64_t> tokens_;
  std::vector<int> degrees_;
  std::vector<std::int64_t> capacities_;
  std::vector<double> fixed_;
  std::vector<double> costs_;  // (options, documents)
  std::int64_t all_tokens_ = 0;
};

}  // namespace galvatron::flexsp
