// Attention through cuDNN: forward and backward in bfloat16 as graphs that its fused engines know.
//
// Which shapes an engine takes, only the library knows; what it refuses, our own kernel computes. Backward that gives
// the same bits every time has the weights' gradient, (queries, keys) of every head, in its workspace: samples and
// heads are taken a part at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/cuda/attention_graphs.hpp>
#include <galvatron/device/cuda/cudnn_graph.hpp>
#include <galvatron/device/cuda/stream.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/device/owner.hpp>

namespace galvatron::device::cuda {

namespace cudnn {

/// A plan for a part of the samples and heads, executed for one part after the other.
struct PlannedAttention {
  AttentionPart part{};
  Plan plan;

  /// The largest part whose plan, with tensors of its own, fits the workspace. Throws Refused.
  static PlannedAttention forward(const AttentionShape& s, const Target& target, std::int64_t most_workspace) {
    const AttentionPart all{s.batch, s.kv_heads};
    return {all, Plan(attention_forward_graph(s, all), target, most_workspace, true)};
  }
  static PlannedAttention backward(const AttentionShape& s, const Target& target, std::int64_t most_workspace,
                                   bool deterministic) {
    const std::vector<AttentionPart> parts = parts_of(s);
    for (const AttentionPart& part : parts) {
      const std::int64_t left = most_workspace - own_bytes(s, part, deterministic);
      try {
        return {part, Plan(attention_backward_graph(s, part, deterministic), target, left, deterministic)};
      } catch (const NeedsWorkspace&) {
        if (part == parts.back()) throw;
      }
    }
    throw Refused("there is nothing to compute");
  }

  /// What backward's own tensors take of the workspace, before the plan's.
  static std::int64_t own_bytes(const AttentionShape& s, const AttentionPart& part, bool deterministic) {
    return row_bytes(s, part) + (deterministic ? 0 : row_bytes(s, part) * s.head_dim);
  }
  static std::int64_t row_bytes(const AttentionShape& s, const AttentionPart& part) {
    return round_up(part.samples * part.heads(s) * s.queries * static_cast<std::int64_t>(sizeof(float)), 256);
  }

 private:
  // All samples and heads, then fewer and fewer.
  static std::vector<AttentionPart> parts_of(const AttentionShape& s) {
    std::vector<AttentionPart> parts;
    for (std::int64_t samples = s.batch; samples >= 1; --samples)
      if (s.batch % samples == 0) parts.push_back({samples, s.kv_heads});
    for (std::int64_t kv_heads = s.kv_heads - 1; kv_heads >= 1; --kv_heads)
      if (s.kv_heads % kv_heads == 0) parts.push_back({1, kv_heads});
    return parts;
  }
};

/// Why a shape is not even asked about on a card of that compute capability; empty when it may be.
///
/// cuDNN's notes know no gradients of a single key, and none of heads above 128 before Hopper. On Hopper its backward
/// walks 128 keys and 64 queries at a time, and tiles that are not full give NaN where a row's log-sum-exp is far below
/// zero, unless a causal mask covers them (pytorch/pytorch#196678, NVIDIA/cudnn-frontend#628 and #1072).
inline std::string unsuited(const AttentionShape& s, bool backward, int major) {
  if (s.head_dim % 8 != 0 || s.head_dim > 256) return "cuDNN takes heads of a multiple of 8 up to 256 elements";
  for (const std::int64_t row : {s.q_stride, s.kv_stride, s.out_stride, s.dq_row(), s.dkv_row()})
    if (row % 8 != 0) return "cuDNN takes rows on 16-byte boundaries";
  if (backward && s.keys == 1) return "cuDNN has no gradients for a single key";
  if (backward && major == 9 && !s.causal && (s.keys % 128 == 64 || (s.keys % 128 == 0 && s.queries % 64 != 0)))
    return "cuDNN's gradients may be NaN for these lengths without a causal mask";
  if (backward && major < 9 && s.head_dim > 128) return "cuDNN has gradients of heads up to 128 elements on this card";
  return {};
}

}  // namespace cudnn

/// The attention of one GPU, in one stream.
class Attention {
 public:
  /// The workspace starts on a 256-byte boundary. @param major  of the GPU's compute capability
  Attention(const Stream& stream, View<std::byte> workspace, int major, bool deterministic = true)
      : stream_(stream), workspace_(workspace), major_(major), deterministic_(deterministic) {}

  /// One line for every shape that cuDNN refused, or for cuDNN as a whole.
  [[nodiscard]] const std::vector<std::string>& refusals() const { return refusals_; }

  /// False: nothing was done, cuDNN does not take it.
  bool forward(const AttentionShape& s, Precision precision, const void* q, const void* k, const void* v, void* o,
               float* lse) {
    cudnn::PlannedAttention* planned = plan(s, precision, false, {q, k, v, o});
    if (planned == nullptr) return false;
    cudnn::Call call(s);
    numbers(call, s, false);
    call.tensor(cudnn::q, q, 0), call.tensor(cudnn::k, k, 0), call.tensor(cudnn::v, v, 0), call.tensor(cudnn::o, o, 0);
    call.tensor(cudnn::lse, lse, 0);
    execute(planned->plan, call, workspace_.data);
    return true;
  }
  bool backward(const AttentionShape& s, Precision precision, const void* q, const void* k, const void* v,
                const void* o, const float* lse, const void* d_o, void* dq, void* dk, void* dv) {
    cudnn::PlannedAttention* planned = plan(s, precision, true, {q, k, v, o, d_o, dq, dk, dv});
    if (planned == nullptr) return false;
    using cudnn::PlannedAttention;
    const cudnn::AttentionPart part = planned->part;
    const std::int64_t own = PlannedAttention::own_bytes(s, part, deterministic_);
    for (std::int64_t sample = 0; sample < s.batch; sample += part.samples)
      for (std::int64_t group = 0; group < s.kv_heads; group += part.kv_heads) {
        const std::int64_t head = group * (s.heads / s.kv_heads);
        const auto place = [&](std::int64_t row, std::int64_t of) {
          return (sample * row + of * s.head_dim) * static_cast<std::int64_t>(sizeof(bfloat16));
        };
        cudnn::Call call(s);
        numbers(call, s, true);
        call.tensor(cudnn::q, q, place(s.q_stride, head)), call.tensor(cudnn::dq, dq, place(s.dq_row(), head));
        call.tensor(cudnn::k, k, place(s.kv_stride, group)), call.tensor(cudnn::dk, dk, place(s.dkv_row(), group));
        call.tensor(cudnn::v, v, place(s.kv_stride, group)), call.tensor(cudnn::dv, dv, place(s.dkv_row(), group));
        call.tensor(cudnn::o, o, place(s.out_stride, head)), call.tensor(cudnn::d_o, d_o, place(s.out_stride, head));
        call.tensor(cudnn::lse, lse,
                    (sample * s.heads + head) * s.lse_row() * static_cast<std::int64_t>(sizeof(float)));
        call.tensor(cudnn::row_sums, workspace_.data, 0);
        if (!deterministic_) call.tensor(cudnn::dq_sums, workspace_.data, PlannedAttention::row_bytes(s, part));
        execute(planned->plan, call, workspace_.data + own);
      }
    return true;
  }

 private:
  /// Before 9.16, backward is wrong where keys are not a multiple of 128.
  static constexpr std::size_t oldest = 91600;

  struct Key {
    AttentionShape shape;
    bool backward;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const {
      const AttentionShape& s = key.shape;
      std::uint64_t h = key.backward ? 1 : 0;
      for (const std::int64_t extent :
           {s.batch, s.queries, s.keys, s.heads, s.kv_heads, s.head_dim, std::int64_t{s.causal}, s.q_stride,
            s.kv_stride, s.out_stride, s.dq_stride, s.dkv_stride, s.lse_stride})
        h = (h ^ static_cast<std::uint64_t>(extent)) * 0x9e3779b97f4a7c15ULL, h ^= h >> 29;
      return static_cast<std::size_t>(h);
    }
  };

  cudnn::PlannedAttention* plan(const AttentionShape& s, Precision precision, bool backward,
                                std::initializer_list<const void*> tensors) {
    if (precision != Precision::bf16 || s.keys == 0 || !opens()) return nullptr;
    for (const void* tensor : tensors)
      if (reinterpret_cast<std::uintptr_t>(tensor) % 16 != 0) {
        refuse(cudnn::to_string(s, backward) + ": cuDNN takes tensors on 16-byte boundaries");
        return nullptr;
      }
    const auto [found, fresh] = plans_.try_emplace(Key{s, backward});
    if (fresh) try {
        if (const std::string reason = cudnn::unsuited(s, backward, major_); !reason.empty())
          throw cudnn::Refused(reason);
        const cudnn::Target target{.handle = handle_.get()};
        found->second = backward ? cudnn::PlannedAttention::backward(s, target, workspace_.count, deterministic_)
                                 : cudnn::PlannedAttention::forward(s, target, workspace_.count);
      } catch (const cudnn::Refused& refused) {
        refuse(cudnn::to_string(s, backward) + ": " + refused.what());
      }
    return found->second ? &*found->second : nullptr;
  }
  // Makes the handle when it is first needed, which takes its time and memory.
  bool opens() {
    if (opened_) return handle_.get() != nullptr;
    opened_ = true;
    try {
      if (cudnnGetVersion() < oldest)
        throw cudnn::Refused("version " + std::to_string(cudnnGetVersion()) + " is older than " +
                             std::to_string(oldest));
      cudnn::check(cudnnCreate(handle_.out()), "handle");
      cudnn::check(cudnnSetStream(handle_.get(), stream_.get()), "stream");
    } catch (const cudnn::Refused& refused) {
      refuse("attention: cuDNN: " + std::string(refused.what()));
      handle_ = {};
    }
    return handle_.get() != nullptr;
  }
  void refuse(const std::string& line) {
    if (std::find(refusals_.begin(), refusals_.end(), line) == refusals_.end()) refusals_.push_back(line);
  }
  static void numbers(cudnn::Call& call, const AttentionShape& s, bool backward) {
    call.number(cudnn::scale, call.scale_value);
    if (s.causal) call.number(cudnn::masked, call.masked_value);
    if (backward) call.number(cudnn::one, call.one_value);
  }
  void execute(const cudnn::Plan& plan, const cudnn::Call& call, std::byte* workspace) {
    try {
      plan.execute(handle_.get(), call.ids, call.data, workspace);
    } catch (const cudnn::Refused& refused) {
      throw DeviceFailure("cuDNN: attention failed: " + std::string(refused.what()));
    }
  }

  const Stream& stream_;
  View<std::byte> workspace_;
  int major_;
  bool deterministic_;
  bool opened_ = false;
  Owner<cudnnHandle_t, cudnnDestroy> handle_;
  std::vector<std::string> refusals_;
  std::unordered_map<Key, std::optional<cudnn::PlannedAttention>, Hash> plans_;
};

}  // namespace galvatron::device::cuda
