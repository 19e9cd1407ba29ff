// Hetu-Galvatron's files: profiles of hardware and model, and plans.
#pragma once

#include <galvatron/compat/hetu/files/hardware.hpp>
#include <galvatron/compat/hetu/files/model.hpp>
#include <galvatron/compat/hetu/files/plan.hpp>
