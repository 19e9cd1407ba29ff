// Pipeline schedules as programs.
#pragma once

#include <galvatron/schedule/program.hpp>
#include <galvatron/schedule/schedules.hpp>
