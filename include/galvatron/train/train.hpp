// Everything of train/: data, the trainer, its files and checkpoints, and the profiler of this machine.
#pragma once

#include <galvatron/train/checkpoint/checkpointer.hpp>
#include <galvatron/train/checkpoint/huggingface_reader.hpp>
#include <galvatron/train/checkpoint/huggingface_writer.hpp>
#include <galvatron/train/checkpoint/reader.hpp>
#include <galvatron/train/data/batches.hpp>
#include <galvatron/train/data/data.hpp>
#include <galvatron/train/fit.hpp>
#include <galvatron/train/learning_rate.hpp>
#include <galvatron/train/metrics.hpp>
#include <galvatron/train/profile_host.hpp>
#include <galvatron/train/tensorboard.hpp>
#include <galvatron/train/trainer.hpp>
