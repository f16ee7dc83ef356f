// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/torch/process_group_test.cpp.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <hetsched/core/checksum.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/device/steady_time.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>
#include <hetsched/torch/detail/group_engine.hpp>

namespace hetsched {

namespace detail {

/// Keeps for good the memory of what has been given up: a group whose abort() does nothing, as c10d's own, may touch it yet.
inline void leave_behind(const at::Tensor& message, const c10::intrusive_ptr<c10d::Work>& work) {
  static auto& all = *new std::vector<std::pair<at::Tensor, c10::intrusive_ptr<c10d::Work>>>;
  static std::mutex guard;
  const std::lock_guard hold(guard);
  all.emplace_back(message, work);
}

}  // namespace detail

/// Connects ranks that are the processes of a group of torch whose sends and receives have no tags and are carried out in the
/// order of their calls, as NCCL's: an ordered_plane, whose order is proved beforehand and is that of the program. Tensors are in
/// host memory, and travel by way of memory on `device`, where the group sends from. `Control` connects the same ranks, such as a
/// torch_group_communicator over what torch's group has for the cpu, and carries what ranks agree over, and why they fail.
/// Nothing else may use the group meanwhile. A handle: copies are the same rank's. Once aborted it stays so, and so does the
/// group. Tested on a group of the host's memory that does as NCCL does; no GPU has met it.
/// Example, of torch's group "cpu:gloo,cuda:nccl":
///   torch_ordered_communicator<torch::Tensor, torch_group_communicator<torch::Tensor>> comm(
///       world->getBackend(c10::DeviceType::CUDA), c10::Device(c10::DeviceType::CUDA, local_rank),
///       torch_group_communicator<torch::Tensor>(world));
template <class Tensor, control_plane Control>
class torch_ordered_communicator {
  static_assert((detail::require_tensor<Tensor>(), true));
  static_assert(detail::on_host<Tensor>, "tensors are in host memory, and travel by way of a device's");
  using traits = tensor_traits<Tensor>;

 public:
  /// Throws: input_error for a null group, and one of other ranks than the control's.
  torch_ordered_communicator(c10::intrusive_ptr<c10d::Backend> group, c10::Device device, Control control)
      : own_(std::make_shared<state>(std::move(group), device, std::move(control), std::make_shared<std::set<int>>())) {
    if (!own_->group) throw input_error("the process group is null");
    if (own_->group->getRank() != rank() || own_->group->getSize() != ranks())
      throw input_error("the process group has rank " + std::to_string(own_->group->getRank()) + " of " +
                        std::to_string(own_->group->getSize()) + " here, its control has " + std::to_string(rank()) + " of " +
                        std::to_string(ranks()));
  }

  class operation {
   public:
    double end_s = 0;

   private:
    friend class torch_ordered_communicator;
    bool ended_ = false;
  };

  [[nodiscard]] int rank() const { return own_->control.rank(); }
  [[nodiscard]] int ranks() const { return own_->control.ranks(); }

  /// Another plane of the same ranks, with an order of its own.
  /// Requires: of two planes' operations all ranks post those of the one behind those of the other.
  [[nodiscard]] torch_ordered_communicator another() const {
    return torch_ordered_communicator(std::make_shared<state>(own_->group, own_->device, own_->control, own_->connected));
  }

  [[nodiscard]] int open(const edge& e) {
    const std::lock_guard hold(own_->guard);
    auto& all = own_->channels;
    const auto found = std::find_if(all.begin(), all.end(), [&](const channel& c) { return c.where == e; });
    if (found != all.end()) return static_cast<int>(found - all.begin());
    all.push_back({.where = e});
    return static_cast<int>(all.size()) - 1;
  }

  /// See ordered_plane. Compares the plans of both ends of every pair, and has each pair send a byte both ways for the first
  /// time: groups that connect a pair by its first message (as NCCL's, unless made with a device_id) block meanwhile, which
  /// transfers with deadlines must not. Requires: nothing is under way. Throws: input_error for plans that do not fit each other;
  /// communication_error where another rank has failed or is late. Then this is aborted. A rank that ends while others connect to
  /// it holds them up for as long as the group lets it.
  void set_plan(const communication_plan& plan) {
    try {
      own_->set_plan(plan);
    } catch (const std::exception& e) {
      const std::lock_guard hold(own_->guard);
      own_->give_up(e.what());
      throw;
    }
  }

  void post_send(int number, const stamp& s, Tensor& t, operation& op) { post(number, s, t, op); }
  void post_receive(int number, const stamp& s, Tensor& t, operation& op) { post(number, s, t, op); }
  [[nodiscard]] bool poll(operation& op) {
    const std::lock_guard hold(own_->guard);
    if (!op.ended_) own_->advance();
    return op.ended_;
  }
  /// Looks every 20 us.
  [[nodiscard]] wait_result wait(deadline_time until, bool sends) {
    for (auto& own = *own_;;) {
      {
        const std::lock_guard hold(own.guard);
        own.advance();
        if (own.has_failed()) return wait_result::aborted;
        const bool news = own.received || (sends && own.sent);
        own.received = false;
        if (sends) own.sent = false;
        if (news) return wait_result::progress;
      }
      if (std::chrono::steady_clock::now() >= until) return wait_result::deadline;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  void abort(const std::string& reason) {
    const std::lock_guard hold(own_->guard);
    own_->give_up(reason);
  }
  [[nodiscard]] std::string failure() const { return own_->control.failure(); }
  [[nodiscard]] wait_result gather(std::span<const double> mine, std::vector<std::vector<double>>& all, deadline_time until) {
    return own_->control.gather(mine, all, until);
  }

 private:
  struct posted {
    operation* op = nullptr;
    Tensor* tensor = nullptr;
    stamp what;
  };
  struct channel {
    edge where;
    std::deque<posted> waiting = {};
  };
  struct begun {
    posted what;
    bool sends = false;
    at::Tensor message;
    c10::intrusive_ptr<c10d::Work> work;
  };

  struct state {
    state(c10::intrusive_ptr<c10d::Backend> all, c10::Device where, Control by, std::shared_ptr<std::set<int>> peers)
        : group(std::move(all)), device(where), control(std::move(by)), connected(std::move(peers)) {}
    state(const state&) = delete;
    state& operator=(const state&) = delete;
    ~state() {
      // What others wait for is to leave, and what they have sent to come.
      for (const auto until = deadline_in(5); !under_way.empty() && std::chrono::steady_clock::now() < until;) {
        if (has_failed()) {
          let_go();
          return;
        }
        advance();
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
      leave_behind();
    }

    /// Without guard but at first, so that another thread can abort it.
    void set_plan(const communication_plan& wanted) {
      std::unique_lock hold(guard);
      plan.clear();
      next = 0;
      for (auto one : wanted) {
        // Both ends of a pair have one order, and pairs have that of all ranks.
        std::stable_sort(one.begin(), one.end(),
                         [&](const auto& a, const auto& b) { return place_of(a.channel) < place_of(b.channel); });
        plan.insert(plan.end(), one.begin(), one.end());
      }
      std::vector<double> mine;
      for (int peer = 0; peer < control.ranks(); ++peer) {
        const auto sum = digest(peer);
        mine.insert(mine.end(), {static_cast<double>(sum >> 32), static_cast<double>(sum & 0xffffffff)});
      }
      hold.unlock();
      std::vector<std::vector<double>> all;
      if (control.gather(mine, all, deadline_in(60)) != wait_result::progress)
        throw communication_error("rank " + std::to_string(control.rank()) + " cannot compare its plan: " + control.failure(),
                                  {.to = control.rank()}, -1, {});
      for (std::size_t a = 0; a < all.size(); ++a)
        for (std::size_t b = a + 1; b < all.size(); ++b)
          if (all[a][2 * b] != all[b][2 * a] || all[a][2 * b + 1] != all[b][2 * a + 1])
            throw input_error("rank " + std::to_string(control.rank()) + ": ranks " + std::to_string(a) + " and " +
                              std::to_string(b) + " have planned different transfers: their schedules, shapes or steps differ");
      connect(deadline_in(60));
    }
    /// All ranks have come. Pairs have one order among all ranks, so that none waits for one that waits for it.
    void connect(deadline_time until) {
      std::set<int> peers;
      for (const auto& o : plan)
        if (o.bytes > 0 && !connected->contains(peer_of(o))) peers.insert(peer_of(o));
      for (const int peer : peers) {
        try {
          for (const bool sends : {control.rank() < peer, control.rank() > peer}) {
            const auto message = at::empty({1}, at::device(device).dtype(at::kByte));
            const auto work = call(sends, message, peer);
            while (!work->isCompleted()) {
              const bool failed = has_failed();
              if (failed || std::chrono::steady_clock::now() >= until) {
                detail::leave_behind(message, work);
                throw error(failed ? control.failure() : "it is late");
              }
              std::this_thread::sleep_for(std::chrono::microseconds(20));
            }
            work->wait();
          }
        } catch (const std::exception& e) {
          const std::string text = e.what();
          throw communication_error("rank " + std::to_string(control.rank()) + " cannot connect to rank " + std::to_string(peer) +
                                        ": " + text.substr(0, text.find('\n')),
                                    {.from = control.rank(), .to = peer}, -1, {});
        }
        connected->insert(peer);
      }
    }
    [[nodiscard]] c10::intrusive_ptr<c10d::Work> call(bool sends, const at::Tensor& message, int peer) {
      std::vector<at::Tensor> one{message};
      return sends ? group->send(one, peer, 0) : group->recv(one, peer, 0);
    }
    [[nodiscard]] auto place_of(int number) const {
      const auto& e = at(channels, number).where;
      return std::tuple(std::min(e.from, e.to), std::max(e.from, e.to), e.from, e.what, e.direction, e.stage, e.part);
    }
    [[nodiscard]] int peer_of(const planned_operation& o) const {
      const auto& e = at(channels, o.channel).where;
      return o.sends ? e.to : e.from;
    }
    /// A checksum of what is planned with a peer.
    [[nodiscard]] std::uint64_t digest(int peer) const {
      std::uint64_t sum = 0;
      for (const auto& o : plan) {
        if (peer_of(o) != peer) continue;
        const auto& e = at(channels, o.channel).where;
        const std::array<std::int64_t, 9> numbers{e.from,
                                                  static_cast<int>(e.what),
                                                  e.direction,
                                                  e.stage,
                                                  e.part,
                                                  o.what.step,
                                                  o.what.microbatch,
                                                  static_cast<std::int64_t>(o.bytes),
                                                  static_cast<int>(o.what.what)};
        sum = crc64(std::as_bytes(std::span(numbers)), sum);
      }
      return sum;
    }

    /// Ends what has been carried out, and begins what is next in the plan and has been posted.
    void advance() {
      if (has_failed()) return let_go();
      try {
        for (auto b = under_way.begin(); b != under_way.end();) {
          if (b->work && !b->work->isCompleted()) {
            ++b;
            continue;
          }
          if (b->work) b->work->wait();
          if (!b->sends) view(*b->what.tensor).copy_(b->message);
          b->what.op->end_s = steady_now_s();
          b->what.op->ended_ = true;
          (b->sends ? sent : received) = true;
          b = under_way.erase(b);
        }
        while (!plan.empty() && !at(channels, plan[next].channel).waiting.empty()) {
          begin(plan[next]);
          next = (next + 1) % plan.size();
        }
      } catch (const std::exception& e) {
        const std::string text = e.what();
        give_up("rank " + std::to_string(control.rank()) + ": " + text.substr(0, text.find('\n')));
      }
    }
    void begin(const planned_operation& o) {
      auto& waiting = at(channels, o.channel).waiting;
      const auto found = waiting.front();
      waiting.pop_front();
      const auto& where = at(channels, o.channel).where;
      stamp expected = o.what;
      expected.step = found.what.step;
      if (found.what != expected)
        throw input_error(to_text(where) + ": posted is " + to_text(found.what) + ", planned is " + to_text(expected));
      const auto bytes = view(*found.tensor);
      if (static_cast<std::size_t>(bytes.numel()) != o.bytes)
        throw input_error(to_text(where) + ", " + to_text(found.what) + ": posted are " + std::to_string(bytes.numel()) +
                          " bytes, planned " + std::to_string(o.bytes));
      auto& b = under_way.emplace_back(begun{.what = found, .sends = o.sends, .message = {}, .work = {}});
      b.message = at::empty({bytes.numel()}, at::device(device).dtype(at::kByte));
      if (o.sends) b.message.copy_(bytes);
      if (o.bytes > 0) b.work = call(o.sends, b.message, peer_of(o));
    }
    [[nodiscard]] static at::Tensor view(Tensor& t) {
      const auto bytes = detail::elements(t) * sizeof(typename traits::element);
      return at::from_blob(traits::data(t), {static_cast<std::int64_t>(bytes)}, at::kByte);
    }

    [[nodiscard]] bool has_failed() const { return !control.failure().empty(); }
    void give_up(const std::string& reason) {
      control.abort(reason);
      let_go();
    }
    /// Tensors are their owners' again: messages have memory of their own.
    void let_go() {
      for (auto& c : channels) c.waiting.clear();
      if (std::exchange(is_let_go, true)) return;
      try {
        group->abort();
      } catch (const std::exception&) {
        // It has failed by itself.
      }
      leave_behind();
    }
    void leave_behind() {
      for (const auto& b : under_way)
        if (b.work && !b.work->isCompleted()) detail::leave_behind(b.message, b.work);
      under_way.clear();
    }

    c10::intrusive_ptr<c10d::Backend> group;
    c10::Device device;
    Control control;
    std::shared_ptr<std::set<int>> connected;  ///< peers, of all planes of the group
    std::mutex guard;
    std::vector<channel> channels;
    communication_plan::value_type plan;
    std::size_t next = 0;
    std::deque<begun> under_way;
    bool received = false, sent = false;  ///< since the last wait for them
    bool is_let_go = false;
  };

  void post(int number, const stamp& s, Tensor& t, operation& op) {
    const std::lock_guard hold(own_->guard);
    op.ended_ = false;
    if (own_->has_failed()) return;
    at(own_->channels, number).waiting.push_back({&op, &t, s});
    own_->advance();
  }

  explicit torch_ordered_communicator(std::shared_ptr<state> own) : own_(std::move(own)) {}

  std::shared_ptr<state> own_;
};

}  // namespace hetsched
