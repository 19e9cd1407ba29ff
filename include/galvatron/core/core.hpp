// Everything of core/: units, errors, number formats, views, shardings, random numbers, files and sizes; core/json.hpp
// is apart.
#pragma once

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/progress.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/core/rng.hpp>
#include <galvatron/core/sharding.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
