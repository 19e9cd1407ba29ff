// What ranks on one GPU need of it: queues of work, and fences by which one queue waits for another.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace galvatron::comm::local_gpu {

/// Work of one stream is done in order, that of several in any. All ranks' streams are of one device. A stream is used
/// by its rank's thread alone, a fence by any.
template <class S>
concept Stream = requires(S& s, typename S::Fence& fence, const std::byte* from, std::byte* to, std::int64_t bytes) {
  requires std::default_initializable<typename S::Fence>;
  /// Also s.launch(geometry, kernel), as in device/cuda.
  s.copy(from, to, bytes);
  /// The fence is passed when all that the stream was given so far is done; what it stood for before is forgotten.
  s.record(fence);
  /// What the stream is given from now on waits for what the fence stands for now; for nothing if it was not recorded.
  s.wait_for(fence);
  /// The program waits for all that the stream was given.
  s.wait();
  /// The same for a fence.
  fence.wait();
};

}  // namespace galvatron::comm::local_gpu
