// Training asks the system for nothing after its first step, and its resident memory is what the plan says.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <new>
#include <string>

#include <doctest/doctest.h>

#include <galvatron/train/compiled.hpp>

#include "toy.hpp"

namespace {

/// oneDNN passes the arguments of every product in a small map of its own; anything larger is somebody's tensor.
constexpr std::size_t most_for_arguments = 512;
std::atomic<bool> counting{false};
std::atomic<long> allocations{0};

void* counted(std::size_t bytes) {
  if (bytes > most_for_arguments && counting.load(std::memory_order_relaxed))
    allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* pointer = std::malloc(bytes == 0 ? 1 : bytes)) return pointer;
  throw std::bad_alloc();
}

double resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmRSS:")) return std::strtod(line.c_str() + 6, nullptr) * 1024;
  return 0;
}

}  // namespace

// Every allocation of this program counts while a test asks for it.
void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes == 0 ? 1 : bytes); }
void operator delete(void* pointer) noexcept { std::free(pointer); }
void operator delete[](void* pointer) noexcept { std::free(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { std::free(pointer); }
void operator delete[](void* pointer, std::size_t) noexcept { std::free(pointer); }

TEST_CASE("training allocates nothing after the first step") {
  using namespace toy;
  const ModelSpec spec = model(true, 4);
  const Plan plan = uniform(spec, 2, {.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 3}, 2,
                            ScheduleKind::one_f_one_b);
  Tokens tokens(plan.sequence_length);
  train::TrainOptions options;
  options.steps = 6;
  options.threads_per_rank = 1;
  long after_first = -1;
  options.on_step = [&](const train::StepReport& report) {
    // The other ranks may still be in the update of this step.
    if (report.step == 1) counting = true;
    if (report.step == 5) {
      counting = false;
      after_first = allocations;
    }
  };
  train::train(plan, spec, tokens, options);
  CHECK(after_first == 0);
}

TEST_CASE("the process is as large as its ranks' arenas and a constant") {
  using namespace toy;
  ModelSpec spec = model(false, 4);
  for (LayerSpec* layer : {&spec.embedding, &spec.head})
    layer->vocabulary = 16384, layer->hidden = 256, layer->head_dim = 32;
  for (LayerSpec& block : spec.blocks)
    block.vocabulary = 16384, block.hidden = 256, block.head_dim = 32, block.ffn = 1024;
  const Plan plan = uniform(spec, 1, {.data = 4}, 1, ScheduleKind::one_f_one_b);
  Tokens tokens(plan.sequence_length);
  train::TrainOptions options;
  options.steps = 3;
  options.threads_per_rank = 1;
  const double before = resident_bytes();
  double during = 0;
  // At the end of the last step other ranks may be gone already.
  options.on_step = [&](const train::StepReport&) { during = std::max(during, resident_bytes()); };
  const train::TrainReport report = train::train(plan, spec, tokens, options);
  double arenas = 0;
  for (const cost::StageMemory& memory : report.measured_memory) arenas += static_cast<double>(memory.total().count);
  // What does not grow with the model: oneDNN's generated code, thread stacks.
  constexpr double constant = 64e6;
  MESSAGE("resident " << (during - before) / 1e6 << " MB, arenas " << arenas / 1e6 << " MB");
  REQUIRE(arenas > 300e6);
  CHECK(during - before < 1.1 * arenas + constant);
  CHECK(during - before > 0.9 * arenas - constant);
}
