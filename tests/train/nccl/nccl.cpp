// Training with a GPU for each rank: the GPU's kernels, emulated, over comm::nccl, whose libraries are only played.
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "../../comm/nccl/fake_libraries.hpp"

#include <galvatron/rank/gpu_world.hpp>

#include "../../comm/socket_threads.hpp"
#include "../check_plan.hpp"
#include "../fake_gpu_compiled.hpp"
#include "../toy.hpp"

namespace {

using namespace galvatron;
using namespace toy;

// A stream of the played CUDA, whose kernels the emulator runs.
class PlayedStream final : public test::FakeStream {
 public:
  PlayedStream(device::cuda::Stream& stream, std::uint64_t seed) : FakeStream(seed), stream_(stream) {}
  void run(std::function<void()> work) override {
    const std::scoped_lock lock(fake::mutex);
    fake::give(*fake::queue_of(stream_.get()), std::move(work));
  }
  void wait() override { stream_.wait(); }
  std::function<void()> mark() override {
    const auto event = std::make_shared<device::cuda::Event>();
    event->record(stream_);
    return [event] { event->wait(); };
  }

 private:
  device::cuda::Stream& stream_;
};

std::uint64_t shuffle_streams() {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  const std::scoped_lock lock(fake::mutex);
  fake::random.seed(seed);
  return seed;
}

constexpr std::chrono::seconds timeout{60};

void train_rank(comm::World& world, device::cuda::Stream& compute, const Plan& plan, const ModelSpec& spec,
                const RunOptions& options, std::uint64_t seed, Outcome& out, std::mutex& mutex) {
  PlayedStream stream(compute, seed + static_cast<std::uint64_t>(world.rank()));
  run_rank<float>(world, plan, spec, options, out, mutex, test::FakeGpuPlatform{&stream});
}

Outcome on_gpus(const Plan& plan, const ModelSpec& spec, RunOptions options) {
  const std::uint64_t seed = shuffle_streams();
  Outcome out;
  std::mutex mutex;
  Tokens source(plan.sequence_length);
  options.source = &source;
  train::detail::on_own_gpus(plan.ranks(), timeout,
                             [&](comm::World& world, int ordinal, device::cuda::Stream& compute) {
                               CHECK(ordinal == world.rank());
                               CHECK(fake::current_gpu == world.rank());
                               train_rank(world, compute, plan, spec, options, seed, out, mutex);
                             });
  return out;
}

// Ends its rank in the second step, between two micro-batches.
struct Killed : std::runtime_error {
  Killed() : std::runtime_error("disk on fire") {}
};
class Deadly final : public train::BatchSource {
 public:
  explicit Deadly(bool now) : tokens_(sequence), deadly_(now) {}
  void inputs(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
              View<std::int32_t> out) override {
    if (deadly_ && step == 1 && asked_++ == 1) throw Killed{};
    tokens_.inputs(step, first, samples, range, out);
  }
  void targets(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
               View<std::int32_t> out) override {
    tokens_.targets(step, first, samples, range, out);
  }

 private:
  Tokens tokens_;
  bool deadly_;
  int asked_ = 0;
};

}  // namespace

TEST_CASE("ranks with a GPU each train as one rank on the cores does") {
  constexpr int steps = 3;
  const ModelSpec spec = model(false, 2);
  const Outcome reference = run(single_rank(spec), spec, steps);
  for (const Plan& plan :
       {uniform(spec, 1, {.data = 2}, 1, ScheduleKind::gpipe),
        uniform(spec, 1, {.data = 2, .zero = 3}, 2, ScheduleKind::one_f_one_b),
        uniform(spec, 1, {.tensor = 2, .sequence = SequenceKind::megatron}, 1, ScheduleKind::gpipe),
        uniform(spec, 2, {}, 4, ScheduleKind::one_f_one_b),
        uniform(spec, 1, {.data = 4, .zero = 3, .recompute = RecomputeKind::full}, 1, ScheduleKind::gpipe),
        uniform(spec, 1, {.tensor = 2, .data = 2, .zero = 2}, 2, ScheduleKind::gpipe),
        uniform(spec, 2, {.data = 2, .zero = 1}, 4, ScheduleKind::zb_h1),
        uniform(spec, 2, {.sequence = SequenceKind::ring, .context = 2}, 2, ScheduleKind::one_f_one_b)})
    check_plan(plan, spec, reference, on_gpus);
}

TEST_CASE("a rank that fails in the middle of a step ends the others within seconds") {
  const ModelSpec spec = model(false, 2);
  // Communicators that are aborted wait for those of the others, who have to be told before.
  fake::ranks_are_processes = true;
  const Plan sharded = uniform(spec, 1, {.data = 4, .zero = 3}, 2, ScheduleKind::gpipe);
  const Plan staged = uniform(spec, 2, {.tensor = 2}, 4, ScheduleKind::one_f_one_b);
  for (const auto& [plan, has_last_word] :
       {std::pair{sharded, true}, {staged, true}, {sharded, false}, {staged, false}}) {
    CAPTURE(text(plan));
    CAPTURE(has_last_word);
    const std::uint64_t seed = shuffle_streams();
    constexpr int victim = 1;
    auto sockets = comm::tcp::socket_pairs(plan.ranks());
    std::vector<std::string> said(sockets.size());
    std::vector<double> seconds(sockets.size());
    std::vector<int> reports(sockets.size());
    Outcome out;
    std::mutex mutex;
    std::chrono::steady_clock::time_point death;
    std::vector<std::jthread> threads;
    for (int r = 0; r < plan.ranks(); ++r)
      threads.emplace_back([&, r] {
        const auto i = static_cast<std::size_t>(r);
        Deadly source(r == victim);
        const auto body = [&](comm::tcp::World& control) {
          train::detail::on_own_gpu(control, r, timeout, [&](comm::World& world, int, device::cuda::Stream& compute) {
            train_rank(world, compute, plan, spec, {.steps = 3, .source = &source}, seed, out, mutex);
          });
        };
        if (r == victim && !has_last_word) {
          comm::tcp::Endpoint endpoint(r, std::move(sockets[i]), timeout);
          comm::tcp::World control(endpoint);
          CHECK_THROWS_AS(body(control), Killed);
          death = std::chrono::steady_clock::now();
          return;  // its connections break
        }
        const comm::Verdict verdict = comm::tcp::outcome_of(r, std::move(sockets[i]), body, timeout);
        if (r == victim) death = std::chrono::steady_clock::now();
        seconds[i] = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
        if (verdict.failure == nullptr) return;
        said[i] = comm::message_of(verdict.failure);
        reports[i] = verdict.reports ? 1 : 0;
        if (!has_last_word) CHECK(verdict.error == ErrorKind::machine);
      });
    threads.clear();
    const double died = std::chrono::duration<double>(death.time_since_epoch()).count();
    for (int r = 0; r < plan.ranks(); ++r) {
      if (r == victim) continue;
      CAPTURE(r);
      const auto i = static_cast<std::size_t>(r);
      CHECK(said[i] == (has_last_word ? "rank 1 failed: disk on fire" : "rank 1 has failed"));
      CHECK(reports[i] == (r == 0 ? 1 : 0));
      CHECK(seconds[i] - died < 5);
    }
    CHECK(out.losses.size() <= 1);  // rank 0 may hear of the failure before it has read the loss of the first step
  }
  fake::ranks_are_processes = false;
}

TEST_CASE("seats: ranks of a host, and two ranks on one GPU") {
  const auto seat = [](char host, char gpu) {
    train::Seat out;
    out.host[0] = host;
    out.gpu[0] = gpu;
    return out;
  };
  CHECK(train::ranks_a_host({seat('a', 0)}) == 1);
  CHECK(train::ranks_a_host({seat('a', 0), seat('a', 1)}) == 2);
  CHECK(train::ranks_a_host({seat('a', 0), seat('a', 1), seat('b', 0), seat('b', 1)}) == 2);
  CHECK(train::ranks_a_host({seat('a', 0), seat('b', 0), seat('a', 1), seat('b', 1)}) == 4);
  CHECK(train::ranks_a_host({seat('a', 0), seat('a', 1), seat('b', 0)}) == 3);
  std::string said;
  try {
    comm::tcp::run_threads(3, [&](comm::tcp::World& world) {
      train::take_seats(world, seat('a', world.rank() == 2 ? 0 : static_cast<char>(world.rank())));
    });
  } catch (const Failure& e) {
    CHECK(e.kind() == ErrorKind::usage);
    said = e.what();
  }
  CHECK(said.starts_with("ranks 0 and 2 are processes on the same GPU"));
}
