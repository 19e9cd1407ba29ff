// Graphs, devices and programs as the case files of HAP have them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/error.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/hap/check.hpp>
#include <galvatron/hap/graph.hpp>
#include <galvatron/hap/prices.hpp>
#include <galvatron/hap/program.hpp>
#include <galvatron/hap/rules.hpp>

namespace galvatron::hap {

namespace detail {

/// Reads a `graph`; whatever is wrong throws Failure (usage).
class GraphReader {
 public:
  GraphReader(const nlohmann::json& value, std::string where) : value_(value), where_(std::move(where)) {}

  Graph read() {
    require(value_.is_object(), "expected an object with tensors, ops and a loss");
    for (const char* key : {"tensors", "ops", "loss"})
      require(value_.contains(key), text_of("the key \"", key, "\" is missing"));
    read_tensors(value_.at("tensors"));
    const nlohmann::json& ops = value_.at("ops");
    require(ops.is_array() && !ops.empty(), "\"ops\": expected a list of operations that is not empty");
    for (std::size_t i = 0; i < ops.size(); ++i) read_node(ops[i], text_of("ops[", i, "]"));
    out_.loss = tensor(value_.at("loss"), "\"loss\"");
    if (const std::string wrong = problem_of(out_); !wrong.empty()) fail(wrong);
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(const std::string& why) const { refuse(where_, ": ", why); }
  void require(bool holds, const std::string& otherwise) const {
    if (!holds) fail(otherwise);
  }
  static std::string text(const nlohmann::json& value) { return JsonObject::describe(value); }

  void read_tensors(const nlohmann::json& tensors) {
    require(tensors.is_object() && !tensors.empty(), "\"tensors\": expected an object of shapes that is not empty");
    for (const auto& item : tensors.items()) {
      const std::string name = text_of("tensor \"", galvatron::detail::one_line(item.key(), 40), "\"");
      require(item.value().is_array(), text_of(name, ": expected a shape, found ", text(item.value())));
      std::vector<std::int64_t> shape;
      for (const nlohmann::json& extent : item.value()) {
        const bool fits = extent.is_number_integer() &&
                          (!extent.is_number_unsigned() || extent.get<std::uint64_t>() < (std::uint64_t{1} << 62)) &&
                          extent.get<std::int64_t>() >= 1;
        require(fits, text_of(name, ": expected extents of at least 1, found ", text(extent)));
        shape.push_back(extent.get<std::int64_t>());
      }
      ids_[item.key()] = out_.add(item.key(), std::move(shape));
    }
  }
  int tensor(const nlohmann::json& name, const std::string& place) const {
    require(name.is_string(), text_of(place, ": expected the name of a tensor, found ", text(name)));
    const auto at = ids_.find(name.get<std::string>());
    if (at == ids_.end()) fail(text_of(place, ": ", text(name), " is none of the tensors"));
    return at->second;
  }
  void read_node(const nlohmann::json& op, const std::string& place) {
    require(op.is_object() && op.contains("op") && op.contains("out") && op["op"].is_string(),
            text_of(place, ": expected an object with \"op\", \"out\" and \"in\""));
    const auto name = op["op"].get<std::string>();
    const auto operation = operation_named(name);
    if (!operation)
      fail(text_of(place, ": \"", galvatron::detail::one_line(name, 40), "\" is no operation; known are ",
                   joined(operation_rows, ", ", [](const OperationRow& row) { return std::string(row.name); })));
    Node node;
    node.operation = *operation;
    node.output = tensor(op["out"], place + ": \"out\"");
    if (op.contains("in")) {
      require(op["in"].is_array(), text_of(place, ": \"in\": expected a list of tensors, found ", text(op["in"])));
      for (const nlohmann::json& input : op["in"]) node.inputs.push_back(tensor(input, place + ": \"in\""));
    }
    out_.nodes.push_back(std::move(node));
  }

  const nlohmann::json& value_;
  std::string where_;
  Graph out_;
  std::map<std::string, int> ids_;
};

}  // namespace detail

/// A `graph`: tensors (name -> shape), ops and the loss. Throws Failure (usage) for one that is none.
/// @param where  opens the messages
inline Graph graph_from_json(const nlohmann::json& value, const std::string& where) {
  return detail::GraphReader(value, where).read();
}

/// Rates of devices: a list of numbers above 0.
inline Result<std::vector<double>> flops_from_json(JsonObject& fields) {
  auto out = fields.numbers<double>("flops", 1e-3, 1e30);
  if (out.empty()) fields.fail(fields.name("flops") + ": expected the flops per second of at least one device");
  if (auto done = fields.finish_allowing_unknown_keys(); !done) return tl::unexpected(done.error());
  return out;
}

/// A `cluster`: flops, bandwidth and, if it is there, latency, by the names of collectives.
/// Errors (usage): a key that is missing, or a number that is none or out of range.
inline Result<Devices> devices_from_json(const nlohmann::json& value, const std::string& where) {
  JsonObject fields(value, where);
  Devices out;
  auto flops = flops_from_json(fields);
  if (!flops) return tl::unexpected(flops.error());
  out.flops = std::move(*flops);
  JsonObject bandwidth = fields.required_object("bandwidth");
  if (auto done = fields.finish_allowing_unknown_keys(); !done) return tl::unexpected(done.error());
  for (std::size_t i = 0; i < priced_collectives; ++i)
    out.bandwidth[i] = bandwidth.required<double>(collective_names[i], 1e-3, 1e30);
  if (auto done = bandwidth.finish_allowing_unknown_keys(); !done) return tl::unexpected(done.error());
  if (value.contains("latency") && !value["latency"].is_null()) {
    JsonObject latency(value["latency"], fields.name("latency"));
    for (std::size_t i = 0; i < priced_collectives; ++i)
      out.latency[i] = latency.optional<double>(collective_names[i], 0.0, 0.0, 1e6);
    if (auto done = latency.finish_allowing_unknown_keys(); !done) return tl::unexpected(done.error());
  }
  return out;
}

/// `["load", "w0", "G0"]`, `["comm", "y1", "all_gather(0)"]`, `["op", "y0", "G2"]`, in executable order.
inline nlohmann::ordered_json program_json(const Graph& graph, const Program& program) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const Step& step : program) {
    const std::string& name = graph.tensor(step.tensor).name;
    switch (step.kind) {
      case Step::Kind::load:
        out.push_back({"load", name, name_of(step.layout)});
        break;
      case Step::Kind::communicate:
        out.push_back({"comm", name, text_of_move(step.from, step.layout)});
        break;
      case Step::Kind::compute:
        out.push_back({"op", name, name_of(step.layout)});
        break;
    }
  }
  return out;
}

}  // namespace galvatron::hap
