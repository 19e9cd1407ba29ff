// Every strategy's rank on a GPU in bf16: a unit of its own, because it takes long to compile.
#include "train_on_gpus.hpp"

namespace galvatron::train::detail {
template GALVATRON_TRAIN_ON_GPU(bfloat16);
}
