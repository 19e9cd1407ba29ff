// Everything of cluster/: what devices and links a plan runs on.
#pragma once

#include <galvatron/cluster/host_cores.hpp>
#include <galvatron/cluster/host_load.hpp>
#include <galvatron/cluster/host_memory.hpp>
#include <galvatron/cluster/json.hpp>
#include <galvatron/cluster/json_writer.hpp>
#include <galvatron/cluster/log_grid.hpp>
#include <galvatron/cluster/presets.hpp>
#include <galvatron/cluster/spec.hpp>
