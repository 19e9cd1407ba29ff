// Pairs in folders as the data of several tasks: what is read, in which order, where a run goes on, and bad folders.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include <galvatron/data/task_data.hpp>
#include <galvatron/model/multi_task_zoo.hpp>

#include "../folder.hpp"
#include "../says.hpp"

using namespace galvatron;
using namespace galvatron::train;

namespace {

std::string pair_images(int count, int channels, int height, int width, int classes = 1) {
  std::string bytes(1024, '\0');
  const std::int32_t header[] = {image_magic, image_version, count, channels, height, width, classes};
  std::memcpy(bytes.data(), header, sizeof header);
  for (int i = 0; i < count; ++i)
    for (int k = 0; k < channels * height * width; ++k) bytes.push_back(static_cast<char>((5 * i + k) % 256));
  for (int i = 0; i < count; ++i) {
    const auto label = static_cast<std::uint16_t>(i % classes);
    bytes.append(reinterpret_cast<const char*>(&label), 2);
  }
  return bytes;
}

std::string pair_texts(int count) {
  std::string out;
  for (int i = 0; i < count; ++i)
    out += std::string(static_cast<std::size_t>(1 + i % 8), static_cast<char>(33 + i % 30)) + "\n";
  return out;
}

// Of clip-toy: texts of up to 8 tokens below 64, images in 9 patches of 12 numbers (3 channels), sounds in 6 patches of
// 8 (2 channels), depth in 9 patches of 4.
void write_toy_pairs(const test::Folder& folder, int count = 20) {
  for (const char* task : {"text-vision", "text-audio"})
    folder.write(std::string(task) + "/text.txt", pair_texts(count));
  for (const char* task : {"text-vision", "vision-audio", "vision-depth"})
    folder.write(std::string(task) + "/vision.images", pair_images(count, 3, 6, 6));
  for (const char* task : {"vision-audio", "text-audio"})
    folder.write(std::string(task) + "/audio.images", pair_images(count, 2, 4, 6));
  folder.write("vision-depth/depth.images", pair_images(count, 1, 6, 6));
}

MultiTaskModel pair_toy() { return value_or_throw(find_multi_task_model("clip-toy")); }

std::string refused_pairs(const test::Folder& folder, const MultiTaskModel& model, std::int64_t held_out = 0) {
  const auto data = TaskData::open(folder.path, model, held_out, 1);
  REQUIRE_FALSE(data.has_value());
  CHECK(data.error().kind == ErrorKind::usage);
  CHECK(data.error().message.find('\n') == std::string::npos);
  return data.error().message;
}

// The first tokens of the texts of a batch of the first task.
std::vector<std::int32_t> first_pair_tokens(BatchSource& source, std::int64_t step, std::int64_t batch) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(batch));
  source.inputs(step, 0, batch, {0, 1}, {out.data(), batch});
  return out;
}

}  // namespace

TEST_CASE(
    "both inputs of a task read the same sample, every sample once an epoch, and tasks have orders of their own") {
  const test::Folder folder;
  write_toy_pairs(folder);
  const MultiTaskModel model = pair_toy();
  auto data = value_or_throw(TaskData::open(folder.path, model, 4, 7));
  const auto sources = data.sources();
  std::multiset<std::int32_t> seen;
  for (std::int64_t step = 0; step < 2; ++step) {  // 16 samples are trained on, 8 in a batch
    std::vector<std::int32_t> tokens(8 * 8);
    std::vector<float> patches(9 * 8 * 12);
    sources[0][0]->inputs(step, 0, 8, {0, 8}, {tokens.data(), 64});
    sources[0][1]->patches(step, 0, 8, {0, 9}, {patches.data(), std::ssize(patches)});
    for (int i = 0; i < 8; ++i) {
      const int sample = tokens[static_cast<std::size_t>(i)] - 33;
      seen.insert(sample);
      for (int t = 0; t < 8; ++t)  // as many as the line has, then zeros
        CHECK(tokens[static_cast<std::size_t>(8 * t + i)] == (t < 1 + sample % 8 ? 33 + sample : 0));
      // Row 4 of patches (the middle), column 5: channel 1, pixel (2, 3).
      const int pixel = (5 * sample + 36 + 2 * 6 + 3) % 256;
      CHECK(patches[static_cast<std::size_t>((4 * 8 + i) * 12 + 5)] == doctest::Approx(pixel / 127.5 - 1));
    }
  }
  for (int sample = 0; sample < 16; ++sample) CHECK(seen.count(sample) == 1);
  std::vector<std::int32_t> of_first = first_pair_tokens(*sources[0][0], 0, 8);
  CHECK(of_first != first_pair_tokens(*sources[3][0], 0, 8));
  auto held = data.held_out_sources();
  CHECK(first_pair_tokens(*held[0][0], 0, 4) == std::vector<std::int32_t>{49, 50, 51, 52});
  CHECK(data.held_out() == std::vector<std::int64_t>(4, 4));
  std::vector<std::int32_t> next(8);
  held[0][0]->targets(0, 3, 1, {0, 8}, {next.data(), 8});  // sample 19 has four tokens
  CHECK(next == std::vector<std::int32_t>{52, 52, 52, -1, -1, -1, -1, -1});
}

TEST_CASE("a stream goes on after the samples that were read, whatever the batch is then, and new tasks begin") {
  const test::Folder folder;
  write_toy_pairs(folder, 64);
  MultiTaskModel model = pair_toy();
  auto data = value_or_throw(TaskData::open(folder.path, model, 0, 7));
  const auto sources = data.sources();
  std::vector<std::int32_t> all;
  for (std::int64_t step = 0; step < 8; ++step)
    for (const std::int32_t token : first_pair_tokens(*sources[0][0], step, 8)) all.push_back(token);
  std::vector<TaskStream> streams = data.streams();
  streams.erase(streams.begin() + 3);
  model.tasks[0].batch = 5;
  auto rest = value_or_throw(TaskData::open(folder.path, model, 0, 7));
  value_or_throw(rest.go_on(streams, 3));
  CHECK(rest.streams()[0].samples_at(3) == 24);
  CHECK(rest.streams()[0].samples_at(5) == 34);
  CHECK(rest.streams()[3].samples_at(3) == 0);
  const auto going_on = rest.sources();
  CHECK(first_pair_tokens(*going_on[0][0], 3, 5) == std::vector<std::int32_t>(all.begin() + 24, all.begin() + 29));
  CHECK(first_pair_tokens(*going_on[0][0], 4, 5) == std::vector<std::int32_t>(all.begin() + 29, all.begin() + 34));
  folder.write("text-vision/text.txt", pair_texts(63) + "0123\n");
  auto others = value_or_throw(TaskData::open(folder.path, model, 0, 7));
  const auto wrong = others.go_on(streams, 3);
  REQUIRE_FALSE(wrong.has_value());
  CHECK(says(wrong.error().message, "text-vision"));
  auto held = value_or_throw(TaskData::open(folder.path, model, 8, 7));
  CHECK_FALSE(held.go_on(streams, 3).has_value());
}

TEST_CASE("tokens of a tokenizer are lines of numbers, and classes of a classifier the labels of its images") {
  const test::Folder folder;
  write_toy_pairs(folder, 3);
  std::filesystem::remove(folder.path / "text-vision/text.txt");
  folder.write("text-vision/text.jsonl", "[1, 2]\n[63]\n[4, 5, 6, 7, 8, 9, 10, 11]");
  MultiTaskModel model = pair_toy();
  CHECK(TaskData::open(folder.path, model, 0, 1).has_value());
  folder.write("text-vision/text.jsonl", "[1, 2]\n[64]\n[4]\n");
  CHECK(says(refused_pairs(folder, model), "line 2: 64 is no token below 64"));
  folder.write("text-vision/text.jsonl", "[1, 2]\n[1.5]\n[4]\n");
  CHECK(says(refused_pairs(folder, model), "line 2"));
  folder.write("text-vision/text.jsonl", "[1, 2]\n{\"a\": 1}\n[4]\n");
  CHECK(says(refused_pairs(folder, model), "line 2: expected the tokens"));
  folder.write("text-vision/text.jsonl", "[1, 2\n");
  CHECK(says(refused_pairs(folder, model), "line 1"));

  MultiTaskModel classes{"classes", {}, {}};
  classes.components.push_back(
      component("vision", {.kind = ComponentKind::patches, .layers = 1, .hidden = 16, .tokens = 9, .patch = 12}));
  classes.components.push_back(
      component("which", {.kind = ComponentKind::classifier, .hidden = 16, .vocabulary = 3, .tokens = 9}, {"vision"}));
  classes.tasks.push_back({"which", {{"vision"}}, "which", 4});
  folder.write("which/vision.images", pair_images(5, 3, 6, 6, 3));
  auto data = value_or_throw(TaskData::open(folder.path, classes, 1, 1));
  std::int32_t label = -1;
  data.held_out_sources()[0][0]->targets(0, 0, 1, {0, 1}, {&label, 1});
  CHECK(label == 4 % 3);
  folder.write("which/vision.images", pair_images(5, 3, 6, 6, 4));
  CHECK(says(refused_pairs(folder, classes), "4 classes"));
}

TEST_CASE("samples made of numbers have the same images in both precisions") {
  const MultiTaskModel model = value_or_throw(find_multi_task_model("clip-toy"));
  TaskData data = TaskData::synthetic(model, 3);
  const auto sources = data.sources();
  constexpr std::int64_t samples = 3, patches = 4;
  int images = 0;
  for (std::size_t task = 0; task < model.tasks.size(); ++task)
    for (std::size_t input = 0; input < sources[task].size(); ++input) {
      const LayerSpec& first = model.component(model.find(model.tasks[task].inputs[input].component)).layers.front();
      if (first.patch_width == 0) continue;
      ++images;
      std::vector<float> exact(static_cast<std::size_t>(samples * patches * first.patch_width));
      std::vector<bfloat16> rounded(exact.size());
      sources[task][input]->patches(2, 1, samples, {1, patches}, {exact.data(), std::ssize(exact)});
      sources[task][input]->patches(2, 1, samples, {1, patches}, {rounded.data(), std::ssize(rounded)});
      bool same = true;
      for (std::size_t i = 0; i < exact.size(); ++i) same &= rounded[i] == bfloat16(exact[i]);
      CHECK(same);
    }
  CHECK(images >= 4);
}

TEST_CASE("bad folders are refused in one line that names the file") {
  const MultiTaskModel model = pair_toy();
  const test::Folder folder;
  write_toy_pairs(folder);
  CHECK(TaskData::open(folder.path, model, 0, 1).has_value());
  CHECK(says(refused_pairs(folder, model, 20), "20 are to be held out"));
  const auto broken = [&](const std::string& name, const std::string& content, const std::string& cause) {
    folder.write(name, content);
    const std::string message = refused_pairs(folder, model);
    CAPTURE(message);
    CHECK(says(message, name));
    CHECK(says(message, cause));
    write_toy_pairs(folder);
  };
  broken("text-vision/text.txt", pair_texts(19), "20 samples");
  broken("text-vision/text.txt", pair_texts(19) + "\n", "line 20 is empty");
  broken("text-vision/text.txt", pair_texts(19) + "123456789\n", "line 20 has 9 tokens");
  broken("text-vision/text.txt", pair_texts(19) + "a\n", "byte 97");
  broken("text-vision/vision.images", pair_images(20, 3, 6, 9), "3 x 6 x 9");
  broken("text-vision/vision.images", pair_images(20, 1, 6, 6), "1 x 6 x 6");
  broken("text-vision/vision.images", pair_images(20, 3, 6, 6).substr(0, 2000), "cut short");
  broken("text-audio/audio.images", pair_images(20, 2, 6, 6), "2 x 6 x 6");
  broken("text-vision/text.jsonl", "[1]\n", "there are both");
  std::filesystem::remove(folder.path / "text-vision/text.jsonl");
  std::filesystem::remove(folder.path / "vision-depth/depth.images");
  CHECK(says(refused_pairs(folder, model), "vision-depth/depth.images"));
  const auto none = TaskData::open(folder.path / "none", model, 0, 1);
  REQUIRE_FALSE(none.has_value());
  CHECK(says(none.error().message, "is no folder"));
}
