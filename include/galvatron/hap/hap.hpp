// Programs with uneven shards for devices of different speed: graphs, rules, prices, ratios and searches.
#pragma once

#include <galvatron/hap/a_star.hpp>
#include <galvatron/hap/check.hpp>
#include <galvatron/hap/cluster_devices.hpp>
#include <galvatron/hap/completion.hpp>
#include <galvatron/hap/factors.hpp>
#include <galvatron/hap/graph.hpp>
#include <galvatron/hap/joint.hpp>
#include <galvatron/hap/memory.hpp>
#include <galvatron/hap/model_graph.hpp>
#include <galvatron/hap/prices.hpp>
#include <galvatron/hap/program.hpp>
#include <galvatron/hap/ratios.hpp>
#include <galvatron/hap/rules.hpp>
#include <galvatron/hap/runnable.hpp>
#include <galvatron/hap/sizes.hpp>
