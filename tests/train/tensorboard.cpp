// TensorBoard event files, read back as TensorBoard reads them: framing, checksums, protocol buffers.
#include <doctest/doctest.h>

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <galvatron/train/metrics.hpp>

using namespace galvatron;
using namespace galvatron::train;

namespace {

/// A field of a protocol buffer: the number of a varint or of fixed bits, or bytes.
struct Field {
  int number = 0;
  std::uint64_t bits = 0;
  std::string bytes;
};

std::uint64_t take_varint(std::string_view& text) {
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    REQUIRE_FALSE(text.empty());
    const auto byte = static_cast<unsigned char>(text.front());
    text.remove_prefix(1);
    value |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
    if (byte < 0x80) return value;
  }
}

template <class T>
T take(std::string_view& text) {
  REQUIRE(text.size() >= sizeof(T));
  T value;
  std::memcpy(&value, text.data(), sizeof value);
  text.remove_prefix(sizeof value);
  return value;
}

std::vector<Field> fields(std::string_view text) {
  std::vector<Field> out;
  while (!text.empty()) {
    const std::uint64_t key = take_varint(text);
    Field field{.number = static_cast<int>(key >> 3), .bits = 0, .bytes = {}};
    if ((key & 7U) == 0) field.bits = take_varint(text);
    if ((key & 7U) == 1) field.bits = take<std::uint64_t>(text);
    if ((key & 7U) == 5) field.bits = take<std::uint32_t>(text);
    if ((key & 7U) == 2) {
      const std::uint64_t size = take_varint(text);
      REQUIRE(size <= text.size());
      field.bytes = text.substr(0, size);
      text.remove_prefix(size);
    }
    out.push_back(field);
  }
  return out;
}

// One bit at a time, on its own.
std::uint32_t masked_crc(std::string_view text) {
  std::uint32_t crc = ~0U;
  for (const char c : text) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1U ? 0x82F63B78U : 0U);
  }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xA282EAD8U;
}

std::vector<std::string> records(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const std::string_view length_bytes = text.substr(0, 8);
    const auto length = take<std::uint64_t>(text);
    CHECK(take<std::uint32_t>(text) == masked_crc(length_bytes));
    REQUIRE(length <= text.size());
    out.emplace_back(text.substr(0, length));
    text.remove_prefix(length);
    CHECK(take<std::uint32_t>(text) == masked_crc(out.back()));
  }
  return out;
}

struct Event {
  double wall_time = 0;
  std::int64_t step = 0;
  std::string version;
  std::map<std::string, float> scalars;
  std::optional<std::uint64_t> session;
};

Event event_of(const std::string& record) {
  Event out;
  for (const Field& field : fields(record)) {
    if (field.number == 1) std::memcpy(&out.wall_time, &field.bits, sizeof out.wall_time);
    if (field.number == 2) out.step = static_cast<std::int64_t>(field.bits);
    if (field.number == 3) out.version = field.bytes;
    if (field.number == 7) out.session = fields(field.bytes).front().bits;
    if (field.number != 5) continue;
    for (const Field& value : fields(field.bytes)) {
      REQUIRE(value.number == 1);
      const std::vector<Field> parts = fields(value.bytes);
      REQUIRE(parts.size() == 2);
      const auto bits = static_cast<std::uint32_t>(parts[1].bits);
      std::memcpy(&out.scalars[parts[0].bytes], &bits, sizeof bits);
    }
  }
  return out;
}

std::vector<Event> events(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<Event> out;
  for (const std::string& record : records(std::string(std::istreambuf_iterator<char>(file), {})))
    out.push_back(event_of(record));
  return out;
}

}  // namespace

TEST_CASE("scalars are read back") {
  const auto folder = std::filesystem::temp_directory_path() / ("galvatron_tensorboard_" + std::to_string(::getpid()));
  std::filesystem::path first;
  {
    auto file = TensorBoardFile::create(folder, 1);
    REQUIRE(file.has_value());
    CHECK(file->path().filename().string().starts_with("events.out.tfevents."));
    first = file->path().filename();
    for (const std::int64_t step : {1, 300}) {
      const std::vector<Scalar> scalars{{"train/loss", 1.5 / static_cast<double>(step)}, {"rate", 3e8}};
      REQUIRE(file->append(step, scalars).has_value());
    }
    const std::vector<Event> all = events(file->path());
    REQUIRE(all.size() == 4);
    CHECK(all[0].version == "brain.Event:2");
    CHECK(all[1].session == 1);  // what a run that ended before its first checkpoint had done goes
    CHECK(all[1].step == 1);
    for (const Event& event : all) CHECK(event.wall_time > 1.6e9);
    CHECK(all[3].step == 300);
    CHECK(all[2].scalars == std::map<std::string, float>{{"train/loss", 1.5F}, {"rate", 3e8F}});
    CHECK(all[3].scalars.at("train/loss") == doctest::Approx(0.005F));
  }
  {
    const auto resumed = TensorBoardFile::create(folder, 200);
    REQUIRE(resumed.has_value());
    CHECK(resumed->path().filename() > first);  // TensorBoard reads files by name: in the same second, too
    const std::vector<Event> all = events(resumed->path());
    REQUIRE(all.size() == 2);
    CHECK(all[1].step == 200);
    CHECK(all[1].session == 1);  // START: TensorBoard drops what it has from this step on
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("a folder that cannot be made is told") {
  const auto file = TensorBoardFile::create("/dev/null/x", 1);
  REQUIRE_FALSE(file.has_value());
  CHECK(file.error().kind == ErrorKind::usage);
  CHECK(file.error().message.find("cannot write") != std::string::npos);
}
