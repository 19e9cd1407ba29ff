// Which pipelines over groups of devices are looked at.
#include <galvatron/mixed/group_pipelines.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/model/zoo.hpp>
#include <galvatron/search/tuning.hpp>

namespace {

using namespace galvatron;
using search::GroupPipeline;
using search::GroupPipelines;
using search::SearchOptions;

GroupPipelines pipelines_of(const std::string& cluster, const std::string& model, SearchOptions asked = {}) {
  asked.global_batch = 4;
  const MixedCluster mixed = value_or_throw(mixed_preset(cluster));
  return search::group_pipelines(value_or_throw(find_model(model)), mixed, asked);
}

std::set<std::vector<std::tuple<int, int, int>>> orders_of(const GroupPipelines& pipelines) {
  std::set<std::vector<std::tuple<int, int, int>>> out;
  for (const GroupPipeline& one : pipelines.all) {
    std::vector<std::tuple<int, int, int>> runs;
    for (const search::GroupRun& run : one.runs) runs.emplace_back(run.group, run.stages, run.ranks);
    out.insert(runs);
  }
  return out;
}

}  // namespace

TEST_CASE("groups stand in any order, with every number of stages that divides their devices") {
  SearchOptions options;
  options.schedules = {ScheduleKind::one_f_one_b};
  const GroupPipelines two = pipelines_of("2xa100-80g+4xh100-80g", "gpt2-124m", options);
  CHECK_FALSE(two.narrowed);
  // 1 or 2 stages on the first group, 1, 2 or 4 on the second, in two orders; tied ends have equally many ranks, that
  // is (1, 2) of 2 ranks and (2, 4) of 1; 1, 2 or 4 micro-batches.
  CHECK(orders_of(two) ==
        std::set<std::vector<std::tuple<int, int, int>>>{
            {{0, 1, 2}, {1, 2, 2}}, {{0, 2, 1}, {1, 4, 1}}, {{1, 2, 2}, {0, 1, 2}}, {{1, 4, 1}, {0, 2, 1}}});
  CHECK(two.all.size() == 4 * 3);
  // Ends that are not tied: 2 x 3 numbers of stages in two orders, or of three groups in six orders and as pairs.
  CHECK(pipelines_of("2xa100-80g+4xh100-80g", "llama2-7b", options).all.size() == 2 * 3 * 2 * 3);
  CHECK(pipelines_of("2xa100-80g+4xh100-80g+1xt4-16g", "llama2-7b", options).all.size() ==
        ((2 * 3 * 1) * 6 + (2 * 3 + 2 * 1 + 3 * 1) * 2) * 3);
  for (const GroupPipeline& one : two.all) {
    CHECK(static_cast<int>(one.devices().size()) == one.stages());
    CHECK(one.devices().front().group == one.runs.front().group);
  }
}

TEST_CASE("of groups that are alike one order is enough, and no pipeline has more stages than layers") {
  SearchOptions options;
  options.schedules = {ScheduleKind::one_f_one_b, ScheduleKind::gpipe, ScheduleKind::interleaved};
  const GroupPipelines twins = pipelines_of("2xa100-80g+2xa100-80g", "llama2-7b", options);
  CHECK(twins.all.size() == 2 * 2 * 3);  // 1F1B alone: GPipe is never faster, virtual stages are for equal devices
  for (const GroupPipeline& one : twins.all) CHECK(one.runs.front().group == 0);
  for (const GroupPipeline& one : pipelines_of("64xa100-80g+64xh100-80g", "llama2-7b", options).all)
    CHECK(one.stages() <= 32);
  options.space.pipeline.forced = 3;
  for (const GroupPipeline& one : pipelines_of("2xa100-80g+2xh100-80g", "llama2-7b", options).all)
    CHECK(one.stages() == 3);
  options.space.pipeline = {.open = false};
  CHECK(pipelines_of("2xa100-80g+2xh100-80g", "llama2-7b", options).all.empty());
}

TEST_CASE("of very many groups some pipelines are left out, and it is said") {
  std::string name = "8xa100-80g";
  for (int i = 1; i < most_groups; ++i) name += "+" + std::to_string(1 + i) + "xh100-80g";
  const GroupPipelines many = pipelines_of(name, "llama2-7b");
  CHECK(many.narrowed);
  CHECK(many.all.size() > 1000);
  CHECK(many.all.size() <= search::most_group_pipelines);
}
