// Border: the bundle of values that crosses from one layer to the next (model/graph.hpp), inside a chunk or between
// two.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/strategy/layout.hpp>
#include <galvatron/train/exchange.hpp>

namespace galvatron::train {

/// The parts of a bundle on a rank: (tokens, samples, width) each.
template <class T>
using ActivationBundle = std::array<View<T>, most_parts>;

class Border {
 public:
  Border() = default;
  /// @param from, to  layouts of the model's sequence  @param bundle  that crosses. The others as for Exchange
  Border(ActivationLayout from, ActivationLayout to, const Bundle& bundle, int rank, std::int64_t element_bytes,
         int lane) {
    const std::int64_t sequence = from.sequence;
    for (std::size_t i = 0; i < bundle.size(); ++i) {
      if (!bundle[i].tokens.any()) continue;
      from.sequence = to.sequence = bundle[i].tokens.of(sequence);
      parts_[i] = Exchange(from, to, rank, bundle[i].width, element_bytes, lane);
    }
  }

  /// As the members of Exchange.
  template <class T>
  void post(comm::World& world, const ActivationBundle<T>& local) {
    for (std::size_t i = 0; i < parts_.size(); ++i) parts_[i].post(world, local[i]);
  }
  template <class T>
  void receive(comm::World& world, const ActivationBundle<T>& local) {
    for (std::size_t i = 0; i < parts_.size(); ++i) parts_[i].receive(world, local[i]);
  }
  void wait_sent(comm::World& world) {
    for (Exchange& part : parts_) part.wait_sent(world);
  }

 private:
  std::array<Exchange, most_parts> parts_;
};

}  // namespace galvatron::train
