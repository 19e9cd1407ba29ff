// Planning: models, clusters, strategies, the search and plans. Needs no CUDA, BLAS or MPI: header-only libraries are
// all. What reads and writes files (clusters, config.json, plans) is galvatron/files.hpp, which takes longer to
// compile.
//
//     const auto model = galvatron::find_model("llama2-70b");
//     const auto cluster = galvatron::find_cluster("64xh100-80g");
//     const auto found = galvatron::find_plan(*model, *cluster, {.global_batch = 512});
//     if (found && found->feasible) std::cout << galvatron::plan_words(found->plan) << "\n";
#pragma once

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/cluster/presets.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/memory.hpp>
#include <galvatron/cost/pipeline.hpp>
#include <galvatron/cost/plan_cost.hpp>
#include <galvatron/cost/relayout.hpp>
#include <galvatron/cost/time.hpp>
#include <galvatron/model/model.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/plan/explain.hpp>
#include <galvatron/plan/find.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/plan/uniform.hpp>
#include <galvatron/search/constexpr_search.hpp>
#include <galvatron/search/search.hpp>
#include <galvatron/strategy/compose.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/space.hpp>
#include <galvatron/strategy/spec.hpp>
