// Everything of train/: data, the trainer, its files, and the profiler of this machine.
#pragma once

#include <galvatron/train/data/batches.hpp>
#include <galvatron/train/data/data.hpp>
#include <galvatron/train/fit.hpp>
#include <galvatron/train/learning_rate.hpp>
#include <galvatron/train/metrics.hpp>
#include <galvatron/train/profile_host.hpp>
#include <galvatron/train/trainer.hpp>
