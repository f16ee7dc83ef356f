// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <hetsched/cuda/nccl_api.hpp>
#include <hetsched/cuda_check/api.hpp>

namespace hetsched::test {

/// The habits of NCCL that programs trip over.
struct nccl_habits {
  int turns_late = 2;             ///< what was called is done when its state has been asked for so often
  bool one_creation = true;       ///< a device takes part in the creation of one communicator at a time
  std::size_t most_in_one = 256;  ///< larger groups are cut, at the two ends in two ways; 0: they are not
  double creation_s = 0;          ///< from when all ranks of a communicator have come until it is made
  double split_s = 0;             ///< the same where one is split
};

/// NCCL between the devices of a fake machine. A transfer takes place when the kernels of both ends are running, a collective
/// when those of all are: nothing is buffered. Collectives are of floats or doubles, and add in the order of the ranks. A kernel
/// has what one group has for one communicator; kernels are launched in the order in which their communicators were first named.
class fake_nccl_world {
 public:
  struct kernel;
  struct part {
    kernel* of = nullptr;
    void* memory = nullptr;
    std::size_t bytes = 0;
    bool done = false, mismatched = false;
  };
  struct end;
  enum class collective : std::uint8_t { none, all_reduce, all_gather, reduce_scatter, broadcast, reduce };
  struct call {
    bool sends = false;
    void* memory = nullptr;  ///< of a collective: to where
    std::size_t bytes = 0;   ///< of a collective: of a rank's part
    int peer = 0;            ///< of a collective: the root
    cuda_check::machine::stream_state* on = nullptr;
    collective kind = collective::none;
    const void* from = nullptr;       ///< of a collective
    nccl_type type = nccl_type::f64;  ///< of a collective
  };
  /// A rank's part in a collective.
  struct share {
    kernel* of = nullptr;
    call what = {};
    bool done = false, mismatched = false;
  };
  /// One way between two ranks.
  struct lane {
    std::deque<std::shared_ptr<part>> sends, receives;  ///< all, in the order of the calls
  };
  /// Of a clique: what its ranks have asked for in one call each.
  struct split_call {
    int colour = -1, key = 0;
    end *by = nullptr, *made = nullptr;
    end** to = nullptr;  ///< where the caller gets what is made, when the split is done
    nccl_link link = {};
  };
  struct split_of {
    std::map<int, split_call> called;
    std::optional<std::chrono::steady_clock::time_point> begun = {};
    bool done = false;
  };
  struct clique {
    int ranks = 0;
    nccl_link link = {};
    std::optional<std::chrono::steady_clock::time_point> begun = {};  ///< when all had come
    std::map<int, end*> ends;
    std::map<std::pair<int, int>, lane> lanes;
    std::map<int, std::deque<std::shared_ptr<share>>> shares;  ///< by rank, all, in the order of the calls
    std::map<int, split_of> splits = {};                       ///< by their number
  };
  /// Of a group, in their order.
  using kernels = std::vector<std::pair<end*, std::vector<call>>>;
  struct end {
    clique* of = nullptr;
    int rank = 0, device = 0;
    bool made = false, alive = true, finishing = false;
    int turns = 0;                                        ///< until what was called is done
    clique* parent = nullptr;                             ///< that it is split off
    int number = -1;                                      ///< of that split
    int splits = 0;                                       ///< that it has called
    bool is_splitting = false;                            ///< in the last one
    std::deque<std::shared_ptr<kernels>> to_launch = {};  ///< groups that it is in
    // With the machine's lock held:
    bool ended = false;  ///< aborted: its kernels end
    bool dead = false;   ///< its kernels do nothing any more
    int wrong = 0;       ///< asynchronous error
    std::size_t running = 0;
    std::uint64_t capture = 0;  ///< the machine's last that it was in
    int captures = 0;
  };
  struct kernel {
    end* of = nullptr;
    int capture = 0;  ///< of its end, that it is in; 0: none
    bool begun = false, finished = false;
    std::vector<std::pair<std::shared_ptr<part>, std::pair<lane*, std::size_t>>> parts = {};
    std::vector<std::pair<std::shared_ptr<share>, std::size_t>> shares = {};  ///< and which of the rank's
  };

  explicit fake_nccl_world(cuda_check::machine& on, nccl_habits habits = {}) : machine(on), habits_(habits) {}

  int unique_id(nccl_id& id) {
    const std::lock_guard lock(guard_);
    if (const int code = begin("ncclGetUniqueId"); code != 0) return code;
    ++ids_;
    for (std::size_t k = 0; k < id.size(); ++k) id[k] = static_cast<unsigned char>(251 * ids_ + 255 - k);
    return 0;
  }
  int connect(end*& made, int ranks, const nccl_id& id, int rank, const nccl_link& link) {
    const int device = machine.current_device();
    const std::lock_guard lock(guard_);
    if (const int code = begin("ncclCommInitRankConfig"); code != 0) return code;
    auto& c = cliques_[id];
    if (!c.ends.empty() && (c.ranks != ranks || c.link != link)) report("the ranks of a communicator make it differently");
    c.ranks = ranks;
    c.link = link;
    made = &ends_.emplace_back(end{.of = &c, .rank = rank, .device = device, .turns = habits_.turns_late});
    for (const auto& [other, e] : c.ends)
      if (other == rank || e->device == device) made->wrong = e->wrong = 5;  // duplicate GPU
    c.ends[rank] = made;
    creating_[device].push_back(made);
    return 7;
  }
  /// Collective over the parent: the ranks' calls are paired in their order. `made` gets null now, and what is made when the
  /// parent's state tells that it is, or when the parent is aborted, and has to be there until then.
  /// Source: NCCL 2.28, ncclCommInitChildComm and ncclCommInitRankFunc.
  int split(end* parent, int colour, int key, end*& made, const nccl_link& link) {
    const std::lock_guard lock(guard_);
    if (const int code = begin("ncclCommSplit"); code != 0) return code;
    if (!parent || !parent->alive || !parent->made) return report("a communicator is split that is not there"), 5;
    if (parent->is_splitting) report("a communicator is split that is still in progress");
    if (!parent->to_launch.empty() || machine.locked([&] { return parent->running > 0; }))
      report("a communicator is split that has work under way");
    made = nullptr;
    const int number = parent->splits++;
    end* own = nullptr;
    if (colour >= 0)
      own =
          &ends_.emplace_back(end{.device = parent->device, .turns = habits_.turns_late, .parent = parent->of, .number = number});
    parent->of->splits[number].called[parent->rank] = {colour, key, parent, own, &made, link};
    parent->is_splitting = true;
    parent->turns = habits_.turns_late;
    return 7;
  }
  int state(end* e, int& state) {
    std::unique_lock lock(guard_);
    if (const int code = begin("ncclCommGetAsyncError"); code != 0) return code;
    if (!e || !e->alive) return report("the state of a communicator is asked for that is gone"), 4;
    state = machine.locked([&] { return e->wrong; });
    if (state != 0) return 0;
    state = 7;
    if (e->is_splitting && !splits(*e->of, e->splits - 1)) return 0;
    if (e->is_splitting) end_split(*e);
    if (e->parent && !e->made && !splits(*e->parent, e->number)) return 0;
    if (!e->made && !creates(*e)) return 0;
    if (e->turns > 0 && --e->turns > 0) return 0;
    if (e->finishing) {
      const auto has_finished = [](const auto& other) { return other.second->finishing && other.second->running == 0; };
      if (machine.locked([&] { return std::all_of(e->of->ends.begin(), e->of->ends.end(), has_finished); })) state = 0;
      return 0;
    }
    kernels now;
    for (const auto& one : std::exchange(e->to_launch, {}))
      for (auto& k : std::exchange(*one, {})) now.push_back(std::move(k));
    lock.unlock();
    for (const auto& [of, calls] : now)
      if (const int code = launch(of, calls); code != 0) return code;
    state = 0;
    return 0;
  }
  int transfer(end* e, const call& what) {
    const std::lock_guard lock(guard_);
    if (const int code = begin(name_of(what)); code != 0) return code;
    if (!e || !e->alive || !e->made) return report("a communicator is used that is not there"), 5;
    for (const auto& one : e->to_launch)
      if (!one->empty()) report("a communicator is used that is still in progress");
    if (const auto k = kills_.find(e->device); k != kills_.end() && k->second.first-- == 0) kill_now(e->device, k->second.second);
    auto& g = groups_[std::this_thread::get_id()];
    sent_ += sent_by(what, static_cast<std::size_t>(e->of->ranks));
    const auto all = what.kind == collective::all_reduce ? what.bytes : what.bytes * static_cast<std::size_t>(e->of->ranks);
    if (what.kind != collective::none && what.kind != collective::broadcast && what.kind != collective::reduce)
      first_[e->of->ranks].try_emplace(name_of(what), all);
    g.calls.emplace_back(e, what);
    return g.depth > 0 ? 0 : end_calls(g);
  }
  int begin_group() {
    const std::lock_guard lock(guard_);
    if (const int code = begin("ncclGroupStart"); code != 0) return code;
    ++groups_[std::this_thread::get_id()].depth;
    return 0;
  }
  int end_group() {
    if (before_calls) before_calls(machine.current_device());
    const std::lock_guard lock(guard_);
    auto& g = groups_[std::this_thread::get_id()];
    if (--g.depth > 0) return 0;
    if (const int code = begin("ncclGroupEnd"); code != 0) return g.calls.clear(), code;
    return end_calls(g);
  }
  int keep(end* e, void* memory, void*& handle) {
    const auto allocation = machine.allocation_of(memory);
    const std::lock_guard lock(guard_);
    if (const int code = begin("ncclCommRegister"); code != 0) return code;
    if (!e || !e->alive || !e->made || allocation == 0)
      return report("memory or a communicator is registered that is not there"), 4;
    handle = &kept_.emplace_back(kept{e, memory, allocation});
    return 0;
  }
  int let_go(end* e, void* handle) {
    const std::lock_guard lock(guard_);
    if (const int code = begin("ncclCommDeregister"); code != 0) return code;
    auto& k = *static_cast<kept*>(handle);
    if (k.of != e || !e->alive) return report("memory is deregistered where it is not registered"), 4;
    look_for_freed(e);
    k.of = nullptr;
    return 0;
  }
  int finish(end* e) {
    const std::lock_guard lock(guard_);
    if (const int code = begin("ncclCommFinalize"); code != 0) return code;
    if (machine.is_held_by_graph(e)) report("a communicator is finalised that a graph holds: that waits for the graph's end");
    look_for_freed(e);
    if (std::any_of(kept_.begin(), kept_.end(), [&](const kept& k) { return k.of == e; }))
      report("a communicator is finalised that has registered memory");
    e->finishing = true;
    e->turns = habits_.turns_late;
    return 7;
  }
  int destroy(end* e) {
    const std::lock_guard lock(guard_);
    if (!e->finishing) report("a communicator is destroyed that was not finalised: that waits for the other rank");
    if (!e->alive) return report("a communicator is destroyed that is gone"), 4;
    e->alive = false;
    return begin("ncclCommDestroy");
  }
  int abort(end* e) {
    const std::lock_guard lock(guard_);
    ++calls_["ncclCommAbort"];
    if (!e || !e->alive) return report("a communicator is aborted that is gone"), 4;
    if (machine.is_held_by_graph(e)) report("a communicator is aborted that a graph holds: that waits for the graph's end");
    const bool grouped = groups_[std::this_thread::get_id()].depth > 0;
    if (e->is_splitting) end_split(*e);
    e->alive = false;
    const bool stuck = machine.locked([&] {
      e->ended = true;
      return std::any_of(ends_.begin(), ends_.end(),
                         [&](const end& other) { return other.device == e->device && other.alive && other.running > 0; });
    });
    if (stuck && !grouped) report("a communicator is aborted outside of a group while another one is stuck: that hangs");
    auto& list = creating_[e->device];
    list.erase(std::remove(list.begin(), list.end(), e), list.end());
    return 0;
  }

  /// A call of this name fails, after so many others.
  void fail(const std::string& name, int code, int after) {
    const std::lock_guard lock(guard_);
    failures_[name] = {after, code};
  }
  /// A device does no transfers any more, after so many; -1: from now on. `seen`: the other ends are told.
  void kill(int device, bool seen, int after) {
    const std::lock_guard lock(guard_);
    if (after < 0) return kill_now(device, seen);
    kills_[device] = {after, seen};
  }
  [[nodiscard]] std::size_t calls(const std::string& name) {
    const std::lock_guard lock(guard_);
    return calls_[name];
  }
  /// Bytes that all ranks send to others; of a collective, by a ring, where a rank sends a part of it to the next at a time.
  [[nodiscard]] double sent_bytes() {
    const std::lock_guard lock(guard_);
    return sent_;
  }
  /// Of the first collective of each name, all ranks' parts together, in communicators of so many ranks.
  [[nodiscard]] std::map<std::string, std::size_t> first_bytes(int ranks) {
    const std::lock_guard lock(guard_);
    return first_[ranks];
  }
  /// Of how many ranks communicators were made, and by which links, in no order.
  [[nodiscard]] std::vector<std::pair<int, nccl_link>> made() {
    const std::lock_guard lock(guard_);
    std::vector<std::pair<int, nccl_link>> all;
    for (const auto& [id, c] : cliques_) all.emplace_back(c.ranks, c.link);
    for (const auto& c : split_off_) all.emplace_back(c.ranks, c.link);
    return all;
  }
  /// Communicators that were neither destroyed nor aborted.
  [[nodiscard]] std::size_t alive() {
    const std::lock_guard lock(guard_);
    return static_cast<std::size_t>(std::count_if(ends_.begin(), ends_.end(), [](const end& e) { return e.alive; }));
  }

  cuda_check::machine& machine;
  std::function<void(int device)> before_calls = {};  ///< at the end of each group, by the thread that calls
  // With the machine's lock held, by device:
  std::map<int, std::size_t> allowed = {};  ///< kernels of collectives that may still begin; not in it: any number
  std::map<int, std::size_t> ended = {};    ///< kernels of collectives that have ended

 private:
  struct group {
    int depth = 0;
    std::vector<std::pair<end*, call>> calls;
  };

  /// Registered memory.
  struct kept {
    end* of = nullptr;
    void* memory = nullptr;
    std::uint64_t allocation = 0;
  };
  void look_for_freed(const end* e) {
    for (auto& k : kept_)
      if (k.of == e && machine.allocation_of(k.memory) != k.allocation) report("memory is freed that is registered");
  }

  static const char* name_of(const call& c) {
    if (c.kind == collective::none) return c.sends ? "ncclSend" : "ncclRecv";
    return c.kind == collective::all_reduce       ? "ncclAllReduce"
           : c.kind == collective::all_gather     ? "ncclAllGather"
           : c.kind == collective::reduce_scatter ? "ncclReduceScatter"
           : c.kind == collective::reduce         ? "ncclReduce"
                                                  : "ncclBroadcast";
  }

  static double sent_by(const call& c, std::size_t ranks) {
    const auto others = static_cast<double>(ranks - 1), bytes = static_cast<double>(c.bytes);
    if (c.kind == collective::none) return c.sends ? bytes : 0;
    if (c.kind == collective::all_reduce) return 2 * bytes * others / static_cast<double>(ranks);
    if (c.kind == collective::broadcast || c.kind == collective::reduce) return bytes * others / static_cast<double>(ranks);
    return bytes * others;  // of a rank's part
  }

  // With guard_ held.
  int begin(const std::string& name) {
    ++calls_[name];
    const auto found = failures_.find(name);
    if (found == failures_.end() || found->second.first-- > 0) return 0;
    return failures_.extract(found).mapped().second;
  }
  void report(const std::string& text) {
    machine.locked([&] { machine.report(text); });
  }
  void kill_now(int device, bool seen) {
    machine.locked([&] {
      for (auto& e : ends_)
        if (e.device == device) {
          e.dead = true;
          for (auto& [rank, other] : e.of->ends)
            if (seen && other != &e) other->wrong = 6;
        }
    });
  }
  /// Whether all ends of a communicator are being made, and nothing before it. One that was aborted meanwhile is not.
  bool creates(end& e) {
    auto& c = *e.of;
    if (static_cast<int>(c.ends.size()) < c.ranks) return false;
    for (const auto& [rank, other] : c.ends) {
      if (other->made) continue;
      if (!other->alive || (habits_.one_creation && creating_[other->device].front() != other)) return false;
    }
    const auto now = std::chrono::steady_clock::now();
    if (!c.begun) c.begun = now;
    if (now - *c.begun < std::chrono::duration<double>(habits_.creation_s)) return false;
    for (const auto& [rank, other] : c.ends) {
      auto& list = creating_[other->device];
      list.erase(std::remove(list.begin(), list.end(), other), list.end());
      other->made = true;
    }
    return true;
  }
  /// Whether all ranks have called it, and it is done.
  bool splits(clique& parent, int number) {
    auto& s = parent.splits[number];
    if (s.done) return true;
    if (static_cast<int>(s.called.size()) < parent.ranks) return false;
    for (const auto& [rank, c] : s.called)
      if (!c.by->alive) return false;
    const auto now = std::chrono::steady_clock::now();
    if (!s.begun) s.begun = now;
    if (now - *s.begun < std::chrono::duration<double>(habits_.split_s)) return false;
    std::map<int, std::map<std::pair<int, int>, const split_call*>> by_colour;
    for (const auto& [rank, c] : s.called)
      if (c.colour >= 0) by_colour[c.colour][{c.key, rank}] = &c;
    for (const auto& [colour, all] : by_colour) {
      auto& made = split_off_.emplace_back();
      made.ranks = static_cast<int>(all.size());
      made.link = all.begin()->second->link;
      for (const auto& [place, c] : all) {
        if (c->link != made.link) report("the ranks of a communicator make it differently");
        auto& e = *c->made;
        e.of = &made;
        e.rank = static_cast<int>(made.ends.size());
        e.made = true;
        made.ends[e.rank] = &e;
      }
    }
    return s.done = true;
  }
  /// The caller gets what its last split has made.
  void end_split(end& parent) {
    const auto& s = parent.of->splits[parent.splits - 1];
    const auto& own = s.called.at(parent.rank);
    *own.to = s.done ? own.made : nullptr;
    if (own.made && !s.done) own.made->alive = false;  // it ends by itself
    parent.is_splitting = false;
  }
  int end_calls(group& g) {
    std::vector<end*> order;
    for (const auto& [e, c] : g.calls)
      if (std::find(order.begin(), order.end(), e) == order.end()) order.push_back(e);
    const auto all = std::make_shared<kernels>();
    for (auto* const e : order) {
      std::size_t size = habits_.most_in_one == 0 ? g.calls.size() : habits_.most_in_one;
      if (e->rank > 0 && g.calls.size() > size) size = size / 2 + 1;
      std::vector<call> list;
      for (const auto& [of, c] : g.calls) {
        if (of != e) continue;
        if (list.size() == size) all->emplace_back(e, std::exchange(list, {}));
        list.push_back(c);
      }
      all->emplace_back(e, std::move(list));
      e->to_launch.push_back(all);
      e->turns = habits_.turns_late;
    }
    g.calls.clear();
    return 7;
  }

  int launch(end* e, const std::vector<call>& calls) {
    std::vector<cuda_check::machine::range> ranges;
    auto* const on = calls.front().on;
    const int capture = machine.locked([&] {
      if (on->captured && std::exchange(e->capture, on->captured->number) != on->captured->number) ++e->captures;
      return on->captured ? e->captures : 0;
    });
    for (const auto& c : calls) {
      const auto all = c.bytes * static_cast<std::size_t>(e->of->ranks);
      if (c.kind == collective::none) {
        ranges.push_back({c.memory, c.bytes, !c.sends});
      } else {
        ranges.push_back({c.from, c.kind == collective::reduce_scatter ? all : c.bytes, false});
        if (c.memory) ranges.push_back({c.memory, c.kind == collective::all_gather ? all : c.bytes, true});
      }
    }
    // Of a graph, at each launch.
    auto begin_it = [this, e, calls, capture] {
      auto* const k = &kernels_.emplace_back(kernel{.of = e, .capture = capture});
      for (const auto& c : calls) {
        if (c.kind != collective::none) {
          auto& own = e->of->shares[e->rank];
          own.push_back(std::make_shared<share>(share{.of = k, .what = c}));
          k->shares.emplace_back(own.back(), own.size() - 1);
          continue;
        }
        auto& l = e->of->lanes[c.sends ? std::pair(e->rank, c.peer) : std::pair(c.peer, e->rank)];
        auto& own = c.sends ? l.sends : l.receives;
        own.push_back(std::make_shared<part>(part{.of = k, .memory = c.memory, .bytes = c.bytes}));
        k->parts.push_back({own.back(), {&l, own.size() - 1}});
      }
      ++e->running;
      return std::function<bool(bool&)>([this, k](bool& moved) { return run(*k, moved); });
    };
    return machine.launch_meeting(on, "a transfer", std::move(ranges), e, std::move(begin_it));
  }
  /// With the machine's lock held.
  bool run(kernel& k, bool& moved) {
    if (const auto a = allowed.find(k.of->device); a != allowed.end() && !k.begun && !k.shares.empty() && !k.of->ended) {
      if (a->second == 0) return false;
      --a->second;
    }
    if (!k.begun) k.begun = moved = true;
    bool all = true;
    for (auto& [p, where] : k.parts) {
      if (p->done) continue;
      auto& [way, number] = where;
      auto& from = way->sends;
      auto& to = way->receives;
      if (number < from.size() && number < to.size() && !k.of->ended) {
        part &a = *from[number], &b = *to[number];
        const bool live =
            a.of->begun && b.of->begun && !a.of->of->dead && !b.of->of->dead && !a.of->of->ended && !b.of->of->ended;
        if (live && a.of->capture != b.of->capture && !std::exchange(a.mismatched, true)) report_captures(*a.of, *b.of);
        if (live && a.bytes != b.bytes && !std::exchange(a.mismatched, true)) {
          machine.report("sent are " + std::to_string(a.bytes) + " bytes, received " + std::to_string(b.bytes));
        } else if (live && a.bytes == b.bytes) {
          machine.copy_now(b.memory, a.memory, a.bytes);
          a.done = b.done = moved = true;
        }
      }
      all = all && p->done;
    }
    for (auto& [s, number] : k.shares) {
      if (!s->done && !k.of->ended) meet(*k.of->of, number, moved);
      all = all && s->done;
    }
    if (!all && !k.of->ended) return false;
    if (!std::exchange(k.finished, true)) {  // it may be asked again
      --k.of->running;
      if (!k.shares.empty()) ++ended[k.of->device];
    }
    return true;
  }

  /// What is captured meets what was captured with it. Source: NCCL 2.28, Using NCCL with CUDA Graphs.
  void report_captures(const kernel& a, const kernel& b) {
    const auto text = [](const kernel& k) { return k.capture == 0 ? "no graph" : "capture " + std::to_string(k.capture); };
    machine.report("a transfer of " + text(a) + " meets one of " + text(b));
  }
  /// Does a collective if all ranks have come to it.
  void meet(clique& c, std::size_t number, bool& moved) {
    std::vector<share*> all;
    for (int r = 0; r < c.ranks; ++r) {
      auto& own = c.shares[r];
      if (number >= own.size()) return;
      all.push_back(own[number].get());
      const auto& k = *all.back()->of;
      if (!k.begun || k.of->dead || k.of->ended) return;
    }
    const auto& first = all.front()->what;
    for (const auto* s : all)
      if (s->of->capture != all.front()->of->capture && !std::exchange(all.front()->mismatched, true))
        report_captures(*all.front()->of, *s->of);
    for (const auto* s : all)
      if (s->what.kind != first.kind || s->what.bytes != first.bytes || s->what.peer != first.peer ||
          s->what.type != first.type) {
        if (!std::exchange(all.front()->mismatched, true))
          machine.report(std::string(name_of(s->what)) + " of " + std::to_string(s->what.bytes) + " bytes meets " +
                         name_of(first) + " of " + std::to_string(first.bytes) + " bytes");
        return;
      }
    first.type == nccl_type::f64 ? do_together<double>(all) : do_together<float>(all);
    moved = true;
  }
  template <class Element>
  void do_together(const std::vector<share*>& all) {
    const auto& first = all.front()->what;
    std::vector<std::vector<Element>> from;
    for (const auto* s : all) {
      const auto parts = s->what.kind == collective::reduce_scatter ? all.size() : 1;
      from.emplace_back(parts * s->what.bytes / sizeof(Element));
      machine.copy_out_now(from.back().data(), s->what.from, parts * s->what.bytes);
    }
    std::vector<Element> result = from.front();
    for (std::size_t r = 1; r < from.size(); ++r) {
      if (first.kind == collective::all_gather) result.insert(result.end(), from[r].begin(), from[r].end());
      if (first.kind == collective::all_reduce || first.kind == collective::reduce_scatter || first.kind == collective::reduce)
        for (std::size_t i = 0; i < result.size(); ++i) result[i] += from[r][i];
    }
    if (first.kind == collective::broadcast) result = from[static_cast<std::size_t>(first.peer)];
    for (std::size_t r = 0; r < all.size(); ++r) {
      const bool scattered = first.kind == collective::reduce_scatter;
      const std::size_t count = first.bytes / sizeof(Element);
      if (first.kind == collective::reduce && static_cast<int>(r) != first.peer) {
        all[r]->done = true;
        continue;
      }
      machine.copy_in_now(all[r]->what.memory, result.data() + (scattered ? r * count : 0),
                          scattered ? first.bytes : result.size() * sizeof(Element));
      all[r]->done = true;
    }
  }

  nccl_habits habits_;
  std::mutex guard_;  ///< taken before the machine's lock
  std::uint32_t ids_ = 0;
  std::map<nccl_id, clique> cliques_;
  std::deque<clique> split_off_;
  std::deque<kept> kept_;
  std::deque<end> ends_;
  std::deque<kernel> kernels_;                ///< with the machine's lock held
  std::map<int, std::deque<end*>> creating_;  ///< by device
  std::map<std::thread::id, group> groups_;
  std::map<std::string, std::pair<int, int>> failures_;
  std::map<int, std::pair<int, bool>> kills_;
  std::map<std::string, std::size_t> calls_;
  double sent_ = 0;
  std::map<int, std::map<std::string, std::size_t>> first_;
};

/// The nccl_api of a fake world.
struct fake_nccl {
  using stream = cuda_check::api::stream;
  using communicator = fake_nccl_world::end*;
  fake_nccl_world* world = nullptr;

  [[nodiscard]] int unique_id(nccl_id& id) const { return world->unique_id(id); }
  [[nodiscard]] int connect(communicator& made, int ranks, const nccl_id& id, int rank, const nccl_link& link) const {
    return world->connect(made, ranks, id, rank, link);
  }
  [[nodiscard]] int split(communicator parent, int colour, int key, communicator& made, const nccl_link& link) const {
    return world->split(parent, colour, key, made, link);
  }
  [[nodiscard]] int state(communicator c, int& state) const { return world->state(c, state); }
  [[nodiscard]] int send(const void* from, std::size_t bytes, int peer, communicator c, stream s) const {
    return world->transfer(c, {.sends = true, .memory = const_cast<void*>(from), .bytes = bytes, .peer = peer, .on = s});
  }
  [[nodiscard]] int receive(void* to, std::size_t bytes, int peer, communicator c, stream s) const {
    return world->transfer(c, {.sends = false, .memory = to, .bytes = bytes, .peer = peer, .on = s});
  }
  using collective = fake_nccl_world::collective;
  [[nodiscard]] int all_reduce(const void* from, void* to, std::size_t n, nccl_type t, communicator c, stream s) const {
    return together(collective::all_reduce, from, to, n, t, 0, c, s);
  }
  [[nodiscard]] int all_gather(const void* from, void* to, std::size_t n, nccl_type t, communicator c, stream s) const {
    return together(collective::all_gather, from, to, n, t, 0, c, s);
  }
  [[nodiscard]] int reduce_scatter(const void* from, void* to, std::size_t n, nccl_type t, communicator c, stream s) const {
    return together(collective::reduce_scatter, from, to, n, t, 0, c, s);
  }
  [[nodiscard]] int broadcast(const void* from, void* to, std::size_t n, nccl_type t, int root, communicator c, stream s) const {
    return together(collective::broadcast, from, to, n, t, root, c, s);
  }
  [[nodiscard]] int reduce(const void* from, void* to, std::size_t n, nccl_type t, int root, communicator c, stream s) const {
    return together(collective::reduce, from, to, n, t, root, c, s);
  }
  [[nodiscard]] int keep(communicator c, void* memory, std::size_t, void*& handle) const {
    return world->keep(c, memory, handle);
  }
  [[nodiscard]] int let_go(communicator c, void* handle) const { return world->let_go(c, handle); }
  [[nodiscard]] int begin_group() const { return world->begin_group(); }
  [[nodiscard]] int end_group() const { return world->end_group(); }
  [[nodiscard]] int finish(communicator c) const { return world->finish(c); }
  [[nodiscard]] int destroy(communicator c) const { return world->destroy(c); }
  [[nodiscard]] int abort(communicator c) const { return world->abort(c); }
  [[nodiscard]] static std::string error_text(int code) {
    return code == 6 ? "remote process exited" : code == 5 ? "invalid usage" : "an error of the fake";
  }
  [[nodiscard]] static std::string last_error(communicator) { return {}; }

 private:
  [[nodiscard]] int together(collective kind, const void* from, void* to, std::size_t n, nccl_type t, int root, communicator c,
                             stream s) const {
    if (t != nccl_type::f64 && t != nccl_type::f32) return 4;
    const std::size_t bytes = n * (t == nccl_type::f64 ? sizeof(double) : sizeof(float));
    return world->transfer(c, {.memory = to, .bytes = bytes, .peer = root, .on = s, .kind = kind, .from = from, .type = t});
  }
};

static_assert(nccl_api<fake_nccl> && nccl_register_api<fake_nccl>);

}  // namespace hetsched::test
