// TensorBoard event files: the scalars of a run, written without TensorFlow.
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
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <galvatron/core/crc32c.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/train/append.hpp>

namespace galvatron::train {

struct Scalar {
  std::string_view tag;
  double value = 0;
};

namespace detail {

/// Fields of a protocol buffer, one after the other.
class ProtocolBuffer {
 public:
  ProtocolBuffer& number(int field, std::uint64_t value) { return key(field, 0).varint(value); }
  ProtocolBuffer& fixed(int field, double value) { return key(field, 1).little_endian(value); }
  ProtocolBuffer& fixed(int field, float value) { return key(field, 5).little_endian(value); }
  ProtocolBuffer& bytes(int field, std::string_view value) {
    key(field, 2).varint(value.size());
    text_ += value;
    return *this;
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  ProtocolBuffer& key(int field, int wire) {
    return varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(wire));
  }
  ProtocolBuffer& varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_ += static_cast<char>(value | 0x80U);
    text_ += static_cast<char>(value);
    return *this;
  }
  template <class T>
  ProtocolBuffer& little_endian(T value) {
    char raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);
    text_.append(raw, sizeof raw);
    return *this;
  }

  std::string text_;
};

constexpr std::uint32_t masked(std::uint32_t crc) { return std::rotr(crc, 15) + 0xA282EAD8U; }

inline std::string tensorboard_event(double wall_time, std::int64_t step) {
  return ProtocolBuffer().fixed(1, wall_time).number(2, static_cast<std::uint64_t>(step)).text();
}

}  // namespace detail

/// A record of a TFRecord file.
inline std::string tensorboard_record(std::string_view data) {
  const auto raw = [](auto value) {
    std::string out(sizeof value, '\0');
    std::memcpy(out.data(), &value, sizeof value);
    return out;
  };
  const std::string length = raw(static_cast<std::uint64_t>(data.size()));
  return length + raw(detail::masked(crc32c(length))) + std::string(data) + raw(detail::masked(crc32c(data)));
}

/// The event of the scalars of a step.
inline std::string scalars_event(double wall_time, std::int64_t step, std::span<const Scalar> scalars) {
  detail::ProtocolBuffer summary;
  for (const Scalar& scalar : scalars)
    summary.bytes(1, detail::ProtocolBuffer().bytes(1, scalar.tag).fixed(2, static_cast<float>(scalar.value)).text());
  return detail::tensorboard_event(wall_time, step) + detail::ProtocolBuffer().bytes(5, summary.text()).text();
}

/// An event file in a folder that TensorBoard looks at. Events are whole on the disk when they are added.
class TensorBoardFile {
 public:
  /// Begins a new file; the folder is made if need be. TensorBoard no longer shows what older files in the folder have
  /// of the step `first_step` and later ones: they will be done again. Errors (usage): it cannot be written.
  /// @param first_step  the first one that will be added; steps count from 1
  static Result<TensorBoardFile> create(const std::filesystem::path& folder, std::int64_t first_step) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) return galvatron::detail::file_error("cannot write", folder, error.value());
    char host[256] = "";
    if (::gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
    const std::filesystem::path path =
        folder / (std::string(prefix) + std::to_string(seconds_after_others(folder)) + "." + host + "." +
                  std::to_string(::getpid()) + "." + std::to_string(first_step));
    galvatron::detail::FileHandle file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666));
    if (!file.is_open()) return galvatron::detail::file_error("cannot write", path, errno);
    TensorBoardFile out(path, std::move(file));
    const std::string version = detail::ProtocolBuffer().fixed(1, now()).bytes(3, "brain.Event:2").text();
    if (auto done = out.write(version); !done) return tl::unexpected<Error>(std::move(done.error()));
    constexpr std::uint64_t start = 1;
    const std::string session =
        detail::tensorboard_event(now(), first_step) +
        detail::ProtocolBuffer().bytes(7, detail::ProtocolBuffer().number(1, start).text()).text();
    if (auto done = out.write(session); !done) return tl::unexpected<Error>(std::move(done.error()));
    return out;
  }

  /// Adds the scalars of a step. Errors (usage): a full disk, say.
  Result<void> append(std::int64_t step, std::span<const Scalar> scalars) {
    return write(scalars_event(now(), step, scalars));
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  static constexpr std::string_view prefix = "events.out.tfevents.";

  TensorBoardFile(std::filesystem::path path, galvatron::detail::FileHandle file)
      : path_(std::move(path)), file_(std::move(file)) {}

  /// Seconds since 1970.
  static double now() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  }

  /// For the name of a new file: TensorBoard reads files in the order of their names and never goes back, so runs that
  /// begin in the same second, or with a clock that was set back, must not change places.
  static std::int64_t seconds_after_others(const std::filesystem::path& folder) {
    auto out = static_cast<std::int64_t>(now());
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
      const std::string name = entry.path().filename().string();
      std::int64_t seconds = 0;
      if (!name.starts_with(prefix)) continue;
      const auto [end, error] = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), seconds);
      if (error == std::errc{} && seconds < std::int64_t{1} << 40) out = std::max(out, seconds + 1);
    }
    return out;
  }

  Result<void> write(std::string_view event) {
    const std::string record = tensorboard_record(event);
    if (const int reason = detail::append_record(file_.get(), record); reason != 0)
      return galvatron::detail::file_error("cannot write", path_, reason);
    return {};
  }

  std::filesystem::path path_;
  galvatron::detail::FileHandle file_;
};

}  // namespace galvatron::train
