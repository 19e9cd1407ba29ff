// Hetu-Galvatron's own results on its own profiles: its plans have its times, and the search is never slower. Needs the
// profiles that it ships, in the folder that GALVATRON_HETU_DATA names.
#include <galvatron/compat/hetu/files.hpp>
#include <galvatron/compat/hetu/search.hpp>

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

using namespace galvatron;
using cost::hetu::Job;
using cost::hetu::LayerStrategy;
using cost::hetu::Model;
using cost::hetu::PlanPrice;
using cost::hetu::TimeMode;

namespace {

std::optional<std::filesystem::path> data() {
  const char* folder = std::getenv("GALVATRON_HETU_DATA");
  if (folder != nullptr && std::filesystem::exists(folder)) return folder;
  MESSAGE("skipped: GALVATRON_HETU_DATA names no folder with Hetu-Galvatron's profiles");
  return std::nullopt;
}

// llama2-7b on nodes of 8 A100.
Model llama(const std::filesystem::path& folder, double gigabytes, int batch, int nodes = 1) {
  Job job;
  job.devices = 8 * nodes;
  job.global_batch = batch;
  job.hidden = 4096;
  job.sequence = 2048;
  job.layers = 32;
  job.memory_gigabytes = gigabytes;
  return {
      job, value_or_throw(load_hetu_hardware(folder / "hardware", job.devices, nodes)),
      value_or_throw(load_hetu_model(folder / "models/computation_profiling_bf16_llama2-7b_all.json",
                                     folder / "models/memory_profiling_bf16_llama2-7b_all.json", {.sequence = 2048}))};
}

// 28 layers, sequence modes, no asynchronous reduction.
Model fixture(const std::filesystem::path& folder) {
  Job job;
  job.devices = 8;
  job.global_batch = 64;
  job.hidden = 4096;
  job.sequence = 8192;
  job.layers = 28;
  job.memory_gigabytes = 36;
  job.overlapped_reduce = false;
  return {job, value_or_throw(load_hetu_hardware(folder / "fixtures", 8, 1)),
          value_or_throw(load_hetu_model(
              folder / "fixtures/sequence_time_config.json", folder / "fixtures/sequence_memory_config_sp.json",
              {.sequence = 8192, .time = TimeMode::sequence, .memory_over_sequence = true}))};
}

search::hetu::Found searched(const Model& model, const search::hetu::Options& options = {}) {
  auto found = value_or_throw(search::hetu::search(model, options));
  CHECK(found.statistics.proven);
  return found;
}

struct Row {
  int gigabytes;
  int batch;
  double samples_per_second;
};
constexpr Row rows[] = {
    {36, 16, 14.73233930110096}, {16, 64, 10.8968}, {20, 64, 12.6640}, {24, 64, 12.6558}, {36, 64, 15.2760}};

}  // namespace

TEST_CASE("Hetu's plans have Hetu's times") {
  const auto folder = data();
  if (!folder) return;
  for (const auto& [gigabytes, batch, seconds, tolerance] : {std::tuple{36, 16, 1.0860461243113173, 1e-9},
                                                             {16, 64, 5.873279452694564, 1e-9},
                                                             {20, 64, 5.05369, 1e-6},
                                                             {24, 64, 5.05695, 1e-6},
                                                             {36, 64, 4.18959, 1e-6}}) {
    const std::string name = "llama2-7b_8gpu_" + std::to_string(gigabytes) + "GB_bsz" + std::to_string(batch) + ".json";
    INFO(name);
    const HetuPlanFile file = value_or_throw(read_hetu_plan(*folder / "plans" / name));
    const Model model = llama(*folder, gigabytes, batch);
    const PlanPrice priced = value_or_throw(price(model, file.plan));
    CHECK(priced.iteration.value == doctest::Approx(seconds).epsilon(tolerance));
    CHECK(priced.peak_megabytes() <= Model::usable_megabytes(gigabytes));
    if (gigabytes == 16) {
      REQUIRE(priced.stages.size() == 2);
      CHECK(priced.stages[0].megabytes == 15863);
      CHECK(priced.stages[1].megabytes == 16186);
    }
  }
}

TEST_CASE("a vocabulary that is split over the ends of a pipeline has Hetu's time") {
  const auto folder = data();
  if (!folder) return;
  cost::hetu::Plan plan;  // on two nodes
  plan.pipeline = 2;
  plan.microbatches = 32;
  plan.division = {16, 16};
  plan.layers.assign(31, {8, 1, false, true});
  plan.layers.push_back({8, 1, false, false});
  plan.ends = {8, false, false};
  const PlanPrice priced = value_or_throw(price(llama(*folder, 8, 64, 2), plan));
  CHECK(priced.iteration.value == doctest::Approx(5.139361839602628).epsilon(1e-9));
  CHECK(priced.peak_megabytes() <= Model::usable_megabytes(8));
}

TEST_CASE("Hetu's plans for its test fixtures have Hetu's times") {
  const auto folder = data();
  if (!folder) return;
  const Model model = fixture(*folder);
  cost::hetu::Plan fine;
  fine.microbatches = 32;
  fine.division = {28};
  fine.layers.assign(14, {4, 1, true, true});
  fine.layers.insert(fine.layers.end(), 12, {4, 1, true, false});
  fine.layers.insert(fine.layers.end(), 2, {4, 1, false, false});
  fine.ends = {8, false, false};
  CHECK(value_or_throw(price(model, fine)).samples_per_second == doctest::Approx(2.6485091403918064).epsilon(1e-8));
  cost::hetu::Plan coarse;
  coarse.microbatches = 8;
  coarse.division = {28};
  coarse.layers.assign(28, {1, 1, true, true});
  coarse.ends = {1, false, true};
  CHECK(value_or_throw(price(model, coarse)).samples_per_second == doctest::Approx(2.5246283459057333).epsilon(1e-8));
}

TEST_CASE("the search is never slower than Hetu's, and infeasible where Hetu's is") {
  const auto folder = data();
  if (!folder) return;
  for (const Row& row : rows) {
    CAPTURE(row.gigabytes);
    const auto found = searched(llama(*folder, row.gigabytes, row.batch));
    REQUIRE(found.feasible);
    CHECK(found.price.samples_per_second >= row.samples_per_second * (1 - 5e-6));
    CHECK(found.price.peak_megabytes() <= Model::usable_megabytes(row.gigabytes) + 1e-6);
  }
  for (const double gigabytes : {8.0, 12.0}) {
    const auto found = searched(llama(*folder, gigabytes, 64));
    CHECK(!found.feasible);
    REQUIRE(found.smallest_memory);
    const double smallest = static_cast<double>(found.smallest_memory->count) / (1 << 30);
    CHECK(searched(llama(*folder, smallest, 64)).feasible);
    CHECK(!searched(llama(*folder, smallest - 2e-9, 64)).feasible);
  }
  search::hetu::Options options;
  options.microbatches = 32;
  const auto fine = searched(fixture(*folder), options);
  REQUIRE(fine.feasible);
  CHECK(fine.price.samples_per_second >= 2.6485091403918064 * (1 - 1e-8));
  options.microbatches = 8;
  options.coarse = true;
  const auto coarse = searched(fixture(*folder), options);
  REQUIRE(coarse.feasible);
  CHECK(coarse.price.samples_per_second >= 2.5246283459057333 * (1 - 1e-8));
  for (const LayerStrategy& s : coarse.plan.layers) CHECK(s == coarse.plan.layers.front());
}

TEST_CASE("the other profiles of the fixtures can be read") {
  const auto folder = data();
  if (!folder) return;
  const auto fixtures = *folder / "fixtures";
  CHECK(load_hetu_model(fixtures / "batch_time_config.json", fixtures / "static_memory_config_sp.json",
                        {.sequence = 4096})
            .has_value());
  CHECK(load_hetu_model(fixtures / "static_time_config.json", fixtures / "static_memory_config.json",
                        {.sequence = 4096, .time = TimeMode::fixed, .sequence_parallel = false})
            .has_value());
}
