// The search, compiled elsewhere: most of what a program that plans takes to compile. What includes this and links
// galvatron::planner does not compile it.
#pragma once

#include <galvatron/search/search.hpp>

#define GALVATRON_SEARCH Result<SearchResult> search<Team>(const ModelSpec&, const Cluster&, const SearchOptions&)

namespace galvatron::search {
extern template GALVATRON_SEARCH;
}  // namespace galvatron::search
