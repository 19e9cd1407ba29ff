// Programs as lists of their instructions.
#pragma once

#include <vector>

#include <galvatron/schedule/program.hpp>

namespace instructions {

using List = std::vector<galvatron::schedule::Instruction>;

inline List of(const galvatron::schedule::StageProgram& program) {
  List out;
  for (galvatron::schedule::Cursor next(program); !next.at_end(); ++next) out.push_back(*next);
  return out;
}

/// Of every stage.
inline std::vector<List> of(const galvatron::schedule::Program& program) {
  std::vector<List> out;
  for (const galvatron::schedule::StageProgram& stage : program.stages) out.push_back(of(stage));
  return out;
}

/// The program of stages that do these.
inline galvatron::schedule::Program program(const std::vector<List>& stages) {
  galvatron::schedule::Program out;
  for (const List& stage : stages) out.stages.push_back({{stage}});
  return out;
}

}  // namespace instructions
