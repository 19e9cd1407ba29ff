// fit: from a plan and data files to a trained run, in one call.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/json.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/data/data.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/runtime/implemented.hpp>
#include <galvatron/strategy/registry.hpp>
#include <galvatron/train/pack_plan.hpp>
#include <galvatron/train/trainer.hpp>

namespace galvatron::train {

namespace detail {
template <class... Strategies>
TypeList<Strategies...> list_of(TypeList<Strategies...>);
template <class... Policies>
TypeList<Strategy<Policies...>> list_of(Strategy<Policies...>);
}  // namespace detail

/// Why this program cannot run the plan; no error when it can.
/// @tparam List  the strategies of the program
template <class List = InstantiatedStrategies>
Result<void> check_runnable(const Plan& plan, const ModelSpec& model) {
  std::string why = why_inconsistent(plan);
  if (why.empty()) why = why_unfit(plan, model);
  if (!why.empty()) return usage_error("cannot train " + model.name + " with this plan: " + why);
  if (auto done = runtime::check_implemented(model); !done) return done;
  if (plan.trainer != cost::Trainer::galvatron)
    return usage_error("the plan is for " + std::string(name_of(plan.trainer)) +
                       ", whose memory and time are not those of this runtime: plan without --trainer");
  Result<void> known;
  const auto check = [&](const std::string& layer, const StrategySpec& spec) {
    if (known && !is_instantiated(List{}, spec))
      known = usage_error(layer + ": " + not_instantiated<List>(spec).message);
  };
  check("the embedding", plan.embedding);
  for (std::size_t i = 0; i < plan.layers.size(); ++i) check("layer " + std::to_string(i), plan.layers[i]);
  check("the head", plan.head);
  return known;
}

/// Trains `model` as `plan` says on texts (every byte a token) or .bin token files, models of images on .images files;
/// one thread team for each rank.
///
///     const auto report = train::fit<Split>(plan, model, {"text.txt"}, {.steps = 100});
///
/// @tparam Strategies  of the layers: a Strategy<> or a TypeList of some. A plan with others is an error
/// @param options  `seed` also orders the data. A learning rate whose `steps` are left at 1 falls over options.steps
/// @param documents  of a packed plan: how files are cut into documents
/// Errors (usage): a plan that does not suit the model or names a strategy that is not in the list; data files that
/// are missing, damaged, too short, hold tokens beyond the vocabulary or images of another size; a text for a model
/// whose vocabulary is not bytes. Throws what a rank throws: see train().
template <class Strategies = InstantiatedStrategies>
Result<TrainReport> fit(const Plan& plan, const ModelSpec& model, const std::vector<std::filesystem::path>& files,
                        TrainOptions options, const DocumentOptions& documents = {}) {
  using List = decltype(detail::list_of(std::declval<Strategies>()));
  if (auto runnable = check_runnable<List>(plan, model); !runnable)
    return tl::unexpected<Error>(std::move(runnable.error()));
  if (options.steps < 1) return usage_error("cannot train " + std::to_string(options.steps) + " steps: give 1 or more");
  DataOptions reading{.sequence = plan.sequence_length, .seed = options.seed};
  if (plan.packed) reading.documents = documents;
  const auto data = Data::open(files, model, reading);
  if (!data) return tl::unexpected<Error>(data.error());
  options.data_tokens = data->size();
  options.data_crc32c = data->checksum();
  if (options.learning_rate.steps <= 1) options.learning_rate.steps = options.steps;
  if (!plan.packed) return train<List>(plan, model, *data->batches(plan.global_batch), options);
  std::optional<Cluster> cluster;
  if (plan.embedding.groups == SequenceGroupKind::per_batch) {
    auto loaded = load_cluster(plan.cluster);
    if (!loaded) return tl::unexpected<Error>(std::move(loaded.error()));
    cluster = std::move(*loaded);
  }
  const auto batches = packed_batches(*data->documents(), plan, model, cluster ? &*cluster : nullptr);
  if (!batches) return tl::unexpected<Error>(batches.error());
  return train<List>(plan, model, **batches, options);
}

}  // namespace galvatron::train
