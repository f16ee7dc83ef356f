// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/core/contract.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/communicator/shared_values.hpp>

namespace hetsched {

/// Which of a router's data planes an edge takes, and the edge in the numbers of that plane's ranks.
struct routed_edge {
  std::size_t plane = 0;
  edge where;
};

/// A communicator made of one control plane and several data planes, so that each edge takes the transport that suits it. Copies
/// are one end, as those of its planes are. One of the planes may be an ordered_plane, beside others whose operations begin as
/// they are posted.
/// Route: (const edge&) -> routed_edge, the same at both ends of the edge.
template <control_plane Control, class Route, class... Planes>
requires(sizeof...(Planes) > 0 && std::is_invocable_r_v<routed_edge, Route&, const edge&>) class router {
  static constexpr std::size_t ordered_planes = (std::size_t{ordered_plane<Planes>} + ...);
  static_assert(ordered_planes <= 1, "an order is that of one plane");
  static constexpr bool sends_bytes =
      (byte_plane<Planes> || ...) && ((byte_plane<Planes> || ordered_plane<Planes> || requires { Planes::on_devices; }) && ...);

 public:
  class operation {
   public:
    double start_s = 0;  ///< 0: its plane does not tell
    double end_s = 0;

   private:
    friend class router;
    std::tuple<typename Planes::operation...> of_plane_;
    std::atomic<std::size_t> plane_{0};
  };

  router(Control control, Route route, Planes... planes)
      : control_(std::move(control)), route_(std::move(route)), planes_(std::move(planes)...), bell_(std::make_shared<bell>()) {
    const auto listen = [&](auto& p) {
      if constexpr (waking_plane<decltype(p)>) p.on_wake([b = bell_] { b->ring(); });
    };
    std::apply([&](auto&... p) { (listen(p), ...); }, planes_);
  }

  /// See ordered_plane: of that plane another one, and the same ends of the others.
  [[nodiscard]] router another() const requires(ordered_planes == 1) {
    return std::apply([&](const auto&... p) { return router(control_, route_, detail::another(p)...); }, planes_);
  }

  [[nodiscard]] int rank() const { return control_.rank(); }
  [[nodiscard]] int ranks() const { return control_.ranks(); }

  /// Throws: input_error where the route names no plane.
  [[nodiscard]] int open(const edge& e) {
    const routed_edge to = route_(e);
    if (to.plane >= sizeof...(Planes))
      throw input_error("the route of the " + to_text(e) + " is plane " + std::to_string(to.plane) + " of " +
                        std::to_string(sizeof...(Planes)));
    const int channel = on(to.plane, [&](auto& p, auto) { return p.open(to.where); });
    channels_.push_back({to.plane, channel});
    used_[to.plane] = true;
    return static_cast<int>(channels_.size()) - 1;
  }

  template <class Tensor>
  requires(data_plane<Planes, Tensor>&&...) void post_send(int channel, const stamp& s, Tensor& t, operation& op) {
    const auto [plane, own] = at(channels_, channel);
    op.plane_.store(plane, std::memory_order_relaxed);
    on(plane, [&, c = own](auto& p, auto i) { p.post_send(c, s, t, std::get<i>(op.of_plane_)); });
  }
  template <class Tensor>
  requires(data_plane<Planes, Tensor>&&...) void post_receive(int channel, const stamp& s, Tensor& t, operation& op) {
    const auto [plane, own] = at(channels_, channel);
    op.plane_.store(plane, std::memory_order_relaxed);
    on(plane, [&, c = own](auto& p, auto i) { p.post_receive(c, s, t, std::get<i>(op.of_plane_)); });
  }
  /// See byte_plane. Not for channels of a plane that is none: one of devices (ordered, or P::on_devices).
  void post_send_bytes(int channel, const stamp& s, std::span<const std::byte> bytes, operation& op) requires sends_bytes {
    const auto [plane, own] = at(channels_, channel);
    op.plane_.store(plane, std::memory_order_relaxed);
    on(plane, [&, c = own](auto& p, auto i) {
      if constexpr (byte_plane<std::remove_reference_t<decltype(p)>>)
        p.post_send_bytes(c, s, bytes, std::get<i>(op.of_plane_));
      else
        HETSCHED_EXPECTS(false);
    });
  }
  void post_receive_bytes(int channel, const stamp& s, std::span<std::byte> bytes, operation& op) requires sends_bytes {
    const auto [plane, own] = at(channels_, channel);
    op.plane_.store(plane, std::memory_order_relaxed);
    on(plane, [&, c = own](auto& p, auto i) {
      if constexpr (byte_plane<std::remove_reference_t<decltype(p)>>)
        p.post_receive_bytes(c, s, bytes, std::get<i>(op.of_plane_));
      else
        HETSCHED_EXPECTS(false);
    });
  }
  /// Whether the ordered plane joins each two of these ranks. Complexity: O(ranks^2) questions to the route.
  [[nodiscard]] bool joins(const std::vector<int>& ranks) const requires(ordered_planes == 1) {
    auto route = route_;
    for (const int a : ranks)
      for (const int b : ranks)
        if (a != b && route(edge{a, b, payload::collective}).plane != ordered_index()) return false;
    return true;
  }
  /// The axis of these ranks, for layers: the ordered plane's, or, where that does not join each two of them, a place without
  /// collectives. All ranks of the axis call it. Complexity: O(ranks^2) questions to the route.
  template <class Options>
  [[nodiscard]] auto open_axis(const std::vector<int>& ranks, const Options& options) const
      requires(ordered_planes == 1 && (requires { typename Planes::axis; } || ...)) {
    constexpr std::size_t ordered = ordered_index();
    using own = typename std::tuple_element_t<ordered, std::tuple<Planes...>>::axis;
    auto route = route_;
    std::vector<int> members(ranks.size());
    bool joins_all = true;
    for (std::size_t a = 0; a < ranks.size(); ++a)
      for (std::size_t b = 0; b < ranks.size(); ++b) {
        if (a == b) continue;
        const routed_edge to = route(edge{ranks[a], ranks[b], payload::collective});
        joins_all = joins_all && to.plane == ordered;
        members[a] = to.where.from;
      }
    if (joins_all && ranks.size() > 1) return own(std::get<ordered>(planes_), std::move(members), options);
    const auto me = std::find(ranks.begin(), ranks.end(), rank());
    if (me == ranks.end()) throw input_error("rank " + std::to_string(rank()) + " is not in its group");
    return own(static_cast<int>(me - ranks.begin()), static_cast<int>(ranks.size()));
  }
  /// Whether a channel's plane is a byte_plane.
  [[nodiscard]] bool takes_bytes(int channel) const {
    constexpr std::array<bool, sizeof...(Planes)> are{byte_plane<Planes>...};
    return are[at(channels_, channel).plane];
  }
  /// See ordered_plane: of the plan, that plane gets what goes over it.
  void set_plan(const communication_plan& plan) requires(ordered_planes == 1) {
    constexpr std::size_t ordered = ordered_index();
    communication_plan own;
    for (const auto& group : plan) {
      std::vector<planned_operation> part;
      for (auto o : group)
        if (const auto& c = at(channels_, o.channel); c.plane == ordered) {
          o.channel = c.channel;
          part.push_back(o);
        }
      if (group.empty() || !part.empty()) own.push_back(std::move(part));
    }
    used_[ordered] = true;  // what ends it is to end all
    std::get<ordered>(planes_).set_plan(own);
  }
  [[nodiscard]] bool orders(int channel) const requires(ordered_planes == 1) {
    return at(channels_, channel).plane == ordered_index();
  }
  /// See calling_plane.
  [[nodiscard]] bool may_call() requires(calling_plane<Planes> || ...) { return std::get<ordered_index()>(planes_).may_call(); }
  void end_calls() requires(calling_plane<Planes> || ...) { std::get<ordered_index()>(planes_).end_calls(); }
  /// See nccl_communicator.
  void read_times() requires(ordered_planes == 1) {
    if constexpr (requires { std::get<ordered_index()>(planes_).read_times(); }) {
      std::get<ordered_index()>(planes_).read_times();
    }
  }
  /// What the ordered plane has come to, in errors.
  [[nodiscard]] std::string under_way() const requires(ordered_planes == 1) {
    if constexpr (requires { std::get<ordered_index()>(planes_).under_way(); })
      return std::get<ordered_index()>(planes_).under_way();
    return {};
  }
  [[nodiscard]] bool poll(operation& op) {
    return on(op.plane_.load(std::memory_order_relaxed), [&](auto& p, auto i) {
      auto& own = std::get<i>(op.of_plane_);
      if (!p.poll(own)) return false;
      op.end_s = own.end_s;
      if constexpr (requires { own.start_s; }) op.start_s = own.start_s;
      return true;
    });
  }

  /// Planes that are no waking_plane are looked at every 100 us, unless only one plane is used.
  [[nodiscard]] wait_result wait(deadline_time until, bool sends) {
    const auto used = std::count(used_.begin(), used_.end(), true);
    if (used == 1) {
      const auto only = as_size(std::find(used_.begin(), used_.end(), true) - used_.begin());
      return passed_on(on(only, [&](auto& p, auto) { return p.wait(until, sends); }));
    }
    while (true) {
      bell_->silence();
      bool all_ring = used > 0;
      for (std::size_t i = 0; i < used_.size(); ++i) {
        const auto result = on(i, [&](auto& p, auto) {
          all_ring = all_ring && (waking_plane<decltype(p)> || !used_[i]);
          return p.wait(deadline_time(), sends);
        });
        if (result != wait_result::deadline) return passed_on(result);
      }
      const auto now = std::chrono::steady_clock::now();
      if (now >= until) return wait_result::deadline;
      bell_->wait(all_ring ? until : std::min(until, now + std::chrono::microseconds(100)));
    }
  }

  void abort(const std::string& reason) {
    control_.abort(reason);
    std::apply([&](auto&... p) { (p.abort(reason), ...); }, planes_);
  }
  /// Of the control plane, else of the first data plane that has one.
  [[nodiscard]] std::string failure() const {
    std::string why = control_.failure();
    std::apply([&](const auto&... p) { ((why = why.empty() ? std::string(p.failure()) : why), ...); }, planes_);
    return why;
  }
  /// See asking_plane.
  [[nodiscard]] wait_result ask() requires asking_plane<Control> { return passed_on(control_.ask()); }
  [[nodiscard]] wait_result gather(std::span<const double> mine, std::vector<std::vector<double>>& all, deadline_time until) {
    return control_.gather(mine, all, until);
  }
  /// See sharing_plane.
  [[nodiscard]] wait_result gather(std::span<const double> mine, std::shared_ptr<const gather_round>& all,
                                   deadline_time until) requires sharing_plane<Control> {
    return control_.gather(mine, all, until);
  }
  [[nodiscard]] shared_values* shared() const requires sharing_plane<Control> { return control_.shared(); }

 private:
  /// Which of the planes is ordered.
  static constexpr std::size_t ordered_index() {
    constexpr std::array<bool, sizeof...(Planes)> is{ordered_plane<Planes>...};
    std::size_t i = 0;
    while (!is[i]) ++i;
    return i;
  }

  struct routed_channel {
    std::size_t plane;
    int channel;
  };
  struct bell {
    std::mutex guard;
    std::condition_variable rung;
    bool has_rung = false;
    void ring() {
      {
        const std::lock_guard lock(guard);
        has_rung = true;
      }
      rung.notify_all();
    }
    void silence() {
      const std::lock_guard lock(guard);
      has_rung = false;
    }
    void wait(deadline_time until) {
      std::unique_lock lock(guard);
      rung.wait_until(lock, until, [&] { return has_rung; });
    }
  };

  /// body(plane i, constant i).
  template <class Body>
  decltype(auto) on(std::size_t i, Body&& body) {
    return find<0>(i, body);
  }
  template <std::size_t I, class Body>
  decltype(auto) find(std::size_t i, Body& body) {
    if constexpr (I + 1 == sizeof...(Planes))
      return body(std::get<I>(planes_), std::integral_constant<std::size_t, I>());
    else
      return i == I ? body(std::get<I>(planes_), std::integral_constant<std::size_t, I>()) : find<I + 1>(i, body);
  }

  /// What has ended one plane ends all.
  wait_result passed_on(wait_result result) {
    if (result == wait_result::aborted) abort(failure());
    return result;
  }

  Control control_;
  Route route_;
  std::tuple<Planes...> planes_;
  std::shared_ptr<bell> bell_;
  std::vector<routed_channel> channels_;
  std::array<bool, sizeof...(Planes)> used_{};
};

}  // namespace hetsched
