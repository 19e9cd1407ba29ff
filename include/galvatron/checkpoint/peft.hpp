// Adapters as Hugging Face's peft keeps them: adapter_config.json and adapter_model.safetensors.
//
//   base_model.model.<module>.lora_A.weight  (rank, inputs)     and lora_B.weight (outputs, rank), of every adapted
//                                                                module of transformers; y = W x + lora_alpha / r B A x
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/checkpoint/huggingface_tensors.hpp>
#include <galvatron/checkpoint/merged.hpp>
#include <galvatron/checkpoint/reader.hpp>
#include <galvatron/checkpoint/safetensors.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/model/adapters.hpp>

namespace galvatron::train {

/// The adapter of a module of transformers, and where its factors are in ours.
struct PeftModule {
  std::string name;  ///< "model.layers.0.self_attn.q_proj"
  int layer = 0;
  AdaptedLinear linear;
  std::int64_t first_rank = 0;  ///< the first row of A
  std::int64_t outputs = 0;     ///< rows of the file's B
  struct Piece {
    std::int64_t first_row = 0;  ///< of our B
    std::int64_t count = 0;
    FileRows rows{};  ///< their places in the file
  };
  std::vector<Piece> pieces{};

  [[nodiscard]] std::string tensor(const char* factor) const {
    return "base_model.model." + name + "." + factor + ".weight";
  }
};

/// The modules of a model with adapters, in the order of its layers. Errors (usage): a model that transformers has not;
/// adapters of parts of a module, which peft has as a whole.
inline Result<std::vector<PeftModule>> peft_modules(const ModelSpec& model) {
  const ModelSpec base = without_adapters(model);
  const auto family = huggingface_family(base);
  if (!family) return tl::unexpected<Error>(family.error());
  const std::vector<HuggingFaceTensor> tensors = huggingface_tensors(base, *family);
  const auto in_parts = [](const std::string& name) {
    return usage_error("peft has one adapter for all of " + name +
                       ", and these are of parts of it; export them with --to huggingface");
  };
  std::vector<PeftModule> out;
  for (const HuggingFaceTensor& tensor : tensors) {
    if (tensor.vector) continue;
    const auto linears = adapted_linears(model.layer(tensor.layer));
    const auto linear = std::ranges::find(linears, tensor.parameter, &AdaptedLinear::weight);
    if (linear == linears.end()) continue;
    for (const AdaptedLinear::Part& part : linear->parts) {
      const std::int64_t end = tensor.row + tensor.shape.rows;
      if (end <= part.row || part.row + part.rows <= tensor.row) continue;
      if (tensor.row < part.row || part.row + part.rows < end) return in_parts(tensor.name);
      const std::string name = tensor.name.substr(0, tensor.name.rfind('.'));
      if (out.empty() || out.back().name != name)
        out.push_back({.name = name,
                       .layer = tensor.layer,
                       .linear = *linear,
                       .first_rank = part.first_rank,
                       .outputs = tensor.rows.all == 0 ? tensor.shape.rows : tensor.rows.all});
      if (out.back().first_rank != part.first_rank) return in_parts(tensor.name);
      out.back().pieces.push_back({part.first_row + tensor.row - part.row, tensor.shape.rows, tensor.rows});
    }
  }
  for (const PeftModule& module : out) {
    std::int64_t rows = 0;
    for (const PeftModule::Piece& piece : module.pieces) rows += piece.count;
    if (rows != module.outputs) return in_parts(module.name);
  }
  return out;
}

namespace detail {

/// The names by which peft finds the modules: their last word, and the one before it where others end alike.
inline std::set<std::string> peft_targets(const std::vector<PeftModule>& modules, const ModelSpec& base,
                                          HuggingFaceFamily family) {
  std::set<std::string> all, adapted;
  for (const HuggingFaceTensor& tensor : huggingface_tensors(base, family))
    all.insert(tensor.name.substr(0, tensor.name.rfind('.')));
  for (const PeftModule& module : modules) adapted.insert(module.name);
  std::set<std::string> out;
  for (const PeftModule& module : modules) {
    const std::size_t dot = module.name.rfind('.');
    const std::string last = module.name.substr(dot);
    const bool alone = std::ranges::all_of(
        all, [&](const std::string& name) { return !name.ends_with(last) || adapted.contains(name); });
    out.insert(module.name.substr(alone ? dot + 1 : module.name.rfind('.', dot - 1) + 1));
  }
  return out;
}

}  // namespace detail

/// Writes the adapters of a checkpoint of `model` to a folder, in fp32. The names of the files that were written.
/// Errors (usage): those of peft_modules(), and what the system says.
/// @param base  the name or folder of the base in adapter_config.json
inline Result<std::vector<std::string>> write_peft(const std::filesystem::path& folder, const Checkpoint& checkpoint,
                                                   const ModelSpec& model, const std::string& base) {
  const auto modules = peft_modules(model);
  if (!modules) return tl::unexpected<Error>(modules.error());
  const ModelSpec plain = without_adapters(model);
  const HuggingFaceFamily family = *huggingface_family(plain);
  const AdapterSpec adapters = adapters_of(model);
  const nlohmann::ordered_json config{{"peft_type", "LORA"},
                                      {"task_type", "CAUSAL_LM"},
                                      {"base_model_name_or_path", base},
                                      {"r", adapters.rank},
                                      {"lora_alpha", adapters.alpha},
                                      {"lora_dropout", 0.0},
                                      {"target_modules", detail::peft_targets(*modules, plain, family)},
                                      {"bias", "none"},
                                      {"fan_in_fan_out", family == HuggingFaceFamily::gpt2},
                                      {"init_lora_weights", true},
                                      {"inference_mode", true},
                                      {"modules_to_save", nullptr}};
  std::vector<SafetensorsEntry> entries;
  std::int64_t end = 0;
  const auto add = [&](const std::string& name, std::int64_t rows, std::int64_t columns) {
    entries.push_back({name, "F32", {rows, columns}, end, end + rows * columns * 4});
    end = entries.back().end;
  };
  for (const PeftModule& module : *modules) {
    add(module.tensor("lora_A"), module.linear.rank, module.linear.inputs);
    add(module.tensor("lora_B"), module.outputs, module.linear.rank);
  }
  if (auto made = galvatron::detail::make_folder(folder); !made) return tl::unexpected<Error>(std::move(made.error()));
  std::vector<std::string> written{"adapter_config.json", "adapter_model.safetensors"};
  if (auto done = write_file_atomically(folder / written[0], config.dump(2) + "\n"); !done)
    return tl::unexpected<Error>(std::move(done.error()));
  auto file = AtomicFile::create(folder / written[1]);
  if (!file) return tl::unexpected<Error>(std::move(file.error()));
  if (auto done = file->write(safetensors_header(entries, {{"format", "pt"}})); !done)
    return tl::unexpected<Error>(std::move(done.error()));
  const auto write = [&](const std::vector<float>& values) { return file->write(std::as_bytes(std::span(values))); };
  for (const PeftModule& module : *modules) {
    const std::int64_t rank = module.linear.rank;
    std::vector<float> a(static_cast<std::size_t>(rank * module.linear.inputs));
    checkpoint.read(module.layer, module.linear.a, StateKind::master,
                    {module.first_rank, rank, 0, module.linear.inputs}, a.data());
    std::vector<float> b(static_cast<std::size_t>(module.outputs * rank));
    for (const PeftModule::Piece& piece : module.pieces) {
      std::vector<float> rows(static_cast<std::size_t>(piece.count * rank));
      checkpoint.read(module.layer, module.linear.b, StateKind::master, {piece.first_row, piece.count, 0, rank},
                      rows.data());
      for (std::int64_t i = 0; i < piece.count; ++i)
        std::copy_n(rows.begin() + i * rank, rank, b.begin() + piece.rows(i) * rank);
    }
    for (const std::vector<float>* values : {&a, &b})
      if (auto done = write(*values); !done) return tl::unexpected<Error>(std::move(done.error()));
  }
  if (auto done = file->commit(); !done) return tl::unexpected<Error>(std::move(done.error()));
  return written;
}

}  // namespace galvatron::train
