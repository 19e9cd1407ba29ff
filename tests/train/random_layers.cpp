// Layers of users, drawn at random: their forward pass is all there is, and every strategy trains them as one rank.
#include <galvatron/model/layers.hpp>

#include <doctest/doctest.h>

#include <cstdlib>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check_plan.hpp"
#include "toy.hpp"

using namespace galvatron;

namespace {

unsigned layer_seed = 0;  // a forward pass is a function, without a state of its own

class RandomLayer {
 public:
  explicit RandomLayer(const LayerSpec& l) : b_(l), l_(l), random_(layer_seed) {}

  forward::Graph graph() {
    forward::Tensor x = b_.input(h_);
    const int parts = 1 + draw(2);
    for (int i = 0; i < parts; ++i) {
      const forward::Tensor n = coin() ? norm(x) : x;
      forward::Tensor y = part(n);
      if (draw(3) == 0) y = norm(y);
      if (draw(3) == 0) y = b_.add(y, part(n));  // parallel branches
      if (draw(3) == 0) y = b_.multiply(y, coin() ? x : n);
      x = draw(5) == 0 ? y : coin() ? b_.add(x, y) : b_.add(y, x);
      if (draw(4) == 0) x = norm(x);
    }
    b_.output(is_input(x) ? norm(x) : x);
    return b_.graph();
  }

 private:
  int draw(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  bool coin() { return draw(2) == 0; }
  static bool is_input(forward::Tensor x) { return x.id == 0; }
  ParameterName name() { return user_parameter(next_++); }
  bool has_names(int count) const { return next_ + count <= user_parameters; }
  forward::Weight bias(forward::Width width) {
    return has_names(4) && coin() ? b_.vector(name(), width) : forward::Weight{};
  }
  forward::Tensor norm(forward::Tensor x) {
    if (!has_names(4)) return x;
    const forward::Weight gamma = b_.vector(name(), h_, ParameterInit::one);
    return b_.norm(x, gamma, l_.norm == NormKind::layer_norm ? b_.vector(name(), h_) : forward::Weight{});
  }
  forward::Tensor linear(forward::Tensor x, forward::Width outputs, forward::Width inputs) {
    const forward::Weight w = b_.weight(name(), outputs, inputs, 0.08);
    return b_.linear(x, w, bias(outputs));
  }
  forward::Tensor activation(forward::Tensor x, forward::Width width) {
    switch (draw(3)) {
      case 0:
        return b_.activation(ActivationKind::gelu, x, width);
      case 1:
        return b_.multiply(x, x);
      default:
        return b_.add(x, b_.activation(ActivationKind::gelu, x, width));
    }
  }
  /// (T, H) -> (T, H), with at most four names.
  forward::Tensor part(forward::Tensor n) {
    const forward::Width f = forward::Builder::split(8 * (1 + draw(6)));
    const forward::Width r = forward::Builder::whole(8 * (1 + draw(6)));
    if (!has_names(4)) return b_.activation(ActivationKind::gelu, n, h_);
    switch (draw(attends_ ? 6 : 7)) {
      case 0:  // an MLP
        return linear(activation(linear(n, f, h_), f), h_, f);
      case 1: {  // one with a gate
        const forward::Tensor gate = activation(linear(n, f, h_), f);
        return linear(b_.multiply(gate, b_.linear(n, b_.weight(name(), f, h_, 0.08))), h_, f);
      }
      case 2: {  // gate and up in one weight
        const forward::Width both = forward::Builder::split(2 * f.extent, {f.extent, f.extent, 0});
        return linear(b_.activation(ActivationKind::swiglu, linear(n, both, h_), f), h_, f);
      }
      case 3:  // a bottleneck that every rank has
        return linear(activation(linear(n, r, h_), r), h_, r);
      case 4:  // one product
        return linear(n, h_, h_);
      case 5: {  // the same weights twice
        const forward::Weight in = b_.weight(name(), f, h_, 0.08);
        const forward::Weight out = b_.weight(name(), h_, f, 0.08);
        for (int i = 0; i < 2; ++i) n = b_.linear(b_.activation(ActivationKind::gelu, b_.linear(n, in), f), out);
        return n;
      }
      default:
        attends_ = true;
        return self_attention(b_, l_, n);
    }
  }

  forward::Builder b_;
  const LayerSpec& l_;
  std::mt19937 random_;
  forward::Width h_ = forward::Builder::whole(l_.hidden);
  int next_ = 0;
  bool attends_ = false;
};

forward::Graph random_layer(const LayerSpec& l) { return RandomLayer(l).graph(); }

const std::vector<StrategySpec> tried_strategies = {
    {.tensor = 2, .data = 2},
    {.tensor = 4, .sequence = SequenceKind::megatron},
    {.data = 4, .zero = 3},
    {.sequence = SequenceKind::ring, .context = 2, .data = 2},
    {.sequence = SequenceKind::ulysses, .context = 2, .data = 2, .zero = 1},
    {.tensor = 2, .sequence = SequenceKind::ulysses, .context = 2, .recompute = RecomputeKind::none},
    {.tensor = 2, .sequence = SequenceKind::megatron_ulysses, .context = 2},
    {.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 2, .recompute = RecomputeKind::selective},
    {.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .recompute = RecomputeKind::full},
    {.tensor = 4, .sequence = SequenceKind::megatron, .recompute = RecomputeKind::none},
};

}  // namespace

TEST_CASE("a layer whose shapes do not fit is refused with a sentence") {
  const LayerSpec l = toy::model(false, 1).blocks[0];
  const forward::Width h = forward::Builder::whole(l.hidden);
  const forward::Width f = forward::Builder::split(l.ffn);
  const auto refused = [&](const char* why, auto write) {
    forward::Builder b(l);
    CHECK_THROWS_WITH_AS(write(b, b.input(h)), why, std::invalid_argument);
  };
  const auto up = [&](forward::Builder& b, forward::Tensor x) {
    return b.linear(x, b.weight(user_parameter(0), f, h));
  };
  refused("a norm needs whole rows: its operand is split over tensor-parallel ranks",
          [&](auto& b, auto x) { b.norm(up(b, x), b.vector(user_parameter(1), f)); });
  refused("a linear layer's weight has as many columns as its operand",
          [&](auto& b, auto x) { b.linear(x, b.weight(user_parameter(0), h, f)); });
  refused("a weight is split over tensor-parallel ranks in one extent at most",
          [&](auto& b, auto x) { b.linear(up(b, x), b.weight(user_parameter(1), f, f)); });
  refused("a sum or product has operands of one shape", [&](auto& b, auto x) { b.add(up(b, x), x); });
  refused("a gated activation's operand has the sections gate and up",
          [&](auto& b, auto x) { b.activation(ActivationKind::swiglu, up(b, x), forward::Builder::split(l.ffn / 2)); });
  refused("a layer's output is whole: it is split over tensor-parallel ranks",
          [&](auto& b, auto x) { b.output(up(b, x)); });
  refused("an operation's result is not read: it would have no gradient", [&](auto& b, auto x) {
    up(b, x);
    b.output(x);
    static_cast<void>(b.graph());
  });
}

TEST_CASE("random layers train under random strategies as on one rank") {
  const char* given = std::getenv("GALVATRON_TEST_SEED");
  const unsigned seed = given != nullptr ? static_cast<unsigned>(std::stoul(given)) : 20'261'125;
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 40; ++i) {
    layer_seed = static_cast<unsigned>(random());
    ModelSpec model = toy::model(random() % 2 == 0, 2);
    for (LayerSpec& block : model.blocks) block.forward_pass = random_layer;
    INFO("layer ", layer_seed, " of ", model.name);
    const toy::Outcome reference = toy::run(toy::single_rank(model), model, 2);
    for (int k = 0; k < 2; ++k) {
      const StrategySpec spec = tried_strategies[random() % tried_strategies.size()];
      const int stages = spec.context == 1 ? 1 + static_cast<int>(random() % 2) : 1;
      const ScheduleKind schedule = stages == 1         ? ScheduleKind::one_f_one_b
                                    : random() % 2 == 0 ? ScheduleKind::zb_h1
                                                        : ScheduleKind::gpipe;
      toy::check_plan(toy::uniform(model, stages, spec, 2, schedule), model, reference);
    }
  }
}
