// The search over Hetu-Galvatron's space against brute force, on random small profiles.
#include <galvatron/compat/hetu/search.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace galvatron::cost::hetu {

namespace hetu = galvatron::search::hetu;

namespace {

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  int integer(int least, int most) { return std::uniform_int_distribution<int>(least, most)(engine_); }
  double number(double least, double most) { return std::uniform_real_distribution<double>(least, most)(engine_); }
  double scaled(double least, double most) { return std::exp(number(std::log(least), std::log(most))); }
  bool coin() { return integer(0, 1) == 1; }

 private:
  std::mt19937 engine_;
};

Model random_model(Random& random) {
  Job job;
  job.devices = random.coin() ? 4 : 8;
  job.layers = random.integer(1, job.devices == 4 ? 4 : 3);
  if (job.devices == 8 && random.coin()) job.layers = 4;
  job.global_batch = std::vector<int>{4, 6, 8, 16}[static_cast<std::size_t>(random.integer(0, 3))];
  job.hidden = 1024;
  job.sequence = 512;
  job.memory_gigabytes = random.number(1, 8);
  job.precision = random.coin() ? Precision::bf16 : Precision::fp32;
  job.data =
      std::vector{DataKind::ddp, DataKind::zero2, DataKind::zero3}[static_cast<std::size_t>(random.integer(0, 2))];
  job.overlapped_reduce = random.coin();
  job.sequence_parallel = random.coin();
  job.gpipe = random.integer(0, 4) == 0;
  Hardware hardware;
  const double network = random.scaled(0.3, 300);  // from far too slow to what one node has
  for (int g = 2; g <= 8; g *= 2) {
    for (const bool flag : {false, true}) hardware.bandwidth[{g, flag}] = network * random.number(0.5, 2);
    hardware.between_stages[g] = network * random.number(0.5, 2);
    std::map<double, double> reduce;
    std::map<double, double> exchange;
    for (double mb = 1; mb <= 64; mb *= 2) {
      reduce[mb] = 0.05 + mb / network * random.number(1, 2);
      exchange[mb] = 0.05 + mb / network * random.number(0.5, 1);
    }
    hardware.all_reduce[g] = message_times(reduce);
    hardware.all_to_all[g] = message_times(exchange);
  }
  hardware.overlap = random.number(1, 1.3);
  ModelProfile profile;
  profile.layer = {random.scaled(0.5, 20), random.number(0, 2)};
  profile.ends = {random.scaled(0.5, 20), random.number(0, 5)};
  profile.parameters = random.scaled(20, 800);
  double states = random.scaled(50, 4000);
  double activation = random.scaled(20, 800);
  for (int q = 1; q <= 8; q *= 2) {
    profile.activation[q] = activation / q * random.number(1, 1.2);
    for (EndProfile* end : {&profile.whole, &profile.first, &profile.last}) {
      end->states[q] = states / q * random.number(0.5, 1.2);
      end->activation[q] = activation / q * random.number(0.2, 1.2);
    }
  }
  profile.checkpoint = activation * random.number(0.02, 0.3);
  return {job, hardware, profile};
}

struct Truth {
  double time = std::numeric_limits<double>::infinity();
  double coarse_time = std::numeric_limits<double>::infinity();
  double megabytes = std::numeric_limits<double>::infinity();  // that the smallest plan needs
};

// Layers of one stage: how many of each strategy does not matter, only these sums.
struct Choice {
  double no_sync = 0;
  double sync = 0;
  double megabytes = 0;
  int tensor = 1;
};

std::vector<Choice> choices_of(const std::vector<std::pair<LayerStrategy, Cost>>& strategies, int layers,
                               double in_flight) {
  std::vector<Choice> out;
  const auto add = [&](auto&& self, Choice sum, int left, std::size_t from) -> void {
    if (left == 0) {
      out.push_back(sum);
      return;
    }
    for (std::size_t s = from; s < strategies.size(); ++s) {
      const auto& [strategy, cost] = strategies[s];
      self(self,
           {sum.no_sync + cost.no_sync, sum.sync + cost.sync, sum.megabytes + std::ceil(cost.memory(in_flight)),
            std::max(sum.tensor, strategy.tensor)},
           left - 1, s);
    }
  };
  add(add, {}, layers, 0);
  return out;
}

Truth brute_force(const Model& model, int most_tensor) {
  const Job& job = model.job();
  const double usable = Model::usable_megabytes(job.memory_gigabytes);
  Truth truth;
  for (int m = 1; m <= job.global_batch; ++m) {
    if (job.global_batch % m != 0) continue;
    for (int p = 1; p <= std::min({m, job.layers, job.devices}); p *= 2) {
      const int stage = job.devices / p;
      std::vector<std::pair<LayerStrategy, Cost>> strategies;
      std::vector<EndStrategy> ends;
      for (int q = 1; q <= std::min(stage, most_tensor); q *= 2)
        for (const bool split : {false, true})
          for (const bool zero3 : {false, true}) {
            if ((q == 1 && split) || job.global_batch / m / (stage / q) < 1) continue;
            ends.push_back({q, split, zero3});
            for (const bool recompute : {false, true}) {
              const LayerStrategy s{split ? 1 : q, split ? q : 1, zero3, recompute};
              strategies.emplace_back(s, model.layer(s, p, m));
            }
          }
      const std::vector<int> division = even_division(job.layers, p);
      std::vector<std::vector<Choice>> choices;
      for (int i = 0; i < p; ++i)
        choices.push_back(choices_of(strategies, division[static_cast<std::size_t>(i)], model.in_flight(i, p, m)));
      for (const EndStrategy& end : ends) {
        const Cost first = model.end(end, p == 1 ? End::whole : End::first, p, m);
        const Cost last = p == 1 ? Cost{} : model.end(end, End::last, p, m);
        std::vector<StageTime> times(static_cast<std::size_t>(p));
        const auto try_stage = [&](auto&& self, int i, double layers, int tensor) -> void {
          if (i == p) {
            const double need = layers + model.sequence_buffer(tensor, p, m);
            truth.megabytes = std::min(truth.megabytes, need);
            if (need > usable + 1e-9) return;
            truth.time = std::min(truth.time, iteration_time(times, m));
            return;
          }
          double at_end = 0;
          StageTime& time = times[static_cast<std::size_t>(i)];
          if (i == 0) at_end += first.memory(model.in_flight(0, p, m));
          if (i == p - 1 && p > 1) at_end += last.memory(model.in_flight(i, p, m));
          for (const Choice& c : choices[static_cast<std::size_t>(i)]) {
            time = {c.no_sync + (i == 0 ? first.no_sync : 0) + (i == p - 1 ? last.no_sync : 0), c.sync};
            const double stage_megabytes = c.megabytes + std::ceil(at_end + reserved_megabytes);
            self(self, i + 1, std::max(layers, stage_megabytes), std::max(tensor, c.tensor));
          }
        };
        try_stage(try_stage, 0, 0, end.tensor());
        for (const auto& [strategy, cost] : strategies) {
          Plan plan{p, m, division, std::vector<LayerStrategy>(static_cast<std::size_t>(job.layers), strategy), end};
          const auto price_of = price(model, plan);
          if (price_of && price_of->peak_megabytes() <= usable + 1e-9)
            truth.coarse_time = std::min(truth.coarse_time, price_of->iteration.value * 1000);
        }
      }
    }
  }
  return truth;
}

}  // namespace

TEST_CASE("the search finds what brute force finds on random profiles") {
  int feasible = 0;
  int infeasible = 0;
  int unproven = 0;
  for (unsigned seed = 0; seed < 250; ++seed) {
    Random random(seed);
    const Model model = random_model(random);
    hetu::Options options;
    options.most_tensor = model.job().devices == 8 ? 2 : 8;
    const std::string context = "seed " + std::to_string(seed);
    INFO(context);
    const Truth truth = brute_force(model, options.most_tensor);
    const auto found = hetu::search(model, options);
    REQUIRE(found.has_value());
    REQUIRE(found->feasible == (truth.time < hetu::infinite));
    if (!found->feasible) {
      ++infeasible;
      REQUIRE(found->smallest_memory);
      CHECK(static_cast<double>(found->smallest_memory->count) ==
            doctest::Approx(Model::budget_bytes(truth.megabytes)).epsilon(1e-12));
      continue;
    }
    ++feasible;
    const double time = found->price.iteration.value * 1000;
    CHECK(found->price.peak_megabytes() <= Model::usable_megabytes(model.job().memory_gigabytes) + 1e-6);
    if (found->statistics.proven) {
      CHECK(time == doctest::Approx(truth.time).epsilon(1e-9));
    } else {
      ++unproven;
      CHECK(time >= truth.time * (1 - 1e-9));
      CHECK(found->statistics.bound.value * 1000 <= truth.time * (1 + 1e-9));
    }
    options.coarse = true;
    const auto coarse = hetu::search(model, options);
    REQUIRE(coarse.has_value());
    REQUIRE(coarse->feasible == (truth.coarse_time < hetu::infinite));
    if (coarse->feasible)
      CHECK(coarse->price.iteration.value * 1000 == doctest::Approx(truth.coarse_time).epsilon(1e-9));
  }
  MESSAGE("feasible " << feasible << ", infeasible " << infeasible << ", not proven " << unproven);
  CHECK(feasible > 100);
  CHECK(infeasible > 20);
  CHECK(unproven < feasible / 20);
}

TEST_CASE("the solver of a pipeline finds what brute force finds, or says what is open") {
  int solved = 0;
  int open = 0;
  int full = 0;
  for (unsigned seed = 0; seed < 1500; ++seed) {
    Random random(seed);
    const std::string context = "seed " + std::to_string(seed);
    INFO(context);
    const auto p = static_cast<std::size_t>(random.integer(1, 4));
    const double m = static_cast<double>(p) + random.integer(0, 20);
    const double excess = random.scaled(0.1, 300);
    std::vector<hetu::Stage> stages(p);
    std::vector<double> ends;
    std::vector<double> capacities;
    const int items = random.integer(1, 4);
    for (hetu::Stage& stage : stages) {
      stage.count = random.integer(1, 3);
      for (int i = 0; i < items; ++i)
        stage.items.push_back({random.number(1, 10), random.number(0, excess), double(random.integer(1, 20))});
      ends.push_back(random.coin() ? random.number(0, 30) : 0);
      capacities.push_back(stage.count * random.integer(5, 25));
    }
    std::vector<StageTime> times(p);
    double truth = hetu::infinite;
    const auto try_stage = [&](auto&& self, std::size_t i) -> void {
      if (i == p) {
        truth = std::min(truth, iteration_time(times, m));
        return;
      }
      const auto add = [&](auto&& again, hetu::Item sum, int left, std::size_t from) -> void {
        if (left == 0) {
          if (sum.memory > capacities[i]) return;
          times[i] = {sum.time + ends[i], sum.time + sum.excess};
          self(self, i + 1);
          return;
        }
        for (std::size_t s = from; s < stages[i].items.size(); ++s) {
          const hetu::Item& item = stages[i].items[s];
          again(again, {sum.time + item.time, sum.excess + item.excess, sum.memory + item.memory}, left - 1, s);
        }
      };
      add(add, {}, stages[i].count, 0);
    };
    try_stage(try_stage, 0);

    hetu::Solver solver(stages, m);
    solver.set_ends(ends, capacities);
    CHECK(solver.bound() <= truth * (1 + 1e-9));
    hetu::Work work;
    const auto found = solver.fastest(hetu::infinite, work);
    REQUIRE(found.has_value() == (truth < hetu::infinite));
    CHECK((solver.bound() < hetu::infinite) == found.has_value());
    if (!found) {
      ++full;
      continue;
    }
    const hetu::Solution quick = solver.greedy();
    CHECK(quick.time >= truth * (1 - 1e-9));
    for (std::size_t i = 0; i < p; ++i) CHECK(quick.stages[i].memory <= capacities[i]);
    if (solver.open_bound() < found->time) {
      ++open;
      CHECK(found->time >= truth * (1 - 1e-9));
      CHECK(solver.open_bound() <= truth * (1 + 1e-9));
    } else {
      ++solved;
      CHECK(found->time == doctest::Approx(truth).epsilon(1e-9));
    }
    for (std::size_t i = 0; i < p; ++i) {
      int layers = 0;
      for (const int count : found->stages[i].of) layers += count;
      CHECK(layers == stages[i].count);
      CHECK(found->stages[i].memory <= capacities[i]);
    }
    CHECK(!hetu::Solver(solver).fastest(found->time * (1 - 1e-9), work).has_value());
    hetu::Work little;
    little.most = 1;
    hetu::Solver tired(solver);
    if (!tired.fastest(hetu::infinite, little)) CHECK(little.exhausted);
  }
  MESSAGE("solved " << solved << ", left open " << open << ", too little memory " << full);
  CHECK(solved > 1000);
  CHECK(full > 50);
}

}  // namespace galvatron::cost::hetu
