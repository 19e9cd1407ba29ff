#include <galvatron/checkpoint/shard_file.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "../folder.hpp"

using namespace galvatron;
using galvatron::test::Folder;
namespace fs = std::filesystem;

namespace {

std::string content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("a file of any size and from any address comes back with its checksum") {
  constexpr std::size_t largest = (std::size_t{4} << 20) + 4096 + 7;
  struct Free {
    void operator()(void* pointer) const { std::free(pointer); }
  };
  const std::unique_ptr<void, Free> memory(std::aligned_alloc(4096, (std::size_t{5} << 20)));
  auto* const data = static_cast<std::byte*>(memory.get());
  for (std::size_t i = 0; i < largest + 8; ++i) data[i] = static_cast<std::byte>(i * 2654435761U >> 13U);
  const Folder folder;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{4096},
                                 std::size_t{4097}, std::size_t{4} << 20, largest})
    for (const std::size_t shift : {0, 8}) {  // with a shift the system cannot write past the page cache
      CAPTURE(size);
      CAPTURE(shift);
      const std::span<const std::byte> bytes(data + shift, size);
      const fs::path path = folder.path / "new" / "rank";
      const auto written = train::write_shard(path, bytes, {});
      REQUIRE(written.has_value());
      CHECK(written->name == "rank");
      CHECK(written->bytes == static_cast<std::int64_t>(size));
      CHECK(written->crc32c == crc32c(bytes));
      CHECK((content(path) == std::string(reinterpret_cast<const char*>(bytes.data()), size)));
      const auto file = train::ShardFile::open(path);
      REQUIRE(file.has_value());
      CHECK(file->size() == static_cast<std::int64_t>(size));
      CHECK(file->checksum().value() == written->crc32c);
      std::vector<std::byte> part(size / 2);
      const auto first = static_cast<std::int64_t>(size / 3);
      REQUIRE(file->read(first, static_cast<std::int64_t>(part.size()), part.data()).has_value());
      CHECK(std::ranges::equal(part, bytes.subspan(static_cast<std::size_t>(first), part.size())));
      std::vector<std::byte> more(size + 1);
      const auto beyond = file->read(first, static_cast<std::int64_t>(more.size()), more.data());
      REQUIRE_FALSE(beyond.has_value());
      CHECK(beyond.error().message.find("has become shorter") != std::string::npos);
    }
}

TEST_CASE("a file that cannot be written or read is an error with the reason") {
  const Folder folder;
  std::ofstream(folder.path / "file") << "x";
  const auto written = train::write_shard(folder.path / "file" / "rank", {}, {});
  REQUIRE_FALSE(written.has_value());
  CHECK(written.error().message.find("cannot write") != std::string::npos);
  CHECK_FALSE(train::write_shard(folder.path, {}, {}).has_value());
  CHECK_FALSE(train::ShardFile::open(folder.path / "none").has_value());
  std::stop_source source;
  source.request_stop();
  const std::byte some[8]{};
  CHECK_FALSE(train::write_shard(folder.path / "rank", some, source.get_token()).has_value());
}
