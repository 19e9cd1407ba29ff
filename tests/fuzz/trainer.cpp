// Any bytes given to the reader of trainer files end in a trainer or a one-line error, and what it accepts has facts in
// range.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <galvatron/core/json.hpp>
#include <galvatron/cost/trainer_json.hpp>

#include "require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace galvatron;
  const auto value = parse_json(std::string_view(reinterpret_cast<const char*>(data), size), "input");
  if (!value) return 0;
  const auto trainer = cost::trainer_from_json(*value, "input");
  if (!trainer) {
    require_one_line(trainer.error());
    return 0;
  }
  require(!trainer->is_own() && !trainer->name.empty());
  require(trainer->traits.norm_passes >= 1 && trainer->traits.gradient_bytes >= 1);
  require(!trainer->expressible.schedules.empty() && !trainer->expressible.sequence.empty());
  const Bytes memory{std::int64_t{80} << 30};
  require(cost::reserve_of(trainer->traits, memory, {}) <= memory);
  return 0;
}
