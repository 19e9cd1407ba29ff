// Presets by name, and plans that are found for them.
#pragma once

#include <string>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/cluster/presets.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/model/zoo.hpp>
#include <galvatron/plan/compiled.hpp>
#include <galvatron/plan/find.hpp>

namespace galvatron::test {

inline ModelSpec model_named(const std::string& name) { return value_or_throw(find_model(name)); }
inline Cluster cluster_named(const std::string& name) { return value_or_throw(find_cluster(name)); }
inline FoundPlan found(const ModelSpec& model, const ClusterView& cluster, const search::SearchOptions& options) {
  return value_or_throw(find_plan(model, cluster, options));
}

}  // namespace galvatron::test
