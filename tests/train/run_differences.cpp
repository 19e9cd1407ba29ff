// The comparison of two runs sees one bit, and says where.
#include <atomic>
#include <cmath>
#include <string>

#include <doctest/doctest.h>

#include "run_plan.hpp"
#include "toy.hpp"

TEST_CASE("two runs are compared bit by bit, and the first difference is named") {
  using namespace toy;
  const ModelSpec spec = model(false, 2);
  const Plan plan = uniform(spec, 2, {.data = 2, .zero = 1}, 2, ScheduleKind::one_f_one_b);
  const Outcome first = run(plan, spec, 2);
  CHECK(first.copies_agree);
  CHECK(first.bytes.size() == 4);
  for (const auto& [rank, bytes] : first.bytes) {
    CHECK(bytes.measured.states.count > 0);
    CHECK(bytes.measured == bytes.planned);
  }
  CHECK(differences(first, run(plan, spec, 2)) == "");

  Outcome changed = first;
  changed.norms[1] = std::nextafter(changed.norms[1], 1e9);
  CHECK(differences(first, changed).starts_with("gradient norm[1] is "));
  changed = first;
  float& weight = changed.parameters.at({2, ParameterName::mlp_in_weight})[7];
  weight = std::nextafter(weight, 1e9F);
  CHECK(differences(first, changed).starts_with("parameter of mlp_in_weight in layer 2[7] is "));
  changed = first;
  changed.gradients.erase({1, ParameterName::norm1_gamma});
  CHECK(differences(first, changed) == "gradient of norm1_gamma in layer 1 is in the first run only");
  CHECK(differences(changed, first) == "gradient of norm1_gamma in layer 1 is in the second run only");
  CHECK(differences(first, run(plan, spec, 1)) == "loss has 2 and 1 elements");

  RunOptions other{.steps = 2};
  other.clip = 1e-3;
  CHECK(differences(first, run(plan, spec, other)).starts_with("loss[1] is "));
}

TEST_CASE("parameters of which two ranks have different bits are seen") {
  using namespace toy;
  const ModelSpec spec = model(true, 1);
  const Plan plan = uniform(spec, 1, {.data = 2}, 1, ScheduleKind::one_f_one_b);
  RunOptions options{.steps = 1};
  options.optimizer = [](int) {
    static thread_local float rate = 0;
    static std::atomic<int> ranks = 0;
    if (rate == 0) rate = 1e-3F * static_cast<float>(++ranks);
    return device::AdamW{.learning_rate = rate};
  };
  CHECK_FALSE(run(plan, spec, options).copies_agree);
}
