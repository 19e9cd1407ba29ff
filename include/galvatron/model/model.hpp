// Everything of model/ but graph.hpp, which brings in Boost.Graph.
#pragma once

#include <galvatron/model/build.hpp>
#include <galvatron/model/check.hpp>
#include <galvatron/model/count.hpp>
#include <galvatron/model/huggingface.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/model/zoo.hpp>
