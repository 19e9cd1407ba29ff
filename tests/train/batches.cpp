#include <doctest/doctest.h>

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <galvatron/data/token_source.hpp>

using namespace galvatron;

TEST_CASE("step t reads the samples after those of step t - 1, and ranks read parts of a batch") {
  const auto path = std::filesystem::temp_directory_path() / ("galvatron_batches_" + std::to_string(::getpid()));
  {
    std::string text;
    for (int i = 0; i < 251; ++i) text += static_cast<char>(i);
    std::ofstream(path, std::ios::binary) << text;
  }
  const std::vector<std::filesystem::path> paths = {path};
  auto source = train::TokenSource::open(paths, {.sequence = 5, .vocabulary = 256, .seed = 3});
  std::filesystem::remove(path);  // what is mapped stays
  REQUIRE(source.has_value());
  train::TokenBatches batches(*source, /*global_batch=*/4);
  train::BatchSource& reader = batches;
  for (std::int64_t step = 0; step < 20; ++step) {
    std::vector<std::int32_t> whole(5 * 4), part(5 * 2), next(5 * 2);
    std::vector<std::int32_t> tail(3 * 2);
    reader.inputs(step, 0, 4, {0, 5}, {whole.data(), 20});
    reader.inputs(step, 2, 2, {0, 5}, {part.data(), 10});
    reader.inputs(step, 2, 2, {2, 3}, {tail.data(), 6});
    reader.targets(step, 2, 2, {0, 5}, {next.data(), 10});
    REQUIRE(std::equal(tail.begin(), tail.end(), part.begin() + 4));
    for (std::size_t s = 0; s < 5; ++s)
      for (std::size_t i = 0; i < 2; ++i) {
        REQUIRE(part[s * 2 + i] == whole[s * 4 + 2 + i]);
        REQUIRE(next[s * 2 + i] == part[s * 2 + i] + 1);
        REQUIRE(part[s * 2 + i] ==
                source->window(step * 4 + 2 + static_cast<std::int64_t>(i)) * 5 + static_cast<std::int64_t>(s));
      }
  }
}
