// The data of all tasks of a model: pairs in a folder, or samples made of numbers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/data/batch_source.hpp>
#include <galvatron/data/pair_source.hpp>
#include <galvatron/data/synthetic_samples.hpp>
#include <galvatron/data/task_stream.hpp>
#include <galvatron/model/multi_task.hpp>
#include <galvatron/model/task_mix.hpp>

namespace galvatron::train {

class TaskData {
 public:
  /// The pairs of all tasks in a folder (pair_source.hpp). Errors (usage): no folder, those of PairSource::open.
  /// @param held_out  samples at the end of each task that are not trained on
  static Result<TaskData> open(const std::filesystem::path& folder, const MultiTaskModel& model, std::int64_t held_out,
                               std::uint64_t seed) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(folder, ignored))
      return usage_error(folder.string() + " is no folder; data of several tasks are a folder with one for each task " +
                         "(docs/data.md)");
    TaskData out(model);
    for (int task = 0; task < static_cast<int>(model.tasks.size()); ++task) {
      auto pairs = PairSource::open(folder, model, task, held_out, seed);
      if (!pairs) return tl::unexpected<Error>(std::move(pairs.error()));
      out.streams_[static_cast<std::size_t>(task)].crc32c = pairs->checksum();
      out.pairs_.push_back(std::make_unique<const PairSource>(std::move(*pairs)));
    }
    return out;
  }
  /// Samples made of numbers.
  static TaskData synthetic(const MultiTaskModel& model, std::uint64_t seed) {
    TaskData out(model);
    out.seed_ = seed;
    return out;
  }

  /// Goes on where a run was after so many steps, in the streams of the tasks that both have. Errors (usage): data of a
  /// task that are others than those of the run.
  Result<void> go_on(const std::vector<TaskStream>& from, std::int64_t steps) {
    for (TaskStream& own : streams_) {
      const auto there = std::ranges::find(from, own.task, &TaskStream::task);
      own.step = steps;
      if (there == from.end()) continue;
      if (there->crc32c && own.crc32c && *there->crc32c != *own.crc32c)
        return usage_error("the data of the task \"" + own.task +
                           "\" are not those that the checkpoint was trained on, or others of them are held out; give "
                           "the same");
      own.samples = there->samples_at(steps);
    }
    return {};
  }

  /// Reads the batches of mixes from their steps on; behind go_on().
  void follow(const std::vector<TaskMix>& mixes) {
    for (TaskStream& own : streams_)
      for (const TaskMix& mix : mixes) {
        const auto there = std::ranges::find(mix.tasks, own.task, &TaskBatch::task);
        const std::int64_t batch = there == mix.tasks.end() ? 0 : there->batch;
        if (mix.step <= own.step)
          own.batch = batch;
        else
          own.changes.push_back({mix.step, batch});
      }
  }

  /// Where the run is in the data of each task.
  [[nodiscard]] const std::vector<TaskStream>& streams() const { return streams_; }
  /// A source for each input of each task, which this object owns and must outlive.
  [[nodiscard]] std::vector<TaskSources> sources() {
    return made([this](std::size_t task, int input) -> std::unique_ptr<BatchSource> {
      const TaskSpec& spec = model_.tasks[task];
      if (!pairs_.empty()) return std::make_unique<PairBatches>(*pairs_[task], input, &streams_[task]);
      const LayerSpec& head = model_.component(model_.find(spec.loss)).layers.back();
      const int component = model_.find(spec.inputs[static_cast<std::size_t>(input)].component);
      const std::uint64_t first = 1000 * (seed_ + 1);
      return std::make_unique<SyntheticSamples>(first + 2 * task, first + 500 + static_cast<std::uint64_t>(component),
                                                model_.component(component).layers.front(), streams_[task],
                                                head.head == HeadKind::classifier ? head.vocabulary : 0);
    });
  }
  /// The same of the samples that are held out; there are some.
  [[nodiscard]] std::vector<TaskSources> held_out_sources() {
    return made([this](std::size_t task, int input) -> std::unique_ptr<BatchSource> {
      return std::make_unique<PairBatches>(*pairs_[task], input, nullptr);
    });
  }
  /// Held-out samples of each task.
  [[nodiscard]] std::vector<std::int64_t> held_out() const {
    std::vector<std::int64_t> out;
    for (const auto& pairs : pairs_) out.push_back(pairs->held_out());
    return out;
  }

 private:
  explicit TaskData(const MultiTaskModel& model) : model_(model) {
    for (const TaskSpec& task : model.tasks) streams_.push_back({.task = task.name, .batch = task.batch});
  }
  template <class Make>
  std::vector<TaskSources> made(const Make& make) {
    std::vector<TaskSources> out;
    for (std::size_t task = 0; task < model_.tasks.size(); ++task) {
      out.emplace_back();
      for (std::size_t input = 0; input < model_.tasks[task].inputs.size(); ++input)
        out.back().push_back(sources_.emplace_back(make(task, static_cast<int>(input))).get());
    }
    return out;
  }

  MultiTaskModel model_;
  std::vector<TaskStream> streams_;
  std::vector<std::unique_ptr<const PairSource>> pairs_;  // of each task; none: samples of numbers
  std::vector<std::unique_ptr<BatchSource>> sources_;
  std::uint64_t seed_ = 0;
};

}  // namespace galvatron::train
