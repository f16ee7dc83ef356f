// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/communicator/communicator_test.cpp.

#include <concepts>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <typeindex>
#include <typeinfo>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/function_ref.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>

namespace hetsched {

/// Immutable values that ranks of one process read alike, such as a layout and what follows from it: the first rank that looks
/// for one makes it, and others, which wait meanwhile, share it for as long as any of them has it. Any thread may use it.
class shared_values {
 public:
  /// A value that another rank holds and that is `alike`, (const T&) -> bool; else make()'s, a std::shared_ptr<const T>. Neither
  /// may look for values itself. Throws: what they throw; the next rank then makes it.
  /// Complexity: O(values that are held).
  template <class T, class Alike, class Make>
  [[nodiscard]] std::shared_ptr<const T> find(Alike&& alike, Make&& make) {
    const auto is_alike = [&](const void* one) { return alike(*static_cast<const T*>(one)); };
    const auto make_one = [&]() -> std::shared_ptr<const void> { return make(); };
    return std::static_pointer_cast<const T>(find_any(typeid(T), is_alike, make_one));
  }

 private:
  [[nodiscard]] std::shared_ptr<const void> find_any(std::type_index type, function_ref<bool(const void*)> alike,
                                                     function_ref<std::shared_ptr<const void>()> make);

  std::mutex guard_;
  std::vector<std::pair<std::type_index, std::weak_ptr<const void>>> held_;
};

/// What all ranks have told in a round of gather().
struct gather_round {
  std::uint64_t number = 0;                 ///< of the rounds of these ranks; 0: there was none
  std::vector<std::vector<double>> told{};  ///< by rank
};

/// A control plane of which ranks are threads of one process. Optional: without it each rank has for itself what others could
/// share with it.
///   shared() -> shared_values*
///                     the same for all ranks of the process; null: no others are in it
///   gather(mine, std::shared_ptr<const gather_round>& all, deadline) -> wait_result
///                     as gather() of a control_plane, but without copies: all ranks of the process get one round. What `all` had
///                     before is given back. Only where shared() is not null. A rank drops a round on the thread that gathers
///                     for it: a round that only the communicator still holds may be written anew
/// Not checked: any of that.
template <class C>
concept sharing_plane = control_plane<C> &&
    requires(C& c, std::span<const double> mine, std::shared_ptr<const gather_round>& all, deadline_time until) {
  { c.shared() } -> std::same_as<shared_values*>;
  { c.gather(mine, all, until) } -> std::same_as<wait_result>;
};

namespace detail {

/// Of a communicator's ranks in this process; null: it tells of none.
template <class Communicator>
[[nodiscard]] shared_values* shared_of([[maybe_unused]] const Communicator& comm) {
  if constexpr (sharing_plane<Communicator>)
    return comm.shared();
  else
    return nullptr;
}

/// As shared_values::find, of these values or, without any, make()'s.
template <class T, class Alike, class Make>
[[nodiscard]] std::shared_ptr<const T> find_or_make(shared_values* values, Alike&& alike, Make&& make) {
  return values ? values->find<T>(alike, make) : std::shared_ptr<const T>(make());
}

/// What a rank has gathered last: what it shares with others of its process, or else its own.
class told_numbers {
 public:
  template <class Communicator>
  [[nodiscard]] wait_result gather(Communicator& comm, std::span<const double> mine, deadline_time until) {
    if constexpr (sharing_plane<Communicator>)
      if (comm.shared()) return comm.gather(mine, shared_, until);
    return comm.gather(mine, own_, until);
  }
  [[nodiscard]] const std::vector<std::vector<double>>& all() const { return shared_ ? shared_->told : own_; }
  /// The number of a round that is shared; else 0.
  [[nodiscard]] std::uint64_t round() const { return shared_ ? shared_->number : 0; }

 private:
  std::shared_ptr<const gather_round> shared_;
  std::vector<std::vector<double>> own_;
};

}  // namespace detail
}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/communicator/shared_values.ipp>
#endif
