// Every strategy's layers and rank in fp32: a unit of its own, because it is most of what a program that trains takes
// to compile.
#include <galvatron/train/compiled.hpp>

namespace galvatron {
template GALVATRON_LAYERS(device::Host, float);
template GALVATRON_TRAIN_RANK(train::HostPlatform, float);
}  // namespace galvatron
