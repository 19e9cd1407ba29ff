// Kinds of operations: their groups and the words that files have for them.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/op/work.hpp>

namespace {

using namespace galvatron;
using op::Kind;

template <class Group, class Word>
std::string words_of(const Group& group, Word word) {
  std::string out;
  for (const Kind kind : group) out += (out.empty() ? "" : " ") + std::string(word(kind));
  return out;
}

}  // namespace

TEST_CASE("every kind is in one group, in the order of the enumeration, and the predicates name that group") {
  std::vector<Kind> all;
  const auto add = [&](const auto& group, auto is_of) {
    for (int k = 0; k < op::kinds; ++k) {
      const auto kind = static_cast<Kind>(k);
      CAPTURE(op::name_of(kind));
      CHECK(is_of(kind) == (std::ranges::find(group, kind) != group.end()));
    }
    all.insert(all.end(), group.begin(), group.end());
  };
  add(op::gemms, op::is_gemm);
  add(op::attentions, op::is_attention);
  add(op::memory_bound,
      [](Kind kind) { return !op::is_gemm(kind) && !op::is_attention(kind) && !op::is_communication(kind); });
  add(op::communications, op::is_communication);
  REQUIRE(all.size() == static_cast<std::size_t>(op::kinds));
  CHECK(std::ranges::is_sorted(all));
  CHECK(std::ranges::adjacent_find(all) == all.end());
}

TEST_CASE("names differ, and are the words of cluster files") {
  std::set<std::string> names;
  for (int kind = 0; kind < op::kinds; ++kind) names.insert(op::name_of(static_cast<Kind>(kind)));
  CHECK(names.size() == static_cast<std::size_t>(op::kinds));
  CHECK(words_of(op::gemms, op::layout_of) == "nt nn tn");
  CHECK(words_of(op::attentions, op::pass_of) == "forward backward");
  CHECK(words_of(op::memory_bound, op::name_of) ==
        "norm_forward add_norm_forward norm_backward activation_forward activation_backward rotary add bias_gradient "
        "embedding_forward embedding_backward softmax_statistics softmax_backward adamw adamw_bf16 norm_squared fill "
        "copy gelu_in_product gelu_gradient_in_product");
  CHECK(words_of(op::communications, op::name_of) == "all_reduce all_gather reduce_scatter broadcast send all_to_all");
}

TEST_CASE("GELU in a product and by itself are two kinds of one operation") {
  for (const Kind kind : {Kind::activation_forward, Kind::activation_backward}) {
    CHECK_FALSE(op::is_in_product(kind));
    CHECK(op::is_in_product(op::in_product(kind)));
    CHECK(op::unfused(op::in_product(kind)) == kind);
    CHECK(op::unfused(kind) == kind);
  }
  CHECK(op::unfused(Kind::copy) == Kind::copy);
}

TEST_CASE("flat operations have no rows") {
  std::string flat;
  for (const Kind kind : op::memory_bound)
    if (!op::has_rows(kind)) flat += std::string(op::name_of(kind)) + " ";
  CHECK(flat == "add adamw adamw_bf16 norm_squared fill copy ");
}

TEST_CASE("a list adds equal work up and keeps the order of the rest") {
  op::WorkList list;
  list.push({.kind = Kind::add, .m = 4});
  list.push({.kind = Kind::gelu_in_product, .m = 4, .n = 2});
  list.push({.kind = Kind::add, .m = 4, .times = 2});
  list.push({.kind = Kind::add, .m = 8});
  const std::vector<op::Work> all(list.begin(), list.end());
  CHECK(all == std::vector<op::Work>{{.kind = Kind::add, .m = 4, .times = 3},
                                     {.kind = Kind::gelu_in_product, .m = 4, .n = 2},
                                     {.kind = Kind::add, .m = 8}});
}

TEST_CASE("a matrix product counts two operations for each pair") {
  CHECK(op::flops_of({.kind = Kind::gemm_tn, .m = 3, .n = 5, .k = 7, .times = 2}).count == 2.0 * 3 * 5 * 7 * 2);
  CHECK(op::flops_of({.kind = Kind::all_reduce, .m = 3, .n = 5}).count == 0);
}
