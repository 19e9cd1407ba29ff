// metrics.jsonl: one JSON object for each step of a run, written when the step is done.
#pragma once

#include <fcntl.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/train/tensorboard.hpp>
#include <galvatron/train/trainer.hpp>

namespace galvatron::train {

/// The line of a step, with its newline. Steps count from 1 here: `{"step": 1, "loss": 5.54, ...}`. A number that is
/// not finite or not known is null.
inline std::string metrics_line(const StepReport& report) {
  nlohmann::ordered_json line{{"step", report.step + 1},
                              {"loss", report.loss},
                              {"gradient_norm", report.gradient_norm},
                              {"learning_rate", report.learning_rate},
                              {"seconds", report.seconds},
                              {"tokens_per_second", report.tokens_per_second},
                              {"mfu", nullptr},
                              {"peak_bytes", report.peak_memory.count}};
  if (report.mfu > 0) line["mfu"] = report.mfu;
  if (!report.skipped.empty()) line["skipped"] = report.skipped;
  return line.dump() + "\n";
}

/// The scalars of a step for TensorBoard, with the names of metrics.jsonl.
inline std::vector<Scalar> metrics_scalars(const StepReport& report) {
  std::vector<Scalar> out{{"train/loss", report.loss},
                          {"train/gradient_norm", report.gradient_norm},
                          {"train/learning_rate", report.learning_rate},
                          {"speed/seconds", report.seconds},
                          {"speed/tokens_per_second", report.tokens_per_second},
                          {"memory/peak_bytes", static_cast<double>(report.peak_memory.count)}};
  if (report.mfu > 0) out.push_back({"speed/mfu", report.mfu});
  return out;
}

namespace detail {

/// The whole lines of a metrics file that are of the first `steps` steps.
inline std::string lines_up_to(std::string_view text, std::int64_t steps) {
  std::string out;
  for (std::size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    const std::string_view line = text.substr(0, end + 1);
    text.remove_prefix(end + 1);
    const auto value = nlohmann::json::parse(line, nullptr, false);
    if (value.is_object() && value.contains("step") && value["step"].is_number_integer() && value["step"] <= steps)
      out += line;
  }
  return out;
}

}  // namespace detail

/// A file to which a run adds a line after every step; each is one write, so that a reader (or a crash) finds whole
/// lines only.
class MetricsFile {
 public:
  /// Begins a new file; an old one of the name is replaced. Errors (usage): it cannot be written.
  static Result<MetricsFile> create(const std::filesystem::path& path) { return open(path, O_APPEND | O_TRUNC); }

  /// Goes on with a file after the first `steps` steps: lines of later ones, which will be done again, go, and so does
  /// what a crash cut short. Errors (usage): it cannot be read or written.
  static Result<MetricsFile> resume(const std::filesystem::path& path, std::int64_t steps) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(path, ignored)) return create(path);
    const auto text = read_text_file(path, std::int64_t{1} << 34);
    if (!text) return tl::unexpected<Error>(text.error());
    if (auto done = write_file_atomically(path, detail::lines_up_to(*text, steps)); !done)
      return tl::unexpected<Error>(std::move(done.error()));
    return open(path, O_APPEND);
  }

  /// Adds the line of a step. Errors (usage): a full disk, say.
  Result<void> append(const StepReport& report) {
    const std::string line = metrics_line(report);
    if (const int reason = galvatron::detail::write_fully(file_.get(), line.data(), line.size()); reason != 0)
      return galvatron::detail::file_error("cannot write", path_, reason);
    return {};
  }

 private:
  static Result<MetricsFile> open(const std::filesystem::path& path, int how) {
    galvatron::detail::FileHandle file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | how, 0666));
    if (!file.is_open()) return galvatron::detail::file_error("cannot write", path, errno);
    return MetricsFile(path, std::move(file));
  }

  MetricsFile(std::filesystem::path path, galvatron::detail::FileHandle file)
      : path_(std::move(path)), file_(std::move(file)) {}

  std::filesystem::path path_;
  galvatron::detail::FileHandle file_;
};

}  // namespace galvatron::train
