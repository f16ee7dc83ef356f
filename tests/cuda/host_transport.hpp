// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/runtime/communicator/shaped_communicator.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>

#include "fake_layers.hpp"

namespace hetsched::test {

/// A transport of the hosts: sends the bytes of tensors in pinned memory, and tells the fake when it reads and writes them.
class host_transport {
  using inner = shaped_communicator<thread_communicator<matrix<double>>>;

 public:
  class operation {
   public:
    double end_s = 0;

   private:
    friend class host_transport;
    inner::operation posted_;
    std::span<std::byte> into_;  ///< what is received
  };
  host_transport(inner end, cuda_check::machine& machine, std::size_t* most_bytes = nullptr)
      : inner_(std::move(end)), machine_(&machine), most_bytes_(most_bytes) {}

  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int ranks() const { return inner_.ranks(); }
  [[nodiscard]] int open(const edge& e) { return inner_.open(e); }
  template <class Tensor>
  void post_send(int channel, const stamp& s, Tensor& t, operation& op) {
    post_send_bytes(channel, s, bytes_of(t), op);
  }
  template <class Tensor>
  void post_receive(int channel, const stamp& s, Tensor& t, operation& op) {
    post_receive_bytes(channel, s, bytes_of(t), op);
  }
  void post_send_bytes(int channel, const stamp& s, std::span<const std::byte> bytes, operation& op) {
    machine_->host_access(bytes.data(), bytes.size(), false);
    if (most_bytes_) *most_bytes_ = std::max(*most_bytes_, bytes.size());
    op.into_ = {};
    inner_.post_send_bytes(channel, s, bytes, op.posted_);
  }
  void post_receive_bytes(int channel, const stamp& s, std::span<std::byte> bytes, operation& op) {
    // It writes at any time from now on.
    machine_->host_access(bytes.data(), bytes.size(), true);
    op.into_ = bytes;
    inner_.post_receive_bytes(channel, s, bytes, op.posted_);
  }
  [[nodiscard]] bool poll(operation& op) {
    if (!inner_.poll(op.posted_)) return false;
    op.end_s = op.posted_.end_s;
    return true;
  }
  [[nodiscard]] wait_result wait(deadline_time until, bool sends) { return inner_.wait(until, sends); }
  void abort(const std::string& reason) { inner_.abort(reason); }
  [[nodiscard]] std::string failure() const { return inner_.failure(); }
  [[nodiscard]] wait_result gather(std::span<const double> mine, std::vector<std::vector<double>>& all, deadline_time until) {
    return inner_.gather(mine, all, until);
  }

 private:
  template <class Tensor>
  static std::span<std::byte> bytes_of(Tensor& t) {
    return std::as_writable_bytes(std::span(t.data(), t.size()));
  }
  inner inner_;
  cuda_check::machine* machine_;
  std::size_t* most_bytes_;
};

}  // namespace hetsched::test
