// What operations and training steps reach on one GPU, beside what bounds them: the peak that is named for products and
// attention, the copy of the same run for everything else. Of training steps: as one CUDA graph and operation by
// operation, the floor (step_work.hpp), what a profile of this GPU predicts, and every operation of the step by itself.
//
//   benchmark_gpu [--only PART...] [--seconds S] [--peak TFLOPS] [--bandwidth GB/s] [--cluster FILE] [--steps N]
//                 [--lengths FILE] [--nondeterministic] [--fp8]
//
// Without a GPU it says so and exits with 77.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <galvatron/cluster/json.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/profile/compute.hpp>
#include <galvatron/train/gpu_compiled.hpp>
#include <galvatron/train/gpus.hpp>

#include "cheap_tokens.hpp"
#include "guarded.hpp"
#include "packed_rows.hpp"
#include "step_work.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::bench;
using Bench = train::detail::Bench<train::CudaPlatform>;

struct Arguments {
  std::vector<std::string> only{"operations", "steps", "parts"};
  double least = 0.02;
  double peak = 989;
  double bandwidth = 3350;
  std::string cluster;
  std::string lengths;
  int steps = 8;
  bool nondeterministic = false;
  bool fp8 = false;
};

void options(CLI::App& app, Arguments& a) {
  app.add_option(
         "--only", a.only,
         "operations; steps, or those compared with peers alone; experts: steps with experts; choices: steps of "
         "one model in several ways; parts: a step's operations by themselves; packed: attention of documents "
         "(default: operations, steps and parts)")
      ->check(CLI::IsMember({"operations", "steps", "compared", "experts", "choices", "parts", "packed"}));
  app.add_option("--seconds", a.least, "for each operation (default: 0.02)")->check(CLI::PositiveNumber);
  app.add_option("--peak", a.peak, "TFLOP/s of the card in bf16 (default: 989, an H100 SXM)")
      ->check(CLI::PositiveNumber);
  app.add_option("--bandwidth", a.bandwidth, "GB/s of its memory (default: 3350, an H100 SXM)")
      ->check(CLI::PositiveNumber);
  app.add_option("--cluster", a.cluster, "a cluster file of `galvatron profile`: predicts the steps");
  app.add_option("--lengths", a.lengths,
                 "tokens of documents, a number a line: the first 64 of at most 8192 are packed");
  app.add_option("--steps", a.steps, "of each training run; the first does not count (default: 8)")
      ->check(CLI::Range(2, 1000));
  app.add_flag("--fp8", a.fp8, "training steps with 8-bit products");
  app.add_flag("--nondeterministic", a.nondeterministic, "as `galvatron train --deterministic off`");
}

// The MLP's product with GELU and the one with GELU's gradient, each as one operation and as two.
template <class Print>
void products_with_gelu(const Arguments& a, Bench& bench, std::int64_t tokens, std::int64_t hidden,
                        const Print& computes) {
  const std::int64_t f = 4 * hidden;
  Bench::Device& d = bench.device();
  train::detail::Walk memory(bench.buffer());
  const View<bfloat16> x = memory.next<bfloat16>(tokens * hidden);
  const View<bfloat16> weight = memory.next<bfloat16>(f * hidden);
  const View<bfloat16> bias = memory.next<bfloat16>(f);
  const View<bfloat16> u = memory.next<bfloat16>(tokens * f);
  const View<bfloat16> g = memory.next<bfloat16>(tokens * f);
  const double flops = 2.0 * static_cast<double>(tokens) * static_cast<double>(hidden) * static_cast<double>(f);
  const auto time = [&](const std::string& name, const auto& op) {
    computes(name + " " + std::to_string(tokens) + " x " + std::to_string(f) + " x " + std::to_string(hidden), flops,
             bench.time(a.least, op));
  };
  const auto gelu = ActivationKind::gelu;
  time("gelu of nt", [&] { d.gemm_activation(gelu, tokens, f, hidden, x, weight, bias, u, g); });
  time("  in two", [&] {
    d.gemm(op::Kind::gemm_nt, tokens, f, hidden, x, weight, u, false, bias);
    d.activation_forward(gelu, tokens, f, u, g);
  });
  time("gelu' of nn", [&] { d.gemm_activation_backward(gelu, tokens, f, hidden, x, weight, u, g, g); });
  time("  in two", [&] {
    d.gemm(op::Kind::gemm_nn, tokens, f, hidden, x, weight, g);
    d.activation_backward(gelu, tokens, f, u, g, g);
  });
}

// The products of experts (DeepSeek-V2-Lite's, arXiv 2405.04434) that have `rows` rows each, in one call and one by
// one.
template <class Print>
void products_of_experts(const Arguments& a, Bench& bench, std::int64_t rows, const Print& computes) {
  constexpr std::int64_t experts = 64;
  constexpr std::int64_t n = 1408;
  constexpr std::int64_t k = 2048;
  Bench::Device& d = bench.device();
  train::detail::Walk memory(bench.buffer());
  const View<std::int32_t> offsets = memory.next<std::int32_t>(experts + 1);
  const View<bfloat16> x = memory.next<bfloat16>(experts * rows * k);
  const View<bfloat16> weights = memory.next<bfloat16>(experts * n * k);
  const View<bfloat16> y = memory.next<bfloat16>(experts * rows * n);
  const View<float> gradients = memory.next<float>(experts * n * k);
  d.write(offsets, [rows](View<std::int32_t> to) {
    for (std::int64_t e = 0; e <= experts; ++e) to[e] = static_cast<std::int32_t>(e * rows);
  });
  const auto time = [&](op::Kind kind, auto from, auto by, auto to) {
    const bool sums_rows = kind == op::Kind::gemm_tn;
    const std::int64_t columns = kind == op::Kind::gemm_nn ? k : n;
    const std::int64_t depth = kind == op::Kind::gemm_nn ? n : k;
    const auto print = [&](const std::string& name, const auto& op) {
      computes(name + " " + op::layout_of(kind) + " " + std::to_string(experts) + " x (" + std::to_string(rows) +
                   " x " + std::to_string(columns) + " x " + std::to_string(depth) + ")",
               2.0 * static_cast<double>(experts * rows) * static_cast<double>(n * k), bench.time(a.least, op));
    };
    print("experts", [&] {
      d.gemm_grouped(kind, experts, experts * rows, columns, depth, View<const std::int32_t>(offsets), from, by, to,
                     sums_rows);
    });
    print("  one by one", [&] {
      const auto part = [&](auto view, std::int64_t e) {
        return view.slice(e * (view.count / experts), view.count / experts);
      };
      for (std::int64_t e = 0; e < experts; ++e)
        d.gemm(kind, sums_rows ? n : rows, sums_rows ? k : columns, sums_rows ? rows : depth, part(from, e),
               part(by, e), part(to, e), sums_rows);
    });
  };
  time(op::Kind::gemm_nt, x, weights, y);
  time(op::Kind::gemm_nn, y, weights, x);
  time(op::Kind::gemm_tn, y, x, gradients);
}

// Attention of documents in one call, the same by our own kernels, and a call for each. Of rates: the scores that the
// mask leaves.
void packed_attention(const Arguments& a) {
  if (a.lengths.empty()) throw Failure(ErrorKind::usage, "--only packed reads --lengths");
  const std::vector<std::int32_t> rows = packed_rows(a.lengths, 64, 8192);
  const device::DocumentRows documents{rows, rows};
  const auto measure = [&](auto&, const train::CudaPlatform& platform) {
    Bench bench(platform,
                {.pool_bytes = std::int64_t{8} << 30, .near_bytes = std::int64_t{8} << 20, .vocabulary_bits = 15});
    Bench::Device& d = bench.device();
    for (const auto& [heads, kv_heads, head_dim] :
         {std::tuple<std::int64_t, std::int64_t, std::int64_t>{16, 16, 128}, {16, 16, 64}, {32, 8, 128}}) {
      const auto shape_of = [&](std::int64_t tokens) { return fused_attention(1, tokens, heads, kv_heads, head_dim); };
      const device::AttentionShape all = shape_of(rows.back());
      train::detail::Walk memory(bench.buffer());
      const View<bfloat16> qkv = memory.next<bfloat16>(all.queries * all.q_stride);
      const View<bfloat16> d_qkv = memory.next<bfloat16>(qkv.count);
      const View<bfloat16> o = memory.next<bfloat16>(all.queries * all.out_stride);
      const View<bfloat16> d_o = memory.next<bfloat16>(o.count);
      const View<float> lse = memory.next<float>(all.queries * heads);
      const View<float> delta = memory.next<float>(lse.count);
      const View<std::byte> scratch = memory.next<std::byte>(1 << 20);
      for (const View<bfloat16> input : {qkv, d_o})
        d.write(input, [](View<bfloat16> to) {
          std::uint32_t bits = 1;
          for (std::int64_t i = 0; i < to.count; ++i) {
            bits = bits * 1664525U + 1013904223U;
            to[i] = bfloat16(static_cast<float>(bits >> 8) * 0x1p-23F - 1.0F);
          }
        });
      const auto attend = [&](bool backward, const device::AttentionShape& s, std::int64_t row,
                              const device::DocumentRows& which) {
        const auto from = [](auto view, std::int64_t first) { return view.slice(first, view.count - first); };
        const std::int64_t q = row * s.q_stride;
        const std::int64_t k = q + heads * head_dim;
        const std::int64_t v = k + kv_heads * head_dim;
        const std::int64_t out = row * s.out_stride;
        if (backward)
          d.attention_backward<bfloat16>(s, from(qkv, q), from(qkv, k), from(qkv, v), from(o, out),
                                         from(lse, row * heads), from(d_o, out), from(d_qkv, q), from(d_qkv, k),
                                         from(d_qkv, v), from(delta, row * heads), {}, which);
        else
          d.attention_forward<bfloat16>(s, from(qkv, q), from(qkv, k), from(qkv, v), from(o, out),
                                        from(lse, row * heads), {}, which);
      };
      const auto attend_ourselves = [&](bool backward) {
        namespace cuda = device::cuda;
        const bfloat16* const q = qkv.data;
        const bfloat16* const k = q + heads * head_dim;
        const bfloat16* const v = k + kv_heads * head_dim;
        bfloat16* const dk = d_qkv.data + (k - q);
        const cuda::DocumentTable table = cuda::write_documents(d.machine(), scratch, documents);
        if (backward)
          cuda::attention_backward<bfloat16>(d.machine(), scratch, all, q, k, v, o.data, lse.data, d_o.data, d_qkv.data,
                                             dk, dk + (v - k), delta.data, {}, table);
        else
          cuda::attention_forward<bfloat16>(d.machine(), all, q, k, v, o.data, lse.data, {}, table);
      };
      double scores = 0;
      for (std::size_t i = 0; i + 1 < rows.size(); ++i) scores += 0.5 * std::pow(rows[i + 1] - rows[i], 2);
      for (const std::string how : {"packed", "own kernels", "one by one"})
        for (const bool backward : {false, true}) {
          const double seconds = bench.time(a.least, [&] {
            if (how == "packed") return attend(backward, all, 0, documents);
            if (how == "own kernels") return attend_ourselves(backward);
            for (std::size_t i = 0; i + 1 < rows.size(); ++i)
              attend(backward, shape_of(rows[i + 1] - rows[i]), rows[i], {});
          });
          const double flops = (backward ? 10.0 : 4.0) * scores * static_cast<double>(heads * head_dim);
          std::printf("%zu documents, %d tokens, %2lld/%2lld heads of %3lld, %-11s %-8s %10.1f us %7.1f TF/s\n",
                      rows.size() - 1, rows.back(), static_cast<long long>(heads), static_cast<long long>(kv_heads),
                      static_cast<long long>(head_dim), how.c_str(), backward ? "backward" : "forward", seconds * 1e6,
                      flops / seconds * 1e-12);
          std::fflush(stdout);
        }
    }
    for (const std::string& line : d.machine().attention_refusals()) std::printf("# %s\n", line.c_str());
  };
  train::detail::on_one_gpu(1, 0, {}, train::with_platform(measure, !a.nondeterministic));
}

void operations(const Arguments& a) {
  const auto measure = [&](auto&, const train::CudaPlatform& platform) {
    Bench bench(platform,
                {.pool_bytes = std::int64_t{2} << 30, .near_bytes = std::int64_t{8} << 20, .vocabulary_bits = 15});
    bench.search(true);  // as training does
    std::printf("%-44s %12s %12s %8s\n", "operation, bf16", "microseconds", "rate", "of roof");
    const auto computes = [&](const std::string& name, double flops, double seconds) {
      std::printf("%-44s %12.1f %7.1f TF/s %7.1f%%\n", name.c_str(), seconds * 1e6, flops / seconds * 1e-12,
                  flops / seconds * 1e-10 / a.peak);
    };
    const std::int64_t tokens = 16384;
    const auto multiplies = [&](const op::Work& product) {
      computes((product.eight_bit ? "8-bit product " : "product ") + std::string(op::layout_of(product.kind)) + " " +
                   std::to_string(product.m) + " x " + std::to_string(product.n) + " x " + std::to_string(product.k) +
                   (product.writes_one_in == 1 ? " written" : ""),
               op::flops_of(product).count, bench.gemm<bfloat16>(product, a.least));
    };
    // With the rounding of their operands, against the roof of bf16.
    const bool has_8bit = device::cuda::has_8bit_products(device::cuda::describe_device(0));
    for (const bool eight_bit : {false, true})
      for (const std::int64_t hidden : {std::int64_t{768}, std::int64_t{1600}, std::int64_t{4096}}) {
        if (eight_bit && !has_8bit) continue;
        using Kind = op::Kind;
        const std::int64_t wide = 4 * hidden;
        multiplies({.kind = Kind::gemm_nt, .m = tokens, .n = wide, .k = hidden, .eight_bit = eight_bit});
        multiplies({.kind = Kind::gemm_nn, .m = tokens, .n = hidden, .k = wide, .eight_bit = eight_bit});
        for (const int writes : {0, 1})
          multiplies({.kind = Kind::gemm_tn,
                      .m = wide,
                      .n = hidden,
                      .k = tokens,
                      .eight_bit = eight_bit,
                      .writes_one_in = writes});
      }
    for (const std::int64_t hidden : {std::int64_t{768}, std::int64_t{1600}, std::int64_t{4096}})
      products_with_gelu(a, bench, tokens, hidden, computes);
    for (const std::int64_t rows : {1024, 128}) products_of_experts(a, bench, rows, computes);
    for (const auto& [length, head_dim, heads] :
         {std::tuple<std::int64_t, std::int64_t, std::int64_t>{1024, 64, 192}, {4096, 128, 64}, {8192, 128, 32}})
      for (const op::Kind pass : op::attentions) {
        const op::Work work{.kind = pass, .m = heads, .n = length, .k = length, .l = head_dim, .causal = true};
        computes("attention " + std::string(op::pass_of(pass)) + " " + std::to_string(length) + ", " +
                     std::to_string(heads) + " heads of " + std::to_string(head_dim),
                 op::flops_of(work).count, bench.attention<bfloat16>(work, a.least));
      }
    const std::int64_t copied = std::int64_t{1} << 28;
    const double copy =
        2.0 * static_cast<double>(copied) / bench.memory_bound<bfloat16>(op::Kind::copy, copied, 1, a.least);
    struct Moved {
      op::Kind kind;
      std::int64_t rows;
      std::int64_t columns;
      double bytes;  ///< of an element
    };
    // Bytes that each reads and writes at least, in bf16 with states in float. Of 16,384 tokens out of 32,768, 79 % are
    // different rows of the embedding's gradient, which are read and written.
    for (const Moved& moved : std::vector<Moved>{{op::Kind::copy, copied, 1, 2},
                                                 {op::Kind::fill, copied, 1, 1},
                                                 {op::Kind::add, 1 << 25, 1, 6},
                                                 {op::Kind::norm_forward, tokens, 1600, 4},
                                                 {op::Kind::add_norm_forward, tokens, 1600, 8},
                                                 {op::Kind::norm_backward, tokens, 1600, 8},
                                                 {op::Kind::norm_forward, tokens, 4096, 4},
                                                 {op::Kind::add_norm_forward, tokens, 4096, 8},
                                                 {op::Kind::norm_backward, tokens, 4096, 8},
                                                 {op::Kind::activation_forward, tokens, 4096, 4},
                                                 {op::Kind::activation_backward, tokens, 4096, 6},
                                                 {op::Kind::rotary, tokens, 4096, 4},
                                                 {op::Kind::bias_gradient, tokens, 4096, 2},
                                                 {op::Kind::embedding_forward, tokens, 4096, 4},
                                                 {op::Kind::embedding_backward, tokens, 4096, 8.3},
                                                 {op::Kind::softmax_statistics, 4096, 16384, 2},
                                                 {op::Kind::softmax_backward, 4096, 16384, 4},
                                                 {op::Kind::adamw, 1 << 26, 1, 30},
                                                 {op::Kind::adamw_bf16, 1 << 26, 1, 22},
                                                 {op::Kind::norm_squared, 1 << 26, 1, 4}}) {
      const double bytes = moved.bytes * static_cast<double>(moved.rows) * static_cast<double>(moved.columns);
      const double seconds = bench.memory_bound<bfloat16>(moved.kind, moved.rows, moved.columns, a.least);
      std::printf(
          "%-44s %12.1f %7.0f GB/s %7.1f%%\n",
          (std::string(name_of(moved.kind)) + " " + std::to_string(moved.rows) + " x " + std::to_string(moved.columns))
              .c_str(),
          seconds * 1e6, bytes / seconds * 1e-9, 100 * bytes / seconds / copy);
    }
    bench.search(false);
  };
  train::detail::on_one_gpu(1, 0, {}, train::with_platform(measure, !a.nondeterministic));
}

/// A step's training run: median seconds, and the bytes of its rank.
std::pair<double, double> measured(const Step& step, const Arguments& a, bool repeats) {
  const ModelSpec model = step.model();
  Plan plan;
  plan.model = step.preset;
  plan.cluster = "cuda";
  plan.global_batch = step.batch;
  plan.sequence_length = step.sequence;
  plan.microbatches = step.microbatches;
  plan.precision = a.fp8 ? Precision::fp8 : Precision::bf16;
  plan.stages = {{0, static_cast<int>(model.blocks.size()) - 1, 0, 1}};
  plan.layers.assign(model.blocks.size(), {.recompute = step.recompute});
  CheapTokens tokens(model.vocabulary());
  train::TrainOptions options;
  options.steps = a.steps;
  options.repeats = repeats;
  options.deterministic = !a.nondeterministic;
  options.initial = [](int, const ParameterTensor& tensor, std::int64_t index, View<float> values) {
    const float size = tensor.init == ParameterInit::normal ? static_cast<float>(tensor.deviation) : 0.0F;
    const float middle = tensor.init == ParameterInit::one ? 1.0F : 0.0F;
    for (std::int64_t i = 0; i < values.count; ++i) {  // as good as random, and quick
      const auto bits = static_cast<std::uint32_t>(index + i) * 2654435761U;
      values[i] = middle + size * (static_cast<float>(bits >> 8) * 0x1p-23F - 1.0F);
    }
  };
  options.learning_rate = {.peak = 3e-4, .floor = 3e-4, .warmup_steps = 0, .steps = a.steps};
  const auto report = train::train_on_gpu(plan, model, tokens, options);
  for (const std::string& remark : report.remarks) std::printf("# %s\n", remark.c_str());
  return {report.iteration_seconds, static_cast<double>(report.measured_memory[0].total().count)};
}

/// Of a step, in seconds.
struct Timed {
  double measured = 0, predicted = 0;
};

/// @param one_by_one_too  those compared with peers also operation by operation, not as one CUDA graph
std::vector<Timed> steps(const Arguments& a, const std::vector<Step>& all, bool one_by_one_too) {
  std::vector<Timed> out;
  std::optional<Cluster> profiled;
  if (!a.cluster.empty()) profiled = value_or_throw(load_cluster(a.cluster));
  std::printf("\n%-48s %10s %10s %10s %10s %12s %8s %8s\n", a.fp8 ? "training step, fp8" : "training step, bf16", "ms",
              "one by one", "floor", "predicted", "tokens/s", "GiB", "MFU");
  for (const Step& step : all) {
    const auto [seconds, bytes] = measured(step, a, true);
    const double one_by_one =
        one_by_one_too && out.size() < compared_steps().size() ? measured(step, a, false).first : std::nan("");
    double least = 0;
    double predicted = 0;
    for (const op::Work& work : work_of(step, Precision::bf16)) {
      least += floor_seconds(work, Precision::bf16, {.flops = a.peak * 1e12, .bandwidth = a.bandwidth * 1e9});
      if (profiled) predicted += cost::time_of(work, Precision::bf16, *profiled, 1).value;
    }
    std::printf("%-48s %10.2f %10.2f %10.2f %10.2f %12.0f %8.2f %7.1f%%\n", step.name().c_str(), seconds * 1e3,
                one_by_one * 1e3, least * 1e3, predicted * 1e3,
                static_cast<double>(step.batch * step.sequence) / seconds, bytes / (1 << 30),
                model_flops(step.model(), step.batch, step.sequence).count / seconds * 1e-10 / a.peak);
    std::fflush(stdout);
    out.push_back({seconds, predicted});
  }
  return out;
}

/// How much longer the setting with the shortest prediction takes than the fastest one.
void choices(const Arguments& a) {
  const std::vector<Timed> all = steps(a, steps_to_choose_from(), false);
  if (a.cluster.empty()) return;
  const auto chosen = std::ranges::min_element(all, {}, &Timed::predicted);
  const auto fastest = std::ranges::min_element(all, {}, &Timed::measured);
  std::printf("chosen by prediction: row %td, fastest: row %td; the chosen one takes %.1f %% longer\n",
              chosen - all.begin() + 1, fastest - all.begin() + 1, 100 * (chosen->measured / fastest->measured - 1));
}

/// Seconds of one execution alone, with operands that no cache holds.
double alone(Bench& bench, const op::Work& work, double least) {
  if (op::is_gemm(work.kind)) return bench.gemm<bfloat16>(work, least);
  if (op::is_attention(work.kind)) return bench.attention<bfloat16>(work, least);
  const op::Kind kind = bench.has_gelu_in_product<bfloat16>() ? work.kind : op::unfused(work.kind);
  const std::int64_t columns = op::has_rows(kind) ? work.n : 1;
  const std::int64_t rows = std::min<std::int64_t>(work.m, (std::int64_t{1} << 27) / columns);
  return bench.memory_bound<bfloat16>(kind, rows, columns, least) * static_cast<double>(work.m) /
         static_cast<double>(rows);
}

/// Every operation of a step by itself: where the time above the floor goes.
void parts(const Arguments& a) {
  const auto measure = [&](auto&, const train::CudaPlatform& platform) {
    Bench bench(platform,
                {.pool_bytes = std::int64_t{4} << 30, .near_bytes = std::int64_t{8} << 20, .vocabulary_bits = 15});
    bench.search(true);
    for (const Step& step : compared_steps()) {
      struct Part {
        std::string name;
        int times;
        double least;
        double alone;
      };
      std::vector<Part> all;
      Part sum{"all", 0, 0, 0};
      for (const op::Work& work : work_of(step, Precision::bf16)) {
        const Part part{name_of_work(work), work.times,
                        floor_seconds(work, Precision::bf16, {.flops = a.peak * 1e12, .bandwidth = a.bandwidth * 1e9}),
                        work.times * alone(bench, work, a.least)};
        sum.times += part.times;
        sum.least += part.least;
        sum.alone += part.alone;
        all.push_back(part);
      }
      std::sort(all.begin(), all.end(),
                [](const Part& x, const Part& y) { return x.alone - x.least > y.alone - y.least; });
      all.push_back(sum);
      std::printf("\n%-52s %6s %12s %12s %12s\n", (step.name() + ", microseconds").c_str(), "times", "floor", "alone",
                  "above");
      for (const Part& part : all)
        std::printf("%-52s %6d %12.0f %12.0f %12.0f\n", part.name.c_str(), part.times, part.least * 1e6,
                    part.alone * 1e6, (part.alone - part.least) * 1e6);
    }
  };
  train::detail::on_one_gpu(1, 0, {}, train::with_platform(measure, !a.nondeterministic));
}

int benchmark(const Arguments& a) {
  if (const auto count = device::cuda::device_count(); !count) {
    std::printf("skipped: %s\n", count.error().message.c_str());
    return 77;
  }
  std::printf("%s\n", device::cuda::describe_device(0).name.c_str());
  const auto wants = [&a](const char* part) { return std::find(a.only.begin(), a.only.end(), part) != a.only.end(); };
  if (wants("operations")) operations(a);
  if (wants("steps")) steps(a, predicted_steps(), true);
  if (wants("compared")) steps(a, compared_steps(), true);
  if (wants("experts")) steps(a, steps_with_experts(), false);
  if (wants("choices")) choices(a);
  if (wants("packed")) packed_attention(a);
  if (wants("parts")) parts(a);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("benchmark_gpu", "Operations and training steps on one GPU.", argc, argv, options, benchmark);
}
