// The ring through which data go to a GPU: no piece is given away while another is still read from it.
#include <map>
#include <random>
#include <utility>

#include <doctest/doctest.h>

#include <galvatron/device/cuda/ring.hpp>

namespace {

using galvatron::device::cuda::Ring;

TEST_CASE("pieces of a ring that are still read are not given away") {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    constexpr std::int64_t capacity = 1000;
    Ring<int> ring(capacity);
    std::map<int, std::pair<std::int64_t, std::int64_t>> read;  // piece -> [first, last)
    int oldest = 0;
    const auto wait = [&](int piece) {
      REQUIRE(piece == oldest++);  // in their order
      read.erase(piece);
    };
    std::size_t most = 0;
    for (int piece = 0, tries = 0; tries < 300; ++tries) {
      const auto bytes = std::uniform_int_distribution<std::int64_t>(1, seed % 3 == 0 ? capacity : 200)(random);
      const std::int64_t place = ring.place(bytes, wait);
      REQUIRE(place >= 0);
      REQUIRE(place + bytes <= capacity);
      for (const auto& [other, range] : read) REQUIRE((range.second <= place || place + bytes <= range.first));
      if (random() % 16 == 0) continue;  // what should have written it failed
      ring.keep(bytes, int(piece));
      read[piece++] = {place, place + bytes};
      most = std::max(most, read.size());
    }
    if (seed % 3 != 0) CHECK(most > 3);  // several wait at a time
    ring.drain(wait);
    CHECK(read.empty());
  }
}

}  // namespace
