// galvatron list: what is known by name.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/cost/trainer_json.hpp>
#include <galvatron/files.hpp>
#include <galvatron/model/multi_task.hpp>
#include <galvatron/model/multi_task_json.hpp>
#include <galvatron/model/multi_task_zoo.hpp>
#include <galvatron/runtime/implemented.hpp>
#include <galvatron/strategy/registry.hpp>
#include <galvatron/strategy/schedule_kind.hpp>

#include "options.hpp"
#include "tasks.hpp"

namespace galvatron::tools {

namespace {

using nlohmann::ordered_json;

// Cells in columns as wide as their widest one.
std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (widths.size() <= i) widths.push_back(0);
      widths[i] = std::max(widths[i], row[i].size());
    }
  std::string out;
  for (const auto& row : rows) {
    std::string line = " ";
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += " " + row[i];
      if (i + 1 < row.size()) line.append(widths[i] - row[i].size() + 1, ' ');
    }
    out += line + "\n";
  }
  return out;
}

struct Listing {
  std::string text{};
  ordered_json json = ordered_json::array();
};

// Models of several tasks, as lines and in JSON beside the others.
void add_multi_task_models(const std::vector<std::string>& names, Listing& out) {
  std::vector<std::vector<std::string>> rows{{"of several tasks", "parameters", "components", "tasks", "samples"}};
  for (const std::string& name : names) {
    const MultiTaskModel model = value_or_throw(load_multi_task_model(name));
    std::int64_t samples = 0;
    for (const TaskSpec& task : model.tasks) samples += task.batch;
    const int layers = model.first_layer(static_cast<int>(model.components.size()));
    rows.push_back({name, format_count(static_cast<double>(parameters(model))), std::to_string(model.components.size()),
                    std::to_string(model.tasks.size()), std::to_string(samples)});
    out.json.push_back({{"name", name},
                        {"parameters", parameters(model)},
                        {"layers", layers},
                        {"components", model.components.size()},
                        {"tasks", model.tasks.size()},
                        {"samples", samples},
                        {"trains", true}});
  }
  out.text += (out.text.empty() ? "" : "\n") + table(rows);
}

// The presets, or the models named: presets, config.json files or models of several tasks.
Listing models(const std::vector<std::string>& named) {
  Listing out;
  std::vector<std::string> of_one_task = named.empty() ? model_names() : named;
  const auto several = std::ranges::stable_partition(of_one_task, std::not_fn(names_tasks));
  std::vector<std::string> of_several(several.begin(), several.end());
  of_one_task.erase(several.begin(), several.end());
  if (named.empty()) of_several.assign(multi_task_model_names.begin(), multi_task_model_names.end());
  std::vector<std::vector<std::string>> rows{{"name", "parameters", "layers", "hidden", "heads", "positions", "for"}};
  for (const std::string& name : of_one_task) {
    const ModelSpec model = value_or_throw(load_model(name));
    const LayerSpec& block = model.blocks.front();
    const auto with_experts =
        std::ranges::find_if(model.blocks, [](const LayerSpec& each) { return each.experts > 0; });
    const LayerSpec& experts = with_experts == model.blocks.end() ? block : *with_experts;
    const bool trains = runtime::check_implemented(model).has_value();
    rows.push_back({name, format_count(static_cast<double>(parameters(model))), std::to_string(model.blocks.size()),
                    std::to_string(model.hidden()), std::to_string(block.heads), std::to_string(model.positions()),
                    trains ? "plan, train" : "plan"});
    out.json.push_back({{"name", name},
                        {"parameters", parameters(model)},
                        {"layers", model.blocks.size()},
                        {"hidden", model.hidden()},
                        {"heads", block.heads},
                        {"kv_heads", block.kv_heads},
                        {"ffn", block.ffn},
                        {"experts", experts.experts},
                        {"active_experts", experts.active_experts},
                        {"vocabulary", model.head.vocabulary},
                        {"positions", model.positions()},
                        {"trains", trains}});
  }
  if (rows.size() > 1) out.text = table(rows);
  if (named.empty())
    out.text += "  or the path of a Hugging Face config.json (" + std::string(huggingface_model_types) + ")\n";
  if (!of_several.empty()) add_multi_task_models(of_several, out);
  return out;
}

Listing clusters(const std::vector<std::string>&) {
  Listing out;
  std::vector<std::vector<std::string>> rows{{"name", "memory", "its rate", "16-bit peak", "node", "network"}};
  const auto per_second = [](double bytes) { return format_count(bytes) + "B/s"; };
  for (const std::string& name : cluster_names()) {
    std::string example = name;
    if (example.starts_with("Nx")) example.replace(0, 1, "8");
    const Cluster cluster = value_or_throw(find_cluster(example));
    const DeviceSpec& device = cluster.device;
    if (name == "host")
      rows.push_back({name, "(this machine)"});
    else
      rows.push_back({name, format_bytes(device.memory), per_second(device.memory_bandwidth),
                      format_count(cluster.peak_flops(Precision::bf16)) + "FLOP/s",
                      per_second(cluster.inside_node.all_reduce_bandwidth),
                      per_second(cluster.across_nodes.bandwidth)});
    out.json.push_back({{"name", name},
                        {"device", device.name},
                        {"devices_per_node", cluster.devices_per_node},
                        {"device_memory_bytes", device.memory.count},
                        {"memory_bandwidth", device.memory_bandwidth},
                        {"bf16_peak_flops", cluster.peak_flops(Precision::bf16)},
                        {"fp32_peak_flops", cluster.peak_flops(Precision::fp32)},
                        {"fp8_peak_flops", cluster.peak_flops(Precision::fp8)},
                        {"node_all_reduce_bandwidth", cluster.inside_node.all_reduce_bandwidth},
                        {"network_bandwidth", cluster.across_nodes.bandwidth}});
  }
  out.text = table(rows) +
             "  N is a number of devices, 8 a node; node and network are bytes/s of a device. Several names\n"
             "  joined by + are a mixed cluster: 8xa100-80g+8xh100-80g. The path of a JSON file works too:\n"
             "  `galvatron profile` writes one for this machine.\n";
  return out;
}

Listing strategies(const std::vector<std::string>&) {
  Listing out;
  for (const std::string& name : names_of(InstantiatedStrategies{})) {
    out.text += "  " + name + "\n";
    out.json.push_back(name);
  }
  out.text +=
      "  (* is any degree; every layer of a plan has its own strategy, and one with experts\n"
      "  besides an expert degree and a tensor degree of experts, ep* and etp*)\n";
  return out;
}

Listing schedules(const std::vector<std::string>&) {
  Listing out;
  std::vector<std::vector<std::string>> rows;
  for (const auto& [kind, description] :
       {std::pair(ScheduleKind::gpipe, "all forward passes of a step, then all backward passes"),
        {ScheduleKind::one_f_one_b, "one forward, one backward: fewer micro-batches in memory"},
        {ScheduleKind::interleaved, "1f1b over several chunks of layers a stage: less idle, more messages"},
        {ScheduleKind::zb_h1, "1f1b with weight gradients deferred: less idle, more memory"},
        {ScheduleKind::zb_2p, "zb-h1 with twice the micro-batches in memory: less idle where backward is long"},
        {ScheduleKind::zb_v, "weight gradients deferred, two chunks of layers a stage in a V: least idle"}}) {
    rows.push_back({name_of(kind), description});
    out.json.push_back({{"name", name_of(kind)}, {"description", description}});
  }
  out.text = table(rows);
  return out;
}

Listing trainers(const std::vector<std::string>&) {
  Listing out;
  std::vector<std::vector<std::string>> rows{
      {"name", "attention", "bytes of a gradient", "overlaps", "host", "reserve"}};
  for (const std::string& name : cost::trainer_names()) {
    const cost::Trainer trainer = *cost::find_trainer(name);
    const cost::RuntimeTraits& t = trainer.traits;
    std::string overlaps;
    for (const auto& [has, what] : {std::pair(t.tensor_pieces > 0, "tensor"),
                                    {t.overlaps_gradients, "gradients"},
                                    {t.overlaps_parameters, "parameters"},
                                    {t.prefetches, "ZeRO-2/3"}})
      if (has) overlaps += text_of(overlaps.empty() ? "" : ", ", what);
    rows.push_back({name, op::word_of(t.attention), std::to_string(t.gradient_bytes),
                    overlaps.empty() ? "nothing" : overlaps, format_seconds(t.host),
                    trainer.is_own()
                        ? "the device's"
                        : text_of(format_bytes(t.context + t.collectives), " + ", percent(t.fragmentation))});
    ordered_json sources = ordered_json::object();
    for (const cost::FactSource& source : trainer.sources) sources[source.section] = source.text;
    out.json.push_back({{"name", name}, {"sources", sources}});
    for (const cost::TrainerFile& file : cost::trainer_files)
      if (file.name == name) out.json.back()["facts"] = ordered_json::parse(file.text);
  }
  out.text = table(rows) + "  The path of a JSON file works too: --json shows the facts of these with their sources.\n";
  return out;
}

}  // namespace

void run_list(const Arguments& arguments, Common& common) {
  Options options("list", "Shows what is known by name: models, clusters, strategies, schedules, trainers.");
  std::string kind = "all";
  std::vector<std::string> named;
  options.choice("what", kind, {"models", "clusters", "strategies", "schedules", "trainers", "all"}, "what to show");
  options.texts("names", named, "MODEL...",
                "with models: only these, names of presets or paths of a Hugging Face config.json or of a model of "
                "several tasks; tells the parameters, and what galvatron does with the model");
  options.flag("--json", common.json, "one JSON object with an array for each");
  options.examples("Examples:\n  galvatron list models\n  galvatron list models my-llama/config.json --json");
  Arguments given = arguments;
  if (!given.empty() && given.front() == "model") given.front() = "models";  // of one
  if (!options.parse(given, common)) return;
  if (!named.empty() && kind != "models")
    refuse("names are of models; write `galvatron list models " + named.front() + "`");

  std::string text;
  ordered_json json = ordered_json::object();
  const std::pair<const char*, Listing (*)(const std::vector<std::string>&)> listings[] = {{"models", models},
                                                                                           {"clusters", clusters},
                                                                                           {"strategies", strategies},
                                                                                           {"schedules", schedules},
                                                                                           {"trainers", trainers}};
  for (const auto& [name, make] : listings) {
    if (kind != "all" && kind != name) continue;
    Listing listing = make(named);
    text += (kind == "all" ? text_of(text.empty() ? "" : "\n", name, "\n") : "") + listing.text;
    json[name] = std::move(listing.json);
  }
  if (common.json)
    print_json(json);
  else
    print(text);
}

}  // namespace galvatron::tools
