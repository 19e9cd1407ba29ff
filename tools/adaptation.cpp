#include "adaptation.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include <galvatron/cluster/json.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/plan/json.hpp>
#include <galvatron/plan/plan_for_devices.hpp>
#include <galvatron/strategy/registry.hpp>

#include "output.hpp"
#include "plans.hpp"

namespace galvatron::tools {

namespace fs = std::filesystem;

void adapt_options(Options& options, AdaptArguments& a) {
  options.flag("--adapt", a.on,
               "give ranks that became slow less to do, and go on without ranks that are lost (docs/adapting.md)");
  options.number("--adapt-margin", a.margin, 0.01, 0.9,
                 "with --adapt: the share of a step's time that another plan has to save (default: 0.1)");
  options.integer("--spare-ranks", a.spare_ranks, 0, 1024,
                  "with --adapt: ranks that take the place of lost ones, before plans for fewer do (default: 0)");
}

namespace {

bool is_runnable(const Plan& plan) {
  const auto is = [](const StrategySpec& spec) { return is_instantiated(InstantiatedStrategies{}, spec); };
  return is(plan.embedding) && is(plan.head) && std::ranges::all_of(plan.layers, is);
}

// The devices that a plan was made for, as many as are left. Those of this machine where that is not known.
Cluster cluster_of(const Plan& plan, int ranks) {
  if (plan.cluster != "host" && !plan.mixes_groups())
    if (auto cluster = load_cluster(plan.cluster)) {
      cluster->devices = ranks;
      cluster->devices_per_node = std::min(cluster->devices_per_node, ranks);
      return std::move(*cluster);
    }
  return host_before_profile(ranks);
}

}  // namespace

Result<Plan> plan_for_left(const Plan& before, const ModelSpec& model, int ranks, Bytes memory) {
  return plan_for_devices(before, model, cluster_of(before, ranks), memory, is_runnable);
}

nlohmann::ordered_json adaptations_json(const std::vector<train::Adaptation>& adaptations) {
  auto out = nlohmann::ordered_json::array();
  for (const train::Adaptation& a : adaptations)
    out.push_back({{"step", a.step + 1},
                   {"rank", a.rank},
                   {"reason", a.reason},
                   {"seconds", a.seconds},
                   {"predicted_iteration_seconds",
                    a.iteration > 0 ? nlohmann::ordered_json(a.iteration) : nlohmann::ordered_json()},
                   {"plan", to_json(a.plan)}});
  return out;
}

std::string adaptation_text(const train::Adaptation& a) {
  std::string shares;
  for (const PlanStage& stage : a.plan.stages) {
    shares += (shares.empty() ? "" : "; ") + text_of("layers ", stage.first_layer, "-", stage.last_layer);
    if (!stage.sample_ratios.empty()) shares += " with samples " + joined(stage.sample_ratios, ":");
  }
  return text_of("Rank ", a.rank, ": ", a.reason, ". Step ", a.step + 1, " goes on ", format_seconds({a.seconds}),
                 " later with ", plan_words(a.plan), " (", shares, ")",
                 a.iteration > 0 ? ", expected to take " + format_seconds({a.iteration}) + " a step" : "", ".");
}

namespace {

nlohmann::json read_json(const fs::path& path) {
  return nlohmann::json::parse(read_text_file(path).value_or(""), nullptr, false);
}

void write_whole(const fs::path& path, const std::string& text) { value_or_throw(write_file_atomically(path, text)); }

train::Adaptation adaptation_of(const nlohmann::json& from, const std::string& name) {
  train::Adaptation out;
  out.step = from.at("step").get<std::int64_t>() - 1;
  out.rank = from.at("rank").get<int>();
  out.reason = from.at("reason").get<std::string>();
  out.seconds = from.at("seconds").get<double>();
  if (const auto& iteration = from.at("predicted_iteration_seconds"); iteration.is_number())
    out.iteration = iteration.get<double>();
  out.plan = value_or_throw(plan_from_json(from.at("plan"), name));
  return out;
}

// What a job tells the next one of a step. Numbers that are not finite are null, and 0 when they are read.
nlohmann::ordered_json step_json(const train::StepReport& step) {
  nlohmann::ordered_json out{{"step", step.step},
                             {"loss", step.loss},
                             {"norm", step.gradient_norm},
                             {"balance_loss", step.balance_loss},
                             {"z_loss", step.z_loss},
                             {"rate", step.learning_rate},
                             {"seconds", step.seconds},
                             {"tokens", step.tokens},
                             {"mfu", step.mfu},
                             {"peak_bytes", step.peak_memory.count},
                             {"skipped", step.skipped},
                             {"bits_per_byte", step.bits_per_byte}};
  if (step.packed)
    out["packed"] = {{"microbatches", step.packed->microbatches},
                     {"padding", step.packed->padding},
                     {"groups", step.packed->groups},
                     {"waited", step.packed->waited}};
  for (const train::LayerDispatch& layer : step.layer_dispatch)
    out["dispatch"].push_back({layer.layer, layer.sums.squared_distances, layer.sums.squared_tokens, layer.sums.rows,
                               layer.sums.buckets, layer.sums.hashing_seconds, layer.sums.bytes});
  for (const train::ExpertLoads& layer : step.loads) out["loads"].push_back({layer.layer, layer.choices});
  return out;
}
train::StepReport step_of_json(const nlohmann::json& from) {
  const auto number = [&](const char* key) { return from.at(key).is_number() ? from.at(key).get<double>() : 0; };
  train::StepReport out{.step = from.at("step").get<std::int64_t>(),
                        .loss = number("loss"),
                        .gradient_norm = number("norm"),
                        .balance_loss = number("balance_loss"),
                        .z_loss = number("z_loss"),
                        .learning_rate = number("rate"),
                        .seconds = number("seconds"),
                        .tokens = from.at("tokens").get<std::int64_t>(),
                        .mfu = number("mfu"),
                        .peak_memory = {from.at("peak_bytes").get<std::int64_t>()},
                        .skipped = from.at("skipped").get<std::string>(),
                        .bits_per_byte = number("bits_per_byte")};
  out.tokens_per_second = static_cast<double>(out.tokens) / out.seconds;
  if (from.contains("packed")) {
    const auto& packed = from.at("packed");
    out.packed = {packed.at("microbatches").get<std::int64_t>(), packed.at("padding").get<std::int64_t>(),
                  packed.at("groups").get<std::string>(), packed.at("waited").get<double>()};
  }
  if (from.contains("dispatch"))
    for (const auto& layer : from.at("dispatch")) {
      const auto sum = [&](int i) { return layer.at(i).get<double>(); };
      out.layer_dispatch.push_back({layer.at(0).get<int>(), {sum(1), sum(2), sum(3), sum(4), sum(5), sum(6)}});
    }
  out.dispatch = total(out.layer_dispatch);
  if (from.contains("loads"))
    for (const auto& layer : from.at("loads"))
      out.loads.push_back({layer.at(0).get<int>(), layer.at(1).get<std::vector<std::int64_t>>()});
  return out;
}

// state-RANK-STEP
struct StateFile {
  int rank = 0;
  std::int64_t step = 0;
  fs::path path;
};
std::vector<StateFile> state_files(const fs::path& folder) {
  std::vector<StateFile> out;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    StateFile file{.path = entry.path()};
    long long step = 0;
    const std::string name = entry.path().filename().string();
    if (std::sscanf(name.c_str(), "state-%d-%lld", &file.rank, &step) != 2 || name.ends_with(".tmp")) continue;
    file.step = step;
    out.push_back(std::move(file));
  }
  return out;
}

}  // namespace

std::optional<JobFolder> JobFolder::of_this_process() {
  const char* const name = std::getenv(variable);
  std::error_code unknown;
  if (name == nullptr || !fs::is_directory(name, unknown)) return std::nullopt;
  return JobFolder(name);
}

JobFolder JobFolder::make() {
  std::error_code unknown;
  const fs::path memory = "/dev/shm";
  const bool writable = fs::is_directory(memory, unknown) && ::access(memory.c_str(), W_OK) == 0;
  std::string name = ((writable ? memory : fs::temp_directory_path()) / "galvatron-job-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr)
    throw DeviceFailure("cannot make the folder " + name + ": " + std::strerror(errno));
  ::setenv(variable, name.c_str(), 1);
  return JobFolder(name);
}

void JobFolder::remove() const {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void JobFolder::write_plan(const Plan& plan) const { write_whole(path_ / "plan.json", to_json(plan).dump()); }

void JobFolder::add(const train::StepReport& step) {
  std::error_code ignored;
  if (!is_clean_) {
    is_clean_ = true;
    for (const StateFile& state : state_files(path_)) {
      const bool is_read = state.step > step.step;  // by ranks that begin after this step
      is_clean_ = is_clean_ && !is_read;
      if (!is_read) fs::remove(state.path, ignored);
    }
  }
  value_or_throw(AppendedFile::open(path_ / "steps.jsonl").and_then([&](AppendedFile&& file) {
    return file.append(step_json(step).dump() + "\n");
  }));
}

void JobFolder::write(const std::vector<train::Adaptation>& adaptations) const {
  write_whole(path_ / "adaptations.json", adaptations_json(adaptations).dump());
}

void JobFolder::leave(const train::Survivor& survivor) const {
  if (survivor.report) write_whole(path_ / text_of("report-", survivor.rank), step_json(*survivor.report).dump());
  const std::string name = text_of("state-", survivor.rank, "-", survivor.state == nullptr ? -1 : survivor.step);
  const auto file = survivor.state == nullptr ? std::span<const std::byte>{} : survivor.state->file();
  write_whole(path_ / name, {reinterpret_cast<const char*>(file.data()), file.size()});
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(15);
  while (std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

std::optional<Plan> JobFolder::plan() const {
  const nlohmann::json found = read_json(path_ / "plan.json");
  if (!found.is_object()) return std::nullopt;
  return value_or_throw(plan_from_json(found, (path_ / "plan.json").string()));
}

int JobFolder::survivors() const { return static_cast<int>(state_files(path_).size()); }

void JobFolder::write_next(const train::Adaptation& next, double since) const {
  write_whole(path_ / "next.json",
              nlohmann::ordered_json{{"adaptation", adaptations_json({next}).front()}, {"since", since}}.dump());
}

std::string JobFolder::restart_text(bool states_count, const std::function<ModelSpec(const Plan&)>& model_of) const {
  nlohmann::json next = read_json(path_ / "next.json");
  if (!next.is_object()) return "";
  std::error_code ignored;
  fs::remove(path_ / "next.json", ignored);
  next["states"] = nlohmann::json::array();
  next["step"] = 0;
  std::vector<MappedFile> files;
  std::vector<train::StateCopy> copies;
  for (const StateFile& state : state_files(path_)) {
    if (!states_count || state.step < 0) continue;
    files.push_back(value_or_throw(MappedFile::open(state.path)));
    copies.push_back({state.rank, state.step, files.back().bytes()});
  }
  const Plan plan = value_or_throw(plan_from_json(next.at("adaptation").at("plan"), "the plan of the job"));
  if (const auto newest = value_or_throw(train::newest_state(model_of(plan), copies))) {
    next["step"] = newest->second;
    std::vector<train::Survivor> survivors;
    for (const StateFile& state : state_files(path_)) {
      if (state.step != newest->second) continue;
      next["states"].push_back(state.path.string());
      const nlohmann::json report = read_json(path_ / text_of("report-", state.rank));
      if (report.is_object()) survivors.push_back({state.rank, state.step, nullptr, step_of_json(report)});
    }
    if (const auto unreported = train::unreported_step(survivors, steps(), newest->second))
      next["unreported"] = step_json(*unreported);
  }
  return next.dump();
}

std::vector<train::StepReport> JobFolder::steps() const {
  std::map<std::int64_t, train::StepReport> out;  // what was done twice counts as it was done last
  std::istringstream lines(read_text_file(path_ / "steps.jsonl").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const auto found = nlohmann::json::parse(line, nullptr, false);
    if (!found.is_object()) continue;  // cut short
    train::StepReport step = step_of_json(found);
    out.insert_or_assign(step.step, std::move(step));
  }
  std::vector<train::StepReport> all;
  for (auto& [number, step] : out) all.push_back(std::move(step));
  return all;
}

std::vector<train::Adaptation> JobFolder::adaptations() const {
  std::vector<train::Adaptation> out;
  const nlohmann::json found = read_json(path_ / "adaptations.json");
  if (found.is_array())
    for (const auto& one : found) out.push_back(adaptation_of(one, "the adaptations of the job"));
  return out;
}

Restart::Restart(const std::string& text) {
  const auto found = nlohmann::json::parse(text);
  loss.adaptation = adaptation_of(found.at("adaptation"), "the plan of the job");
  loss.since = found.at("since").get<double>();
  if (found.contains("unreported")) loss.unreported = step_of_json(found.at("unreported"));
  plan = loss.adaptation.plan;
  states = found.at("states").get<std::vector<std::string>>();
  step = found.at("step").get<std::int64_t>();
}

RestartStates::RestartStates(const Restart& restart, const ModelSpec& model) : images_(model) {
  for (const std::string& path : restart.states) {
    files_.push_back(value_or_throw(MappedFile::open(path)));
    value_or_throw(images_.add(files_.back().bytes(), path));
  }
  continuation_ = {&images_, restart.step};
}

}  // namespace galvatron::tools
