// Simulated plans and measured runs, written down for people.
#pragma once

#include <string>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>

#include "output.hpp"
#include "report/subject.hpp"

namespace galvatron::tools {

/// A run of a plan, to be shown beside what was predicted for it.
struct Run {
  const Plan& plan;
  const ModelSpec& model;
  const Cluster* cluster;  ///< that the plan was made for; null: the one that it names
  simulate::Measured measured;
};

/// Writes the trace (measured ranks and simulated stages) and the report of a run; an empty path: not. Throws Failure
/// (usage) when a file cannot be written; it is whole or not there.
void write_run(const Run& run, const std::string& trace, const std::string& report, const Common& common);

}  // namespace galvatron::tools
