// Ranks as threads of one process: run(), its World, its Group.
#pragma once

#include <galvatron/comm/thread/world.hpp>
