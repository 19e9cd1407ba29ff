// Every strategy's rank in bf16: a unit of its own, because it is most of what a program that trains takes to compile.
#include <galvatron/train/compiled.hpp>

namespace galvatron::train::detail {
template GALVATRON_TRAIN_RANK(HostPlatform, comm::thread::World, bfloat16);
}
