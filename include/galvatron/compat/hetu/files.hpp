// Hetu-Galvatron's files: profiles of hardware and model, and plans.
#pragma once

#include <galvatron/compat/hetu/files/plan.hpp>
#include <galvatron/compat/hetu/files/profiles.hpp>
