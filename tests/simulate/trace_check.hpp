// What every trace must be: parsed JSON, slices of a thread in order and properly nested.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

/// Checks a trace and gives the end of its last slice in microseconds.
inline double check_trace(const nlohmann::json& trace) {
  REQUIRE(trace.at("traceEvents").is_array());
  constexpr double nanosecond = 1e-3;
  double end = 0;
  std::set<int> named;
  std::map<std::pair<int, int>, std::vector<double>> open;  // ends of the slices that are open on a thread
  std::map<std::pair<int, int>, double> begun;
  std::map<int, double> counted;
  for (const auto& event : trace.at("traceEvents")) {
    const int process = event.at("pid");
    const std::string phase = event.at("ph");
    if (phase == "M") {
      if (event.at("name") == "process_name") REQUIRE(named.insert(process).second);
      continue;
    }
    REQUIRE(named.contains(process));
    const double at = event.at("ts");
    REQUIRE(at >= 0);
    if (phase == "C") {
      REQUIRE(at >= counted[process]);
      counted[process] = at;
      for (const auto& [name, bytes] : event.at("args").items()) REQUIRE(bytes.get<double>() >= 0);
      continue;
    }
    REQUIRE(phase == "X");
    REQUIRE(!event.at("name").get<std::string>().empty());
    const std::pair<int, int> thread(process, event.at("tid").get<int>());
    REQUIRE(at >= begun[thread]);
    begun[thread] = at;
    const double until = at + event.at("dur").get<double>();
    REQUIRE(until > at);
    auto& stack = open[thread];
    while (!stack.empty() && stack.back() <= at + nanosecond / 2) stack.pop_back();
    if (!stack.empty()) REQUIRE(until <= stack.back() + nanosecond / 2);
    stack.push_back(until);
    end = std::max(end, until);
  }
  return end;
}
