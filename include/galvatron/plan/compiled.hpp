// find_plan with the search, find_model and find_cluster, compiled elsewhere: most of what a program that plans takes
// to compile. What includes this and links galvatron::planner does not compile them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/cluster/presets.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/model/zoo.hpp>
#include <galvatron/plan/find.hpp>
#include <galvatron/search/search.hpp>

#define GALVATRON_FIND_MODEL Result<ModelSpec> find_model<>(std::string_view)
#define GALVATRON_FIND_CLUSTER Result<Cluster> find_cluster<>(std::string_view)
#define GALVATRON_SEARCH \
  Result<search::SearchResult> search::search<Team>(const ModelSpec&, const Cluster&, const SearchOptions&)
#define GALVATRON_FIND_PLAN \
  Result<FoundPlan> find_plan<Team>(const ModelSpec&, const ClusterView&, const SearchOptions&)
#define GALVATRON_SEARCH_MIXED \
  Result<search::SearchResult> search::search_mixed<Team>(const ModelSpec&, const ClusterView&, const SearchOptions&)
#define GALVATRON_SWEEP                                                                  \
  Result<Sweep> sweep_batches<Team>(const ModelSpec&, const ClusterView&, SearchOptions, \
                                    const std::vector<std::int64_t>&, double)

namespace galvatron {
extern template GALVATRON_FIND_MODEL;
extern template GALVATRON_FIND_CLUSTER;
extern template GALVATRON_SEARCH;
extern template GALVATRON_SEARCH_MIXED;
extern template GALVATRON_FIND_PLAN;
extern template GALVATRON_SWEEP;
}  // namespace galvatron
