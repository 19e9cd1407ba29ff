// Training runs of the command, as the tests of processes compare and kill them.
#pragma once

#include <string>
#include <vector>

#include "mpirun.hpp"

/// A plan for gpt2-tiny of uniform stages: batch 8, 16 tokens.
struct Shape {
  int stages = 1, tensor = 1, data = 1, zero = 0, microbatches = 1;
  const char* sequence = "none";
  const char* recompute = "none";
  const char* precision = "fp32";
  const char* schedule = "1f1b";
  [[nodiscard]] int ranks() const { return stages * tensor * data; }
};

inline nlohmann::json plan_of(const Shape& shape) {
  nlohmann::json spec = small_plan(1).at("head");
  spec["tensor"] = shape.tensor;
  spec["sequence"] = shape.sequence;
  spec["data"] = shape.data;
  spec["zero"] = shape.zero;
  spec["recompute"] = shape.recompute;
  nlohmann::json plan = small_plan(1);
  plan["global_batch"] = 8;
  plan["precision"] = shape.precision;
  plan["microbatches"] = shape.microbatches;
  plan["schedule"] = shape.schedule;
  if (std::string(shape.schedule) == "interleaved") plan["virtual_stages"] = 2;
  plan["layers"] = {spec, spec, spec, spec};
  plan["embedding"] = plan["head"] = spec;
  plan["stages"] = nlohmann::json::array();
  const int ranks = shape.tensor * shape.data;
  for (int i = 0; i < shape.stages; ++i)
    plan["stages"].push_back({{"first_layer", i * 4 / shape.stages},
                              {"last_layer", (i + 1) * 4 / shape.stages - 1},
                              {"ranks", {i * ranks, ranks}}});
  return plan;
}

/// Loss and gradient norm of every step, from metrics.jsonl: the digits tell all bits.
inline std::vector<std::string> curve(const std::string& metrics) {
  std::vector<std::string> out;
  std::size_t first = 0;
  for (std::size_t end = 0; (end = metrics.find('\n', first)) != std::string::npos; first = end + 1) {
    const auto step = nlohmann::json::parse(metrics.substr(first, end - first));
    out.push_back(step.at("loss").dump() + " " + step.at("gradient_norm").dump());
  }
  return out;
}

/// Shell functions: `pid_of RANK` waits for the process of a rank that was started in this folder (not its guard);
/// `left` counts processes of ranks and guards of this folder that do not end within seconds.
inline const std::string process_functions = R"shell(
ours() {
  for p in /proc/[0-9]*; do
    [ "$(cat $p/comm 2>/dev/null)" = "$1" ] && [ "$(readlink $p/cwd)" = "$PWD" ] && echo ${p#/proc/}
  done
}
pid_of() {
  for attempt in $(seq 300); do
    for p in $(ours galvatron); do
      tr '\0' '\n' < /proc/$p/environ 2>/dev/null | grep -qx "OMPI_COMM_WORLD_RANK=$1" && { echo $p; return; }
    done
    sleep 0.1
  done
}
left() {
  for attempt in $(seq 50); do
    sleep 0.1; n=$({ ours galvatron; ours galvatron-guard; } | wc -l); [ $n = 0 ] && break
  done
  echo $n
}
wait_for() { for attempt in $(seq 300); do [ -s "$1" ] && return; sleep 0.1; done; }
)shell";
