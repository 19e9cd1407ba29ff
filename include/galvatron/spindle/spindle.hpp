// Many tasks in one step, wave by wave: MetaOps with scaling curves, plans, bounds and Spindle's own waves.
#pragma once

#include <galvatron/spindle/contract.hpp>
#include <galvatron/spindle/curve.hpp>
#include <galvatron/spindle/greedy.hpp>
#include <galvatron/spindle/levels.hpp>
#include <galvatron/spindle/place.hpp>
#include <galvatron/spindle/prices.hpp>
#include <galvatron/spindle/problem.hpp>
#include <galvatron/spindle/relaxation.hpp>
#include <galvatron/spindle/solve.hpp>
#include <galvatron/spindle/terms.hpp>
