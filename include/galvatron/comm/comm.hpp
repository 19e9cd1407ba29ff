// The communicator: its interface and rank threads.
#pragma once

#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/thread/world.hpp>
