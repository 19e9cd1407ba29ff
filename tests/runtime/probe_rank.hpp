// A rank of the probes: memory, a device and a context for executors.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include <galvatron/comm/thread/world.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/device/host/host.hpp>
#include <galvatron/model/layers.hpp>
#include <galvatron/program/lower.hpp>
#include <galvatron/runtime/executor.hpp>

namespace galvatron::test {

using HostContext = runtime::Context<device::Host>;
using HostGroups = runtime::ParameterGroups<device::Host, float>;
using HostExecutor = runtime::Executor<device::Host, float>;

struct ProbeRank {
  explicit ProbeRank(comm::World& ranks) : world(ranks) {}

  /// @param context_ranks, shard_ranks  world ranks that share the sequence, and those that share the parameters
  HostContext context(const StrategySpec& spec, std::span<const int> context_ranks, std::span<const int> shard_ranks,
                      std::int64_t sequence) {
    const int self[] = {world.rank()};
    return {host,
            workspace,
            world,
            world.group(self),
            &world.group(context_ranks),
            world.group(shard_ranks),
            world.group(self),
            world.group(shard_ranks),
            spec,
            runtime::MicroBatch{1, sequence}};
  }
  View<float> filled(const std::vector<float>& values) {
    const View<float> out = memory.take<float>(static_cast<std::int64_t>(values.size()));
    std::copy(values.begin(), values.end(), out.begin());
    return out;
  }

  comm::World& world;
  device::Mapping mapping{{4 * size.count}, false};
  device::Region workspace = mapping.region("workspace", 0, size);
  device::Region memory = mapping.region("memory", size.count, size);
  device::Region states = mapping.region("states", 2 * size.count, size);
  device::Region library = mapping.region("library", 3 * size.count, size);
  device::Host host{1, library.take<std::byte>(device::Host::library_workspace_bytes(1))};

 private:
  static constexpr Bytes size{16 << 20};
};

/// The gradients of all parameters but a table, whole, after synchronise(). Padding may follow.
/// @param shards  the ranks that have a part each; null: every rank has all
inline std::vector<float> gradients_of(HostGroups& groups, comm::Group* shards = nullptr) {
  const View<const float> own = groups.rest().view().gradients;
  std::vector<float> out(static_cast<std::size_t>(own.count * (shards != nullptr ? shards->size() : 1)));
  if (shards != nullptr)
    shards->all_gather(own, View<float>(out.data(), static_cast<std::int64_t>(out.size())));
  else
    std::copy(own.begin(), own.end(), out.begin());
  return out;
}

/// Values of a tensor that differ, for tests.
inline std::vector<float> wave(std::int64_t count, float shift) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < count; ++i) out.push_back(std::sin(static_cast<float>(i) * 0.37F + shift));
  return out;
}

inline bool is_near(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!(std::abs(a[i] - b[i]) < 1e-4F * (1 + std::abs(b[i])))) return false;
  return true;
}

inline constexpr std::int64_t probe_width = 32;

/// Two linear layers.
inline forward::Graph two_linear_layers(const LayerSpec& l) {
  forward::Builder b(l);
  const forward::Width h = b.whole(l.hidden);
  const forward::Tensor u = b.linear(b.input(h), b.weight(user_parameter(0), h, h), b.vector(user_parameter(1), h));
  b.output(b.linear(u, b.weight(user_parameter(2), h, h)));
  return b.graph();
}

inline LayerSpec linear_layer() {
  return {.hidden = probe_width,
          .heads = 1,
          .kv_heads = 1,
          .head_dim = probe_width,
          .ffn = probe_width,
          .positions = 64,
          .forward_pass = two_linear_layers};
}

/// The rows [first, first + count) of a wave.
inline std::vector<float> rows_of(std::int64_t first, std::int64_t count, float shift) {
  const std::vector<float> all = wave(64 * probe_width, shift);
  return {all.begin() + first * probe_width, all.begin() + (first + count) * probe_width};
}

/// A pass over `rows` rows of a layer, and its gradients.
inline void run_linear(ProbeRank& rank, HostExecutor& executor, std::int64_t first, std::int64_t rows) {
  const auto slot = executor.take_slot(rank.memory);
  const std::vector<float> x = rows_of(first, rows, 0);
  std::copy(x.begin(), x.end(), executor.input(slot).begin());
  executor.run(program::Phase::forward, slot, nullptr,
               rank.memory.take<float>(std::max<std::int64_t>(rows, 1) * probe_width));
  executor.run(program::Phase::backward, slot, nullptr,
               rank.filled(rows_of(first, std::max<std::int64_t>(rows, 1), 1)));
}

/// Gradients of two_linear_layers of so many rows on one rank.
inline std::vector<float> linear_gradients(std::int64_t rows) {
  std::vector<float> out;
  comm::thread::run(1, [&](comm::thread::World& world) {
    ProbeRank rank(world);
    const int self[] = {0};
    auto context = rank.context({}, self, self, rows);
    HostGroups groups(context, linear_layer(), 1, nullptr, nullptr, rank.states);
    groups.rest().initialise(runtime::initial_values(5));
    groups.rest().zero_gradients();
    const auto program = program::lower(forward_of(linear_layer()), {});
    HostExecutor executor(context, program, groups, rows);
    run_linear(rank, executor, 0, rows);
    out = gradients_of(groups);
  });
  return out;
}

}  // namespace galvatron::test
