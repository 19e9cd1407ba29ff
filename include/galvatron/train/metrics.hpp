// metrics.jsonl: one JSON object for each step of a run, written when the step is done.
#pragma once

#include <fcntl.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/train/trainer.hpp>

namespace galvatron::train {

/// The line of a step, with its newline. Steps count from 1 here: `{"step": 1, "loss": 5.54, ...}`.
inline std::string metrics_line(const StepReport& report) {
  const nlohmann::ordered_json line{{"step", report.step + 1},
                                    {"loss", report.loss},
                                    {"gradient_norm", report.gradient_norm},
                                    {"learning_rate", report.learning_rate},
                                    {"seconds", report.seconds},
                                    {"tokens_per_second", report.tokens_per_second}};
  return line.dump() + "\n";
}

/// A file to which a run adds a line after every step; each is one write, so that a reader (or a crash) finds whole
/// lines only.
class MetricsFile {
 public:
  /// Begins a new file; an old one of the name is replaced. Errors (usage): it cannot be written.
  static Result<MetricsFile> create(const std::filesystem::path& path) {
    galvatron::detail::FileHandle file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666));
    if (!file.is_open()) return galvatron::detail::file_error("cannot write", path, errno);
    return MetricsFile(path, std::move(file));
  }

  /// Adds the line of a step. Errors (usage): a full disk, say.
  Result<void> append(const StepReport& report) {
    const std::string line = metrics_line(report);
    if (const int reason = galvatron::detail::write_fully(file_.get(), line.data(), line.size()); reason != 0)
      return galvatron::detail::file_error("cannot write", path_, reason);
    return {};
  }

 private:
  MetricsFile(std::filesystem::path path, galvatron::detail::FileHandle file)
      : path_(std::move(path)), file_(std::move(file)) {}

  std::filesystem::path path_;
  galvatron::detail::FileHandle file_;
};

}  // namespace galvatron::train
