// Slices: all ranks' parts make each whole tensor once, whatever the degrees, and lie where training puts them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <galvatron/checkpoint/reader.hpp>
#include <galvatron/checkpoint/slice.hpp>

#include "toy.hpp"

using namespace galvatron;
using namespace galvatron::train;

namespace {

void check_layer(const LayerSpec& layer, ParameterPart part, int tensor, int data, const RankRatios& ratios = {}) {
  CAPTURE(tensor);
  CAPTURE(data);
  const StrategySpec spec{
      .tensor = tensor, .data = data, .shard_kind = ratios.cut_tensors() ? ShardKind::by_ratio : ShardKind::even};
  std::map<ParameterName, std::vector<int>> written;
  for (const ParameterTensor& t : parameter_layout(layer, part, 1, 1))
    written[t.name].resize(static_cast<std::size_t>(whole_shape(t).count()));
  for (int r = 0; r < tensor; ++r)
    for (int d = 0; d < data; ++d) {
      const ParameterLayout layout = parameter_layout(forward_of(layer), part, spec, ratios, d * tensor + r);
      runtime::StoreView store;
      store.layout = &layout;
      const std::int64_t shard = layout.elements / data;
      store.own = {d * shard, (d + 1) * shard};
      store.place = {r, tensor};
      for_each_written_slice(store, [&](const ParameterTensor& t, std::int64_t offset, const TensorSlice& slice) {
        const TensorShape whole = whole_shape(t);
        REQUIRE(slice.row + slice.rows <= whole.rows);
        REQUIRE(slice.column + slice.columns <= whole.columns);
        REQUIRE(offset >= store.own.begin);
        REQUIRE(offset + slice.count() <= store.own.end);
        for (std::int64_t i = 0; i < slice.count(); ++i) {
          const std::int64_t place = (slice.row + i / slice.columns) * whole.columns + slice.column + i % slice.columns;
          ++written[t.name][static_cast<std::size_t>(place)];
          const std::int64_t local = offset + i - t.offset;
          REQUIRE(place == runtime::whole_run(t, store.place, local / t.columns).index + local % t.columns);
        }
      });
    }
  for (const auto& [name, counts] : written) {
    CAPTURE(std::string(name_of(name)));
    CHECK(std::ranges::all_of(counts, [](int n) { return n == 1; }));
  }
}

}  // namespace

TEST_CASE("the parts that ranks write are each whole tensor, once") {
  for (const bool llama : {false, true}) {
    const ModelSpec model = toy::model(llama, 2);
    for (const int tensor : {1, 2, 4})
      for (const int data : {1, 2, 3, 5, 8}) {
        for (const LayerSpec* end : {&model.embedding, &model.head})
          for (const ParameterPart part : {ParameterPart::table, ParameterPart::rest})
            check_layer(*end, part, tensor, data);
        check_layer(model.blocks.front(), ParameterPart::rest, tensor, data);
      }
  }
}

TEST_CASE("so they are where tensor ranks have unequal shares") {
  const std::vector<int> heads{3, 0, 1, 10}, widths{1, 10, 0, 2}, vocabulary{0, 1, 1, 0};
  // Of the ranks of one data rank; the others have the same.
  const auto of_all = [](const std::vector<int>& own, int data) {
    std::vector<int> out;
    for (int d = 0; d < data; ++d) out.insert(out.end(), own.begin(), own.end());
    return out;
  };
  for (const ModelSpec& model : {toy::model(false, 2), toy::model(true, 2)})
    for (const int data : {1, 3}) {
      const std::vector<int> h = of_all(heads, data), w = of_all(widths, data), v = of_all(vocabulary, data);
      for (const LayerSpec* layer : {&model.embedding, &model.blocks.front(), &model.head})
        for (const ParameterPart part : {ParameterPart::table, ParameterPart::rest})
          check_layer(*layer, part, 4, data, {.heads = h, .widths = w, .vocabulary = v});
    }
}

TEST_CASE("names of slices are read as they are written") {
  const SliceName name{3, ParameterName::qkv_weight, StateKind::second_moment, {96, 32, 0, 64}};
  CHECK(name_text(name) == "3.qkv_weight.second_moment[96:128,0:64]");
  CHECK(parse_slice_name(name_text(name)) == name);
  for (const char* bad :
       {"", "3", "3.qkv_weight", "3.qkv_weight.master", "3.nothing.master[0:1,0:1]", "3.table.gradient[0:1,0:1]",
        "3.table.master[0:1,0:1", "3.table.master[0:1,0:1]x", "3.table.master[1:1,0:1]", "3.table.master[2:1,0:1]",
        "-1.table.master[0:1,0:1]", "3.table.master[0:99999999999999999999,0:1]", "x.table.master[0:1,0:1]"})
    CHECK_FALSE(parse_slice_name(bad).has_value());
}
