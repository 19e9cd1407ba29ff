// Everything that galvatron::trainer has compiled: what headers mark with GALVATRON_IN_TRAINER, every strategy's layers
// and rank on this machine's cores, and what measures them. One unit, because fp32, bf16 and the profiler share most of
// what they compile.
#define GALVATRON_COMPILES_TRAINER
#include <galvatron/checkpoint/huggingface_family.hpp>
#include <galvatron/checkpoint/manifest.hpp>
#include <galvatron/comm/reduce.hpp>
#include <galvatron/comm/thread/world.hpp>
#include <galvatron/core/rng.hpp>
#include <galvatron/data/packing.hpp>
#include <galvatron/train/compiled.hpp>

namespace galvatron {
GALVATRON_TRAINER(template, device::Host, train::HostPlatform);
template GALVATRON_MEASURE(train::HostPlatform);
}  // namespace galvatron
