// The commands. Each declares its options, reads the arguments after its name, does its work and prints the result.
// It throws what goes wrong; `common` is filled as soon as the arguments are read.
#pragma once

#include <string>
#include <vector>

#include "output.hpp"

namespace galvatron::tools {

using Arguments = std::vector<std::string>;

void run_profile(const Arguments& arguments, Common& common);
void run_plan(const Arguments& arguments, Common& common);
void run_cost(const Arguments& arguments, Common& common);
void run_simulate(const Arguments& arguments, Common& common);
void run_train(const Arguments& arguments, Common& common);
void run_explain(const Arguments& arguments, Common& common);
void run_export(const Arguments& arguments, Common& common);
void run_hetu(const Arguments& arguments, Common& common);
void run_list(const Arguments& arguments, Common& common);

}  // namespace galvatron::tools
