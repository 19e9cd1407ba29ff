// Pairs as training data of models of several tasks: texts with images, sounds with texts, images with their depth. A
// folder has a folder for every task, and in it a file for each of the task's inputs, named after its component. Sample
// i of a task is line i, or image i, of all of them:
//
//     pairs/text-vision/text.txt         a line for each sample; every byte of it is a token
//     pairs/text-vision/vision.images    (count, channels, height, width) bytes (image_source.hpp)
//     pairs/text-audio/text.jsonl        a line for each sample: the numbers of its tokens, [15, 496, 2]
//     pairs/text-audio/audio.images      spectrograms: one channel of bands x frames
//     pairs/vision-depth/depth.images    depth maps: one channel
//
// Tokens of a sample are followed by zeros up to the tokens that the task takes. Images are cut into square patches.
// The order in which a task's samples are read is a function of its name and a seed, and all its inputs have the same.
// The last samples may be held out of training; they are read in the order of the files.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <galvatron/core/crc32c.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/data/batch_source.hpp>
#include <galvatron/data/data_files.hpp>
#include <galvatron/data/image_source.hpp>
#include <galvatron/data/task_stream.hpp>
#include <galvatron/model/multi_task.hpp>

namespace galvatron::train {

/// What texts have to be.
struct TextLimits {
  std::int64_t vocabulary = 256;  ///< tokens are below
  std::int64_t tokens = 0;        ///< of a sample, at the most
};

/// Texts of samples.
struct PairTexts {
  std::vector<std::int32_t> tokens;  ///< of all of them
  std::vector<std::size_t> ends{0};  ///< sample i has the tokens [ends[i], ends[i + 1])
  [[nodiscard]] std::int64_t count() const { return std::ssize(ends) - 1; }
  [[nodiscard]] std::span<const std::int32_t> text(std::int64_t i) const {
    const auto at = static_cast<std::size_t>(i);
    return std::span(tokens).subspan(ends[at], ends[at + 1] - ends[at]);
  }
};

/// The texts of a file: of its lines every byte is a token, or of `numbers` every line is a JSON array of tokens. The
/// last line may lack its end. Errors (usage): a line that is empty, longer than a sample or no such array, and a token
/// beyond the vocabulary; `name` stands for the file.
inline Result<PairTexts> parse_pair_texts(std::string_view bytes, bool numbers, const TextLimits& limits,
                                          const std::string& name) {
  PairTexts out;
  for (std::int64_t number = 1; !bytes.empty(); ++number) {
    const std::size_t end = std::min(bytes.find('\n'), bytes.size());
    const std::string_view line = bytes.substr(0, end);
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
    const std::string at = name + ", line " + std::to_string(number);
    std::int64_t count = std::ssize(line);
    if (numbers) {
      const auto value = parse_json(line, at);
      if (!value) return tl::unexpected<Error>(value.error());
      if (!value->is_array()) return usage_error(at + ": expected the tokens of a sample, as in [15, 496, 2]");
      count = std::ssize(*value);
      for (const nlohmann::json& token : *value) {
        if (!token.is_number_unsigned() || token.get<std::uint64_t>() >= static_cast<std::uint64_t>(limits.vocabulary))
          return usage_error(at + ": " + galvatron::detail::one_line(token.dump(), 40) + " is no token below " +
                             std::to_string(limits.vocabulary) + ", the vocabulary of the component");
        out.tokens.push_back(token.get<std::int32_t>());
      }
    } else {
      for (const char c : line) {
        out.tokens.push_back(static_cast<unsigned char>(c));
        if (out.tokens.back() >= limits.vocabulary)
          return usage_error(at + " has a byte " + std::to_string(out.tokens.back()) +
                             ", and the vocabulary of the component has the tokens below " +
                             std::to_string(limits.vocabulary) + "; give a file of numbers, or another component");
      }
    }
    if (count == 0) return usage_error(at + " is empty; every sample has at least one token");
    if (count > limits.tokens)
      return usage_error(at + " has " + std::to_string(count) + " tokens, and a sample of the task takes " +
                         std::to_string(limits.tokens) + "; shorten it");
    out.ends.push_back(out.tokens.size());
  }
  return out;
}

/// The data of a task. Immutable after open(): ranks may share one.
class PairSource {
 public:
  /// The files of a task in its folder. Errors (usage): a file that is missing, twice there or damaged, unequally many
  /// samples, images that are not as large as their component's, what parse_pair_texts() refuses, more samples held out
  /// than there are, a task that needs classes and has none.
  /// @param held_out  samples at the end that are not trained on
  static Result<PairSource> open(const std::filesystem::path& folder, const MultiTaskModel& model, int task,
                                 std::int64_t held_out, std::uint64_t seed) {
    const TaskSpec& spec = model.task(task);
    PairSource out;
    out.held_out_ = held_out;
    out.seed_ = seed ^ (std::uint64_t{crc32c(std::as_bytes(std::span(spec.name)))} << 20);
    for (const TaskInput& input : spec.inputs)
      if (auto added = out.add(folder / spec.name, model, input); !added)
        return tl::unexpected<Error>(std::move(added.error()));
    const HeadKind head = model.component(model.find(spec.loss)).layers.back().head;
    const Input& last = out.inputs_.back();
    if (head == HeadKind::classifier && !last.images)
      return usage_error(last.path.string() + ": the task \"" + spec.name +
                         "\" has a classifier, whose classes are the labels of an .images file, and its last input is "
                         "a text");
    const std::int64_t classes = model.component(model.find(spec.loss)).layers.back().vocabulary;
    if (head == HeadKind::classifier && last.view.classes > classes)
      return usage_error(last.path.string() + " has " + std::to_string(last.view.classes) +
                         " classes, and the task \"" + spec.name + "\" " + std::to_string(classes));
    if (out.samples() <= held_out)
      return usage_error(out.inputs_.front().path.string() + " has " + std::to_string(out.samples()) +
                         " samples, and " + std::to_string(held_out) + " are to be held out; hold out less");
    return out;
  }

  /// Samples of the files, held-out ones included.
  [[nodiscard]] std::int64_t samples() const { return inputs_.front().count(); }
  [[nodiscard]] std::int64_t held_out() const { return held_out_; }
  [[nodiscard]] std::int64_t trained() const { return samples() - held_out_; }
  /// CRC-32C of their number, of that of held-out ones, and of up to 256 samples that are spread evenly over them.
  [[nodiscard]] std::uint32_t checksum() const {
    constexpr std::int64_t most = 256;
    const std::int64_t all = samples();
    const std::int64_t numbers[] = {all, held_out_};
    std::uint32_t crc = crc32c(std::as_bytes(std::span(numbers)));
    for (std::int64_t i = 0; i < std::min(all, most); ++i) {
      const std::int64_t sample = all <= most ? i : (all - 1) * i / (most - 1);
      for (const Input& input : inputs_)
        crc = input.images ? crc32c(std::as_bytes(std::span(input.view.pixels(sample),
                                                            static_cast<std::size_t>(input.view.image_bytes()))),
                                    crc)
                           : crc32c(std::as_bytes(input.texts.text(sample)), crc);
    }
    return crc;
  }
  /// The sample of the files that is sample `sample` >= 0 of the run.
  [[nodiscard]] std::int64_t trained_sample(std::int64_t sample) const {
    return shuffled(seed_, sample / trained(), sample % trained(), trained());
  }
  [[nodiscard]] std::int64_t held_out_sample(std::int64_t sample) const { return trained() + sample % held_out_; }

  /// Token `token` of a sample of the files; 0 behind its end.
  [[nodiscard]] std::int32_t token(int input, std::int64_t sample, std::int64_t token) const {
    const std::span text = at(input).texts.text(sample);
    return token < std::ssize(text) ? text[static_cast<std::size_t>(token)] : 0;
  }
  /// The token that follows; -1 at the end.
  [[nodiscard]] std::int32_t next_token(int input, std::int64_t sample, std::int64_t token) const {
    return token + 1 < std::ssize(at(input).texts.text(sample)) ? this->token(input, sample, token + 1) : -1;
  }
  [[nodiscard]] bool has_images(int input) const { return at(input).images; }
  [[nodiscard]] std::int32_t label(int input, std::int64_t sample) const { return at(input).view.label(sample); }
  /// out = patch `patch` of an image.
  template <class T>
  void cut_patch(int input, std::int64_t sample, std::int64_t patch, T* out) const {
    at(input).view.cut_patch(sample, at(input).side, patch, out);
  }
  /// Numbers of a patch.
  [[nodiscard]] std::int64_t patch_width(int input) const {
    return at(input).view.channels * at(input).side * at(input).side;
  }

 private:
  struct Input {
    std::filesystem::path path;
    bool images = false;
    PairTexts texts;
    std::shared_ptr<MappedFile> file;  // of the images
    ImageView view;
    std::int64_t side = 0;  // of a patch

    [[nodiscard]] std::int64_t count() const { return images ? view.count : texts.count(); }
  };
  PairSource() = default;
  [[nodiscard]] const Input& at(int input) const { return inputs_[static_cast<std::size_t>(input)]; }

  Result<void> add(const std::filesystem::path& folder, const MultiTaskModel& model, const TaskInput& task_input) {
    const LayerSpec& embedding = model.component(model.find(task_input.component)).layers.front();
    const bool images = embedding.patch_width > 0;
    Input input;
    for (const char* ending : {".images", ".txt", ".jsonl"}) {
      if ((std::string_view(ending) == ".images") != images) continue;
      const std::filesystem::path path = folder / (task_input.component + ending);
      std::error_code ignored;
      if (!std::filesystem::exists(path, ignored)) continue;
      if (!input.path.empty())
        return usage_error("there are both " + input.path.string() + " and " + path.string() + "; keep one of them");
      input.path = path;
    }
    if (input.path.empty())
      return usage_error("there is no " + (folder / task_input.component).string() +
                         (images ? ".images" : ".txt or .jsonl") + "; every input of a task has a file (docs/data.md)");
    auto read = images ? read_images(embedding, task_input, input) : read_texts(embedding, task_input, input);
    if (!read) return read;
    if (!inputs_.empty() && input.count() != samples())
      return usage_error(input.path.string() + " has " + std::to_string(input.count()) + " samples, and " +
                         inputs_.front().path.string() + " " + std::to_string(samples()) +
                         "; sample i of the one belongs to sample i of the other");
    inputs_.push_back(std::move(input));
    return {};
  }
  static Result<void> read_texts(const LayerSpec& embedding, const TaskInput& task_input, Input& input) {
    const auto bytes = read_text_file(input.path, std::int64_t{1} << 34);
    if (!bytes) return tl::unexpected<Error>(bytes.error());
    const std::int64_t tokens = task_input.tokens > 0 ? task_input.tokens : embedding.positions;
    auto texts = parse_pair_texts(*bytes, input.path.extension() == ".jsonl", {embedding.vocabulary, tokens},
                                  input.path.string());
    if (!texts) return tl::unexpected<Error>(std::move(texts.error()));
    input.texts = std::move(*texts);
    return {};
  }
  static Result<void> read_images(const LayerSpec& embedding, const TaskInput& task_input, Input& input) {
    input.images = true;
    auto file = MappedFile::open(input.path);
    if (!file) return tl::unexpected<Error>(std::move(file.error()));
    input.file = std::make_shared<MappedFile>(std::move(*file));
    const auto view = parse_image_file(input.file->bytes(), input.path.string());
    if (!view) return tl::unexpected<Error>(view.error());
    input.view = *view;
    input.side = side_of_square(embedding.patch_width / view->channels);
    const std::int64_t tokens = embedding.positions - (embedding.class_token ? 1 : 0);
    const std::int64_t side = std::max<std::int64_t>(input.side, 1);
    if (side * side * view->channels != embedding.patch_width || view->height % side != 0 || view->width % side != 0 ||
        view->height / side * (view->width / side) != tokens)
      return usage_error(input.path.string() + " has images of " + std::to_string(view->channels) + " x " +
                         std::to_string(view->height) + " x " + std::to_string(view->width) + ", and the component \"" +
                         task_input.component + "\" takes " + std::to_string(tokens) + " patches of " +
                         std::to_string(embedding.patch_width) +
                         " numbers: channels x side x side of a patch; scale the images, or change the component");
    return {};
  }

  std::vector<Input> inputs_;
  std::int64_t held_out_ = 0;
  std::uint64_t seed_ = 0;
};

/// One input of a task, in batches.
class PairBatches final : public PatchSource<PairBatches> {
 public:
  /// @param stream    where the run is in the task's samples; null: those that are held out, whatever the step is
  PairBatches(const PairSource& source, int input, const TaskStream* stream) : source_(source), input_(input) {
    if (stream != nullptr) stream_ = *stream;
  }

  void inputs(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range,
              View<std::int32_t> out) override {
    each(step, first, samples, range, [&](std::int64_t row, std::int64_t token, std::int64_t sample) {
      out[row] = source_.token(input_, sample, token);
    });
  }
  /// Of images their classes.
  void targets(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range,
               View<std::int32_t> out) override {
    each(step, first, samples, range, [&](std::int64_t row, std::int64_t token, std::int64_t sample) {
      out[row] = source_.has_images(input_) ? source_.label(input_, sample) : source_.next_token(input_, sample, token);
    });
  }
  template <class T>
  void cut(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range, View<T> out) const {
    each(step, first, samples, range, [&](std::int64_t row, std::int64_t patch, std::int64_t sample) {
      source_.cut_patch(input_, sample, patch, out.data + row * source_.patch_width(input_));
    });
  }

 private:
  template <class F>
  void each(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range, const F& f) const {
    for (std::int64_t i = 0; i < samples; ++i) {
      const std::int64_t sample =
          stream_ ? source_.trained_sample(stream_->samples_at(step) + first + i) : source_.held_out_sample(first + i);
      for (std::int64_t s = 0; s < range.count; ++s) f(s * samples + i, range.first + s, sample);
    }
  }

  const PairSource& source_;
  int input_;
  std::optional<TaskStream> stream_;
};

}  // namespace galvatron::train
