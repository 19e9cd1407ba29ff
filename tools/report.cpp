#include "report.hpp"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>
#include <utility>

#include <galvatron/core/json.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/plan/json.hpp>

namespace galvatron::tools {

namespace {

// Calls `tick` five times a second until it goes away.
class Ticker {
 public:
  explicit Ticker(std::function<void()> tick)
      : thread_([this, tick = std::move(tick)] {
          std::unique_lock lock(mutex_);
          while (!done_.wait_for(lock, std::chrono::milliseconds(200), [this] { return stop_; })) tick();
        }) {}
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;
  ~Ticker() {
    {
      const std::scoped_lock lock(mutex_);
      stop_ = true;
    }
    done_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  bool stop_ = false;
  std::thread thread_;
};

std::string percent(double share) {
  char out[32];
  std::snprintf(out, sizeof out, "%.1f %%", share * 100);
  return out;
}

}  // namespace

nlohmann::ordered_json plan_report(const Plan& plan, const PlanCost& cost, std::optional<Seconds> search_seconds) {
  nlohmann::ordered_json out;
  out["feasible"] = true;
  out["iteration_seconds"] = cost.iteration.value;
  out["samples_per_second"] = cost.samples_per_second;
  out["tokens_per_second"] = cost.tokens_per_second;
  out["mfu"] = cost.mfu;
  if (search_seconds) out["search_seconds"] = search_seconds->value;
  out["microbatches"] = plan.microbatches;
  out["schedule"] = name_of(plan.schedule);
  out["stages"] = nlohmann::ordered_json::array();
  for (const PlanStageCost& stage : cost.stages)
    out["stages"].push_back({{"first_layer", stage.stage.first_layer},
                             {"last_layer", stage.stage.last_layer},
                             {"devices", stage.stage.rank_count},
                             {"peak_bytes", stage.peak().count},
                             {"forward_seconds", stage.seconds.forward.value},
                             {"backward_seconds", stage.seconds.backward.value}});
  out["plan"] = to_json(plan);
  return out;
}

std::string plan_summary(const Plan& plan, const PlanCost& cost) {
  const auto count = [](std::int64_t n, const std::string& one, const std::string& many) {
    return std::to_string(n) + " " + (n == 1 ? one : many);
  };
  std::string out = plan.model + " on " + plan.cluster + ": " + count(plan.ranks(), "rank", "ranks") + ", batch of " +
                    std::to_string(plan.global_batch) + " x " + std::to_string(plan.sequence_length) + " tokens, " +
                    name_of(plan.precision) + "\n";
  out += "  strategy     " + plan_words(plan) + "\n";
  out += "  iteration    " + format_seconds(cost.iteration) + ", " + format_count(cost.samples_per_second) +
         " samples/s, " + format_count(cost.tokens_per_second) + " tokens/s";
  if (cost.mfu > 0) out += ", " + percent(cost.mfu) + " of peak";
  out += "\n";
  for (std::size_t i = 0; i < cost.stages.size(); ++i) {
    const PlanStageCost& stage = cost.stages[i];
    std::string name = "  stage " + std::to_string(i);
    name.resize(std::max<std::size_t>(name.size() + 1, 15), ' ');
    const auto [first, last] = std::pair(stage.stage.first_layer, stage.stage.last_layer);
    out += name + (first == last ? "layer " : "layers ") + std::to_string(first) +
           (first == last ? "" : "-" + std::to_string(last)) + ", " + count(stage.stage.rank_count, "rank", "ranks") +
           ", peak " + format_bytes(stage.peak()) + " each, forward " + format_seconds(stage.seconds.forward) +
           ", backward " + format_seconds(stage.seconds.backward) + "\n";
  }
  return out;
}

FoundPlan searched_plan(const ModelSpec& model, const Cluster& cluster, const std::string& cluster_name,
                        const search::SearchOptions& options, const Common& common) {
  Result<FoundPlan> found = [&] {
    ErrorProgress progress("plan", common);
    const Ticker ticker([&progress] { progress.update(-1, "searching"); });
    return find_plan(model, cluster, options);
  }();
  if (!found) throw_error(found.error());
  if (!found->feasible) throw Infeasible(found->reason, found->smallest_memory);
  found->plan.cluster = cluster_name;
  return std::move(*found);
}

std::vector<ScheduleKind> schedules_named(const std::string& text) {
  std::vector<ScheduleKind> out;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string name = text.substr(at, end - at);
    const auto kind = schedule_named(name);
    if (!kind || !is_planned(*kind))
      throw Failure(ErrorKind::usage,
                    "--schedule: \"" + galvatron::detail::one_line(name, 40) +
                        "\" is not a schedule that is planned; choose gpipe, 1f1b or both as gpipe,1f1b");
    out.push_back(*kind);
    at = end + 1;
  }
  return out;
}

}  // namespace galvatron::tools
