// The search: a unit of its own, because it is most of what a program that plans takes to compile.
#include <galvatron/search/compiled.hpp>

namespace galvatron::search {
template GALVATRON_SEARCH;
}
