// All that a trainer needs: planning, and training on this machine's cores. Needs oneDNN and OpenMP (galvatron::host).
//
//     using Split = galvatron::Strategy<galvatron::ZeRO<3>, galvatron::TensorParallel<2>>;
//     const auto model = galvatron::find_model("gpt2-tiny");
//     const auto plan = galvatron::uniform_plan(Split({.data = 2}), *model, {.global_batch = 16});
//     const auto report = galvatron::train::fit<Split>(*plan, *model, {"text.txt"}, {.steps = 100});
#pragma once

#include <galvatron/files.hpp>
#include <galvatron/plan.hpp>
#include <galvatron/schedule/schedule.hpp>
#include <galvatron/strategy/strategy.hpp>
#include <galvatron/train/train.hpp>
