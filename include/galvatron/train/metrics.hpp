// What a run writes after every step, for programs that watch it: metrics.jsonl, with one JSON object for each step,
// and TensorBoard event files, written without TensorFlow.
//
//   file    | record | record | ...
//   record  | length: 8 bytes | masked CRC-32C of it: 4 | data | masked CRC-32C of the data: 4 |     (TFRecord)
//   data    Event { 1: wall time, double   2: step, int64   3: file version   5: Summary   7: SessionLog }
//           Summary { 1: Value { 1: tag   2: number, float } ... }                                   (protocol buffers)
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/crc32c.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/train/trainer.hpp>

namespace galvatron::train {

struct Scalar {
  std::string tag;
  double value = 0;
};

namespace detail {

template <class T>
std::string bytes_of(T value) {
  std::string out(sizeof value, '\0');
  std::memcpy(out.data(), &value, sizeof value);
  return out;
}

// Fields of a protocol buffer, which follow each other.
inline std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80U);
  return out + static_cast<char>(value);
}
inline std::string number_field(unsigned field, std::uint64_t value) { return varint(field << 3U) + varint(value); }
template <class T>
std::string fixed_field(unsigned field, T value) {
  return varint(field << 3U | (sizeof value == 8 ? 1U : 5U)) + bytes_of(value);
}
inline std::string text_field(unsigned field, std::string_view value) {
  return varint(field << 3U | 2U) + varint(value.size()) + std::string(value);
}

constexpr std::uint32_t masked(std::uint32_t crc) { return std::rotr(crc, 15) + 0xA282EAD8U; }

inline std::string tensorboard_event(double wall_time, std::int64_t step) {
  return fixed_field(1, wall_time) + number_field(2, static_cast<std::uint64_t>(step));
}

/// The step of a line of metrics_line(); 0: it is not one.
inline std::int64_t step_of(std::string_view line) {
  const auto value = nlohmann::json::parse(line, nullptr, false);
  if (!value.is_object() || !value.contains("loss") || !value.contains("gradient_norm")) return 0;
  const auto step = value.find("step");
  return step != value.end() && step->is_number_unsigned() ? step->get<std::int64_t>() : 0;
}

/// A metrics file without what a run that goes on after `steps` steps will write again.
struct KeptLines {
  std::string text;         ///< lines of the first `steps` steps, and all that are not metrics
  bool is_changed = false;  ///< something went
};
/// Errors (usage): nothing in the file `name` is a line of metrics, or the beginning of one.
inline Result<KeptLines> lines_up_to(std::string_view text, std::int64_t steps, const std::string& name) {
  KeptLines out;
  bool has_metrics = false;
  std::int64_t foreign = 0;  // lines that are not metrics; they stay
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    const bool is_whole = end != std::string_view::npos;
    const std::string_view line = rest.substr(0, is_whole ? end + 1 : rest.size());
    rest.remove_prefix(line.size());
    constexpr std::string_view begin = "{\"step\":";  // a crash may have cut the last line short anywhere
    const bool is_cut = !is_whole && (line.starts_with(begin) || begin.starts_with(line));
    const std::int64_t step = is_cut ? 0 : step_of(line);
    has_metrics = has_metrics || is_cut || step > 0;
    if (is_cut || step > steps) continue;
    foreign += step == 0 ? 1 : 0;
    out.text += line;
    if (!is_whole) out.text += '\n';
  }
  if (!has_metrics && foreign > 0)
    return usage_error(name + " has " + std::to_string(foreign) +
                       (foreign == 1 ? " line, which is" : " lines, which are") +
                       " not metrics of a run; name another file");
  out.is_changed = out.text != text;
  return out;
}

}  // namespace detail

/// A record of a TFRecord file.
inline std::string tensorboard_record(std::string_view data) {
  using detail::bytes_of, detail::masked;
  const std::string length = bytes_of(static_cast<std::uint64_t>(data.size()));
  return length + bytes_of(masked(crc32c(length))) + std::string(data) + bytes_of(masked(crc32c(data)));
}

/// The event of the scalars of a step.
inline std::string scalars_event(double wall_time, std::int64_t step, std::span<const Scalar> scalars) {
  using detail::text_field, detail::fixed_field;
  std::string summary;
  for (const Scalar& scalar : scalars)
    summary += text_field(1, text_field(1, scalar.tag) + fixed_field(2, static_cast<float>(scalar.value)));
  return detail::tensorboard_event(wall_time, step) + text_field(5, summary);
}

/// An event file in a folder that TensorBoard looks at. Events are whole on the disk when they are added.
class TensorBoardFile {
 public:
  /// Begins a new file; the folder is made if need be. TensorBoard no longer shows what older files in the folder have
  /// of the step `first_step` and later ones: they will be done again. Errors (usage): it cannot be written.
  /// @param first_step  the first one that will be added; steps count from 1
  static Result<TensorBoardFile> create(const std::filesystem::path& folder, std::int64_t first_step) {
    if (auto made = galvatron::detail::make_folder(folder); !made)
      return tl::unexpected<Error>(std::move(made.error()));
    char host[256] = "";
    if (::gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
    const std::filesystem::path path =
        folder / (std::string(prefix) + std::to_string(seconds_after_others(folder)) + "." + host + "." +
                  std::to_string(::getpid()) + "." + std::to_string(first_step));
    auto file = AppendedFile::open(path, O_TRUNC);
    if (!file) return tl::unexpected<Error>(std::move(file.error()));
    TensorBoardFile out(std::move(*file));
    const std::string version = detail::fixed_field(1, now()) + detail::text_field(3, "brain.Event:2");
    constexpr std::uint64_t start = 1;
    const std::string session =
        detail::tensorboard_event(now(), first_step) + detail::text_field(7, detail::number_field(1, start));
    for (const std::string& event : {version, session})
      if (auto done = out.write(event); !done) return tl::unexpected<Error>(std::move(done.error()));
    return out;
  }

  /// Adds the scalars of a step. Errors (usage): a full disk, say.
  Result<void> append(std::int64_t step, std::span<const Scalar> scalars) {
    return write(scalars_event(now(), step, scalars));
  }
  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }

 private:
  static constexpr std::string_view prefix = "events.out.tfevents.";

  explicit TensorBoardFile(AppendedFile file) : file_(std::move(file)) {}

  /// Seconds since 1970.
  static double now() { return clock_seconds(CLOCK_REALTIME); }

  /// For the name of a new file: TensorBoard reads files in the order of their names and never goes back, so runs that
  /// begin in the same second, or with a clock that was set back, must not change places.
  static std::int64_t seconds_after_others(const std::filesystem::path& folder) {
    auto out = static_cast<std::int64_t>(now());
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with(prefix)) continue;
      const auto seconds = galvatron::detail::leading_number(std::string_view(name).substr(prefix.size()));
      if (seconds && *seconds < std::int64_t{1} << 40) out = std::max(out, *seconds + 1);
    }
    return out;
  }

  Result<void> write(std::string_view event) { return file_.append(tensorboard_record(event)); }

  AppendedFile file_;
};

/// The line of a step, with its newline. Steps count from 1 here: `{"step": 1, "loss": 5.54, ...}`. A number that is
/// not finite or not known is null. Where texts tell their bytes there are `bits_per_byte`, and behind steps that are
/// followed by a validation `validation_loss` and `validation_bits_per_byte`. Of packed documents there are `tokens`,
/// rows of `padding`, `microbatches`, their `groups` and `waited_seconds` for these. Of models with experts
/// `dispatch_bytes` is DispatchSums::bytes; with compressed dispatch there are rate, error and hashing seconds of the
/// step, and arrays of them with a number for each layer with experts, null for one that is not compressed. With loads
/// of experts, `loads` has an array for each layer with experts, the choices of each expert, and `load_imbalance` the
/// largest of them over their mean.
inline std::string metrics_line(const StepReport& report) {
  nlohmann::ordered_json line{{"step", report.step + 1},
                              {"loss", report.loss},
                              {"gradient_norm", report.gradient_norm},
                              {"learning_rate", report.learning_rate},
                              {"seconds", report.seconds},
                              {"tokens_per_second", report.tokens_per_second},
                              {"mfu", report.mfu > 0 ? nlohmann::json(report.mfu) : nlohmann::json()},
                              {"peak_bytes", report.peak_memory.count}};
  if (report.bits_per_byte > 0) line["bits_per_byte"] = report.bits_per_byte;
  if (report.validation_loss) line["validation_loss"] = *report.validation_loss;
  if (report.validation_bits_per_byte > 0) line["validation_bits_per_byte"] = report.validation_bits_per_byte;
  if (report.packed) {
    line["tokens"] = report.tokens;
    line["padding"] = report.packed->padding;
    line["microbatches"] = report.packed->microbatches;
    line["groups"] = report.packed->groups;
    line["waited_seconds"] = report.packed->waited;
  }
  if (report.balance_loss != 0) line["balance_loss"] = report.balance_loss;
  if (report.z_loss != 0) line["z_loss"] = report.z_loss;
  if (!report.layer_dispatch.empty()) line["dispatch_bytes"] = static_cast<std::int64_t>(report.dispatch.bytes);
  if (report.dispatch.is_compressed()) {
    line["lsh_rate"] = report.dispatch.rate();
    line["lsh_error"] = report.dispatch.error();
    line["hashing_seconds"] = report.dispatch.hashing_seconds;
    for (const auto& [layer, sums] : report.layer_dispatch) {
      using Json = nlohmann::ordered_json;
      const auto of_layer = [is = sums.is_compressed()](double value) { return is ? Json(value) : Json(); };
      line["layer_lsh_rate"].push_back(of_layer(sums.rate()));
      line["layer_lsh_error"].push_back(of_layer(sums.error()));
      line["layer_hashing_seconds"].push_back(of_layer(sums.hashing_seconds));
    }
  }
  if (!report.skipped.empty()) line["skipped"] = report.skipped;
  for (const RankSeconds& rank : report.ranks) line["rank_seconds"].push_back(rank.total());
  for (const ExpertLoads& layer : report.loads) {
    line["load_imbalance"].push_back(layer.imbalance());
    line["loads"].push_back(layer.choices);
  }
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
  if (report.bits_per_byte > 0) out.push_back({"train/bits_per_byte", report.bits_per_byte});
  if (report.validation_loss) out.push_back({"validation/loss", *report.validation_loss});
  if (report.validation_bits_per_byte > 0) out.push_back({"validation/bits_per_byte", report.validation_bits_per_byte});
  if (report.packed) {
    out.push_back({"packing/tokens", static_cast<double>(report.tokens)});
    out.push_back({"packing/padding", static_cast<double>(report.packed->padding)});
    out.push_back({"packing/microbatches", static_cast<double>(report.packed->microbatches)});
    out.push_back({"packing/waited_seconds", report.packed->waited});
  }
  if (report.balance_loss != 0) out.push_back({"train/balance_loss", report.balance_loss});
  if (report.z_loss != 0) out.push_back({"train/z_loss", report.z_loss});
  if (!report.layer_dispatch.empty()) out.push_back({"dispatch/bytes", report.dispatch.bytes});
  const auto compressed = [&out](const DispatchSums& sums, const std::string& of) {
    if (!sums.is_compressed()) return;
    out.push_back({"dispatch/lsh_rate" + of, sums.rate()});
    out.push_back({"dispatch/lsh_error" + of, sums.error()});
    out.push_back({"dispatch/hashing_seconds" + of, sums.hashing_seconds});
  };
  compressed(report.dispatch, "");
  for (const auto& [layer, sums] : report.layer_dispatch) compressed(sums, "_layer_" + std::to_string(layer));
  if (report.mfu > 0) out.push_back({"speed/mfu", report.mfu});
  for (const ExpertLoads& layer : report.loads)
    out.push_back({"experts/load_imbalance_layer_" + std::to_string(layer.layer), layer.imbalance()});
  return out;
}

/// A file to which a run adds a line after every step; each is one write, so that a reader (or a crash) finds whole
/// lines only.
class MetricsFile {
 public:
  /// Goes on with a file after the first `steps` steps, or begins one: lines of later steps, which will be done again,
  /// go, and so does what a crash cut short. Lines that are not metrics stay. Errors (usage): it cannot be read or
  /// written; see check().
  static Result<MetricsFile> resume(const std::filesystem::path& path, std::int64_t steps = 0) {
    const auto kept = read(path, steps);
    if (!kept) return tl::unexpected<Error>(kept.error());
    if (kept->is_changed)
      if (auto done = write_file_atomically(path, kept->text); !done)
        return tl::unexpected<Error>(std::move(done.error()));
    return AppendedFile::open(path).map([](AppendedFile&& file) { return MetricsFile(std::move(file)); });
  }

  /// Errors (usage): the file exists, and nothing in it is a line of metrics: another program wrote it.
  static Result<void> check(const std::filesystem::path& path) {
    return read(path, 0).map([](const auto&) {});
  }

  /// Adds the line of a step. Errors (usage): a full disk, say.
  Result<void> append(const StepReport& report) { return append_line(metrics_line(report)); }
  /// The same of a line that is made already.
  Result<void> append_line(const std::string& line) { return file_.append(line); }

 private:
  static Result<detail::KeptLines> read(const std::filesystem::path& path, std::int64_t steps) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(path, ignored)) return detail::KeptLines{};
    return read_text_file(path, std::int64_t{1} << 34).and_then([&](const std::string& text) {
      return detail::lines_up_to(text, steps, path.string());
    });
  }

  explicit MetricsFile(AppendedFile file) : file_(std::move(file)) {}

  AppendedFile file_;
};

}  // namespace galvatron::train
