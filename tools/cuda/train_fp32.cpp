// Every strategy's rank on a GPU in fp32: a unit of its own, because it takes long to compile.
#include "train_on_gpus.hpp"

namespace galvatron::train::detail {
template GALVATRON_TRAIN_ON_GPU(float);
}
