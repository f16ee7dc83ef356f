// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <hetsched/core/contract.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/runtime/inference/detail/inference_channel.hpp>
#include <hetsched/runtime/inference/inference_layer.hpp>
#include <hetsched/runtime/inference/inference_queue.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>
#include <hetsched/schedule/action.hpp>

namespace hetsched {

/// What a pipeline of inference holds at once, and how long its ranks wait.
struct inference_limits {
  /// Requests that hold a state on the ranks; each has one step under way at most.
  std::size_t most_in_flight = 8;
  /// How long a rank waits for others without a word; longer than a step takes on all stages together. The same on all ranks.
  double deadline_s = 30;
};

/// What the ranks of a pipeline need: to send bytes, and tensors in host memory. Where the first rank's is no waking_plane, it
/// is looked at every 100 us.
template <class C, class Tensor>
concept inference_plane = data_plane<C, Tensor> && byte_plane<C> &&(tensor_traits<Tensor>::space != memory_space::device);

namespace detail {

/// From a rank's stage to the next one, and from the last to the first.
[[nodiscard]] inline edge inference_edge(int from, int ranks) {
  return {.from = from, .to = (from + 1) % ranks, .what = payload::activation, .stage = from};
}

[[noreturn]] inline void throw_lost(int rank, const edge& where, const std::string& why) {
  throw communication_error("rank " + std::to_string(rank) + " waits for the " + to_text(where) + "; " + why, where,
                            no_microbatch, action{.microbatch = no_microbatch});
}

template <class Communicator>
[[noreturn]] void throw_silent(Communicator& comm, const edge& where, double deadline_s) {
  const bool late = with_blame(comm, wait_result::deadline) == wait_result::deadline;
  throw_lost(comm.rank(), where,
             late ? "nothing has come within " + std::to_string(deadline_s) + " s" : "ended, as " + std::string(comm.failure()));
}

/// The first rank: its stage, and all requests that are under way.
template <class Tensor, class Stage, class Communicator>
class inference_leader {
 public:
  inference_leader(Communicator& comm, Stage& stage, inference_counter<Tensor> counter, const inference_limits& limits)
      : comm_(&comm),
        stage_(&stage),
        counter_(counter),
        desk_(counter.desk()),
        deadline_s_(limits.deadline_s),
        patience_(deadline_in(limits.deadline_s) - deadline_in(0)),
        most_(std::max<std::size_t>(limits.most_in_flight, 1)) {
    if (comm.ranks() < 2) return;
    next_.emplace(comm, inference_edge(0, comm.ranks()));
    last_.emplace(comm, inference_edge(comm.ranks() - 1, comm.ranks()));
  }

  void run() {
    if constexpr (waking_plane<Communicator>) comm_->on_wake([desk = desk_] { desk->ring(); });
    heard_ = sent_ = std::chrono::steady_clock::now();
    try {
      while (work()) {
      }
      finish();
    } catch (...) {
      const auto why = text_of(std::current_exception());
      comm_->abort("rank 0 failed: " + why);
      stop_listening();
      for (auto& [id, f] : flights_) tell(*desk_, *f.slip, {inference_end::lost, why});
      counter_.fail(why);
      throw;
    }
    stop_listening();
  }

 private:
  using message = inference_message<Tensor>;
  /// A request with states on the ranks.
  struct flight {
    std::shared_ptr<inference_slip> slip;
    decltype(inference_request<Tensor>::next) next;
    std::optional<typename Stage::state> state;
    bool ended = false;  ///< its ticket says how
  };

  /// One turn; false: all is done.
  bool work() {
    check();
    const auto now = std::chrono::steady_clock::now();
    auto until = sweep(now);
    while (flights_.size() < most_) {
      auto entry = counter_.take();
      if (!entry) break;
      begin(*std::move(entry));
    }
    if (auto m = arrived()) {
      answer(*std::move(m));
      return true;
    }
    if (flights_.empty() && counter_.done()) return false;
    if (next_) {
      if (under_way_ > 0) {
        require_word();
        until = std::min(until, heard_ + patience_);
      } else if (now - sent_ >= patience_ / 4) {
        post({.step = inference_step::alive, .request = 0, .text = {}, .tensor = {}});
        return true;
      } else {
        until = std::min(until, sent_ + patience_ / 4);
      }
    }
    wait(until);
    return true;
  }

  /// Ends what is cancelled or late, and returns the earliest deadline of what is left.
  deadline_time sweep(deadline_time now) {
    auto earliest = counter_.sweep(now);
    for (auto& [id, f] : flights_) {
      if (f.ended) continue;
      if (auto why = early_end(*desk_, *f.slip, now))
        conclude(f, *std::move(why));
      else
        earliest = std::min(earliest, f.slip->until);
    }
    return earliest;
  }

  void begin(inference_entry<Tensor> e) {
    const auto id = ids_++;
    auto& f = flights_[id];
    f.slip = std::move(e.slip);
    f.next = std::move(e.request.next);
    step(id, f, {std::move(e.request.input), true});
  }
  void step(std::int64_t id, flight& f, inference_input<Tensor> input) {
    message m{.step = input.anew ? inference_step::anew : inference_step::compute, .request = id, .text = {}, .tensor = {}};
    try {
      if (input.anew) f.state.emplace(make_state(*stage_));
      m.tensor = stage_->infer(input.tensor, *f.state);
      require_sendable(m.tensor);
      post(std::move(m));
    } catch (const communication_error&) {
      throw;
    } catch (...) {
      conclude(f, {inference_end::failed, text_of(std::current_exception())});
      release(id, f);
    }
  }
  void answer(message m) {
    if (m.step == inference_step::alive || m.step == inference_step::stop) return;
    const auto found = flights_.find(m.request);
    HETSCHED_EXPECTS(found != flights_.end());
    auto& f = found->second;
    if (m.step == inference_step::release) {
      flights_.erase(found);
      return;
    }
    if (m.step == inference_step::failed) conclude(f, {inference_end::failed, std::move(m.text)});
    std::optional<inference_input<Tensor>> next;
    if (!f.ended) {
      try {
        next = f.next(std::move(m.tensor));
        if (!next) conclude(f, {});
      } catch (...) {
        conclude(f, {inference_end::failed, text_of(std::current_exception())});
      }
    }
    next ? step(m.request, f, *std::move(next)) : release(m.request, f);
  }
  void conclude(flight& f, inference_result how) {
    if (std::exchange(f.ended, true)) return;
    f.next = nullptr;
    tell(*desk_, *f.slip, std::move(how));
  }
  /// All states of a request go; then it has left.
  void release(std::int64_t id, flight& f) {
    f.state.reset();
    post({.step = inference_step::release, .request = id, .text = {}, .tensor = {}});
  }

  /// To the next stage; of one rank, to itself.
  void post(message m) {
    if (next_) {
      next_->post(std::move(m));
      sent_ = std::chrono::steady_clock::now();
      if (under_way_ == 0) heard_ = sent_;
    } else {
      own_.push_back(std::move(m));
    }
    ++under_way_;
  }
  std::optional<message> arrived() {
    std::optional<message> m;
    if (!last_) {
      if (own_.empty()) return m;
      m.emplace(std::move(own_.front()));
      own_.pop_front();
    } else {
      next_->sweep();
      if (!last_->poll()) return m;
      m.emplace(last_->take());
      heard_ = std::chrono::steady_clock::now();
    }
    --under_way_;
    return m;
  }
  /// The others end, and all that was sent has arrived.
  void finish() {
    if (!next_) return;
    post({.step = inference_step::stop, .request = 0, .text = {}, .tensor = {}});
    while (under_way_ > 0 || !next_->sweep()) {
      check();
      if (under_way_ > 0 && arrived()) continue;
      require_word();
      wait(heard_ + patience_);
    }
  }
  void check() const {
    if (!last_) return;
    if (const std::string why = comm_->failure(); !why.empty()) throw_lost(0, last_->where(), "ended, as " + why);
  }
  void require_word() const {
    if (std::chrono::steady_clock::now() - heard_ >= patience_) throw_silent(*comm_, last_->where(), deadline_s_);
  }
  void wait(deadline_time until) {
    if constexpr (!waking_plane<Communicator>)
      until = std::min(until, std::chrono::steady_clock::now() + std::chrono::microseconds(100));
    desk_->wait(until);
  }
  void stop_listening() {
    if constexpr (waking_plane<Communicator>) comm_->on_wake({});
  }

  Communicator* comm_;
  Stage* stage_;
  inference_counter<Tensor> counter_;
  std::shared_ptr<inference_desk> desk_;
  double deadline_s_;
  deadline_time::duration patience_;
  std::size_t most_;
  std::optional<inference_outbox<Tensor, Communicator>> next_;  ///< none: this is the only rank
  std::optional<inference_inbox<Tensor, Communicator>> last_;
  std::deque<message> own_;
  std::map<std::int64_t, flight> flights_;
  std::int64_t ids_ = 0;
  std::size_t under_way_ = 0;
  deadline_time heard_, sent_;
};

}  // namespace detail

/// The first rank of a pipeline of inference: takes requests from a queue in their order, and computes the first stage. Steps
/// of different requests follow each other through the stages; each request goes on with what comes back from the last one.
/// A request that is cancelled, late or failed ends by itself, and its states on all ranks with it.
/// Requires: all other ranks call follow_inference, with the layers that come next; rank r has stage r.
/// Returns: when the queue is closed and all of its requests have ended; then all ranks have returned, or are about to.
/// Throws: communication_error if a rank fails, is lost or says nothing for deadline_s. All requests have ended as lost then,
/// those in the queue and those that come later, too.
/// Complexity: O(log(in flight) + in flight + waiting) per step, besides the layers.
/// Example:
///   inference_queue<Tensor> queue;
///   auto ticket = queue.submit({.input = prompt, .next = take_token});
///   queue.close();
///   comm.rank() == 0 ? lead_inference<Tensor>(comm, stage, queue) : follow_inference<Tensor>(comm, stage);
template <pipeline_tensor Tensor, inference_layer<Tensor> Stage, inference_plane<Tensor> Communicator>
void lead_inference(Communicator& comm, Stage& stage, inference_queue<Tensor>& queue, const inference_limits& limits = {}) {
  HETSCHED_EXPECTS(comm.rank() == 0);
  detail::inference_leader<Tensor, Stage, Communicator>(comm, stage, detail::inference_counter<Tensor>(queue), limits).run();
}

/// Another rank: computes its stage for what comes, until the first rank's queue has ended. What a layer throws goes to the
/// request that it was called for.
/// Throws: communication_error as lead_inference.
template <pipeline_tensor Tensor, inference_layer<Tensor> Stage, inference_plane<Tensor> Communicator>
void follow_inference(Communicator& comm, Stage& stage, const inference_limits& limits = {}) {
  using detail::inference_step;
  HETSCHED_EXPECTS(comm.rank() > 0);
  const int rank = comm.rank(), ranks = comm.ranks();
  detail::inference_inbox<Tensor, Communicator> in(comm, detail::inference_edge(rank - 1, ranks));
  detail::inference_outbox<Tensor, Communicator> out(comm, detail::inference_edge(rank, ranks));
  std::map<std::int64_t, typename Stage::state> states;
  // Waits for `there`, which looks at operations.
  const auto wait = [&](const edge& where, bool sends, auto&& there) {
    const auto until = deadline_in(limits.deadline_s);
    while (!there()) {
      const auto result = comm.wait(until, sends);
      if (result == wait_result::aborted) detail::throw_lost(rank, where, "ended, as " + std::string(comm.failure()));
      if (result == wait_result::deadline) detail::throw_silent(comm, where, limits.deadline_s);
    }
  };
  const auto compute = [&](detail::inference_message<Tensor>& m) {
    try {
      if (m.step == inference_step::anew) states.erase(m.request);
      auto found = states.find(m.request);
      if (found == states.end()) found = states.emplace(m.request, detail::make_state(stage)).first;
      m.tensor = stage.infer(m.tensor, found->second);
      detail::require_sendable(m.tensor);
    } catch (const communication_error&) {
      throw;
    } catch (...) {
      states.erase(m.request);
      m.step = inference_step::failed;
      m.text = detail::text_of(std::current_exception());
    }
  };
  try {
    for (bool stopped = false; !stopped;) {
      wait(in.where(), false, [&] { return in.poll(); });
      auto m = in.take();
      if (detail::carries_tensor(m.step)) compute(m);
      if (m.step == inference_step::failed || m.step == inference_step::release) states.erase(m.request);
      stopped = m.step == inference_step::stop;
      out.sweep();
      out.post(std::move(m));
    }
    wait(out.where(), true, [&] { return out.sweep(); });
  } catch (...) {
    comm.abort("rank " + std::to_string(rank) + " failed: " + detail::text_of(std::current_exception()));
    throw;
  }
}

}  // namespace hetsched
