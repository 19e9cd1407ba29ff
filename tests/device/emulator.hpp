// Runs CUDA kernels on the CPU, thread by thread, so that tests see their indices, barriers and reductions without a
// GPU.
//
// Every thread of a block is a fiber. Between two barriers the fibers run one after the other in a random order, so
// that a barrier that is missing shows as a wrong result sooner or later; one that not all threads reach is an error.
// Shared memory begins as NaN. Fibers are made once and run one block after another; they are switched by longjmp,
// because swapcontext has a system call for the mask of signals, which took most of the time. AddressSanitizer knows
// swapcontext alone.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <setjmp.h>
#include <ucontext.h>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/device/cuda/block.hpp>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace galvatron::test {

class Emulator {
 public:
  explicit Emulator(std::uint64_t seed = 1) : random_(seed) {}
  Emulator(const Emulator&) = delete;
  Emulator& operator=(const Emulator&) = delete;

  /// As cuda::Stream's. Throws std::logic_error for what would be undefined or refused on a GPU.
  template <class Kernel>
  void launch(const device::cuda::Geometry& geometry, const Kernel& kernel);

  /// Kernels launched so far.
  [[nodiscard]] int launches() const { return launches_; }

 private:
  class Block;
  enum class State : std::uint8_t { ready, at_barrier, at_warp_barrier, ended };
  struct Fiber {
    ucontext_t context{};
    std::unique_ptr<std::byte[]> stack;
    jmp_buf place{};  ///< where it left, once it has begun
    bool begun = false;
    State state = State::ended;
  };
  static constexpr std::size_t stack_bytes = std::size_t{256} << 10;
  static constexpr int warp = device::cuda::warp_threads;
  static constexpr std::size_t value_bytes = 32;  ///< that a lane gives to the others at once

  // Runs body(thread) as `threads` fibers until all have ended.
  template <class F>
  void run_block(int threads, const F& body) {
    while (fibers_.size() < static_cast<std::size_t>(threads)) fibers_.push_back(std::make_unique<Fiber>());
    threads_ = threads;
    call_ = [](const void* f, int thread) { (*static_cast<const F*>(f))(thread); };
    body_ = &body;
    order_.clear();
    for (int i = 0; i < threads; ++i) {
      if (fiber(i).stack == nullptr || fiber(i).state != State::ended) make(i);  // new, or left in a block that failed
      fiber(i).state = State::ready;
      order_.push_back(i);
    }
    while (run_ready()) release();
  }
  void make(int i) {
    Fiber& made = fiber(i);
    made.stack = std::make_unique_for_overwrite<std::byte[]>(stack_bytes);
    made.begun = false;
    getcontext(&made.context);
    made.context.uc_stack.ss_sp = made.stack.get();
    made.context.uc_stack.ss_size = stack_bytes;
    made.context.uc_link = nullptr;
    const auto address = reinterpret_cast<std::uintptr_t>(this);
    makecontext(&made.context, reinterpret_cast<void (*)()>(&Emulator::enter), 3, static_cast<unsigned>(address >> 32),
                static_cast<unsigned>(address & 0xffffffffU), i);
  }
  // Runs what can run; false when all have ended.
  bool run_ready() {
    std::shuffle(order_.begin(), order_.end(), random_);
    bool progress = false;
    for (const int i : order_) {
      if (fiber(i).state != State::ready) continue;
      progress = true;
      switch_to_fiber(fiber(i));
    }
    const bool all_ended =
        std::all_of(order_.begin(), order_.end(), [&](int i) { return fiber(i).state == State::ended; });
    if (!progress && !all_ended)
      throw std::logic_error("not all threads of the block, or of a warp, reach the same barrier");
    return !all_ended;
  }
  // Opens the barriers that all have reached.
  void release() {
    const auto all = [&](int first, int last, State state) {
      for (int i = first; i < last; ++i)
        if (fiber(i).state != state) return false;
      return true;
    };
    const auto open = [&](int first, int last) {
      for (int i = first; i < last; ++i) fiber(i).state = State::ready;
    };
    if (all(0, threads_, State::at_barrier)) open(0, threads_);
    for (int first = 0; first < threads_; first += warp)
      if (all(first, first + warp, State::at_warp_barrier)) open(first, first + warp);
  }
  Fiber& fiber(int i) { return *fibers_[static_cast<std::size_t>(i)]; }

  static void enter(unsigned high, unsigned low, int thread) {
    auto* self = reinterpret_cast<Emulator*>((static_cast<std::uintptr_t>(high) << 32) | low);
    self->arrived(nullptr);
    for (;;) {
      self->call_(self->body_, thread);
      self->fiber(thread).state = State::ended;
      self->leave(self->fiber(thread));
    }
  }
#if defined(__SANITIZE_ADDRESS__)
  void switch_to_fiber(Fiber& fiber) {
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, fiber.stack.get(), stack_bytes);
    swapcontext(&scheduler_, &fiber.context);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
  }
  // From a fiber back to the scheduler.
  void leave(Fiber& fiber) {
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, scheduler_stack_, scheduler_stack_bytes_);
    swapcontext(&fiber.context, &scheduler_);
    arrived(fake);
  }
  void arrived(void* fake) { __sanitizer_finish_switch_fiber(fake, &scheduler_stack_, &scheduler_stack_bytes_); }
#else
  // What calls setjmp has no variables, which a jump could leave with old values.
  void switch_to_fiber(Fiber& fiber) {
    if (_setjmp(scheduler_) != 0) return;
    if (fiber.begun) _longjmp(fiber.place, 1);
    fiber.begun = true;
    setcontext(&fiber.context);
  }
  // From a fiber back to the scheduler.
  void leave(Fiber& fiber) {
    if (_setjmp(fiber.place) == 0) _longjmp(scheduler_, 1);
  }
  void arrived(void*) {}
#endif
  void wait(int thread, State state) {
    fiber(thread).state = state;
    leave(fiber(thread));
  }

  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<int> order_;
#if defined(__SANITIZE_ADDRESS__)
  ucontext_t scheduler_{};
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_stack_bytes_ = 0;
#else
  jmp_buf scheduler_{};
#endif
  void (*call_)(const void*, int) = nullptr;
  const void* body_ = nullptr;
  int threads_ = 0;
  int launches_ = 0;
  std::vector<std::byte> exchanged_;  ///< value_bytes for every thread
};

/// Models cuda::Block.
class Emulator::Block {
 public:
  Block(Emulator& emulator, const device::cuda::Geometry& geometry, std::int64_t index, int thread, std::byte* shared,
        double* slots)
      : emulator_(emulator), geometry_(geometry), index_(index), thread_(thread), shared_(shared), slots_(slots) {}

  [[nodiscard]] std::int64_t index() const { return index_; }
  [[nodiscard]] std::int64_t blocks() const { return geometry_.blocks; }
  [[nodiscard]] int thread() const { return thread_; }
  [[nodiscard]] int threads() const { return geometry_.threads; }
  [[nodiscard]] std::byte* shared() const { return shared_; }
  template <class V>
  [[nodiscard]] V* slots() const {
    static_assert(sizeof(V) <= sizeof(double), "galvatron: a slot has 8 bytes");
    return reinterpret_cast<V*>(slots_);
  }
  void sync() { emulator_.wait(thread_, State::at_barrier); }
  void sync_warp() { emulator_.wait(thread_, State::at_warp_barrier); }
  template <class V>
  V shuffle_xor(V value, int mask) {
    return shuffle(value, (thread_ % warp) ^ mask);
  }
  template <class V>
  V shuffle(V value, int lane) {
    give(value);
    const V out = from<V>(lane);
    sync_warp();
    return out;
  }
  bool is_last(std::uint32_t* ticket, int of) {
    if (static_cast<int>(++*ticket) < of) return false;
    *ticket = 0;
    return true;
  }
  std::int32_t claim(std::int32_t* number, std::int32_t value) {
    return std::exchange(*number, *number == 0 ? value : *number);
  }
  std::int32_t raise(std::int32_t* number, std::int32_t value) {
    return std::exchange(*number, std::max(*number, value));
  }
  [[nodiscard]] std::uint64_t nanoseconds() const { return static_cast<std::uint64_t>(1e9 * steady_seconds()); }
  void multiply(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
    struct Fragments {
      std::uint32_t a[4];
      std::uint32_t b[2];
    };
    Fragments own{};
    std::copy_n(a, 4, own.a);
    std::copy_n(b, 2, own.b);
    give(own);
    const auto half = [](std::uint32_t two, int which) {
      bfloat16 x;
      x.bits = static_cast<std::uint16_t>(which == 0 ? two & 0xffffU : two >> 16);
      return static_cast<float>(x);
    };
    const int lane = thread_ % warp;
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + 8 * (i / 2);
      const int column = lane % 4 * 2 + i % 2;
      float sum = c[i];
      for (int k = 0; k < 16; ++k) {
        // a: rows g, g + 8 and columns 2t, 2t + 8 of lane 4 g + t; b: rows 2t, 2t + 8 and column g.
        const std::uint32_t left = from<Fragments>(row % 8 * 4 + k % 8 / 2).a[row / 8 + 2 * (k / 8)];
        const std::uint32_t right = from<Fragments>(column * 4 + k % 8 / 2).b[k / 8];
        sum += half(left, k % 2) * half(right, k % 2);
      }
      c[i] = sum;
    }
    sync_warp();
  }
  void load_matrices(std::uint32_t (&to)[4], const bfloat16* row) {
    load_pairs(to, row, [](int g, int pair, int i) { return std::array{g, 2 * pair + i}; });
  }
  void load_transposed(std::uint32_t (&to)[4], const bfloat16* row) {
    load_pairs(to, row, [](int g, int pair, int i) { return std::array{2 * pair + i, g}; });
  }
  // They are done as late as can be.
  void copy_async(void* to, const void* from, int bytes) {
    if (reinterpret_cast<std::uintptr_t>(to) % 16 != 0 ||
        (bytes > 0 && reinterpret_cast<std::uintptr_t>(from) % 16 != 0))
      throw std::logic_error("asynchronous copies are between 16-byte boundaries");
    copies_.push_back({to, from, bytes, groups_});
  }
  void commit_copies() { ++groups_; }
  template <int left>
  void await_copies() {
    const auto waits = [this](const Copy& copy) { return copy.group + left < groups_; };
    for (const Copy& copy : copies_) {
      if (!waits(copy)) continue;
      fenced_ = false;
      std::memset(copy.to, 0, 16);
      if (copy.bytes > 0) std::memcpy(copy.to, copy.from, static_cast<std::size_t>(copy.bytes));
    }
    std::erase_if(copies_, waits);
  }
  void fence_copies() { fenced_ = true; }
  void begin_products() {}
  // They are done as late as can be.
  template <bool a_along, bool b_along>
  void multiply_group(float (&c)[32][4], const bfloat16* a, const bfloat16* b, int k) {
    if (!fenced_) throw std::logic_error("products of warp groups read copies that no fence has shown them");
    if (reinterpret_cast<std::uintptr_t>(a) % 1024 != 0 || reinterpret_cast<std::uintptr_t>(b) % 1024 != 0)
      throw std::logic_error("operands of warp groups are on 1024-byte boundaries");
    products_.push_back({c, {a, a_along}, {b, b_along}, k, product_groups_});
  }
  void commit_products() { ++product_groups_; }
  template <int left>
  void await_products() {
    const auto waits = [this](const GroupProduct& product) { return product.group + left < product_groups_; };
    for (const GroupProduct& product : products_)
      if (waits(product)) multiply(product);
    std::erase_if(products_, waits);
  }

 private:
  // An operand of a product of warp groups.
  struct SwizzledRows {
    const bfloat16* at;
    bool along;
    // Of its row `own`, element k of the sum.
    [[nodiscard]] float element(int own, int k) const {
      const int row = along ? own : own / 64 * 64 + k;  // of 64 elements
      const int column = along ? k : own % 64;
      return static_cast<float>(at[row * 64 + (column / 8 ^ row % 8) * 8 + column % 8]);
    }
  };
  struct GroupProduct {
    float (*c)[4];
    SwizzledRows a, b;
    int k;
    int group;
  };
  void multiply(const GroupProduct& product) const {
    const int lane = thread_ % warp;
    for (int j = 0; j < 32; ++j)
      for (int i = 0; i < 4; ++i) {
        const int row = thread_ / warp % 4 * 16 + lane / 4 + 8 * (i / 2);
        const int column = 8 * j + lane % 4 * 2 + i % 2;
        for (int k = product.k; k < product.k + 16; ++k)
          product.c[j][i] += product.a.element(row, k) * product.b.element(column, k);
      }
  }

  struct Copy {
    void* to;
    const void* from;
    int bytes;
    int group;
  };

  // Elements place(lane / 4, lane % 4, 0 or 1) = (row, column) of each matrix.
  template <class Place>
  void load_pairs(std::uint32_t (&to)[4], const bfloat16* row, const Place& place) {
    if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0)
      throw std::logic_error("rows of matrices are on 16-byte boundaries");
    give(row);
    const int lane = thread_ % warp;
    for (int matrix = 0; matrix < 4; ++matrix) {
      to[matrix] = 0;
      for (int i = 0; i < 2; ++i) {
        const auto [r, column] = place(lane / 4, lane % 4, i);
        to[matrix] |= std::uint32_t{from<const bfloat16*>(8 * matrix + r)[column].bits} << (16 * i);
      }
    }
    sync_warp();
  }
  template <class V>
  void give(const V& value) {
    static_assert(sizeof(V) <= value_bytes);
    std::memcpy(emulator_.exchanged_.data() + static_cast<std::size_t>(thread_) * value_bytes, &value, sizeof value);
    sync_warp();
  }
  template <class V>
  V from(int lane) const {
    V value;
    const int peer = thread_ / warp * warp + lane;
    std::memcpy(&value, emulator_.exchanged_.data() + static_cast<std::size_t>(peer) * value_bytes, sizeof value);
    return value;
  }

  Emulator& emulator_;
  const device::cuda::Geometry& geometry_;
  std::int64_t index_;
  int thread_;
  std::byte* shared_;
  double* slots_;
  std::vector<Copy> copies_;            ///< under way
  int groups_ = 0;                      ///< committed
  bool fenced_ = true;                  ///< what has been copied
  std::vector<GroupProduct> products_;  ///< under way
  int product_groups_ = 0;              ///< committed
};

template <class Kernel>
void Emulator::launch(const device::cuda::Geometry& geometry, const Kernel& kernel) {
  static_assert(device::cuda::Block<Block>);
  static_assert(std::is_trivially_copyable_v<Kernel>, "galvatron: a kernel goes to the GPU byte by byte");
  static_assert(sizeof(Kernel) <= 4096, "galvatron: a kernel's arguments have 4 KiB");
  constexpr std::int64_t most_shared = 227 << 10;
  if (geometry.blocks < 1 || geometry.blocks > 0x7fffffff || geometry.threads < warp || geometry.threads % warp != 0 ||
      geometry.threads > Kernel::most_threads || geometry.shared_bytes > most_shared)
    throw std::logic_error("no GPU launches " + std::to_string(geometry.blocks) + " blocks of " +
                           std::to_string(geometry.threads) + " threads with " + std::to_string(geometry.shared_bytes) +
                           " bytes");
  ++launches_;
  exchanged_.resize(static_cast<std::size_t>(geometry.threads) * value_bytes);
  std::vector<double> shared(static_cast<std::size_t>(geometry.shared_bytes / 8 + 2));
  std::vector<double> slots(warp);
  auto* base = reinterpret_cast<std::byte*>(shared.data());
  base += (16 - reinterpret_cast<std::uintptr_t>(base) % 16) % 16;
  for (std::int64_t index = 0; index < geometry.blocks; ++index) {
    std::memset(shared.data(), 0xff, shared.size() * sizeof(double));
    std::memset(slots.data(), 0xff, slots.size() * sizeof(double));
    run_block(geometry.threads, [&](int thread) {
      Block block(*this, geometry, index, thread, base, slots.data());
      kernel(block);
    });
  }
}

}  // namespace galvatron::test
