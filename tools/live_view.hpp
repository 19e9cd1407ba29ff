// What `train --live` shows above its progress line: how loss, speed and gradient norm went over all steps, and which
// ranks work how long.
//
//   loss         ███▇▆▅▄▄▃▃▃▂▂▂▂▂▁▁▁▁▁▁  1.376, least 1.352 in step 391
//   validation   1.52 behind step 350, least 1.52
//   tokens/s     ▇▇█▇▇▇▂▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇  36.5 k, median 36.1 k, MFU 43.2 %
//   norm         █▅▃▃▂▂▂▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁  0.93, largest 5.31
//   ranks        ▄▄█▄                    slowest 2: 27.2 ms of a step, the others 11.2 ms
#pragma once

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <galvatron/core/quantity.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/train/slowest_rank.hpp>
#include <galvatron/train/step_report.hpp>

namespace galvatron::tools {

/// Whether the environment's locale has UTF-8, and so block characters.
inline bool has_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"})
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') {
      std::string text(value);
      std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
      return text.find("utf-8") != std::string::npos || text.find("utf8") != std::string::npos;
    }
  return false;
}

/// Values over time in so many columns, the lowest as the lowest character; a column has the mean of its values, and
/// fewer values than columns take a column each. Values that are not finite are blank.
inline std::string sparkline(const std::vector<double>& values, std::size_t columns, bool utf8) {
  constexpr std::array<std::string_view, 8> blocks{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  constexpr std::array<std::string_view, 8> letters{"_", ".", ",", "-", "~", "=", "*", "#"};
  columns = std::min(columns, values.size());
  std::vector<double> means;
  for (std::size_t c = 0; c < columns; ++c) {
    const std::size_t first = c * values.size() / columns;
    const std::size_t end = (c + 1) * values.size() / columns;
    double sum = 0;
    for (std::size_t i = first; i < end; ++i) sum += values[i];
    means.push_back(sum / static_cast<double>(end - first));
  }
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (const double mean : means)
    if (std::isfinite(mean)) {
      low = std::min(low, mean);
      high = std::max(high, mean);
    }
  std::string out;
  for (const double mean : means) {
    if (!std::isfinite(mean)) {
      out += ' ';
      continue;
    }
    const double share = high > low ? (mean - low) / (high - low) : 0.5;
    const auto at = std::min<std::size_t>(7, static_cast<std::size_t>(share * 8));
    out += utf8 ? blocks[at] : letters[at];
  }
  return out;
}

class LiveView {
 public:
  explicit LiveView(bool utf8 = has_utf8()) : utf8_(utf8) {}

  /// Tokens in a second are left out where they are 0.
  void add(const train::StepReport& step) {
    loss_.add(step.loss);
    speed_.add(step.tokens_per_second);
    norm_.add(step.gradient_norm);
    if (step.loss < least_loss_) {
      least_loss_ = step.loss;
      least_step_ = step.step + 1;
    }
    largest_norm_ = std::max(largest_norm_, step.gradient_norm);
    if (step.validation_loss) {
      validation_ = *step.validation_loss;
      validation_step_ = step.step + 1;
      least_validation_ = std::min(least_validation_, validation_);
    }
    mfu_ = step.mfu;
    if (!step.ranks.empty()) ranks_ = step.ranks;
  }

  /// See Progress::lines_above.
  [[nodiscard]] std::vector<std::string> lines(int width, bool color) const {
    using galvatron::detail::formatted;
    std::vector<std::string> out;
    if (loss_.steps() == 0) return out;
    const auto line = [&](std::string_view name, const std::vector<double>& values, const std::string& text) {
      out.push_back(one_line(name, values, text, static_cast<std::size_t>(std::max(width, 1)), color));
    };
    line("loss", loss_.values(), formatted("%.4g, least %.4g in step %lld", loss_.last(), least_loss_, least_step_));
    if (validation_step_ > 0)
      line("validation", {},
           formatted("%.4g behind step %lld, least %.4g", validation_, validation_step_, least_validation_));
    if (speed_.last() > 0)
      line("tokens/s", speed_.values(),
           format_count(speed_.last()) + ", median " + format_count(speed_.median()) +
               (mfu_ > 0 ? formatted(", MFU %.1f %%", 100 * mfu_) : std::string()));
    line("norm", norm_.values(), formatted("%.3g, largest %.3g", norm_.last(), largest_norm_));
    if (!ranks_.empty()) {
      std::vector<double> work;
      for (const RankSeconds& rank : ranks_) work.push_back(rank.total());
      std::string text = "work equally long";
      if (const auto slowest = train::slowest_rank(ranks_, {}))
        text = text_of("slowest ", slowest->rank, ": ", format_seconds({slowest->seconds}), " of a step, the others ",
                       format_seconds({slowest->others}));
      line("ranks", work, text);
    }
    return out;
  }

 private:
  // Values of all steps in a bounded number of points: where these are full, each two become their mean.
  class Series {
   public:
    void add(double value) {
      last_ = value;
      ++steps_;
      sum_ += value;
      if (++in_sum_ < stride_) return;
      values_.push_back(sum_ / static_cast<double>(in_sum_));
      sum_ = 0;
      in_sum_ = 0;
      if (values_.size() < most) return;
      for (std::size_t i = 0; i < most / 2; ++i) values_[i] = (values_[2 * i] + values_[2 * i + 1]) / 2;
      values_.resize(most / 2);
      stride_ *= 2;
    }
    [[nodiscard]] const std::vector<double>& values() const { return values_; }
    [[nodiscard]] double last() const { return last_; }
    [[nodiscard]] std::int64_t steps() const { return steps_; }
    [[nodiscard]] double median() const {
      std::vector<double> sorted = values_;
      if (sorted.empty()) return last_;
      std::ranges::nth_element(sorted, sorted.begin() + std::ssize(sorted) / 2);
      return sorted[sorted.size() / 2];
    }

   private:
    static constexpr std::size_t most = 1024;
    std::vector<double> values_;
    double last_ = 0;
    double sum_ = 0;
    std::int64_t in_sum_ = 0;
    std::int64_t stride_ = 1;
    std::int64_t steps_ = 0;
  };

  [[nodiscard]] std::string one_line(std::string_view name, const std::vector<double>& values, std::string text,
                                     std::size_t width, bool color) const {
    constexpr std::size_t names = 12;
    constexpr std::size_t most_columns = 60;
    std::string head(name);
    head.resize(std::max(names, head.size()), ' ');
    if (head.size() + text.size() > width) {
      text.resize(width > head.size() ? width - head.size() : 0);
      return (head + text).substr(0, width);
    }
    const std::size_t left = width - head.size() - text.size();
    const std::size_t columns = values.empty() || left < 6 ? 0 : std::min(left - 2, most_columns);
    if (columns == 0) return head + text;
    const std::string curve = sparkline(values, columns, utf8_);
    return head + (color ? "\x1b[36m" + curve + "\x1b[0m" : curve) + "  " + text;
  }

  bool utf8_;
  Series loss_, speed_, norm_;
  double least_loss_ = std::numeric_limits<double>::infinity();
  long long least_step_ = 0;
  double largest_norm_ = 0;
  double validation_ = 0;
  double least_validation_ = std::numeric_limits<double>::infinity();
  long long validation_step_ = 0;
  double mfu_ = 0;
  std::vector<RankSeconds> ranks_;
};

}  // namespace galvatron::tools
