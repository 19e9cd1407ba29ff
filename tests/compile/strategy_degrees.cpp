// expect-error: galvatron: the degree of TensorParallel<N> is at least 1.
// expect-error: galvatron: the degree of DataParallel<N> is at least 1.
// expect-error: galvatron: the degree of Pipeline<N> is at least 1.
// expect-error: galvatron: the degree of ContextParallel<N> is at least 1.
// expect-error: galvatron: the stage of ZeRO<stage> is 0, 1, 2 or 3.
// expect-error: galvatron: a strategy spreads a layer over at most 16777216 ranks.
#include <galvatron/strategy/compose.hpp>

using namespace galvatron;

template <class S>
inline constexpr auto zero_of = S::zero;

static_assert(zero_of<Strategy<TensorParallel<1>, DataParallel<2>, Pipeline<3>, ZeRO<2>>> == 2);
#if GALVATRON_REJECT == 1
static_assert(zero_of<Strategy<TensorParallel<0>>> == 0);
#elif GALVATRON_REJECT == 2
static_assert(zero_of<Strategy<DataParallel<-2>>> == 0);
#elif GALVATRON_REJECT == 3
static_assert(zero_of<Strategy<Pipeline<0>>> == 0);
#elif GALVATRON_REJECT == 4
static_assert(zero_of<Strategy<ContextParallel<0>>> == 0);
#elif GALVATRON_REJECT == 5
static_assert(zero_of<Strategy<ZeRO<4>>> == 4);
#elif GALVATRON_REJECT == 6
static_assert(zero_of<Strategy<TensorParallel<2000000000>, DataParallel<2000000000>>> == 0);
#endif
