// Graphs of cuDNN's operations, and plans that execute them: its backend interface (cudnn_backend.h) with owners.
//
// Building a graph needs no GPU, and a plan none of its own: it is made for a handle or for a described device.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <cudnn.h>
#include <cudnn_backend.h>

#include <galvatron/core/error.hpp>
#include <galvatron/device/owner.hpp>

namespace galvatron::device::cuda::cudnn {

/// cuDNN does not do what was asked for; `what` says which part, in its own words.
class Refused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline void check(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 256> text{};
  cudnnGetLastErrorString(text.data(), text.size());
  std::string message = std::string(what) + ": " + cudnnGetErrorString(status);
  if (text[0] != '\0') message += " (" + galvatron::detail::one_line(text.data()) + ")";
  throw Refused(message);
}

/// The same for want of workspace.
class NeedsWorkspace : public Refused {
 public:
  using Refused::Refused;
};

/// An object of the backend interface; set all attributes, then finish.
class Object {
 public:
  Object(cudnnBackendDescriptorType_t type, const char* name) : name_(name) {
    check(cudnnBackendCreateDescriptor(type, owner_.out()), name);
  }
  [[nodiscard]] cudnnBackendDescriptor_t get() const { return owner_.get(); }

  void set(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type, std::int64_t count,
           const void* values) {
    check(cudnnBackendSetAttribute(get(), attribute, type, count, values), name_);
  }
  template <class V>
  void set(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type, const V& value) {
    set(attribute, type, 1, &value);
  }
  void set(cudnnBackendAttributeName_t attribute, cudnnBackendDescriptor_t object) {
    set(attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &object);
  }
  void finish() { check(cudnnBackendFinalize(get()), name_); }

  /// Fills `values` of up to `count` elements; returns how many there are.
  std::int64_t query(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type, std::int64_t count,
                     void* values) const {
    std::int64_t found = 0;
    check(cudnnBackendGetAttribute(get(), attribute, type, count, &found, values), name_);
    return found;
  }

 private:
  Owner<cudnnBackendDescriptor_t, cudnnBackendDestroyDescriptor> owner_;
  const char* name_;
};

/// Four extents, or the elements between neighbours in each of the four directions.
using Four = std::array<std::int64_t, 4>;

/// What a plan is made for: a handle of this machine, or a description of some device.
struct Target {
  cudnnHandle_t handle = nullptr;
  const Object* device = nullptr;
};

/// Operations on tensors of four dimensions.
class Graph {
 public:
  struct Tensor {
    cudnnBackendDescriptor_t object = nullptr;
    Four extents{};
  };

  /// A tensor in memory on a boundary of that many bytes, which the call names by `id`.
  Tensor memory(std::int64_t id, cudnnDataType_t type, const Four& extents, const Four& distances,
                std::int64_t boundary = 16) {
    return tensor(id, type, extents, distances, Kind::memory, boundary);
  }
  /// One number, which the call names by `id` and which lies in memory of the program.
  Tensor number(std::int64_t id) { return tensor(id, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, Kind::number); }
  /// A tensor that only exists between operations.
  Tensor between(cudnnDataType_t type, const Four& extents, const Four& distances) {
    return tensor(next_++, type, extents, distances, Kind::between);
  }
  /// The same, row by row.
  Tensor between(cudnnDataType_t type, const Four& extents) { return between(type, extents, dense(extents)); }
  static constexpr Four dense(const Four& e) { return {e[1] * e[2] * e[3], e[2] * e[3], e[3], 1}; }

  // Each operation returns its result, the last of its tensors.

  /// c = a b, in the last two dimensions; a's heads are a multiple of b's.
  Tensor multiply(const Tensor& a, const Tensor& b, const Tensor& c) {
    Object& how = own(CUDNN_BACKEND_MATMUL_DESCRIPTOR, "matmul");
    how.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    how.finish();
    Object& op = operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, "matmul operation");
    op.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, how.get());
    op.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, a.object);
    op.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, b.object);
    op.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, c.object);
    op.finish();
    return c;
  }
  /// y = mode(x), element by element.
  Tensor apply(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor& y) {
    return pointwise(mode, float_math, x, y);
  }
  /// y = mode(x, b).
  Tensor apply(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor& b, const Tensor& y) {
    return pointwise(mode, float_math, x, y, &b);
  }
  /// y = the index of x's elements in dimension `axis`; y is int32.
  Tensor index(const Tensor& x, std::int64_t axis, const Tensor& y) {
    return pointwise(CUDNN_POINTWISE_GEN_INDEX, float_math, x, y, nullptr, nullptr, axis);
  }
  /// y = x >= b; y is boolean.
  Tensor at_least(const Tensor& x, const Tensor& b, const Tensor& y) {
    return pointwise(CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, x, y, &b);
  }
  /// y = x where t, else b.
  Tensor select(const Tensor& x, const Tensor& b, const Tensor& t, const Tensor& y) {
    return pointwise(CUDNN_POINTWISE_BINARY_SELECT, float_math, x, y, &b, &t);
  }
  /// y = x taken together along the dimensions in which y has one element, or fewer.
  Tensor reduce(cudnnReduceTensorOp_t mode, const Tensor& x, const Tensor& y) {
    Object& how = own(CUDNN_BACKEND_REDUCTION_DESCRIPTOR, "reduction");
    how.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    how.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, mode);
    how.finish();
    Object& op = operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, "reduction operation");
    op.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, how.get());
    op.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x.object);
    op.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y.object);
    op.finish();
    return y;
  }
  /// y = x with other extents and distances.
  Tensor reshape(const Tensor& x, const Tensor& y) {
    Object& op = operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, "reshape operation");
    op.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x.object);
    op.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y.object);
    op.finish();
    return y;
  }

  /// All operations in one object.
  [[nodiscard]] Object finished(const Target& target) const {
    Object graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "operation graph");
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
              static_cast<std::int64_t>(operations_.size()), operations_.data());
    if (target.handle != nullptr) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
    graph.finish();
    return graph;
  }

 private:
  enum class Kind : std::uint8_t { memory, number, between };
  static constexpr cudnnDataType_t float_math = CUDNN_DATA_FLOAT;
  static constexpr std::int64_t first_between = 1000;  // ids below are the caller's

  Object& own(cudnnBackendDescriptorType_t type, const char* name) {
    objects_.emplace_back(type, name);
    return objects_.back();
  }
  Object& operation(cudnnBackendDescriptorType_t type, const char* name) {
    Object& op = own(type, name);
    operations_.push_back(op.get());
    return op;
  }
  Tensor tensor(std::int64_t id, cudnnDataType_t type, const Four& extents, const Four& distances, Kind kind,
                std::int64_t boundary = 16) {
    Object& t = own(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "tensor");
    t.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
    t.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
    t.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, extents.data());
    t.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, distances.data());
    t.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, boundary);
    t.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, kind == Kind::between);
    t.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, kind == Kind::number);
    t.finish();
    return {t.get(), extents};
  }
  Tensor pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t math, const Tensor& x, const Tensor& y,
                   const Tensor* b = nullptr, const Tensor* t = nullptr, std::int64_t axis = -1) {
    Object& how = own(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "pointwise");
    how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
    how.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, math);
    if (axis >= 0) how.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
    how.finish();
    Object& op = operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "pointwise operation");
    op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how.get());
    op.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x.object);
    if (b != nullptr) op.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b->object);
    if (t != nullptr) op.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t->object);
    op.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y.object);
    op.finish();
    return y;
  }

  std::int64_t next_ = first_between;
  std::deque<Object> objects_;  ///< tensors and operations stay where they are
  std::vector<cudnnBackendDescriptor_t> operations_;
};

/// An engine, and how it is to run.
struct Choice {
  Object configuration;
  std::int64_t workspace = 0;  ///< bytes
  bool varies = false;         ///< other bits every time
};

/// What the library proposes for the operations, the best first.
inline std::vector<Choice> choices(const Object& operations, const Target& target, cudnnBackendHeurMode_t mode) {
  Object heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "heuristics");
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations.get());
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
  if (target.device != nullptr) heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target.device->get());
  heuristics.finish();
  const std::int64_t count = heuristics.query(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, nullptr);
  std::vector<Choice> found;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < count; ++i) {
    found.push_back({Object(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "engine configuration")});
    raw.push_back(found.back().configuration.get());
  }
  if (count == 0) return found;
  const std::int64_t made =
      heuristics.query(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, raw.data());
  while (static_cast<std::int64_t>(found.size()) > made) found.pop_back();
  for (Choice& choice : found) {
    choice.configuration.query(CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &choice.workspace);
    const Object engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR, "engine");
    cudnnBackendDescriptor_t its = engine.get();
    choice.configuration.query(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &its);
    std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
    const std::int64_t noted = engine.query(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                            static_cast<std::int64_t>(notes.size()), notes.data());
    choice.varies =
        std::find(notes.begin(), notes.begin() + noted, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) != notes.begin() + noted;
  }
  return found;
}

/// The first of the library's choices within that workspace, compiled; when `deterministic`, one that gives the same
/// bits every time. Throws Refused with the last reason when there is none, NeedsWorkspace when more would have helped.
class Plan {
 public:
  Plan(const Graph& graph, const Target& target, std::int64_t most_workspace, bool deterministic)
      : plan_(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "plan") {
    const Object operations = graph.finished(target);
    std::string reason = "cuDNN has no engine for it";
    bool short_of_workspace = false;
    const auto has_room = [&](std::int64_t workspace) {
      if (workspace <= most_workspace) return true;
      short_of_workspace = true;
      reason = "cuDNN's engine needs a workspace of " + std::to_string(workspace) + " bytes and has " +
               std::to_string(most_workspace);
      return false;
    };
    for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK})
      for (const Choice& choice : choices(operations, target, mode)) {
        if (choice.varies && deterministic) {
          reason = "cuDNN's engine gives other bits every time";
          continue;
        }
        if (!has_room(choice.workspace)) continue;
        try {
          compile(choice, target);
        } catch (const Refused& refused) {
          reason = refused.what();
          continue;
        }
        if (has_room(workspace_)) return;  // a plan may want more than its choice
      }
    if (short_of_workspace) throw NeedsWorkspace(reason);
    throw Refused(reason);
  }

  [[nodiscard]] std::int64_t workspace() const { return workspace_; }

  /// In the handle's stream; `data` of tensors `ids`.
  void execute(cudnnHandle_t handle, const std::vector<std::int64_t>& ids, const std::vector<void*>& data,
               void* workspace) const {
    Object pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "variant pack");
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, static_cast<std::int64_t>(ids.size()), ids.data());
    pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, static_cast<std::int64_t>(data.size()),
             data.data());
    pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
    pack.finish();
    check(cudnnBackendExecute(handle, plan_.get(), pack.get()), "execution");
  }

 private:
  void compile(const Choice& choice, const Target& target) {
    Object plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "plan");
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, choice.configuration.get());
    if (target.handle != nullptr) plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
    if (target.device != nullptr) plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, target.device->get());
    plan.finish();
    plan.query(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &workspace_);
    plan_ = std::move(plan);
  }

  Object plan_;
  std::int64_t workspace_ = 0;
};

}  // namespace galvatron::device::cuda::cudnn
