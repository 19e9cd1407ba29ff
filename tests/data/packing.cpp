#include <galvatron/data/packing.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "data_writers.hpp"

using namespace galvatron;
using namespace galvatron::train;
using galvatron::test::refused;

namespace {

using Rows = std::vector<std::int64_t>;

// The time of a step whose groups wait for each other in every micro-batch.
double time_of(const Packing& packing, const PackingOptions& options) {
  double time = 0;
  for (std::int64_t m = 0; m < packing.microbatches(); ++m) {
    double most = 0;
    for (std::int64_t g = 0; g < packing.groups(m); ++g) {
      double work = 0;
      for (const Document& document : packing.sequence(m, g).documents)
        if (document.sample >= 0) work += static_cast<double>(options.work(document.rows));
      most = std::max(most, work);
    }
    time += most;
  }
  return time;
}

// Long-tailed as texts are.
Rows random_rows(std::mt19937_64& random, std::size_t count, std::int64_t longest) {
  std::lognormal_distribution<double> length(5.5, 1.3);
  Rows out(count);
  for (auto& rows : out) rows = std::clamp(static_cast<std::int64_t>(length(random)), std::int64_t{1}, longest);
  return out;
}

}  // namespace

TEST_CASE("a packing has every document once and whole, within the limit and the least padding") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    PackingOptions options;
    options.groups = static_cast<std::int64_t>(1 + random() % 9);
    options.multiple = std::int64_t{1} << random() % 8;
    options.max_tokens = options.multiple + static_cast<std::int64_t>(random() % 4000);
    options.linear = static_cast<std::int64_t>(random() % 3 * 5000);
    const Rows rows = random_rows(random, random() % 200, options.capacity());
    CAPTURE(round);
    const auto packing = pack(rows, options);
    REQUIRE(packing.has_value());
    REQUIRE(check_packing(*packing, rows).has_value());
    for (const PackedSequence& sequence : packing->sequences) {
      std::vector<Document> documents = sequence.documents;
      if (!documents.empty() && documents.back().sample == Document::padding) documents.pop_back();
      CHECK(std::ranges::is_sorted(documents, std::ranges::greater(), &Document::rows));
    }
    CHECK(packing->tokens() == std::accumulate(rows.begin(), rows.end(), std::int64_t{0}));
    CHECK(packing->padding() <= std::ssize(packing->sequences) * (options.multiple - 1));
    REQUIRE((rows.empty() || packing->microbatches() > 0));
    for (std::int64_t m = 0; m < packing->microbatches(); ++m) {
      REQUIRE(packing->groups(m) == options.groups);
      std::int64_t all = 0;
      for (std::int64_t g = 0; g < options.groups; ++g) {
        const PackedSequence& sequence = packing->sequence(m, g);
        REQUIRE(sequence.rows() <= options.max_tokens);
        REQUIRE(sequence.rows() % options.multiple == 0);
        all += sequence.rows();
        const auto cumulative = sequence.cumulative_lengths();
        REQUIRE(cumulative.size() == sequence.documents.size() + 1);
        REQUIRE(cumulative.front() == 0);
        REQUIRE(cumulative.back() == sequence.rows());
        for (std::size_t d = 0; d < sequence.documents.size(); ++d)
          REQUIRE(cumulative[d + 1] - cumulative[d] == sequence.documents[d].rows);
      }
      REQUIRE(all > 0);
    }
    CHECK(*pack(rows, options) == *packing);
  }
}

TEST_CASE("micro-batches are as few as best fit needs") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    PackingOptions options{.max_tokens = 1000, .groups = static_cast<std::int64_t>(1 + random() % 4)};
    const Rows rows = random_rows(random, 1 + random() % 100, 1000);
    // Best fit decreasing, written without the order of bins.
    Rows descending = rows, bins;
    std::ranges::sort(descending, std::greater{});
    for (const std::int64_t each : descending) {
      std::int64_t* best = nullptr;
      for (auto& bin : bins)
        if (bin + each <= 1000 && (best == nullptr || bin > *best)) best = &bin;
      best == nullptr ? bins.push_back(each) : static_cast<void>(*best += each);
    }
    CHECK(pack(rows, options)->microbatches() <= (std::ssize(bins) + options.groups - 1) / options.groups);
  }
  // Exactly full sequences, where least work alone would not find them.
  CHECK(pack(Rows{60, 50, 50, 40}, {.max_tokens = 100, .groups = 2})->microbatches() == 1);
  CHECK(pack(Rows{400, 400, 300, 300, 300, 300}, {.max_tokens = 1000, .groups = 2})->microbatches() == 1);
}

TEST_CASE("sequences have equal work, not equal tokens") {
  // One long document and many short ones: attention of the long one takes as long as all of the others.
  Rows rows(100, 100);
  rows.push_back(1000);
  const auto by_work = pack(rows, {.max_tokens = 20000, .groups = 2});
  REQUIRE(by_work.has_value());
  REQUIRE(by_work->microbatches() == 1);
  CHECK(by_work->sequence(0, 0).rows() == 1000);
  CHECK(by_work->sequence(0, 1).rows() == 10000);
  const auto by_tokens = pack(rows, {.max_tokens = 20000, .groups = 2, .linear = (std::int64_t{1} << 31) - 1});
  CHECK(by_tokens->sequence(0, 0).rows() == 5500);
  CHECK(by_tokens->sequence(0, 1).rows() == 5500);
}

TEST_CASE("long documents share a micro-batch, and others are short") {
  // One document of 1000 rows and 220 of 100 in two micro-batches of two groups. Where the other three sequences share
  // the rest equally, the step takes 1,000,000 and 730,000; here the first micro-batch has as much for both groups.
  Rows rows(220, 100);
  rows.push_back(1000);
  const PackingOptions options{.max_tokens = 10'500, .groups = 2};
  const auto packing = pack(rows, options);
  REQUIRE(packing.has_value());
  REQUIRE(packing->microbatches() == 2);
  CHECK(time_of(*packing, options) == 1'600'000);
  Rows lengths;
  for (const PackedSequence& sequence : packing->sequences) lengths.push_back(sequence.rows());
  std::ranges::sort(lengths);
  CHECK(lengths == Rows{1000, 6000, 6000, 10'000});
}

TEST_CASE("the groups of a micro-batch have similar work, and all of a batch similar sums") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937_64 random(seed);
  double times = 0, bounds = 0;
  for (int round = 0; round < 50; ++round) {
    const PackingOptions options{.max_tokens = 8192, .groups = 4, .multiple = 1, .linear = 4096};
    const Rows rows = random_rows(random, 512, 8192);
    const auto packing = pack(rows, options);
    REQUIRE(packing.has_value());
    double all = 0;
    for (const std::int64_t each : rows) all += static_cast<double>(options.work(each));
    // No packing takes less than the longest document, and the mean over groups.
    const double least = std::max(all / 4, static_cast<double>(options.work(std::ranges::max(rows))));
    CHECK(time_of(*packing, options) >= least);
    times += time_of(*packing, options);
    bounds += least;
    std::vector<double> groups(4, 0);
    for (std::int64_t m = 0; m < packing->microbatches(); ++m)
      for (std::int64_t g = 0; g < 4; ++g)
        for (const Document& document : packing->sequence(m, g).documents)
          groups[static_cast<std::size_t>(g)] += static_cast<double>(options.work(document.rows));
    double most = 0;
    for (std::size_t s = 0; s < packing->sequences.size(); ++s) {
      double work = 0;
      for (const Document& document : packing->sequences[s].documents)
        work += static_cast<double>(options.work(document.rows));
      most = std::max(most, work);
    }
    CHECK(std::ranges::max(groups) - std::ranges::min(groups) <= most);
  }
  MESSAGE("time over bound: ", (times / bounds));
  CHECK(times <= 1.1 * bounds);
}

TEST_CASE("the heaviest sequence of a micro-batch goes to the group that has done least") {
  const auto packing = pack(Rows{70, 100, 80, 90}, {.max_tokens = 100, .groups = 2});
  REQUIRE(packing.has_value());
  REQUIRE(packing->microbatches() == 2);
  CHECK(packing->sequence(0, 0).rows() == 100);
  CHECK(packing->sequence(0, 1).rows() == 90);
  CHECK(packing->sequence(1, 0).rows() == 70);
  CHECK(packing->sequence(1, 1).rows() == 80);
}

TEST_CASE("limits that hold nothing, and documents that do not fit, are refused with what would hold them") {
  const auto message = [](const Rows& rows, const PackingOptions& options) { return refused(pack(rows, options)); };
  CHECK(message({5, 11, 3}, {.max_tokens = 10}) ==
        "document 1 of the batch takes 11 rows, and a sequence holds 1 to 10; give --max-tokens 11 or more");
  CHECK(message({5, 11, 3}, {.max_tokens = 10, .groups = 1, .multiple = 4}) ==
        "document 1 of the batch takes 11 rows, and a sequence holds 1 to 8; give --max-tokens 12 or more");
  CHECK(message({5, 0}, {.max_tokens = 10}).find("document 1 of the batch takes 0 rows") == 0);
  CHECK(message({5}, {.max_tokens = 0}) ==
        "cannot pack sequences of at most 0 tokens; give a limit of 1 to 2147483647");
  CHECK(message({5}, {.max_tokens = std::int64_t{1} << 31}).find("at most 2147483648 tokens") != std::string::npos);
  CHECK(
      message({5}, {.max_tokens = 100, .groups = 1, .multiple = 128}) ==
      "sequences of at most 100 tokens hold no document, because they are a multiple of 128; give --max-tokens 128 or "
      "more");
  CHECK(message({5}, {.max_tokens = 100, .groups = 0}).find("cannot pack for 0 groups") == 0);
  CHECK(message({5}, {.max_tokens = 100, .groups = 1, .multiple = 0}).find("a multiple of 0 tokens") !=
        std::string::npos);
  CHECK(message({5}, {.max_tokens = 100, .groups = 1, .multiple = 1, .linear = -1}).find("a linear work of -1") !=
        std::string::npos);
  const auto largest = pack(
      Rows{(std::int64_t{1} << 31) - 1},
      {.max_tokens = (std::int64_t{1} << 31) - 1, .groups = 1, .multiple = 1, .linear = (std::int64_t{1} << 31) - 1});
  REQUIRE(largest.has_value());
  CHECK(largest->sequence(0, 0).rows() == (std::int64_t{1} << 31) - 1);
  CHECK(pack(Rows{}, {.max_tokens = 10})->microbatches() == 0);
}

TEST_CASE("what is no packing of a batch is found") {
  const Rows rows = {5, 11, 3, 7};
  const Packing good = *pack(rows, {.max_tokens = 16, .groups = 2, .multiple = 4});
  REQUIRE(check_packing(good, rows).has_value());
  const auto found = [&](const auto& damage) {
    Packing packing = good;
    damage(packing);
    const auto done = check_packing(packing, rows);
    REQUIRE_FALSE(done.has_value());
    CHECK(done.error().kind == ErrorKind::internal);
    return done.error().message;
  };
  const auto first = [](Packing& packing) -> Document& { return packing.sequences[0].documents[0]; };
  CHECK(found([&](Packing& p) { p.sequences[0].documents.clear(); }).find("is missing") != std::string::npos);
  CHECK(found([&](Packing& p) { first(p).first = 1; }).find("rows from 1 on behind row 0") != std::string::npos);
  CHECK(found([&](Packing& p) { first(p).rows = 0; }).find("has 0 rows") != std::string::npos);
  CHECK(found([&](Packing& p) { first(p).rows -= 1; }).find("of its 11 rows") != std::string::npos);
  CHECK(found([&](Packing& p) { first(p).sample = 4; }).find("document 4 of 4") != std::string::npos);
  CHECK(found([&](Packing& p) {
          p.sequences[0].add(p.sequences[1].documents[0].sample, p.sequences[1].documents[0].rows);
        }).find("packing: ") == 0);
  CHECK(found([&](Packing& p) { p.begins.back() += 1; }).find("do not have the") != std::string::npos);
  Packing twice = good;
  twice.add({PackedSequence{}, good.sequences[0]});
  CHECK(check_packing(twice, rows).error().message.find("is there twice") != std::string::npos);
  Packing padded;
  PackedSequence sequence;
  sequence.add(Document::padding, 4);
  for (std::int64_t i = 0; i < 4; ++i) sequence.add(i, rows[static_cast<std::size_t>(i)]);
  padded.add({sequence});
  CHECK(check_packing(padded, rows).error().message == "packing: sequence 0 has padding before its end");
}
