// The solver of packed batches.
#include <galvatron/flexsp/compiled.hpp>

namespace galvatron {
template GALVATRON_SOLVE_BATCH;
}  // namespace galvatron
