// The communicator: its interface, rank threads, and the dry communicator, which only counts.
#pragma once

#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/dry/dry.hpp>
#include <galvatron/comm/thread/thread.hpp>
