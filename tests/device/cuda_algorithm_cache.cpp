// The cache of algorithms on disk: what is kept comes back, for the same device and library alone, and nothing else
// than a cache is taken for one.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <doctest/doctest.h>

#include <galvatron/core/file.hpp>
#include <galvatron/device/cuda/algorithm_cache.hpp>

namespace {

using galvatron::device::cuda::AlgorithmCache;

/// A folder that is gone afterwards.
class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("galvatron-cache-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

constexpr AlgorithmCache::Algorithm first_algorithm{1, 2, 3, 4, 5, 6, 7, ~0ULL};
constexpr AlgorithmCache::Algorithm second_algorithm{8, 7, 6, 5, 4, 3, 2, 1};

}  // namespace

TEST_CASE("algorithms are kept for the same device and library") {
  const Folder folder;
  AlgorithmCache cache(folder.path() / "deep" / "er", "NVIDIA H100 80GB HBM3", 130001);
  CHECK(cache.size() == 0);
  CHECK(cache.save());
  CHECK_FALSE(std::filesystem::exists(cache.path()));  // nothing to say
  cache.keep("nt 1 x 2 x 3", first_algorithm);
  REQUIRE(cache.save());
  CHECK(cache.path().filename() == "NVIDIA-H100-80GB-HBM3-cublaslt-130001.json");
  const AlgorithmCache again(folder.path() / "deep" / "er", "NVIDIA H100 80GB HBM3", 130001);
  REQUIRE(again.find("nt 1 x 2 x 3") != nullptr);
  CHECK(*again.find("nt 1 x 2 x 3") == first_algorithm);
  CHECK(again.find("nt 1 x 2 x 4") == nullptr);
  CHECK(AlgorithmCache(folder.path() / "deep" / "er", "NVIDIA H100 80GB HBM3", 130002).size() == 0);
  CHECK(AlgorithmCache(folder.path() / "deep" / "er", "NVIDIA H200", 130001).size() == 0);
}

TEST_CASE("two programs that write the same cache lose nothing") {
  const Folder folder;
  AlgorithmCache one(folder.path(), "gpu", 1);
  AlgorithmCache other(folder.path(), "gpu", 1);
  one.keep("a", first_algorithm);
  other.keep("b", second_algorithm);
  REQUIRE(one.save());
  REQUIRE(other.save());
  const AlgorithmCache both(folder.path(), "gpu", 1);
  CHECK(both.size() == 2);
  CHECK(*both.find("a") == first_algorithm);
  CHECK(*both.find("b") == second_algorithm);
}

TEST_CASE("what is no cache of this device counts as none") {
  const std::string good =
      R"({"version": 1, "device": "gpu", "library": 7, "algorithms": [{"product": "a", "words": [1,2,3,4,5,6,7,8]}]})";
  CHECK(AlgorithmCache::parse(good, "gpu", 7).size() == 1);
  CHECK(AlgorithmCache::parse(good, "other", 7).empty());
  CHECK(AlgorithmCache::parse(good, "gpu", 8).empty());
  for (std::size_t length = 0; length < good.size(); ++length)
    CHECK(AlgorithmCache::parse(good.substr(0, length), "gpu", 7).empty());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  for (const std::string& text :
       {with("[1,2", "[2"), with("[1,", "[-1,"), with("[1,", "[1.5,"), with("[1,", "[\"1\","), with("\"a\"", "1"),
        with("{\"product\"", "3, {\"product\""), with("\"version\": 1", "\"version\": 2"), with("words", "word")})
    CHECK(AlgorithmCache::parse(text, "gpu", 7).empty());
}

TEST_CASE("an unwritable place is told, and no place is silent") {
  const Folder folder;
  {
    std::ofstream(folder.path() / "file") << "no folder";
  }
  AlgorithmCache cache(folder.path() / "file" / "cache", "gpu", 1);
  cache.keep("a", first_algorithm);
  const auto saved = cache.save();
  REQUIRE_FALSE(saved);
  CHECK(saved.error().message.find('\n') == std::string::npos);
  AlgorithmCache nowhere({}, "gpu", 1);
  nowhere.keep("a", first_algorithm);
  CHECK(nowhere.save());
  CHECK(nowhere.find("a") != nullptr);
}

TEST_CASE("the folder is the one that the environment names") {
  const auto set = [](const char* name, const char* value) {
    if (value == nullptr)
      ::unsetenv(name);
    else
      ::setenv(name, value, 1);
  };
  const char* const home = std::getenv("HOME");
  const std::string before = home == nullptr ? "" : home;
  set("GALVATRON_CACHE", "/a");
  set("XDG_CACHE_HOME", "/b");
  set("HOME", "/c");
  CHECK(AlgorithmCache::folder() == "/a");
  set("GALVATRON_CACHE", nullptr);
  CHECK(AlgorithmCache::folder() == "/b/galvatron");
  set("XDG_CACHE_HOME", "");
  CHECK(AlgorithmCache::folder() == "/c/.cache/galvatron");
  set("HOME", nullptr);
  CHECK(AlgorithmCache::folder().empty());
  set("HOME", before.empty() ? nullptr : before.c_str());
}
