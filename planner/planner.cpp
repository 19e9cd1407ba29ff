// Everything that galvatron::planner has compiled: what headers mark with GALVATRON_IN_PLANNER, and what
// plan/compiled.hpp and flexsp/compiled.hpp declare. One unit, because these share most of what they compile.
#define GALVATRON_COMPILES_PLANNER
#include <galvatron/cluster/host.hpp>
#include <galvatron/cluster/json.hpp>
#include <galvatron/cluster/mixed_json.hpp>
#include <galvatron/cluster/presets.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/core/names.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/trainer_json.hpp>
#include <galvatron/flexsp/compiled.hpp>
#include <galvatron/flexsp/prices.hpp>
#include <galvatron/model/components.hpp>
#include <galvatron/model/huggingface.hpp>
#include <galvatron/model/layers.hpp>
#include <galvatron/model/multi_task_zoo.hpp>
#include <galvatron/model/zoo.hpp>
#include <galvatron/plan/compiled.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/plan/json.hpp>
#include <galvatron/plan/multi_task_plan.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/plan/stage_plan.hpp>
#include <galvatron/plan/task_plan.hpp>
#include <galvatron/plan/wave_plan_json.hpp>
#include <galvatron/program/lower.hpp>
#include <galvatron/schedule/schedules.hpp>
#include <galvatron/spindle/place.hpp>
#include <galvatron/strategy/space.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron {
template GALVATRON_FIND_MODEL;
template GALVATRON_FIND_CLUSTER;
template GALVATRON_SEARCH;
template GALVATRON_SEARCH_MIXED;
template GALVATRON_FIND_PLAN;
template GALVATRON_SWEEP;
template GALVATRON_SOLVE_BATCH;
}  // namespace galvatron
