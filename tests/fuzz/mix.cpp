// Any bytes given to the reader of mixes of tasks end in a mix or a one-line error, and so does what a model and a run
// make of it.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <galvatron/model/multi_task_zoo.hpp>
#include <galvatron/model/task_mix.hpp>

#include "require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace galvatron;
  static const MultiTaskModel model = value_or_throw(find_multi_task_model("clip-toy"));
  const auto mix = parse_task_mix(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!mix) {
    require_one_line(mix.error());
    return 0;
  }
  require(mix->step >= -1 && !mix->tasks.empty());
  if (const auto fits = check_mixes(model, {*mix}, 1'000); !fits) {
    require_one_line(fits.error());
    return 0;
  }
  const auto mixed = with_mix(model, mix->tasks);
  require(mixed && mixed->tasks.size() == mix->tasks.size());
  return 0;
}
