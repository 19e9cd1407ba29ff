// Ranks as threads of one process: run(), its World, its Group.
#pragma once

#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/thread/world.hpp>

static_assert(galvatron::comm::World<galvatron::comm::thread::World>);
static_assert(galvatron::comm::Group<galvatron::comm::thread::Group>);
