// The search over Hetu-Galvatron's space.
#pragma once

#include <galvatron/search/hetu/search.hpp>
