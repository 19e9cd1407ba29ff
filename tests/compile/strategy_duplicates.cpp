// expect-error: galvatron: Strategy<> names TensorParallel more than once.
// expect-error: galvatron: Strategy<> names ZeRO more than once.
// expect-error: galvatron: Strategy<> names DataParallel more than once.
// expect-error: galvatron: Strategy<> names SequenceParallel more than once.
// expect-error: galvatron: Strategy<> names ContextParallel more than once.
// expect-error: galvatron: Strategy<> names Pipeline more than once.
// expect-error: galvatron: Strategy<> names Recompute more than once.
// expect-error: galvatron: the arguments of Strategy<> are policies
#include <galvatron/strategy/compose.hpp>

using namespace galvatron;

template <class S>
inline constexpr auto zero_of = S::zero;

static_assert(zero_of<Strategy<TensorParallel<2>, ZeRO<0>, DataParallel<2>>> == 0);
#if GALVATRON_REJECT == 1
static_assert(zero_of<Strategy<TensorParallel<2>, TensorParallel<2>>> == 0);
#elif GALVATRON_REJECT == 2
static_assert(zero_of<Strategy<ZeRO<1>, TensorParallel<2>, ZeRO<2>>> == 1);
#elif GALVATRON_REJECT == 3
static_assert(zero_of<Strategy<DataParallel<2>, DataParallel<>>> == 0);
#elif GALVATRON_REJECT == 4
static_assert(zero_of<Strategy<SequenceParallel<none>, SequenceParallel<none>>> == 0);
#elif GALVATRON_REJECT == 5
static_assert(zero_of<Strategy<ContextParallel<1>, ContextParallel<1>>> == 0);
#elif GALVATRON_REJECT == 6
static_assert(zero_of<Strategy<Pipeline<2>, Pipeline<4>>> == 0);
#elif GALVATRON_REJECT == 7
static_assert(zero_of<Strategy<Recompute<full>, Recompute<cheap>>> == 0);
#elif GALVATRON_REJECT == 8
static_assert(zero_of<Strategy<TensorParallel<2>, int>> == 0);
#endif
