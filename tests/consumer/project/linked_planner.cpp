// The planning program with the search of galvatron::planner, which it does not compile.
#include <galvatron/plan/compiled.hpp>

#include "planner.cpp"
