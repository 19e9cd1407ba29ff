// Multi-task models: their graphs, presets, and what is refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <galvatron/model/multi_task_json.hpp>
#include <galvatron/model/multi_task_zoo.hpp>

#include "../says.hpp"

using namespace galvatron;

namespace {

MultiTaskModel multi_task_preset(const char* name) { return value_or_throw(find_multi_task_model(name)); }

std::vector<std::string> components_of(const MultiTaskModel& model, int task) {
  std::vector<std::string> out;
  const auto graphs = value_or_throw(task_graphs(model));
  for (const TaskPass& pass : graphs[static_cast<std::size_t>(task)].passes)
    out.push_back(model.component(pass.component).name);
  return out;
}

}  // namespace

TEST_CASE("the published multi-task models have their published sizes") {
  const auto billions = [](const char* name) {
    return static_cast<double>(parameters(multi_task_preset(name))) * 1e-9;
  };
  CHECK(billions("multitask-clip-10") == doctest::Approx(1.20).epsilon(0.03));
  CHECK(billions("ofasys-7") == doctest::Approx(0.66).epsilon(0.35));  // which tables it shares is not published
  CHECK(billions("qwen-val") == doctest::Approx(9.25).epsilon(0.15));
  for (const std::string_view name : multi_task_model_names) {
    const auto right = checked(value_or_throw(find_multi_task_model(name)));
    CHECK_MESSAGE(right.has_value(), (right ? std::string() : right.error().message));
  }
  CHECK(multi_task_preset("multitask-clip-4").components.size() == 5);  // no thermal, no imu
  CHECK(multi_task_preset("multitask-clip-10").components.size() == 7);
  CHECK(multi_task_preset("ofasys-7").tasks.size() == 7);
}

TEST_CASE("a copy of a forward pass, as another module has it, is the same layer") {
  MultiTaskModel model = multi_task_preset("clip-toy");
  int projections = 0;
  for (Component& component : model.components)
    for (LayerSpec& layer : component.layers)
      if (layer.forward_pass == &projection_forward) {
        layer.forward_pass = [](const LayerSpec& l) { return projection_forward(l); };
        ++projections;
      }
  CHECK(projections == 4);
  const auto right = checked(model);
  CHECK_MESSAGE(right.has_value(), (right ? std::string() : right.error().message));
}

TEST_CASE("a task's passes are the components between its data and its loss") {
  const MultiTaskModel clip = multi_task_preset("clip-toy");
  CHECK(components_of(clip, 0) == std::vector<std::string>{"text", "vision", "contrast"});
  CHECK(components_of(clip, 3) == std::vector<std::string>{"text", "audio", "contrast"});
  const MultiTaskModel ofasys = multi_task_preset("ofasys-toy");
  CHECK(components_of(ofasys, 1) == std::vector<std::string>{"audio", "target", "encoder", "decoder"});
  const MultiTaskModel qwen = multi_task_preset("qwen-toy");
  const auto graphs = value_or_throw(task_graphs(qwen));
  const TaskPass& llm = graphs[2].passes.back();
  CHECK(llm.tokens == 9 + 6 + 8);
  CHECK(llm.inputs == std::vector<int>{0, 1, 2});
  CHECK(predictions(qwen, qwen.task(2), graphs[2]) == 8);
  const auto generation = value_or_throw(task_graphs(ofasys));
  const TaskPass& decoder = generation[2].passes.back();
  const LayerSpec block = layer_of(ofasys, generation[2], decoder, 0);
  CHECK(block.memory == TokenRatio{8, 4});
  CHECK(predictions(ofasys, ofasys.task(2), generation[2]) == 4);
  const LayerSpec projection =
      layer_of(clip, value_or_throw(task_graphs(clip))[0], TaskPass{.component = 0, .tokens = 8}, 3);
  CHECK(projection.after(0).elements(8) == 16);
}

TEST_CASE("a multi-task model that makes no sense is refused with its cause") {
  struct Case {
    const char* model;
    std::function<void(MultiTaskModel&)> change;
    std::vector<std::string> words;
  };
  const Case cases[] = {
      {"ofasys-toy", [](auto& m) { m.components[4].inputs.push_back("encoder"); }, {"cycle", "encoder"}},
      {"qwen-toy",
       [](auto& m) {
         m.components.push_back(
             component("there", {.kind = ComponentKind::adaptor, .hidden = 48, .tokens = 8, .output = 48}, {"back"}));
         m.components.push_back(
             component("back", {.kind = ComponentKind::adaptor, .hidden = 48, .tokens = 8, .output = 48}, {"there"}));
       },
       {"cycle", "there"}},
      {"clip-toy", [](auto& m) { m.tasks.erase(m.tasks.begin() + 2); }, {"no task uses", "depth"}},
      {"clip-toy", [](auto& m) { m.tasks[1].inputs.clear(); }, {"vision-audio", "no data"}},
      {"clip-toy", [](auto& m) { m.tasks[1].batch = 0; }, {"vision-audio", "batch of 0"}},
      {"clip-toy", [](auto& m) { m.tasks[1].weight = 0; }, {"vision-audio", "weight"}},
      {"clip-toy", [](auto& m) { m.tasks[1].weight = std::nan(""); }, {"vision-audio", "weight"}},
      {"clip-toy", [](auto& m) { m.tasks[1].inputs[0].component = "smell"; }, {"smell", "no component"}},
      {"clip-toy", [](auto& m) { m.tasks[1].inputs[0].component = "contrast"; }, {"contrast", "no data"}},
      {"clip-toy", [](auto& m) { m.tasks[1].inputs[0].component = "audio"; }, {"audio", "twice"}},
      {"clip-toy", [](auto& m) { m.tasks[1].inputs.pop_back(); }, {"1 inputs", "two"}},
      {"clip-toy", [](auto& m) { m.tasks[0].inputs.push_back({"depth"}); }, {"3 inputs", "two"}},
      {"clip-toy", [](auto& m) { m.tasks[0].loss = "text"; }, {"text", "no loss"}},
      {"clip-toy", [](auto& m) { m.tasks[0].loss = "none"; }, {"none", "no component"}},
      {"clip-toy", [](auto& m) { m.tasks[0].name = m.tasks[1].name; }, {"two tasks", "vision-audio"}},
      {"clip-toy", [](auto& m) { m.components[0].name = "vision"; }, {"two components", "vision"}},
      {"clip-toy", [](auto& m) { m.components[4].inputs[0] = "txet"; }, {"txet", "no component"}},
      {"clip-toy", [](auto& m) { m.components.clear(); }, {"no components"}},
      {"clip-toy", [](auto& m) { m.tasks.clear(); }, {"no tasks"}},
      {"clip-toy", [](auto& m) { m.components[0].layers.clear(); }, {"text", "no layers"}},
      {"clip-toy",
       [](auto& m) { m.components[0].layers.back().place.after[0].width = 20; },
       {"text", "20", "16", "adaptor"}},
      {"clip-toy", [](auto& m) { m.components[0].layers[1].hidden = 40; }, {"text", "40", "32"}},
      {"clip-toy", [](auto& m) { m.components[0].inputs = {"vision"}; }, {"text", "no embedding"}},
      {"clip-toy", [](auto& m) { m.components[0].memory = "vision"; }, {"text", "no cross attention"}},
      {"clip-toy", [](auto& m) { m.tasks[0].inputs[0].tokens = 9; }, {"9 tokens", "up to 8"}},
      {"clip-toy", [](auto& m) { m.tasks[0].inputs[1].tokens = 9; }, {"9 tokens", "images of 10"}},
      {"ofasys-toy", [](auto& m) { m.components[5].memory.clear(); }, {"decoder", "cross attention"}},
      {"ofasys-toy", [](auto& m) { m.tasks[0].inputs.erase(m.tasks[0].inputs.begin()); }, {"decoder", "no memory"}},
      {"ofasys-toy",
       [](auto& m) { std::swap(m.tasks[0].inputs[0], m.tasks[0].inputs[1]); },
       {"language loss", "tokens"}},
      {"qwen-toy", [](auto& m) { m.components[3].layers[0].positions = 10; }, {"llm", "positions"}},
  };
  for (const Case& c : cases) {
    MultiTaskModel model = multi_task_preset(c.model);
    c.change(model);
    const auto right = checked(model);
    REQUIRE_FALSE(right.has_value());
    const std::string& message = right.error().message;
    CAPTURE(message);
    CHECK(right.error().kind == ErrorKind::usage);
    CHECK(std::ranges::count(message, '\n') == 0);
    for (const std::string& word : c.words) CHECK(says(message, word));
  }
  CHECK(says(find_multi_task_model("clip-5").error().message, "clip-toy"));
}

TEST_CASE("prime batches and more tasks than devices are fine") {
  MultiTaskModel model = multi_task_preset("clip-toy");
  for (TaskSpec& task : model.tasks) task.batch = 7;
  CHECK(checked(model).has_value());
}

TEST_CASE("a multi-task model is read from JSON") {
  const char* text = R"({"format": "galvatron-multi-task", "version": 1, "name": "lab", "components": [
    {"name": "vision", "kind": "patches", "layers": 2, "hidden": 48, "heads": 3, "tokens": 10, "patch": 12,
     "class_token": true, "output": 16},
    {"name": "text", "model": "gpt2-tiny", "part": "tower", "output": 16},
    {"name": "contrast", "kind": "contrastive", "hidden": 16, "inputs": ["text", "vision"]}],
    "tasks": [{"name": "pairs", "inputs": [{"component": "text", "tokens": 32}, "vision"], "loss": "contrast",
     "batch": 8, "weight": 0.5}]})";
  const auto read = [](const nlohmann::json& value) { return multi_task_from_json(value, "lab.json"); };
  const nlohmann::json value = nlohmann::json::parse(text);
  const MultiTaskModel model = value_or_throw(read(value));
  CHECK(model.components[0].layers == multi_task_preset("clip-toy").components[1].layers);
  CHECK(model.components[1].layers.size() == 6);
  CHECK_FALSE(model.components[1].layers.front().tied);
  CHECK(model.tasks[0].weight == 0.5);
  CHECK(model.tasks[0].inputs[0].tokens == 32);
  const auto refused = [&](const char* pointer, const nlohmann::json& changed) {
    nlohmann::json other = value;
    other[nlohmann::json::json_pointer(pointer)] = changed;
    const auto wrong = read(other);
    REQUIRE_FALSE(wrong.has_value());
    return wrong.error().message;
  };
  CHECK(says(refused("/format", "galvatron-plan"), "galvatron-multi-task"));
  CHECK(says(refused("/version", 2), "version"));
  CHECK(says(refused("/components/0/kind", "smell"), "smell"));
  CHECK(says(refused("/components/0/hiden", 3), "hiden"));
  CHECK(says(refused("/components/1/model", "gpt2-huge"), "gpt2-huge"));
  CHECK(says(refused("/components/2/inputs/0", "txet"), "txet"));
  CHECK(says(refused("/tasks/0/batch", 0), "batch of 0"));
  CHECK(says(refused("/tasks/0/inputs", nlohmann::json::array()), "no data"));
  CHECK(says(refused("/tasks/0/inputs/0/tokens", 1000), "1000"));
}
