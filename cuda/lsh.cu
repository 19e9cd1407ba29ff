// The kernels of device/cuda/buckets.hpp and lsh.hpp.
#include <galvatron/device/cuda/buckets.hpp>
#include <galvatron/device/cuda/launch.cuh>
#include <galvatron/device/cuda/lsh.hpp>

namespace galvatron::device::cuda {

#define GALVATRON_INSTANTIATE(T)                                                    \
  template void Stream::launch(const Geometry&, const RotateBySigns<T>&);           \
  template void Stream::launch(const Geometry&, const ForBuckets<BucketSums<T>>&);  \
  template void Stream::launch(const Geometry&, const BucketDistances<T>&);         \
  template void Stream::launch(const Geometry&, const ForRows<CombineBuckets<T>>&); \
  template void Stream::launch(const Geometry&, const BucketWeightsBackward<T>&);   \
  template void Stream::launch(const Geometry&, const GainBackward<T>&);            \
  template void Stream::launch(const Geometry&, const ForRows<CombineBucketsBackward<T>>&);
GALVATRON_INSTANTIATE(float)
GALVATRON_INSTANTIATE(bfloat16)
template void Stream::launch(const Geometry&, const AddTime&);
template void Stream::launch(const Geometry&, const ForEach<HashRows>&);
template void Stream::launch(const Geometry&, const ForEach<SingleBuckets>&);
template void Stream::launch(const Geometry&, const InsertRows&);
template void Stream::launch(const Geometry&, const ForEach<FindLeaders>&);
template void Stream::launch(const Geometry&, const RankRows&);
template void Stream::launch(const Geometry&, const SumLeaders&);
template void Stream::launch(const Geometry&, const NumberLeaders&);
template void Stream::launch(const Geometry&, const ForEach<PlaceRows>&);

}  // namespace galvatron::device::cuda
