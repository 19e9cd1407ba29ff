// Matrix products through cuBLASLt.
//
// What is asked for is column_major.hpp; the algorithm is cuBLASLt's first choice, asked for once per product and
// alignment, also the answer that there is none. Sums are float (never TF32), partial sums too, so that the same
// program gives the same bits.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <source_location>
#include <string>
#include <unordered_map>
#include <utility>

#include <cublasLt.h>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/cuda/check.hpp>
#include <galvatron/device/cuda/column_major.hpp>
#include <galvatron/device/cuda/stream.hpp>
#include <galvatron/device/owner.hpp>
#include <galvatron/device/product.hpp>

namespace galvatron::device::cuda {

/// Throws DeviceFailure with what was asked for and cuBLASLt's own words, when a call did not succeed.
inline void check(cublasStatus_t status, const std::string& what,
                  std::source_location where = std::source_location::current()) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceFailure(detail::with_place("cuBLASLt: " + what + ": " + cublasLtGetStatusName(status), where), where);
}

namespace detail {

constexpr cudaDataType_t cuda_type(Precision p) { return p == Precision::fp32 ? CUDA_R_32F : CUDA_R_16BF; }

using ProductsHandle = Owner<cublasLtHandle_t, cublasLtDestroy>;
using MatrixLayout = Owner<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using ProductDescription = Owner<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using ProductPreference = Owner<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

inline MatrixLayout layout(const ColumnMajorMatrix& m) {
  MatrixLayout out;
  check(cublasLtMatrixLayoutCreate(out.out(), cuda_type(m.precision), static_cast<std::uint64_t>(m.rows),
                                   static_cast<std::uint64_t>(m.columns), m.leading),
        "layout of a matrix");
  return out;
}

constexpr cublasLtEpilogue_t epilogue(const ColumnMajorProduct& p) {
  if (p.epilogue == Epilogue::gelu_gradient) return CUBLASLT_EPILOGUE_DGELU;
  if (p.epilogue == Epilogue::gelu) return p.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  return p.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/// The power of two that all addresses are multiples of, at most 16.
inline std::uint32_t alignment_of(auto... addresses) {
  return 1U << std::min(std::countr_zero((reinterpret_cast<std::uintptr_t>(addresses) | ...)), 4);
}

}  // namespace detail

/// cuBLASLt's objects for a product; making them needs no GPU.
struct ProductObjects {
  detail::ProductDescription description;
  detail::MatrixLayout x;
  detail::MatrixLayout y;
  detail::MatrixLayout d;
  float beta = 0;

  explicit ProductObjects(const ColumnMajorProduct& p)
      : x(detail::layout(p.x)), y(detail::layout(p.y)), d(detail::layout(p.d)), beta(p.beta) {
    check(cublasLtMatmulDescCreate(description.out(), CUBLAS_COMPUTE_32F, CUDA_R_32F), "description of a product");
    const auto operation = [](bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
    set(CUBLASLT_MATMUL_DESC_TRANSA, operation(p.x_transposed));
    set(CUBLASLT_MATMUL_DESC_TRANSB, operation(p.y_transposed));
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, detail::epilogue(p));
    if (p.bias) set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(detail::cuda_type(p.x.precision)));
    if (p.epilogue != Epilogue::none) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.d.leading);
  }

  template <class V>
  void set(cublasLtMatmulDescAttributes_t attribute, const V& value) {
    check(cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof value), "description");
  }
};

/// True when cuBLASLt adds the bias: it has the type of the result.
constexpr bool adds_bias(const Product& p) { return p.operands == p.result; }

/// The matrix products of one GPU, in one stream.
class Products {
 public:
  /// The workspace starts on a 256-byte boundary.
  Products(const Stream& stream, View<std::byte> workspace) : stream_(stream), workspace_(workspace) {
    check(cublasLtCreate(handle_.out()), "creation");
  }

  /// c = a * b [+ bias] or c += a * b; every extent at least 1, and a bias only where adds_bias(product).
  void multiply(const Product& product, const void* a, const void* b, const void* bias, void* c) {
    const std::uint32_t alignment = detail::alignment_of(a, b, bias, c);
    if (!execute({product, Epilogue::none, alignment}, a, b, bias, nullptr, c))
      throw DeviceFailure("cuBLASLt has no algorithm for the " + to_string(product) + " on this GPU with operands on " +
                          std::to_string(alignment) + "-byte boundaries and a workspace of " +
                          std::to_string(workspace_.count) + " bytes: use fp32 or sizes that are multiples of 8");
  }
  /// The same with an epilogue, for which takes_epilogue(product, u). False when there is no algorithm: nothing was
  /// done.
  bool try_multiply(const Product& product, Epilogue epilogue, const void* a, const void* b, const void* bias, void* u,
                    void* c) {
    return execute({product, epilogue, detail::alignment_of(a, b, bias, u, c)}, a, b, bias, u, c);
  }

 private:
  struct Key {
    Product product;
    Epilogue epilogue;
    std::uint32_t alignment;  ///< of all operands, in bytes, at most 16
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const {
      return (Product::Hash{}(key.product) * 31 + key.alignment) * 31 + static_cast<std::size_t>(key.epilogue);
    }
  };
  struct Prepared {
    ProductObjects objects;
    cublasLtMatmulAlgo_t algorithm;
  };

  bool execute(const Key& key, const void* a, const void* b, const void* bias, void* u, void* c) {
    auto found = cache_.find(key);
    if (found == cache_.end()) found = cache_.emplace(key, prepare(key)).first;
    if (!found->second) return false;
    Prepared& p = *found->second;
    if (key.product.bias) p.objects.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    if (key.epilogue != Epilogue::none) p.objects.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, u);
    const float alpha = 1;
    const cublasStatus_t status =
        cublasLtMatmul(handle_.get(), p.objects.description.get(), &alpha, b, p.objects.x.get(), a, p.objects.y.get(),
                       &p.objects.beta, c, p.objects.d.get(), c, p.objects.d.get(), &p.algorithm, workspace_.data,
                       static_cast<std::size_t>(workspace_.count), stream_.get());
    if (refuses(key, status))
      found->second.reset();
    else if (status != CUBLAS_STATUS_SUCCESS)
      check(status, to_string(key.product));
    return found->second.has_value();
  }

  // What cuBLASLt answers to an epilogue that it does not have for a product.
  static bool refuses(const Key& key, cublasStatus_t status) {
    return key.epilogue != Epilogue::none &&
           (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE);
  }

  // Empty when there is no algorithm.
  std::optional<Prepared> prepare(const Key& key) {
    const Product& product = key.product;
    const std::uint32_t alignment = key.alignment;
    ProductObjects objects(column_major(product, key.epilogue));
    detail::ProductPreference preference;
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
    cublasLtMatmulHeuristicResult_t choice{};
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_.get(), objects.description.get(), objects.x.get(), objects.y.get(),
                                       objects.d.get(), objects.d.get(), preference.get(), 1, &choice, &count);
    const bool none = status == CUBLAS_STATUS_SUCCESS && count == 0;
    if (none || status == CUBLAS_STATUS_NOT_SUPPORTED || refuses(key, status) || refuses(key, choice.state)) return {};
    check(status, to_string(product));
    check(choice.state, to_string(product));
    return Prepared{std::move(objects), choice.algo};
  }

  const Stream& stream_;
  View<std::byte> workspace_;
  detail::ProductsHandle handle_;
  std::unordered_map<Key, std::optional<Prepared>, Hash> cache_;
};

}  // namespace galvatron::device::cuda
