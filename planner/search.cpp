// What plan/compiled.hpp declares: a unit of its own, because it is most of what a program that plans takes to compile.
#include <galvatron/plan/compiled.hpp>

namespace galvatron {
template GALVATRON_FIND_MODEL;
template GALVATRON_FIND_CLUSTER;
template GALVATRON_SEARCH;
template GALVATRON_SEARCH_MIXED;
template GALVATRON_FIND_PLAN;
template GALVATRON_SWEEP;
}  // namespace galvatron
