// Image files, and what is read from them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <galvatron/data/data.hpp>
#include <galvatron/model/build.hpp>

#include "../folder.hpp"

using namespace galvatron;
using namespace galvatron::train;
using galvatron::test::Folder;
namespace fs = std::filesystem;

namespace {

struct Header {
  std::int32_t magic = image_magic;
  std::int32_t version = image_version;
  std::int32_t count = 0;
  std::int32_t channels = 2;
  std::int32_t height = 6;
  std::int32_t width = 6;
  std::int32_t classes = 5;
};

// Pixel k of image i is (first + 7 i + k) % 256, its class (first + i) % classes.
std::string file_of(Header header, int images, int first = 0) {
  header.count = images;
  std::string bytes(1024, '\0');
  std::memcpy(bytes.data(), &header, sizeof header);
  for (int i = 0; i < images; ++i)
    for (int k = 0; k < header.channels * header.height * header.width; ++k)
      bytes.push_back(static_cast<char>((first + 7 * i + k) % 256));
  for (int i = 0; i < images; ++i) {
    const auto label = static_cast<std::uint16_t>((first + i) % header.classes);
    bytes.append(reinterpret_cast<const char*>(&label), 2);
  }
  return bytes;
}

Result<ImageView> parse_images(const std::string& bytes) {
  return parse_image_file(std::as_bytes(std::span(bytes.data(), bytes.size())), "x.images");
}

std::string error_of(const auto& result) {
  REQUIRE_FALSE(result.has_value());
  CHECK(result.error().kind == ErrorKind::usage);
  CHECK(result.error().message.find('\n') == std::string::npos);
  return result.error().message;
}

ModelSpec model(int image = 6, int channels = 2, int classes = 5) {
  return vit(
      "toy",
      {.layers = 1, .hidden = 8, .heads = 1, .image = image, .patch = 2, .channels = channels, .classes = classes});
}

Result<ImageSource> open(std::vector<fs::path> paths, const ModelSpec& for_model = model(), std::uint64_t seed = 1) {
  return ImageSource::open(paths, for_model, seed);
}

}  // namespace

TEST_CASE("an image file is read") {
  const std::string bytes = file_of({}, 3, 4);
  const auto view = parse_images(bytes);
  REQUIRE(view.has_value());
  CHECK(view->count == 3);
  CHECK(view->image_bytes() == 72);
  CHECK(view->pixels(2)[5] == 4 + 14 + 5);
  CHECK(view->label(0) == 4);
  CHECK(view->label(2) == 1);
  CHECK(parse_images(file_of({}, 0))->count == 0);
}

TEST_CASE("a damaged image file is refused with what is wrong with it") {
  CHECK(error_of(parse_images(std::string(1023, 'x'))).find("it has 1023 bytes, its header alone would have 1024") !=
        std::string::npos);
  CHECK(error_of(parse_images(file_of({.magic = 20240520}, 1))).find("its magic number is 20240520, not 20261121") !=
        std::string::npos);
  CHECK(error_of(parse_images(file_of({.version = 2}, 1))) ==
        "x.images is an image file of version 2, only version 1 is known");
  for (const Header& header : {Header{.channels = 0}, Header{.channels = 17}, Header{.height = 5000},
                               Header{.width = -1}, Header{.classes = 65537}}) {
    Header written = header;
    std::string bytes(1024, '\0');
    std::memcpy(bytes.data(), &written, sizeof written);
    CHECK(error_of(parse_images(bytes)).find("is damaged: its header says") != std::string::npos);
  }
  std::string bytes = file_of({}, 3);
  CHECK(error_of(parse_images(bytes.substr(0, bytes.size() - 1))) ==
        "x.images is cut short: 3 images of 72 bytes and their labels make 1246 bytes, it has 1245");
  CHECK(error_of(parse_images(bytes + "x")).find("is damaged") != std::string::npos);
  bytes[bytes.size() - 2] = 5;
  CHECK(error_of(parse_images(bytes)) == "x.images is damaged: image 2 has the class 5 of 5");
}

TEST_CASE("a checksum tells images of the same number apart, and not the files that they are in") {
  const Folder folder;
  const auto checksum = [&](const std::vector<fs::path>& paths) { return open(paths)->checksum(); };
  for (const std::int32_t count : {1, 4, 601}) {
    const std::string bytes = file_of({}, count);
    const std::uint32_t whole = checksum({folder.write("a.images", bytes)});
    CHECK(checksum({folder.path / "a.images"}) == whole);
    for (const std::size_t at : {std::size_t{1024}, 1024 + static_cast<std::size_t>(count) * 72 - 1}) {
      std::string other = bytes;
      other[at] ^= 1;
      CHECK(checksum({folder.write("b.images", other)}) != whole);
    }
    std::string other = bytes;
    other[other.size() - 2] ^= 1;  // the class of the last
    CHECK(checksum({folder.write("b.images", other)}) != whole);
    CHECK(checksum({folder.path / "a.images", folder.path / "a.images"}) != whole);
  }
}

TEST_CASE("images that the model cannot take are refused with both sizes") {
  const Folder folder;
  const fs::path good = folder.write("a.images", file_of({}, 4));
  CHECK(error_of(open({})).find("name at least one .images file") != std::string::npos);
  CHECK(error_of(open({folder.path / "none.images"})).find("none.images") != std::string::npos);
  CHECK(error_of(open({good}, model(8))).find("images of 2 x 6 x 6, and the model toy takes 16 patches") !=
        std::string::npos);
  CHECK(error_of(open({good}, model(6, 3))).find("9 patches of 12 numbers") != std::string::npos);
  CHECK(error_of(open({good}, model(6, 2, 4))).find("has 5 classes, and the model toy 4") != std::string::npos);
  CHECK(error_of(open({folder.write("b.images", file_of({}, 0))})) == "the data have no image; give at least one");
  // 2 channels of 4 x 4 pixels are as many numbers as 8 channels of 2 x 2.
  const fs::path other = folder.write("c.images", file_of({.channels = 8, .height = 6, .width = 6}, 1));
  CHECK(error_of(open({good, other})).find("6 x 6") != std::string::npos);
}

TEST_CASE("patches are rows of (channel, row, column), patch by patch, in any part of the batch") {
  const Folder folder;
  const auto source = open({folder.write("a.images", file_of({}, 4)), folder.write("b.images", file_of({}, 3, 100))});
  REQUIRE(source.has_value());
  CHECK(source->images() == 7);
  constexpr std::int64_t samples = 5;
  constexpr std::int64_t width = 8;
  std::vector<float> all(9 * samples * width);
  source->patches(10, samples, {0, 9}, View<float>(all.data(), static_cast<std::int64_t>(all.size())));
  std::vector<std::int32_t> labels(samples);
  source->labels(10, samples, View<std::int32_t>(labels.data(), samples));
  for (std::int64_t i = 0; i < samples; ++i) {
    const std::int64_t image = source->image(10 + i);
    const std::int64_t first = image < 4 ? 7 * image : 100 + 7 * (image - 4);
    CHECK(labels[static_cast<std::size_t>(i)] == (image < 4 ? image % 5 : (100 + image - 4) % 5));
    for (std::int64_t patch = 0; patch < 9; ++patch)
      for (std::int64_t k = 0; k < width; ++k) {
        const std::int64_t row = patch / 3 * 2 + k / 2 % 2;
        const std::int64_t column = patch % 3 * 2 + k % 2;
        const std::int64_t pixel = (first + (k / 4 * 6 + row) * 6 + column) % 256;
        CHECK(all[static_cast<std::size_t>((patch * samples + i) * width + k)] ==
              doctest::Approx(static_cast<double>(pixel) / 127.5 - 1.0));
      }
  }
  std::vector<float> part(4 * 2 * width);
  source->patches(12, 2, {3, 4}, View<float>(part.data(), static_cast<std::int64_t>(part.size())));
  for (std::int64_t patch = 0; patch < 4; ++patch)
    for (std::int64_t i = 0; i < 2; ++i)
      for (std::int64_t k = 0; k < width; ++k)
        CHECK(part[static_cast<std::size_t>((patch * 2 + i) * width + k)] ==
              all[static_cast<std::size_t>(((patch + 3) * samples + i + 2) * width + k)]);
  CHECK_THROWS_AS(source->patches(0, 1, {0, 10}, View<float>(all.data(), 10 * width)), Failure);
}

TEST_CASE("an epoch reads every image once, in another order than the next") {
  const Folder folder;
  const auto source = open({folder.write("a.images", file_of({}, 60))});
  REQUIRE(source.has_value());
  std::set<std::int64_t> seen;
  bool same = true;
  for (std::int64_t i = 0; i < 60; ++i) {
    seen.insert(source->image(i));
    same = same && source->image(i) == source->image(60 + i);
  }
  CHECK(seen.size() == 60);
  CHECK_FALSE(same);
}
