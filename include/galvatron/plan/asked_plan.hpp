// A plan that says what a search was asked for, to be filled in with stages and strategies.
#pragma once

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/search/options.hpp>

namespace galvatron {

/// The model and the cluster are named by their own names.
inline Plan asked_plan(const ModelSpec& model, const ClusterView& cluster, const search::SearchOptions& options) {
  Plan out;
  out.model = model.name;
  out.cluster = cluster.name();
  out.global_batch = options.global_batch;
  out.sequence_length = options.sequence;
  out.precision = options.precision;
  out.trainer = options.trainer;
  out.reserve = options.reserve;
  out.moments = options.moments;
  out.expert_imbalance = options.expert_imbalance;
  out.lsh = options.lsh;
  out.adapters = adapters_of(model);
  return out;
}

}  // namespace galvatron
