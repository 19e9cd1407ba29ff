// Every strategy's layers and rank in fp32.
#include <galvatron/train/compiled.hpp>

namespace galvatron {
template GALVATRON_LAYERS(device::Host, float);
template GALVATRON_TRAIN_RANK(train::HostPlatform, float);
template GALVATRON_TRAIN_TASK_RANK(train::HostPlatform, float);
}  // namespace galvatron
