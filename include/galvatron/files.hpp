// Planning with files: clusters that `galvatron profile` or a person wrote, Hugging Face config.json, plans, and the
// profiles and plans of Hetu-Galvatron.
//
//     const auto model = galvatron::load_model("config.json");
//     const auto cluster = galvatron::load_cluster("cluster.json");
//     const auto found = galvatron::find_plan(*model, *cluster, {.global_batch = 512});
//     if (found && found->feasible) galvatron::save_plan(found->plan, "plan.json");
#pragma once

#include <galvatron/cluster/json.hpp>
#include <galvatron/cluster/mixed_json.hpp>
#include <galvatron/compat/hetu/files.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/model/huggingface.hpp>
#include <galvatron/plan.hpp>
#include <galvatron/plan/json.hpp>
