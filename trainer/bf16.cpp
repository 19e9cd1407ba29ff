// Every strategy's layers and rank in bf16.
#include <galvatron/train/compiled.hpp>

namespace galvatron {
template GALVATRON_LAYERS(device::Host, bfloat16);
template GALVATRON_TRAIN_RANK(train::HostPlatform, bfloat16);
template GALVATRON_TRAIN_TASK_RANK(train::HostPlatform, bfloat16);
}  // namespace galvatron
