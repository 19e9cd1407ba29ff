// Every strategy's layers and rank in bf16: a unit of its own, because it is most of what a program that trains takes
// to compile.
#include <galvatron/train/compiled.hpp>

namespace galvatron {
template GALVATRON_LAYERS(device::Host, bfloat16);
template GALVATRON_TRAIN_RANK(train::HostPlatform, bfloat16);
}  // namespace galvatron
