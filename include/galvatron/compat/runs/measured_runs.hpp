// Files of measured steps, of any trainer: a table with a line for each run, as CSV or JSON.
//
//     name,      tp, pp, dp, zero, micro_batch, global_batch, seconds, spread
//     "tp 4",     4,  1,  8,    1,           1,          256,   11.31,  0.01
//
//     { "format": "galvatron-runs", "version": 1,
//       "runs": [ { "name": "tp 4", "tp": 4, "dp": 8, "zero": 1, "global_batch": 256, "seconds": 11.31 },
//                 { "plan": "plan.json", "seconds": 9.8, "spread": 0.01 } ] }
//
// A run has the seconds of a step, and either a plan or the strategy of all layers in the words of a user.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/compat/check/job.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/cost/trainer.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/calibrate.hpp>
#include <galvatron/plan/json.hpp>
#include <galvatron/plan/plan.hpp>

namespace galvatron {

/// What runs have that do not say otherwise, and how what they name is found.
struct RunDefaults {
  std::string model;                       ///< empty: every run names one
  std::optional<cost::Trainer> trainer{};  ///< none: that of a plan, or this library's
  Precision precision = Precision::bf16;
  std::int64_t sequence = 0;  ///< 0: the model's positions
  std::function<Result<ModelSpec>(const std::string&)> find_model;
  std::function<Result<Plan>(const std::string&)> read_plan;
};

namespace detail {

/// The cells of the lines of a table of comma-separated values (RFC 4180); lines that are empty or begin with # are
/// left out. Spaces around a cell do not count.
struct TableLine {
  int number = 0;
  std::vector<std::string> cells;
};
inline Result<std::vector<TableLine>> table_lines(std::string_view text, const std::string& source) {
  std::vector<TableLine> out;
  int line = 1;
  std::size_t at = text.starts_with("\xEF\xBB\xBF") ? 3 : 0;
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (at < text.size()) {
    while (at < text.size() && is_space(text[at])) ++at;
    if (at == text.size()) break;
    if (text[at] == '\n' || text[at] == '#') {
      at = std::min(text.find('\n', at), text.size() - 1) + 1;
      ++line;
      continue;
    }
    TableLine& row = out.emplace_back(TableLine{line, {}});
    for (bool more = true; more;) {
      std::string cell;
      while (at < text.size() && is_space(text[at])) ++at;
      if (at < text.size() && text[at] == '"') {
        const int opened = line;
        for (++at;; ++at) {
          if (at >= text.size())
            return usage_error(source + ": line " + std::to_string(opened) + ": a quote is not closed");
          if (text[at] == '"' && !(at + 1 < text.size() && text[at + 1] == '"')) break;
          if (text[at] == '"') ++at;
          if (text[at] == '\n') ++line;
          cell += text[at];
        }
        ++at;
        while (at < text.size() && is_space(text[at])) ++at;
        if (at < text.size() && text[at] != ',' && text[at] != '\n')
          return usage_error(source + ": line " + std::to_string(line) + ": a comma is missing behind a quoted cell");
      } else {
        while (at < text.size() && text[at] != ',' && text[at] != '\n') cell += text[at++];
        while (!cell.empty() && is_space(cell.back())) cell.pop_back();
      }
      row.cells.push_back(std::move(cell));
      more = at < text.size() && text[at] == ',';
      if (at < text.size()) ++at;
    }
    ++line;
    if (out.size() > most_measured_runs + 1 || row.cells.size() > 64)
      return usage_error(source + ": it has more than " + std::to_string(most_measured_runs) +
                         " runs, or more than 64 columns");
  }
  return out;
}

/// A cell as JSON: a number where it is one.
inline nlohmann::json cell_json(const std::string& column, const std::string& cell) {
  if (column == "name" || column == "plan" || column == "model") return cell;
  std::int64_t whole = 0;
  double number = 0;
  const char* const end = cell.data() + cell.size();
  if (const auto read = std::from_chars(cell.data(), end, whole); read.ec == std::errc{} && read.ptr == end)
    return whole;
  if (const auto read = std::from_chars(cell.data(), end, number); read.ec == std::errc{} && read.ptr == end)
    return number;
  return cell;
}

/// A run as a JSON object, and where it stands.
struct RunRow {
  std::string where;
  nlohmann::json value;
};

inline Result<std::vector<RunRow>> rows_of_table(std::string_view text, const std::string& source) {
  const auto lines = table_lines(text, source);
  if (!lines) return tl::unexpected<Error>(lines.error());
  if (lines->empty()) return usage_error(source + ": it is empty; give a line of column names and a line for each run");
  const std::vector<std::string>& columns = lines->front().cells;
  if (std::set(columns.begin(), columns.end()).size() != columns.size())
    return usage_error(source + ": two columns have the same name; keep one of them");
  std::vector<RunRow> out;
  for (std::size_t i = 1; i < lines->size(); ++i) {
    const TableLine& line = (*lines)[i];
    RunRow& row = out.emplace_back(RunRow{source + ": line " + std::to_string(line.number), nlohmann::json::object()});
    if (line.cells.size() > columns.size())
      return usage_error(row.where + ": it has " + std::to_string(line.cells.size()) + " cells, and there are " +
                         std::to_string(columns.size()) + " columns");
    for (std::size_t j = 0; j < line.cells.size(); ++j)
      if (!line.cells[j].empty()) row.value[columns[j]] = cell_json(columns[j], line.cells[j]);
  }
  return out;
}

inline Result<std::vector<RunRow>> rows_of_json(std::string_view text, const std::string& source) {
  const auto value = parse_json(text, source);
  if (!value) return tl::unexpected<Error>(value.error());
  const nlohmann::json* runs = &*value;
  if (value->is_object()) {
    JsonObject fields(*value, source);
    const auto format = fields.required<std::string>("format");
    fields.check("format", format == "galvatron-runs",
                 "this is a \"" + one_line(format, 40) + "\" file; one of measured runs has \"galvatron-runs\"");
    fields.check("version", fields.required<int>("version") == 1, "this program reads version 1");
    runs = &fields.required_array("runs");
    if (auto done = fields.finish(); !done) return tl::unexpected<Error>(done.error());
  }
  std::vector<RunRow> out;
  for (const nlohmann::json& run : *runs) out.push_back({source + ": runs[" + std::to_string(out.size()) + "]", run});
  return out;
}

/// The job that a run's strategy is, of the words and degrees that it has.
inline TrainerJob job_of_run(JsonObject& fields, const RunDefaults& defaults) {
  constexpr std::int64_t most = 1 << 20;
  TrainerJob job;
  job.trainer = defaults.trainer.value_or(cost::Trainer{});
  const auto degree = [&](const char* key, std::int64_t otherwise) {
    return fields.optional<std::int64_t>(key, otherwise, 1, most);
  };
  job.tensor = degree("tp", 1);
  job.pipeline = degree("pp", 1);
  job.context = degree("cp", 1);
  job.expert = degree("ep", 1);
  const std::int64_t data = degree("dp", 1);
  job.devices = std::min(job.tensor * job.pipeline, most) * job.context;
  job.devices = std::min(job.devices, most) * data;
  job.virtual_stages = degree("virtual_stages", 1);
  job.samples = degree("micro_batch", 1);
  job.accumulation = fields.optional<std::int64_t>("microbatches", 0, 1, most);
  job.global_batch = fields.optional<std::int64_t>("global_batch", 0, 1, 1 << 30);
  fields.check("microbatches", job.accumulation > 0 || job.global_batch > 0, "give this or \"global_batch\"");
  fields.check(
      "microbatches",
      job.accumulation == 0 || job.global_batch == 0 || job.accumulation * job.samples * data == job.global_batch,
      "it is not global_batch / (micro_batch x dp)");
  job.sequence = fields.optional<std::int64_t>("seq", defaults.sequence, 1, 1 << 24);
  job.zero = fields.optional<int>("zero", 0, 0, 3);
  const auto word = [&](const char* key, auto& value, const auto& values) {
    if (fields.has(key, true)) fields.word(key, value, values, [](auto each) { return std::string(name_of(each)); });
  };
  SequenceKind sequence = SequenceKind::none;
  word("sequence", sequence, sequence_kinds);
  job.sequence_parallel = cuts_over_tensor(sequence);
  job.context_kind = exchanges_heads(sequence) ? SequenceKind::ulysses : SequenceKind::ring;
  word("recompute", job.recompute, recompute_kinds);
  job.precision = defaults.precision;
  word("precision", job.precision, precisions);
  job.schedule = job.virtual_stages > 1 ? ScheduleKind::interleaved : ScheduleKind::one_f_one_b;
  word("schedule", job.schedule, schedule_kinds);
  return job;
}

}  // namespace detail

/// The runs of a file; `source` opens the messages. Errors (usage): malformed text, missing and unknown keys, values
/// out of range, and those of plan_of_job and of what finds models and plans.
inline Result<std::vector<MeasuredRun>> measured_runs(std::string_view text, const std::string& source,
                                                      const RunDefaults& defaults) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_json = first != std::string_view::npos && (text[first] == '{' || text[first] == '[');
  auto rows = is_json ? detail::rows_of_json(text, source) : detail::rows_of_table(text, source);
  if (!rows) return tl::unexpected<Error>(std::move(rows.error()));
  if (rows->empty() || rows->size() > most_measured_runs)
    return usage_error(source + ": it has " + std::to_string(rows->size()) + " runs; give 1 to " +
                       std::to_string(most_measured_runs));
  std::map<std::string, std::shared_ptr<const ModelSpec>> models;
  std::vector<MeasuredRun> out;
  for (const detail::RunRow& row : *rows) {
    JsonObject fields(row.value, row.where);
    MeasuredRun& run = out.emplace_back();
    const nlohmann::json* const plan = fields.any("plan");
    const bool is_path = plan != nullptr && plan->is_string();
    run.name = detail::one_line(
        fields.optional<std::string>("name", is_path ? plan->get<std::string>() : row.where.substr(source.size() + 2)),
        60);
    run.seconds = {fields.required<double>("seconds", 1e-9, 1e9)};
    run.spread = fields.optional<double>("spread", 0, 0, 1);
    auto model = fields.optional<std::string>("model", defaults.model);
    std::optional<TrainerJob> job;
    const auto failed = [&](const std::string& why) { return usage_error(row.where + ": " + why); };
    if (plan != nullptr && !plan->is_null()) {
      auto read = is_path ? defaults.read_plan(plan->get<std::string>()) : plan_from_json(*plan, fields.name("plan"));
      if (!read) return is_path ? failed(read.error().message) : usage_error(read.error().message);
      run.plan = std::move(*read);
      if (defaults.trainer) run.plan.trainer = *defaults.trainer;
      if (model.empty()) model = run.plan.model;
    } else {
      job = detail::job_of_run(fields, defaults);
    }
    fields.check("model", !model.empty(), "no model is named: give --model, or a column \"model\"");
    if (auto done = fields.finish(); !done) return tl::unexpected<Error>(std::move(done.error()));
    auto& known = models[model];
    if (!known) {
      auto found = defaults.find_model(model);
      if (!found) return failed(found.error().message);
      known = std::make_shared<const ModelSpec>(std::move(*found));
    }
    run.model = known;
    if (!job) continue;
    auto made = plan_of_job(*job, *known, job->devices);
    if (!made) return failed(made.error().message);
    run.plan = std::move(*made);
    run.plan.model = model;
  }
  return out;
}

}  // namespace galvatron
