// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cuda/buffer.hpp>
#include <hetsched/cuda/devices.hpp>
#include <hetsched/cuda/local_axis.hpp>
#include <hetsched/cuda/queue.hpp>
#include <hetsched/cuda/tensor.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/communicator/shared_values.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

namespace detail {

/// Moves tensors between ranks of one process: swaps them where both are on the same device or both on the host, else enqueues a
/// copy, behind what writes the one and reads the other, on a queue of the channel.
template <pipeline_tensor Tensor, cuda_api Api>
class cuda_mover {
  using traits = tensor_traits<Tensor>;

 public:
  using lane = std::shared_ptr<const cuda_queue<Api>>;  ///< null: none is needed

  cuda_mover(cuda_devices<Api>& devices, std::vector<int> places) : devices_(&devices), places_(std::move(places)) {}

  [[nodiscard]] int place(int rank) const { return at(places_, rank); }
  [[nodiscard]] lane open(const edge& e) const {
    const int from = place(e.from), to = place(e.to);
    if (from == to) return nullptr;
    return devices_->lend_queue(to < 0 ? from : to, "the " + to_text(e));
  }
  static void move(lane& on, Tensor& sent, Tensor& taken) {
    auto& source = traits::buffer(sent);
    auto& target = traits::buffer(taken);
    if (!on) {
      using std::swap;
      swap(sent, taken);
    } else if (source.bytes() > 0) {
      const auto& q = *on;
      work_on(q, {&source}, {&target}, [&] { enqueue_copy(q, target, source); });
    }
  }

 private:
  cuda_devices<Api>* devices_;
  std::vector<int> places_;
};

}  // namespace detail

/// Connects ranks of one process, a thread each, on GPUs and on the host. For a rank on a GPU a transfer has ended when it is
/// enqueued: tensors know their moments. For one on the host it has when the bytes are there, or have left.
/// Tensors are made of a cuda_buffer: see cuda_tensor_traits. The axes of groups have collectives in device memory.
template <pipeline_tensor Tensor, cuda_api Api>
class cuda_local_communicator {
  using traits = tensor_traits<Tensor>;
  using mover = detail::cuda_mover<Tensor, Api>;
  using inner = thread_communicator<Tensor, mover>;

 public:
  /// All ranks' ends; `places`: the device of each rank, -1 for the host.
  /// Throws: input_error for a device that is not there.
  [[nodiscard]] static std::vector<cuda_local_communicator> connect(cuda_devices<Api>& devices, const std::vector<int>& places) {
    for (const int d : places)
      if (d < -1 || d >= devices.count())
        throw input_error("there is no device " + std::to_string(d) + " among " + std::to_string(devices.count()));
    std::vector<cuda_local_communicator> ends;
    for (auto& end : inner::connect(static_cast<int>(places.size()), mover(devices, places)))
      ends.push_back(cuda_local_communicator(std::move(end), places[ends.size()] < 0));
    return ends;
  }

  class operation {
   public:
    double end_s = 0;

   private:
    friend class cuda_local_communicator;
    typename inner::operation posted_;
    Tensor* tensor_ = nullptr;
    bool sends_ = false;
  };

  /// Of the ranks along an axis of a stage_group.
  using axis = cuda_local_axis<Tensor, cuda_queue<Api>, cuda_local_communicator>;

  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int ranks() const { return inner_.ranks(); }
  [[nodiscard]] int open(const edge& e) { return inner_.open(e); }

  void post_send(int channel, const stamp& s, Tensor& t, operation& op) {
    op.tensor_ = &t;
    op.sends_ = true;
    inner_.post_send(channel, s, t, op.posted_);
  }
  void post_receive(int channel, const stamp& s, Tensor& t, operation& op) {
    op.tensor_ = &t;
    op.sends_ = false;
    inner_.post_receive(channel, s, t, op.posted_);
  }
  /// Throws: cuda_error where a device has failed.
  [[nodiscard]] bool poll(operation& op) {
    if (!inner_.poll(op.posted_)) return false;
    if (on_host_ && op.tensor_) {
      const auto& b = traits::buffer(*op.tensor_);
      if (!(op.sends_ ? b.is_idle() : b.is_ready())) {
        std::atomic_ref(copying_).store(true);  // another thread may be in wait
        return false;
      }
      op.tensor_ = nullptr;  // it may be used for something else
      op.end_s = steady_now_s();
    } else if (!on_host_) {
      op.end_s = op.posted_.end_s;
    }
    return true;
  }

  /// A rank on the host looks every 20 us for the end of copies.
  [[nodiscard]] wait_result wait(deadline_time until, bool sends) {
    constexpr double look_s = 20e-6;
    if (!std::atomic_ref(copying_).exchange(false)) return inner_.wait(until, sends);
    const auto result = inner_.wait(std::min(until, deadline_in(look_s)), sends);
    return result == wait_result::deadline && std::chrono::steady_clock::now() < until ? wait_result::progress : result;
  }
  void abort(const std::string& reason) { inner_.abort(reason); }
  [[nodiscard]] std::string failure() const { return inner_.failure(); }
  /// Where the threads of a group meet.
  [[nodiscard]] auto open_meeting(const group_place& place) { return inner_.open_meeting(place); }
  [[nodiscard]] wait_result gather(std::span<const double> mine, std::vector<std::vector<double>>& all, deadline_time until) {
    return inner_.gather(mine, all, until);
  }
  /// See sharing_plane.
  [[nodiscard]] wait_result gather(std::span<const double> mine, std::shared_ptr<const gather_round>& all, deadline_time until) {
    return inner_.gather(mine, all, until);
  }
  [[nodiscard]] shared_values* shared() const { return inner_.shared(); }

 private:
  cuda_local_communicator(inner end, bool on_host) : inner_(std::move(end)), on_host_(on_host) {}

  inner inner_;
  bool on_host_;
  bool copying_ = false;  ///< seen since the last wait
};

}  // namespace hetsched
