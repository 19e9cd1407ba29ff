// What measures this machine.
#include <galvatron/train/compiled.hpp>

namespace galvatron {
template GALVATRON_MEASURE(train::HostPlatform);
}  // namespace galvatron
