// Schedules replayed with predicted times.
#pragma once

#include <galvatron/simulate/replay.hpp>
