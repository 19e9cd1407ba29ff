// Any bytes given to the readers of other trainers' configurations end in a job or a one-line error; a job becomes a
// plan or says why not.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <galvatron/compat/check/accelerate.hpp>
#include <galvatron/compat/check/deepspeed.hpp>
#include <galvatron/compat/check/job.hpp>
#include <galvatron/compat/check/megatron.hpp>
#include <galvatron/compat/check/torchtitan.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/model/zoo.hpp>

#include "require.hpp"

namespace {

void require_job(const galvatron::Result<galvatron::TrainerJob>& job) {
  using namespace galvatron;
  if (!job) return require_one_line(job.error());
  static const ModelSpec usual = value_or_throw(find_model("gpt2-tiny"));
  const ModelSpec& model = job->model ? *job->model : usual;
  if (model.blocks.size() > 256) return;
  const auto plan = plan_of_job(*job, model, job->devices > 0 ? job->devices : 8);
  if (!plan) return require_one_line(plan.error());
  require(plan->ranks() >= 1 && plan->microbatches >= 1);
  (void)settings_of(*plan, job->kind);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace galvatron;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  require_job(megatron_job(text));
  const auto value = parse_json(text, "input");
  if (!value) return 0;
  require_job(torchtitan_job(*value, 8));
  require_job(deepspeed_job(*value));
  require_job(accelerate_job(*value));
  return 0;
}
