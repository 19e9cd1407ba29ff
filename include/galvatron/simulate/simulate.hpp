// Plans simulated: replayed with predicted times, and traced.
#pragma once

#include <galvatron/simulate/memory.hpp>
#include <galvatron/simulate/simulation.hpp>
#include <galvatron/simulate/trace.hpp>
