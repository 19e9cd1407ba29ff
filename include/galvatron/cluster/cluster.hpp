// Everything of cluster/: what devices and links a plan runs on.
#pragma once

#include <galvatron/cluster/host.hpp>
#include <galvatron/cluster/json.hpp>
#include <galvatron/cluster/mixed.hpp>
#include <galvatron/cluster/mixed_json.hpp>
#include <galvatron/cluster/presets.hpp>
#include <galvatron/cluster/spec.hpp>
