// Hetu-Galvatron's cost model as a policy: its profiles as values, its formulas, its plans and their prices.
#pragma once

#include <galvatron/compat/hetu/cost/model.hpp>
#include <galvatron/compat/hetu/cost/pipeline.hpp>
#include <galvatron/compat/hetu/cost/plan.hpp>
#include <galvatron/compat/hetu/cost/profile.hpp>
