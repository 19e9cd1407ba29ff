// Everything of train/: data, the trainer, its files and checkpoints, and the profiler of this machine.
#pragma once

#include <galvatron/checkpoint/checkpointer.hpp>
#include <galvatron/checkpoint/huggingface.hpp>
#include <galvatron/checkpoint/huggingface_writer.hpp>
#include <galvatron/checkpoint/reader.hpp>
#include <galvatron/data/data.hpp>
#include <galvatron/profile/host.hpp>
#include <galvatron/train/fit.hpp>
#include <galvatron/train/metrics.hpp>
#include <galvatron/train/trainer.hpp>
