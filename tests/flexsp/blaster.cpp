// Cuts into micro-batches and buckets against brute force.
#include <galvatron/flexsp/blaster.hpp>

#include "random_problem.hpp"

namespace galvatron::flexsp {
namespace {

// The smallest largest sum of `parts` runs of the documents from `begin` on.
std::int64_t least_largest(const std::vector<std::int64_t>& lengths, std::size_t begin, int parts) {
  if (parts == 1) {
    std::int64_t sum = 0;
    for (std::size_t i = begin; i < lengths.size(); ++i) sum += lengths[i];
    return sum;
  }
  std::int64_t best = INT64_MAX;
  std::int64_t sum = 0;
  for (std::size_t end = begin + 1; end + static_cast<std::size_t>(parts) - 1 <= lengths.size(); ++end) {
    sum += lengths[end - 1];
    best = std::min(best, std::max(sum, least_largest(lengths, end, parts - 1)));
  }
  return best;
}

// DP[k][i] as published, with the smallest j.
std::vector<std::size_t> ends_of(const std::vector<std::int64_t>& lengths, int parts, std::size_t count) {
  if (parts == 1) return {count};
  std::int64_t best = INT64_MAX;
  std::size_t at = 0;
  for (std::size_t j = static_cast<std::size_t>(parts) - 1; j < count; ++j) {
    std::int64_t last = 0;
    for (std::size_t i = j; i < count; ++i) last += lengths[i];
    const std::vector<std::int64_t> before(lengths.begin(), lengths.begin() + static_cast<std::ptrdiff_t>(j));
    const std::int64_t value = std::max(last, least_largest(before, 0, parts - 1));
    if (value < best) {
      best = value;
      at = j;
    }
  }
  std::vector<std::size_t> out = ends_of(lengths, parts - 1, at);
  out.push_back(count);
  return out;
}

TEST_CASE("the blaster's cut is the best of all cuts, and the one whose parts begin earliest") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    auto lengths = random_lengths(random, static_cast<int>(drawn(random, 1, 9)), seed % 2 == 0 ? 6 : 2000);
    std::ranges::sort(lengths, std::ranges::greater());
    const int parts = static_cast<int>(drawn(random, 1, std::min<std::int64_t>(4, std::ssize(lengths))));
    const Blast cut = blast(lengths, parts);
    CHECK(cut.largest_tokens == least_largest(lengths, 0, parts));
    CHECK(cut.ends == ends_of(lengths, parts, lengths.size()));
  }
}

// The least padding of `buckets` runs of the ascending lengths from `begin` on.
std::int64_t least_padding(const std::vector<std::int64_t>& ascending, std::size_t begin, int buckets) {
  if (begin == ascending.size()) return 0;
  if (buckets == 0) return INT64_MAX / 2;
  std::int64_t best = INT64_MAX / 2;
  for (std::size_t end = begin + 1; end <= ascending.size(); ++end) {
    std::int64_t padding = 0;
    for (std::size_t i = begin; i < end; ++i) padding += ascending[end - 1] - ascending[i];
    best = std::min(best, padding + least_padding(ascending, end, buckets - 1));
  }
  return best;
}

TEST_CASE("buckets have the least padding of all buckets") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const auto lengths = random_lengths(random, static_cast<int>(drawn(random, 1, 9)), seed % 2 == 0 ? 6 : 2000);
    const int buckets = static_cast<int>(drawn(random, 1, 5));
    const std::vector<Bucket> found = buckets_of(lengths, buckets);
    CHECK(static_cast<int>(found.size()) <= buckets);
    CHECK(std::ranges::is_sorted(found, std::ranges::less(), &Bucket::longest));
    std::vector<std::int64_t> ascending = lengths;
    std::ranges::sort(ascending);
    std::size_t next = 0;
    for (const Bucket& bucket : found) {
      next += static_cast<std::size_t>(bucket.count);
      REQUIRE(next <= ascending.size());
      CHECK(bucket.longest == ascending[next - 1]);
    }
    CHECK(next == ascending.size());
    CHECK(padding_of(lengths, found) == least_padding(ascending, 0, buckets));
  }
}

}  // namespace
}  // namespace galvatron::flexsp
