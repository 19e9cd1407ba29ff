#include <galvatron/core/file.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include <doctest/doctest.h>

namespace galvatron {
namespace {

namespace fs = std::filesystem;

struct TemporaryFolder {
  fs::path path;
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "galvatron-file-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { fs::remove_all(path); }
  [[nodiscard]] long entries() const {
    return static_cast<long>(std::distance(fs::directory_iterator(path), fs::directory_iterator()));
  }
};

TEST_CASE("a file comes back as it was written, and replaces its predecessor") {
  const TemporaryFolder folder;
  const fs::path path = folder.path / "a.txt";
  for (const std::string& content : {std::string(300'000, 'x'), std::string("y\0z", 3), std::string()}) {
    REQUIRE(write_file_atomically(path, content).has_value());
    const auto back = read_text_file(path);
    REQUIRE(back.has_value());
    CHECK(*back == content);
    CHECK(folder.entries() == 1);
  }
}

TEST_CASE("an unwritable target is an error and leaves nothing behind") {
  const TemporaryFolder folder;
  const auto missing = write_file_atomically(folder.path / "no" / "a.txt", "x");
  REQUIRE_FALSE(missing.has_value());
  CHECK(missing.error().kind == ErrorKind::usage);
  CHECK(missing.error().message.find("No such file or directory") != std::string::npos);
  const auto directory = write_file_atomically(folder.path, "x");
  REQUIRE_FALSE(directory.has_value());
  CHECK(directory.error().message.find("directory") != std::string::npos);
  CHECK(folder.entries() == 0);
}

TEST_CASE("an uncommitted file vanishes and the old content stays") {
  const TemporaryFolder folder;
  const fs::path path = folder.path / "a.txt";
  REQUIRE(write_file_atomically(path, "old").has_value());
  {
    auto file = AtomicFile::create(path);
    REQUIRE(file.has_value());
    REQUIRE(file->write("new").has_value());
    CHECK(folder.entries() == 2);
    const AtomicFile moved = std::move(*file);
  }
  CHECK(folder.entries() == 1);
  CHECK(read_text_file(path).value() == "old");
}

TEST_CASE("a full device is an error") {
  if (!fs::exists("/dev/full")) return;
  const auto written = write_file_atomically("/dev/full", "x");
  REQUIRE_FALSE(written.has_value());
  CHECK(written.error().message.find("No space left") != std::string::npos);
  CHECK(fs::is_character_file("/dev/full"));
}

TEST_CASE("a link keeps pointing at the file that it names, and the permissions stay") {
  const TemporaryFolder folder;
  REQUIRE(write_file_atomically(folder.path / "real", "1").has_value());
  REQUIRE(::chmod((folder.path / "real").c_str(), 0640) == 0);
  fs::create_symlink("real", folder.path / "link");
  REQUIRE(write_file_atomically(folder.path / "link", "2").has_value());
  CHECK(fs::is_symlink(folder.path / "link"));
  CHECK(read_text_file(folder.path / "real").value() == "2");
  CHECK(fs::status(folder.path / "real").permissions() == static_cast<fs::perms>(0640));
}

TEST_CASE("reading has a limit and refuses folders") {
  const TemporaryFolder folder;
  REQUIRE(write_file_atomically(folder.path / "a", "12345").has_value());
  CHECK(read_text_file(folder.path / "a", 5).value() == "12345");
  const auto long_file = read_text_file(folder.path / "a", 4);
  REQUIRE_FALSE(long_file.has_value());
  CHECK(long_file.error().message.find("larger than the limit of 4 bytes") != std::string::npos);
  CHECK_FALSE(read_text_file(folder.path).has_value());
  CHECK_FALSE(read_text_file("/dev/zero", 1000).has_value());
}

TEST_CASE("a mapped file shows the bytes") {
  const TemporaryFolder folder;
  REQUIRE(write_file_atomically(folder.path / "a", "abc").has_value());
  REQUIRE(write_file_atomically(folder.path / "empty", "").has_value());
  auto mapped = MappedFile::open(folder.path / "a");
  REQUIRE(mapped.has_value());
  const MappedFile moved = std::move(*mapped);
  CHECK(mapped->bytes().empty());
  REQUIRE(moved.size() == 3);
  CHECK(moved.bytes()[2] == std::byte{'c'});
  CHECK(MappedFile::open(folder.path / "empty").value().bytes().empty());
  CHECK_FALSE(MappedFile::open(folder.path / "none").has_value());
  CHECK_FALSE(MappedFile::open(folder.path).has_value());
  CHECK_FALSE(MappedFile::open("/dev/null").has_value());
}

}  // namespace
}  // namespace galvatron
