// galvatron moe: answers cases of mixtures of experts with the operations that train.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/comm/thread/world.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/device/host/host.hpp>
#include <galvatron/model/layers.hpp>
#include <galvatron/runtime/experts.hpp>
#include <galvatron/train/compiled.hpp>

#include "cases.hpp"
#include "commands.hpp"
#include "moe_cases.hpp"
#include "options.hpp"
#include "output.hpp"

namespace galvatron::tools {

Choices choices_of(device::Host& host, const device::kernels::Router& router, View<const float> logits,
                   View<const float> bias, std::int64_t capacity, DropOrder drops) {
  const std::int64_t rows = logits.count / router.experts;
  const std::int64_t choices = rows * router.active;
  Choices out{zeros<float>(choices), zeros<std::int32_t>(choices), zeros<std::int32_t>(choices),
              zeros<std::int32_t>(choices), zeros<std::int32_t>(router.experts + 1)};
  host.route(router, rows, logits, bias, view_of(out.weights), view_of(out.chosen));
  host.order_choices(
      device::ChoiceOrder{.experts = router.experts, .active = router.active, .capacity = capacity, .drops = drops},
      rows, const_view_of(out.chosen), const_view_of(out.weights), view_of(out.order), view_of(out.places),
      view_of(out.offsets));
  return out;
}

std::int64_t active_experts(const Case& one, std::int64_t experts) {
  const auto k = one.required<std::int64_t>("top_k", 1);
  if (k > experts)
    one.refuse_key("top_k", text_of(k, " experts cannot be chosen of ", experts, "; choose at most as many"));
  return k;
}

namespace {

using nlohmann::ordered_json;

constexpr std::int64_t most_experts = 1 << 20;

// ---- routing: a layer's experts alone

/// x (T, H) -> (T, H).
forward::Graph experts_alone(const LayerSpec& layer) {
  forward::Builder b(layer);
  b.output(experts(b, layer, b.input(forward::Builder::whole(layer.hidden))));
  return b.graph();
}

/// Values of a layer's parameters by name, whole.
using Values = std::map<ParameterName, std::vector<float>>;

struct LayerPass {
  std::vector<float> y;   ///< (T, H)
  std::vector<float> dx;  ///< (T, H)
  Values gradients;
};

/// A forward and a backward pass of a layer of one rank, in fp32. @param x, dy  (T, H)
LayerPass pass_of(const LayerSpec& layer, const Values& parameters, View<const float> x, View<const float> dy) {
  LayerPass out;
  const std::int64_t tokens = x.count / layer.hidden;
  const StrategySpec spec;
  const cost::LayerCounts counts = cost::layer_counts(
      layer, spec, cost::Batch{.microbatch = 1, .sequence = tokens, .precision = Precision::fp32, .stages = 1});
  comm::thread::run(1, [&](comm::thread::World& world) {
    const Bytes workspace = max(counts.forward_workspace, counts.backward_workspace);
    const Bytes boundary = 2 * counts.activation;
    const device::Mapping mapping({(counts.states + counts.stash + boundary + workspace).count}, false);
    std::int64_t end = 0;
    const auto region = [&](const char* name, Bytes bytes) {
      return mapping.region(name, std::exchange(end, end + bytes.count), bytes);
    };
    device::Region states = region("states", counts.states);
    device::Region stash = region("stash", counts.stash);
    device::Region borders = region("boundary", boundary);
    device::Region transient = region("workspace", workspace);
    CaseDevice device;
    const auto context = runtime::make_context(device.host, transient, world, 0, spec, 1, tokens);
    const auto made = value_or_throw(runtime::make_layer<InstantiatedStrategies, float>(
        context, layer, runtime::LayerArguments<float>{.number = 1, .loss = {}}, states));
    made->take_stash(stash, 1, 0);
    made->for_each_store([&](runtime::Store& store) {
      store.initialise([&](int, const ParameterTensor& tensor, std::int64_t index, View<float> to) {
        std::copy_n(parameters.at(tensor.name).begin() + index, to.count, to.begin());
      });
      store.zero_gradients();
    });
    std::copy(x.begin(), x.end(), made->input(0).begin());
    const View<float> y = borders.take<float>(x.count);
    const View<float> d = borders.take<float>(x.count);
    made->forward(0, y);
    std::copy(dy.begin(), dy.end(), d.begin());
    made->backward(0, -1, d);
    out.y.assign(y.begin(), y.end());
    out.dx.assign(d.begin(), d.end());
    made->for_each_store([&](runtime::Store& store) {
      store.synchronise();
      const runtime::StoreView view = store.view();
      for (const ParameterTensor& tensor : *view.layout) {
        const float* from = view.gradients.data + tensor.offset;
        out.gradients[tensor.name].assign(from, from + tensor.count());
      }
    });
  });
  return out;
}

RouterSpec router_of(const Case& one, std::int64_t experts) {
  const Case config = one.object("config");
  const auto routing = one.required<std::string>("routing");
  if (routing != "softmax_topk" && routing != "softmax_group" && routing != "sigmoid_bias")
    one.refuse_key("routing", text_of("unknown value \"", detail::one_line(routing, 40),
                                      "\"; known are softmax_topk, softmax_group and sigmoid_bias"));
  RouterSpec out{.kind = routing == "sigmoid_bias" ? RouterKind::sigmoid : RouterKind::softmax,
                 .renormalise = config.required<bool>("norm"),
                 .scale = config.required<double>("scale", -1e30, 1e30)};
  if (routing == "softmax_topk") return out;
  out.groups = config.optional<std::int64_t>("n_group", 1, 1, 64);
  out.top_groups = config.optional<std::int64_t>("topk_group", out.groups, 1, out.groups);
  if (experts % out.groups != 0)
    config.refuse_key("n_group", text_of(experts, " experts cannot be put into ", out.groups, " equal groups"));
  return out;
}

ordered_json answer_routing(const Case& one) {
  const Array x = one.array("x", {-1, -1});
  const std::int64_t n = x.extent(0);
  const std::int64_t h = x.extent(1);
  const Array gate = one.array("gate", {-1, h});
  const std::int64_t experts = gate.extent(0);
  const Array down = one.array("down", {experts, h, -1});
  const std::int64_t f = down.extent(2);
  const Array gate_up = one.array("gate_up", {experts, 2 * f, h});
  const Array grad_y = one.array("grad_y", {n, h});

  LayerSpec layer{.hidden = h,
                  .heads = 1,
                  .kv_heads = 1,
                  .head_dim = h,
                  .ffn = f,
                  .positions = n,
                  .activation = ActivationKind::swiglu,
                  .bias = false,
                  .experts = experts,
                  .forward_pass = experts_alone};
  layer.router = router_of(one, experts);
  layer.active_experts = active_experts(one.object("config"), experts / layer.router.groups * layer.router.top_groups);
  struct Weight {
    ParameterName name;
    std::string key;
    Array array;
  };
  std::vector<Weight> weights{{ParameterName::router, "gate", gate},
                              {ParameterName::mlp_in_weight, "gate_up", gate_up},
                              {ParameterName::mlp_out_weight, "down", down}};
  if (one.has("shared_gate_up") || one.has("shared_down")) {
    const Array shared_down = one.array("shared_down", {h, -1});
    layer.shared_ffn = shared_down.extent(1);
    layer.shared_gate = one.has("shared_gate");
    weights.push_back(
        {ParameterName::shared_in_weight, "shared_gate_up", one.array("shared_gate_up", {2 * layer.shared_ffn, h})});
    weights.push_back({ParameterName::shared_out_weight, "shared_down", shared_down});
    if (layer.shared_gate)
      weights.push_back({ParameterName::shared_gate_weight, "shared_gate", one.array("shared_gate", {1, h})});
  }
  Values parameters;
  for (const Weight& weight : weights) parameters[weight.name] = weight.array.values;
  Array bias;
  if (layer.router.kind == RouterKind::sigmoid) {
    bias = one.array("bias", {experts});
    parameters[ParameterName::router_bias] = bias.values;
  }

  const LayerPass pass = pass_of(layer, parameters, x.view(), grad_y.view());
  const std::int64_t k = layer.active_experts;
  CaseDevice device;
  std::vector<float> logits = zeros<float>(n * experts);
  device.host.gemm(op::Kind::gemm_nt, n, experts, h, x.view(), gate.view(), view_of(logits));
  const Choices routed = choices_of(device.host, device::kernels::router_of(layer), const_view_of(logits), bias.view());
  std::vector<std::int32_t> loads;
  for (std::int64_t e = 0; e < experts; ++e) {
    const auto at = static_cast<std::size_t>(e);
    loads.push_back(routed.offsets[at + 1] - routed.offsets[at]);
  }
  std::vector<std::int32_t> permutation;
  for (const std::int32_t choice : routed.order) permutation.push_back(choice / static_cast<std::int32_t>(k));

  ordered_json out;
  out["router_logits"] = one.reals("router_logits", {n, experts}, view_of(logits));
  out["indices"] = nested({n, k}, view_of(routed.chosen));
  out["weights"] = one.reals("weights", {n, k}, view_of(routed.weights));
  out["y"] = one.reals("y", {n, h}, view_of(pass.y));
  out["tokens_per_expert"] = nested({experts}, view_of(loads));
  out["permutation"] = nested({n * k}, view_of(permutation));
  out["grad_x"] = one.reals("grad_x", {n, h}, view_of(pass.dx));
  for (const auto& [name, key, array] : weights)
    out["grad_" + key] = one.reals("grad_" + key, array.shape, view_of(pass.gradients.at(name)));
  return out;
}

// ---- balance

/// E sum_e f_e P_e of the rows, with f_e = choices of e / `choices_weigh`, and the mean of logsumexp(logits)^2.
struct Losses {
  double balance = 0;
  double z = 0;
};
Losses losses_of(device::Host& host, const device::kernels::Router& router, View<const float> logits,
                 std::int64_t choices_weigh) {
  const std::int64_t rows = logits.count / router.experts;
  const Choices routed = choices_of(host, router, logits, {});
  std::vector<float> counts = zeros<float>(router.experts);
  host.count_choices(router, rows, 1, logits, view_of(routed.chosen), view_of(counts));
  const auto of_rows = static_cast<double>(rows);
  const device::RouterLoss weights{
      static_cast<float>(static_cast<double>(router.experts) / (static_cast<double>(choices_weigh) * of_rows)),
      static_cast<float>(1 / of_rows)};
  Losses out;
  host.router_losses(router, rows, 1, logits, const_view_of(counts), weights, View<double>(&out.balance, 1),
                     View<double>(&out.z, 1));
  return out;
}

ordered_json answer_balance(const Case& one) {
  const auto experts = one.required<std::int64_t>("experts", 1, most_experts);
  const std::int64_t k = active_experts(one, experts);
  const Array logits = one.array("logits", {-1, -1, experts});
  const std::int64_t layers = logits.extent(0);
  const std::int64_t n = logits.extent(1);
  std::vector<float> counted(static_cast<std::size_t>(n), 1);
  if (one.has("mask")) counted = one.array("mask", {n}).values;
  for (const float mask : counted)
    if (mask != 0 && mask != 1) one.refuse_key("mask", "expected 0 or 1 for each token");
  const auto rows = static_cast<std::int64_t>(std::ranges::count(counted, 1.0F));
  if (rows == 0) one.refuse_key("mask", "it leaves no token");

  CaseDevice device;
  device::Host& host = device.host;
  device::kernels::Router softmax{.experts = experts, .active = k, .renormalise = false};
  // Tokens of padding are not there.
  std::vector<float> all;
  for (std::int64_t row = 0; row < layers * n; ++row)
    if (counted[static_cast<std::size_t>(row % n)] == 1)
      all.insert(all.end(), logits.values.begin() + row * experts, logits.values.begin() + (row + 1) * experts);

  ordered_json out;
  out["hf_aux_loss_all_layers"] =
      one.real("hf_aux_loss_all_layers", losses_of(host, softmax, const_view_of(all), layers * rows).balance);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const Losses own =
        losses_of(host, softmax, const_view_of(all).slice(layer * rows * experts, rows * experts), k * rows);
    out["per_layer_aux_loss"].push_back(one.real("per_layer_aux_loss", own.balance));
    out["z_loss_per_layer"].push_back(one.real("z_loss_per_layer", own.z));
  }

  const View<const float> first = logits.view().slice(0, n * experts);
  device::kernels::Router sigmoid = softmax;
  sigmoid.kind = RouterKind::sigmoid;
  std::vector<float> loads = zeros<float>(experts);
  const Choices by_sigmoid = choices_of(host, sigmoid, first, {});
  host.add_loads(n * k, const_view_of(by_sigmoid.chosen), view_of(loads));
  std::vector<float> master = one.array("bias", {experts}).values;
  std::vector<float> working = master;
  host.balance_bias(experts, static_cast<float>(n * k) / static_cast<float>(experts),
                    one.required<float>("bias_update_speed", 0), const_view_of(loads), view_of(master),
                    view_of(working));

  LayerSpec layer{.experts = experts, .active_experts = k};
  layer.router.capacity = one.required<double>("capacity_factor", 1e-9, 1e9);
  const std::int64_t capacity = runtime::expert_capacity(layer, n);
  ordered_json& layer0 = out["layer0_no_mask"];
  layer0["sequence_balance_loss"] = one.real("sequence_balance_loss", losses_of(host, sigmoid, first, k * n).balance);
  layer0["sigmoid_load"] = one.reals("sigmoid_load", {experts}, view_of(loads));
  layer0["bias_after_update"] = one.reals("bias_after_update", {experts}, view_of(working));
  layer0["capacity"] = capacity;
  for (const auto& [drops, name] : {std::pair(DropOrder::position, "position"), {DropOrder::weight, "probability"}}) {
    Choices kept = choices_of(host, softmax, first, {}, capacity, drops);
    for (std::int32_t& place : kept.places) place = place < 0 ? 0 : 1;
    layer0[text_of("kept_by_", name)] = nested({n, k}, view_of(kept.places));
    layer0[text_of("dropped_by_", name)] = std::ranges::count(kept.places, 0);
  }
  return out;
}

ordered_json answer(const Case& one) {
  if (one.has("routing")) return answer_routing(one);
  if (one.has("logits")) return answer_balance(one);
  if (one.has("vertices_half")) return answer_lsh_statistics(one);
  if (one.has("rotations")) return one.has("gate") ? answer_lsh_ranks(one) : answer_lsh_layer(one);
  one.refuse_case(
      "it is no case of mixtures of experts: none of \"routing\", \"logits\", \"rotations\" and \"vertices_half\" is "
      "there");
}

void run_moe_case(const Arguments& arguments, Common& common) {
  Options options(
      "moe case",
      "Answers the cases of a file with the operations that train, in fp32 on this machine's cores: routers "
      "and layers of experts with their gradients; losses, biases and drops that balance experts; LSH-MoE's "
      "compressed dispatch of one rank and of several, and its statistics over random tokens. A file is a "
      "JSON list of cases; the answer is a list in the same order.");
  std::string path;
  options.require(options.text("file", path, "FILE", "the cases"));
  options.flag("--json", common.json, "accepted as everywhere; the answer is JSON anyway");
  options.examples("Example:\n  galvatron moe case moe_layer_cases.json --json");
  if (!options.parse(arguments, common)) return;
  print_json(answers_of(path, answer));
}

}  // namespace

void run_moe(const Arguments& arguments, Common& common) {
  run_verb("moe", "Mixtures of experts, checked by cases.",
           {{"case", "answer the cases of a file with the operations that train", run_moe_case}}, arguments, common);
}

}  // namespace galvatron::tools
