// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <hetsched/core/checksum.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cuda/api.hpp>
#include <hetsched/cuda/buffer.hpp>
#include <hetsched/cuda/clock.hpp>
#include <hetsched/cuda/devices.hpp>
#include <hetsched/cuda/nccl_api.hpp>
#include <hetsched/cuda/nccl_axis.hpp>
#include <hetsched/cuda/nccl_links.hpp>
#include <hetsched/cuda/queue.hpp>
#include <hetsched/cuda/tensor.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// Connects ranks with a GPU each, in one process or several, by NCCL. Ranks on the host may be among them: they take part in
/// what is agreed, and transfer nothing here; a router gives them another plane. It is an ordered_plane: what a rank posts is
/// held until its turn in the plan, and then enqueued on the one queue of the rank, behind what makes the tensor or still uses
/// it. A transfer has ended when it is enqueued: tensors know their moments. Agreement, the first reason to give up, and what
/// NCCL needs to connect go by way of `Control`, on the host. Ranks that transfer anything to each other, if by way of others,
/// have one NCCL communicator: NCCL runs one kernel for each, and kernels of one queue one after the other, so that only what
/// shares a communicator overlaps. Communicators are made in one order on all ranks, those that share no rank side by side, and
/// used once when they are made, so that nothing is connected later. What is in one group of a plan is one NCCL group, or, where
/// it is more than NCCL does at once, several: of a few pairs of ranks, or of one and of most_operations at most, the same at
/// both ends. Tensors are made of a cuda_buffer: see cuda_tensor_traits. Groups of ranks have a communicator each, too, and their
/// collectives go over the same queue, in the order of the calls: see axis. Requires: the devices of ranks differ, and one thread
/// at a time uses a device; all ends are gone before the devices are.
template <pipeline_tensor Tensor, cuda_api Api, nccl_api NcclApi, control_plane Control>
requires std::same_as<typename Api::stream, typename NcclApi::stream>
class nccl_communicator {
  using traits = tensor_traits<Tensor>;
  using queue = cuda_queue<Api>;
  friend class nccl_axis<Tensor, queue, nccl_communicator>;
  struct shared_state;

 public:
  static constexpr std::size_t most_operations = 256;  ///< larger groups may be cut in two ways

  /// This rank's end, on a device of its process; -1: on the host. `control`: its end of the control plane, with the same ranks.
  /// Throws: input_error for a device that is not there; cuda_error.
  nccl_communicator(cuda_devices<Api>& devices, int device, Control control, NcclApi api = {}, nccl_options options = {})
      : shared_(std::make_shared<shared_state>(devices, device, std::move(control), std::move(api), std::move(options))) {}

  class operation {
   public:
    double start_s = 0, end_s = 0;  ///< when it was enqueued, until read_times()

   private:
    friend class nccl_communicator;
    bool ended_ = false;
  };

  [[nodiscard]] int rank() const { return shared_->links.control().rank(); }
  [[nodiscard]] int ranks() const { return shared_->links.control().ranks(); }

  /// Another plane of the same ranks, with an order and NCCL communicators of its own; all ranks ask for it. What fails in one
  /// ends both.
  /// Requires: of two planes' operations all ranks post those of the one behind those of the other.
  /// Throws: cuda_error.
  [[nodiscard]] nccl_communicator another() const {
    const auto& s = *shared_;
    return nccl_communicator(s.devices, s.device, s.links.control(), s.links.api(), s.links.options());
  }

  /// Throws: input_error for an edge of other ranks, or from a rank to itself.
  [[nodiscard]] int open(const edge& e) {
    const bool is_mine = (e.from == rank()) != (e.to == rank());
    if (!is_mine || std::min(e.from, e.to) < 0 || std::max(e.from, e.to) >= ranks())
      throw input_error("rank " + std::to_string(rank()) + " of " + std::to_string(ranks()) + " cannot open the " + to_text(e));
    const std::lock_guard lock(shared_->guard);
    auto& all = shared_->channels;
    const auto found = std::find_if(all.begin(), all.end(), [&](const channel& c) { return c.where == e; });
    if (found == all.end()) all.push_back({.where = e});
    return static_cast<int>(std::find_if(all.begin(), all.end(), [&](const channel& c) { return c.where == e; }) - all.begin());
  }

  /// See ordered_plane. Compares the plans of both ends of every pair, and connects pairs that are not connected.
  /// Requires: nothing is under way.
  /// Throws: input_error for plans that do not fit each other; nccl_error; communication_error where another rank has failed or
  /// is late. Then this is aborted.
  void set_plan(const communication_plan& plan) {
    const std::lock_guard lock(shared_->guard);
    try {
      shared_->set_plan(plan);
    } catch (const std::exception& e) {
      shared_->give_up(e.what());
      throw;
    }
  }

  /// Throws: input_error for what the plan does not have there; cuda_error.
  void post_send(int number, const stamp& what, Tensor& t, operation& op) { post(number, what, t, op, true); }
  void post_receive(int number, const stamp& what, Tensor& t, operation& op) { post(number, what, t, op, false); }
  [[nodiscard]] bool poll(operation& op) {
    const std::lock_guard lock(shared_->guard);
    if (!op.ended_) shared_->issue();
    return op.ended_;
  }

  /// Looks every 20 us.
  [[nodiscard]] wait_result wait(deadline_time until, bool sends) {
    constexpr std::chrono::microseconds look(20);
    auto& s = *shared_;
    while (true) {
      {
        const std::lock_guard lock(s.guard);
        if (s.has_failed()) return wait_result::aborted;
        s.issue();
        const bool news = s.received || (sends && s.sent);
        s.received = false;
        if (sends) s.sent = false;
        if (news) return wait_result::progress;
      }
      if (std::chrono::steady_clock::now() >= until) return wait_result::deadline;
      std::this_thread::sleep_for(look);
    }
  }

  /// Has all transfers done, and their operations of the last round of the plan know when: by events, unless cuda_options::times
  /// says otherwise.
  /// Requires: they are where they were. Throws: cuda_error.
  void read_times() {
    const std::lock_guard lock(shared_->guard);
    shared_->read_times();
  }

  /// For a CUDA graph with this rank's transfers of a step, or of several: captures what body() posts, and enqueues on
  /// transfer_queue(). What is posted begins at once. All ranks capture the same between the same launches, and launch their
  /// graphs in one order. `let_go`: ends the graph, on any thread, when what connects the ranks ends: NCCL waits for that.
  /// Source: NCCL, Using NCCL with CUDA Graphs.
  /// Requires: nothing is under way, and no body() before it has let go.
  /// Throws: what body throws; communication_error where a rank has failed.
  template <class Body>
  void capture(Body&& body, std::function<void()> let_go) {
    auto& s = *shared_;
    {
      const std::lock_guard lock(s.guard);
      s.finish();
      s.require_alive("a capture");
      s.captures = true;
      s.let_go = std::move(let_go);
    }
    const auto end = [&] {
      const std::lock_guard lock(s.guard);
      s.captures = false;
      s.next = 0;
      if (!s.links.control().failure().empty()) s.give_up(s.links.control().failure());
    };
    try {
      body();
    } catch (...) {
      {
        const std::lock_guard lock(s.guard);
        s.let_go = {};
      }
      end();
      throw;
    }
    end();
    const std::lock_guard lock(s.guard);
    s.require_alive("a capture");
  }
  /// Launches such a graph: by body(), on a queue that transfer_queue() is behind when it returns. Waits until at most one that
  /// was launched before is under way: other ranks wait for one that waits for the end of its own, so that is to be near.
  /// Throws: what body throws; communication_error where a rank has failed or is late.
  template <class Body>
  void launch(Body&& body) {
    constexpr std::chrono::microseconds pause(20);
    auto& s = *shared_;
    std::unique_lock lock(s.guard);
    s.forget_ended();
    for (s.require_alive("a graph"); s.graphs_under_way() > 1; s.require_alive("a graph")) {
      lock.unlock();
      std::this_thread::sleep_for(pause);
      lock.lock();
      s.look();
    }
    body();
    s.under_way.push_back({.end = s.links.queue().record(), .since_s = steady_now_s()});
  }
  /// Ends the graph that was captured, if there is one.
  void end_graph() {
    const std::lock_guard lock(shared_->guard);
    if (auto end_it = std::exchange(shared_->let_go, {})) end_it();
  }
  /// On which this rank's transfers are enqueued.
  [[nodiscard]] const queue& transfer_queue() const { return shared_->links.queue(); }
  /// The longest that an operation of this rank may take.
  [[nodiscard]] double deadline_s() const { return shared_->links.options().deadline_s; }
  /// The same of a graph.
  [[nodiscard]] double step_deadline_s() const { return shared_->links.options().step_deadline_s; }

  /// See calling_plane.
  [[nodiscard]] bool may_call() {
    const std::lock_guard lock(shared_->guard);
    shared_->issue();
    return shared_->is_calling();
  }
  void end_calls() {
    const std::lock_guard lock(shared_->guard);
    shared_->end_calls();
  }

  /// Whether these ranks have collectives.
  [[nodiscard]] static bool joins(const std::vector<int>&) { return true; }
  /// For layers: the collectives of this rank in a group.
  using axis = nccl_axis<Tensor, queue, nccl_communicator>;

  void abort(const std::string& reason) {
    const std::lock_guard lock(shared_->guard);
    shared_->give_up(reason);
  }
  [[nodiscard]] std::string failure() const { return shared_->links.control().failure(); }
  [[nodiscard]] wait_result gather(std::span<const double> mine, std::vector<std::vector<double>>& all, deadline_time until) {
    return shared_->links.control().gather(mine, all, until);
  }

  /// ", and has come to the ..", the transfer that this rank's device has come to and not done; empty: none.
  [[nodiscard]] std::string under_way() const {
    const std::lock_guard lock(shared_->guard);
    const auto found = shared_->oldest();
    return found.empty() ? found : ", and has come to the " + found;
  }

  /// Waits for all transfers of all ranks, and disconnects them; all ranks call it. Who does not aborts what is connected when
  /// the last copy of an end is gone, but not before its own transfers are done.
  /// Throws: as set_plan.
  void close() {
    const std::lock_guard lock(shared_->guard);
    shared_->finish();
    if (auto end_it = std::exchange(shared_->let_go, {})) end_it();
    (void)shared_->links.gather({});
    shared_->links.disconnect();
    shared_->plan.clear();
    for (auto& c : shared_->channels) c.is_planned = false;
  }

 private:
  struct posted {
    operation* op = nullptr;
    Tensor* tensor = nullptr;
    stamp what;
  };
  struct channel {
    edge where;
    bool is_planned = false;
    std::deque<posted> waiting = {};
  };
  struct planned {
    planned_operation what;
    std::size_t behind = 0;  ///< operations on the same channel before it in the group
  };
  /// What begins at once.
  struct planned_group {
    int peer = -1;  ///< of the first operation
    std::vector<planned> operations;
    std::vector<operation*> begun = {};  ///< of the last round
  };
  /// Ranks that call collectives.
  struct caller {
    detail::nccl_clique who;
    std::string name;
    detail::nccl_use planned;
  };
  struct issued {
    cuda_moment<Api> end;
    const planned_group* group = nullptr;
    const caller* call = nullptr;  ///< if there is no group; neither: a graph's
    double since_s = 0;            ///< when this rank saw that it was the first
    [[nodiscard]] bool is_graph() const { return !group && !call; }
  };

  struct shared_state {
    shared_state(cuda_devices<Api>& all, int on, Control control, NcclApi api, nccl_options options)
        : devices(all),
          device(on),
          lent(all.lend_queue(on, "rank " + std::to_string(control.rank()) + "'s transfers", true)),
          links(*lent, control, std::move(api), std::move(options)) {
      keep_looking([this] { look(); });
    }
    shared_state(const shared_state&) = delete;
    shared_state& operator=(const shared_state&) = delete;
    ~shared_state() {
      keep_looking({});
      try {
        if (!has_failed()) finish();
      } catch (const std::exception&) {
        // What is under way is aborted then.
      }
    }

    void keep_looking(std::function<void()> what) {
      if (device >= 0) devices.keep_looking(device, this, std::move(what));
    }

    void set_plan(const communication_plan& wanted) {
      if (device < 0 && std::any_of(wanted.begin(), wanted.end(), [](const auto& group) { return !group.empty(); }))
        throw input_error("rank " + std::to_string(links.rank()) + " is on the host, and NCCL connects devices");
      finish();
      plan.clear();
      next = 0;
      is_told = false;
      for (auto& c : channels) c.is_planned = false;
      std::vector<std::size_t> group_of;  // the plan has more and smaller ones
      for (std::size_t k = 0; k < wanted.size(); ++k) {
        add(wanted[k]);
        group_of.resize(plan.size(), k);
      }
      for (const auto& g : plan)
        for (const auto& p : g.operations) at(channels, p.what.channel).is_planned = true;
      compare_and_connect();
      join(group_of);
      std::vector<std::string> names;
      for (const auto& g : plan) names.push_back(g.operations.empty() || device < 0 ? "" : name_of(g));
      clock = cuda_clock<Api>(links.queue(), std::move(names));
    }

    void read_times() {
      if (plan.empty()) return;
      clock.read();
      for (std::size_t k = 0; k < plan.size(); ++k)
        for (auto* const op : plan[k].begun) {
          op->start_s = clock.start_s(k);
          op->end_s = clock.end_s(k);
        }
    }

    std::size_t open(std::vector<int> ranks, const axis_options& options) {
      const std::lock_guard lock(guard);
      callers.push_back({.who = {.ranks = std::move(ranks), .calls = true, .link = {}},
                         .name = options.name,
                         .planned = {options.most_bytes, options.scatters}});
      return callers.size() - 1;
    }

    /// Cuts a group into those of one peer, pair by pair, in an order that both ends have.
    void add(std::vector<planned_operation> group) {
      const auto place = [&](const planned_operation& o) {
        const auto& e = channels.at(as_size(o.channel)).where;
        return std::tuple(std::min(e.from, e.to), std::max(e.from, e.to), e.from, e.what, e.direction, e.stage, e.part);
      };
      std::stable_sort(group.begin(), group.end(), [&](const auto& a, const auto& b) { return place(a) < place(b); });
      if (group.empty()) plan.emplace_back();
      int last_peer = -1;
      for (const auto& o : group) {
        const auto& e = at(channels, o.channel).where;
        const int peer = o.sends ? e.to : e.from;
        if (std::exchange(last_peer, peer) != peer || plan.back().operations.size() == most_operations)
          plan.push_back({.peer = peer, .operations = {}});
        auto& list = plan.back().operations;
        const auto same = [&](const planned& p) { return p.what.channel == o.channel; };
        list.push_back({.what = o, .behind = as_size(std::count_if(list.begin(), list.end(), same))});
      }
    }

    /// A checksum of what is planned with a peer.
    [[nodiscard]] std::uint64_t digest(int peer) const {
      std::uint64_t sum = 0;
      for (const auto& g : plan)
        for (const auto& p : g.operations) {
          if (g.peer != peer) continue;
          const auto& e = at(channels, p.what.channel).where;
          const auto& w = p.what.what;
          const std::array<std::int64_t, 10> numbers{e.from,
                                                     static_cast<int>(e.what),
                                                     e.direction,
                                                     e.stage,
                                                     e.part,
                                                     w.step,
                                                     w.microbatch,
                                                     &p == &g.operations[0],
                                                     static_cast<std::int64_t>(p.what.bytes),
                                                     static_cast<int>(w.what)};
          sum = crc64(std::as_bytes(std::span(numbers)), sum);
        }
      return sum;
    }
    void compare_and_connect() {
      const int me = links.rank();
      std::vector<double> mine;
      for (int peer = 0; peer < links.control().ranks(); ++peer) {
        if (std::none_of(plan.begin(), plan.end(), [&](const auto& g) { return g.peer == peer; })) continue;
        const auto sum = digest(peer);
        mine.insert(mine.end(),
                    {static_cast<double>(peer), static_cast<double>(sum >> 32), static_cast<double>(sum & 0xffffffff)});
      }
      const auto all = links.gather(mine);
      const auto of = [&](std::size_t rank, std::size_t peer) {
        for (std::size_t k = 0; k + 2 < all[rank].size(); k += 3)
          if (all[rank][k] == static_cast<double>(peer)) return std::pair(all[rank][k + 1], all[rank][k + 2]);
        return std::pair(-1.0, -1.0);
      };
      std::vector<detail::nccl_pair> pairs;
      for (std::size_t a = 0; a < all.size(); ++a)
        for (std::size_t b = a + 1; b < all.size(); ++b) {
          if (of(a, b) != of(b, a))
            throw input_error("rank " + std::to_string(me) + ": ranks " + std::to_string(a) + " and " + std::to_string(b) +
                              " have planned different transfers: their schedules, shapes or steps differ");
          if (of(a, b).first >= 0) pairs.emplace_back(static_cast<int>(a), static_cast<int>(b));
        }
      links.connect(pairs, groups_of_callers());
    }

    /// The groups that all their ranks have opened.
    [[nodiscard]] std::map<std::vector<int>, detail::nccl_use> groups_of_callers() {
      const auto times = std::count_if(plan.begin(), plan.end(), [](const auto& g) { return g.operations.empty(); });
      std::vector<double> mine;
      for (const auto& c : callers) {
        mine.push_back(static_cast<double>(c.who.ranks.size()));
        mine.insert(mine.end(), c.who.ranks.begin(), c.who.ranks.end());
        mine.insert(mine.end(), {static_cast<double>(times), static_cast<double>(c.planned.bytes), c.planned.scatters ? 1. : 0.});
      }
      std::map<std::vector<int>, std::map<int, double>> found;  // who has opened a group, and for how many computations
      std::map<std::vector<int>, detail::nccl_use> groups;
      const auto all = links.gather(mine);
      for (std::size_t r = 0; r < all.size(); ++r)
        for (std::size_t k = 0; k < all[r].size();) {
          const auto count = static_cast<std::size_t>(all[r][k++]);
          std::vector<int> ranks;
          while (ranks.size() < count) ranks.push_back(static_cast<int>(all[r][k++]));
          found[ranks][static_cast<int>(r)] = all[r][k++];
          auto& use = groups[ranks];
          use.bytes = std::max(use.bytes, static_cast<std::size_t>(all[r][k++]));
          use.scatters = all[r][k++] != 0 || use.scatters;
        }
      for (const auto& [ranks, by] : found) {
        for (const int r : ranks)
          if (!by.contains(r) || by.at(r) != by.begin()->second)
            throw input_error("ranks " + std::to_string(by.begin()->first) + " and " + std::to_string(r) +
                              " are of one group, but have opened or planned different collectives");
      }
      return groups;
    }

    /// Joins what is in one group of the plan and begins at once over one communicator. Pairs have one order in a group, which
    /// is that of all ranks, and of two that wait for each other's groups one would wait for a pair behind its own.
    void join(std::span<const std::size_t> group_of) {
      std::vector<planned_group> joined;
      std::size_t last = 0;
      for (std::size_t k = 0; k < plan.size(); ++k) {
        auto& g = plan[k];
        const bool follows = !joined.empty() && group_of[k] == group_of[last] && !g.operations.empty() &&
                             joined.back().operations.size() + g.operations.size() <= links.most_joined &&
                             links.are_joined(joined.back().peer, g.peer);
        last = k;
        if (!follows) {
          joined.push_back(std::move(g));
          continue;
        }
        auto& to = joined.back().operations;
        to.insert(to.end(), g.operations.begin(), g.operations.end());
      }
      plan = std::move(joined);
    }

    /// Whether layers may call collectives: the plan has come to that, or nothing is under way in it.
    [[nodiscard]] bool is_calling() const { return !plan.empty() && plan[next].operations.empty(); }
    void end_calls() {
      if (!is_calling()) return;  // this rank has given up
      next = (next + 1) % plan.size();
      is_told = false;
      issue();
    }
    template <class Body>
    void call(std::size_t number, const char* name, const cuda_buffer<Api>& from, cuda_buffer<Api>& to, const queue& q,
              Body& body) {
      const std::lock_guard lock(guard);
      const auto& c = callers[number];
      const auto here = "rank " + std::to_string(links.rank()) + ": " + name + " over " + c.name;
      try {
        if (to.bytes() == 0 && from.bytes() == 0) return;
        const auto is_elsewhere = [&](const auto& b) { return b.bytes() > 0 && b.device() != device; };
        if (is_elsewhere(from) || is_elsewhere(to))
          throw input_error(here + ": a tensor is not on device " + std::to_string(device));
        const auto end_if_failed = [&] {
          if (has_failed())
            throw communication_error(here + "; ended, as " + links.control().failure(), {.to = links.rank()}, no_microbatch, {});
        };
        end_if_failed();
        const bool rests =
            next == 0 && std::all_of(channels.begin(), channels.end(), [](const auto& x) { return x.waiting.empty(); });
        if (!rests && !is_calling()) throw input_error(here + " is called between the transfers of a step");
        const auto& own = links.queue();
        from.begin_read(q);
        to.begin_write(q);
        own.wait(q.record());
        forget_ended();
        end_if_failed();  // while it waited
        if (!links.is_connected(c.who)) throw input_error(here + ": the axis was made behind set_plan, which connects");
        const auto current = own.make_current();
        links.call(c.who, name,
                   [&](const NcclApi& nccl, auto with, auto s) { return body(nccl, from.data(), to.data(), with, s); });
        const auto end = own.record();
        q.wait(end);
        const auto seen = q.record();  // to others it is work of q
        if (&from != &to) from.end_read(q, seen);
        to.end_write(q, seen);
        under_way.push_back({.end = end, .group = nullptr, .call = &c, .since_s = steady_now_s()});
      } catch (const communication_error& e) {
        give_up(e.what());
        throw;
      } catch (const std::exception& e) {
        give_up("rank " + std::to_string(links.rank()) + ": " + e.what());
        throw;
      }
    }

    void require_alive(const char* what) {
      if (has_failed())
        throw communication_error(
            "rank " + std::to_string(links.rank()) + ": " + what + "; ended, as " + std::string(links.control().failure()),
            {.to = links.rank()}, no_microbatch, {});
    }
    /// See nccl_axis::keep. 0: not registered.
    std::size_t keep_memory(std::size_t number, cuda_buffer<Api>& b) {
      const std::lock_guard lock(guard);
      if constexpr (nccl_register_api<NcclApi>)
        if (links.options().registers && b.bytes() > 0 && links.is_connected(callers[number].who))
          return links.keep(callers[number].who, b.data(), b.bytes());
      return 0;
    }
    void let_memory_go(std::size_t number) {
      const std::lock_guard lock(guard);
      try {
        if (has_failed()) return;
        finish();
        links.let_go(number);
      } catch (const std::exception& e) {
        give_up("rank " + std::to_string(links.rank()) + ": " + e.what());
      }
    }
    [[nodiscard]] std::ptrdiff_t graphs_under_way() const {
      return std::count_if(under_way.begin(), under_way.end(), [](const issued& i) { return i.is_graph(); });
    }
    /// For the first that is under way.
    [[nodiscard]] double allowed_s() const {
      return under_way.front().is_graph() ? links.options().step_deadline_s : links.options().deadline_s;
    }
    void forget_ended() {
      while (!under_way.empty() && under_way.front().end.reached()) {
        under_way.pop_front();
        if (!under_way.empty()) under_way.front().since_s = steady_now_s();
      }
    }

    /// Enqueues what is next in the plan, while all of it has been posted and the host is not too far ahead.
    void issue() {
      forget_ended();
      while (!plan.empty() && under_way.size() < devices.options().records) {
        auto& group = plan[next];
        if (group.operations.empty()) {
          received = !std::exchange(is_told, true) || received;
          return;
        }
        for (const auto& p : group.operations)
          if (at(channels, p.what.channel).waiting.size() <= p.behind) return;
        try {
          enqueue(group);
        } catch (const nccl_error& e) {
          return give_up("rank " + std::to_string(links.rank()) + ": " + e.what());
        } catch (const communication_error& e) {
          return give_up(e.what());
        }
        next = (next + 1) % plan.size();
      }
    }

    void enqueue(planned_group& group) {
      const auto number = as_size(&group - plan.data());
      const auto& q = links.queue();
      std::vector<posted> taken;
      for (const auto& p : group.operations) {
        auto& waiting = at(channels, p.what.channel).waiting;
        taken.push_back(waiting.front());
        waiting.pop_front();
        check(p, taken.back());
      }
      for (std::size_t k = 0; k < taken.size(); ++k) {
        auto& b = traits::buffer(*taken[k].tensor);
        if (group.operations[k].what.sends)
          b.begin_read(q);
        else
          b.begin_write(q);
      }
      const auto pass_on = [&](auto& g) {
        for (std::size_t k = 0; k < taken.size(); ++k) {
          auto& b = traits::buffer(*taken[k].tensor);
          const auto& o = group.operations[k].what;
          const auto& e = at(channels, o.channel).where;
          if (b.bytes() > 0) o.sends ? g.send(e.to, b.data(), b.bytes()) : g.receive(e.from, b.data(), b.bytes());
        }
      };
      group.begun.clear();
      const bool moves =
          std::any_of(group.operations.begin(), group.operations.end(), [](const planned& p) { return p.what.bytes > 0; });
      const auto begin = [&] {
        if (moves) links.group(group.peer, pass_on);
      };
      captures ? begin() : clock.time(number, begin);
      const auto end = q.record();
      const double now = steady_now_s();
      for (std::size_t k = 0; k < taken.size(); ++k) {
        if (!captures) group.begun.push_back(taken[k].op);
        auto& b = traits::buffer(*taken[k].tensor);
        const bool sends = group.operations[k].what.sends;
        if (sends)
          b.end_read(q, end);
        else
          b.end_write(q, end);
        taken[k].op->start_s = taken[k].op->end_s = now;
        taken[k].op->ended_ = true;
        (sends ? sent : received) = true;
      }
      if (!captures) under_way.push_back({.end = end, .group = &group, .call = nullptr, .since_s = now});
    }

    /// Throws: input_error unless this is what was planned.
    void check(const planned& p, const posted& found) const {
      const auto& where = at(channels, p.what.channel).where;
      const auto& b = traits::buffer(*found.tensor);
      stamp expected = p.what.what;
      expected.step = found.what.step;
      if (found.what != expected)
        throw input_error(to_text(where) + ": posted is " + to_text(found.what) + ", planned is " + to_text(expected));
      if (b.bytes() != p.what.bytes)
        throw input_error(to_text(where) + ", " + to_text(found.what) + ": posted are " + std::to_string(b.bytes()) +
                          " bytes, planned " + std::to_string(p.what.bytes));
      if (b.bytes() > 0 && b.device() != device)
        throw input_error(to_text(where) + ", " + to_text(found.what) + ": the tensor is not on device " +
                          std::to_string(device));
    }

    [[nodiscard]] std::string name_of(const planned_group& group) const {
      const auto& p = group.operations.front().what;
      return to_text(at(channels, p.channel).where) + ", microbatch " + std::to_string(p.what.microbatch);
    }
    [[nodiscard]] std::string oldest() const {
      for (const auto& i : under_way)
        if (!i.end.reached()) {
          if (i.call) return "collective over " + i.call->name;
          return i.group ? name_of(*i.group) : "graph of a step";
        }
      return {};
    }

    /// Whether a rank has given up; if so, this one does.
    [[nodiscard]] bool has_failed() {
      std::string reason = links.control().failure();
      if (reason.empty()) reason = links.error();
      if (reason.empty()) return false;
      give_up(reason);
      return true;
    }
    /// While work is captured NCCL would wait for the capture's end, which the thread that captures comes to.
    void give_up(const std::string& reason) {
      links.control().abort(reason);
      if (!captures) {
        if (auto end_it = std::exchange(let_go, {})) end_it();
        links.abort();
      }
      plan.clear();
      under_way.clear();
      for (auto& c : channels) c.waiting.clear();
    }

    /// See cuda_devices::keep_looking. Whoever has the guard looks himself.
    void look() {
      const std::unique_lock lock(guard, std::try_to_lock);
      if (!lock || captures || has_failed()) return;
      forget_ended();
      if (!under_way.empty() && steady_now_s() - under_way.front().since_s > allowed_s())
        give_up("rank " + std::to_string(links.rank()) + ": the " + oldest() + ", has not been done for " +
                std::to_string(allowed_s()) + " s");
    }

    /// Waits for what is enqueued.
    void finish() {
      const double begin_s = steady_now_s();
      for (forget_ended(); !under_way.empty(); forget_ended()) {
        const double left_s = std::max(begin_s, under_way.front().since_s) + allowed_s() - steady_now_s();
        links.check(deadline_in(left_s), allowed_s(), "the " + oldest() + ", has not been done", {});
        std::this_thread::yield();
      }
    }

    cuda_devices<Api>& devices;
    int device;
    std::shared_ptr<const cuda_queue<Api>> lent;
    detail::nccl_links<Api, NcclApi, Control> links;
    std::recursive_mutex guard;  ///< of all below; look() may be called by who holds it
    std::deque<channel> channels;
    std::vector<planned_group> plan;
    cuda_clock<Api> clock;  ///< of its groups
    std::size_t next = 0;   ///< group of the plan
    std::deque<issued> under_way;
    std::deque<caller> callers;
    std::function<void()> let_go;         ///< ends the graph that holds what connects the ranks
    bool captures = false;                ///< what is issued
    bool is_told = false;                 ///< that layers may call
    bool received = false, sent = false;  ///< since the last wait for them
  };

  void post(int number, const stamp& what, Tensor& t, operation& op, bool sends) {
    auto& s = *shared_;
    const std::lock_guard lock(s.guard);
    auto& c = at(s.channels, number);
    op.ended_ = false;
    if (s.has_failed()) return;
    if (!c.is_planned || sends != (c.where.from == rank()))
      throw input_error("the " + to_text(c.where) + " is not in the plan of rank " + std::to_string(rank()));
    c.waiting.push_back({.op = &op, .tensor = &t, .what = what});
    s.issue();
  }

  std::shared_ptr<shared_state> shared_;
};

}  // namespace hetsched
