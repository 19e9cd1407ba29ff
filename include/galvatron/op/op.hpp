// Everything of op/: the operations that programs consist of.
#pragma once

#include <galvatron/op/kind.hpp>
#include <galvatron/op/work.hpp>
