// The search, compiled elsewhere: most of what a program that plans takes to compile, so units that include this share
// one instantiation. A program has it from a unit of its own:
//
//     #include <galvatron/search/compiled.hpp>
//     namespace galvatron::search {
//     template GALVATRON_SEARCH;
//     }
#pragma once

#include <galvatron/search/search.hpp>

#define GALVATRON_SEARCH Result<SearchResult> search<Team>(const ModelSpec&, const Cluster&, const SearchOptions&)

namespace galvatron::search {
extern template GALVATRON_SEARCH;
}  // namespace galvatron::search
