#include <galvatron/core/file.hpp>

#include <filesystem>
#include <string>

#include <doctest/doctest.h>

#include "../folder.hpp"

using namespace galvatron;
using galvatron::test::Folder;
namespace fs = std::filesystem;

namespace {

/// The current folder for a while.
class In {
 public:
  explicit In(const fs::path& folder) : before_(fs::current_path()) { fs::current_path(folder); }
  In(const In&) = delete;
  In& operator=(const In&) = delete;
  ~In() { fs::current_path(before_); }

 private:
  fs::path before_;
};

}  // namespace

TEST_CASE("a relative path means the same from any folder") {
  const Folder folder;
  for (const char* name : {"cfg", "plans", "elsewhere"}) fs::create_directory(folder.path / name);
  folder.write("cfg/config.json", "{}");
  const std::string whole = fs::canonical(folder.path / "cfg/config.json").string();
  {
    const In here(folder.path);
    CHECK(path_for_file("cfg/config.json", "plans/p.json") == "../cfg/config.json");
    CHECK(path_for_file("cfg/config.json", "p.json") == "cfg/config.json");
    CHECK(path_for_file("cfg", "plans/p.json") == "../cfg");
    CHECK(path_for_file("cfg/config.json", "cfg/p.json") == "config.json");
    CHECK(path_from_file("../cfg/config.json", "plans/p.json") == "cfg/config.json");
    CHECK(path_from_file("cfg/config.json", "p.json") == "cfg/config.json");
  }
  const In there(folder.path / "elsewhere");
  CHECK(path_from_file("../cfg/config.json", "../plans/p.json") == "../cfg/config.json");
  CHECK(path_from_file("../cfg/config.json", folder.path / "plans/p.json") == whole);
  CHECK(path_for_file("../cfg/config.json", "../plans/p.json") == "../cfg/config.json");
}

TEST_CASE("a file of before names its paths from the current folder") {
  const Folder folder;
  fs::create_directory(folder.path / "plans");
  folder.write("config.json", "{}");
  const In here(folder.path);
  CHECK(path_from_file("config.json", "plans/p.json") == "config.json");
  CHECK(path_from_file("nothing.json", "plans/p.json") == "nothing.json");
  folder.write("plans/config.json", "{}");  // the folder of the file comes first
  CHECK(path_from_file("config.json", "plans/p.json") == "plans/config.json");
}

TEST_CASE("absolute paths, and names of nothing, stay as they are") {
  const Folder folder;
  folder.write("config.json", "{}");
  const In here(folder.path);
  const std::string whole = fs::canonical("config.json").string();
  CHECK(path_for_file(whole, "plans/p.json") == whole);
  CHECK(path_from_file(whole, "plans/p.json") == whole);
  CHECK(path_for_file("llama2-7b", "plans/p.json") == "llama2-7b");
  CHECK(path_for_file("", "p.json").empty());
  CHECK(path_from_file("", "p.json").empty());
  CHECK(path_for_file("config.json", "/dev/null") == whole);
}

TEST_CASE("links do not lead astray") {
  const Folder folder;
  for (const char* name : {"a", "a/b", "c"}) fs::create_directory(folder.path / name);
  folder.write("c/config.json", "{}");
  fs::create_directory_symlink(folder.path / "a/b", folder.path / "link");
  const In here(folder.path);
  CHECK(path_for_file("c/config.json", "link/p.json") == "../../c/config.json");
  CHECK(path_from_file("../../c/config.json", "link/p.json") == "c/config.json");
}
