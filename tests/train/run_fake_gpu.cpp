// Everything of ranks on a GPU that is not there: one unit, because fp32, bf16 and several tasks share most of what
// they compile.
#include "fake_gpu_compiled.hpp"

namespace galvatron {
GALVATRON_ON_FAKE_GPU(template, float);
GALVATRON_ON_FAKE_GPU(template, bfloat16);
}  // namespace galvatron
namespace toy {
GALVATRON_RUN_ON_FAKE_GPU(template, float);
GALVATRON_RUN_ON_FAKE_GPU(template, bfloat16);
}  // namespace toy
