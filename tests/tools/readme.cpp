// The commands of README.md, of the tutorial and of the how-to pages, run as they are pasted.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "run.hpp"

namespace {

std::filesystem::path repository() { return std::filesystem::path(galvatron::test::tests_dir).parent_path(); }

// What stands in a page between ```KIND and ```, in order.
std::vector<std::string> blocks_of(const std::filesystem::path& page, const std::string& kind) {
  std::ifstream file(page);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::string open = "```" + kind + "\n";
  std::vector<std::string> out;
  for (std::size_t at = text.find(open); at != std::string::npos; at = text.find(open, at + 1)) {
    const std::size_t begin = at + open.size();
    out.push_back(text.substr(begin, text.find("```", begin) - begin));
  }
  return out;
}

// The block of shell of README.md that has `part`.
std::string shell_block(const std::string& part) {
  for (const std::string& block : blocks_of(repository() / "README.md", "sh"))
    if (block.find(part) != std::string::npos) return block;
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

TEST_CASE("the commands of the tutorial and of the how-to pages work, and print what the pages show") {
  std::vector<std::filesystem::path> pages{repository() / "docs/tutorial.md", repository() / "docs/install.md"};
  for (const auto& entry : std::filesystem::directory_iterator(repository() / "docs/how-to"))
    pages.push_back(entry.path());
  REQUIRE(pages.size() >= 6);
  for (const std::filesystem::path& page : pages) {
    CAPTURE(page);
    const Folder folder;
    std::filesystem::create_directories(folder.path() / "bin");
    std::filesystem::create_symlink(GALVATRON_COMMAND, folder.path() / "bin/galvatron");
    // Other tests run beside this one; a coarse profile does, and a tenth of the steps.
    std::string script =
        "export PATH=$PWD/bin:$PATH\n"
        "galvatron() {\n"
        "  local more=() words=() word before=\n"
        "  [ \"$1\" != profile ] || more=(--on-busy accept --seconds 2)\n"
        "  [ \"$1 $2\" != \"train --auto\" ] || more=(--on-busy accept --profile-seconds 2)\n"
        "  for word; do\n"
        "    [ \"$before\" != --steps ] || word=$((word / 10))\n"
        "    words+=(\"$word\") before=$word\n"
        "  done\n"
        "  command galvatron \"${words[@]}\" \"${more[@]}\"\n"
        "}\n";
    const std::vector<std::string> commands = blocks_of(page, "sh");
    REQUIRE(!commands.empty());
    for (const std::string& block : commands) script += block;
    folder.write("page.sh", script);
    const Ran ran = folder.shell("bash -e page.sh 2>&1");
    CAPTURE(ran.out);
    CHECK(ran.code == 0);
    for (const std::string& shown : blocks_of(page, "text")) {
      std::istringstream lines(shown);
      for (std::string line; std::getline(lines, line);) {
        if (line.starts_with("  search ") || line == "...") continue;  // seconds of a machine; lines that are left out
        CAPTURE(line);
        CHECK(ran.out.find(line + "\n") != std::string::npos);
      }
    }
  }
}

namespace {

void collect_keys(const nlohmann::json& value, std::set<std::string>& keys) {
  if (value.is_object())
    for (const auto& [key, inner] : value.items()) keys.insert(key);
  for (const auto& inner : value)
    if (inner.is_structured()) collect_keys(inner, keys);
}

}  // namespace

TEST_CASE("docs/json.md has every key that plan, cost and check print") {
  std::ifstream file(repository() / "docs/json.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  const Folder folder;
  folder.write("train.sh",
               "pretrain_gpt.py --tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16 --bf16\n");
  std::set<std::string> keys;
  for (const std::string command :
       {"plan --model gpt2-tiny --cluster 8xa100-80g --global-batch 16 --schedule all --out plan.json --json",
        "plan --model gpt2-tiny --cluster 8xa100-80g --global-batch 16 --memory 1MiB --json",
        "cost --plan plan.json --json", "check train.sh --model gpt2-tiny --cluster 2xa100-80g --json"}) {
    const Ran ran = folder.run(command);
    CAPTURE(ran.err);
    REQUIRE((ran.code == 0 || ran.code == 3));
    collect_keys(ran.json(), keys);
  }
  CHECK(keys.size() > 50);
  for (const std::string& key : keys) CHECK_MESSAGE(page.find("`" + key + "`") != std::string::npos, key);
}
