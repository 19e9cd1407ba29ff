// What a step of given documents looks like under a packed plan.
#pragma once

#include <string>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/train/packed_step.hpp>

#include "options.hpp"

namespace galvatron::tools {

/// The option of commands that show a plan. @param path  becomes that of the lengths
void step_lengths_option(Options& options, std::string& path);

/// The devices of a packed plan, whose stages are on one group of a cluster.
const Cluster& group_of(const Plan& plan, const MixedCluster& cluster);

/// A step with the first documents of a file of lengths. Throws Failure (usage): the plan is not for documents, or they
/// do not fit it.
train::PackedStep step_of_lengths(const Plan& plan, const ModelSpec& model, const MixedCluster& cluster,
                                  const std::string& path);

/// `the first 128 of lengths.txt`
std::string step_text(const Plan& plan, const std::string& path);

}  // namespace galvatron::tools
