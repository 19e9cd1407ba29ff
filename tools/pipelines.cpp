// Several pipelines beside a plan of one chain of stages.
#include <utility>

#include <galvatron/core/quantity.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/files.hpp>
#include <galvatron/simulate/find_pipelines.hpp>

#include "tasks.hpp"

namespace galvatron::tools {

PipelinesBeside pipelines_beside(FoundPlan& chain, const ModelSpec& model, const std::string& model_name,
                                 const MixedCluster& cluster, const std::string& cluster_name,
                                 const search::SearchOptions& search) {
  constexpr double margin = 1.1;  // plans that are so much slower than the chain are told of, too
  const Seconds chained = chain.feasible ? chain.cost.iteration : Seconds{1e30};
  auto found = simulate::find_pipelines(model, cluster, search, chained * margin);
  PipelinesBeside out{.faster = std::nullopt, .row = {}, .search = found.search};
  if (!found.best) {
    if (found.bound.value > 0 && chain.feasible)
      out.row = row("pipelines", "one on each of several groups takes ",
                    found.bound >= chained ? format_seconds(found.bound) + " at least" : "longer, or does not fit");
    return out;
  }
  simulate::FoundPipelines& best = *found.best;
  const Seconds step = best.simulation.step;
  if (step >= chained) {
    const simulate::WaveSimulation& of = best.simulation;
    const Seconds computing = step * of.utilisation() - of.reduction - of.update;
    chain.plan.predicted.alternatives.push_back(
        {.name = "several pipelines",
         .strategy = joined(best.samples, " + ") + " samples, one on each group",
         .exists = true,
         .fits = true,
         .iteration = step,
         .compute = computing,
         .communication = {},
         .idle = of.passes - computing,
         .update = of.reduction + of.update,
         .peak = best.peak});
    out.row = row("pipelines", counted(std::ssize(best.samples), "pipeline"), ", one on each group, take ",
                  format_seconds(step), ", ", galvatron::detail::formatted("%.2f", step / chained), " times as long");
    return out;
  }
  ReadMultiTaskPlan& plan = out.faster.emplace();
  plan.model = plan.whole = std::move(best.model);
  plan.graphs = value_or_throw(task_graphs(plan.model));
  plan.single = model;
  plan.plan = {.model = model_name,
               .cluster = cluster_name,
               .global_batch = search.global_batch,
               .tasks = {},
               .pipelines = std::move(best.samples),
               .sequence_length = best.sequence,
               .precision = search.precision,
               .waves = std::move(best.plan),
               .predicted = {.iteration = step,
                             .bound = {},
                             .in_sequence = {},
                             .by_task = {},
                             .peak = best.peak,
                             .pipelined = {},
                             .one_chain = chain.feasible ? chained : Seconds{}}};
  return out;
}

}  // namespace galvatron::tools
