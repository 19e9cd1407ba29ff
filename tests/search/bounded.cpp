// Searches end in bounded time and memory, whatever is asked, and threads beside each other do not disturb them.
#include <doctest/doctest.h>

#include <sys/resource.h>

#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/model/zoo.hpp>
#include <galvatron/search/search.hpp>
#include <galvatron/strategy/space.hpp>

#include "../sanitized.hpp"

using namespace galvatron;
using namespace galvatron::search;

namespace {

constexpr long slower = test::sanitized ? 10 : 1;  // and larger

struct Question {
  std::string model;
  std::string cluster;
  std::string space;
  SearchOptions options;
};

SearchResult answer(const Question& q) {
  SearchOptions options = q.options;
  options.space = value_or_throw(parse_space(q.space));
  return value_or_throw(
      search::search(value_or_throw(find_model(q.model)), value_or_throw(find_cluster(q.cluster)), options));
}

Question random_question(std::mt19937& random) {
  const auto upto = [&](int n) { return std::uniform_int_distribution<int>(0, n)(random); };
  const auto of = [&](const auto& list) { return list[upto(static_cast<int>(std::size(list)) - 1)]; };
  static constexpr const char* models[] = {"gpt2-tiny",    "bert-huge-32", "vit-huge-48", "t5-large-32",
                                           "swin-huge-48", "gpt-6.7b",     "gpt-65b",     "llama2-7b",
                                           "llama2-70b",   "gpt3-175b",    "llama3-405b", "gpt-1t"};
  static constexpr const char* devices[] = {"titan-24g", "a100-40g", "a100-80g", "h100-80g", "v100-32g"};
  static constexpr const char* spaces[] = {"all", "runnable", "dp,tp,pp", "dp,sdp,tp,strided,pp,recompute,pow2",
                                           "uniform"};
  static constexpr int divisible[] = {5040, 27720, 55440, 720720, 1441440, 735134400};  // by very many numbers
  Question out;
  out.model = of(models);
  int count = 0;
  switch (upto(4)) {
    case 0:
      count = 1 + upto(16);
      break;
    case 1:
      count = 8 * (1 + upto(256));
      break;
    case 2:
      count = 1 << upto(23);
      break;
    case 3:
      count = 1 + upto(10'000'000 - 1);
      break;
    default:
      count = divisible[upto(4)];
  }
  out.cluster = std::to_string(count) + "x" + of(devices);
  switch (upto(2)) {
    case 0:
      out.options.global_batch = 1 + upto(1000);
      break;
    case 1:
      out.options.global_batch = std::int64_t{1} << upto(24);
      break;
    default:
      out.options.global_batch = of(divisible);
  }
  out.space = of(spaces);
  if (upto(1) == 0) out.options.schedules = {schedule_kinds.begin(), schedule_kinds.end()};
  if (upto(3) == 0) out.options.memory = {std::int64_t{1 + upto(40)} << 30};
  if (upto(7) == 0) out.options.algorithm = Algorithm::bmw;
  return out;
}

}  // namespace

TEST_CASE("no question takes long or much memory") {
  const char* wanted = std::getenv("GALVATRON_RANDOM_QUESTIONS");
  const unsigned count = wanted != nullptr ? static_cast<unsigned>(std::atoi(wanted)) : 25;
  std::vector<Question> questions{
      {"llama3-405b", "2xtitan-24g", "dp,tp,pp", {.global_batch = 735134400}},     // tensors of more than 2^63 bytes
      {"gpt3-175b", "8192xtitan-24g", "uniform", {.global_batch = 1441440}},       // a case for every strategy
      {"swin-huge-32", "6486480xa100-80g", "all", {.global_batch = 1 << 20}},      // very many degrees
      {"swin-huge-48", "144xa100-40g", "runnable", {.global_batch = 735134400}}};  // very many micro-batches
  for (unsigned seed = 0; seed < count; ++seed) {
    std::mt19937 random(seed);
    questions.push_back(random_question(random));
  }
  int feasible = 0;
  for (const Question& q : questions) {
    const std::string context =
        q.model + " on " + q.cluster + ", batch " + std::to_string(q.options.global_batch) + ", space " + q.space;
    INFO(context);
    const std::clock_t begin = std::clock();
    const SearchResult result = answer(q);
    CHECK(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC < 30 * slower);  // 10 on an idle machine
    feasible += result.feasible ? 1 : 0;
    CHECK((result.feasible || !result.reason.empty()));
  }
  CHECK(feasible > 5);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  CHECK(usage.ru_maxrss < 1'200'000 * slower);  // KiB, of all in this process
}

TEST_CASE("eight searches at once find the same plan") {
  const Question q{
      "t5-large-32", "8xtitan-24g", "all", {.global_batch = 64, .memory = {std::int64_t{8} << 30}, .threads = 2}};
  std::vector<SearchResult> results(8);
  {
    std::vector<std::jthread> threads;
    for (SearchResult& one : results) threads.emplace_back([&one, &q] { one = answer(q); });
  }
  const SearchResult alone = answer(q);
  REQUIRE(alone.feasible);
  for (const SearchResult& one : results) {
    CHECK(one.best.iteration == alone.best.iteration);
    CHECK(one.best.first_block == alone.best.first_block);
    CHECK(one.best.blocks == alone.best.blocks);
    CHECK(one.statistics.labels == alone.statistics.labels);
    CHECK(one.statistics.bound == alone.statistics.bound);
  }
}
