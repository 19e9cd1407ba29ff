// Runs the command as a user would: in a folder of its own, through a shell.
#pragma once

#include <sys/wait.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "../folder.hpp"

/// What a run of the command gave.
struct Ran {
  int code = -1;
  std::string out;
  std::string err;

  [[nodiscard]] nlohmann::json json() const { return nlohmann::json::parse(out); }
};

/// A folder that goes away with its content, and the command run in it.
class Folder {
 public:
  /// `galvatron ARGUMENTS` as a line of shell, where redirections and pipes may follow.
  [[nodiscard]] Ran run(const std::string& arguments) const {
    return shell(std::string(GALVATRON_COMMAND) + " " + arguments);
  }

  /// A line of shell; the command is `$G`.
  [[nodiscard]] Ran shell(const std::string& line) const {
    const std::string logs = folder_.path.string() + ".log";
    std::filesystem::create_directories(logs);
    const std::string whole = "cd '" + folder_.path.string() + "' && export G='" GALVATRON_COMMAND "' && ( " + line +
                              " ) > '" + logs + "/out' 2> '" + logs + "/err' < /dev/null";
    const int status = std::system(whole.c_str());
    Ran ran;
    ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    ran.out = text_of(logs + "/out");
    ran.err = text_of(logs + "/err");
    std::filesystem::remove_all(logs);
    return ran;
  }

  void write(const std::string& name, std::string_view content) const { folder_.write(name, content); }
  [[nodiscard]] std::string read(const std::string& name) const { return text_of(folder_.path / name); }
  [[nodiscard]] bool has(const std::string& name) const { return std::filesystem::exists(folder_.path / name); }
  /// The names of what is in the folder.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path))
      out.push_back(entry.path().filename().string());
    return out;
  }

  [[nodiscard]] const std::filesystem::path& path() const { return folder_.path; }

  /// Some text to train on.
  void write_text(const std::string& name = "text.txt") const {
    std::string text;
    for (int i = 0; i < 400; ++i) text += "the quick brown fox " + std::to_string(i) + " jumps over the lazy dog\n";
    write(name, text);
  }

 private:
  static std::string text_of(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  galvatron::test::Folder folder_;
};

/// A failure as users and scripts rely on: the code, one line on standard error that has `cause`, and nothing on
/// standard output.
inline void check_failure(const Ran& ran, int code, const std::string& cause) {
  CAPTURE(ran.err);
  CAPTURE(ran.out);
  CHECK(ran.code == code);
  CHECK(ran.out.empty());
  CHECK(ran.err.starts_with("galvatron: "));
  CHECK(ran.err.find('\n') == ran.err.size() - 1);
  CHECK(ran.err.find(cause) != std::string::npos);
}

/// A plan of one stage for gpt2-tiny in fp32: `ranks` data-parallel ranks, batch 4, 16 tokens.
inline nlohmann::json small_plan(int ranks = 2) {
  const nlohmann::json spec{{"tensor", 1}, {"sequence", "none"}, {"context", 1},       {"data", ranks},
                            {"zero", 0},   {"expert", 1},        {"recompute", "none"}};
  return {{"version", 1},
          {"model", "gpt2-tiny"},
          {"cluster", "host"},
          {"global_batch", 4},
          {"sequence_length", 16},
          {"precision", "fp32"},
          {"microbatches", 1},
          {"schedule", "1f1b"},
          {"virtual_stages", 1},
          {"stages", {{{"first_layer", 0}, {"last_layer", 3}, {"ranks", {0, ranks}}}}},
          {"layers", {spec, spec, spec, spec}},
          {"embedding", spec},
          {"head", spec},
          {"predicted", nlohmann::json::object()}};
}
