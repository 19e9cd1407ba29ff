// Hetu-Galvatron's cost model: memory and time of a layer and of embedding and head under a strategy. MB of 2^20 bytes
// and milliseconds. Facts of the published implementation (v2.4), with its constants, so that its plans and ours can be
// compared on its own terms.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include <galvatron/compat/hetu/cost/profile.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>

namespace galvatron::cost::hetu {

/// How ranks with different samples share the model states, where a layer does not say ZeRO-3.
enum class DataKind : std::uint8_t { ddp, zero2, zero3 };
constexpr const char* name_of(DataKind kind) {
  return kind == DataKind::ddp ? "ddp" : kind == DataKind::zero2 ? "zero2" : "zero3";
}

/// What is trained, on what.
struct Job {
  int devices = 8;
  std::int64_t global_batch = 8;
  std::int64_t hidden = 1;
  std::int64_t sequence = 1;
  int layers = 1;
  double memory_gigabytes = 0;  ///< of a device, 2^30 bytes each
  Precision precision = Precision::bf16;
  DataKind data = DataKind::zero2;
  bool overlapped_reduce = true;  ///< gradients are reduced while the next micro-batches compute
  bool sequence_parallel = true;  ///< Megatron's, with every tensor-parallel layer
  bool gpipe = false;             ///< otherwise 1F1B
};

/// Of one layer. At most one of the two degrees is above 1; the data-parallel degree fills the stage.
struct LayerStrategy {
  int tensor = 1;
  int ulysses = 1;
  bool zero3 = false;  ///< otherwise the job's kind
  bool recompute = false;
  [[nodiscard]] int degree() const { return std::max(tensor, ulysses); }
  friend auto operator<=>(const LayerStrategy&, const LayerStrategy&) = default;
};

/// Of embedding and head. "vtp", "vsp" and "embed_sdp" in Hetu's plans.
struct EndStrategy {
  int degree = 1;
  bool ulysses = false;  ///< the degree is one of sequence parallelism
  bool zero3 = false;
  [[nodiscard]] int tensor() const { return ulysses ? 1 : degree; }
  friend auto operator<=>(const EndStrategy&, const EndStrategy&) = default;
};

/// Milliseconds of a micro-batch and MB of a layer, or of an end of the model.
struct Cost {
  double sync = 0;        ///< forward and backward, with the synchronisation of gradients; 0 for the ends
  double no_sync = 0;     ///< the same without it
  double forward = 0;     ///< the forward part of no_sync
  double states = 0;      ///< MB of parameters, gradients and optimizer
  double activation = 0;  ///< MB of a micro-batch
  /// MB with `in_flight` micro-batches.
  [[nodiscard]] double memory(double in_flight) const { return states + activation * in_flight; }
};

enum class End : std::uint8_t { whole, first, last };

/// What every stage needs besides: inside the rounding of its end.
inline constexpr double reserved_megabytes = 1024;

class Model {
 public:
  Model(Job job, Hardware hardware, ModelProfile profile)
      : job_(job), hardware_(std::move(hardware)), profile_(std::move(profile)) {}

  [[nodiscard]] const Job& job() const { return job_; }

  /// Samples of a micro-batch on a rank; below 1 the degrees do not fit the batch.
  [[nodiscard]] std::int64_t local_batch(int pipeline, int degree, std::int64_t microbatches) const {
    return job_.global_batch / microbatches / (job_.devices / (pipeline * degree));
  }

  /// Throws Failure (usage): a figure that the profiles lack.
  [[nodiscard]] Cost layer(const LayerStrategy& s, int pipeline, std::int64_t microbatches) const {
    const int q = s.degree();
    const int data = job_.devices / (pipeline * q);
    const int shards = data * s.ulysses;
    const auto b = static_cast<double>(local_batch(pipeline, q, microbatches));
    const double checkpoint = job_.sequence_parallel ? profile_.checkpoint / q : profile_.checkpoint;
    const double activation = s.recompute ? checkpoint : at(profile_.activation, q, "activation", "a layer");
    const double inverse = inverse_bandwidth(shards, s.tensor == 1);
    const double collectives = collective_time(s, b);
    const double exchange = exchange_time(pipeline, b);

    Cost out;
    const DataKind kind = s.zero3 ? DataKind::zero3 : job_.data;
    out.states = 4 * profile_.parameters / s.tensor * state_share(kind, shards, microbatches);
    out.activation = activation * b;
    const double forward = profile_.layer.at(b / q);
    const double backward = forward * (s.recompute ? 3 : 2);
    const double reduced = 2.0 * (shards - 1) / shards * profile_.parameters / s.tensor * mixed();
    const double gather = kind == DataKind::zero3 ? 0.5 * reduced * inverse : 0;
    const auto pass = [&](double megabytes) {
      return forward + (data == 1 ? backward : overlapped(megabytes, backward, inverse)) + collectives + gather +
             exchange;
    };
    out.sync = pass(reduced);
    out.no_sync = pass(0);
    // Recomputation adds a half to the messages, all in backward; of the others a third belongs to forward.
    out.forward = forward + collectives / (s.recompute ? 4.5 : 3) + gather + exchange / 2;
    return out;
  }

  /// Embedding and head, or one of them. Throws Failure (usage): a figure that the profiles lack.
  [[nodiscard]] Cost end(const EndStrategy& s, End which, int pipeline, std::int64_t microbatches) const {
    const EndProfile& profile = which == End::whole   ? profile_.whole
                                : which == End::first ? profile_.first
                                                      : profile_.last;
    const char* name = which == End::whole   ? "embedding and head on one stage"
                       : which == End::first ? "the embedding on the first stage"
                                             : "the head on the last stage";
    const int data = job_.devices / (pipeline * s.degree);
    const int shards = s.ulysses ? data * s.degree : data;
    const auto b = static_cast<double>(local_batch(pipeline, s.degree, microbatches));
    const double states = at(profile.states, s.tensor(), "model states", name);
    const double activation = at(profile.activation, s.degree, "activation", name);
    const double inverse = inverse_bandwidth(shards, s.tensor() == 1);
    const double reduce = message_time(true, s.tensor(), b);

    const DataKind kind = s.zero3 ? DataKind::zero3 : job_.data;
    Cost out;
    out.states = states * state_share(kind, shards, microbatches);
    out.activation = activation * b;
    const double forward = profile_.ends.at(b / s.degree) / (which == End::whole ? 1 : 2);
    const double message = states / 4 * mixed() * inverse * (shards - 1) / shards;
    const auto slowed = [this](double communication, double computation) {
      return std::max(communication,
                      communication + (computation * hardware_.overlap - communication) / hardware_.overlap);
    };
    const double half = kind == DataKind::zero3 ? 0.5 : 0;
    // One all-gather for each end: of the embedding's gradient, and of the head's input.
    const double gather = reduce / 2;
    out.forward = slowed(message * half, forward) + (which == End::first ? 0 : gather);
    out.no_sync = out.forward + slowed(message * half, 2 * forward) + (which == End::last ? 0 : gather);
    return out;
  }

  /// MB that Megatron's sequence parallelism needs for gathered activations; `tensor`: the largest degree in use.
  [[nodiscard]] double sequence_buffer(int tensor, int pipeline, std::int64_t microbatches) const {
    if (!job_.sequence_parallel || tensor == 1) return 0;
    const double samples = static_cast<double>(job_.global_batch) / static_cast<double>(microbatches) /
                           (static_cast<double>(job_.devices) / pipeline / tensor);
    return samples * static_cast<double>(job_.hidden) * static_cast<double>(job_.sequence) * 4 / (1 << 20) / 2;
  }

  /// Micro-batches whose activations stage `stage` of `pipeline` holds.
  [[nodiscard]] double in_flight(int stage, int pipeline, std::int64_t microbatches) const {
    if (pipeline == 1) return 1;
    return job_.gpipe ? static_cast<double>(microbatches) : pipeline - stage;
  }

  /// MB that a stage may take: above 20 GB Hetu keeps a fifth back.
  static double usable_megabytes(double gigabytes) { return gigabytes * 1024 * (gigabytes > 20 ? 0.8 : 1); }
  /// The least budget in bytes of which `megabytes` can be used.
  static double budget_bytes(double megabytes) {
    constexpr double unit = 1 << 20;
    if (megabytes <= 20 * 1024) return std::ceil(megabytes * unit);
    double bytes = std::max(std::ceil(megabytes / 0.8 * unit), 20 * 1024 * unit + 1);
    while (usable_megabytes(bytes / (1024 * unit)) < megabytes) bytes = std::max(bytes + 1, bytes * (1 + 1e-15));
    return bytes;
  }

 private:
  [[nodiscard]] double mixed() const { return job_.precision == Precision::bf16 ? 0.5 : 1; }
  [[nodiscard]] double activation_megabytes(double samples) const {
    return samples * static_cast<double>(job_.sequence) * static_cast<double>(job_.hidden) *
           static_cast<double>(element_bytes(job_.precision)) / (1 << 20);
  }

  // The entry of a profile; without one a Failure (usage) that says what is lacking and which options do without.
  template <class Key, class Value, class What>
  static const Value& profiled(const std::map<Key, Value>& table, const Key& key, const char* options,
                               const What& what) {
    const auto found = table.find(key);
    if (found == table.end()) refuse(what(), ", or exclude that degree with ", options);
    return found->second;
  }

  static double at(const std::map<int, double>& table, int degree, const char* what, const char* of) {
    return profiled(table, degree, "--max-tp or --max-pp", [&] {
      return text_of("the memory profile lacks the ", what, " of ", of, " at degree ", degree, "; profile it");
    });
  }

  // Milliseconds of a MB.
  [[nodiscard]] double inverse_bandwidth(int group, bool consecutive) const {
    if (group == 1) return 0;
    const bool flag = consecutive || group == job_.devices;
    return 1 / profiled(hardware_.bandwidth, {group, flag}, "--max-tp or --max-pp", [&] {
             return text_of("the hardware profile lacks allreduce_size_", group, "_consec_", flag,
                            ", the all-reduce bandwidth of ", group, " ranks; profile it");
           });
  }

  [[nodiscard]] double message_time(bool all_reduce, int group, double samples) const {
    if (group == 1) return 0;
    const auto& tables = all_reduce ? hardware_.all_reduce : hardware_.all_to_all;
    const MessageTimes& times = profiled(tables, group, "--max-tp", [&] {
      return text_of("the hardware profile lacks ", all_reduce ? "allreduce" : "all2all", "_size_", group,
                     "_1MB_time and the like, the times of messages among ", group, " ranks; profile them");
    });
    return times.at(activation_megabytes(samples));
  }

  // All-gathers and reduce-scatters of tensor parallelism, or all-to-alls of Ulysses, of a layer.
  [[nodiscard]] double collective_time(const LayerStrategy& s, double samples) const {
    const double repeated = s.recompute ? 1.5 : 1;
    if (s.ulysses > 1) return 4 * repeated * message_time(false, s.ulysses, samples);
    return 6 * repeated * message_time(true, s.tensor, samples) / 2;
  }

  // A layer's part of the messages between stages.
  [[nodiscard]] double exchange_time(int pipeline, double samples) const {
    if (pipeline == 1) return 0;
    const double bandwidth = profiled(hardware_.between_stages, pipeline, "--max-pp", [&] {
      return text_of("the hardware profile lacks pp_size_", pipeline, ", the bandwidth between ", pipeline,
                     " stages; profile it");
    });
    return pipeline * 2 * activation_megabytes(samples) / bandwidth / job_.layers;
  }

  // The part of the model states that a rank of `shards` has at once.
  [[nodiscard]] double state_share(DataKind kind, int shards, std::int64_t microbatches) const {
    if (shards == 1 || kind == DataKind::ddp) return 1;
    const bool mixed = job_.precision == Precision::bf16;
    const double z = 1.0 / shards + 0.003;
    const double without_gradients = mixed ? 7 * z / 8 + 1.0 / 8 : 3 * z / 4 + 1.0 / 4;
    const bool zero3 = kind == DataKind::zero3;
    if (microbatches == 1) return zero3 ? z : without_gradients;
    if (!job_.overlapped_reduce) return (zero3 ? z : without_gradients) * 5 / 4;
    return zero3 ? without_gradients : mixed ? 6 * z / 8 + 2.0 / 8 : z / 2 + 1.0 / 2;
  }

  // Backward and the reduction of `megabytes` at once: each slows the other down while both run.
  [[nodiscard]] double overlapped(double megabytes, double backward, double inverse) const {
    const double slowdown = hardware_.overlap;
    const double communication = megabytes * inverse * slowdown;
    const double computation = backward * slowdown;
    if (communication > computation) return computation + (megabytes - computation / (inverse * slowdown)) * inverse;
    return communication + (backward - communication / slowdown);
  }

  Job job_;
  Hardware hardware_;
  ModelProfile profile_;
};

}  // namespace galvatron::cost::hetu
