// Everything of strategy/: policies, Strategy<>, its value StrategySpec, what is legal, divisors, the registry.
#pragma once

#include <galvatron/strategy/compose.hpp>
#include <galvatron/strategy/layout.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/lsh_options.hpp>
#include <galvatron/strategy/parameters.hpp>
#include <galvatron/strategy/policies.hpp>
#include <galvatron/strategy/rank_layout.hpp>
#include <galvatron/strategy/registry.hpp>
#include <galvatron/strategy/schedule_kind.hpp>
#include <galvatron/strategy/space.hpp>
#include <galvatron/strategy/spec.hpp>
