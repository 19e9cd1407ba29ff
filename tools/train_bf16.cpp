// Every strategy's rank in bf16: a unit of its own, because it is most of what the command takes to compile.
#include "train_ranks.hpp"

namespace galvatron::train::detail {
template GALVATRON_TRAIN_RANK(bfloat16);
}
