// What groups on memory of a device have in common: the program does not wait for collectives. They are given to a
// stream, and the stream in which the rank computes waits for a fence behind them when they are finished.
#pragma once

#include <deque>
#include <exception>
#include <vector>

#include <galvatron/comm/communicator.hpp>

namespace galvatron::comm {

/// Waits for what a device does; one that has failed is at work no more.
template <class Wait>
void wait_or_failed(Wait&& wait) noexcept {
  try {
    wait();
  } catch (const std::exception&) {
  }
}

template <class Fence>
class StreamGroup : public Group {
 public:
  void finish_shifts() override {
    for (Pending& shift : shifts_) finish(shift);
    shifts_.clear();
  }
  /// The members' streams may be at work.
  void barrier() override { control_.barrier(); }

 protected:
  /// @param control  a group of the same ranks for memory of the program  @param world_rank  this rank
  StreamGroup(Group& control, int world_rank) : Group(control.ranks(), world_rank), control_(control) {}

  /// A collective that a stream was given: record(fence) puts the fence behind it.
  template <class Record>
  Pending under_way(Record&& record) {
    if (free_.empty()) free_.push_back(&fences_.emplace_back());
    Fence* const fence = free_.back();
    free_.pop_back();
    record(*fence);
    Pending out;
    out.call = Pending::Call::under_way;
    out.handle = fence;
    return out;
  }
  /// The fence of a collective that is being finished; good until the next one is under way.
  [[nodiscard]] Fence& fence_of(const Pending& pending) {
    return *free_.emplace_back(static_cast<Fence*>(pending.handle));
  }
  /// For finish_shifts().
  void keep_shift(const Pending& shift) { shifts_.push_back(shift); }

  Group& control_;

 private:
  std::deque<Fence> fences_;
  std::vector<Fence*> free_;     // of these
  std::vector<Pending> shifts_;  // started and not finished
};

}  // namespace galvatron::comm
