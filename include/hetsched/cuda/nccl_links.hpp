// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cuda/nccl_communicator_test.cpp.

#include <algorithm>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cuda/api.hpp>
#include <hetsched/cuda/buffer.hpp>
#include <hetsched/cuda/nccl_api.hpp>
#include <hetsched/cuda/queue.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>

namespace hetsched {

struct nccl_options {
  double deadline_s = 30;        ///< for a transfer that its device has reached
  double step_deadline_s = 300;  ///< for a CUDA graph of a step, and for the other ranks to come to the next one
  double connect_s = 120;        ///< how long agreeing on a plan and connecting for it may take
  /// Channels at most of what connects ranks that transfer to each other, where `link` is empty; each is a multiprocessor's
  /// while a transfer lasts, and some MiB of memory for each pair. 0: NCCL's choice, up to 32.
  int channels = 4;
  /// How two ranks are connected, the lower one first; the same on all. Those of pairs that are connected by way of each other
  /// alike share a communicator. Empty: all alike.
  std::function<nccl_link(int, int)> link = {};
  /// Sets and groups of ranks that share ranks are split off one communicator of all of these, which is made first and does
  /// nothing else, and share what it has: one exchange of addresses for all. Else each is made by itself, as are those whose link
  /// names a network. The same on all ranks.
  bool splits = true;
  /// Buffers of sums of gradients are registered with NCCL, where they stay for a training: see nccl_axis::keep. For memory that
  /// NCCL can register, such as that of an adopted allocator which has it from ncclMemAlloc.
  bool registers = false;
};

namespace detail {

/// Ranks with an NCCL communicator of their own, ascending if they transfer, or a group that calls collectives.
struct nccl_clique {
  std::vector<int> ranks;
  bool calls = false;
  nccl_link link = {};    ///< of ranks that transfer
  bool is_whole = false;  ///< made to be split
  friend auto operator<=>(const nccl_clique&, const nccl_clique&) = default;
  friend bool operator==(const nccl_clique& a, const nccl_clique& b) {  // nvcc 13 leaves out the implicit one
    return a.calls == b.calls && a.ranks == b.ranks && a.link == b.link && a.is_whole == b.is_whole;
  }
};

/// What ranks that call collectives have planned to.
struct nccl_use {
  std::size_t bytes = 0;  ///< of the largest, of all ranks' parts together
  bool scatters = false;  ///< reduce-scatter and all-gather, too
};

/// Two ranks that transfer, the lower one first.
using nccl_pair = std::pair<int, int>;

/// What connects pairs of ranks: of those with the same link all that are joined by way of each other, as one.
/// Complexity: O(pairs * cliques * ranks).
template <class Link>
[[nodiscard]] std::vector<nccl_clique> connected_sets(std::span<const nccl_pair> pairs, Link&& link) {
  std::vector<nccl_clique> sets;
  for (const auto& [a, b] : pairs) {
    nccl_clique joined{{a, b}, false, link(a, b)};
    std::erase_if(sets, [&, a = a, b = b](const nccl_clique& s) {
      const bool meets =
          s.link == joined.link && std::any_of(s.ranks.begin(), s.ranks.end(), [&](int r) { return r == a || r == b; });
      if (meets) joined.ranks.insert(joined.ranks.end(), s.ranks.begin(), s.ranks.end());
      return meets;
    });
    std::sort(joined.ranks.begin(), joined.ranks.end());
    joined.ranks.erase(std::unique(joined.ranks.begin(), joined.ranks.end()), joined.ranks.end());
    sets.push_back(std::move(joined));
  }
  std::sort(sets.begin(), sets.end());
  return sets;
}

/// Puts cliques into an order in which those that share no rank are made side by side: in rounds, each in the first in which
/// none of its ranks is busy. The order is the same wherever the cliques are, so that ranks that go through theirs one after the
/// other come to an end. Pairs of n ranks take at most 2n - 3 rounds, all pairs of 2^k ranks the fewest.
/// Returns: the number of rounds.
/// Complexity: O(cliques * (log cliques + ranks * rounds)).
inline std::size_t sort_in_rounds(std::vector<nccl_clique>& cliques) {
  std::map<int, std::vector<char>> busy;  // of a rank, by round
  std::vector<std::pair<std::size_t, nccl_clique>> placed;
  std::size_t rounds = 0;
  for (auto& c : cliques) {
    std::size_t round = 0;
    const auto is_busy = [&](int r) {
      const auto& own = busy[r];
      return round < own.size() && own[round] != 0;
    };
    while (std::any_of(c.ranks.begin(), c.ranks.end(), is_busy)) ++round;
    for (const int r : c.ranks) {
      auto& own = busy[r];
      own.resize(std::max(own.size(), round + 1), 0);
      own[round] = 1;
    }
    rounds = std::max(rounds, round + 1);
    placed.emplace_back(round, std::move(c));
  }
  std::stable_sort(placed.begin(), placed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::size_t k = 0; k < placed.size(); ++k) cliques[k] = std::move(placed[k].second);
  return rounds;
}

/// One to be split, and what it is split into.
struct nccl_family {
  nccl_clique whole;
  std::vector<nccl_clique> parts;
};
/// Takes out of `added` what can be split: off one of `known`, or off a new one of all ranks that are joined by such, which takes
/// its place there. Complexity: O(cliques squared * ranks).
[[nodiscard]] inline std::vector<nccl_family> families_of(std::vector<nccl_clique>& added,
                                                          const std::vector<nccl_clique>& known) {
  const auto sorted = [](std::vector<int> ranks) {
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  };
  std::vector<nccl_family> all, fresh;
  for (const auto& k : known) all.push_back({k, {}});
  std::vector<nccl_clique> alone;
  for (auto& c : added) {
    const auto ranks = sorted(c.ranks);
    const auto holds = [&](const nccl_family& f) {
      return std::includes(f.whole.ranks.begin(), f.whole.ranks.end(), ranks.begin(), ranks.end());
    };
    if (!c.link.network.empty()) {
      alone.push_back(std::move(c));
    } else if (const auto found = std::find_if(all.begin(), all.end(), holds); found != all.end()) {
      found->parts.push_back(std::move(c));
    } else {
      nccl_family joined{{ranks, false, {}, true}, {}};
      std::erase_if(fresh, [&](nccl_family& f) {
        const bool meets = std::any_of(ranks.begin(), ranks.end(),
                                       [&](int r) { return std::binary_search(f.whole.ranks.begin(), f.whole.ranks.end(), r); });
        if (!meets) return false;
        joined.whole.ranks.insert(joined.whole.ranks.end(), f.whole.ranks.begin(), f.whole.ranks.end());
        joined.parts.insert(joined.parts.end(), f.parts.begin(), f.parts.end());
        return true;
      });
      auto& of = joined.whole.ranks;
      of = sorted(std::move(of));
      of.erase(std::unique(of.begin(), of.end()), of.end());
      joined.parts.push_back(std::move(c));
      fresh.push_back(std::move(joined));
    }
  }
  for (auto& f : fresh) {
    if (f.parts.size() == 1) {
      alone.push_back(std::move(f.parts.front()));
      continue;
    }
    alone.push_back(f.whole);
    all.push_back(std::move(f));
  }
  added = std::move(alone);
  return all;
}

/// A rank's NCCL communicators: one for each set of ranks that transfer to each other, and for each group.
template <cuda_api Api, nccl_api NcclApi, control_plane Control>
class nccl_links {
  using handle = typename NcclApi::communicator;

 public:
  /// Transfers with several ranks that go into one group at most. NCCL works on eight at once in a kernel
  /// (NCCL_MAX_DEV_WORK_P2P_PER_BATCH), and on others behind them: whether ranks whose groups differ came to an end with more
  /// would depend on its order.
  static constexpr std::size_t most_joined = 8;

  nccl_links(cuda_queue<Api> q, Control control, NcclApi api, nccl_options options)
      : queue_(std::move(q)), control_(std::move(control)), api_(std::move(api)), options_(std::move(options)) {}
  nccl_links(const nccl_links&) = delete;
  nccl_links& operator=(const nccl_links&) = delete;
  ~nccl_links() { abort(); }

  [[nodiscard]] const cuda_queue<Api>& queue() const { return queue_; }
  [[nodiscard]] Control& control() { return control_; }
  [[nodiscard]] const Control& control() const { return control_; }
  [[nodiscard]] const nccl_options& options() const { return options_; }
  [[nodiscard]] const NcclApi& api() const { return api_; }
  [[nodiscard]] int rank() const { return control_.rank(); }

  /// Every rank's numbers, on every rank.
  [[nodiscard]] std::vector<std::vector<double>> gather(const std::vector<double>& mine) {
    std::vector<std::vector<double>> all;
    const auto result = control_.gather(mine, all, deadline_in(options_.connect_s));
    if (result == wait_result::progress) return all;
    fail("does not agree with the others", {}, result == wait_result::deadline, options_.connect_s);
  }

  /// Connects those that are not connected yet, and uses what connects them, so that nothing is connected later. Communicators
  /// are made in rounds: see sort_in_rounds.
  /// Groups call what they have planned once, as large as that: NCCL makes channels and buffers of a way of adding up when it
  /// first takes that, and which it takes depends on the size.
  /// Returns on no rank before it has done so on all: a rank that goes on and fails would end those that still connect.
  /// `pairs`, `groups`: the same on all ranks.
  void connect(std::span<const nccl_pair> pairs, const std::map<std::vector<int>, nccl_use>& groups) {
    const auto until = deadline_in(options_.connect_s);
    std::vector<nccl_pair> new_pairs;
    for (const auto& p : pairs)
      if (known_.insert(p).second) new_pairs.push_back(p);
    // Pairs that a known communicator has both ranks of go over that.
    std::vector<nccl_clique> used;
    std::vector<nccl_pair> apart;
    for (const auto& p : new_pairs)
      if (const auto* set = set_of(p))
        used.push_back(*set);
      else
        apart.push_back(p);
    std::sort(used.begin(), used.end());
    used.erase(std::unique(used.begin(), used.end()), used.end());
    auto added = connected_sets(apart, [&](int a, int b) { return link_of(a, b); });
    sets_.insert(sets_.end(), added.begin(), added.end());
    for (const auto& [g, planned] : groups)
      if (nccl_clique c{g, true, {}}; known_groups_.insert(g).second) added.push_back(std::move(c));
    if (added.empty() && used.empty()) return;
    auto families = options_.splits ? families_of(added, wholes_) : std::vector<nccl_family>{};
    wholes_.clear();
    for (const auto& f : families) wholes_.push_back(f.whole);
    (void)sort_in_rounds(added);
    std::vector<nccl_clique> own = std::move(used);
    const auto current = queue_.make_current();
    make(added, own, until);
    for (auto& f : families) split(f, own, until);
    std::map<nccl_clique, std::vector<int>> peers;
    for (const auto& [a, b] : new_pairs) {
      if (a != rank() && b != rank()) continue;
      const int peer = a == rank() ? b : a;
      const auto* with = set_of({a, b});
      peer_sets_.insert_or_assign(peer, *with);
      peers[*with].push_back(peer);
    }
    std::erase_if(own, [&](const nccl_clique& c) { return !c.calls && !peers.contains(c); });
    if (!own.empty()) use(own, peers, groups, until);
    (void)gather({});
  }

  /// Transfers that begin at once, on the queue.
  class transfers {
   public:
    void send(int peer, const void* from, std::size_t bytes) {
      all_.require(all_.api_.send(from, bytes, place_of(peer), with_, all_.queue_.stream()), "ncclSend", all_.pair_with(peer));
    }
    void receive(int peer, void* to, std::size_t bytes) {
      all_.require(all_.api_.receive(to, bytes, place_of(peer), with_, all_.queue_.stream()), "ncclRecv", all_.pair_with(peer));
    }

   private:
    friend class nccl_links;
    transfers(nccl_links& all, const nccl_clique& set) : all_(all), set_(set), with_(all.made_.at(set)) {}
    [[nodiscard]] int place_of(int peer) const {
      return static_cast<int>(std::lower_bound(set_.ranks.begin(), set_.ranks.end(), peer) - set_.ranks.begin());
    }
    nccl_links& all_;
    const nccl_clique& set_;
    handle with_;
  };
  /// Enqueues what body(transfers&) makes, all at once. Requires: with ranks of one set.
  template <class Body>
  void group(int peer, Body&& body) {
    group(peer_sets_.at(peer), std::forward<Body>(body), deadline_in(options_.deadline_s), options_.deadline_s);
  }
  /// Whether what is transferred with two peers can be in one group. Requires: they are connected.
  [[nodiscard]] bool are_joined(int peer, int other) const { return peer_sets_.at(peer) == peer_sets_.at(other); }
  /// Enqueues a collective: body(api, communicator, stream) -> code.
  template <class Body>
  void call(const nccl_clique& c, const char* name, Body&& body) {
    require(body(std::as_const(api_), made_.at(c), queue_.stream()), name, c);
    settle(c, name, deadline_in(options_.deadline_s), options_.deadline_s);
  }
  /// Registers memory, for let_go(the result), at the latest when all are disconnected.
  [[nodiscard]] std::size_t keep(const nccl_clique& c, void* memory, std::size_t bytes) requires nccl_register_api<NcclApi> {
    void* made = nullptr;
    require(api_.keep(made_.at(c), memory, bytes, made), "ncclCommRegister", c);
    kept_[++keeps_] = {c, made};
    return keeps_;
  }
  void let_go(std::size_t number) {
    const auto found = kept_.extract(number);
    if constexpr (nccl_register_api<NcclApi>)
      if (!found.empty()) require(api_.let_go(made_.at(found.mapped().first), found.mapped().second), "ncclCommDeregister", {});
  }
  [[nodiscard]] bool is_connected(const nccl_clique& c) const { return made_.contains(c); }

  /// What has gone wrong since; empty: nothing.
  [[nodiscard]] std::string error() {
    for (const auto& [who, c] : made_) {
      int state = 0;
      const int code = api_.state(c, state);
      if (const int wrong = code != 0 ? code : state; wrong != 0 && wrong != nccl_in_progress)
        return "rank " + std::to_string(rank()) + ": " + error_of("NCCL", who, wrong).what();
    }
    return {};
  }

  /// Ends all that is under way, at once. Nothing touches a tensor afterwards.
  void abort() {
    if (made_.empty()) return;
    (void)api_.begin_group();
    for (const auto& [who, c] : made_) (void)api_.abort(c);
    (void)api_.end_group();
    if (const auto made = std::exchange(split_off_, handle{}); made != handle{}) (void)api_.abort(made);
    made_.clear();
    kept_.clear();  // it has ended with them
  }

  /// Disconnects; all ranks call it when all is done.
  void disconnect() {
    while (!kept_.empty()) let_go(kept_.begin()->first);
    for (const auto& [who, c] : made_) require(api_.finish(c), "ncclCommFinalize", who);
    for (const auto& [who, c] : made_) settle(who, "ncclCommFinalize", deadline_in(options_.deadline_s), options_.deadline_s);
    known_.clear();
    known_groups_.clear();
    wholes_.clear();
    sets_.clear();
    peer_sets_.clear();
    // Whatever comes of it, none is destroyed twice.
    while (!made_.empty()) {
      const auto last = made_.extract(made_.begin());
      require(api_.destroy(last.mapped()), "ncclCommDestroy", last.key());
    }
  }

  /// Throws: communication_error where other ranks have given up, or it is late.
  /// `with`: for whom this rank waits; empty: for several.
  /// `allowed_s`: how long there was until then.
  void check(deadline_time until, double allowed_s, const std::string& what, const nccl_clique& with) {
    if (!control_.failure().empty()) fail(what, with, false, allowed_s);
    if (std::chrono::steady_clock::now() >= until) fail(what, with, true, allowed_s);
  }

 private:
  [[nodiscard]] static std::string text_of(const nccl_clique& c) {
    if (c.ranks.size() > 8)
      return std::to_string(c.ranks.size()) + " ranks from " + std::to_string(c.ranks.front()) + " to " +
             std::to_string(c.ranks.back());
    std::string text = "ranks";
    for (std::size_t k = 0; k < c.ranks.size(); ++k)
      text += (k == 0 ? " " : k + 1 == c.ranks.size() ? " and " : ", ") + std::to_string(c.ranks[k]);
    return text;
  }
  [[noreturn]] void fail(const std::string& what, const nccl_clique& with, bool is_late, double allowed_s) {
    int peer = 0;
    for (const int r : with.ranks)
      if (r != rank()) peer = r;
    throw communication_error(
        "rank " + std::to_string(rank()) + ": " + what + (with.ranks.empty() ? "" : " for " + text_of(with)) +
            (is_late ? ", for " + std::to_string(allowed_s) + " s" : "; ended, as " + std::string(control_.failure())),
        edge{.from = peer, .to = rank()}, no_microbatch, action{});
  }
  [[nodiscard]] nccl_error error_of(const std::string& call, const nccl_clique& with, int code) const {
    auto found = made_.find(with);
    if (found == made_.end() && !with.calls && with.ranks.size() == 2) {  // a pair, which a set joins
      const auto set = peer_sets_.find(with.ranks[0] == rank() ? with.ranks[1] : with.ranks[0]);
      if (set != peer_sets_.end()) found = made_.find(set->second);
    }
    const std::string more = api_.last_error(found == made_.end() ? handle{} : found->second);
    return nccl_error(call, with.ranks.empty() ? "rank " + std::to_string(rank()) : text_of(with), code,
                      std::string(api_.error_text(code)) + (more.empty() ? "" : ": " + more));
  }
  void require(int code, const char* call, const nccl_clique& with) const {
    if (code != 0 && code != nccl_in_progress) throw error_of(call, with, code);
  }

  // Makes communicators, of which each one's first rank hands out the name; those of this rank that are no whole ones go into
  // `own`.
  void make(const std::vector<nccl_clique>& added, std::vector<nccl_clique>& own, deadline_time until) {
    std::vector<double> mine;
    for (const auto& c : added) {
      if (c.ranks.front() != rank()) continue;
      nccl_id id{};
      require(api_.unique_id(id), "ncclGetUniqueId", {});
      for (std::size_t k = 0; k < id.size(); k += 4)  // what a double holds exactly
        mine.push_back(static_cast<double>(std::uint32_t{id[k]} | std::uint32_t{id[k + 1]} << 8 | std::uint32_t{id[k + 2]} << 16 |
                                           std::uint32_t{id[k + 3]} << 24));
    }
    const auto all = added.empty() ? std::vector<std::vector<double>>{} : gather(mine);
    std::vector<std::size_t> next(all.size(), 0);
    for (const auto& c : added) {
      nccl_id id{};
      const auto first = as_size(c.ranks.front());
      for (std::size_t k = 0; k < id.size(); ++k) {
        const auto word = static_cast<std::uint32_t>(all[first].at(next[first] + k / 4));
        id[k] = static_cast<unsigned char>(word >> 8 * (k % 4));
      }
      next[first] += id.size() / 4;
      const auto place = std::find(c.ranks.begin(), c.ranks.end(), rank()) - c.ranks.begin();
      if (place == static_cast<std::ptrdiff_t>(c.ranks.size())) continue;
      if (!c.is_whole) own.push_back(c);
      handle made{};
      const int code = api_.connect(made, static_cast<int>(c.ranks.size()), id, static_cast<int>(place), c.link);
      require(code, "ncclCommInitRankConfig", c);
      made_[c] = made;
      settle(c, "ncclCommInitRankConfig", until, options_.connect_s);
    }
  }

  /// Waits until NCCL has done what it was asked for on the host.
  void settle(const nccl_clique& with, const char* call, deadline_time until, double allowed_s) {
    while (true) {
      int state = 0;
      require(api_.state(made_.at(with), state), "ncclCommGetAsyncError", with);
      if (state == 0) return;
      require(state, call, with);
      check(until, allowed_s, std::string(call) + " has not ended", with);
      std::this_thread::yield();
    }
  }
  [[nodiscard]] nccl_clique pair_with(int peer) const { return {{std::min(rank(), peer), std::max(rank(), peer)}, false, {}}; }
  /// Splits off what is new, in rounds. All ranks of the whole take part in each.
  void split(nccl_family& f, std::vector<nccl_clique>& own, deadline_time until) {
    if (!made_.contains(f.whole)) return;
    (void)sort_in_rounds(f.parts);
    for (std::size_t next = 0; next < f.parts.size();) {
      std::set<int> busy;
      const nccl_clique* mine = nullptr;
      int colour = -1, key = 0;
      for (const auto first = next; next < f.parts.size(); ++next) {
        const auto& c = f.parts[next];
        if (std::any_of(c.ranks.begin(), c.ranks.end(), [&](int r) { return busy.contains(r); })) break;
        busy.insert(c.ranks.begin(), c.ranks.end());
        const auto place = std::find(c.ranks.begin(), c.ranks.end(), rank());
        if (place == c.ranks.end()) continue;
        mine = &c;
        colour = static_cast<int>(next - first);
        key = static_cast<int>(place - c.ranks.begin());
      }
      const int code = api_.split(made_.at(f.whole), colour, key, split_off_, mine ? mine->link : nccl_link{});
      require(code, "ncclCommSplit", f.whole);
      settle(f.whole, "ncclCommSplit", until, options_.connect_s);
      const auto made = std::exchange(split_off_, handle{});
      if (!mine) continue;
      made_[*mine] = made;
      settle(*mine, "ncclCommSplit", until, options_.connect_s);
      own.push_back(*mine);
    }
  }
  /// The set that joins both; none if none does. Complexity: O(ranks of all sets).
  [[nodiscard]] const nccl_clique* set_of(const nccl_pair& p) const {
    const auto has = [](const nccl_clique& c, int r) { return std::binary_search(c.ranks.begin(), c.ranks.end(), r); };
    for (const auto& c : sets_)
      if (has(c, p.first) && has(c, p.second) && c.link == link_of(p.first, p.second)) return &c;
    return nullptr;
  }
  [[nodiscard]] nccl_link link_of(int a, int b) const {
    return options_.link ? options_.link(a, b)
                         : nccl_link{.network = {}, .least_channels = 0, .most_channels = options_.channels};
  }
  template <class Body>
  void group(const nccl_clique& set, Body&& body, deadline_time until, double allowed_s) {
    require(api_.begin_group(), "ncclGroupStart", set);
    try {
      transfers list(*this, set);
      body(list);
    } catch (...) {
      (void)api_.end_group();  // else what aborts would be in this group
      throw;
    }
    require(api_.end_group(), "ncclGroupEnd", set);
    settle(set, "ncclGroupEnd", until, allowed_s);  // before that it may not be on the queue
  }
  /// Transfers a byte each way between this rank and its peers, a few of them at a time, in an order that all have; and sums as
  /// much as groups have planned.
  void use(const std::vector<nccl_clique>& own, const std::map<nccl_clique, std::vector<int>>& peers,
           const std::map<std::vector<int>, nccl_use>& groups, deadline_time until) {
    const auto elements_of = [&](const nccl_clique& c) {  // of a rank's part
      return std::max<std::size_t>(groups.at(c.ranks).bytes / sizeof(double) / c.ranks.size(), 1);
    };
    std::size_t most = 2 * sizeof(double) + peer_sets_.size();
    for (const auto& c : own)
      if (c.calls) most = std::max(most, elements_of(c) * c.ranks.size() * sizeof(double));
    cuda_buffer<Api> memory(queue_, most);
    auto* const at = static_cast<std::byte*>(memory.data());
    queue_.own()->require(queue_.api().set_zero(at, memory.bytes(), queue_.stream()), "cudaMemsetAsync");
    for (const auto& c : own) {
      if (c.calls) {
        const auto n = elements_of(c), place = as_size(std::find(c.ranks.begin(), c.ranks.end(), rank()) - c.ranks.begin());
        const auto with = made_.at(c);
        const auto call = [&](const char* name, int code) {
          require(code, name, c);
          settle(c, name, until, options_.connect_s);
        };
        const auto stream = queue_.stream();
        call("ncclAllReduce", api_.all_reduce(at, at, n * c.ranks.size(), nccl_type::f64, with, stream));
        if (!groups.at(c.ranks).scatters) continue;
        auto* const part = at + place * n * sizeof(double);
        call("ncclReduceScatter", api_.reduce_scatter(at, part, n, nccl_type::f64, with, stream));
        call("ncclAllGather", api_.all_gather(part, at, n, nccl_type::f64, with, stream));
        continue;
      }
      const auto& list = peers.at(c);
      constexpr std::size_t at_once = most_joined / 2;
      for (std::size_t first = 0; first < list.size(); first += at_once) {
        const auto body = [&](transfers& g) {
          for (std::size_t k = first; k < std::min(list.size(), first + at_once); ++k) {
            g.send(list[k], at, 1);
            g.receive(list[k], at + 2 * sizeof(double) + k, 1);
          }
        };
        group(c, body, until, options_.connect_s);
      }
    }
    const auto end = queue_.record();
    memory.end_write(queue_, end);
    for (; !end.reached(); std::this_thread::yield()) check(until, options_.connect_s, "the first transfers have not come", {});
  }

  cuda_queue<Api> queue_;
  Control control_;
  NcclApi api_;
  nccl_options options_;
  std::map<nccl_clique, handle> made_;
  handle split_off_{};                                         ///< NCCL writes it while a split is under way
  std::map<int, nccl_clique> peer_sets_;                       ///< by rank that this one transfers with
  std::vector<nccl_clique> sets_;                              ///< that transfer, of all ranks
  std::set<nccl_pair> known_;                                  ///< of all ranks
  std::set<std::vector<int>> known_groups_;                    ///< of all ranks
  std::map<std::size_t, std::pair<nccl_clique, void*>> kept_;  ///< registered memory, by number
  std::size_t keeps_ = 0;
  std::vector<nccl_clique> wholes_;  ///< that were made to be split, of all ranks
};

}  // namespace detail
}  // namespace hetsched
