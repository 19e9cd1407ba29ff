// Clusters and plans, for several commands.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/plan/find.hpp>
#include <galvatron/plan/interval.hpp>

#include "options.hpp"
#include "output.hpp"

namespace galvatron::tools {

/// A preset or a cluster file. `host` has only the precisions of this processor, and what its libraries take.
/// @param ranks  of `host`; 0: one a core
Cluster cluster_named(const std::string& name_or_path, int ranks = 0);

/// The same of a mixed cluster, or of one group.
MixedCluster mixed_cluster_named(const std::string& name_or_path, int ranks = 0);

/// The cores of this machine as a cluster before anything is measured. @param ranks  0: one a core
Cluster host_before_profile(int ranks);

/// What is wanted, which the cluster may lack (Failure, usage); without that bf16 where the cluster has it, else fp32.
Precision chosen_precision(std::optional<Precision> wanted, const ClusterView& cluster);

void moments_option(Options& options, std::optional<Precision>& moments);
void expert_imbalance_option(Options& options, double& imbalance, const std::string& otherwise = "1.5");

/// How tokens go to experts on other ranks, and the numbers of that; 0 and empty: not given.
struct DispatchArguments {
  std::optional<DispatchKind> kind;
  int hashes = 0;
  int width = 0;
  std::optional<ResidualKind> residual;
  double rate = 0;
  double most_rate = 0;

  [[nodiscard]] bool given() const {
    return kind || hashes != 0 || width != 0 || residual || rate != 0 || most_rate != 0;
  }
  /// To a search, and what it adds to the model. Throws Failure (usage): numbers of compression without it.
  void apply(search::SearchOptions& search, ModelSpec& model) const;
};
void dispatch_options(Options& options, DispatchArguments& a);

/// Low-rank adapters; a rank of 0: none.
struct LoraArguments {
  std::int64_t rank = 0;
  double alpha = 0;     ///< 0: twice the rank
  std::string targets;  ///< empty: the usual ones

  /// The model with them. Throws Failure (usage).
  [[nodiscard]] ModelSpec apply(ModelSpec model) const;
};
void lora_options(Options& options, LoraArguments& a, const std::string& with = "");

/// The budget of each device: what was asked for (0: nothing), or, with a note, all that a device has, of the group
/// that has most, if that is less.
Bytes memory_to_plan_with(Bytes wanted, const ClusterView& cluster, const Common& common);

/// The fastest plan of the best batch, with a sign of life while the search takes long. Its `cluster` becomes
/// `cluster_name`. Throws Failure (usage), or Infeasible.
/// @param least_gain  see sweep_batches
Sweep searched_plan(const ModelSpec& model, const ClusterView& cluster, const std::string& cluster_name,
                    const search::SearchOptions& options, const std::vector<std::int64_t>& batches, double least_gain,
                    const Common& common);

/// The documents that a packed plan is searched for.
struct PackedDocuments {
  static constexpr int most_steps = 8;  ///< whose documents are planned for

  std::int64_t batch = 1;                        ///< documents of a step
  std::vector<std::vector<std::int64_t>> steps;  ///< rows of the documents of some
  std::int64_t longest = 1;                      ///< rows of the longest of all
  std::int64_t max_tokens = 0;                   ///< see DocumentsToPlan
};
/// Batches in the order of a file of lengths, from its beginning again where it ends.
PackedDocuments documents_of_lengths(const std::vector<std::int64_t>& lengths, std::int64_t batch,
                                     std::int64_t max_tokens);
/// The options of packed plans. @param with  the option that they belong to
void packing_options(Options& options, std::int64_t& max_tokens, std::optional<SequenceGroupKind>& groups,
                     const std::string& with);
/// The plan for documents: find_packed_plan, or find_group_plan for groups of every batch. Throws as searched_plan.
FoundPlan searched_packed_plan(const ModelSpec& model, const Cluster& cluster, const std::string& cluster_name,
                               const search::SearchOptions& search, const PackedDocuments& documents,
                               std::optional<SequenceGroupKind> groups);

/// A plan that a command is about, and what stands in place of its own model and cluster; empty: its own.
struct PlanArguments {
  std::string path;
  std::string cluster;
  std::string model;
};
void add_plan_options(Options& options, const std::string& name, PlanArguments& a);

/// Model FLOPs over the peak of the devices: ", 41.2 % of peak", or nothing if it is unknown; and as JSON.
std::string mfu_text(double mfu);
void add_mfu(nlohmann::ordered_json& out, double mfu);

/// The 90 % intervals of a prediction, what they are made of, and what narrows them most; as a line of a summary.
void add_interval(nlohmann::ordered_json& out, const PredictionInterval& interval);
void add_spread(nlohmann::ordered_json& out, const PredictionInterval& interval);
std::string interval_row(const PredictionInterval& interval);

/// What `plan` and `cost` say of a stage, and `hetu`.
/// The group of a mixed cluster that a stage is on, beside that.
void add_group(nlohmann::ordered_json& out, const ClusterView& cluster, const PlanStage& stage);
nlohmann::ordered_json stage_json(int first_layer, int last_layer, int devices, Bytes peak, Seconds forward,
                                  Seconds backward);

}  // namespace galvatron::tools
