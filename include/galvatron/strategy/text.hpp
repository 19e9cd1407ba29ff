// Strategies in a few letters, for tables and messages.
#pragma once

#include <string>

#include <galvatron/strategy/spec.hpp>

namespace galvatron {

/// `tp2 megatron cp2 ring dp4 zero3 recompute-full` without the parts that are 1 or the default (whole sequences,
/// ZeRO-0, cheap recomputation); a star for degrees that are open.
inline std::string strategy_text(const StrategySpec& spec, bool open_tensor = false, bool open_context = false,
                                 bool open_data = false) {
  std::string out;
  const auto add = [&out](const std::string& part) { out += (out.empty() ? "" : " ") + part; };
  const auto degree = [&add](const char* axis, int n, bool open) {
    if (open || n != 1) add(axis + (open ? std::string("*") : std::to_string(n)));
  };
  degree("tp", spec.tensor, open_tensor);
  if (spec.strided) add("strided");
  if (spec.sequence == SequenceKind::megatron) add("megatron");
  degree("cp", spec.context, open_context);
  if (spec.sequence == SequenceKind::ulysses || spec.uses_ring()) add(spec.uses_ring() ? "ring" : "ulysses");
  degree("dp", spec.data, open_data);
  if (spec.zero != 0) add("zero" + std::to_string(spec.zero));
  if (spec.expert != 1) add("ep" + std::to_string(spec.expert));
  if (spec.recompute != RecomputeKind::cheap) add(std::string("recompute-") + name_of(spec.recompute));
  return out.empty() ? "single" : out;
}

}  // namespace galvatron
