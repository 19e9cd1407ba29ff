// The facade through which tests train: a plan, a model and a number of steps in; losses, gradients, parameters and
// bytes out, whatever the runtime is. Rank threads here; run_rank.hpp has one rank on any device.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/cost/memory.hpp>
#include <galvatron/data/batch_source.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/strategy/parameters.hpp>

namespace toy {

using namespace galvatron;

/// Whole tensors by layer number and name, put together from all ranks' shards.
using Gradients = std::map<std::pair<int, ParameterName>, std::vector<double>>;
using WholeParameters = std::map<std::pair<int, ParameterName>, std::vector<float>>;

/// Writes the elements [index, index + values.count) of a whole tensor, counted row by row.
using InitialValues =
    std::function<void(int layer, const ParameterTensor& tensor, std::int64_t index, View<float> values)>;

using Milliseconds = std::chrono::duration<double, std::milli>;

/// Time that a rank sleeps in each pass of a block, for tests of overlap and of bubbles.
struct BlockSleeps {
  Milliseconds forward{};
  Milliseconds backward_input{};
  Milliseconds backward_weight{};
  bool computes = true;           ///< false: blocks, embedding and head do nothing, and there are no parameters
  Milliseconds* slept = nullptr;  ///< grows by what the rank slept
  [[nodiscard]] bool any() const { return !computes || (forward + backward_input + backward_weight).count() > 0; }
};

/// How to train. The defaults suit the toy models.
struct RunOptions {
  int steps = 1;
  train::BatchSource* source = nullptr;  ///< for all ranks; null: source_of(model)
  InitialValues initial{};               ///< of the parameters; empty: initial_values(7)
  std::function<device::AdamW(int step)>
      optimizer{};    ///< of a step, counted from 0; empty: a rate that suits the model
  double clip = 1.0;  ///< the largest gradient norm; 0: no clipping
  BlockSleeps sleeps{};
  std::function<void(int step)> before_step{};  ///< on every rank
  std::function<void(int step)> after_step{};   ///< on every rank, when its step is done
};

/// Bytes of a rank: states, stash, boundary, workspace, library.
struct RankBytes {
  cost::StageMemory planned;
  cost::StageMemory measured;  ///< the highest address in use
};

/// What a run gives. Of ranks in other processes only what this process has.
struct Outcome {
  std::vector<double> losses;      ///< rank 0's
  std::vector<double> norms;       ///< before clipping
  Gradients gradients;             ///< of the first step, before clipping
  Gradients last_gradients;        ///< of the last step
  WholeParameters parameters;      ///< after the last step, in fp32
  bool copies_agree = true;        ///< ranks that have the same parameter have the same bits of it
  std::map<int, RankBytes> bytes;  ///< by rank
  bool memory_as_planned = true;   ///< on all ranks, to the byte
};

/// Trains on rank threads of one core each, in the plan's precision.
Outcome run(const Plan& plan, const ModelSpec& model, const RunOptions& options);
inline Outcome run(const Plan& plan, const ModelSpec& model, int steps) {
  return run(plan, model, RunOptions{.steps = steps});
}

/// Trains as the calling rank of any world, on one core, in the plan's precision; `out` is this rank's own.
void run_on(comm::World& world, const Plan& plan, const ModelSpec& model, const RunOptions& options, Outcome& out);

/// Where two runs differ first, in words; empty when losses, norms, gradients and parameters have the same bits.
std::string differences(const Outcome& a, const Outcome& b);

/// The largest relative difference between two loss curves; infinite where a loss is not a number.
double difference(const std::vector<double>& a, const std::vector<double>& b);

/// The largest relative L2 difference of a tensor. Vocabulary rows beyond the model's are padding and 0 everywhere.
double difference(const Gradients& a, const Gradients& b);

}  // namespace toy
