// Rates of the host device's operations against the machine's copy bandwidth: flop/s where arithmetic bounds, bytes/s
// where memory does. Sizes are those of a GPT-2 124M layer on 1024 tokens of 4 samples unless the name says otherwise.
//
// GALVATRON_THREADS in the environment sets the threads of the device (1 by default).
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdlib>
#include <new>
#include <random>
#include <string>
#include <vector>

#include <galvatron/device/host/host.hpp>

namespace {

using namespace galvatron;
using device::AttentionShape;
using device::Host;

int threads() {
  const char* text = std::getenv("GALVATRON_THREADS");
  return text == nullptr ? 1 : std::max(1, std::atoi(text));
}

Host& host() {
  static const auto bytes = Host::library_workspace_bytes(threads());
  static auto* memory = static_cast<std::byte*>(::operator new(static_cast<std::size_t>(bytes), std::align_val_t(64)));
  static Host device(threads(), View<std::byte>(memory, bytes));
  return device;
}

/// Elements on a cache line, filled with numbers in [-1, 1].
template <class T>
class Tensor {
 public:
  explicit Tensor(std::int64_t count)
      : data_(static_cast<T*>(::operator new(static_cast<std::size_t>(count) * sizeof(T), std::align_val_t(64)))),
        count_(count) {
    std::minstd_rand random(7);
    for (std::int64_t i = 0; i < count; ++i) data_[i] = T(static_cast<float>(random() % 20001) * 1e-4F - 1.0F);
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() { ::operator delete(data_, std::align_val_t(64)); }
  operator View<T>() const { return {data_, count_}; }
  operator View<const T>() const { return {data_, count_}; }
  [[nodiscard]] View<T> view() const { return {data_, count_}; }

 private:
  T* data_;
  std::int64_t count_;
};

/// What device::plain makes of its view.
template <class T>
T* plain(const Tensor<T>& tensor) {
  return device::plain(tensor.view());
}

void set_flops(benchmark::State& state, double flops) {
  state.counters["flop/s"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}
void set_bytes(benchmark::State& state, double bytes) {
  state.counters["bytes/s"] = benchmark::Counter(bytes, benchmark::Counter::kIsIterationInvariantRate);
}

constexpr std::int64_t rows = 4096;
constexpr std::int64_t hidden = 768;
constexpr std::int64_t vocabulary = 50304;

template <class T>
void gemm(benchmark::State& state, op::Kind kind) {
  const std::int64_t m = state.range(0);
  const std::int64_t n = state.range(1);
  const std::int64_t k = state.range(2);
  const Tensor<T> a(m * k);
  const Tensor<T> b(n * k);
  const Tensor<T> bias(n);
  const Tensor<T> c(m * n);
  const Tensor<float> gradient(kind == op::Kind::gemm_tn ? m * n : 1);
  for (auto _ : state) {
    if (kind == op::Kind::gemm_tn)
      host().gemm(kind, m, n, k, a.view(), b, gradient.view(), true);
    else
      host().gemm(kind, m, n, k, a.view(), b, c.view(), false, kind == op::Kind::gemm_nt ? bias.view() : View<T>{});
  }
  set_flops(state, 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k));
}

template <class T>
void attention(benchmark::State& state, bool backward) {
  const std::int64_t sequence = state.range(0);
  const std::int64_t heads = state.range(1);
  const std::int64_t kv_heads = state.range(2);
  const std::int64_t head_dim = state.range(3);
  const bool causal = state.range(4) != 0;
  const std::int64_t batch = std::max<std::int64_t>(1, 2048 / sequence);
  const std::int64_t width = (heads + 2 * kv_heads) * head_dim;
  const AttentionShape shape{.batch = batch,
                             .queries = sequence,
                             .keys = sequence,
                             .heads = heads,
                             .kv_heads = kv_heads,
                             .head_dim = head_dim,
                             .causal = causal,
                             .q_stride = width,
                             .kv_stride = width,
                             .out_stride = heads * head_dim};
  const Tensor<T> qkv(batch * sequence * width);
  const Tensor<T> d_qkv(batch * sequence * width);
  const Tensor<T> o(batch * sequence * heads * head_dim);
  const Tensor<T> d_o(batch * sequence * heads * head_dim);
  const Tensor<float> lse(batch * heads * sequence);
  const Tensor<float> delta(batch * heads * sequence);
  const auto part = [&](const Tensor<T>& t, std::int64_t first_head) {
    return t.view().slice(first_head * head_dim, t.view().count - first_head * head_dim);
  };
  const auto forward = [&] {
    host().attention_forward(shape, part(qkv, 0), part(qkv, heads), part(qkv, heads + kv_heads), o.view(), lse);
  };
  forward();
  for (auto _ : state) {
    if (backward)
      host().attention_backward(shape, part(qkv, 0), part(qkv, heads), part(qkv, heads + kv_heads), o, lse.view(), d_o,
                                part(d_qkv, 0), part(d_qkv, heads), part(d_qkv, heads + kv_heads), delta);
    else
      forward();
  }
  const op::Work work{.kind = backward ? op::Kind::attention_backward : op::Kind::attention_forward,
                      .m = batch * heads,
                      .n = sequence,
                      .k = sequence,
                      .l = head_dim,
                      .causal = causal};
  set_flops(state, op::flops_of(work).count);
}

void copy(benchmark::State& state) {
  const Tensor<float> from(state.range(0) / 4);
  const Tensor<float> to(state.range(0) / 4);
  const auto bytes = [](const Tensor<float>& t) {
    return View<std::byte>(reinterpret_cast<std::byte*>(t.view().data), t.view().count * 4);
  };
  for (auto _ : state) host().copy(bytes(from), bytes(to));
  set_bytes(state, 2.0 * static_cast<double>(state.range(0)));
}

template <class T>
void add(benchmark::State& state) {
  const std::int64_t n = rows * hidden;
  const Tensor<T> a(n);
  const Tensor<T> b(n);
  const Tensor<T> c(n);
  for (auto _ : state) host().add(n, a, b, c.view());
  set_bytes(state, 3.0 * static_cast<double>(n * sizeof(T)));
}

template <class T>
void norm(benchmark::State& state, NormKind kind, bool backward) {
  const std::int64_t n = rows * hidden;
  const Tensor<T> x(n);
  const Tensor<T> y(n);
  const Tensor<T> dx(n);
  const Tensor<T> gamma(hidden);
  const bool shifts = kind == NormKind::layer_norm;
  const Tensor<T> beta(shifts ? hidden : 0);
  const Tensor<float> stats(2 * rows);
  const Tensor<float> dgamma(hidden);
  const Tensor<float> dbeta(shifts ? hidden : 0);
  host().norm_forward(kind, rows, hidden, 1e-5, x, gamma, beta, y.view(), stats);
  for (auto _ : state) {
    if (backward)
      host().norm_backward(kind, rows, hidden, y, x, gamma, stats.view(), dx, dx.view(), dgamma, dbeta);
    else
      host().norm_forward(kind, rows, hidden, 1e-5, x, gamma, beta, y.view(), stats);
  }
  set_bytes(state, (backward ? 4.0 : 2.0) * static_cast<double>(n * sizeof(T)));
}

template <class T>
void activation(benchmark::State& state, ActivationKind kind, bool backward) {
  const std::int64_t width = 4 * hidden;
  const std::int64_t inputs = kind == ActivationKind::swiglu ? 2 : 1;
  const Tensor<T> u(rows * width * inputs);
  const Tensor<T> du(rows * width * inputs);
  const Tensor<T> g(rows * width);
  for (auto _ : state) {
    if (backward)
      host().activation_backward(kind, rows, width, u, g, du.view());
    else
      host().activation_forward(kind, rows, width, u, g.view());
  }
  const double touched = backward ? 2.0 * static_cast<double>(inputs) + 1.0 : static_cast<double>(inputs) + 1.0;
  set_bytes(state, touched * static_cast<double>(rows * width * static_cast<std::int64_t>(sizeof(T))));
}

template <class T>
void bias_gradient(benchmark::State& state) {
  const Tensor<T> dy(rows * 4 * hidden);
  const Tensor<float> db(4 * hidden);
  for (auto _ : state) host().bias_gradient(rows, 4 * hidden, dy.view(), db);
  set_bytes(state, static_cast<double>(rows * 4 * hidden * static_cast<std::int64_t>(sizeof(T))));
}

template <class T>
void rotary(benchmark::State& state) {
  const Tensor<T> qkv(rows * 3 * hidden);
  for (auto _ : state) host().rotary(rows, 4, 0, 24, 64, 3 * hidden, 10000.0, false, qkv.view());
  set_bytes(state, 2.0 * static_cast<double>(rows * 2 * hidden * static_cast<std::int64_t>(sizeof(T))));
}

template <class T>
void embedding(benchmark::State& state, bool backward) {
  const Tensor<T> table(vocabulary * hidden);
  const Tensor<float> dtable(backward ? vocabulary * hidden : 1);
  const Tensor<T> out(rows * hidden);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows));
  std::minstd_rand random(3);
  for (auto& token : tokens) token = static_cast<std::int32_t>(random() % vocabulary);
  const View<const std::int32_t> ids(tokens.data(), rows);
  for (auto _ : state) {
    if (backward)
      host().embedding_backward(rows, hidden, ids, 0, vocabulary, 1.0F, out.view(), dtable);
    else
      host().embedding_forward(rows, hidden, ids, 0, vocabulary, 1.0F, table, out.view());
  }
  set_bytes(state, static_cast<double>(rows * hidden) * (backward ? sizeof(T) + 8.0 : 2.0 * sizeof(T)));
}

template <class T>
void softmax(benchmark::State& state, bool backward) {
  const std::int64_t tokens = 512;
  const Tensor<T> logits(tokens * vocabulary);
  const Tensor<float> stats(3 * tokens);
  const Tensor<float> lse(tokens);
  const std::vector<std::int32_t> targets(static_cast<std::size_t>(tokens), 17);
  const View<const std::int32_t> ids(targets.data(), tokens);
  for (auto _ : state) {
    if (backward)
      host().softmax_backward(tokens, vocabulary, 50257, 0, lse.view(), ids, 0.1F, false, logits.view());
    else
      host().softmax_statistics(tokens, vocabulary, 50257, 0, logits.view(), ids, stats);
  }
  set_bytes(state, (backward ? 2.0 : 1.0) * static_cast<double>(tokens * vocabulary) * sizeof(T));
}

template <class T, class M>
void adamw(benchmark::State& state) {
  const std::int64_t n = 8 << 20;
  const Tensor<float> master(n);
  const Tensor<float> g(n);
  const Tensor<M> m(n);
  const Tensor<M> v(n);
  const Tensor<bfloat16> rounded(n);
  View<T> working;
  if constexpr (std::is_same_v<T, float>)
    working = master;
  else
    working = rounded;
  for (std::int64_t i = 0; i < n; ++i) v.view()[i] = M(std::abs(static_cast<float>(v.view()[i])));
  device::AdamW adam;
  const std::vector<float> scale{1.0F};
  for (auto _ : state) {
    host().begin_update(adam);
    host().adamw(n, {}, View<const float>(scale.data(), 1), master, g.view(), m.view(), v.view(), working);
    ++adam.step;
  }
  set_bytes(state, static_cast<double>(n) * (12.0 + 4 * sizeof(M) + (std::is_same_v<T, float> ? 0 : sizeof(T))));
}

void norm_squared(benchmark::State& state) {
  const std::int64_t n = 8 << 20;
  const Tensor<float> x(n);
  double sum = 0;
  for (auto _ : state) host().norm_squared(n, x.view(), {&sum, 1});
  benchmark::DoNotOptimize(sum);
  set_bytes(state, 4.0 * static_cast<double>(n));
}

void accumulate(benchmark::State& state) {
  const std::int64_t n = 8 << 20;
  const Tensor<float> from(n);
  const Tensor<float> to(n);
  for (auto _ : state) host().accumulate(n, from.view(), to);
  set_bytes(state, 12.0 * static_cast<double>(n));
}

/// (m, n, k) of a GPT-2 124M block's products on 4096 tokens, the head's on 512, and small ones.
void products(benchmark::internal::Benchmark* b) {
  b->Args({4096, 2304, 768})->Args({4096, 768, 768})->Args({4096, 3072, 768})->Args({4096, 768, 3072});
  b->Args({512, 50304, 768})->Args({64, 64, 64})->Args({128, 256, 256});
}
/// (sequence, heads, kv_heads, head_dim, causal)
void shapes(benchmark::internal::Benchmark* b) {
  b->Args({128, 4, 4, 32, 1})->Args({512, 12, 12, 64, 1})->Args({1024, 12, 12, 64, 1})->Args({1024, 12, 12, 64, 0});
  b->Args({2048, 8, 2, 128, 1});
}

template <class F, class... Arguments>
benchmark::internal::Benchmark* add_benchmark(const char* name, F function, Arguments... arguments) {
  auto* added = benchmark::RegisterBenchmark(name, [=](benchmark::State& state) { function(state, arguments...); });
  // One thread is timed by what it computed, so that other programs on the machine count little.
  return threads() == 1 ? added : added->UseRealTime();
}

template <class T>
void register_for(const std::string& type) {
  const auto named = [&](const char* name) { return name + ("<" + type + ">"); };
  add_benchmark(named("gemm_nt").c_str(), gemm<T>, op::Kind::gemm_nt)->Apply(products);
  add_benchmark(named("gemm_nn").c_str(), gemm<T>, op::Kind::gemm_nn)->Apply(products);
  add_benchmark(named("gemm_tn").c_str(), gemm<T>, op::Kind::gemm_tn)->Apply(products);
  add_benchmark(named("attention_forward").c_str(), attention<T>, false)->Apply(shapes);
  add_benchmark(named("attention_backward").c_str(), attention<T>, true)->Apply(shapes);
  add_benchmark(named("add").c_str(), add<T>);
  add_benchmark(named("layer_norm_forward").c_str(), norm<T>, NormKind::layer_norm, false);
  add_benchmark(named("layer_norm_backward").c_str(), norm<T>, NormKind::layer_norm, true);
  add_benchmark(named("rms_norm_forward").c_str(), norm<T>, NormKind::rms_norm, false);
  add_benchmark(named("rms_norm_backward").c_str(), norm<T>, NormKind::rms_norm, true);
  add_benchmark(named("gelu_forward").c_str(), activation<T>, ActivationKind::gelu, false);
  add_benchmark(named("gelu_backward").c_str(), activation<T>, ActivationKind::gelu, true);
  add_benchmark(named("swiglu_forward").c_str(), activation<T>, ActivationKind::swiglu, false);
  add_benchmark(named("swiglu_backward").c_str(), activation<T>, ActivationKind::swiglu, true);
  add_benchmark(named("bias_gradient").c_str(), bias_gradient<T>);
  add_benchmark(named("rotary").c_str(), rotary<T>);
  add_benchmark(named("embedding_forward").c_str(), embedding<T>, false);
  add_benchmark(named("embedding_backward").c_str(), embedding<T>, true);
  add_benchmark(named("softmax_statistics").c_str(), softmax<T>, false);
  add_benchmark(named("softmax_backward").c_str(), softmax<T>, true);
  add_benchmark(named("adamw").c_str(), adamw<T, float>);
  add_benchmark(named("adamw_bf16").c_str(), adamw<T, bfloat16>);
}

}  // namespace

int main(int argc, char** argv) {
  add_benchmark("copy", copy)->Arg(1 << 20)->Arg(12 << 20)->Arg(256 << 20);
  add_benchmark("norm_squared", norm_squared);
  add_benchmark("accumulate", accumulate);
  register_for<float>("float");
  if (Host::supports(Precision::bf16)) register_for<bfloat16>("bfloat16");
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
