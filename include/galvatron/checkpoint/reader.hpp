// Checkpoint: reading one, whatever plan wrote it and whatever plan reads it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <galvatron/checkpoint/folder.hpp>
#include <galvatron/checkpoint/manifest.hpp>
#include <galvatron/checkpoint/multi_task_manifest.hpp>
#include <galvatron/checkpoint/safetensors.hpp>
#include <galvatron/checkpoint/shard_file.hpp>
#include <galvatron/checkpoint/slice.hpp>
#include <galvatron/checkpoint/state_reader.hpp>
#include <galvatron/cluster/host.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron::train {

/// Calls f(layer number, tensor) for every parameter of a model, whole; a tied head's table is the embedding's.
template <class F>
void for_each_parameter(const ModelSpec& model, F&& f) {
  int number = 0;
  const auto add = [&](const LayerSpec& layer) {
    for_each_part(layer, [&](ParameterPart part) {
      for (const ParameterTensor& tensor : parameter_layout(layer, part, 1, 1)) f(number, tensor);
    });
    ++number;
  };
  add(model.embedding);
  for (const LayerSpec& block : model.blocks) add(block);
  add(model.head);
}

/// The same of a multi-task model, layer by layer in the order of its components.
template <class F>
void for_each_parameter(const MultiTaskModel& model, F&& f) {
  int number = 0;
  for (const Component& component : model.components)
    for (const LayerSpec& layer : component.layers) {
      for_each_part(layer, [&](ParameterPart part) {
        for (const ParameterTensor& tensor : parameter_layout(layer, part, 1, 1)) f(number, tensor);
      });
      ++number;
    }
}

/// Whether the checksums of a checkpoint's files have to be compared with the manifest, which reads all of them.
enum class Checksums : std::uint8_t { compared, known };

/// A complete checkpoint, its files open. Immutable after open(): ranks may share one.
class Checkpoint : public StateReader<Checkpoint> {
 public:
  /// Opens a checkpoint of `model`, a ModelSpec or a MultiTaskModel, or the newest one in a folder of them, and checks
  /// all of it: the manifest, the sizes and checksums of the files, and that every parameter is there once. Errors
  /// (usage): the folder has no checkpoint; it is of another model; a file is missing or damaged, and then which other
  /// checkpoint there is.
  /// @param checksums  known: find_usable() has compared them
  template <class Model>
  static Result<Checkpoint> open(const std::filesystem::path& path, const Model& model,
                                 Checksums checksums = Checksums::compared) {
    return find_checkpoint(path).and_then([&](const std::filesystem::path& found) {
      return open_one(found, &model, checksums).map_error([&](Error e) { return with_another(std::move(e), found); });
    });
  }

  /// The manifest of a checkpoint alone, or of the newest one in a folder, which says what model it is of.
  static Result<CheckpointManifest> read_manifest(const std::filesystem::path& path) {
    return find_checkpoint(path).and_then([&](const std::filesystem::path& found) {
      return manifest_of(found).map_error([&](Error e) { return with_another(std::move(e), found); });
    });
  }

  /// A checkpoint that a run can go on with, as far as that can be said without its model.
  struct Usable {
    std::filesystem::path path;
    CheckpointManifest manifest;
    std::vector<std::string> passed_over;  ///< why newer ones of the folder are not, the newest first
  };
  /// The checkpoint that `path` names, or the newest one of a folder whose files are as its manifest says. Errors
  /// (usage): the folder has no checkpoint.
  static Result<Usable> find_usable(const std::filesystem::path& path, Checksums checksums = Checksums::compared) {
    const auto newest = find_checkpoint(path);
    if (!newest) return tl::unexpected<Error>(newest.error());
    const bool named = *newest == path;
    const auto all = named ? std::vector<CheckpointPlace>{{0, path}} : list_checkpoints(path);
    std::vector<std::string> passed_over;
    Error first;
    for (auto place = all.rbegin(); place != all.rend(); ++place) {
      auto one = open_one<ModelSpec>(place->path, nullptr, checksums);
      if (one) return Usable{place->path, std::move(one->manifest_), std::move(passed_over)};
      if (passed_over.empty()) first = one.error();
      passed_over.push_back(one.error().message);
    }
    if (named) first = with_another(std::move(first), path);
    if (passed_over.size() > 1) first.message += "; the other checkpoints in " + path.string() + " are damaged too";
    return tl::unexpected<Error>(std::move(first));
  }

  [[nodiscard]] const CheckpointManifest& manifest() const { return manifest_; }
  [[nodiscard]] const TrainingState& training() const { return manifest_.training; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Whether a layer of the model is here: those of a multi-task model may be of components that it did not have.
  [[nodiscard]] bool has(int layer) const { return number_of(layer) >= 0; }
  /// The shape of a whole parameter. The model has it, and so has the checkpoint its layer.
  [[nodiscard]] TensorShape shape(int layer, ParameterName parameter) const {
    return tensors_.at({number_of(layer), parameter, StateKind::master}).shape;
  }

  /// Writes a slice (rows, columns) of a whole tensor to `out`, row by row. The model has the tensor. Throws Failure
  /// (usage) when the files cannot be read any more.
  void read(int layer, ParameterName parameter, StateKind state, const TensorSlice& slice, float* out) const {
    std::int64_t copied = 0;
    for (const Piece& piece : tensors_.at({number_of(layer), parameter, state}).pieces) {
      const std::int64_t row = std::max(slice.row, piece.slice.row);
      const std::int64_t row_end = std::min(slice.row + slice.rows, piece.slice.row + piece.slice.rows);
      const std::int64_t column = std::max(slice.column, piece.slice.column);
      const std::int64_t column_end = std::min(slice.column + slice.columns, piece.slice.column + piece.slice.columns);
      if (row >= row_end || column >= column_end) continue;
      const ShardFile& file = files_[piece.file];
      const auto copy = [&](std::int64_t r, std::int64_t count) {
        auto* to = reinterpret_cast<std::byte*>(out + (r - slice.row) * slice.columns + column - slice.column);
        const std::int64_t from =
            piece.begin + ((r - piece.slice.row) * piece.slice.columns + column - piece.slice.column) * 4;
        if (count * 4 < read_bytes)
          std::memcpy(to, file.mapped().data() + from, static_cast<std::size_t>(count) * 4);
        else if (auto done = file.read(from, count * 4, to); !done)
          throw_error(done.error());
      };
      const std::int64_t width = column_end - column;
      if (width == slice.columns && width == piece.slice.columns)
        copy(row, (row_end - row) * width);
      else
        for (std::int64_t r = row; r < row_end; ++r) copy(r, width);
      copied += (row_end - row) * width;
    }
    if (copied != slice.count())
      throw Failure(ErrorKind::usage, "the checkpoint " + path_.string() + " has " + std::to_string(copied) + " of " +
                                          std::to_string(slice.count()) + " elements of " +
                                          name_text({layer, parameter, state, slice}) +
                                          ": it is damaged; resume from another one");
  }

 private:
  struct Piece {
    TensorSlice slice;
    std::size_t file = 0;    ///< in files_
    std::int64_t begin = 0;  ///< byte of the file
  };
  struct Tensor {
    TensorShape shape;
    std::vector<Piece> pieces;
  };
  using Key = std::tuple<int, ParameterName, StateKind>;

  /// Bytes in a row from which on they are read with a call of the system instead of from mapped memory.
  static constexpr std::int64_t read_bytes = 64 << 10;

  Checkpoint() = default;
  [[nodiscard]] int number_of(int layer) const {
    return numbers_.empty() ? layer : numbers_[static_cast<std::size_t>(layer)];
  }

  // The newest other checkpoint beside one that cannot be used is the way out.
  static Error with_another(Error error, const std::filesystem::path& checkpoint) {
    const std::filesystem::path folder = checkpoint.parent_path();
    std::string another;
    for (const CheckpointPlace& place : list_checkpoints(folder.empty() ? "." : folder))
      if (place.path.filename() != checkpoint.filename()) another = place.path.string();
    if (!another.empty()) error.message += "; there is also " + another;
    return error;
  }

  static Result<CheckpointManifest> manifest_of(const std::filesystem::path& checkpoint) {
    const std::filesystem::path file = checkpoint / manifest_name;
    auto manifest =
        read_text_file(file).and_then([&](const auto& text) { return parse_manifest(text, file.string()); });
    if (manifest && !find_model(manifest->training.model))
      manifest->training.model = path_from_file(manifest->training.model, file);
    if (manifest && !manifest->training.base.empty())
      manifest->training.base = path_from_file(manifest->training.base, file);
    return manifest;
  }

  /// @param model  null: not even whether all parameters are there is looked at
  template <class Model>
  static Result<Checkpoint> open_one(const std::filesystem::path& path, const Model* model, Checksums checksums) {
    Checkpoint out;
    out.path_ = path;
    auto manifest = manifest_of(path);
    if (!manifest) return tl::unexpected<Error>(std::move(manifest.error()));
    out.manifest_ = std::move(*manifest);
    if (model != nullptr) {
      if (const std::string why = why_other_model(out.training(), *model); !why.empty())
        return usage_error("the checkpoint " + path.string() + " cannot be used: " + why);
      out.numbers_ = numbers_in(out.training(), *model);
      for_each_parameter(*model, [&](int of_model, const ParameterTensor& tensor) {
        const int layer = out.number_of(of_model);
        if (layer < 0) return;
        for (const StateKind state : {StateKind::master, StateKind::first_moment, StateKind::second_moment})
          out.tensors_[{layer, tensor.name, state}].shape = whole_shape(tensor);
      });
    }
    if (auto opened = out.open_files(checksums); !opened) return tl::unexpected<Error>(std::move(opened.error()));
    if (model == nullptr) return out;
    for (std::size_t i = 0; i < out.files_.size(); ++i)
      if (auto added = out.add_pieces(i); !added) return tl::unexpected<Error>(std::move(added.error()));
    for (const auto& [key, tensor] : out.tensors_) {
      std::int64_t count = 0;
      for (const Piece& piece : tensor.pieces) count += piece.slice.count();
      const auto& [layer, parameter, state] = key;
      if (count != tensor.shape.count())
        return usage_error("the checkpoint " + path.string() + " has " + std::to_string(count) + " of " +
                           std::to_string(tensor.shape.count()) + " elements of " +
                           name_text({layer, parameter, state, {0, tensor.shape.rows, 0, tensor.shape.columns}}) +
                           ": it is damaged");
    }
    return out;
  }

  // All files, with the sizes and, if need be, the checksums of the manifest.
  Result<void> open_files(Checksums checksums) {
    for (const CheckpointFile& file : manifest_.files) {
      const std::filesystem::path path = path_ / file.name;
      auto shard = ShardFile::open(path);
      if (!shard) return tl::unexpected<Error>(std::move(shard.error()));
      if (shard->size() != file.bytes)
        return usage_error(path.string() + " is damaged: it has " + std::to_string(shard->size()) +
                           " bytes, the manifest says " + std::to_string(file.bytes));
      files_.push_back(std::move(*shard));
    }
    return checksums == Checksums::known ? Result<void>{} : check_checksums();
  }

  // What is in a file.
  Result<void> add_pieces(std::size_t number) {
    const std::filesystem::path path = path_ / manifest_.files[number].name;
    const auto parsed = parse_safetensors(files_[number].mapped(), path.string());
    if (!parsed) return tl::unexpected<Error>(parsed.error());
    for (const SafetensorsEntry& entry : parsed->entries) {
      const std::string where = path.string() + ": \"" + galvatron::detail::one_line(entry.name, 80) + "\"";
      const auto name = parse_slice_name(entry.name);
      const auto found = name ? tensors_.find({name->layer, name->parameter, name->state}) : tensors_.end();
      if (found == tensors_.end() && name && !numbers_.empty()) continue;  // of another component
      if (found == tensors_.end()) return usage_error(where + " is not a part of a parameter of this model");
      const TensorSlice& slice = name->slice;
      const TensorShape& whole = found->second.shape;
      // Bounds without sums that could overflow.
      const bool inside = slice.row <= whole.rows && slice.rows <= whole.rows - slice.row &&
                          slice.column <= whole.columns && slice.columns <= whole.columns - slice.column;
      if (!inside || entry.type != "F32" || entry.count() != slice.count())
        return usage_error(where + " does not fit its parameter of " + std::to_string(whole.rows) + " rows and " +
                           std::to_string(whole.columns) + " columns in F32");
      found->second.pieces.push_back({slice, number, parsed->data_begin + entry.begin});
    }
    return {};
  }

  // On all cores: the files are read for the first time here.
  [[nodiscard]] Result<void> check_checksums() const {
    std::vector<Result<std::uint32_t>> found(files_.size());
    std::atomic<std::size_t> next{0};
    const auto work = [&] {
      for (std::size_t i = next++; i < files_.size(); i = next++) found[i] = files_[i].checksum();
    };
    {
      std::vector<std::jthread> others;
      for (std::size_t i = 1; i < std::min<std::size_t>(files_.size(), static_cast<std::size_t>(usable_cores())); ++i)
        try {
          others.emplace_back(work);
        } catch (const std::system_error&) {  // as many as there are do it
          break;
        }
      work();
    }
    for (std::size_t i = 0; i < files_.size(); ++i) {
      if (!found[i]) return tl::unexpected<Error>(std::move(found[i].error()));
      if (*found[i] != manifest_.files[i].crc32c)
        return usage_error((path_ / manifest_.files[i].name).string() + " is damaged: its checksum is " +
                           std::to_string(*found[i]) + ", the manifest says " +
                           std::to_string(manifest_.files[i].crc32c));
    }
    return {};
  }

  std::filesystem::path path_;
  CheckpointManifest manifest_;
  std::vector<ShardFile> files_;
  std::map<Key, Tensor> tensors_;
  std::vector<int> numbers_;  ///< of the model's layers in the files; empty: the same
};

}  // namespace galvatron::train
