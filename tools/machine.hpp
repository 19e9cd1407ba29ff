// This machine as a cluster, and what it can hold.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>

#include "options.hpp"
#include "output.hpp"

namespace galvatron::tools {

/// A preset or a cluster file. `host` has only the precisions of this processor, and what its libraries take.
/// @param ranks  of `host`; 0: one a core
/// Throws Failure (usage) for an unknown or bad one.
Cluster cluster_named(const std::string& name_or_path, int ranks = 0);

/// Of one of the three words that --precision takes.
Precision precision_named(const std::string& option);

/// The precision named by an option, or without one bf16 where the cluster has it, else fp32. Throws Failure (usage)
/// when the cluster lacks what is named.
Precision chosen_precision(const std::string& option, const Cluster& cluster);

/// The option --moments, for precision_named.
void moments_option(Options& options, std::string& moments);

/// The cores of this machine as a cluster before anything is measured. @param ranks  0: one a core
Cluster host_before_profile(int ranks);

}  // namespace galvatron::tools
