// The solver of packed batches, compiled elsewhere: what includes this and links galvatron::planner does not compile
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include <galvatron/flexsp/solve.hpp>

#define GALVATRON_SOLVE_BATCH                                                                             \
  std::optional<flexsp::BatchPlan> flexsp::solve<>(const flexsp::Problem&, std::span<const std::int64_t>, \
                                                   const flexsp::Limits&, int)

namespace galvatron {
extern template GALVATRON_SOLVE_BATCH;
}  // namespace galvatron
