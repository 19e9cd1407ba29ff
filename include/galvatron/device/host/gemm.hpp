// Matrix products through oneDNN (2 and 3, its C interface: the C++ one costs every unit a second of compilation), and
// an emulation of those of 8-bit operands, for processors have none.
//
// A primitive is made once per shape and kept with its memory objects; a call sets pointers and executes. The
// library's scratchpad is memory of the caller's; a product that would need more is cut into bands of rows, and one
// whose b the library would read slowly where it lies into bands of columns, which are copied there. Experts
// have other numbers of rows every time: one primitive is made for all of them, with a scratchpad of the library's own.
//
// 8-bit operands are rounded as a GPU rounds them. Tiles of their codes become floats, which are multiplied and summed
// as floats. An element of the result is the same sum for any number of threads.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <dnnl.h>

#include <galvatron/device/host/attention.hpp>
#include <galvatron/device/host/held_signals.hpp>
#include <galvatron/device/kernels/float8.hpp>
#include <galvatron/device/owner.hpp>
#include <galvatron/device/product.hpp>

namespace galvatron::device::host {

static_assert(DNNL_VERSION_MAJOR == 2 || DNNL_VERSION_MAJOR == 3,
              "galvatron: the host device is written for oneDNN 2 (Debian 12: libdnnl-dev) and 3 (Debian 13)");

constexpr dnnl_data_type_t data_type(Precision p) { return p == Precision::fp32 ? dnnl_f32 : dnnl_bf16; }

inline void check(dnnl_status_t status, const char* what) {
  if (status != dnnl_success)
    throw DeviceFailure(std::string("oneDNN ") + what + " failed with status " + std::to_string(status));
}

using Engine = Owner<dnnl_engine_t, dnnl_engine_destroy>;
using Description = Owner<dnnl_primitive_desc_t, dnnl_primitive_desc_destroy>;

// ---- what differs between the versions of oneDNN

#if DNNL_VERSION_MAJOR == 2

/// The description of a matrix or of scratch memory.
class MemoryDescription {
 public:
  MemoryDescription(const dnnl_dims_t& extents, const dnnl_dims_t& strides, dnnl_data_type_t type) {
    check(dnnl_memory_desc_init_by_strides(&value_, 2, extents, type, strides), "memory description");
  }
  [[nodiscard]] const dnnl_memory_desc_t* get() const { return &value_; }

 private:
  dnnl_memory_desc_t value_{};
};

inline dnnl_status_t describe_product(const dnnl_memory_desc_t* a, const dnnl_memory_desc_t* b,
                                      const dnnl_memory_desc_t* bias, const dnnl_memory_desc_t* c,
                                      dnnl_primitive_attr_t attributes, dnnl_engine_t engine,
                                      dnnl_primitive_desc_t* out) {
  dnnl_matmul_desc_t desc;
  if (const auto status = dnnl_matmul_desc_init(&desc, a, b, bias, c); status != dnnl_success) return status;
  return dnnl_primitive_desc_create(out, &desc, attributes, engine, nullptr);
}
/// What a product is multiplied with is a part of it here.
constexpr int scale_argument = 0;
inline dnnl_status_t set_scale(dnnl_primitive_attr_t attributes, float scale) {
  return dnnl_primitive_attr_set_output_scales(attributes, 1, 0, &scale);
}
inline dnnl_status_t append_sum(dnnl_post_ops_t after) { return dnnl_post_ops_append_sum(after, 1.0F); }

#else

/// The same.
class MemoryDescription {
 public:
  MemoryDescription(const dnnl_dims_t& extents, const dnnl_dims_t& strides, dnnl_data_type_t type) {
    // Of one row or column with elements a stride apart, oneDNN 3.7 forgets the stride where that between its rows or
    // columns, of which there is one, is 1. With another one it takes plain loops.
    dnnl_dims_t own{strides[0], strides[1]};
    for (const int i : {0, 1})
      if (extents[i] == 1 && strides[1 - i] != 1) own[i] = extents[1 - i] * strides[1 - i];
    check(dnnl_memory_desc_create_with_strides(value_.out(), 2, extents, type, own), "memory description");
  }
  [[nodiscard]] const_dnnl_memory_desc_t get() const { return value_.get(); }

 private:
  Owner<dnnl_memory_desc_t, dnnl_memory_desc_destroy> value_;
};

inline dnnl_status_t describe_product(const_dnnl_memory_desc_t a, const_dnnl_memory_desc_t b,
                                      const_dnnl_memory_desc_t bias, const_dnnl_memory_desc_t c,
                                      dnnl_primitive_attr_t attributes, dnnl_engine_t engine,
                                      dnnl_primitive_desc_t* out) {
  return dnnl_matmul_primitive_desc_create(out, engine, a, b, bias, c, attributes);
}
/// What a product is multiplied with is an argument here.
constexpr int scale_argument = DNNL_ARG_ATTR_SCALES | DNNL_ARG_WEIGHTS;
inline dnnl_status_t set_scale(dnnl_primitive_attr_t attributes, float) {
  return dnnl_primitive_attr_set_scales_mask(attributes, DNNL_ARG_WEIGHTS, 0);
}
inline dnnl_status_t append_sum(dnnl_post_ops_t after) {
  return dnnl_post_ops_append_sum(after, 1.0F, 0, dnnl_data_type_undef);
}

#endif

// ---- products

inline MemoryDescription matrix(std::int64_t rows, std::int64_t columns, std::int64_t row_stride,
                                std::int64_t column_stride, Precision p) {
  return {{rows, columns}, {row_stride, column_stride}, data_type(p)};
}

/// The descriptions of a, b, bias and c of `rows` rows of a product.
struct Operands {
  MemoryDescription a, b, bias, c;

  Operands(const Product& p, std::int64_t rows)
      : a(p.kind == op::Kind::gemm_tn ? matrix(rows, p.k, 1, p.a_stride(), p.operands)
                                      : matrix(rows, p.k, p.a_stride(), 1, p.operands)),
        b(p.kind == op::Kind::gemm_nt ? matrix(p.k, p.n, 1, p.b_stride(), p.operands)
                                      : matrix(p.k, p.n, p.b_stride(), 1, p.operands)),
        bias(matrix(1, p.n, p.n, 1, p.operands)),
        c(matrix(rows, p.n, p.c_stride(), 1, p.result)) {}
};

/// The implementation that oneDNN chooses; dnnl_unimplemented when it has none on this processor.
inline dnnl_status_t describe(const Product& p, const Operands& operands, dnnl_engine_t engine, Description& out) {
  Owner<dnnl_primitive_attr_t, dnnl_primitive_attr_destroy> attributes;
  Owner<dnnl_post_ops_t, dnnl_post_ops_destroy> after;
  check(dnnl_primitive_attr_create(attributes.out()), "attributes");
  check(dnnl_primitive_attr_set_scratchpad_mode(attributes.get(), dnnl_scratchpad_mode_user), "scratchpad mode");
  if (p.scale != 1) check(set_scale(attributes.get(), p.scale), "scale");
  if (p.accumulate) {
    check(dnnl_post_ops_create(after.out()), "post-ops");
    check(append_sum(after.get()), "sum post-op");
    check(dnnl_primitive_attr_set_post_ops(attributes.get(), after.get()), "post-ops");
  }
  return describe_product(operands.a.get(), operands.b.get(), p.bias ? operands.bias.get() : nullptr, operands.c.get(),
                          attributes.get(), engine, out.out());
}

class Kernel {
 public:
  Kernel(const Product& product, const Operands& operands, const Description& description, dnnl_engine_t engine) {
    check(dnnl_primitive_create(primitive_.out(), description.get()), "primitive");
    const auto* scratch = dnnl_primitive_desc_query_md(description.get(), dnnl_query_scratchpad_md, 0);
    const std::array descs{operands.a.get(), operands.b.get(), operands.c.get(), scratch, operands.bias.get()};
    constexpr std::array<int, 5> names{DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD,
                                       DNNL_ARG_BIAS};
    for (std::size_t i = 0; i < (product.bias ? 5 : 4); ++i) add(names[i], descs[i], engine, DNNL_MEMORY_NONE);
    if (scale_argument != 0 && product.scale != 1) {
      *scale_ = product.scale;
      add(scale_argument, MemoryDescription({1, 1}, {1, 1}, dnnl_f32).get(), engine, scale_.get());
    }
  }
  /// @param bias  ignored by a product without one
  void execute(dnnl_stream_t stream, const void* a, const void* b, const void* bias, void* c, void* scratch) {
    const std::array<void*, 5> data{const_cast<void*>(a), const_cast<void*>(b), c, scratch, const_cast<void*>(bias)};
    for (std::size_t i = 0; i < data.size() && i < memories_.size(); ++i)
      if (arguments_[i].arg != scale_argument)
        check(dnnl_memory_set_data_handle(memories_[i].get(), data[i]), "data handle");
    check(dnnl_primitive_execute(primitive_.get(), stream, static_cast<int>(arguments_.size()), arguments_.data()),
          "execution");
  }

 private:
  template <class Memory>
  void add(int name, const Memory& description, dnnl_engine_t engine, void* data) {
    check(dnnl_memory_create(memories_.emplace_back().out(), description, engine, data), "memory");
    arguments_.push_back({name, memories_.back().get()});
  }

  Owner<dnnl_primitive_t, dnnl_primitive_destroy> primitive_;
  std::vector<Owner<dnnl_memory_t, dnnl_memory_destroy>> memories_;
  std::vector<dnnl_exec_arg_t> arguments_;
  std::unique_ptr<float> scale_ = std::make_unique<float>(1.0F);
};

class Products {
 public:
  explicit Products(View<std::byte> scratch) : scratch_(scratch) {
    check(dnnl_engine_create(engine_.out(), dnnl_cpu, 0), "engine");
    check(dnnl_stream_create(stream_.out(), engine_.get(), dnnl_stream_default_flags), "stream");
  }

  /// True when oneDNN multiplies matrices of that format on this processor.
  static bool supports(Precision precision) {
    if (precision == Precision::fp32) return true;
    static const bool supported = [] {
      Engine engine;
      Description description;
      const Product p{.operands = Precision::bf16, .result = Precision::bf16, .m = 64, .n = 64, .k = 64};
      return dnnl_engine_create(engine.out(), dnnl_cpu, 0) == dnnl_success &&
             describe(p, Operands(p, p.m), engine.get(), description) == dnnl_success;
    }();
    return supported;
  }

  /// Executes with as many threads as the calling thread's OpenMP setting says.
  void multiply(const Product& product, const void* a, const void* b, const void* bias, void* c) {
    if (product.k > longest_depth && product.kind != op::Kind::gemm_tn && product.operands == Precision::fp32)
      return multiply_in_parts(product, a, b, bias, c);
    if (const std::int64_t columns = packed_columns(product); columns > 0)
      return multiply_packed(product, columns, static_cast<const float*>(a), static_cast<const float*>(b),
                             static_cast<const float*>(bias), static_cast<std::byte*>(c));
    execute(product, scratch_, a, b, bias, c);
  }

  /// The same for a product without a bias whose rows (m, of tn k) are other ones every time: in runs of few different
  /// lengths, whose kernels are made once and kept.
  void multiply_rows(Product product, const void* a, const void* b, void* c) {
    const bool sums = product.kind == op::Kind::gemm_tn;
    const std::int64_t e = element_bytes(product.operands);
    const std::int64_t a_step = (sums ? product.m : product.k) * e;
    const std::int64_t b_step = sums ? product.n * e : 0;
    const std::int64_t c_step = sums ? 0 : product.n * element_bytes(product.result);
    std::int64_t& run = sums ? product.k : product.m;
    const auto* from_a = static_cast<const std::byte*>(a);
    const auto* from_b = static_cast<const std::byte*>(b);
    auto* to = static_cast<std::byte*>(c);
    for (std::int64_t rows = run; rows > 0; rows -= run) {
      run = run_of(rows);
      multiply(product, from_a, from_b, nullptr, to);
      product.accumulate |= sums;
      from_a += run * a_step;
      from_b += run * b_step;
      to += run * c_step;
    }
  }

  /// The rows of a band of that product; `product.m` when it is not cut.
  std::int64_t band_rows(const Product& product) { return bands_of(product, scratch_.count).rows; }

 private:
  /// oneDNN 2.6 multiplies floats half as fast where each row of an operand is much longer than this: 109 instead of
  /// 214 GFLOP/s with k = 50,304 on two threads of an EPYC.
  static constexpr std::int64_t longest_depth = 12'288;

  /// A product, of whose a each row is long, as a sum of products whose depths are at most longest_depth.
  void multiply_in_parts(const Product& product, const void* a, const void* b, const void* bias, void* c) {
    const std::int64_t parts = divide_up(product.k, longest_depth);
    const std::int64_t depth = round_up(divide_up(product.k, parts), 16);
    const std::int64_t e = element_bytes(product.operands);
    const std::int64_t b_step = (product.kind == op::Kind::gemm_nt ? 1 : product.b_stride()) * e;
    Product part = product;
    part.strides = {.a = product.a_stride(), .b = product.b_stride(), .c = product.c_stride()};
    for (std::int64_t first = 0; first < product.k; first += depth) {
      part.k = std::min(depth, product.k - first);
      multiply(part, static_cast<const std::byte*>(a) + first * e, static_cast<const std::byte*>(b) + first * b_step,
               bias, c);
      part.accumulate = true;
      part.bias = false;
      bias = nullptr;
    }
  }

  /// Floats from row to row of packed columns: an odd number of cache lines, so that rows begin in different sets.
  static constexpr std::int64_t packed_stride(std::int64_t columns) { return (divide_up(columns, 16) | 1) * 16; }

  /// The columns of b that multiply_packed() copies at a time; 0: oneDNN multiplies b where it lies.
  ///
  /// On processors without AVX-512 oneDNN 2 copies nothing where 1/m + 1/n >= 0.0038 (its `nocopy_checker_avx2`), and
  /// reads 64 bytes of each row of b in turn. If rows are a multiple of 4 KiB apart all of these are in one set of the
  /// first cache, and products take twice as long: 90 for 190 GFLOP/s on two threads of an EPYC; at 2 KiB 130.
  [[nodiscard]] std::int64_t packed_columns(const Product& p) const {
    static const bool may_read_in_place = DNNL_VERSION_MAJOR == 2 && best_isa() == Isa::avx2;
    if (!may_read_in_place || p.operands != Precision::fp32 || p.kind == op::Kind::gemm_nt) return 0;
    const std::int64_t apart = p.b_stride() * element_bytes(Precision::fp32);
    if (apart % 2048 != 0 || p.m < (apart % 4096 == 0 ? 32 : 64) ||
        1 / static_cast<double>(p.m) + 1 / static_cast<double>(p.n) < 0.0038)
      return 0;
    const std::int64_t room = scratch_.count * 3 / 4;  // the rest is oneDNN's
    const std::int64_t most = std::min<std::int64_t>(room / element_bytes(Precision::fp32) / p.k / 16 * 16 - 16, 1024);
    return most < std::min<std::int64_t>(p.n, 64) ? 0 : round_up(divide_up(p.n, divide_up(p.n, most)), 16);
  }

  /// c, `columns` columns at a time, from copies of b's in scratch memory.
  void multiply_packed(const Product& product, std::int64_t columns, const float* a, const float* b, const float* bias,
                       std::byte* c) {
    auto* const packed = reinterpret_cast<float*>(scratch_.data);
    Product band = product;
    for (std::int64_t first = 0; first < product.n; first += columns) {
      band.n = std::min(columns, product.n - first);
      band.strides = {.a = product.a_stride(), .b = packed_stride(band.n), .c = product.c_stride()};
      const std::int64_t bytes = product.k * band.strides.b * element_bytes(Precision::fp32);
#pragma omp parallel for
      for (std::int64_t row = 0; row < product.k; ++row)
        std::copy_n(b + row * product.b_stride() + first, band.n, packed + row * band.strides.b);
      execute(band, {scratch_.data + bytes, scratch_.count - bytes}, a, packed,
              bias == nullptr ? nullptr : bias + first, c + first * element_bytes(product.result));
    }
  }

  void execute(const Product& product, View<std::byte> scratch, const void* a, const void* b, const void* bias,
               void* c) {
    Bands& bands = bands_of(product, scratch.count);
    const auto row_bytes = [](std::int64_t elements, Precision p) { return elements * element_bytes(p); };
    const std::int64_t a_step = row_bytes(product.kind == op::Kind::gemm_tn ? 1 : product.a_stride(), product.operands);
    const std::int64_t c_step = row_bytes(product.c_stride(), product.result);
    const HeldSignals held;
    for (std::int64_t row = 0; row < product.m; row += bands.rows) {
      Kernel& kernel = bands.kernels[row + bands.rows <= product.m ? 0 : 1];
      kernel.execute(stream_.get(), static_cast<const std::byte*>(a) + row * a_step, b, bias,
                     static_cast<std::byte*>(c) + row * c_step, scratch.data);
    }
  }

  /// The longest run of at most `rows` among few lengths: up to 7, multiples of 8 up to 128, and then those with 4
  /// binary places, 8 for each power of two. A kernel for any number of rows (DNNL_RUNTIME_DIM_VAL) takes up to three
  /// times as long as one that is made for its number.
  static constexpr std::int64_t run_of(std::int64_t rows) {
    if (rows < 8) return rows;
    const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(rows)));
    const std::int64_t unit = std::max<std::int64_t>(power / 8, 8);
    return rows / unit * unit;
  }

  /// Bands of `rows` rows by the first kernel, a shorter last one by the second.
  struct Bands {
    std::int64_t rows = 0;
    std::vector<Kernel> kernels;
  };

  /// @param room  bytes of scratch memory
  Bands& bands_of(const Product& product, std::int64_t room) {
    auto found = cache_.find(product);
    if (found == cache_.end()) found = cache_.emplace(product, make(product, room)).first;
    return found->second;
  }

  Bands make(const Product& product, std::int64_t room) {
    // The process has one store of oneDNN's kernels: rank threads make theirs in turn.
    static std::mutex one_at_a_time;
    const std::lock_guard lock(one_at_a_time);
    Bands bands{.rows = product.m, .kernels = {}};
    for (;; bands.rows = divide_up(bands.rows, 2)) {
      bands.kernels.clear();
      const std::int64_t rest = product.m % bands.rows;
      if (add_kernel(product, bands.rows, room, bands) && (rest == 0 || add_kernel(product, rest, room, bands)))
        return bands;
      if (bands.rows == 1)
        throw DeviceFailure(to_string(product) + " needs more oneDNN scratch memory than the " + std::to_string(room) +
                            " bytes of the library workspace: enlarge it");
    }
  }

  /// False when scratch memory is too small for what oneDNN chooses for a band of that many rows.
  bool add_kernel(const Product& product, std::int64_t rows, std::int64_t room, Bands& bands) {
    Description description;
    const Operands operands(product, rows);
    const dnnl_status_t status = describe(product, operands, engine_.get(), description);
    if (status == dnnl_unimplemented && product.operands == Precision::bf16)
      throw DeviceFailure("oneDNN has no bf16 " + to_string(product) +
                          " for this processor (it needs AVX-512): use fp32");
    check(status, to_string(product).c_str());
    const auto* needed = dnnl_primitive_desc_query_md(description.get(), dnnl_query_scratchpad_md, 0);
    if (static_cast<std::int64_t>(dnnl_memory_desc_get_size(needed)) > room) return false;
    bands.kernels.emplace_back(product, operands, description, engine_.get());
    return true;
  }

  View<std::byte> scratch_;
  Engine engine_;
  Owner<dnnl_stream_t, dnnl_stream_destroy> stream_;
  std::map<Product, Bands> cache_;
};

/// codes (n) = x, scaled and rounded to F; returns what they are multiplied with to be x again.
template <class F>
float round_to_8bit(const Team& team, std::int64_t n, const bfloat16* x, std::uint8_t* codes) {
  std::atomic<std::uint32_t> greatest{0};
  for_runs(team, n, 64, 1, [&](std::int64_t first, std::int64_t last, int) {
    std::uint32_t here = 0;
    vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
#pragma omp simd reduction(max : here)
      for (std::int64_t i = first; i < last; ++i) {
        const std::uint32_t bits = kernels::magnitude_bits(x[i]);
        here = here < bits ? bits : here;
      }
    });
    std::uint32_t seen = greatest.load();
    while (seen < here && !greatest.compare_exchange_weak(seen, here)) {
    }
  });
  const kernels::Scaling scaling = kernels::scaling_of<F>(greatest.load());
  for_runs(team, n, 64, 1, [&](std::int64_t first, std::int64_t last, int) {
    vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
#pragma omp simd
      for (std::int64_t i = first; i < last; ++i) codes[i] = kernels::code_of<F>(x[i], scaling.scale);
    });
  });
  return scaling.unscale;
}

/// The values of all codes.
template <class F>
inline constexpr std::array<float, 256> values_8bit = [] {
  std::array<float, 256> out{};
  for (std::size_t code = 0; code < out.size(); ++code) {
    F x;
    x.bits = static_cast<std::uint8_t>(code);
    out[code] = x;
  }
  return out;
}();

inline constexpr std::int64_t rows_8bit = 96;      ///< of a tile of the result
inline constexpr std::int64_t columns_8bit = 128;  ///< of the same
inline constexpr std::int64_t depth_8bit = 256;    ///< multiplied at a time

template <class C>
void gemm_8bit(const Team& team, op::Kind kind, std::int64_t m, std::int64_t n, std::int64_t k, const bfloat16* a,
               const bfloat16* b, C* c, bool accumulate, const bfloat16* bias, View<std::byte> buffer) {
  const Buffers8bit rounded(buffer, m, n, k);
  const float* values_of_a = nullptr;
  with_format_of_a(kind, [&]<class F>() {
    rounded.unscale[0] = round_to_8bit<F>(team, m * k, a, rounded.a.data);
    values_of_a = values_8bit<F>.data();
  });
  rounded.unscale[Buffers8bit::of_b] = round_to_8bit<float8_e4m3>(team, n * k, b, rounded.b.data);
  const float* values_of_b = values_8bit<float8_e4m3>.data();
  const float unscale_a = rounded.unscale[0];
  const float unscale_b = rounded.unscale[Buffers8bit::of_b];
  // Element (row, p) of a, and (p, column) of b.
  const std::int64_t a_row = kind == op::Kind::gemm_tn ? 1 : k;
  const std::int64_t a_depth = kind == op::Kind::gemm_tn ? m : 1;
  const std::int64_t b_depth = kind == op::Kind::gemm_nt ? 1 : n;
  const std::int64_t b_column = kind == op::Kind::gemm_nt ? k : 1;
  const std::int64_t across = divide_up(n, columns_8bit);
  const std::int64_t tiles = divide_up(m, rows_8bit) * across;
  const int threads = m * n * k < parallel_elements ? 1 : team.threads;
  on_threads(threads, [&](int thread) {
    ScratchFloats scratch(team.scratch_of(thread));
    float* const tile_a = scratch.take(rows_8bit * depth_8bit);     // (depth, rows)
    float* const tile_b = scratch.take(depth_8bit * columns_8bit);  // (depth, columns)
    float* const sums = scratch.take(rows_8bit * columns_8bit);     // (rows, columns)
    for (std::int64_t tile = thread; tile < tiles; tile += threads) {
      const std::int64_t row = tile / across * rows_8bit;
      const std::int64_t column = tile % across * columns_8bit;
      const std::int64_t rows = std::min(rows_8bit, m - row);
      const std::int64_t columns = std::min(columns_8bit, n - column);
      for (std::int64_t first = 0; first < k; first += depth_8bit) {
        const std::int64_t depth = std::min(depth_8bit, k - first);
        for (std::int64_t p = 0; p < depth; ++p) {
          const std::uint8_t* from_a = rounded.a.data + row * a_row + (first + p) * a_depth;
          for (std::int64_t r = 0; r < rows_8bit; ++r)
            tile_a[p * rows_8bit + r] = r < rows ? values_of_a[from_a[r * a_row]] : 0.0F;
          const std::uint8_t* from_b = rounded.b.data + column * b_column + (first + p) * b_depth;
          for (std::int64_t j = 0; j < columns; ++j) tile_b[p * columns_8bit + j] = values_of_b[from_b[j * b_column]];
        }
        with_isa(team.isa, [&]<Isa isa>() GALVATRON_INLINE_LAMBDA {
          for (std::int64_t r = 0; r < rows; r += tile_rows)
            multiply_rows<isa>(columns, depth, tile_a + r, 1, rows_8bit, tile_b, columns_8bit,
                               first == 0 ? Start::zero : Start::keep, nullptr, sums + r * columns_8bit, columns_8bit);
        });
      }
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t j = 0; j < columns; ++j) {
          C& out = c[(row + r) * n + column + j];
          float value = sums[r * columns_8bit + j] * unscale_a * unscale_b;
          if (bias != nullptr) value += kernels::get(bias[column + j]);
          kernels::put(out, accumulate ? kernels::get(out) + value : value);
        }
    }
  });
}

}  // namespace galvatron::device::host
