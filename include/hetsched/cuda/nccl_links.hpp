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
  double deadline_s = 30;  ///< how long connecting, and a transfer that a device has come to, may take
  /// How two ranks are connected, the lower one first; the same on both. Empty: NCCL's choice.
  std::function<nccl_link(int, int)> link = {};
};

namespace detail {

/// Ranks with an NCCL communicator of their own: two that transfer, the lower one first, or a group that calls collectives.
struct nccl_clique {
  std::vector<int> ranks;
  bool calls = false;
  friend auto operator<=>(const nccl_clique&, const nccl_clique&) = default;
  friend bool operator==(const nccl_clique& a, const nccl_clique& b) {  // nvcc 13 leaves out the implicit one
    return a.calls == b.calls && a.ranks == b.ranks;
  }
};

/// A rank's NCCL communicators: one for each rank that it is connected with, and for each group.
template <cuda_api Api, nccl_api NcclApi, control_plane Control>
class nccl_links {
  using handle = typename NcclApi::communicator;

 public:
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
    const auto result = control_.gather(mine, all, deadline_in(options_.deadline_s));
    if (result == wait_result::progress) return all;
    fail("does not agree with the others", {}, result == wait_result::deadline);
  }

  /// Connects those that are not connected yet, one after the other, and uses each.
  /// `wanted`: the same on all ranks, in the same order.
  void connect(const std::vector<nccl_clique>& wanted) {
    std::vector<nccl_clique> added;
    std::vector<double> mine;
    for (const auto& c : wanted) {
      if (std::find(known_.begin(), known_.end(), c) != known_.end()) continue;
      added.push_back(c);
      if (c.ranks.front() != rank()) continue;
      nccl_id id{};
      require(api_.unique_id(id), "ncclGetUniqueId", {});
      for (std::size_t k = 0; k < id.size(); k += 4)  // what a double holds exactly
        mine.push_back(static_cast<double>(std::uint32_t{id[k]} | std::uint32_t{id[k + 1]} << 8 | std::uint32_t{id[k + 2]} << 16 |
                                           std::uint32_t{id[k + 3]} << 24));
    }
    if (added.empty()) return;
    const auto all = gather(mine);
    const auto current = queue_.make_current();
    std::vector<std::size_t> next(all.size(), 0);
    std::vector<nccl_clique> own;
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
      own.push_back(c);
      const nccl_link link = options_.link && !c.calls ? options_.link(c.ranks[0], c.ranks[1]) : nccl_link{};
      handle made{};
      const int code = api_.connect(made, static_cast<int>(c.ranks.size()), id, static_cast<int>(place), link);
      require(code, "ncclCommInitRankConfig", c);
      made_[c] = made;
      settle(c, "ncclCommInitRankConfig");
    }
    known_.insert(known_.end(), added.begin(), added.end());
    if (own.empty()) return;
    cuda_buffer<Api> memory(queue_, 2 * sizeof(double));
    auto* const at = static_cast<double*>(memory.data());
    queue_.own()->require(queue_.api().set_zero(at, memory.bytes(), queue_.stream()), "cudaMemsetAsync");
    for (const auto& c : own)
      if (c.calls)
        call(c, "ncclAllReduce", [&](const NcclApi& api, handle with, typename Api::stream s) {
          return api.all_reduce(at, at, 1, nccl_type::f64, with, s);
        });
      else
        group(c.ranks[0] == rank() ? c.ranks[1] : c.ranks[0], [&](auto& g) {
          g.send(at, 1);
          g.receive(at + 1, 1);
        });
    const auto end = queue_.record();
    memory.end_write(queue_, end);
    for (const auto until = deadline_in(options_.deadline_s); !end.reached(); std::this_thread::yield())
      check(until, "the first transfers have not come", {});
  }

  /// Transfers that begin at once, on the queue.
  class transfers {
   public:
    transfers(nccl_links& all, nccl_clique with, int other) : all_(all), with_(std::move(with)), other_(other) {}
    void send(const void* from, std::size_t bytes) {
      all_.require(all_.api_.send(from, bytes, other_, all_.made_.at(with_), all_.queue_.stream()), "ncclSend", with_);
    }
    void receive(void* to, std::size_t bytes) {
      all_.require(all_.api_.receive(to, bytes, other_, all_.made_.at(with_), all_.queue_.stream()), "ncclRecv", with_);
    }

   private:
    nccl_links& all_;
    nccl_clique with_;
    int other_;
  };
  /// Enqueues what body(transfers&) makes, all at once.
  template <class Body>
  void group(int peer, Body&& body) {
    const nccl_clique pair{{std::min(rank(), peer), std::max(rank(), peer)}, false};
    transfers list(*this, pair, peer > rank() ? 1 : 0);
    require(api_.begin_group(), "ncclGroupStart", pair);
    try {
      body(list);
    } catch (...) {
      (void)api_.end_group();  // else what aborts would be in this group
      throw;
    }
    require(api_.end_group(), "ncclGroupEnd", pair);
    settle(pair, "ncclGroupEnd");  // before that it may not be on the queue
  }
  /// Enqueues a collective: body(api, communicator, stream) -> code.
  template <class Body>
  void call(const nccl_clique& c, const char* name, Body&& body) {
    require(body(std::as_const(api_), made_.at(c), queue_.stream()), name, c);
    settle(c, name);
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
    made_.clear();
  }

  /// Disconnects; all ranks call it when all is done.
  void disconnect() {
    for (const auto& [who, c] : made_) require(api_.finish(c), "ncclCommFinalize", who);
    for (const auto& [who, c] : made_) settle(who, "ncclCommFinalize");
    known_.clear();
    // Whatever comes of it, none is destroyed twice.
    while (!made_.empty()) {
      const auto last = made_.extract(made_.begin());
      require(api_.destroy(last.mapped()), "ncclCommDestroy", last.key());
    }
  }

  /// Throws: communication_error where other ranks have given up, or it is late.
  /// `with`: for whom this rank waits; empty: for several.
  void check(deadline_time until, const std::string& what, const nccl_clique& with) {
    if (!control_.failure().empty()) fail(what, with, false);
    if (std::chrono::steady_clock::now() >= until) fail(what, with, true);
  }

 private:
  [[nodiscard]] static std::string text_of(const nccl_clique& c) {
    std::string text = "ranks";
    for (std::size_t k = 0; k < c.ranks.size(); ++k)
      text += (k == 0 ? " " : k + 1 == c.ranks.size() ? " and " : ", ") + std::to_string(c.ranks[k]);
    return text;
  }
  [[noreturn]] void fail(const std::string& what, const nccl_clique& with, bool is_late) {
    int peer = 0;
    for (const int r : with.ranks)
      if (r != rank()) peer = r;
    throw communication_error(
        "rank " + std::to_string(rank()) + ": " + what + (with.ranks.empty() ? "" : " for " + text_of(with)) +
            (is_late ? ", for " + std::to_string(options_.deadline_s) + " s" : "; ended, as " + std::string(control_.failure())),
        edge{.from = peer, .to = rank()}, no_microbatch, action{});
  }
  [[nodiscard]] nccl_error error_of(const std::string& call, const nccl_clique& with, int code) const {
    const auto found = made_.find(with);
    const std::string more = api_.last_error(found == made_.end() ? handle{} : found->second);
    return nccl_error(call, with.ranks.empty() ? "rank " + std::to_string(rank()) : text_of(with), code,
                      std::string(api_.error_text(code)) + (more.empty() ? "" : ": " + more));
  }
  void require(int code, const char* call, const nccl_clique& with) const {
    if (code != 0 && code != nccl_in_progress) throw error_of(call, with, code);
  }
  /// Waits until NCCL has done what it was asked for on the host.
  void settle(const nccl_clique& with, const char* call) {
    const auto until = deadline_in(options_.deadline_s);
    while (true) {
      int state = 0;
      require(api_.state(made_.at(with), state), "ncclCommGetAsyncError", with);
      if (state == 0) return;
      require(state, call, with);
      check(until, std::string(call) + " has not ended", with);
      std::this_thread::yield();
    }
  }

  cuda_queue<Api> queue_;
  Control control_;
  NcclApi api_;
  nccl_options options_;
  std::map<nccl_clique, handle> made_;
  std::vector<nccl_clique> known_;  ///< of all ranks
};

}  // namespace detail
}  // namespace hetsched
