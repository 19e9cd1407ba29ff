// Pipeline schedules as programs.
#pragma once

#include <galvatron/schedule/in_flight.hpp>
#include <galvatron/schedule/program.hpp>
#include <galvatron/schedule/replay.hpp>
#include <galvatron/schedule/schedules.hpp>
