// clang-format off: a line for each sentence
// expect-error: galvatron: Megatron sequence parallelism splits tokens .* needs a tensor degree of at least 2.
// expect-error: galvatron: ZeRO shards states over data- and context-parallel ranks: .* needs a data degree of at least 2
// expect-error: galvatron: Ulysses and ring attention .* need a context degree of at least 2.
// expect-error: galvatron: context parallelism needs to know how sequences are split
// expect-error: galvatron: Ulysses and ring attention .* need a context degree of at least 2.
// expect-error: galvatron: Megatron sequence parallelism splits tokens
// expect-error: throw
// clang-format on
#include <galvatron/strategy/compose.hpp>

using namespace galvatron;

template <class S>
inline constexpr auto zero_of = S::zero;

static_assert(zero_of<Strategy<TensorParallel<2>, SequenceParallel<megatron>, ZeRO<3>, DataParallel<2>>> == 3);
static_assert(zero_of<Strategy<TensorParallel<>, SequenceParallel<megatron>, ZeRO<3>>> == 3);
static_assert(zero_of<Strategy<ContextParallel<>, SequenceParallel<ulysses>>> == 0);
static_assert(zero_of<Strategy<ContextParallel<2>, SequenceParallel<ring>, TensorParallel<4>>> == 0);
static_assert(zero_of<Strategy<TensorParallel<2>, SequenceParallel<megatron>, ContextParallel<2>>> == 0);
constexpr Strategy<ZeRO<1>> accepted({.data = 2});
#if GALVATRON_REJECT == 1
static_assert(zero_of<Strategy<TensorParallel<1>, SequenceParallel<megatron>>> == 0);
#elif GALVATRON_REJECT == 2
static_assert(zero_of<Strategy<ZeRO<3>, DataParallel<1>>> == 3);
#elif GALVATRON_REJECT == 3
static_assert(zero_of<Strategy<SequenceParallel<ulysses>>> == 0);
#elif GALVATRON_REJECT == 4
static_assert(zero_of<Strategy<ContextParallel<2>>> == 0);
#elif GALVATRON_REJECT == 5
static_assert(zero_of<Strategy<ContextParallel<1>, SequenceParallel<ring>>> == 0);
#elif GALVATRON_REJECT == 6
static_assert(zero_of<Strategy<SequenceParallel<megatron>>> == 0);  // the tensor degree is 1 by default
#elif GALVATRON_REJECT == 7
constexpr Strategy<ZeRO<1>> refused({.data = 1});
#endif
