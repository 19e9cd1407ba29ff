// Hetu-Galvatron's cost model as a policy: its profiles as values, its formulas, its plans and their prices.
#pragma once

#include <galvatron/cost/hetu/model.hpp>
#include <galvatron/cost/hetu/pipeline.hpp>
#include <galvatron/cost/hetu/plan.hpp>
#include <galvatron/cost/hetu/profile.hpp>
