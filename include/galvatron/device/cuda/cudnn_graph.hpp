// Graphs of cuDNN's operations, and plans that execute them: its backend interface (cudnn_backend.h) with owners.
//
// Building a graph needs no GPU, and a plan none of its own: it is made for a handle or for a described device.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include <cudnn.h>
#include <cudnn_backend.h>

#include <galvatron/core/error.hpp>
#include <galvatron/device/owner.hpp>

namespace galvatron::device::cuda::cudnn {

/// cuDNN does not do what was asked for; `what` says which part, in its own words.
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline void check(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 256> text{};
  cudnnGetLastErrorString(text.data(), text.size());
  std::string message = std::string(what) + ": " + cudnnGetErrorString(status);
  if (text[0] != '\0') message += " (" + galvatron::detail::one_line(text.data()) + ")";
  throw Unsupported(message);
}

/// The same for want of workspace.
class InsufficientWorkspace : public Unsupported {
 public:
  using Unsupported::Unsupported;
};

/// A value of an object; those of no elements are left out.
struct Attribute {
  cudnnBackendAttributeName_t name;
  cudnnBackendAttributeType_t type;
  std::int64_t count;
  const void* values;

  Attribute(cudnnBackendAttributeName_t of, cudnnBackendAttributeType_t kind, std::int64_t n, const void* from)
      : name(of), type(kind), count(n), values(from) {}
  /// One element; an object that is null is left out.
  template <std::same_as<bool> Given = bool>
  Attribute(cudnnBackendAttributeName_t of, cudnnBackendAttributeType_t kind, const auto& value, Given given = true)
      : Attribute(of, kind, std::int64_t{given}, static_cast<const void*>(&value)) {}
  Attribute(cudnnBackendAttributeName_t of, const cudnnBackendDescriptor_t& object)
      : Attribute(of, CUDNN_TYPE_BACKEND_DESCRIPTOR, object, object != nullptr) {}
};

/// An object of the backend interface.
class Object {
 public:
  /// To be filled by a query of another one.
  Object(cudnnBackendDescriptorType_t type, const char* name) : name_(name) {
    check(cudnnBackendCreateDescriptor(type, owner_.out()), name);
  }
  /// Finished, with these attributes.
  Object(cudnnBackendDescriptorType_t type, const char* name, std::initializer_list<Attribute> attributes)
      : Object(type, name) {
    for (const Attribute& a : attributes)
      if (a.count > 0) check(cudnnBackendSetAttribute(get(), a.name, a.type, a.count, a.values), name);
    check(cudnnBackendFinalize(get()), name);
  }
  [[nodiscard]] const cudnnBackendDescriptor_t& get() const { return owner_.get(); }

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
  cudnnBackendDescriptor_t device = nullptr;
};

/// A tensor of a graph, which owns it.
using Tensor = cudnnBackendDescriptor_t;

/// The extents of a product that differ from sample to sample: tensors of one int32 each, or null.
struct Extents {
  Tensor rows = nullptr, columns = nullptr, summands = nullptr;
};

/// Operations on tensors of four dimensions.
class Graph {
 public:
  /// A tensor in memory on a boundary of that many bytes, which the call names by `id`. With `offsets`, of one more
  /// element than there are samples, sample i begins that many elements behind the tensor's address.
  Tensor memory(std::int64_t id, cudnnDataType_t type, const Four& extents, const Four& distances,
                std::int64_t boundary = 16, Tensor offsets = nullptr) {
    return tensor(id, type, extents, distances, Kind::memory, boundary, offsets);
  }
  /// One number, which the call names by `id` and which lies in memory of the program.
  Tensor number(std::int64_t id) { return tensor(id, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, Kind::number); }
  /// A tensor that only exists between operations; see memory() for `offsets`.
  Tensor between(cudnnDataType_t type, const Four& extents, const Four& distances, Tensor offsets = nullptr) {
    return tensor(next_++, type, extents, distances, Kind::between, 16, offsets);
  }
  /// The same, row by row.
  Tensor between(cudnnDataType_t type, const Four& extents) { return between(type, extents, dense(extents)); }
  static constexpr Four dense(const Four& e) { return {e[1] * e[2] * e[3], e[2] * e[3], e[3], 1}; }

  // Each operation returns its result, the last of its tensors.

  /// c = a b, in the last two dimensions; a's heads are a multiple of b's. `valid` are the rows, columns and summands
  /// of each sample.
  Tensor multiply(Tensor a, Tensor b, Tensor c, const Extents& valid = {}) {
    const Object& how = own(CUDNN_BACKEND_MATMUL_DESCRIPTOR, "matmul",
                            {{CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, float_math}});
    return operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, "matmul operation", c,
                     {{CUDNN_ATTR_OPERATION_MATMUL_DESC, how.get()},
                      {CUDNN_ATTR_OPERATION_MATMUL_ADESC, a},
                      {CUDNN_ATTR_OPERATION_MATMUL_BDESC, b},
                      {CUDNN_ATTR_OPERATION_MATMUL_CDESC, c},
                      {CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, valid.rows},
                      {CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, valid.columns},
                      {CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, valid.summands}});
  }
  /// y = mode(x), element by element.
  Tensor apply(cudnnPointwiseMode_t mode, Tensor x, Tensor y) { return pointwise(mode, float_math, x, y); }
  /// y = mode(x, b).
  Tensor apply(cudnnPointwiseMode_t mode, Tensor x, Tensor b, Tensor y) { return pointwise(mode, float_math, x, y, b); }
  /// y = the index of x's elements in dimension `axis`; y is int32.
  Tensor index(Tensor x, std::int64_t axis, Tensor y) {
    return pointwise(CUDNN_POINTWISE_GEN_INDEX, float_math, x, y, nullptr, nullptr, axis);
  }
  /// y = mode(x, b), a comparison or an operation on booleans; y is boolean.
  Tensor test(cudnnPointwiseMode_t mode, Tensor x, Tensor b, Tensor y) {
    return pointwise(mode, CUDNN_DATA_BOOLEAN, x, y, b);
  }
  /// y = x where t, else b.
  Tensor select(Tensor x, Tensor b, Tensor t, Tensor y) {
    return pointwise(CUDNN_POINTWISE_BINARY_SELECT, float_math, x, y, b, t);
  }
  /// y = x taken together along the dimensions in which y has one element, or fewer.
  Tensor reduce(cudnnReduceTensorOp_t mode, Tensor x, Tensor y) {
    const Object& how = own(CUDNN_BACKEND_REDUCTION_DESCRIPTOR, "reduction",
                            {{CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, float_math},
                             {CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, mode}});
    return operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, "reduction operation", y,
                     {{CUDNN_ATTR_OPERATION_REDUCTION_DESC, how.get()},
                      {CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x},
                      {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y}});
  }
  /// y = x with other extents and distances.
  Tensor reshape(Tensor x, Tensor y) {
    return operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, "reshape operation", y,
                     {{CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x}, {CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y}});
  }

  /// All operations in one object.
  [[nodiscard]] Object finished(const Target& target) const {
    return {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
            "operation graph",
            {{CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
              static_cast<std::int64_t>(operations_.size()), operations_.data()},
             {CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, target.handle, target.handle != nullptr}}};
  }

 private:
  enum class Kind : std::uint8_t { memory, number, between };
  static constexpr cudnnDataType_t float_math = CUDNN_DATA_FLOAT;
  static constexpr std::int64_t first_between = 1000;  // ids below are the caller's

  const Object& own(cudnnBackendDescriptorType_t type, const char* name, std::initializer_list<Attribute> attributes) {
    return objects_.emplace_back(type, name, attributes);
  }
  Tensor operation(cudnnBackendDescriptorType_t type, const char* name, Tensor result,
                   std::initializer_list<Attribute> attributes) {
    operations_.push_back(own(type, name, attributes).get());
    return result;
  }
  Tensor tensor(std::int64_t id, cudnnDataType_t type, const Four& extents, const Four& distances, Kind kind,
                std::int64_t boundary = 16, Tensor offsets = nullptr) {
    const Object& t = own(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "tensor",
                          {{CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id},
                           {CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type},
                           {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, extents.data()},
                           {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, distances.data()},
                           {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, boundary},
                           {CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, kind == Kind::between},
                           {CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, kind == Kind::number},
                           {CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, offsets}});
    return t.get();
  }
  Tensor pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t math, Tensor x, Tensor y, Tensor b = nullptr,
                   Tensor t = nullptr, std::int64_t axis = -1) {
    const Object& how = own(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "pointwise",
                            {{CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode},
                             {CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, math},
                             {CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis, axis >= 0}});
    return operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "pointwise operation", y,
                     {{CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how.get()},
                      {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x},
                      {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b},
                      {CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t},
                      {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y}});
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
  const Object heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "heuristics",
                          {{CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations.get()},
                           {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode},
                           {CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target.device}});
  const std::int64_t count = heuristics.query(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, nullptr);
  std::vector<Choice> found;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < count; ++i) {
    found.push_back({Object(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "engine configuration")});
    raw.push_back(found.back().configuration.get());
  }
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

/// An execution plan of the first configuration that the library's heuristics propose within a workspace limit; where
/// `deterministic`, of those that are bitwise reproducible. Throws Unsupported with the library's last message if there
/// is none, InsufficientWorkspace if one needs a larger workspace.
class Plan {
 public:
  Plan(const Graph& graph, const Target& target, std::int64_t most_workspace, bool deterministic = true)
      : plan_(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "plan") {
    const Object operations = graph.finished(target);
    std::string reason = "cuDNN has no engine for it";
    bool short_of_workspace = false;
    for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK})
      for (const Choice& choice : choices(operations, target, mode)) try {
          if (deterministic && choice.varies) throw Unsupported("cuDNN's engine gives other bits every time");
          plan_ = compiled(choice, target, most_workspace);
          return;
        } catch (const InsufficientWorkspace& unsupported) {
          short_of_workspace = true;
          reason = unsupported.what();
        } catch (const Unsupported& unsupported) {
          reason = unsupported.what();
        }
    if (short_of_workspace) throw InsufficientWorkspace(reason);
    throw Unsupported(reason);
  }

  /// In the handle's stream; `data` of tensors `ids`.
  void execute(cudnnHandle_t handle, const std::vector<std::int64_t>& ids, const std::vector<void*>& data,
               void* workspace) const {
    const auto count = static_cast<std::int64_t>(ids.size());
    const Object pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "variant pack",
                      {{CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids.data()},
                       {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, data.data()},
                       {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace}});
    check(cudnnBackendExecute(handle, plan_.get(), pack.get()), "execution");
  }

 private:
  static Object compiled(const Choice& choice, const Target& target, std::int64_t most_workspace) {
    const auto check_room = [&](std::int64_t workspace) {
      if (workspace > most_workspace)
        throw InsufficientWorkspace("cuDNN's engine needs a workspace of " + std::to_string(workspace) +
                                    " bytes and has " + std::to_string(most_workspace));
    };
    check_room(choice.workspace);
    Object plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "plan",
                {{CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, choice.configuration.get()},
                 {CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, target.handle, target.handle != nullptr},
                 {CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, target.device}});
    std::int64_t workspace = 0;
    plan.query(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &workspace);
    check_room(workspace);  // a plan may want more than its choice
    return plan;
  }

  Object plan_;
};

}  // namespace galvatron::device::cuda::cudnn
