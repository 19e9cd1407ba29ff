// What does a training step on a GPU take at least, and where does the planner expect the rest?
//
//   benchmark_floor [--cluster 1xh100-80g|FILE] [--fp32] [--half-moments] [--details]
//
// Counts only, no GPU. For every step: FLOPs, bytes through the device's memory, the floor (each operation's arithmetic
// at the peak or its bytes at the bandwidth, whichever is longer), what of it no fusion avoids, and the time that the
// planner's tables predict. --details has a table for each step, by kind of operation; for products also by shape.
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include <galvatron/cluster/json.hpp>
#include <galvatron/plan/cost.hpp>

#include "guarded.hpp"
#include "step_work.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::bench;

struct Arguments {
  std::string cluster = "1xh100-80g";
  bool fp32 = false;
  bool half_moments = false;
  bool details = false;
};

void options(CLI::App& app, Arguments& a) {
  app.add_option("--cluster", a.cluster, "a preset or a file of `galvatron profile` (default: 1xh100-80g)");
  app.add_flag("--fp32", a.fp32, "compute in fp32 instead of bf16");
  app.add_flag("--half-moments", a.half_moments, "keep AdamW's moments in bf16");
  app.add_flag("--details", a.details, "print a table for each step");
}

struct Row {
  std::int64_t operations = 0;
  double flops = 0;
  double bytes = 0;
  double floor = 0;
  double predicted = 0;
  void operator+=(const Row& other) {
    operations += other.operations;
    flops += other.flops;
    bytes += other.bytes;
    floor += other.floor;
    predicted += other.predicted;
  }
};

int report(const Arguments& a) {
  const Cluster cluster = value_or_throw(load_cluster(a.cluster));
  const Precision precision = a.fp32 ? Precision::fp32 : Precision::bf16;
  const Chip chip{cluster.peak_flops(precision), cluster.device.memory_bandwidth};
  std::printf("%s, %s: %.0f TFLOP/s, %.0f GB/s\n\n", cluster.name.c_str(), galvatron::name_of(precision),
              chip.flops * 1e-12, chip.bandwidth * 1e-9);
  std::printf("| step | operations | TFLOP | GB | inevitable GB | floor ms | inevitable ms | predicted ms | MFU |\n");
  std::printf("|---|---|---|---|---|---|---|---|---|\n");
  for (Step step : predicted_steps()) {
    if (a.half_moments) step.moments = Precision::bf16;
    Row all;
    Row inevitable;
    for (const op::Work& work : work_of(step, precision)) {
      op::Work once = work;
      once.times = 1;
      const Row row{work.times, op::flops_of(work).count,
                    static_cast<double>(cost::bytes_of(once, precision).count) * work.times,
                    floor_seconds(work, precision, chip), cost::time_of(work, precision, cluster, 1).value};
      all += row;
      if (is_inevitable(work.kind)) inevitable += row;
    }
    const double useful = model_flops(step.model(), step.batch, step.sequence).count;
    std::printf("| %s | %lld | %.2f | %.1f | %.1f | %.2f | %.2f | %.2f | %.1f %% |\n", step.name().c_str(),
                static_cast<long long>(all.operations), all.flops * 1e-12, all.bytes * 1e-9, inevitable.bytes * 1e-9,
                all.floor * 1e3, inevitable.floor * 1e3, all.predicted * 1e3,
                100 * useful / all.predicted / chip.flops);
  }
  if (!a.details) return 0;
  for (Step step : compared_steps()) {
    if (a.half_moments) step.moments = Precision::bf16;
    std::map<std::string, Row> rows;
    for (const op::Work& work : work_of(step, precision)) {
      op::Work once = work;
      once.times = 1;
      rows[name_of_work(work)] += {
          work.times, op::flops_of(work).count, static_cast<double>(cost::bytes_of(once, precision).count) * work.times,
          floor_seconds(work, precision, chip), cost::time_of(work, precision, cluster, 1).value};
    }
    std::vector<std::pair<std::string, Row>> sorted(rows.begin(), rows.end());
    std::sort(sorted.begin(), sorted.end(),
              [](const auto& x, const auto& y) { return x.second.predicted > y.second.predicted; });
    std::printf("\n%s\n\n| operation | times | GFLOP | MB | floor us | predicted us | above the floor us |\n",
                step.name().c_str());
    std::printf("|---|---|---|---|---|---|---|\n");
    for (const auto& [name, row] : sorted)
      std::printf("| %s | %lld | %.1f | %.0f | %.0f | %.0f | %.0f |\n", name.c_str(),
                  static_cast<long long>(row.operations), row.flops * 1e-9, row.bytes * 1e-6, row.floor * 1e6,
                  row.predicted * 1e6, (row.predicted - row.floor) * 1e6);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("benchmark_floor", "The least that training steps on a GPU take.", argc, argv, options, report);
}
