// Border: what crosses from one layer to the next, inside a chunk or between two.
//
// In most models that is one tensor. In an encoder-decoder model both sides cross every border: the embedded target
// passes the encoder, and the encoder's output passes the decoder; the head takes the target alone.
//
//   source   embedding ==> encoder ==> .. ==> encoder ==> decoder --> .. --> decoder           ==> worked on
//   target   embedding --> encoder --> .. --> encoder --> decoder ==> .. ==> decoder ==> head  --> pass-through
#pragma once

#include <cstdint>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/strategy/layout.hpp>
#include <galvatron/train/exchange.hpp>

namespace galvatron::train {

/// The tensors of a border on a rank: (tokens, samples, H) each. A model without a decoder has `source` only.
template <class T>
struct ActivationBundle {
  View<T> source;
  View<T> target;
};

/// Tokens of a sequence on each side.
struct BundleTokens {
  std::int64_t source = 0;
  std::int64_t target = 0;
  friend constexpr bool operator==(const BundleTokens&, const BundleTokens&) = default;
};

/// What a block or an embedding gives to the next layer, and gets but for its own kind of change.
constexpr BundleTokens bundle_tokens(const LayerSpec& layer, std::int64_t sequence) {
  if (layer.memory.any()) return {layer.memory.of(sequence), layer.tokens.of(sequence)};
  return {layer.tokens.of(sequence), layer.pass_through.of(sequence)};
}

class Border {
 public:
  Border() = default;
  /// @param from, to  layouts of the model's sequence  @param tokens  that cross. The others as for Exchange
  Border(ActivationLayout from, ActivationLayout to, const BundleTokens& tokens, int rank, std::int64_t hidden,
         std::int64_t element_bytes, int lane) {
    const auto exchange = [&](std::int64_t sequence) {
      from.sequence = to.sequence = sequence;
      return sequence > 0 ? Exchange(from, to, rank, hidden, element_bytes, lane) : Exchange{};
    };
    source_ = exchange(tokens.source);
    target_ = exchange(tokens.target);
  }

  /// As the members of Exchange.
  template <class T>
  void post(comm::World& world, const ActivationBundle<T>& local) {
    source_.post(world, local.source);
    target_.post(world, local.target);
  }
  template <class T>
  void receive(comm::World& world, const ActivationBundle<T>& local) {
    source_.receive(world, local.source);
    target_.receive(world, local.target);
  }
  void wait_sent(comm::World& world) {
    source_.wait_sent(world);
    target_.wait_sent(world);
  }

 private:
  Exchange source_, target_;
};

}  // namespace galvatron::train
