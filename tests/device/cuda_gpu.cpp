// Every operation of the Device concept as a GPU has it, its kernels run by the emulator, against the host device.
#include <vector>

#include <galvatron/device/cuda/gpu.hpp>

#include "emulated_machine.hpp"
#include "every_operation.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;

class Backend {
 public:
  static constexpr bool slow = true;
  template <class T>
  class Tensor {
   public:
    explicit Tensor(const std::vector<T>& values) : values_(values) {}
    View<T> view() { return test::view(values_); }
    [[nodiscard]] const std::vector<T>& get() const { return values_; }

   private:
    std::vector<T> values_;
  };
  device::cuda::Gpu<EmulatedMachine>& device() { return device_; }

 private:
  EmulatedMachine machine_{5};
  device::cuda::Gpu<EmulatedMachine> device_{machine_};
};

TEST_CASE_TEMPLATE("matrix products", T, float, bfloat16) { operations::matrix_products<Backend, T>(); }
TEST_CASE_TEMPLATE("products of 8 bits", C, float, bfloat16) { operations::products_8bit<Backend, C>(); }
TEST_CASE_TEMPLATE("attention", T, float, bfloat16) { operations::attention<Backend, T>(); }
TEST_CASE_TEMPLATE("attention of packed documents", T, float, bfloat16) { operations::packed_attention<Backend, T>(); }
TEST_CASE_TEMPLATE("parts of attention merged", T, float, bfloat16) { operations::attention_merge<Backend, T>(); }
TEST_CASE_TEMPLATE("biases by distance", T, float, bfloat16) { operations::relative_biases<Backend, T>(); }
TEST_CASE_TEMPLATE("attention in windows", T, float, bfloat16) { operations::window_attention<Backend, T>(); }
TEST_CASE_TEMPLATE("norms", T, float, bfloat16) { operations::norms<Backend, T>(); }
TEST_CASE_TEMPLATE("sums, activations and gradients of biases", T, float, bfloat16) {
  operations::activations<Backend, T>();
}
TEST_CASE_TEMPLATE("products with activations", T, float, bfloat16) { operations::activated_products<Backend, T>(); }
TEST_CASE_TEMPLATE("rotation, embeddings, positions and pooling", T, float, bfloat16) {
  operations::embeddings<Backend, T>();
}
TEST_CASE_TEMPLATE("cross-entropy", T, float, bfloat16) { operations::cross_entropy<Backend, T>(); }
TEST_CASE_TEMPLATE("routers of experts", T, float, bfloat16) { operations::routers<Backend, T>(); }
TEST_CASE_TEMPLATE("rows of experts", T, float, bfloat16) { operations::expert_rows<Backend, T>(); }
TEST_CASE_TEMPLATE("buckets of tokens", T, float, bfloat16) { operations::buckets<Backend, T>(); }
TEST_CASE_TEMPLATE("products of experts", T, float, bfloat16) { operations::grouped_products<Backend, T>(); }
TEST_CASE_TEMPLATE("optimizer steps", T, float, bfloat16) { operations::optimizer_steps<Backend, T>(); }
TEST_CASE_TEMPLATE("copies, zeros and sums of runs", T, float, bfloat16) { operations::copies<Backend, T>(); }

}  // namespace
