// Layers of train::Stage that sleep, beside their work or in place of it, so that a pass takes a time that is known
// whatever the machine does.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <galvatron/runtime/layer.hpp>

#include "run_plan.hpp"

namespace toy {

inline void sleep_for(const BlockSleeps& times, Milliseconds time) {
  if (time.count() == 0) return;
  const auto begin = std::chrono::steady_clock::now();
  std::this_thread::sleep_until(begin + time);
  if (times.slept != nullptr) *times.slept += std::chrono::steady_clock::now() - begin;
}

/// A layer that takes longer.
template <class T>
class PaddedLayer final : public runtime::Layer<T> {
 public:
  PaddedLayer(std::unique_ptr<runtime::Layer<T>> inner, const BlockSleeps& times)
      : inner_(std::move(inner)), times_(times) {}

  void take_stash(device::Region& stash, int slots, int deferred) override {
    inner_->take_stash(stash, slots, deferred);
  }
  View<T> input(int slot) override { return inner_->input(slot); }
  void set_pass_through(int slot, int part, View<T> rows) override { inner_->set_pass_through(slot, part, rows); }
  View<std::int32_t> tokens(int slot) override { return inner_->tokens(slot); }
  View<T> patches(int slot) override { return inner_->patches(slot); }
  void forward(int slot, View<T> y) override {
    inner_->forward(slot, y);
    sleep_for(times_, times_.forward);
  }
  void backward(int slot, int deferred, View<T> d) override {
    inner_->backward(slot, deferred, d);
    sleep_for(times_, deferred < 0 ? times_.backward_input + times_.backward_weight : times_.backward_input);
  }
  void backward_weight(int slot, int deferred) override {
    inner_->backward_weight(slot, deferred);
    sleep_for(times_, times_.backward_weight);
  }
  runtime::Streaming streaming() override { return inner_->streaming(); }
  void for_each_store(const std::function<void(runtime::Store&)>& f) override { inner_->for_each_store(f); }

 private:
  std::unique_ptr<runtime::Layer<T>> inner_;
  BlockSleeps times_;
};

/// A layer that sleeps in place of its work, so that stages do not compete for cores.
template <class T>
class SleepingLayer final : public runtime::Layer<T> {
 public:
  SleepingLayer(const BlockSleeps& times, std::int64_t elements, std::int64_t rows)
      : times_(times), elements_(elements), rows_(rows) {}

  void take_stash(device::Region& stash, int slots, int) override {
    for (int i = 0; i < slots; ++i) {
      inputs_.push_back(stash.take<T>(elements_));
      tokens_.push_back(stash.take<std::int32_t>(rows_));
    }
  }
  View<T> input(int slot) override { return inputs_[static_cast<std::size_t>(slot)]; }
  View<std::int32_t> tokens(int slot) override { return tokens_[static_cast<std::size_t>(slot)]; }
  void forward(int, View<T>) override { sleep_for(times_, times_.forward); }
  void backward(int, int deferred, View<T>) override {
    sleep_for(times_, deferred < 0 ? times_.backward_input + times_.backward_weight : times_.backward_input);
  }
  void backward_weight(int, int) override { sleep_for(times_, times_.backward_weight); }
  void for_each_store(const std::function<void(runtime::Store&)>&) override {}

 private:
  BlockSleeps times_;
  std::int64_t elements_;
  std::int64_t rows_;
  std::vector<View<T>> inputs_;
  std::vector<View<std::int32_t>> tokens_;
};

}  // namespace toy
