#include "launcher.hpp"

#include <cstdlib>
#include <numeric>

#include "train_ranks.hpp"

namespace galvatron::tools {

int ThreadLauncher::threads_per_rank(const Plan& plan) const {
  return galvatron::train::threads_per_rank(plan.ranks());
}

std::vector<int> ThreadLauncher::ranks_here(const Plan& plan) const {
  std::vector<int> ranks(static_cast<std::size_t>(plan.ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

galvatron::train::TrainReport ThreadLauncher::train(const Plan& plan, const ModelSpec& model,
                                                    galvatron::train::BatchSource& source,
                                                    const galvatron::train::TrainOptions& options) {
  return galvatron::train::train(plan, model, source, options);
}

bool started_by_mpirun() { return std::getenv("OMPI_COMM_WORLD_RANK") != nullptr; }

}  // namespace galvatron::tools
