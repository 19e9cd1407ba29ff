// Attention of packed documents, on the host and by a GPU's kernels in the emulator, against attention of one document
// after the other in double precision.
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/device/cuda/gpu.hpp>

#include "emulated_machine.hpp"
#include "host_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;
using device::AttentionShape;
using device::DocumentRows;
using device::cuda::DocumentGroup;
using device::cuda::DocumentGroups;

using Lengths = std::vector<std::int32_t>;

Lengths cumulative(const Lengths& lengths) {
  Lengths out(lengths.size() + 1, 0);
  std::partial_sum(lengths.begin(), lengths.end(), out.begin() + 1);
  return out;
}

struct PackedSizes {
  std::int64_t heads, kv_heads, head_dim;
  bool causal;
  std::int64_t sliding_window = 0;
  float score_cap = 0;
};

/// Outputs in the order of the rows of their tensors.
template <class X>
struct PackedOutputs {
  std::vector<X> o, dq, dk, dv;
  std::vector<float> lse;
};

/// Queries of documents and their keys, in tensors of their own: as a ring's part has them, or one sequence.
template <class T>
struct PackedProblem {
  AttentionShape shape;
  Lengths query_rows, key_rows;
  std::vector<T> q, k, v, d_o;

  PackedProblem(std::mt19937& random, const PackedSizes& s, const Lengths& queries, const Lengths& keys)
      : query_rows(cumulative(queries)), key_rows(cumulative(keys)) {
    const std::int64_t wide = s.heads * s.head_dim;
    const std::int64_t narrow = s.kv_heads * s.head_dim;
    shape = {.batch = 1,
             .queries = query_rows.back(),
             .keys = key_rows.back(),
             .heads = s.heads,
             .kv_heads = s.kv_heads,
             .head_dim = s.head_dim,
             .causal = s.causal,
             .q_stride = wide + 4,
             .kv_stride = narrow + 8,
             .out_stride = wide,
             .dq_stride = wide + 8,
             .dkv_stride = narrow + 4,
             .lse_stride = query_rows.back() + 3,
             .score_factor = 1.25F,
             .sliding_window = s.sliding_window,
             .score_cap = s.score_cap};
    q = random_tensor<T>(random, shape.queries * shape.q_stride, 2.0F);
    k = random_tensor<T>(random, shape.keys * shape.kv_stride, 2.0F);
    v = random_tensor<T>(random, shape.keys * shape.kv_stride, 2.0F);
    d_o = random_tensor<T>(random, shape.queries * shape.out_stride);
  }
  [[nodiscard]] DocumentRows documents() const { return {query_rows, key_rows}; }

  /// `attend` and `differentiate` of a device, with tensors that begin as what must be overwritten.
  PackedOutputs<T> on(auto& d) {
    constexpr float left = 7;
    PackedOutputs<T> out{.o = std::vector<T>(d_o.size(), T(left)),
                         .dq = std::vector<T>(at(shape.queries * shape.dq_row()), T(left)),
                         .dk = std::vector<T>(at(shape.keys * shape.dkv_row()), T(left)),
                         .dv = std::vector<T>(at(shape.keys * shape.dkv_row()), T(left)),
                         .lse = std::vector<float>(at(shape.heads * shape.lse_stride), left)};
    d.attention_forward(shape, view(q), view(k), view(v), view(out.o), view(out.lse), device::AttentionBias{},
                        documents());
    // Around a ring a query without keys in this part has some in another.
    std::vector<float> lse = out.lse;
    for (float& x : lse)
      if (std::isinf(x)) x = 0;
    std::vector<float> delta(lse.size());
    d.attention_backward(shape, view(q), view(k), view(v), view(out.o), view(lse), view(d_o), view(out.dq),
                         view(out.dk), view(out.dv), view(delta), device::AttentionBias{}, documents());
    return out;
  }

  /// Softmax by its definition. Elements between rows are as `on` leaves them.
  [[nodiscard]] PackedOutputs<double> reference() const {
    constexpr double left = 7;
    PackedOutputs<double> out{.o = std::vector<double>(d_o.size(), left),
                              .dq = std::vector<double>(at(shape.queries * shape.dq_row()), left),
                              .dk = std::vector<double>(at(shape.keys * shape.dkv_row()), left),
                              .dv = std::vector<double>(at(shape.keys * shape.dkv_row()), left),
                              .lse = std::vector<float>(at(shape.heads * shape.lse_stride), left)};
    const auto clear = [&](std::vector<double>& x, std::int64_t rows, std::int64_t stride, std::int64_t heads) {
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t i = 0; i < heads * shape.head_dim; ++i) x[at(r * stride + i)] = 0;
    };
    clear(out.o, shape.queries, shape.out_stride, shape.heads);
    clear(out.dq, shape.queries, shape.dq_row(), shape.heads);
    clear(out.dk, shape.keys, shape.dkv_row(), shape.kv_heads);
    clear(out.dv, shape.keys, shape.dkv_row(), shape.kv_heads);
    for (std::size_t i = 0; i + 1 < query_rows.size(); ++i)
      for (std::int64_t head = 0; head < shape.heads; ++head)
        for (std::int32_t query = query_rows[i]; query < query_rows[i + 1]; ++query) {
          const std::int32_t seen = shape.causal ? key_rows[i] + query - query_rows[i] + 1 : key_rows[i + 1];
          const auto window = static_cast<std::int32_t>(shape.sliding_window);
          attend(out, head, query, window > 0 ? std::max(key_rows[i], seen - window) : key_rows[i], seen);
        }
    return out;
  }

 private:
  void attend(PackedOutputs<double>& out, std::int64_t head, std::int64_t query, std::int64_t first,
              std::int64_t end) const {
    const std::int64_t kv_head = head / (shape.heads / shape.kv_heads);
    const auto number = [](T x) { return static_cast<double>(static_cast<float>(x)); };
    const auto dot = [&](const std::vector<T>& a, std::int64_t at_a, const std::vector<T>& b, std::int64_t at_b) {
      double sum = 0;
      for (std::int64_t e = 0; e < shape.head_dim; ++e) sum += number(a[at(at_a + e)]) * number(b[at(at_b + e)]);
      return sum;
    };
    const std::int64_t at_q = query * shape.q_stride + head * shape.head_dim;
    const std::int64_t at_o = query * shape.out_stride + head * shape.head_dim;
    const auto at_k = [&](std::int64_t key) { return key * shape.kv_stride + kv_head * shape.head_dim; };
    const double scale = shape.score_scale();
    const auto cap = static_cast<double>(shape.score_cap);
    std::vector<double> weights, slopes;
    double sum = 0;
    for (std::int64_t key = first; key < end; ++key) {
      double score = scale * dot(q, at_q, k, at_k(key));
      if (cap > 0) score = cap * std::tanh(score / cap);
      slopes.push_back(cap > 0 ? 1 - score / cap * (score / cap) : 1.0);
      weights.push_back(std::exp(score));
      sum += weights.back();
    }
    out.lse[at(head * shape.lse_stride + query)] =
        weights.empty() ? -std::numeric_limits<float>::infinity() : static_cast<float>(std::log(sum));
    double delta = 0;
    for (std::int64_t key = first; key < end; ++key) {
      weights[at(key - first)] /= sum;
      delta += weights[at(key - first)] * dot(d_o, at_o, v, at_k(key));
      for (std::int64_t e = 0; e < shape.head_dim; ++e)
        out.o[at(at_o + e)] += weights[at(key - first)] * number(v[at(at_k(key) + e)]);
    }
    for (std::int64_t key = first; key < end; ++key) {
      const double p = weights[at(key - first)];
      const double ds = scale * slopes[at(key - first)] * p * (dot(d_o, at_o, v, at_k(key)) - delta);
      const std::int64_t to = key * shape.dkv_row() + kv_head * shape.head_dim;
      for (std::int64_t e = 0; e < shape.head_dim; ++e) {
        out.dv[at(to + e)] += p * number(d_o[at(at_o + e)]);
        out.dk[at(to + e)] += ds * number(q[at(at_q + e)]);
        out.dq[at(query * shape.dq_row() + head * shape.head_dim + e)] += ds * number(k[at(at_k(key) + e)]);
      }
    }
  }
};

template <class T>
void compare_packed(const PackedOutputs<T>& got, const PackedOutputs<double>& wanted) {
  constexpr bool single = std::is_same_v<T, float>;
  CHECK(error_of(got.o, wanted.o) < (single ? 4e-6 : 1e-2));
  CHECK(error_of(got.dq, wanted.dq) < (single ? 1e-5 : 2e-2));
  CHECK(error_of(got.dk, wanted.dk) < (single ? 1e-5 : 2e-2));
  CHECK(error_of(got.dv, wanted.dv) < (single ? 1e-5 : 2e-2));
  REQUIRE(got.lse.size() == wanted.lse.size());
  for (std::size_t i = 0; i < got.lse.size(); ++i)
    if (std::isinf(wanted.lse[i]))
      CHECK(got.lse[i] == wanted.lse[i]);
    else
      CHECK(std::abs(got.lse[i] - wanted.lse[i]) < 1e-5F * (1 + std::abs(wanted.lse[i])));
}

/// Launches and outputs of the kernels.
template <class T>
std::pair<int, PackedOutputs<T>> on_emulated_gpu(PackedProblem<T>& problem, std::uint64_t seed = 3) {
  EmulatedMachine machine(seed);
  device::cuda::Gpu<EmulatedMachine> gpu(machine);
  PackedOutputs<T> out = problem.on(gpu);
  return {machine.launches(), std::move(out)};
}

template <class T>
void check_packed(std::mt19937& random, const PackedSizes& s, const Lengths& queries, const Lengths& keys) {
  CAPTURE(s.heads);
  CAPTURE(s.kv_heads);
  CAPTURE(s.head_dim);
  CAPTURE(s.causal);
  PackedProblem<T> problem(random, s, queries, keys);
  const PackedOutputs<double> wanted = problem.reference();
  for (const int threads : {1, 3}) {
    CAPTURE(threads);
    TestHost host(threads);
    compare_packed(problem.on(*host), wanted);
  }
  const auto [launches, out] = on_emulated_gpu(problem);
  compare_packed(out, wanted);
  CHECK(launches == 3);  // forward, the gradient of queries, that of keys and values
}

/// A machine with attention of its own for groups of documents, as their tables say where they lie.
class TableMachine : public EmulatedMachine {
 public:
  int slots = 0;  ///< with documents, attended to so far

  static bool attention(const AttentionShape&, Precision, auto...) { return false; }
  bool attention(const AttentionShape& s, const DocumentGroups& documents, const std::byte* tables, const bfloat16* q,
                 const bfloat16* k, const bfloat16* v, bfloat16* o, float* lse) {
    for_each_slot(s, documents, tables, [&](const AttentionShape& one, const auto& at) {
      host_->attention_forward(one, at(q, DocumentGroups::of_q), at(k, DocumentGroups::of_kv),
                               at(v, DocumentGroups::of_kv), at(o, DocumentGroups::of_out), at(lse));
    });
    return true;
  }
  bool attention(const AttentionShape& s, const DocumentGroups& documents, const std::byte* tables, const bfloat16* q,
                 const bfloat16* k, const bfloat16* v, const bfloat16* o, const float* lse, const bfloat16* d_o,
                 bfloat16* dq, bfloat16* dk, bfloat16* dv) {
    std::vector<float> delta(at(s.heads * s.lse_row()));
    for_each_slot(s, documents, tables, [&](const AttentionShape& one, const auto& at) {
      host_->attention_backward(one, at(q, DocumentGroups::of_q), at(k, DocumentGroups::of_kv),
                                at(v, DocumentGroups::of_kv), at(o, DocumentGroups::of_out), at(lse),
                                at(d_o, DocumentGroups::of_out), at(dq, DocumentGroups::of_dq),
                                at(dk, DocumentGroups::of_dkv), at(dv, DocumentGroups::of_dkv), view(delta));
    });
    return true;
  }

 private:
  /// body(the shape of a document, at), where at(tensor, kind of its rows) are the rows of the document.
  void for_each_slot(const AttentionShape& s, const DocumentGroups& documents, const std::byte* tables,
                     const auto& body) {
    for (std::size_t i = 0; i < documents.all().size(); ++i) {
      const DocumentGroups::Table table = documents.table(i, tables);
      for (std::int64_t slot = 0; slot < documents.all()[i].slots; ++slot) {
        AttentionShape one = s;
        one.queries = one.keys = table.lengths[slot];
        one.lse_stride = s.lse_row();
        if (one.queries == 0) continue;
        ++slots;
        body(one, Rows{table, slot, s.heads});
      }
    }
  }
  struct Rows {
    const DocumentGroups::Table& table;
    std::int64_t slot, heads;

    template <class X>
    View<X> operator()(X* tensor, DocumentGroups::Rows kind) const {
      return {tensor + table.offsets[static_cast<std::size_t>(kind)][slot], 1};
    }
    template <class X>
    View<X> operator()(X* lse) const {
      return {lse + table.offsets[DocumentGroups::of_statistics][slot] / heads, 1};
    }
  };

  TestHost host_{2};
};

}  // namespace

TEST_CASE_TEMPLATE("packed documents attend to themselves alone, with one launch on a GPU", T, float, bfloat16) {
  std::mt19937 random(61);
  // Of one row, shorter than a tile, longer than one, and padding at the end.
  const Lengths lengths{1, 5, 70, 1, 1, 64, 2, 13, 3};
  for (const bool causal : {true, false}) {
    check_packed<T>(random, {2, 1, 24, causal}, lengths, lengths);
    check_packed<T>(random, {2, 2, 72, causal}, {33, 1, 40}, {33, 1, 40});
    check_packed<T>(random, {1, 1, 132, causal}, {3, 18}, {3, 18});
    check_packed<T>(random, {1, 1, 8, causal}, {1}, {1});
    check_packed<T>(random, {1, 1, 16, causal}, {130}, {130});
  }
  for (const std::int64_t window : {1, 3, 12, 64, 65}) {
    check_packed<T>(random, {2, 1, 24, true, window}, lengths, lengths);
    check_packed<T>(random, {1, 1, 16, true, window}, {130, 2, 70}, {130, 2, 70});
  }
  check_packed<T>(random, {2, 1, 24, true, 0, 1.0F}, lengths, lengths);
  check_packed<T>(random, {1, 1, 16, true, 12, 30.0F}, {130, 2, 70}, {130, 2, 70});
}

TEST_CASE_TEMPLATE("documents of a ring's part have queries without keys, and keys without queries", T, float,
                   bfloat16) {
  std::mt19937 random(67);
  check_packed<T>(random, {4, 2, 16, false}, {3, 0, 70, 5, 4}, {0, 9, 40, 0, 66});
  check_packed<T>(random, {1, 1, 40, false}, {64, 64, 1}, {0, 64, 1});
  check_packed<T>(random, {1, 1, 32, false}, {2, 2}, {130, 3});
}

TEST_CASE("random packed documents attend to themselves alone") {
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  const auto below = [&random](std::int64_t n) { return static_cast<std::int64_t>(random() % at(n)); };
  for (int i = 0; i < 12; ++i) {
    CAPTURE(seed);
    CAPTURE(i);
    const bool causal = below(2) == 0;
    Lengths queries, keys;
    const std::int64_t count = 1 + below(8);
    for (std::int64_t d = 0; d < count; ++d) {
      const std::int64_t most = below(3) == 0 ? 80 : 12;
      queries.push_back(static_cast<std::int32_t>(causal ? 1 + below(most) : below(most)));
      keys.push_back(static_cast<std::int32_t>(causal ? queries.back() : below(most)));
    }
    queries.back() += causal ? 0 : 1;  // there is a row
    keys.back() = causal ? queries.back() : keys.back() + 1;
    const std::int64_t kv_heads = 1 + below(2);
    const std::int64_t window = causal && below(2) == 0 ? 1 + below(90) : 0;
    check_packed<float>(random, {kv_heads * (1 + below(2)), kv_heads, 4 * (1 + below(20)), causal, window}, queries,
                        keys);
  }
}

TEST_CASE("packed attention on a GPU has the same bits in whatever order threads run, and as many launches") {
  std::mt19937 random(71);
  const PackedSizes sizes{2, 1, 16, true};
  PackedProblem<float> many(random, sizes, Lengths(50, 3), Lengths(50, 3));
  const auto [launches, a] = on_emulated_gpu(many, 5);
  const auto [again, b] = on_emulated_gpu(many, 6);
  CHECK(launches == 3);
  CHECK(same_bits(a.o, b.o));
  CHECK(same_bits(a.dq, b.dq));
  CHECK(same_bits(a.dk, b.dk));
  CHECK(same_bits(a.dv, b.dv));
}

TEST_CASE("neighbours of like lengths are a group, with slots to a power of four") {
  const PackedSizes sizes{2, 1, 8, true};
  std::mt19937 random(73);
  const Lengths lengths{512, 300, 0, 129, 256, 1, 5, 128, 7, 0, 9, 400};
  const PackedProblem<bfloat16> problem(random, sizes, lengths, lengths);
  const DocumentGroups groups(problem.shape, problem.documents());
  std::vector<std::byte> memory(at(groups.bytes()) + 16, std::byte{0x7f});
  groups.write(memory.data());
  CHECK(memory[at(groups.bytes())] == std::byte{0x7f});
  struct Wanted {
    std::int64_t tokens;
    std::vector<std::int64_t> lengths, rows;
  };
  const std::int64_t end = 1347;
  const Wanted wanted[] = {{512, {512, 300, 0, 0}, {0, 512, 812, 812, 812}},
                           {256, {129, 256, 0, 0}, {812, 941, 1197, 1197, 1197}},
                           {128,
                            {1, 5, 128, 7, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
                            {1197, 1198, 1203, 1331, 1338, end, end, end, end, end, end, end, end, end, end, end, end}},
                           {512, {400}, {end, end + 400}}};
  REQUIRE(groups.all().size() == std::size(wanted));
  for (std::size_t i = 0; i < groups.all().size(); ++i) {
    const DocumentGroup& group = groups.all()[i];
    CHECK(group.tokens == wanted[i].tokens);
    REQUIRE(group.slots == std::ssize(wanted[i].lengths));
    const DocumentGroups::Table table = groups.table(i, memory.data());
    for (std::int64_t slot = 0; slot < group.slots; ++slot) CHECK(table.lengths[slot] == wanted[i].lengths[at(slot)]);
    for (std::int64_t slot = 0; slot <= group.slots; ++slot) {
      const std::int64_t row = wanted[i].rows[at(slot)];
      CHECK(table.offsets[DocumentGroups::of_q][slot] == row * problem.shape.q_stride);
      CHECK(table.offsets[DocumentGroups::of_kv][slot] == row * problem.shape.kv_stride);
      CHECK(table.offsets[DocumentGroups::of_out][slot] == row * problem.shape.out_stride);
      CHECK(table.offsets[DocumentGroups::of_statistics][slot] == row * problem.shape.heads);
      CHECK(table.offsets[DocumentGroups::of_dq][slot] == row * problem.shape.dq_row());
      CHECK(table.offsets[DocumentGroups::of_dkv][slot] == row * problem.shape.dkv_row());
    }
  }

  const Lengths many = cumulative(Lengths(1500, 1));
  const DocumentGroups halves(problem.shape, DocumentRows{many, many});
  REQUIRE(halves.all().size() == 2);
  CHECK(halves.all()[0].count() == DocumentGroups::most_slots);
  CHECK(halves.all()[1].count() == 1500 - DocumentGroups::most_slots);
  CHECK(halves.all()[1].ends[0] == DocumentGroups::most_slots);
}

TEST_CASE("a machine that attends to groups of documents by their tables is given all of them") {
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  CAPTURE(seed);
  for (int i = 0; i < 4; ++i) {
    Lengths lengths(1 + random() % 9);
    for (std::int32_t& length : lengths)
      length = static_cast<std::int32_t>(1 + random() % (random() % 3 == 0 ? 300 : 20));
    ++lengths.front();  // a query alone is the kernels'
    PackedProblem<bfloat16> problem(random, {4, 2, 16, true}, lengths, lengths);
    TableMachine machine;
    device::cuda::Gpu<TableMachine> gpu(machine);
    compare_packed(problem.on(gpu), problem.reference());
    CHECK(machine.slots == 2 * static_cast<int>(lengths.size()));  // forward and backward
    CHECK(machine.launches() == 0);
  }
  // Not asked: keys of other rows than the queries, and float.
  TableMachine machine;
  device::cuda::Gpu<TableMachine> gpu(machine);
  PackedProblem<bfloat16> ring(random, {2, 2, 16, false}, {3, 4}, {5, 6});
  compare_packed(ring.on(gpu), ring.reference());
  PackedProblem<float> single(random, {2, 2, 16, true}, {3, 4}, {3, 4});
  compare_packed(single.on(gpu), single.reference());
  CHECK(machine.slots == 0);
  CHECK(machine.launches() == 6);
}

TEST_CASE("more documents than a GPU's scratch memory holds are refused with their number") {
  std::vector<std::byte> scratch(4 * 8);
  EmulatedMachine machine;
  const Lengths rows = cumulative(Lengths(4, 1));
  CHECK_THROWS_WITH_AS(device::cuda::write_documents(machine, view(scratch), DocumentRows{rows, rows}),
                       "the scratch memory of the GPU's attention holds 3 documents at a time, not 4", DeviceFailure);
}
