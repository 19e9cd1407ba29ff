// Matrix products through cuBLASLt, which computes column_major() of them by the algorithm that was searched and kept
// (algorithm_cache.hpp), else by its own first choice. That choice is asked for once per product and alignment, and its
// absence is kept too. All sums are float (never TF32); the same algorithms give the same bits.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <galvatron/device/cuda/algorithm_cache.hpp>
#include <galvatron/device/cuda/stream.hpp>
#include <galvatron/device/product.hpp>

namespace galvatron::device::cuda {

/// Throws DeviceFailure with what was asked for and cuBLASLt's own words, when a call did not succeed.
inline void check(cublasStatus_t status, const std::string& what,
                  std::source_location where = std::source_location::current()) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceFailure(with_place("cuBLASLt: " + what + ": " + cublasLtGetStatusName(status), where), where);
}

constexpr cudaDataType_t cuda_type(Precision p, bool gradient = false) {
  if (p == Precision::fp8) return gradient ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3;
  return p == Precision::fp32 ? CUDA_R_32F : CUDA_R_16BF;
}

using MatrixLayout = Owner<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

inline MatrixLayout layout(const ColumnMajorMatrix& m, bool gradient = false) {
  MatrixLayout out;
  check(cublasLtMatrixLayoutCreate(out.out(), cuda_type(m.precision, gradient), static_cast<std::uint64_t>(m.rows),
                                   static_cast<std::uint64_t>(m.columns), m.stride),
        "layout of a matrix");
  return out;
}

constexpr cublasLtEpilogue_t cublas_epilogue(const Product& p, Epilogue epilogue) {
  if (epilogue == Epilogue::gelu_gradient) return CUBLASLT_EPILOGUE_DGELU;
  if (epilogue == Epilogue::gelu) return p.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  return p.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/// The power of two that all addresses are multiples of, at most 16.
inline std::uint32_t alignment_of(auto... addresses) {
  return 1U << std::min(std::countr_zero((reinterpret_cast<std::uintptr_t>(addresses) | ...)), 4);
}

/// cuBLASLt's objects for column_major() of a product; making them needs no GPU.
struct ProductObjects {
  Owner<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> description;
  MatrixLayout x, y, d;

  explicit ProductObjects(const Product& product, Epilogue epilogue = Epilogue::none) {
    const ColumnMajorProduct p = column_major(product);
    x = layout(p.x);
    y = layout(p.y, product.gradient);
    d = layout(p.d);
    check(cublasLtMatmulDescCreate(description.out(), CUBLAS_COMPUTE_32F, CUDA_R_32F), "description of a product");
    const auto operation = [](bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
    set(CUBLASLT_MATMUL_DESC_TRANSA, operation(p.x_transposed));
    set(CUBLASLT_MATMUL_DESC_TRANSB, operation(p.y_transposed));
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, cublas_epilogue(product, epilogue));
    if (product.bias)
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(cuda_type(element_format(product.operands))));
    if (epilogue != Epilogue::none) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, product.n);
    // Faster sums of fewer bits are enough for activations, not for gradients.
    if (product.operands == Precision::fp8)
      set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<std::int8_t>(product.gradient ? 0 : 1));
  }

  /// What the 8-bit operands are multiplied with, in memory of the GPU.
  void set_scales(const float* of_x, const float* of_y) {
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of_x);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of_y);
  }

  void set(cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    check(cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof value), "description");
  }
};

/// True when cuBLASLt adds the bias: it has the type of the result.
constexpr bool adds_bias(const Product& p) { return element_format(p.operands) == p.result; }

/// The matrix products of one GPU, in one stream.
class Products {
 public:
  /// Algorithms that a search compares, and how often it runs each.
  static constexpr int most_proposals = 8;
  static constexpr int most_runs = 5;
  /// Seconds of the GPU: what the runs of an algorithm should take, and the search after which no other begins.
  static constexpr double enough = 0.010;
  static constexpr double long_search = 0.050;

  /// From now on algorithms come from `cache`, where it has them.
  void read(AlgorithmCache& cache) { algorithms_ = &cache; }
  /// From now on, and until the call with false, products that the cache does not have are done many times when they
  /// come first: their results are worth nothing, but the cache has the fastest algorithm then.
  void search(bool searches) { searches_ = searches && algorithms_ != nullptr; }

  /// The workspace starts on a 256-byte boundary.
  Products(const Stream& stream, View<std::byte> workspace) : stream_(stream), workspace_(workspace) {
    check(cublasLtCreate(handle_.out()), "creation");
  }

  /// c = a * b or c += a * b, without a bias; every extent at least 1. unscale, of fp8 only: see Buffers8bit.
  void multiply(const Product& product, const void* a, const void* b, void* c, const float* unscale = nullptr) {
    if (!try_multiply(product, Epilogue::none, a, b, nullptr, nullptr, c, unscale))
      throw DeviceFailure("cuBLASLt has no algorithm for the " + to_string(product) + " on this GPU with operands on " +
                          std::to_string(alignment_of(a, b, c)) + "-byte boundaries and a workspace of " +
                          std::to_string(workspace_.count) + " bytes: use " +
                          (product.operands == Precision::fp8 ? "bf16" : "fp32 or sizes that are multiples of 8"));
  }
  /// The same with a bias, for which adds_bias(product), or with an epilogue, for which takes_epilogue(product, u).
  /// False when there is no algorithm: nothing was done.
  bool try_multiply(const Product& product, Epilogue epilogue, const void* a, const void* b, const void* bias, void* u,
                    void* c, const float* unscale = nullptr) {
    const Key key{product, epilogue, alignment_of(a, b, bias, u, c)};
    auto found = cache_.find(key);
    if (found == cache_.end()) found = cache_.emplace(key, prepare(key)).first;
    if (!found->second) return false;
    Prepared& p = *found->second;
    if (product.bias) p.objects.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    if (epilogue != Epilogue::none) p.objects.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, u);
    if (product.operands == Precision::fp8) p.objects.set_scales(unscale + Buffers8bit::of_b, unscale);
    const auto run = [&](const cublasLtMatmulAlgo_t& algorithm) {
      const float alpha = product.scale;
      const float beta = product.accumulate ? 1 : 0;
      return cublasLtMatmul(handle_.get(), p.objects.description.get(), &alpha, b, p.objects.x.get(), a,
                            p.objects.y.get(), &beta, c, p.objects.d.get(), c, p.objects.d.get(), &algorithm,
                            workspace_.data, static_cast<std::size_t>(workspace_.count), stream_.get());
    };
    if (!p.proposals.empty()) {
      p.algorithm = fastest(stream_, p.proposals, run);
      algorithms_->keep(name_of(key), std::bit_cast<AlgorithmCache::Algorithm>(p.algorithm));
      p.proposals.clear();
    }
    const cublasStatus_t status = run(p.algorithm);
    if (refuses(key, status))
      found->second.reset();
    else if (status != CUBLAS_STATUS_SUCCESS)
      check(status, to_string(product));
    return found->second.has_value();
  }

 private:
  struct Key {
    Product product;
    Epilogue epilogue;
    std::uint32_t alignment;  ///< of all operands, in bytes, at most 16
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Prepared {
    ProductObjects objects;
    cublasLtMatmulAlgo_t algorithm;
    std::vector<cublasLtMatmulAlgo_t> proposals{};  ///< to be compared first
  };
  static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(AlgorithmCache::Algorithm));

  // By the clock of the GPU; those that cannot be run do not count.
  static cublasLtMatmulAlgo_t fastest(const Stream& stream, const std::vector<cublasLtMatmulAlgo_t>& proposals,
                                      const auto& run) {
    StreamTimer timer;
    const auto seconds = [&](const cublasLtMatmulAlgo_t& algorithm, int times) {
      bool fine = true;
      const auto once = [&] { fine = fine && run(algorithm) == CUBLAS_STATUS_SUCCESS; };
      const double all = timer.seconds(stream, once, [&] {
        for (int i = 0; i < times; ++i) once();
      });
      return fine ? all / times : std::numeric_limits<double>::infinity();
    };
    cublasLtMatmulAlgo_t best = proposals.front();
    double least = std::numeric_limits<double>::infinity();
    double spent = 0;
    for (const cublasLtMatmulAlgo_t& algorithm : proposals) {
      if (spent > long_search) break;
      double each = seconds(algorithm, 1);
      if (each == std::numeric_limits<double>::infinity()) continue;
      spent += 2 * each;
      if (const int runs = std::min(most_runs, static_cast<int>(enough / each)); runs > 1) {
        each = seconds(algorithm, runs);
        spent += (1 + runs) * each;
      }
      if (each >= least) continue;
      least = each;
      best = algorithm;
    }
    return best;
  }

  // What cuBLASLt answers to a bias or an epilogue that it does not have for a product.
  static bool refuses(const Key& key, cublasStatus_t status) {
    return (key.product.bias || key.epilogue != Epilogue::none) &&
           (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE);
  }

  // Empty when there is no algorithm.
  std::optional<Prepared> prepare(const Key& key) {
    const Product& product = key.product;
    const std::uint32_t alignment = key.alignment;
    ProductObjects objects(product, key.epilogue);
    Owner<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
    check(cublasLtMatmulPreferenceCreate(preference.out()), "preference");
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value), "preference");
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace_.count));
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      set(attribute, alignment);
    // The choice reads the alignment off this address.
    const std::byte* address = workspace_.data + alignment;
    if (product.bias) objects.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, address);
    if (key.epilogue != Epilogue::none) objects.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, address);
    if (product.operands == Precision::fp8) {
      const auto* scales = reinterpret_cast<const float*>(workspace_.data);
      objects.set_scales(scales, scales);
    }
    if (const auto known = kept(key, objects)) return Prepared{std::move(objects), *known};
    std::array<cublasLtMatmulHeuristicResult_t, most_proposals> choices{};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle_.get(), objects.description.get(), objects.x.get(), objects.y.get(), objects.d.get(), objects.d.get(),
        preference.get(), searches_ ? most_proposals : 1, choices.data(), &count);
    const bool none = status == CUBLAS_STATUS_SUCCESS && count == 0;
    const cublasLtMatmulHeuristicResult_t& first = choices.front();
    if (none || status == CUBLAS_STATUS_NOT_SUPPORTED || refuses(key, status) || refuses(key, first.state)) return {};
    check(status, to_string(product));
    check(first.state, to_string(product));
    Prepared out{std::move(objects), first.algo};
    if (!searches_) return out;
    for (int i = 0; i < count; ++i)
      if (const auto& choice = choices[static_cast<std::size_t>(i)]; choice.state == CUBLAS_STATUS_SUCCESS)
        out.proposals.push_back(choice.algo);
    return out;
  }

  // What the cache has, if this GPU and workspace can still do it.
  std::optional<cublasLtMatmulAlgo_t> kept(const Key& key, const ProductObjects& objects) {
    const AlgorithmCache::Algorithm* words = algorithms_ == nullptr ? nullptr : algorithms_->find(name_of(key));
    if (words == nullptr) return {};
    const auto algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(*words);
    cublasLtMatmulHeuristicResult_t answer{};
    const cublasStatus_t status =
        cublasLtMatmulAlgoCheck(handle_.get(), objects.description.get(), objects.x.get(), objects.y.get(),
                                objects.d.get(), objects.d.get(), &algorithm, &answer);
    if (status != CUBLAS_STATUS_SUCCESS || answer.workspaceSize > static_cast<std::size_t>(workspace_.count)) return {};
    return algorithm;
  }

  static std::string name_of(const Key& key) {
    const Product& p = key.product;
    return to_string(p) + " to " + galvatron::name_of(p.result) + (p.accumulate ? ", added" : "") +
           (p.gradient ? ", of a gradient" : "") + (p.bias ? ", bias" : "") + ", epilogue " +
           std::to_string(static_cast<int>(key.epilogue)) + ", on " + std::to_string(key.alignment) + " bytes" +
           (p.strides == RowStrides{} ? ""
                                      : ", rows " + std::to_string(p.a_stride()) + ", " + std::to_string(p.b_stride()) +
                                            " and " + std::to_string(p.c_stride()) + " apart");
  }

  const Stream& stream_;
  View<std::byte> workspace_;
  Owner<cublasLtHandle_t, cublasLtDestroy> handle_;
  AlgorithmCache* algorithms_ = nullptr;
  bool searches_ = false;
  std::map<Key, std::optional<Prepared>> cache_;
};

}  // namespace galvatron::device::cuda
