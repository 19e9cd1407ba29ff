// The search over Hetu-Galvatron's space.
#pragma once

#include <galvatron/compat/hetu/search/search.hpp>
