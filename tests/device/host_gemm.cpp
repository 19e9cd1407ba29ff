#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <omp.h>
#include <pthread.h>
#include <ucontext.h>

#include <galvatron/device/host/gemm.hpp>

#include "host_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;

struct Case {
  std::int64_t m, n, k;
};

template <class T, class C>
std::vector<double> reference(op::Kind kind, Case s, const std::vector<T>& a, const std::vector<T>& b,
                              const std::vector<C>& c, bool accumulate, const std::vector<T>& bias) {
  std::vector<double> out = accumulate ? doubles(c) : std::vector<double>(c.size(), 0.0);
  for (std::int64_t i = 0; i < s.m; ++i)
    for (std::int64_t j = 0; j < s.n; ++j) {
      double sum = bias.empty() ? 0.0 : static_cast<double>(bias[static_cast<std::size_t>(j)]);
      for (std::int64_t p = 0; p < s.k; ++p) {
        const auto x = a[static_cast<std::size_t>(kind == op::Kind::gemm_tn ? p * s.m + i : i * s.k + p)];
        const auto y = b[static_cast<std::size_t>(kind == op::Kind::gemm_nt ? j * s.k + p : p * s.n + j)];
        sum += static_cast<double>(x) * static_cast<double>(y);
      }
      out[static_cast<std::size_t>(i * s.n + j)] += sum;
    }
  return out;
}

template <class T, class C>
void check_all(double bound) {
  constexpr unsigned seed = 11;
  CAPTURE(seed);
  std::mt19937 random(seed);
  TestHost host(2);
  for (const Case s :
       {Case{1, 7, 3}, Case{5, 1, 9}, Case{33, 65, 17}, Case{64, 48, 128}, Case{3, 1009, 40}, Case{128, 96, 1},
        Case{130, 30, 77}, Case{7, 5, 30'001}, Case{33, 1024, 300}, Case{70, 512, 9}, Case{40, 3072, 50}}) {
    for (const op::Kind kind : op::gemms) {
      for (const bool accumulate : {false, true}) {
        for (const bool with_bias : {false, true}) {
          if (with_bias && accumulate) continue;
          const auto a = random_tensor<T>(random, s.m * s.k);
          const auto b = random_tensor<T>(random, s.n * s.k);
          const auto bias = random_tensor<T>(random, with_bias ? s.n : 0);
          auto c = random_tensor<C>(random, s.m * s.n);
          const auto expected = reference(kind, s, a, b, c, accumulate, bias);
          host->gemm(kind, s.m, s.n, s.k, view(a), view(b), view(c), accumulate, view(bias));
          CAPTURE(static_cast<int>(kind));
          CAPTURE(s.m);
          CAPTURE(s.n);
          CAPTURE(s.k);
          CAPTURE(accumulate);
          CAPTURE(with_bias);
          CHECK(error_of(c, expected) < bound);
        }
      }
    }
  }
}

// The same of columns of wider matrices, times a factor: what is beside them stays as it is.
template <class T, class C>
void check_columns(double bound) {
  std::mt19937 random(12);
  TestHost host(2);
  for (const Case s : {Case{5, 3, 9}, Case{130, 8, 77}, Case{33, 65, 4}, Case{2, 3, 12'300}, Case{1, 37, 40},
                       Case{37, 1, 40}, Case{37, 40, 1}, Case{1, 1, 300}})
    for (const op::Kind kind : op::gemms)
      for (const bool accumulate : {false, true}) {
        const std::int64_t a_rows = kind == op::Kind::gemm_tn ? s.k : s.m, a_width = s.m + s.k - a_rows;
        const std::int64_t b_rows = kind == op::Kind::gemm_nt ? s.n : s.k, b_width = s.n + s.k - b_rows;
        const device::RowStrides strides{.a = a_width + 3, .b = b_width + 8, .c = s.n + 5};
        const auto wide_a = random_tensor<T>(random, a_rows * strides.a);
        const auto wide_b = random_tensor<T>(random, b_rows * strides.b);
        auto wide_c = random_tensor<C>(random, s.m * strides.c);
        const auto columns = [](const auto& wide, std::int64_t rows, std::int64_t width, std::int64_t stride) {
          std::remove_cvref_t<decltype(wide)> out;
          for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t i = 0; i < width; ++i) out.push_back(wide[static_cast<std::size_t>(r * stride + i)]);
          return out;
        };
        const std::vector<T> none;
        auto before = doubles(wide_c);
        auto product =
            reference(kind, s, columns(wide_a, a_rows, a_width, strides.a), columns(wide_b, b_rows, b_width, strides.b),
                      columns(wide_c, s.m, s.n, strides.c), false, none);
        for (std::int64_t i = 0; i < s.m; ++i)
          for (std::int64_t j = 0; j < s.n; ++j) {
            double& to = before[static_cast<std::size_t>(i * strides.c + j)];
            to = (accumulate ? to : 0.0) + 0.75 * product[static_cast<std::size_t>(i * s.n + j)];
          }
        host->gemm_columns(kind, s.m, s.n, s.k, strides, 0.75F, view(wide_a), view(wide_b), view(wide_c), accumulate);
        CHECK(error_of(wide_c, before) < bound);
      }
}

// What a handler of SIGUSR1 sees of the threads that it interrupts. It has a stack of its own, so that it harms nothing
// where a thread's stack pointer is elsewhere.
struct Interruptions {
  static inline std::atomic<int> handled{0};
  static inline std::atomic<int> off_stack{0};  // of those, with the stack pointer outside of the thread's stack
  static inline thread_local std::array<std::byte, 65'536> handler_stack;
  static inline thread_local std::uintptr_t low = 0, high = 0;

  static void handle(int, siginfo_t*, void* context) {
    const auto at = static_cast<std::uintptr_t>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RSP]);
    ++handled;
    if (at < low || at > high) ++off_stack;
  }
  static void install() {
    struct sigaction action{};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    REQUIRE(::sigaction(SIGUSR1, &action, nullptr) == 0);
  }
  // Of the calling thread, before it is interrupted.
  static pthread_t prepare() {
    const stack_t stack{.ss_sp = handler_stack.data(), .ss_flags = 0, .ss_size = handler_stack.size()};
    ::sigaltstack(&stack, nullptr);
    pthread_attr_t attributes;
    ::pthread_getattr_np(::pthread_self(), &attributes);
    void* begin = nullptr;
    std::size_t size = 0;
    ::pthread_attr_getstack(&attributes, &begin, &size);
    ::pthread_attr_destroy(&attributes);
    low = reinterpret_cast<std::uintptr_t>(begin);
    high = low + size;
    return ::pthread_self();
  }
};

}  // namespace

TEST_CASE("no thread of a product handles signals while its stack pointer is elsewhere") {
  Interruptions::install();
  for (const int threads : {1, 2}) {
    CAPTURE(threads);
    Interruptions::handled = Interruptions::off_stack = 0;
    std::jthread([&] {
      ::omp_set_num_threads(threads);
      std::vector<pthread_t> team(static_cast<std::size_t>(threads));
#pragma omp parallel  // a team that is older than the first product
      team[static_cast<std::size_t>(::omp_get_thread_num())] = Interruptions::prepare();
      const std::jthread interrupter([&](const std::stop_token& stop) {
        while (!stop.stop_requested()) {
          for (const pthread_t thread : team) ::pthread_kill(thread, SIGUSR1);
          std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
      });
      TestHost host(threads);
      const std::int64_t m = 128, n = 256, k = 512;  // deep enough for a buffer of the heap
      const std::vector<float> a(at(m * k), 1.0F), b(at(n * k), 1.0F);
      std::vector<float> c(at(m * n));
      for (const auto begin = std::chrono::steady_clock::now();
           std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(200);)
        for (const op::Kind kind : op::gemms) host->gemm(kind, m, n, k, view(a), view(b), view(c));
    }).join();
    CHECK(Interruptions::handled > 0);
    CHECK(Interruptions::off_stack == 0);
  }
  std::signal(SIGUSR1, SIG_DFL);
}

TEST_CASE("products of columns of wider matrices equal a double-precision loop") {
  check_columns<float, float>(2e-6);
  if (device::Host::supports(Precision::bf16)) check_columns<bfloat16, float>(2e-6);
  if (device::Host::supports(Precision::bf16)) check_columns<bfloat16, bfloat16>(5e-3);
}

TEST_CASE("matrix products of floats equal a double-precision loop in every layout") { check_all<float, float>(2e-6); }

TEST_CASE("matrix products of bfloat16 round only their result") {
  if (!device::Host::supports(Precision::bf16)) {
    TestHost host(1);
    std::vector<bfloat16> x(64);
    auto y = x;
    CHECK_THROWS_AS(host->gemm(op::Kind::gemm_nt, 8, 8, 8, view(x), view(x), view(y)), DeviceFailure);
    return;
  }
  check_all<bfloat16, bfloat16>(8e-3);
  check_all<bfloat16, float>(2e-6);
}

TEST_CASE("what is no matrix product is refused as one") {
  TestHost host(1);
  std::vector<float> x(64);
  CHECK_THROWS_WITH_AS(host->gemm(op::Kind::attention_forward, 8, 8, 8, view(x), view(x), view(x)),
                       "a device multiplies matrices as gemm_nt, gemm_nn or gemm_tn, not as attention_forward",
                       Failure);
}

TEST_CASE("matrix products of the same threads give the same bits, and the cache does not mix shapes up") {
  std::mt19937 random(5);
  const Case s{96, 80, 200};
  const auto a = random_tensor<float>(random, s.m * s.k);
  const auto b = random_tensor<float>(random, s.n * s.k);
  for (const int threads : {1, 2}) {
    TestHost host(threads);
    std::vector<float> first(static_cast<std::size_t>(s.m * s.n));
    auto second = first;
    host->gemm(op::Kind::gemm_nt, s.m, s.n, s.k, view(a), view(b), view(first));
    host->gemm(op::Kind::gemm_nt, s.n, s.m, s.k, view(b), view(a), view(second));
    host->gemm(op::Kind::gemm_nt, s.m, s.n, s.k, view(a), view(b), view(second));
    CHECK(same_bits(first, second));
  }
}

TEST_CASE("a product over no elements is zero or the bias") {
  TestHost host(1);
  std::vector<float> c(6, 3.0F);
  const std::vector<float> bias{1.0F, 2.0F, 3.0F};
  const std::vector<float> none;
  host->gemm(op::Kind::gemm_nn, 2, 3, 0, view(none), view(none), view(c), true);
  CHECK(c == std::vector<float>(6, 3.0F));
  host->gemm(op::Kind::gemm_nn, 2, 3, 0, view(none), view(none), view(c), false, view(bias));
  CHECK(c == std::vector<float>{1, 2, 3, 1, 2, 3});
  host->gemm(op::Kind::gemm_nn, 2, 3, 0, view(none), view(none), view(c));
  CHECK(c == std::vector<float>(6, 0.0F));
}

TEST_CASE("a product whose scratch memory exceeds the workspace is cut into bands with the same result") {
  std::mt19937 random(3);
  const Case s{301, 256, 300};
  const auto a = random_tensor<float>(random, s.m * s.k);
  const auto b = random_tensor<float>(random, s.n * s.k);
  for (const op::Kind kind : op::gemms) {
    std::vector<float> c(static_cast<std::size_t>(s.m * s.n));
    const auto expected = reference(kind, s, a, b, c, false, std::vector<float>{});
    // The smallest workspace that does not fail; a quarter of what the whole product asks for is enough to see bands.
    std::int64_t bytes = device::Host::workspace_bytes_per_thread;
    std::int64_t rows = s.m;
    for (; bytes >= 0; bytes = bytes * 3 / 4 - 1) {
      std::vector<std::byte> memory(static_cast<std::size_t>(bytes) + 64);
      void* aligned = memory.data();
      std::size_t space = memory.size();
      std::align(64, static_cast<std::size_t>(bytes), aligned, space);
      device::host::Products products({static_cast<std::byte*>(aligned), bytes});
      const device::Product product{.kind = kind, .m = s.m, .n = s.n, .k = s.k};
      try {
        rows = std::min(rows, products.band_rows(product));
      } catch (const DeviceFailure& failure) {
        CHECK(std::string(failure.what()).find("enlarge it") != std::string::npos);
        break;
      }
      std::fill(c.begin(), c.end(), NAN);
      products.multiply(product, a.data(), b.data(), nullptr, c.data());
      REQUIRE(error_of(c, expected) < 2e-6);
      if (bytes == 0) break;
    }
    MESSAGE("layout " << static_cast<int>(kind) << ": smallest band of " << rows << " rows of " << s.m);
  }
}
