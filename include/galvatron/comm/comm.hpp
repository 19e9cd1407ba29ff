// How ranks talk to each other: the interface, rank threads, and the dry twin that only counts.
#pragma once

#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/dry/dry.hpp>
#include <galvatron/comm/thread/thread.hpp>
