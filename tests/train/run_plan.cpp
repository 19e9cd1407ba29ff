// Runs of rank threads, and the comparison of runs.
#include "run_plan.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <sstream>
#include <string>

#include <galvatron/comm/thread/world.hpp>
#include <galvatron/model/parameter.hpp>

#include "../runtime/whole_tensors.hpp"
#include "run_rank.hpp"
#include "toy_mixed.hpp"

namespace toy {

namespace {

/// The first element whose bits differ, in words.
template <class T>
std::string first_difference(const std::string& what, const std::vector<T>& a, const std::vector<T>& b) {
  using Word = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  if (a.size() != b.size())
    return what + " has " + std::to_string(a.size()) + " and " + std::to_string(b.size()) + " elements";
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<Word>(a[i]) == std::bit_cast<Word>(b[i])) continue;
    std::ostringstream out;
    out.precision(17);
    out << what << "[" << i << "] is " << a[i] << " and " << b[i];
    return out.str();
  }
  return {};
}
template <class Tensors>
std::string first_difference_of(const std::string& what, const Tensors& a, const Tensors& b) {
  for (const auto& [key, values] : a) {
    const std::string name =
        what + " of " + std::string(name_of(key.second)) + " in layer " + std::to_string(key.first);
    const auto found = b.find(key);
    if (found == b.end()) return name + " is in the first run only";
    if (const std::string text = first_difference(name, values, found->second); !text.empty()) return text;
  }
  for (const auto& [key, values] : b)
    if (!a.contains(key))
      return what + " of " + std::string(name_of(key.second)) + " in layer " + std::to_string(key.first) +
             " is in the second run only";
  return {};
}

}  // namespace

Outcome run(const Plan& plan, const ModelSpec& model, const RunOptions& options) {
  Outcome out;
  std::mutex mutex;
  const auto toy_source = source_of(model, plan.sequence_length);
  RunOptions complete = options;
  if (complete.source == nullptr) complete.source = toy_source.get();
  comm::thread::Options threads;
  threads.timeout = std::chrono::seconds(60);
  comm::thread::run(
      plan.ranks(),
      [&](comm::thread::World& world) { run_rank_in_precision(world, plan, model, complete, out, mutex); }, threads);
  return out;
}

void run_on(comm::World& world, const Plan& plan, const ModelSpec& model, const RunOptions& options, Outcome& out) {
  std::mutex mutex;
  const auto toy_source = source_of(model, plan.sequence_length);
  RunOptions complete = options;
  if (complete.source == nullptr) complete.source = toy_source.get();
  run_rank_in_precision(world, plan, model, complete, out, mutex);
}

std::string differences(const Outcome& a, const Outcome& b) {
  for (const std::string& text :
       {first_difference("loss", a.losses, b.losses), first_difference("gradient norm", a.norms, b.norms),
        first_difference_of("gradient", a.gradients, b.gradients),
        first_difference_of("last gradient", a.last_gradients, b.last_gradients),
        first_difference_of("parameter", a.parameters, b.parameters)})
    if (!text.empty()) return text;
  return {};
}

double difference(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const double away = a[i] == b[i] ? 0 : std::abs(a[i] - b[i]) / std::abs(b[i]);
    worst = std::isnan(away) ? INFINITY : std::max(worst, away);  // max(x, NaN) is x
  }
  return worst;
}

double difference(const Gradients& a, const Gradients& b) {
  double worst = a.size() == b.size() ? 0 : INFINITY;
  for (const auto& [key, reference] : b) {
    const auto found = a.find(key);
    if (found == a.end()) return INFINITY;
    worst = std::max(worst, galvatron::test::relative_difference(found->second, reference));
  }
  return worst;
}

}  // namespace toy
