// SPDX-License-Identifier: Apache-2.0
// What ranks agree over, whatever connects them.
#pragma once

#include <concepts>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <hetsched/runtime/communicator/communicator.hpp>

namespace train {

/// A reference to any communicator as a control plane: what is done between steps is compiled once for all of them.
class control {
 public:
  template <hetsched::control_plane Communicator>
  requires(!std::same_as<std::remove_cv_t<Communicator>, control>) control(Communicator& comm)
      : comm_(&comm), calls_(&calls_of<Communicator>) {}

  [[nodiscard]] int rank() const { return calls_->rank(comm_); }
  [[nodiscard]] int ranks() const { return calls_->ranks(comm_); }
  void abort(const std::string& reason) const { calls_->abort(comm_, reason); }
  [[nodiscard]] std::string failure() const { return calls_->failure(comm_); }
  [[nodiscard]] hetsched::wait_result gather(std::span<const double> mine, std::vector<std::vector<double>>& all,
                                             hetsched::deadline_time until) const {
    return calls_->gather(comm_, mine, all, until);
  }
  /// See asking_plane; of others, that the time is over.
  [[nodiscard]] hetsched::wait_result ask() const { return calls_->ask(comm_); }

 private:
  struct calls {
    int (*rank)(void*);
    int (*ranks)(void*);
    void (*abort)(void*, const std::string&);
    std::string (*failure)(void*);
    hetsched::wait_result (*gather)(void*, std::span<const double>, std::vector<std::vector<double>>&, hetsched::deadline_time);
    hetsched::wait_result (*ask)(void*);
  };
  template <class C>
  static constexpr calls calls_of{
      [](void* c) { return static_cast<C*>(c)->rank(); },
      [](void* c) { return static_cast<C*>(c)->ranks(); },
      [](void* c, const std::string& reason) { static_cast<C*>(c)->abort(reason); },
      [](void* c) { return std::string(static_cast<C*>(c)->failure()); },
      [](void* c, std::span<const double> mine, std::vector<std::vector<double>>& all, hetsched::deadline_time until) {
        return static_cast<C*>(c)->gather(mine, all, until);
      },
      [](void* c) { return hetsched::detail::with_blame(*static_cast<C*>(c), hetsched::wait_result::deadline); }};

  void* comm_;
  const calls* calls_;
};

}  // namespace train
