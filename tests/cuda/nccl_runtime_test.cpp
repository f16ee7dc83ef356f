// SPDX-License-Identifier: Apache-2.0
// Compiled by itself: it specialises a template of namespace hetsched.
// NCCL itself. Without a GPU, that this is said in one error; with one, that it has an id to give.
#include <hetsched/cuda.hpp>
#include <hetsched/cuda/nccl.hpp>

#include <doctest/doctest.h>

#include <string>

#include <hetsched/runtime/communicator/thread_communicator.hpp>

using namespace hetsched;

namespace {

/// A tensor of bytes.
class bytes_on_device {
 public:
  bytes_on_device() = default;
  bytes_on_device(const tensor_shape& shape, const cuda_queue<cuda_runtime>& q) : shape_(shape), buffer_(q, shape.at(0)) {}
  [[nodiscard]] const tensor_shape& shape() const { return shape_; }
  cuda_buffer<cuda_runtime>& buffer() { return buffer_; }
  [[nodiscard]] const cuda_buffer<cuda_runtime>& buffer() const { return buffer_; }

 private:
  tensor_shape shape_;
  cuda_buffer<cuda_runtime> buffer_;
};

struct host_tensor {
  using value_type = double;
  host_tensor() = default;
  explicit host_tensor(const tensor_shape& s) : extents(s) {}
  [[nodiscard]] const tensor_shape& shape() const { return extents; }
  [[nodiscard]] double* data() { return nullptr; }
  [[nodiscard]] const double* data() const { return nullptr; }
  tensor_shape extents;
};

}  // namespace

template <>
struct hetsched::tensor_traits<bytes_on_device>
    : hetsched::cuda_tensor_traits<bytes_on_device, unsigned char, hetsched::cuda_runtime> {};

TEST_CASE("NCCL is called by ranks that have a GPU, or there is no GPU") {
  using control = thread_communicator<host_tensor>;
  using communicator = nccl_communicator<bytes_on_device, cuda_runtime, nccl_runtime, control>;
  static_assert(hetsched::communicator<communicator, bytes_on_device>);
  try {
    cuda_devices<cuda_runtime> devices;
    communicator end(devices, 0, control::connect(1)[0]);
    end.set_plan({});
    nccl_id id{};
    CHECK(nccl_runtime::unique_id(id) == 0);
    CHECK(id != nccl_id{});
  } catch (const cuda_error& e) {
    CAPTURE(e.what());
    CHECK(means_no_gpu(e.code));
    CHECK(std::string(e.what()).find("there is no GPU to use: cudaGetDeviceCount: ") == 0);
  }
  CHECK(nccl_runtime::error_text(6).find("remote") != std::string::npos);
}
