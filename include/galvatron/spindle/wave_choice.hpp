// Which MetaOps and devices a wave of a given length has.
//
// Every operator has a price: what it takes from the relaxation's bound. The best wave of a length D runs operators of
// the largest sum of prices, a knapsack over devices with one choice for each MetaOp. What a wave loses is D less that
// sum, and never below 0 (relaxation.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <galvatron/spindle/problem.hpp>
#include <galvatron/spindle/relaxation.hpp>
#include <galvatron/spindle/wave_length.hpp>
#include <galvatron/spindle/work.hpp>

namespace galvatron::spindle {

class WaveChoice {
 public:
  WaveChoice(const Problem& problem, Work& work)
      : problem_(problem), work_(work), row_(static_cast<std::size_t>(problem.devices) + 1) {}

  /// The parts of the best wave of at most `length` seconds.
  /// @param ready   MetaOps that may be in it
  /// @param left    their operators that remain, of all MetaOps
  /// @param prices  of an operator, of all MetaOps
  std::vector<Part> best(double length, std::span<const int> ready, std::span<const int> left,
                         std::span<const double> prices) {
    values_.resize((ready.size() + 1) * row_);
    std::fill_n(values_.begin(), row_, 0.0F);
    options_.clear();
    first_option_.assign(1, 0);
    for (std::size_t k = 0; k < ready.size(); ++k) {
      add_options(length, ready[k], left, prices);
      fill_row(k);
    }
    std::vector<Part> out;
    std::size_t free = row_ - 1;
    for (std::size_t k = ready.size(); k-- > 0;) {
      const float value = values_[(k + 1) * row_ + free];
      if (value == values_[k * row_ + free]) continue;
      // One of the sums of fill_row is this value.
      std::size_t o = first_option_[k];
      while (options_[o].devices > free || values_[k * row_ + free - options_[o].devices] + options_[o].value != value)
        ++o;
      free -= options_[o].devices;
      out.push_back({ready[k], static_cast<int>(options_[o].devices), options_[o].operators});
    }
    return out;
  }

 private:
  struct Option {
    std::size_t devices;
    int operators;
    float value;
  };

  // The counts on which a MetaOp runs more operators than on smaller ones.
  void add_options(double length, int metaop, std::span<const int> left, std::span<const double> prices) {
    const auto m = static_cast<std::size_t>(metaop);
    const Curve& curve = problem_.metaops[m].curve;
    int before = 0;
    for (std::size_t i = 0; i < curve.size() && before < left[m]; ++i) {
      const int operators = operators_within(length, curve.seconds[i], left[m]);
      if (operators == before) continue;
      before = operators;
      options_.push_back(
          {static_cast<std::size_t>(curve.devices[i]), operators, static_cast<float>(prices[m] * operators)});
    }
    first_option_.push_back(options_.size());
  }

  // values_[k + 1][n]: the largest sum of prices of the first k + 1 MetaOps on n devices.
  void fill_row(std::size_t k) {
    const float* from = values_.data() + k * row_;
    float* to = values_.data() + (k + 1) * row_;
    std::copy_n(from, row_, to);
    for (std::size_t o = first_option_[k]; o < first_option_[k + 1]; ++o) {
      const auto [devices, operators, value] = options_[o];
      float* at = to + devices;
      const std::size_t count = row_ - devices;
      for (std::size_t n = 0; n < count; ++n) at[n] = std::max(at[n], from[n] + value);
      work_.spend(static_cast<std::int64_t>(count / 4 + 8));  // they are vectorised
    }
  }

  const Problem& problem_;
  Work& work_;
  std::size_t row_;
  std::vector<float> values_;
  std::vector<Option> options_;
  std::vector<std::size_t> first_option_;  // of each ready MetaOp
};

}  // namespace galvatron::spindle
