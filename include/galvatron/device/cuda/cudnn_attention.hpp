// The attention of a GPU by cuDNN's plans, of samples of one length and of packed documents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <galvatron/device/cuda/cudnn_attention_plan.hpp>
#include <galvatron/device/cuda/document_groups.hpp>
#include <galvatron/device/cuda/pointwise.hpp>
#include <galvatron/device/cuda/stream.hpp>
#include <galvatron/device/device.hpp>

namespace galvatron::device::cuda {

/// The attention of one GPU, in one stream.
class Attention {
 public:
  /// The workspace starts on a 256-byte boundary.
  /// @param major  of the GPU's compute capability
  /// @param deterministic  backward gives the same bits every time
  Attention(Stream& stream, View<std::byte> workspace, int major, bool deterministic = true)
      : stream_(stream), workspace_(workspace), major_(major), deterministic_(deterministic) {}

  /// One line for every shape that cuDNN does not support.
  [[nodiscard]] const std::set<std::string>& refusals() const { return refusals_; }

  /// Forward, or with d_o backward; `tensors` as in cudnn::AttentionData. False: nothing was done, cuDNN does not take
  /// it.
  bool compute(const AttentionShape& s, Precision precision, auto*... tensors) {
    const cudnn::AttentionData data{tensors...};
    if (precision != Precision::bf16) return false;
    const cudnn::PlannedAttention* const planned = plan(s, data, false);
    if (planned == nullptr) return false;
    for (std::int64_t sample = 0; sample < s.batch; sample += planned->part.samples)
      for (std::int64_t group = 0; group < s.kv_heads; group += planned->part.kv_heads)
        execute(*planned, s, data, workspace_, [&](cudnn::Call& call) { call.tensors(s, data, sample, group); });
    return true;
  }
  /// The same of packed documents with a causal mask, whose tables lie on the device: a call for each group of them.
  bool compute(const AttentionShape& s, const DocumentGroups& documents, const std::byte* tables, auto*... tensors) {
    cudnn::AttentionData data{tensors...};
    if (documents.all().size() > most_groups) {
      refusals_.insert("attention of packed documents: more than " + std::to_string(most_groups) +
                       " groups of neighbours of like lengths, of which each would be a call");
      return false;
    }
    std::vector<const cudnn::PlannedAttention*> plans;
    for (const DocumentGroup& group : documents.all()) {
      plans.push_back(plan(shape_of(s, group), data, true));
      if (plans.back() == nullptr) return false;
    }
    if (s.queries * s.heads * static_cast<std::int64_t>(sizeof(float)) > statistics_bytes()) {
      refusals_.insert("attention of packed documents: the workspace does not hold the log-sum-exps of " +
                       std::to_string(s.heads) + " heads of so many tokens");
      return false;
    }
    float* const lse = const_cast<float*>(data.lse);
    auto* const by_token = reinterpret_cast<float*>(workspace_.data);
    data.lse = by_token;
    if (data.backward()) move_runs<false>(stream_, reversed(by_head(s)), static_cast<const float*>(lse), by_token);
    for (std::size_t i = 0; i < plans.size(); ++i)
      attend(*plans[i], shape_of(s, documents.all()[i]), data, documents.all()[i], documents.table(i, tables));
    if (!data.backward()) move_runs<false>(stream_, by_head(s), static_cast<const float*>(by_token), lse);
    return true;
  }

 private:
  /// Before 9.16, backward is wrong where keys are not a multiple of 128.
  static constexpr std::size_t oldest = 91600;
  /// Of a call. Documents in the order of their lengths are about ten groups, and twice as many in the two parts of a
  /// sequence that a rank of a ring has.
  static constexpr std::size_t most_groups = 24;

  /// Of the workspace, what log-sum-exps of packed documents have: (tokens, heads) floats.
  [[nodiscard]] std::int64_t statistics_bytes() const { return workspace_.count / 16 / 256 * 256; }
  [[nodiscard]] View<std::byte> behind_statistics() const {
    return workspace_.slice(statistics_bytes(), workspace_.count - statistics_bytes());
  }
  /// The shape of a group's plan, which knows nothing of the call's tokens.
  static AttentionShape shape_of(AttentionShape s, const DocumentGroup& group) {
    s.batch = group.slots;
    s.queries = s.keys = group.tokens;
    s.lse_stride = 0;
    return s;
  }
  /// Log-sum-exps (tokens, heads) to where a call has them.
  static Runs by_head(const AttentionShape& s) {
    return {.blocks = s.heads,
            .rows = s.queries,
            .width = 1,
            .from = {.block = 1, .row = s.heads},
            .to = {.block = s.lse_row(), .row = 1}};
  }
  static Runs reversed(Runs runs) {
    std::swap(runs.from, runs.to);
    return runs;
  }

  // One group of documents. Parts of slots without documents are left out.
  void attend(const cudnn::PlannedAttention& planned, const AttentionShape& s, const cudnn::AttentionData& data,
              const DocumentGroup& group, const DocumentGroups::Table& table) {
    for (std::int64_t slot = 0; slot < group.count(); slot += planned.part.samples)
      for (std::int64_t head = 0; head < s.kv_heads; head += planned.part.kv_heads)
        execute(planned, s, data, behind_statistics(),
                [&](cudnn::Call& call) { call.tensors(s, data, table, slot, head); });
  }
  void execute(const cudnn::PlannedAttention& planned, const AttentionShape& s, const cudnn::AttentionData& data,
               View<std::byte> workspace, const auto& add_tensors) {
    cudnn::Call call(s, data.backward());
    add_tensors(call);
    if (data.backward()) call.tensor(cudnn::row_sums, workspace.data);
    if (planned.dq_sum_bytes > 0) call.tensor(cudnn::dq_sums, workspace.data, planned.row_sum_bytes);
    try {
      planned.plan.execute(handle_.get(), call.ids, call.data,
                           workspace.data + planned.row_sum_bytes + planned.dq_sum_bytes);
    } catch (const cudnn::Unsupported& unsupported) {
      throw DeviceFailure("cuDNN: attention failed: " + std::string(unsupported.what()));
    }
  }

  const cudnn::PlannedAttention* plan(const AttentionShape& s, const cudnn::AttentionData& data, bool packed) {
    if (s.keys == 0) return nullptr;
    const std::string what = (packed ? "packed documents, " : "") + cudnn::to_string(s, data.backward()) + ": ";
    if (!data.on_boundaries()) {
      refusals_.insert(what + "cuDNN takes tensors on 16-byte boundaries");
      return nullptr;
    }
    const auto [found, fresh] = plans_.try_emplace(std::tuple(s, data.backward(), packed));
    if (fresh) try {
        const std::string reason = packed ? cudnn::unsuited_documents(s, data.backward(), major_)
                                          : cudnn::unsuited(s, data.backward(), major_);
        if (!reason.empty()) throw cudnn::Unsupported(reason);
        open();
        found->second =
            cudnn::plan_attention(s, data.backward(), {.handle = handle_.get()},
                                  packed ? behind_statistics().count : workspace_.count, deterministic_, packed);
      } catch (const cudnn::Unsupported& unsupported) {
        refusals_.insert(what + unsupported.what());
      }
    return found->second ? &*found->second : nullptr;
  }
  // Makes the handle when it is first needed, which takes its time and memory.
  void open() {
    if (handle_.get() != nullptr) return;
    if (cudnnGetVersion() < oldest)
      throw cudnn::Unsupported("version " + std::to_string(cudnnGetVersion()) + " is older than " +
                               std::to_string(oldest));
    Owner<cudnnHandle_t, cudnnDestroy> handle;
    cudnn::check(cudnnCreate(handle.out()), "handle");
    cudnn::check(cudnnSetStream(handle.get(), stream_.get()), "stream");
    handle_ = std::move(handle);
  }

  Stream& stream_;
  View<std::byte> workspace_;
  int major_;
  bool deterministic_;
  Owner<cudnnHandle_t, cudnnDestroy> handle_;
  std::set<std::string> refusals_;
  /// By shape, whether backward and whether packed.
  std::map<std::tuple<AttentionShape, bool, bool>, std::optional<cudnn::PlannedAttention>> plans_;
};

}  // namespace galvatron::device::cuda
