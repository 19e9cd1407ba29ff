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
#include <galvatron/train/append.hpp>
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

/// The step of a line of metrics_line(); 0: it is not one.
inline std::int64_t step_of(std::string_view line) {
  const auto value = nlohmann::json::parse(line, nullptr, false);
  if (!value.is_object() || !value.contains("loss") || !value.contains("gradient_norm")) return 0;
  const auto step = value.find("step");
  return step != value.end() && step->is_number_unsigned() ? step->get<std::int64_t>() : 0;
}

/// A metrics file without what a run that goes on after `steps` steps will write again.
struct KeptLines {
  std::string text;          ///< lines of the first `steps` steps, and all that are not metrics
  bool has_metrics = false;  ///< the file had lines of metrics, or the beginning of one
  bool is_changed = false;   ///< something went
  std::int64_t foreign = 0;  ///< lines that are not metrics; they stay
};
inline KeptLines lines_up_to(std::string_view text, std::int64_t steps) {
  KeptLines out;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const bool is_whole = end != std::string_view::npos;
    const std::string_view line = text.substr(0, is_whole ? end + 1 : text.size());
    text.remove_prefix(line.size());
    constexpr std::string_view begin = "{\"step\":";  // a crash may have cut the last line short anywhere
    const bool is_cut = !is_whole && (line.starts_with(begin) || begin.starts_with(line));
    const std::int64_t step = is_cut ? 0 : step_of(line);
    out.has_metrics = out.has_metrics || is_cut || step > 0;
    if (is_cut || step > steps) {
      out.is_changed = true;
      continue;
    }
    out.foreign += step == 0 ? 1 : 0;
    out.text += line;
    if (is_whole) continue;
    out.text += '\n';
    out.is_changed = true;
  }
  return out;
}

}  // namespace detail

/// A file to which a run adds a line after every step; each is one write, so that a reader (or a crash) finds whole
/// lines only.
class MetricsFile {
 public:
  /// Begins the metrics of a new run: those of another run in the file go, lines that are not metrics stay. Errors
  /// (usage): it cannot be written; see check().
  static Result<MetricsFile> create(const std::filesystem::path& path) { return resume(path, 0); }

  /// Goes on with a file after the first `steps` steps: lines of later ones, which will be done again, go, and so does
  /// what a crash cut short. Lines that are not metrics stay. Errors (usage): it cannot be read or written; see
  /// check().
  static Result<MetricsFile> resume(const std::filesystem::path& path, std::int64_t steps) {
    const auto kept = read(path, steps);
    if (!kept) return tl::unexpected<Error>(kept.error());
    if (kept->is_changed)
      if (auto done = write_file_atomically(path, kept->text); !done)
        return tl::unexpected<Error>(std::move(done.error()));
    return open(path);
  }

  /// Errors (usage): the file exists, and nothing in it is a line of metrics: another program wrote it.
  static Result<void> check(const std::filesystem::path& path) {
    const auto kept = read(path, 0);
    if (!kept) return tl::unexpected<Error>(kept.error());
    return {};
  }

  /// Adds the line of a step. Errors (usage): a full disk, say.
  Result<void> append(const StepReport& report) {
    const std::string line = metrics_line(report);
    if (const int reason = detail::append_record(file_.get(), line); reason != 0)
      return galvatron::detail::file_error("cannot write", path_, reason);
    return {};
  }

 private:
  static Result<detail::KeptLines> read(const std::filesystem::path& path, std::int64_t steps) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(path, ignored)) return detail::KeptLines{};
    const auto text = read_text_file(path, std::int64_t{1} << 34);
    if (!text) return tl::unexpected<Error>(text.error());
    auto kept = detail::lines_up_to(*text, steps);
    if (!kept.has_metrics && !kept.text.empty())
      return usage_error(path.string() + " has " + std::to_string(kept.foreign) +
                         (kept.foreign == 1 ? " line, which is" : " lines, which are") +
                         " not metrics of a run; name another file");
    return kept;
  }
  static Result<MetricsFile> open(const std::filesystem::path& path) {
    galvatron::detail::FileHandle file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND, 0666));
    if (!file.is_open()) return galvatron::detail::file_error("cannot write", path, errno);
    return MetricsFile(path, std::move(file));
  }

  MetricsFile(std::filesystem::path path, galvatron::detail::FileHandle file)
      : path_(std::move(path)), file_(std::move(file)) {}

  std::filesystem::path path_;
  galvatron::detail::FileHandle file_;
};

}  // namespace galvatron::train
