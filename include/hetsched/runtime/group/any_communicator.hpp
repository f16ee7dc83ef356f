// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/contract.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/communicator/shared_values.hpp>
#include <hetsched/runtime/group/axis_group.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// A communicator of tensors in host memory, of a type that is known at run time only: executors and trainers over it are
/// compiled once, whatever the transport. Copies are ends of the same rank, as those of what it holds. Groups are those of the
/// communicator that it holds, and a call costs an indirect one more. What planes of devices offer beyond that, as orders of
/// operations, it does not pass on.
template <class Tensor>
class any_communicator {
  static_assert((detail::require_tensor<Tensor>(), true));
  using axis = device_axis<typename tensor_traits<Tensor>::element>;
  struct any_operation {
    any_operation() = default;
    any_operation(const any_operation&) = delete;
    any_operation& operator=(const any_operation&) = delete;
    virtual ~any_operation() = default;
  };

 public:
  class operation {
   public:
    double end_s = 0;

   private:
    friend class any_communicator;
    std::unique_ptr<any_operation> own_;  ///< made when it is posted first
  };
  template <class Communicator>
  requires(!std::same_as<Communicator, any_communicator> && communicator<Communicator, Tensor> && byte_plane<Communicator> &&
           std::copy_constructible<Communicator>) explicit any_communicator(Communicator comm)
      : held_(std::make_unique<held<Communicator>>(std::move(comm))) {}
  /// Not compiled: says what a communicator lacks.
  template <class Communicator>
  requires(!std::same_as<Communicator, any_communicator> && requires { typename Communicator::operation; } &&
           !(communicator<Communicator, Tensor> && byte_plane<Communicator> &&
             std::copy_constructible<Communicator>)) explicit any_communicator(const Communicator&) {
    detail::require_communicator<Communicator, Tensor>();
    static_assert(!communicator<Communicator, Tensor> || byte_plane<Communicator>,
                  "the communicator has no post_send_bytes() and post_receive_bytes(): see byte_plane");
    static_assert(std::copy_constructible<Communicator>, "the communicator cannot be copied: copies are ends of the same rank");
  }
  any_communicator(const any_communicator& other) : held_(other.held_->copy()) {}
  any_communicator& operator=(const any_communicator& other) {
    held_ = other.held_->copy();
    return *this;
  }
  any_communicator(any_communicator&&) noexcept = default;
  any_communicator& operator=(any_communicator&&) noexcept = default;
  ~any_communicator() = default;

  [[nodiscard]] int rank() const { return held_->rank(); }
  [[nodiscard]] int ranks() const { return held_->ranks(); }
  [[nodiscard]] int open(const edge& e) { return held_->open(e); }
  void post_send(int channel, const stamp& s, Tensor& t, operation& op) { held_->post_send(channel, s, t, op.own_); }
  void post_receive(int channel, const stamp& s, Tensor& t, operation& op) { held_->post_receive(channel, s, t, op.own_); }
  /// See byte_plane.
  void post_send_bytes(int channel, const stamp& s, std::span<const std::byte> bytes, operation& op) {
    held_->post_send_bytes(channel, s, bytes, op.own_);
  }
  void post_receive_bytes(int channel, const stamp& s, std::span<std::byte> bytes, operation& op) {
    held_->post_receive_bytes(channel, s, bytes, op.own_);
  }
  [[nodiscard]] bool poll(operation& op) { return op.own_ && held_->poll(*op.own_, op.end_s); }
  [[nodiscard]] wait_result wait(deadline_time until, bool sends) { return held_->wait(until, sends); }
  void abort(const std::string& reason) { held_->abort(reason); }
  [[nodiscard]] std::string failure() const { return held_->failure(); }
  [[nodiscard]] wait_result gather(std::span<const double> mine, std::vector<std::vector<double>>& all, deadline_time until) {
    return held_->gather(mine, all, until);
  }
  /// See sharing_plane.
  [[nodiscard]] wait_result gather(std::span<const double> mine, std::shared_ptr<const gather_round>& all, deadline_time until) {
    return held_->gather(mine, all, until);
  }
  [[nodiscard]] shared_values* shared() const { return held_->shared(); }
  /// See asking_plane: of one that is none, that the time is over is all there is to tell.
  [[nodiscard]] wait_result ask() { return held_->ask(); }
  /// Bytes that this rank has sent, if the communicator counts them.
  [[nodiscard]] std::optional<std::uint64_t> bytes_sent() const { return held_->bytes_sent(); }
  /// See axis_group, which throws as this does.
  [[nodiscard]] axis open_axis(std::vector<int> ranks, axis_options options) const {
    return held_->open_axis(std::move(ranks), std::move(options));
  }

 private:
  using slot = std::unique_ptr<any_operation>;

  struct plane {
    plane() = default;
    plane(const plane&) = delete;
    plane& operator=(const plane&) = delete;
    virtual ~plane() = default;
    [[nodiscard]] virtual std::unique_ptr<plane> copy() const = 0;
    [[nodiscard]] virtual int rank() const = 0;
    [[nodiscard]] virtual int ranks() const = 0;
    [[nodiscard]] virtual int open(const edge& e) = 0;
    virtual void post_send(int channel, const stamp& s, Tensor& t, slot& op) = 0;
    virtual void post_receive(int channel, const stamp& s, Tensor& t, slot& op) = 0;
    virtual void post_send_bytes(int channel, const stamp& s, std::span<const std::byte> bytes, slot& op) = 0;
    virtual void post_receive_bytes(int channel, const stamp& s, std::span<std::byte> bytes, slot& op) = 0;
    [[nodiscard]] virtual bool poll(any_operation& op, double& end_s) = 0;
    [[nodiscard]] virtual wait_result wait(deadline_time until, bool sends) = 0;
    virtual void abort(const std::string& reason) = 0;
    [[nodiscard]] virtual std::string failure() const = 0;
    [[nodiscard]] virtual wait_result gather(std::span<const double> mine, std::vector<std::vector<double>>& all,
                                             deadline_time until) = 0;
    [[nodiscard]] virtual wait_result gather(std::span<const double> mine, std::shared_ptr<const gather_round>& all,
                                             deadline_time until) = 0;
    [[nodiscard]] virtual shared_values* shared() const = 0;
    [[nodiscard]] virtual wait_result ask() = 0;
    [[nodiscard]] virtual std::optional<std::uint64_t> bytes_sent() const = 0;
    [[nodiscard]] virtual axis open_axis(std::vector<int> ranks, axis_options options) const = 0;
  };

  template <class Communicator>
  struct held final : plane {
    struct own_operation final : any_operation {
      typename Communicator::operation op;
    };
    explicit held(Communicator c) : comm(std::move(c)) {}
    [[nodiscard]] std::unique_ptr<plane> copy() const override { return std::make_unique<held>(comm); }
    [[nodiscard]] int rank() const override { return comm.rank(); }
    [[nodiscard]] int ranks() const override { return comm.ranks(); }
    [[nodiscard]] int open(const edge& e) override { return comm.open(e); }
    void post_send(int channel, const stamp& s, Tensor& t, slot& op) override { comm.post_send(channel, s, t, in(op)); }
    void post_receive(int channel, const stamp& s, Tensor& t, slot& op) override { comm.post_receive(channel, s, t, in(op)); }
    void post_send_bytes(int channel, const stamp& s, std::span<const std::byte> bytes, slot& op) override {
      comm.post_send_bytes(channel, s, bytes, in(op));
    }
    void post_receive_bytes(int channel, const stamp& s, std::span<std::byte> bytes, slot& op) override {
      comm.post_receive_bytes(channel, s, bytes, in(op));
    }
    [[nodiscard]] bool poll(any_operation& op, double& end_s) override {
      auto& own = static_cast<own_operation&>(op).op;
      if (!comm.poll(own)) return false;
      end_s = own.end_s;
      return true;
    }
    [[nodiscard]] wait_result wait(deadline_time until, bool sends) override { return comm.wait(until, sends); }
    void abort(const std::string& reason) override { comm.abort(reason); }
    [[nodiscard]] std::string failure() const override { return const_cast<Communicator&>(comm).failure(); }
    [[nodiscard]] wait_result gather(std::span<const double> mine, std::vector<std::vector<double>>& all,
                                     deadline_time until) override {
      return comm.gather(mine, all, until);
    }
    [[nodiscard]] wait_result gather(std::span<const double> mine, std::shared_ptr<const gather_round>& all,
                                     deadline_time until) override {
      if constexpr (sharing_plane<Communicator>) {
        return comm.gather(mine, all, until);
      } else {
        auto own = std::make_shared<gather_round>();
        const auto result = comm.gather(mine, own->told, until);
        all = std::move(own);
        return result;
      }
    }
    [[nodiscard]] shared_values* shared() const override { return detail::shared_of(comm); }
    [[nodiscard]] wait_result ask() override { return detail::with_blame(comm, wait_result::deadline); }
    [[nodiscard]] std::optional<std::uint64_t> bytes_sent() const override {
      if constexpr (requires { comm.bytes_sent(); })
        return comm.bytes_sent();
      else
        return std::nullopt;
    }
    [[nodiscard]] axis open_axis(std::vector<int> ranks, axis_options options) const override {
      return axis_group<Tensor, Communicator>(comm, std::move(ranks), std::move(options));
    }
    /// Operations stay where they were made, and are posted again and again.
    static typename Communicator::operation& in(slot& op) {
      if (!op) op = std::make_unique<own_operation>();
      HETSCHED_EXPECTS(dynamic_cast<own_operation*>(op.get()));
      return static_cast<own_operation&>(*op).op;
    }
    Communicator comm;
  };

  std::unique_ptr<plane> held_;
};

}  // namespace hetsched
