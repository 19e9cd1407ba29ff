// What a step of a run tells.
#pragma once

#include <cstdint>
#include <numbers>
#include <optional>
#include <string>
#include <vector>

#include <galvatron/core/units.hpp>
#include <galvatron/plan/rank_seconds.hpp>
#include <galvatron/train/expert_dispatch.hpp>
#include <galvatron/train/expert_loads.hpp>

namespace galvatron::train {

/// What rank 0 tells after every step. Other ranks know the same, but for the memory and the times of rank 0.
struct StepReport {
  std::int64_t step = 0;  ///< counts from 0
  double loss = 0;        ///< mean cross-entropy of a prediction, in nats, before the step's update
  double gradient_norm = 0;
  double balance_loss = 0;  ///< of the routers of experts, as StepResult has it; 0: the model has none
  double z_loss = 0;        ///< the same
  DispatchSums dispatch{};  ///< of all layers with experts
  double learning_rate = 0;
  double seconds = 0;       ///< of this step
  std::int64_t tokens = 0;  ///< of the step's samples
  double tokens_per_second = 0;
  double mfu = 0;       ///< model FLOPs over what the plan's devices could do in that time; 0: the plan does not say
  Bytes peak_memory{};  ///< of rank 0's arena so far
  /// Empty, or where the step's numbers stopped being numbers: its update was skipped then.
  std::string skipped{};
  /// Of layers with experts, with TrainOptions::counts_loads; TrainReport keeps those of the last step alone.
  std::vector<ExpertLoads> loads{};
  std::vector<LayerDispatch> layer_dispatch{};  ///< the same, with and without counts_loads
  /// Of several ranks on cores, in the last step of a window (AdaptOptions): the median of each rank's own work.
  std::vector<RankSeconds> ranks{};
  /// Of packed documents, how.
  struct Packed {
    std::int64_t microbatches = 0;
    std::int64_t padding = 0;  ///< rows
    std::string groups{};      ///< as groups_text() has them
    double waited = 0;         ///< seconds that rank 0's process waited for it
  };
  std::optional<Packed> packed{};
  /// Mean cross-entropy of the samples of TrainOptions::validation behind the step's update, in nats; nothing where the
  /// step is not followed by a validation.
  std::optional<double> validation_loss{};
  // Losses in bits per byte of text; 0: not known.
  double bits_per_byte = 0;
  double validation_bits_per_byte = 0;
};

/// A loss of a token, in nats, as bits for each byte of a text with so many tokens a byte.
inline double bits_per_byte(double loss, double tokens_per_byte) { return loss / std::numbers::ln2 * tokens_per_byte; }

}  // namespace galvatron::train
