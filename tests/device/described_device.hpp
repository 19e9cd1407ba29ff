// A GPU as cuDNN describes it.
#pragma once

#include <cstdint>
#include <string_view>

#include <galvatron/device/cuda/cudnn_graph.hpp>

namespace galvatron::test {

/// A device in cuDNN's own notation (JSON), for plans made without it.
inline device::cuda::cudnn::Object described_device(std::string_view json) {
  return {CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR,
          "device",
          {{CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, static_cast<std::int64_t>(json.size()),
            json.data()}}};
}

}  // namespace galvatron::test
