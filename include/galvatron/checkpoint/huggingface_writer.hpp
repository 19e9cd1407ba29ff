// Writes weights as Hugging Face transformers publishes models: config.json and safetensors. Where the parameters
// stand in them: huggingface.hpp.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/checkpoint/huggingface.hpp>
#include <galvatron/checkpoint/safetensors.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/runtime/layer.hpp>

namespace galvatron::train {

namespace detail {

/// The tensors of files: runs of the parts of one.
using TensorParts = std::span<const HuggingFaceTensor>;
inline std::vector<TensorParts> whole_tensors(const std::vector<HuggingFaceTensor>& parts) {
  std::vector<TensorParts> out;
  for (std::size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
    while (end < parts.size() && parts[end].name == parts[begin].name) ++end;
    out.push_back(std::span(parts).subspan(begin, end - begin));
  }
  return out;
}
/// The number format of a tensor: transformers keeps the experts' biases in fp32.
inline Precision precision_in_file(const HuggingFaceTensor& tensor, Precision precision) {
  return tensor.parameter == ParameterName::router_bias ? Precision::fp32 : precision;
}

/// Rows [row, row + shape.rows) of a parameter.
inline std::vector<float> values_of(const runtime::ParameterSource& weights, int layer, ParameterName parameter,
                                    std::int64_t row, TensorShape shape) {
  std::vector<float> out(static_cast<std::size_t>(shape.count()));
  weights(layer, {.name = parameter, .columns = shape.columns}, row * shape.columns, {out.data(), shape.count()});
  return out;
}

/// The tensor's bytes in the file.
inline std::vector<std::byte> huggingface_bytes(const runtime::ParameterSource& weights, TensorParts parts,
                                                Precision precision) {
  const auto width = static_cast<std::size_t>(element_bytes(precision));
  std::vector<std::byte> out(static_cast<std::size_t>(parts.front().file_count()) * width);
  const auto put = [&](std::int64_t place, float value) {
    const bfloat16 rounded(value);
    std::byte* const to = out.data() + static_cast<std::size_t>(place) * width;
    if (precision == Precision::fp32)
      std::memcpy(to, &value, width);
    else
      std::memcpy(to, &rounded.bits, width);
  };
  for (const HuggingFaceTensor& part : parts) {
    const auto [rows, columns] = part.shape;
    const std::vector<float> values = values_of(weights, part.layer, part.parameter, part.row, part.shape);
    constexpr std::int64_t side = 32;  // of a square that is turned within the cache
    for (std::int64_t r = 0; r < rows; r += side)
      for (std::int64_t c = 0; c < columns; c += side)
        for (std::int64_t i = r; i < std::min(r + side, rows); ++i)
          for (std::int64_t j = c; j < std::min(c + side, columns); ++j)
            put(part.transposed ? j * rows + part.rows(i) : part.rows(i) * columns + j,
                values[static_cast<std::size_t>(i * columns + j)]);
  }
  return out;
}

inline Result<void> write_huggingface_file(const std::filesystem::path& path, const runtime::ParameterSource& weights,
                                           std::span<const TensorParts> tensors, Precision precision) {
  std::vector<SafetensorsEntry> entries;
  std::int64_t end = 0;
  for (const TensorParts& tensor : tensors) {
    const HuggingFaceTensor& first = tensor.front();
    const Precision own = precision_in_file(first, precision);
    const std::int64_t bytes = first.file_count() * element_bytes(own);
    entries.push_back({first.name, own == Precision::fp32 ? "F32" : "BF16", first.file_shape(), end, end + bytes});
    end += bytes;
  }
  auto file = AtomicFile::create(path);
  if (!file) return tl::unexpected<Error>(std::move(file.error()));
  if (auto done = file->write(safetensors_header(entries, {{"format", "pt"}})); !done) return done;
  for (const TensorParts& tensor : tensors) {
    const std::vector<std::byte> bytes =
        huggingface_bytes(weights, tensor, precision_in_file(tensor.front(), precision));
    if (auto done = file->write(std::span<const std::byte>(bytes)); !done) return done;
  }
  return file->commit();
}

}  // namespace detail

/// Weights go to model.safetensors, or, when they are more, to files of at most so many bytes (but for a larger tensor)
/// and model.safetensors.index.json.
inline constexpr Bytes largest_huggingface_file{5'000'000'000};

/// Writes config.json and these tensors to a folder. The names of the files that were written,
/// config.json first. Errors (usage): what the system says.
inline Result<std::vector<std::string>> write_huggingface(
    const std::filesystem::path& folder, const runtime::ParameterSource& weights, const nlohmann::ordered_json& config,
    const std::vector<HuggingFaceTensor>& parts, Precision precision, Bytes largest = largest_huggingface_file) {
  if (auto made = galvatron::detail::make_folder(folder); !made) return tl::unexpected<Error>(std::move(made.error()));
  const std::vector<detail::TensorParts> tensors = detail::whole_tensors(parts);
  std::vector<std::size_t> starts{0};  // of the files
  std::int64_t total = 0;
  std::int64_t in_file = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const HuggingFaceTensor& first = tensors[i].front();
    const std::int64_t bytes = first.file_count() * element_bytes(detail::precision_in_file(first, precision));
    if (in_file > 0 && in_file + bytes > largest.count) {
      starts.push_back(i);
      in_file = 0;
    }
    in_file += bytes;
    total += bytes;
  }
  std::vector<std::string> written{"config.json"};
  if (auto done = write_file_atomically(folder / written.front(), config.dump(2) + "\n"); !done)
    return tl::unexpected<Error>(std::move(done.error()));
  nlohmann::ordered_json index{{"metadata", {{"total_size", total}}}, {"weight_map", nlohmann::ordered_json::object()}};
  for (std::size_t k = 0; k < starts.size(); ++k) {
    const std::size_t end = k + 1 < starts.size() ? starts[k + 1] : tensors.size();
    char name[64] = "model.safetensors";
    if (starts.size() > 1) std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", k + 1, starts.size());
    written.emplace_back(name);
    const std::span part = std::span(tensors).subspan(starts[k], end - starts[k]);
    for (const detail::TensorParts& tensor : part) index["weight_map"][tensor.front().name] = name;
    if (auto done = detail::write_huggingface_file(folder / name, weights, part, precision); !done)
      return tl::unexpected<Error>(std::move(done.error()));
  }
  if (starts.size() == 1) return written;
  written.emplace_back("model.safetensors.index.json");
  if (auto done = write_file_atomically(folder / written.back(), index.dump(2) + "\n"); !done)
    return tl::unexpected<Error>(std::move(done.error()));
  return written;
}

namespace detail {

/// True for a T5 whose blocks of a side have equal tables of positions.
inline bool has_one_table_a_side(const runtime::ParameterSource& weights, const ModelSpec& model) {
  std::array<std::vector<float>, 2> first;
  for (int i = 1; i + 1 < model.layers(); ++i) {
    const LayerSpec& block = model.layer(i);
    const std::vector<float> table =
        values_of(weights, i, ParameterName::relative_positions, 0, {block.bias_rows, block.heads});
    std::vector<float>& other = first[block.memory.any() ? 1 : 0];
    if (other.empty()) other = table;
    if (table != other) return false;
  }
  return true;
}

}  // namespace detail

/// The same of all weights of `model`. A T5 whose tables of positions have come to differ from block to
/// block is written as a umT5. Each expert has tensors of its own unless told otherwise, which
/// all versions of transformers read. Errors (usage): a model of another family; what the system says.
inline Result<std::vector<std::string>> write_huggingface(const std::filesystem::path& folder,
                                                          const runtime::ParameterSource& weights,
                                                          const ModelSpec& model, Precision precision,
                                                          Bytes largest = largest_huggingface_file,
                                                          ExpertTensors experts = ExpertTensors::each) {
  auto family = huggingface_family(model);
  if (!family) return tl::unexpected<Error>(family.error());
  if (*family == HuggingFaceFamily::umt5 && detail::has_one_table_a_side(weights, model))
    family = HuggingFaceFamily::t5;
  return write_huggingface(folder, weights, huggingface_config(model, *family, precision),
                           huggingface_tensors(model, *family, experts), precision, largest);
}

}  // namespace galvatron::train
