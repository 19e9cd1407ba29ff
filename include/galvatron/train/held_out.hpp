// What a run of several tasks measures of data that it does not train on: the loss of each task, and of a contrastive
// one how often the rows of its two towers find each other.
//
//     rows of tower 0   x0 .. xn (n, E)   sample i finds its own in tower 1 when the cosine of x_i and y_i is the
//     rows of tower 1   y0 .. yn (n, E)   largest of x_i and all y, and likewise from tower 1 to tower 0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/plan/task_plan.hpp>
#include <galvatron/train/task_part.hpp>

namespace galvatron::train {

/// Data that a run does not train on.
struct HeldOut {
  std::vector<TaskSources> sources;   ///< of each task; asked for samples of step 0 by their numbers
  std::vector<std::int64_t> samples;  ///< of each task; a batch that goes beyond them begins them again
  std::int64_t every = 0;             ///< steps between two measurements; 0: after the last alone
  bool keeps_rows = false;            ///< scores have TaskScore::rows
};

/// Of one task, on its held-out data.
struct TaskScore {
  double loss = 0;       ///< the mean over its batches
  double retrieval = 0;  ///< the share of samples that find their own among all, the mean of both directions
  bool retrieves = false;
  std::vector<float> rows{};  ///< of a contrastive task, where asked for: the embeddings of all samples, (2, n, width)
};

/// The share of rows that find their own; of c equal largest cosines a row finds its own with 1 / c.
/// @param first, second  (n, width)
inline double retrieval_accuracy(std::span<const float> first, std::span<const float> second, std::int64_t width) {
  const std::int64_t n = std::ssize(first) / width;
  const auto units = [&](std::span<const float> rows) {
    std::vector<float> out(rows.begin(), rows.end());
    for (std::int64_t i = 0; i < n; ++i) {
      const std::span row(out.data() + i * width, static_cast<std::size_t>(width));
      double squares = 0;
      for (const float x : row) squares += static_cast<double>(x) * static_cast<double>(x);
      for (float& x : row) x = static_cast<float>(x / std::sqrt(std::max(squares, 1e-300)));
    }
    return out;
  };
  const std::vector<float> a = units(first);
  const std::vector<float> b = units(second);
  std::vector<float> cosines(static_cast<std::size_t>(n * n));  // of a's rows and b's
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (std::int64_t k = 0; k < width; ++k)
        sum += a[static_cast<std::size_t>(i * width + k)] * b[static_cast<std::size_t>(j * width + k)];
      cosines[static_cast<std::size_t>(i * n + j)] = sum;
    }
  double found = 0;
  for (const bool transposed : {false, true})
    for (std::int64_t i = 0; i < n; ++i) {
      const auto at = [&](std::int64_t j) {
        return cosines[static_cast<std::size_t>(transposed ? j * n + i : i * n + j)];
      };
      const float own = at(i);
      int equal = 0;
      bool largest = std::isfinite(own);
      for (std::int64_t j = 0; j < n && largest; ++j) {
        largest = at(j) <= own;
        equal += at(j) == own ? 1 : 0;
      }
      if (largest) found += 1.0 / equal;
    }
  return n == 0 ? 0 : found / (2.0 * static_cast<double>(n));
}

namespace detail {

/// The rows of both towers of a task, of all its held-out samples, from what the ranks have of them.
class TaskRows {
 public:
  TaskRows(std::int64_t samples, std::int64_t width)
      : samples_(samples), width_(width), rows_(static_cast<std::size_t>(2 * samples * width), nothing) {}

  /// @param before  samples of the batches before
  void add(const TowerRows& part, std::int64_t before) {
    for (std::int64_t t = 0; t < part.towers; ++t)
      for (std::int64_t i = 0; i < part.samples; ++i) {
        const std::int64_t sample = before + part.first_sample + i;
        if (sample >= samples_) continue;
        std::copy_n(part.rows.begin() + (t * part.samples + i) * width_, width_,
                    rows_.begin() + ((part.first_tower + t) * samples_ + sample) * width_);
      }
  }
  /// Collective.
  void share(comm::Group& everybody) {
    everybody.all_reduce(View<float>(rows_.data(), std::ssize(rows_)), comm::ReduceOp::max);
  }
  [[nodiscard]] const std::vector<float>& values() const { return rows_; }
  [[nodiscard]] double accuracy() const {
    const std::span all(rows_);
    const std::size_t half = all.size() / 2;
    return retrieval_accuracy(all.first(half), all.subspan(half), width_);
  }

 private:
  static constexpr float nothing = std::numeric_limits<float>::lowest();
  std::int64_t samples_, width_;
  std::vector<float> rows_;
};

}  // namespace detail

/// Measures the tasks on their held-out data. Collective; equal on all ranks.
/// @param stage  a TaskStage  @param control  its world, for memory of the program
template <class Stage>
std::vector<TaskScore> measure(Stage& stage, comm::World& control, const TaskPlan& plan, const HeldOut& held_out) {
  const std::vector<TaskSpec>& tasks = plan.model.tasks;
  std::vector<TaskScore> out(tasks.size());
  std::vector<std::int64_t> batches(tasks.size());
  std::vector<detail::TaskRows> rows;
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    batches[t] = (held_out.samples[t] + tasks[t].batch - 1) / tasks[t].batch;
    const LayerSpec& head = plan.model.component(plan.model.find(tasks[t].loss)).layers.back();
    out[t].retrieves = head.head == HeadKind::contrastive;
    rows.emplace_back(out[t].retrieves ? held_out.samples[t] : 0, head.hidden);
  }
  for (std::int64_t batch = 0; batch < *std::ranges::max_element(batches); ++batch) {
    std::vector<TowerRows> parts;
    const std::vector<double> losses = stage.evaluate(batch, held_out.sources, parts);
    for (std::size_t t = 0; t < tasks.size(); ++t)
      if (batch < batches[t]) out[t].loss += losses[t] / static_cast<double>(batches[t]);
    for (const TowerRows& part : parts) {
      const auto task = static_cast<std::size_t>(part.task);
      rows[task].add(part, batch * tasks[task].batch);
    }
  }
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    if (!out[t].retrieves) continue;
    rows[t].share(control.everybody());
    out[t].retrieval = rows[t].accuracy();
    if (held_out.keeps_rows) out[t].rows = rows[t].values();
  }
  return out;
}

}  // namespace galvatron::train
