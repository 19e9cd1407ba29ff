// Reads what Hetu-Galvatron's model profiler wrote: a file of computation times,
//
//   { "layertype_0_bsz8_seq2048": 3.94, "layertype_other_bsz8_seq2048": 2.96, ... }      forward ms of a sample
//
// and a file of memory, in MB, by sequence length ("_sp" with Megatron's sequence parallelism):
//
//   { "layertype_0_sp":            { "2048": { "parameter_size": 778.2, "tp_activation_per_bsz_dict":
//                                              { "1": 514.6, "2": 273.3, ..., "checkpoint": 32 } } },
//     "other_memory_pp_off_sp":      { "2048": { "model_states": { "1": 4130, ... }, "activation": { "1": 842, ... } }
//     }, "other_memory_pp_on_first_sp": { ... }, "other_memory_pp_on_last_sp": { ... } }
//
// Keys of other forms, such as the raw measurements, are ignored.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/compat/hetu/cost/profile.hpp>
#include <galvatron/compat/hetu/files/text.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/json.hpp>

namespace galvatron {

/// Which rows of the profiles hold for a job.
struct HetuProfileOptions {
  std::int64_t sequence = 1;
  cost::hetu::TimeMode time = cost::hetu::TimeMode::batch;
  /// Memory at the wanted sequence is scaled from the largest profiled one; otherwise it is the profile's own row.
  bool memory_over_sequence = false;
  bool sequence_parallel = true;
};

namespace detail {

inline Result<void> hetu_times_from_json(const nlohmann::json& value, const std::string& where,
                                         std::vector<cost::hetu::TimePoint>& layer,
                                         std::vector<cost::hetu::TimePoint>& ends) {
  if (!value.is_object()) return usage_error(where + ": expected a JSON object, found " + JsonObject::describe(value));
  for (const auto& [key, field] : value.items()) {
    const auto of_layer = numbers_in(key, "layertype_#_bsz#_seq#");
    const auto of_ends = numbers_in(key, "layertype_other_bsz#_seq#");
    if (!of_layer && !of_ends) continue;
    const std::string name = where + ": \"" + one_line(key, 60) + "\"";
    if (of_layer && (*of_layer)[0] != 0)
      return usage_error(name + ": a model with several kinds of layers; profiles of one kind, layertype_0, are read");
    const auto ms = measured_number(field, name, of_layer ? above_zero : 0);
    if (!ms) return tl::unexpected<Error>(ms.error());
    const std::int64_t batch = of_layer ? (*of_layer)[1] : (*of_ends)[0];
    const std::int64_t sequence = of_layer ? (*of_layer)[2] : (*of_ends)[1];
    constexpr std::int64_t most = std::int64_t{1} << 40;
    if (batch < 1 || batch > most || sequence < 1 || sequence > most)
      return usage_error(name + ": not a batch size and a sequence length");
    (of_layer ? layer : ends).push_back({batch, sequence, *ms});
  }
  return {};
}

/// The entry of a table by sequence length: `row` is that of the memory mode, `least` of the shortest sequence, and
/// activations of `row` are to be multiplied by `scale`.
struct HetuRow {
  const nlohmann::json* row = nullptr;
  const nlohmann::json* least = nullptr;
  double scale = 1;
  std::string name;  // of row, for messages
};

inline Result<HetuRow> hetu_row(const nlohmann::json& value, const std::string& where, const std::string& key,
                                const HetuProfileOptions& options) {
  const std::string full = key + (options.sequence_parallel ? "_sp" : "");
  const std::string other = key + (options.sequence_parallel ? "" : "_sp");
  if (!value.is_object()) return usage_error(where + ": expected a JSON object, found " + JsonObject::describe(value));
  const auto table = value.find(full);
  if (table == value.end())
    return usage_error(where + ": the key \"" + full + "\" is missing" +
                       (!value.contains(other)      ? "; profile the memory of the model"
                        : options.sequence_parallel ? ", but \"" + other + "\" is there; add --no-sequence-parallel"
                                                    : ", but \"" + other + "\" is there; drop --no-sequence-parallel"));
  const std::string name = where + ": \"" + full + "\"";
  if (!table->is_object()) return usage_error(name + ": expected a JSON object, found " + JsonObject::describe(*table));
  std::map<std::int64_t, const nlohmann::json*> rows;
  std::string known;
  for (const auto& [length, row] : table->items()) {
    const auto number = numbers_in(length, "#");
    if (!number || (*number)[0] < 1) continue;
    rows[(*number)[0]] = &row;
    if (known.size() < 80) known += (known.empty() ? "" : ", ") + length;
  }
  if (rows.empty()) return usage_error(name + ": no sequence length in it; profile the memory of the model");
  HetuRow out;
  out.least = rows.begin()->second;
  auto wanted = std::prev(rows.end());
  if (options.memory_over_sequence) {
    out.scale = static_cast<double>(options.sequence) / static_cast<double>(wanted->first);
  } else {
    wanted = rows.find(options.sequence);
    if (wanted == rows.end())
      return usage_error(name + ": no sequence length " + std::to_string(options.sequence) + " but " + known +
                         "; profile it, or choose --memory-mode sequence");
  }
  out.row = wanted->second;
  out.name = name + ": \"" + std::to_string(wanted->first) + "\"";
  return out;
}

/// A table of MB by degree, times `scale`; other keys are ignored.
inline Result<std::map<int, double>> hetu_degrees(const nlohmann::json& row, const std::string& where, const char* key,
                                                  double scale) {
  std::map<int, double> out;
  JsonObject fields(row, where);
  const nlohmann::json* table = fields.any(key);
  if (!fields.failed() && (table == nullptr || !table->is_object()))
    fields.fail(fields.name(key) + ": expected a JSON object with a figure for each tensor-parallel degree");
  if (auto done = fields.finish_allowing_unknown_keys(); !done) return tl::unexpected<Error>(std::move(done.error()));
  for (const auto& [degree, figure] : table->items()) {
    const auto number = numbers_in(degree, "#");
    if (!number || (*number)[0] < 1 || (*number)[0] > std::numeric_limits<int>::max()) continue;
    const auto megabytes = measured_number(figure, fields.name(key) + ": \"" + one_line(degree, 40) + "\"", 0);
    if (!megabytes) return tl::unexpected<Error>(megabytes.error());
    out[static_cast<int>((*number)[0])] = *megabytes * scale;
  }
  return out;
}

inline Result<cost::hetu::EndProfile> hetu_end(const nlohmann::json& value, const std::string& where,
                                               const std::string& key, const HetuProfileOptions& options) {
  const auto row = hetu_row(value, where, key, options);
  if (!row) return tl::unexpected<Error>(row.error());
  auto states = hetu_degrees(*row->row, row->name, "model_states", 1);
  if (!states) return tl::unexpected<Error>(std::move(states.error()));
  auto activation = hetu_degrees(*row->row, row->name, "activation", row->scale);
  if (!activation) return tl::unexpected<Error>(std::move(activation.error()));
  return cost::hetu::EndProfile{std::move(*states), std::move(*activation)};
}

}  // namespace detail

/// The model of a computation and a memory profile; the names open the messages. Errors (usage): what is missing or no
/// positive number, and several kinds of layers.
inline Result<cost::hetu::ModelProfile> hetu_model_from_json(const nlohmann::json& computation,
                                                             const std::string& computation_name,
                                                             const nlohmann::json& memory,
                                                             const std::string& memory_name,
                                                             const HetuProfileOptions& options) {
  std::vector<cost::hetu::TimePoint> layer;
  std::vector<cost::hetu::TimePoint> ends;
  if (auto read = detail::hetu_times_from_json(computation, computation_name, layer, ends); !read)
    return tl::unexpected<Error>(std::move(read.error()));
  cost::hetu::ModelProfile out;
  const auto layer_line = cost::hetu::time_line(layer, options.time, options.sequence, true, computation_name);
  if (!layer_line) return tl::unexpected<Error>(layer_line.error());
  const auto ends_line = cost::hetu::time_line(ends, options.time, options.sequence, false, computation_name);
  if (!ends_line) return tl::unexpected<Error>(ends_line.error());
  out.layer = *layer_line;
  out.ends = *ends_line;

  const auto row = detail::hetu_row(memory, memory_name, "layertype_0", options);
  if (!row) return tl::unexpected<Error>(row.error());
  auto activation = detail::hetu_degrees(*row->row, row->name, "tp_activation_per_bsz_dict", row->scale);
  if (!activation) return tl::unexpected<Error>(std::move(activation.error()));
  out.activation = std::move(*activation);
  JsonObject parameters(options.memory_over_sequence ? *row->least : *row->row, row->name);
  out.parameters = parameters.required<double>("parameter_size", detail::above_zero, 1e12);
  if (auto done = parameters.finish_allowing_unknown_keys(); !done)
    return tl::unexpected<Error>(std::move(done.error()));
  JsonObject checkpoint((*row->row)["tp_activation_per_bsz_dict"], row->name + ": \"tp_activation_per_bsz_dict\"");
  out.checkpoint = checkpoint.required<double>("checkpoint", 0.0, 1e12) * row->scale;
  if (auto done = checkpoint.finish_allowing_unknown_keys(); !done)
    return tl::unexpected<Error>(std::move(done.error()));

  for (const auto& [key, end] : {std::pair{"other_memory_pp_off", &out.whole},
                                 {"other_memory_pp_on_first", &out.first},
                                 {"other_memory_pp_on_last", &out.last}}) {
    auto read = detail::hetu_end(memory, memory_name, key, options);
    if (!read) return tl::unexpected<Error>(std::move(read.error()));
    *end = std::move(*read);
  }
  return out;
}

/// The same from two files. Errors (usage): unreadable files, bad JSON, and those of hetu_model_from_json.
inline Result<cost::hetu::ModelProfile> load_hetu_model(const std::filesystem::path& computation,
                                                        const std::filesystem::path& memory,
                                                        const HetuProfileOptions& options) {
  const auto times = read_json_file(computation);
  if (!times) return tl::unexpected<Error>(times.error());
  const auto megabytes = read_json_file(memory);
  if (!megabytes) return tl::unexpected<Error>(megabytes.error());
  return hetu_model_from_json(*times, computation.string(), *megabytes, memory.string(), options);
}

}  // namespace galvatron
