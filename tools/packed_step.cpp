#include "packed_step.hpp"

#include <cstddef>

#include <galvatron/core/text.hpp>

#include "lengths_file.hpp"
#include "output.hpp"
#include "plans.hpp"

namespace galvatron::tools {

void step_lengths_option(Options& options, std::string& path) {
  options.text(
      "--lengths", path, "FILE",
      "of a plan for documents: show a step with the first documents of these lengths, in tokens, one number a "
      "line (gzip is read too)");
}

const Cluster& group_of(const Plan& plan, const MixedCluster& cluster) {
  return cluster.groups[static_cast<std::size_t>(plan.stages.front().group)];
}

train::PackedStep step_of_lengths(const Plan& plan, const ModelSpec& model, const MixedCluster& cluster,
                                  const std::string& path) {
  if (!plan.packed)
    refuse("--lengths are of documents, and the plan is for samples of ", plan.sequence_length,
           " tokens; make one with `galvatron plan --lengths`");
  const PackedDocuments documents = documents_of_lengths(read_lengths(path), plan.global_batch, 0);
  return value_or_throw(train::packed_step(plan, model, group_of(plan, cluster), documents.steps.front()));
}

std::string step_text(const Plan& plan, const std::string& path) {
  return text_of("the first ", plan.global_batch, " of ", path);
}

}  // namespace galvatron::tools
