// 02: plan while compiling. Needs galvatron::galvatron, as 01; the chosen strategy is a type of this program.
#include <cstddef>
#include <iostream>

#include <galvatron/plan.hpp>

namespace {

using namespace galvatron;

constexpr std::size_t layers = 4;

// A block of a Transformer of 4 x 2048, and 4 devices by the figures of their data sheet.
constexpr LayerSpec block{.hidden = 2048,
                          .heads = 16,
                          .kv_heads = 16,
                          .head_dim = 128,
                          .ffn = 8192,
                          .vocabulary = 32000,
                          .positions = 1024,
                          .layers = layers};
constexpr search::ConstexprOptions run{.global_batch = 32, .sequence = 1024};
constexpr search::ConstexprCluster with_memory(Bytes memory) {
  return {.devices = 4, .memory = memory, .flops = 1.2e14, .memory_bandwidth = 1.5e12, .network_bandwidth = 2e10};
}

// In 6 GiB everything fits; in 3.2 GiB the last layers must compute their activations again in backward, and every
// layer shards its gradients. The embedding and the head get strategies of their own.
constexpr auto roomy = search::constexpr_search<layers>(block, with_memory(6_GiB), run);
static_assert(roomy.feasible && roomy.strategies.front().recompute == RecomputeKind::cheap);

constexpr auto found = search::constexpr_search<layers>(block, with_memory(3250_MiB), run);
static_assert(found.feasible && found.peak <= 3250_MiB);
static_assert(found.strategies.back().recompute == RecomputeKind::full);
static_assert(found.strategies.front().recompute == RecomputeKind::cheap && found.strategies.front().zero >= 2);
static_assert(roomy.iteration < found.iteration);

using First = StrategyOf<found.strategies.front()>;
using Last = StrategyOf<found.strategies.back()>;
static_assert(First::is_static && First::spec.ranks() == 4);

}  // namespace

int main() {
  std::cout << "Chosen by the compiler for 3.2 GiB:\n";
  for (const StrategySpec& spec : found.strategies) std::cout << "  " << strategy_text(spec) << "\n";
  std::cout << "The first is the type Strategy<" << First::type_text() << ">, the last Strategy<" << Last::type_text()
            << ">; " << format_seconds(found.iteration) << " an iteration, " << format_bytes(found.peak)
            << " on each device\nFor 6 GiB: " << strategy_text(roomy.strategies.front()) << ", "
            << format_seconds(roomy.iteration) << "\n";

  // The same code at run time.
  const auto again = search::constexpr_search<layers>(block, with_memory(3250_MiB), run);
  return again.strategies == found.strategies && again.iteration == found.iteration ? 0 : 1;
}
