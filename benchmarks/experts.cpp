// A layer of experts against the dense layer of the same active width, on one rank of this machine.
//
//   benchmark_experts [--hidden 512] [--width 1024] [--experts 8] [--active 2] [--tokens 4096] [--rounds 15]
//
// Both are SwiGLU MLPs between x and y alone, without attention and norms: of experts of `width`, of which a token goes
// to `active`, and of active * width. A step is forward and backward with the gradients of the weights. Rounds of the
// two alternate, so that other programs disturb both alike; the ratio is the median of the rounds' ratios.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <galvatron/comm/thread/world.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/device/host/host.hpp>
#include <galvatron/model/layers.hpp>
#include <galvatron/rank/host_rank.hpp>
#include <galvatron/rank/stopwatch.hpp>
#include <galvatron/runtime/make_layer.hpp>

#include "guarded.hpp"

namespace {

using namespace galvatron;

struct Arguments {
  std::int64_t hidden = 512;
  std::int64_t width = 1024;
  std::int64_t experts = 8;
  std::int64_t active = 2;
  std::int64_t tokens = 4096;
  int rounds = 15;
  int threads = 0;
  std::string precision = "fp32";
};

void options(CLI::App& app, Arguments& a) {
  app.add_option("--hidden", a.hidden, "H")->check(CLI::PositiveNumber);
  app.add_option("--width", a.width, "of an expert")->check(CLI::PositiveNumber);
  app.add_option("--experts", a.experts, "of the layer")->check(CLI::PositiveNumber);
  app.add_option("--active", a.active, "experts for a token")->check(CLI::PositiveNumber);
  app.add_option("--tokens", a.tokens, "of a step")->check(CLI::PositiveNumber);
  app.add_option("--rounds", a.rounds, "steps of each layer")->check(CLI::Range(3, 10000));
  app.add_option("--threads", a.threads, "of the rank; 0: all cores")->check(CLI::NonNegativeNumber);
  app.add_option("--precision", a.precision, "fp32 or bf16")->check(CLI::IsMember({"fp32", "bf16"}));
}

forward::Graph mlp_alone(const LayerSpec& layer) {
  forward::Builder b(layer);
  const forward::Tensor x = b.input(forward::Builder::whole(layer.hidden));
  b.output(layer.experts > 0 ? experts(b, layer, x) : feed_forward(b, layer, x));
  return b.graph();
}

LayerSpec layer_of(const Arguments& a, bool has_experts) {
  LayerSpec out{.hidden = a.hidden,
                .heads = 1,
                .kv_heads = 1,
                .head_dim = a.hidden,
                .ffn = has_experts ? a.width : a.active * a.width,
                .activation = ActivationKind::swiglu,
                .bias = false};
  if (has_experts) {
    out.experts = a.experts;
    out.active_experts = a.active;
    out.router.balance_loss = 0.01;
  }
  out.forward_pass = mlp_alone;
  return out;
}

// A layer in memory of its own, with inputs that are drawn once.
template <class T>
class Timed {
 public:
  Timed(comm::World& world, const LayerSpec& layer, std::int64_t tokens, int threads)
      : rank_(memory_of(layer, tokens, threads), threads), rows_(tokens * layer.hidden) {
    train::RankMemory& memory = rank_.memory();
    const auto context = runtime::make_context(rank_.device(), memory.workspace, world, 0, StrategySpec{}, 1, tokens);
    layer_ = value_or_throw(runtime::make_layer<TypeList<Strategy<>>, T>(
        context, layer, {.number = 1, .token_weight = 1.0 / static_cast<double>(tokens)}, memory.states));
    layer_->take_stash(memory.stash, 1, 0);
    layer_->for_each_store([](runtime::Store& store) { store.initialise(runtime::initial_values(1, 1)); });
    layer_->for_each_store([](runtime::Store& store) { store.zero_gradients(); });
    input_.resize(static_cast<std::size_t>(rows_));
    std::uint32_t state = 12345;
    for (float& x : input_) x = static_cast<float>((state = state * 1664525U + 1013904223U) >> 8) * 0x1p-23F - 1.0F;
    y_ = memory.boundary.template take<T>(rows_);
    gradient_ = memory.boundary.template take<T>(rows_);
  }

  // Seconds of forward, and of backward with the gradients of the weights.
  std::array<double, 2> step() {
    fill(layer_->input(0));
    fill(gradient_);
    const double began = steady_seconds();
    layer_->forward(0, y_);
    const double between = steady_seconds();
    layer_->backward(0, -1, gradient_);
    return {between - began, steady_seconds() - between};
  }

 private:
  static cost::StageMemory memory_of(const LayerSpec& layer, std::int64_t tokens, int threads) {
    const cost::LayerCounts counts =
        cost::layer_counts(layer, {}, {.microbatch = 1, .sequence = tokens, .precision = precision_of<T>, .stages = 1});
    return {counts.states, counts.stash, counts.activation + counts.activation,
            max(counts.forward_workspace, counts.backward_workspace),
            Bytes{device::Host::library_workspace_bytes(threads)}};
  }
  void fill(View<T> to) const {
    for (std::int64_t i = 0; i < rows_; ++i) to[i] = static_cast<T>(input_[static_cast<std::size_t>(i)]);
  }

  train::HostRank rank_;
  std::int64_t rows_;
  std::unique_ptr<runtime::Layer<T>> layer_;
  std::vector<float> input_;
  View<T> y_;
  View<T> gradient_;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

template <class T>
void compare(const Arguments& a, int threads) {
  comm::thread::run(1, [&](comm::thread::World& world) {
    omp_set_num_threads(threads);
    Timed<T> sparse(world, layer_of(a, true), a.tokens, threads);
    Timed<T> dense(world, layer_of(a, false), a.tokens, threads);
    std::array<std::vector<double>, 3> of_sparse;  // forward, backward, both
    std::array<std::vector<double>, 3> of_dense;
    std::array<std::vector<double>, 3> ratios;
    for (int round = -2; round < a.rounds; ++round) {  // two to warm up
      const auto add = [&](Timed<T>& layer, auto& to) {
        const auto [forward, backward] = layer.step();
        if (round < 0) return;
        to[0].push_back(forward);
        to[1].push_back(backward);
        to[2].push_back(forward + backward);
      };
      if (round % 2 == 0) {
        add(sparse, of_sparse);
        add(dense, of_dense);
      } else {
        add(dense, of_dense);
        add(sparse, of_sparse);
      }
      for (std::size_t i = 0; i < ratios.size() && round >= 0; ++i)
        ratios[i].push_back(of_sparse[i].back() / of_dense[i].back());
    }
    std::printf(
        "%lld experts of %lld, %lld for a token, against a dense width of %lld; H %lld, %lld tokens, %s, %d "
        "threads\n",
        static_cast<long long>(a.experts), static_cast<long long>(a.width), static_cast<long long>(a.active),
        static_cast<long long>(a.active * a.width), static_cast<long long>(a.hidden), static_cast<long long>(a.tokens),
        a.precision.c_str(), threads);
    const char* const names[] = {"forward", "backward", "step"};
    for (std::size_t i = 0; i < ratios.size(); ++i) {
      std::printf("%-8s  experts %8.3f ms   dense %8.3f ms   ratio %.3f\n", names[i], 1e3 * median(of_sparse[i]),
                  1e3 * median(of_dense[i]), median(ratios[i]));
    }
  });
}

int benchmark(const Arguments& a) {
  if (a.active > a.experts) throw Failure(ErrorKind::usage, "a token goes to at most all experts");
  const int threads = a.threads > 0 ? a.threads : usable_cores();
  if (a.precision == "bf16")
    compare<bfloat16>(a, threads);
  else
    compare<float>(a, threads);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("benchmark_experts", "A layer of experts against a dense layer of the same active width.", argc, argv,
                 options, benchmark);
}
