// A separate program that computes on a GPU, or says why not.
#include <iostream>

#include <galvatron/device/cuda/devices.hpp>
#include <galvatron/device/cuda/machine.hpp>

int main() {
  using namespace galvatron::device::cuda;
  const auto count = device_count();
  if (!count) {
    std::cout << count.error().message << "\n";
    return count.error().kind == galvatron::ErrorKind::machine ? 0 : 1;
  }
  use_device(0);
  const DeviceMemory memory({Machine::library_workspace_bytes() + 64});
  galvatron::device::cuda::Stream stream;
  Machine machine(0, stream, {memory.data(), Machine::library_workspace_bytes()});
  auto* product = reinterpret_cast<float*>(memory.data() + Machine::library_workspace_bytes());
  machine.multiply({.m = 1, .n = 1, .k = 0}, product, product, nullptr, product);  // a kernel of the library
  machine.stream().wait();
  std::cout << describe_device(0).name << "\n";
}
