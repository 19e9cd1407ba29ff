// Everything of model/ but topological_order.hpp, which brings in Boost.Graph, and huggingface.hpp, which brings in
// nlohmann-json.
#pragma once

#include <galvatron/model/build.hpp>
#include <galvatron/model/check.hpp>
#include <galvatron/model/difference.hpp>
#include <galvatron/model/graph.hpp>
#include <galvatron/model/layers.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/model/zoo.hpp>
