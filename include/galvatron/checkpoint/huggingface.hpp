// The weights of a published checkpoint (Hugging Face transformers) as a source of parameters. Where they stand in it:
// huggingface_tensors.hpp. huggingface_writer.hpp writes a checkpoint as one.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/checkpoint/huggingface_clip.hpp>
#include <galvatron/checkpoint/huggingface_tensors.hpp>
#include <galvatron/checkpoint/safetensors.hpp>
#include <galvatron/checkpoint/slice.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/model/difference.hpp>
#include <galvatron/model/huggingface.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/runtime/layer.hpp>
#include <galvatron/strategy/parameters.hpp>

namespace galvatron::train {

/// Immutable after open(): ranks may share one.
class HuggingFaceWeights {
 public:
  HuggingFaceWeights() = default;
  /// Opens model.safetensors, or the files that model.safetensors.index.json lists, of a folder; or one such file. The
  /// config.json beside it, if any, has to describe `model`: shapes alone do not tell heads, rotary positions, epsilon
  /// or activation. Errors (usage): a missing or damaged file; a config.json of another model, or one that load_model()
  /// refuses; a tensor that is missing, that does not fit, or that has no place in the model. Gains of the experts'
  /// residuals, which no file has, begin with 0.
  static Result<HuggingFaceWeights> open(const std::filesystem::path& path, const ModelSpec& with_gains) {
    const ModelSpec model = with_dispatch(with_gains, {});
    const auto family = huggingface_family(model);
    if (!family) return tl::unexpected<Error>(family.error());
    if (auto same = check_config(path, model); !same) return tl::unexpected<Error>(std::move(same.error()));
    HuggingFaceWeights out;
    if (auto added = out.add_all(path); !added) return tl::unexpected<Error>(std::move(added.error()));
    const auto has = [&out](std::string_view ending) {
      return std::ranges::any_of(out.sources_, [&](const auto& source) { return source.first.ends_with(ending); });
    };
    const auto experts = has(".mlp.experts.gate_up_proj") ? ExpertTensors::together : ExpertTensors::each;
    const auto projections = has(".qkv_proj.weight") ? ProjectionTensors::together : ProjectionTensors::each;
    const bool one_table = *family == HuggingFaceFamily::umt5 && !has_table_in_each_block(out);
    auto tensors = huggingface_tensors(model, one_table ? HuggingFaceFamily::t5 : *family, experts, projections);
    if (one_table) repeat_position_tables(model, tensors);
    auto done = out.match(path, model.name, std::move(tensors), [&](std::string_view name) {
      return is_huggingface_buffer(name, model, *family) || (model.head.tied && name == "lm_head.weight");
    });
    if (!done) return tl::unexpected<Error>(std::move(done.error()));
    return out;
  }
  /// The tensors of one file, which has no others. @param model  what has them, for messages
  static Result<HuggingFaceWeights> open(const std::filesystem::path& file, const std::string& model,
                                         std::vector<HuggingFaceTensor> tensors) {
    HuggingFaceWeights out;
    if (auto added = out.add(file); !added) return tl::unexpected<Error>(std::move(added.error()));
    if (auto done = out.match(file, model, std::move(tensors), [](std::string_view) { return false; }); !done)
      return tl::unexpected<Error>(std::move(done.error()));
    return out;
  }
  /// The same of a CLIP that the config.json describes; layers are those of clip_model().
  static Result<HuggingFaceWeights> open(const std::filesystem::path& path, const ClipShape& clip) {
    HuggingFaceWeights out;
    if (auto added = out.add_all(path); !added) return tl::unexpected<Error>(std::move(added.error()));
    if (auto done = out.match(path, "of its config.json", clip_tensors(clip), is_clip_buffer); !done)
      return tl::unexpected<Error>(std::move(done.error()));
    return out;
  }

  /// The weights as a source of parameters. This must outlive it. It throws Failure (usage), with file and tensor, when
  /// it comes upon a weight that is infinite or not a number.
  [[nodiscard]] runtime::ParameterSource weights() const {
    return [this](int layer, const ParameterTensor& tensor, std::int64_t index, View<float> values) {
      if (tensor.name == ParameterName::residual_gain) {
        std::ranges::fill(values, 0.0F);
        return;
      }
      const std::vector<Part>& parts = parts_.at({layer, tensor.name});
      const std::int64_t columns = parts.front().tensor.shape.columns;
      for (std::int64_t done = 0, width = 0; done < values.count; done += width) {
        const std::int64_t row = (index + done) / columns;
        const std::int64_t column = (index + done) % columns;
        width = std::min(columns - column, values.count - done);
        const View<float> to = values.slice(done, width);
        const auto behind = std::ranges::upper_bound(parts, row, {}, [](const Part& p) { return p.tensor.row; });
        if (behind != parts.begin() && (behind - 1)->has(row))
          (behind - 1)->copy(row, column, to);
        else
          std::fill(to.begin(), to.end(), 0.0F);  // padding of the vocabulary
      }
    };
  }

 private:
  struct Source {
    const std::byte* data = nullptr;
    SafetensorsEntry entry;
    std::string file;
  };
  struct Part {
    HuggingFaceTensor tensor;
    const Source* source = nullptr;
    char type = 'f';  ///< f: F32, b: BF16, h: F16, which is IEEE binary16

    [[nodiscard]] bool has(std::int64_t row) const { return row >= tensor.row && row < tensor.row + tensor.shape.rows; }
    /// A run within a row of the parameter, from a column on.
    void copy(std::int64_t row, std::int64_t column, View<float> to) const {
      const auto [rows, columns] = tensor.shape;
      const std::int64_t local = tensor.rows(row - tensor.row);
      const std::int64_t first = tensor.transposed ? column * rows + local : local * columns + column;
      const std::int64_t stride = tensor.transposed ? rows : 1;
      read(first, stride, to);
      const auto* const bad = std::find_if(to.begin(), to.end(), [](float x) { return !std::isfinite(x); });
      if (bad == to.end()) return;
      throw Failure(ErrorKind::usage, source->file + ": element " +
                                          std::to_string(first + (bad - to.begin()) * stride) + " of the tensor \"" +
                                          source->entry.name + "\" is " +
                                          (std::isnan(*bad) ? "not a number" : "infinite") +
                                          "; the weights are damaged, or of a run that diverged: give others");
    }

   private:
    /// Elements first, first + stride, ... of the file's tensor.
    void read(std::int64_t first, std::int64_t stride, View<float> to) const {
      const std::byte* const data = source->data;
      if (type == 'f' && stride == 1) {
        std::memcpy(to.data, data + first * 4, static_cast<std::size_t>(to.count) * 4);
        return;
      }
      for (std::int64_t i = 0; i < to.count; ++i) {
        const std::int64_t place = first + i * stride;
        to[i] = type == 'f'   ? load_unaligned<float>(data + place * 4)
                : type == 'b' ? static_cast<float>(load_unaligned<bfloat16>(data + place * 2))
                              : static_cast<float>(load_unaligned<_Float16>(data + place * 2));
      }
    }
  };

  /// Of a T5: blocks behind the first of their side have tables of positions.
  static bool has_table_in_each_block(const HuggingFaceWeights& weights) {
    return std::ranges::any_of(weights.sources_, [](const auto& source) {
      return source.first.ends_with(".SelfAttention.relative_attention_bias.weight") &&
             source.first.find(".block.0.") == std::string::npos;
    });
  }

  static Result<void> check_config(const std::filesystem::path& path, const ModelSpec& model) {
    std::error_code ignored;
    const auto config = (std::filesystem::is_directory(path, ignored) ? path : path.parent_path()) / "config.json";
    if (!std::filesystem::exists(config, ignored)) return {};
    const auto theirs = load_model(config.string());
    if (!theirs) return tl::unexpected<Error>(theirs.error());
    if (const auto difference = first_difference(without_training_settings(*theirs), without_training_settings(model)))
      return usage_error("the weights in " + path.string() + " are of another model: " + difference->field + " " +
                         difference->first + " in " + config.string() + ", " + difference->second + " in the model " +
                         model.name + "; train the model of that config.json, or give weights of this one");
    return {};
  }

  static Result<std::vector<std::filesystem::path>> files_of(std::filesystem::path path) {
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored)) {
      const std::filesystem::path index = path / "model.safetensors.index.json";
      const std::filesystem::path single = path / "model.safetensors";
      if (!std::filesystem::exists(index, ignored) && !std::filesystem::exists(single, ignored))
        return usage_error("there is neither model.safetensors nor model.safetensors.index.json in " + path.string());
      path = std::filesystem::exists(index, ignored) ? index : single;
    }
    if (path.extension() != ".json") return std::vector{path};
    const auto value = read_json_file(path);
    if (!value) return tl::unexpected<Error>(value.error());
    JsonObject fields(*value, path.string());
    const nlohmann::json* map = fields.any("weight_map");
    if (map == nullptr || !map->is_object())
      fields.fail(path.string() + ": the key \"weight_map\" with the files of the tensors is missing");
    if (auto done = fields.finish_allowing_unknown_keys(); !done) return tl::unexpected<Error>(std::move(done.error()));
    std::set<std::filesystem::path> files;
    for (const auto& [tensor, file] : map->items()) {
      const std::string name = file.is_string() ? file.get<std::string>() : "";
      if (name.empty() || name.find('/') != std::string::npos)
        return usage_error(path.string() + ": the tensor \"" + galvatron::detail::one_line(tensor, 80) +
                           "\" is in no file beside it");
      files.insert(path.parent_path() / name);
    }
    return std::vector(files.begin(), files.end());
  }

  Result<void> add_all(const std::filesystem::path& path) {
    const auto files = files_of(path);
    if (!files) return tl::unexpected<Error>(files.error());
    for (const std::filesystem::path& file : *files)
      if (auto added = add(file); !added) return added;
    return {};
  }
  Result<void> add(const std::filesystem::path& path) {
    auto mapped = MappedFile::open(path);
    if (!mapped) return tl::unexpected<Error>(std::move(mapped.error()));
    const auto parsed = parse_safetensors(mapped->bytes(), path.string());
    if (!parsed) return tl::unexpected<Error>(parsed.error());
    for (const SafetensorsEntry& entry : parsed->entries) {
      const Source source{mapped->bytes().data() + parsed->data_begin + entry.begin, entry, path.string()};
      if (!sources_.emplace(entry.name, source).second)
        return usage_error(path.string() + ": the tensor \"" + galvatron::detail::one_line(entry.name, 80) +
                           "\" is in another file too");
    }
    files_.push_back(std::move(*mapped));
    return {};
  }

  /// Finds the tensors in the files, which have no others but those that `is_beside` names.
  template <class F>
  Result<void> match(const std::filesystem::path& path, const std::string& model,
                     std::vector<HuggingFaceTensor> tensors, const F& is_beside) {
    constexpr std::string_view optional = "transformer.";
    const auto shape_text = [](const std::vector<std::int64_t>& shape) {
      std::string text;
      for (const std::int64_t extent : shape) text += (text.empty() ? "" : ", ") + std::to_string(extent);
      return "(" + text + ")";
    };
    std::set<std::string> used;
    for (HuggingFaceTensor& tensor : tensors) {
      auto found = sources_.find(tensor.name);
      if (found == sources_.end() && tensor.name.starts_with(optional))
        found = sources_.find(tensor.name.substr(optional.size()));
      if (found == sources_.end())
        return usage_error(path.string() + " has no tensor \"" + tensor.name + "\", which the model " + model +
                           " needs; give the weights of this model");
      const Source& source = found->second;
      if (source.entry.shape != tensor.file_shape())
        return usage_error(source.file + ": the tensor \"" + source.entry.name + "\" is " +
                           shape_text(source.entry.shape) + ", and the model " + model + " needs " +
                           shape_text(tensor.file_shape()) + "; give the weights of this model");
      const std::string& type = source.entry.type;
      if (type != "F32" && type != "BF16" && type != "F16")
        return usage_error(source.file + ": the tensor \"" + source.entry.name + "\" is in " + type +
                           "; only F32, BF16 and F16 are read");
      used.insert(source.entry.name);
      const std::pair key{tensor.layer, tensor.parameter};
      parts_[key].push_back({std::move(tensor), &source, type == "F32" ? 'f' : type == "BF16" ? 'b' : 'h'});
    }
    for (auto& [parameter, parts] : parts_) std::ranges::sort(parts, {}, [](const Part& p) { return p.tensor.row; });
    for (const auto& [name, source] : sources_) {
      if (!used.contains(name) && !is_beside(name))
        return usage_error(source.file + " has a tensor \"" + galvatron::detail::one_line(name, 80) +
                           "\", for which the model " + model + " has no place; give the weights of this model");
    }
    return {};
  }

  std::vector<MappedFile> files_;
  std::map<std::string, Source, std::less<>> sources_;
  std::map<std::pair<int, ParameterName>, std::vector<Part>> parts_;
};

}  // namespace galvatron::train
