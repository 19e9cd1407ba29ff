// Hetu-Galvatron's files: profiles of hardware and model, and plans.
#pragma once

#include <galvatron/plan/hetu/hardware.hpp>
#include <galvatron/plan/hetu/model.hpp>
#include <galvatron/plan/hetu/plan.hpp>
