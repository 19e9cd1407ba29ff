// Several tasks on ranks that are held to a fixed share of a core, each of whose operators has a fixed cost: in waves,
// one task after the other, and each on a group of ranks of its own; predicted and measured. Prints the table of
// docs/multitask.md.
//
//   benchmark_task_waves [--model clip-tiny] [--ranks 4,8] [--share 0.1] [--operator-ms 4] [--steps 8]
//
// A rank computes for real, and then sleeps: an operation that took c seconds of a core lasts fixed + c / share seconds
// on the clock. All ranks together ask for less than the machine has, so that none of them takes from another, and a
// rank that waits wastes its share, as a device does that is one's own. Messages between ranks are as fast as they are.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/prctl.h>

#include <galvatron/comm/thread/world.hpp>
#include <galvatron/data/task_data.hpp>
#include <galvatron/device/host/host.hpp>
#include <galvatron/model/multi_task_json.hpp>
#include <galvatron/plan/multi_task_plan.hpp>
#include <galvatron/profile/host.hpp>
#include <galvatron/simulate/find_waves.hpp>
#include <galvatron/train/task_trainer.hpp>

#include "guarded.hpp"

namespace {

using namespace galvatron;

struct Arguments {
  std::string model = "clip-tiny";
  std::int64_t batch = 0;
  std::vector<int> ranks{4, 8};
  double share = 0.1;
  double operator_ms = 4;
  double profile_seconds = 12;
  int steps = 8;
};

void options(CLI::App& app, Arguments& a) {
  app.add_option("--model", a.model, "a multi-task model (default: clip-tiny)");
  app.add_option("--batch", a.batch, "samples of all tasks in a step (default: the model's)");
  app.add_option("--ranks", a.ranks, "numbers of ranks (default: 4,8)")->delimiter(',');
  app.add_option("--share", a.share, "of a core, of each rank (default: 0.1)");
  app.add_option("--operator-ms", a.operator_ms, "fixed cost of an operation (default: 4)");
  app.add_option("--profile-seconds", a.profile_seconds, "how long to profile (default: 12)");
  app.add_option("--steps", a.steps, "of each schedule, the first of which does not count (default: 8)");
}

/// How long an operation lasts.
struct Pace {
  double share = 1;
  double fixed = 0;  // seconds
  [[nodiscard]] double seconds(double of_core) const { return fixed + of_core / share; }
};

double core_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// A host device whose operations last as long as its pace says.
class HeldHost : public device::Host {
 public:
  HeldHost(int threads, View<std::byte> workspace, const Pace& pace) : Host(threads, workspace), pace_(pace) {
    ::prctl(PR_SET_TIMERSLACK, 1);
  }

  template <class A, class C>
  void gemm(op::Kind kind, std::int64_t m, std::int64_t n, std::int64_t k, View<A> a, device::In<A> b, View<C> c,
            bool accumulate = false, device::In<A> bias = {}) {
    hold([&] { Host::gemm(kind, m, n, k, a, b, c, accumulate, bias); });
  }
  template <class T>
  void gemm_activation(ActivationKind kind, std::int64_t m, std::int64_t n, std::int64_t k, device::In<T> a,
                       device::In<T> b, device::In<T> bias, View<T> u, View<T> g) {
    gemm(op::Kind::gemm_nt, m, inputs_of(kind) * n, k, a, b, u, false, bias);
    activation_forward(kind, m, n, u, g);
  }
  template <class T>
  void gemm_activation_backward(ActivationKind kind, std::int64_t m, std::int64_t n, std::int64_t k, device::In<T> a,
                                device::In<T> b, device::In<T> u, View<T> dg, View<T> du) {
    gemm(op::Kind::gemm_nn, m, n, k, a, b, dg);
    activation_backward(kind, m, n, u, dg, du);
  }
#define HELD(operation)                   \
  void operation(const auto&... a) {      \
    hold([&] { Host::operation(a...); }); \
  }
  HELD(attention_forward)
  HELD(attention_backward)
  HELD(norm_forward)
  HELD(add_norm_forward)
  HELD(norm_recompute)
  HELD(norm_backward)
  HELD(add)
  HELD(activation_forward)
  HELD(activation_backward)
  HELD(bias_gradient)
  HELD(rotary)
  HELD(embedding_forward)
  HELD(embedding_backward)
  HELD(position_forward)
  HELD(position_backward)
  HELD(pool_forward)
  HELD(pool_backward)
  HELD(softmax_statistics)
  HELD(softmax_merge)
  HELD(softmax_backward)
  HELD(exponential_row)
  HELD(exponential_row_backward)
  HELD(copy_runs)
  HELD(add_runs)
  HELD(accumulate)
  HELD(adamw)
  HELD(norm_squared)
  HELD(zero)
  HELD(copy)
#undef HELD

 private:
  // Ends when the pace says; what a sleep takes too long is taken off the next operation.
  template <class F>
  void hold(const F& operation) {
    constexpr double slack = 10e-3;
    const double now = steady_seconds();
    const double begin = now - due_ < slack ? due_ : now;
    const double core = core_seconds();
    operation();
    due_ = begin + pace_.seconds(core_seconds() - core);
    if (const double left = due_ - steady_seconds(); left > 0)
      std::this_thread::sleep_for(std::chrono::duration<double>(left));
  }

  Pace pace_;
  double due_ = 0;  // when the last operation was to end
};

class HeldRank {
 public:
  using Device = HeldHost;
  HeldRank(const cost::StageMemory& planned, int threads, const Pace& pace)
      : mapping_(planned.total(), false),
        memory_(planned, mapping_),
        device_(threads, memory_.library.take<std::byte>(memory_.library.capacity()), pace) {}
  train::RankMemory& memory() { return memory_; }
  Device& device() { return device_; }

 private:
  device::Mapping mapping_;
  train::RankMemory memory_;
  Device device_;
};

struct HeldPlatform {
  using Rank = HeldRank;
  int threads = 1;
  Pace pace;
  void enter() const { omp_set_num_threads(threads); }
  void between_steps() const {}
  void enter_beside() const {}
  [[nodiscard]] Bytes library_workspace() const { return {device::Host::library_workspace_bytes(threads)}; }
  [[nodiscard]] Rank make(const cost::StageMemory& planned) const { return {planned, threads, pace}; }
};

/// The cluster of such ranks: what one rank alone takes of a core, at its pace. Messages are those that were measured.
Cluster held(const Cluster& measured, const Pace& pace) {
  Cluster out = measured;
  out.name = "held";
  out.cores = 0;
  const auto slower = [&](auto& tables) {
    std::erase_if(tables, [](const auto& table) { return table.concurrency != 1; });
    for (auto& table : tables) {
      std::vector<double> seconds = table.seconds.seconds();
      for (double& value : seconds) value = pace.seconds(value);
      table.seconds = {table.seconds.axes(), std::move(seconds)};
      table.concurrency = 0;
    }
  };
  slower(out.gemm);
  slower(out.attention);
  slower(out.memory_bound);
  for (MessageTable& table : out.messages) table.concurrency = 0;
  out.device.launch = {pace.fixed};
  out.device.memory_bandwidth *= pace.share;
  for (PrecisionRate& rate : out.device.rates) rate.peak_flops *= pace.share;
  return out;
}

double measured_seconds(const MultiTaskModel& model, const simulate::FoundWaves& found, const Pace& pace, int steps) {
  train::TaskData data = train::TaskData::synthetic(model, 1);
  const std::vector<train::TaskSources> sources = data.sources();
  const train::TaskPlan plan = value_or_throw(train::task_plan(model, found.plan, found.order));
  return train::detail::train_task_ranks(model, plan, sources, {.steps = steps, .learning_rate = {.steps = steps}},
                                         [&](const auto& train_one) {
                                           comm::thread::run(plan.ranks, [&](comm::thread::World& world) {
                                             train_one(world, HeldPlatform{1, pace});
                                           });
                                         })
      .iteration_seconds;
}

int run(const Arguments& a) {
  const MultiTaskModel model = value_or_throw(load_multi_task_model(a.model).and_then(
      [&](MultiTaskModel found) { return with_global_batch(std::move(found), a.batch); }));
  const Pace pace{a.share, a.operator_ms * 1e-3};
  std::printf("%s, %lld samples a step, ranks of %g of a core, %g ms an operation\n\n", model.name.c_str(),
              static_cast<long long>(global_batch_of(model)), a.share, a.operator_ms);
  std::printf("| ranks | schedule | waves | predicted | measured | measured over predicted | over waves |\n");
  std::printf("|---|---|---|---|---|---|---|\n");
  for (const int ranks : a.ranks) {
    const Cluster cluster = held(value_or_throw(train::profile_host({.ranks = ranks,
                                                                     .threads_per_rank = 1,
                                                                     .precisions = {Precision::fp32},
                                                                     .time_budget = {a.profile_seconds},
                                                                     .accepts_busy = true})),
                                 pace);
    double in_waves = 0;
    for (const simulate::TaskSchedule schedule :
         {simulate::TaskSchedule::waves, simulate::TaskSchedule::sequence, simulate::TaskSchedule::groups}) {
      const auto found = simulate::find_waves(model, cluster, {.precision = Precision::fp32, .schedule = schedule});
      if (!found) {
        std::printf("| %d | %s | no plan |\n", ranks, simulate::name_of(schedule));
        continue;
      }
      const double seconds = measured_seconds(model, *found, pace, a.steps);
      if (schedule == simulate::TaskSchedule::waves) in_waves = seconds;
      const double predicted = found->simulation.step.value;
      std::printf("| %d | %s | %zu | %.1f ms | %.1f ms | %.3f | %.2f |\n", ranks, simulate::name_of(schedule),
                  found->plan.waves.size(), predicted * 1e3, seconds * 1e3, seconds / predicted, seconds / in_waves);
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded<Arguments>("benchmark_task_waves", "Several tasks on held ranks: in waves, in sequence, in groups",
                            argc, argv, options, run);
}
