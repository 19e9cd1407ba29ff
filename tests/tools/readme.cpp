// The commands of README.md, run as they are pasted.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "run.hpp"

namespace {

std::filesystem::path repository() { return std::filesystem::path(galvatron::test::tests_dir).parent_path(); }

// The block of shell that has `part`.
std::string shell_block(const std::string& part) {
  std::ifstream file(repository() / "README.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::string open = "```sh\n";
  for (std::size_t at = text.find(open); at != std::string::npos; at = text.find(open, at + 1)) {
    const std::size_t begin = at + open.size();
    const std::string block = text.substr(begin, text.find("```", begin) - begin);
    if (block.find(part) != std::string::npos) return block;
  }
  return {};
}

}  // namespace

TEST_CASE("the README's commands work when they are pasted after the build") {
  std::string block = shell_block("galvatron plan");
  REQUIRE(!block.empty());
  const Folder folder;
  for (const char* name : {"README.md", "docs"})
    std::filesystem::create_symlink(repository() / name, folder.path() / name);
  std::filesystem::create_directories(folder.path() / "build/release/bin");
  std::filesystem::create_symlink(GALVATRON_COMMAND, folder.path() / "build/release/bin/galvatron");
  const Ran mpi = folder.run("train --launcher mpi --plan missing.json --data README.md --steps 1");
  if (mpi.err.find("no MPI launcher") != std::string::npos || std::system("command -v mpirun > /dev/null") != 0) {
    MESSAGE("skipped: the lines with --launcher mpi, which this build or machine cannot run");
    std::istringstream lines(block);
    block.clear();
    for (std::string line; std::getline(lines, line);)
      if (line.find("--launcher mpi") == std::string::npos) block += line + "\n";
  }
  // Other tests run beside this one.
  const std::size_t automatic = block.find("train --auto ");
  REQUIRE(automatic != std::string::npos);
  block.insert(automatic + std::string("train --auto ").size(), "--on-busy accept ");
  folder.write("block.sh", block);
  const Ran ran = folder.shell("bash -e block.sh");
  CAPTURE(ran.err);
  CHECK(ran.code == 0);
  for (const char* name : {"plan.json", "trace.json", "report.html", "small.json"})
    CHECK_MESSAGE(folder.has(name), name);
  CHECK(ran.out.find("llama2-70b on 64xh100-80g") != std::string::npos);
  CHECK(ran.out.find("--tensor-model-parallel-size") != std::string::npos);
}
