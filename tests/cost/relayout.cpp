#include <galvatron/cost/relayout.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include <galvatron/strategy/layout.hpp>

using namespace galvatron;

namespace {

// All layouts of `ranks` ranks for a micro-batch that every one of them divides.
std::vector<ActivationLayout> layouts(int ranks, int first = 0) {
  std::vector<ActivationLayout> out;
  for (int tensor = 1; tensor <= ranks; ++tensor) {
    if (ranks % tensor != 0) continue;
    for (const bool cut : {false, true}) {
      if (cut && tensor == 1) continue;
      out.push_back({first, tensor, ranks / tensor, cut, ranks * 2, ranks * 3});
    }
  }
  return out;
}

}  // namespace

TEST_CASE("the busiest receiver gets what the transfers between ranks say") {
  for (const int ranks : {1, 2, 4, 6, 8, 12})
    for (const int first : {0, ranks})
      for (const ActivationLayout& from : layouts(ranks))
        for (const ActivationLayout& to : layouts(ranks, first)) {
          std::int64_t most = 0;
          int peers = 0;
          for (int receiver = to.first_rank; receiver < to.first_rank + ranks; ++receiver) {
            std::int64_t tokens = 0;
            int senders = 0;
            for (int sender = from.first_rank; sender < from.first_rank + ranks; ++sender) {
              const Region part = transfer(from, to, sender, receiver);
              if (sender == receiver || part.empty()) continue;
              tokens += part.tokens();
              ++senders;
            }
            if (tokens > most) {
              most = tokens;
              peers = senders;
            }
          }
          INFO(ranks << " ranks, tensor " << from.tensor << (from.sequence_cut ? " cut" : "") << " to tensor "
                     << to.tensor << (to.sequence_cut ? " cut" : ""));
          const cost::Traffic traffic = cost::busiest_receiver(from, to);
          CHECK(traffic.tokens == most);
          CHECK(traffic.peers == peers);
          if (first == 0) {
            const double all = static_cast<double>(from.batch * from.sequence);
            CHECK(cost::relayout_share(from, to) == doctest::Approx(static_cast<double>(most) / all));
          }
        }
}

TEST_CASE("a layout that stays costs nothing, and taking one's own part of what is replicated neither") {
  const ActivationLayout whole{0, 4, 2, false, 8, 16};
  const ActivationLayout cut{0, 4, 2, true, 8, 16};
  CHECK(cost::relayout_share(whole, whole) == 0);
  CHECK(cost::relayout_share(whole, cut) == 0);
  CHECK(cost::needs_relayout(whole, cut));
  CHECK(cost::relayout_share(cut, whole) == doctest::Approx(0.5 * 3 / 4));
  CHECK(cost::move_work({}, 64, Precision::fp32).times == 0);
  CHECK(cost::move_work({10, 2}, 64, Precision::bf16).m == 10 * 64 * 2);
}
