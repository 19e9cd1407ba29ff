// Probe: documents of other lengths, packed into one sequence, whose sequence-parallel groups change from one
// micro-batch to the next. Each document is computed as it is alone on one rank.
#include <doctest/doctest.h>

#include <map>
#include <mutex>

#include "probe_rank.hpp"

using namespace galvatron;
using test::HostExecutor;
using test::HostGroups;
using test::probe_width;
using test::ProbeRank;

namespace {

constexpr LayerSpec probe_block{.hidden = probe_width,
                                .heads = 4,
                                .kv_heads = 4,
                                .head_dim = probe_width / 4,
                                .ffn = 64,
                                .positions = 64,
                                .position = PositionKind::rotary};

/// What a pass over rows gives: the output and the gradient of the input, row by row.
struct Rows {
  std::vector<float> y, dx;
};

/// Runs the rows [first, first + rows) of the waves.
Rows run(ProbeRank& rank, HostExecutor& executor, std::int64_t first, std::int64_t rows) {
  const auto slot = executor.take_slot(rank.memory);
  const std::vector<float> x = test::rows_of(first, rows, 0);
  std::copy(x.begin(), x.end(), executor.input(slot).begin());
  const View<float> y = rank.memory.take<float>(rows * probe_width);
  const View<float> d = rank.filled(test::rows_of(first, rows, 1));
  executor.run(program::Phase::forward, slot, nullptr, y);
  executor.run(program::Phase::backward, slot, nullptr, d);
  return {{y.begin(), y.end()}, {d.begin(), d.end()}};
}

/// The documents one by one on one rank: rows as they are in the packed sequence, and the sum of gradients.
Rows alone(const std::vector<Document>& documents, std::vector<float>& gradients) {
  Rows out;
  comm::thread::run(1, [&](comm::thread::World& world) {
    ProbeRank rank(world);
    const int self[] = {0};
    auto context = rank.context({}, self, self, 32);
    HostGroups groups(context, probe_block, 1, nullptr, nullptr, rank.states);
    groups.rest().initialise(runtime::initial_values(5));
    groups.rest().zero_gradients();
    const auto program = program::lower(forward_of(probe_block), {});
    for (const Document& document : documents) {
      auto own = context.with_tokens(document.rows);
      HostExecutor executor(own, program, groups, document.rows);
      const Rows rows = run(rank, executor, document.first, document.rows);
      out.y.insert(out.y.end(), rows.y.begin(), rows.y.end());
      out.dx.insert(out.dx.end(), rows.dx.begin(), rows.dx.end());
    }
    gradients = test::gradients_of(groups);
  });
  return out;
}

}  // namespace

TEST_CASE("three packed documents go through Ulysses of 2 ranks and, in the next micro-batch, of 4") {
  // Two groups of 2 have the same 16 rows each; then one group of 4 has 32.
  const std::vector<Document> small{{0, 5}, {5, 3}, {8, 8}};
  const std::vector<Document> large{{0, 9}, {9, 16}, {25, 7}};
  std::vector<float> gradients_small, gradients_large;
  const std::map<int, Rows> expected{{2, alone(small, gradients_small)}, {4, alone(large, gradients_large)}};
  std::vector<float> gradients = gradients_large;
  for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] += 2 * gradients_small[i];

  comm::thread::run(4, [&](comm::thread::World& world) {
    ProbeRank rank(world);
    const int all[] = {0, 1, 2, 3};
    const int pair[] = {world.rank() / 2 * 2, world.rank() / 2 * 2 + 1};
    auto shared = rank.context({.sequence = SequenceKind::ulysses, .context = 4, .data = 1}, all, all, 32);
    HostGroups groups(shared, probe_block, 1, nullptr, nullptr, rank.states);
    groups.rest().initialise(runtime::initial_values(5));
    groups.rest().zero_gradients();
    const auto program = program::lower(forward_of(probe_block), shared.spec);  // of the kind, whatever the degree
    for (const int degree : {2, 4}) {
      const std::vector<Document>& documents = degree == 2 ? small : large;
      const std::int64_t tokens = 8 * degree;
      const StrategySpec spec{.sequence = SequenceKind::ulysses, .context = degree, .data = 4 / degree};
      auto context = rank.context(spec, degree == 2 ? std::span<const int>(pair) : all, all, tokens);
      context.batch.documents = documents;
      HostExecutor executor(context, program, groups, tokens);
      const std::int64_t first = world.rank() % degree * 8;
      const Rows found = run(rank, executor, first, 8);
      const auto part = [&](const std::vector<float>& whole) {
        return std::span(whole).subspan(static_cast<std::size_t>(first * probe_width), 8 * probe_width);
      };
      CHECK(test::is_near(found.y, part(expected.at(degree).y)));
      CHECK(test::is_near(found.dx, part(expected.at(degree).dx)));
    }
    groups.rest().synchronise();
    std::vector<float> found = test::gradients_of(groups);
    found.resize(gradients.size());
    CHECK(test::is_near(found, gradients));
  });
}
