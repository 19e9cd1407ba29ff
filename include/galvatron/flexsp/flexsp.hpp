// Groups of devices that adapt to every batch of documents: problems, plans, bounds, and homogeneous plans beside them.
#pragma once

#include <galvatron/flexsp/baselines.hpp>
#include <galvatron/flexsp/blaster.hpp>
#include <galvatron/flexsp/coefficients.hpp>
#include <galvatron/flexsp/lengths.hpp>
#include <galvatron/flexsp/placement.hpp>
#include <galvatron/flexsp/prices.hpp>
#include <galvatron/flexsp/problem.hpp>
#include <galvatron/flexsp/solve.hpp>
