// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/interop_dp_test.cpp.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>
#include <hetsched/planners/interop_dp/detail/reach.hpp>
#include <hetsched/planners/interop_dp/detail/rent_bound.hpp>
#include <hetsched/planners/interop_dp/detail/route.hpp>
#include <hetsched/planners/interop_dp/detail/warmup_algebra.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

namespace detail {

/// For one period: the least latency sum(t + 2c) over all plans whose stages take at most the period, whose boundaries are
/// occupied no longer, and whose memory holds the warm-ups that the period needs. A state is (phase, transfer class of the first
/// stage, devices used in its subcluster, first layer); suffixes of the model grow from the last layer to the first, and each
/// state keeps the Pareto front of (latency, warm-up state).
class interop_search {
 public:
  struct solution {
    double latency = 0;  // with what updates add, if they count
    std::vector<interop_stage> stages;
  };

  interop_search(const interop_problem& problem, const stage_prices& table, const std::vector<route_phase>& route,
                 warmup_algebra algebra, const planning_problem& asked)
      : problem_(problem),
        table_(table),
        updates_(table.updates()),
        route_(route),
        algebra_(algebra),
        microbatches_(asked.microbatches),
        use_all_(asked.use_all_devices),
        run_(asked.parallel),
        poll_(asked.poll()),
        rents_(problem, table, route, microbatches_, poll_),
        reach_(problem, table, route, std::min(algebra.fewest_upstream(), microbatches_), use_all_, poll_) {
    const auto placements = problem.placements.size();
    capacity_.resize(placements);
    for (std::size_t p = 0; p < placements; ++p) capacity_[p] = problem.placements[p].capacity;
    classes_of_.resize(problem.devices.size());
    for (int c = 0; c < problem.classes(); ++c) at(classes_of_, at(problem.class_subcluster, c)).push_back(c);
    stores_.resize(route.size());
  }

  [[nodiscard]] const rent_bound& rents() const { return rents_; }

  /// Whether the updates at the end of an iteration count.
  void count_updates(bool yes) { with_updates_ = yes; }

  /// Grants every device `factor` times its memory (to tell how much is missing).
  void scale_capacity(double factor) {
    for (std::size_t p = 0; p < capacity_.size(); ++p) capacity_[p] = problem_.placements[p].capacity_at(factor);
  }

  /// False only if no plan keeps this period, or where the problem's go_on is; a quick test.
  [[nodiscard]] bool may_keep(double period) { return reach_.measure(finite(period), capacity_) && reach_.whole_model(); }

  /// The plans of least latency that keep `period`, at most `limit` of them, the best first. A plan is left out if its latency
  /// shows that with a period of at least `longer_than` its objective is above `budget`.
  /// The problem's go_on, `go_on`, which is asked by searches on one thread only, and `most_work`, ends of stages that a phase
  /// looks at, may end it: then aborted() is true.
  [[nodiscard]] std::vector<solution> solve(double period, double longer_than, double budget, std::size_t limit,
                                            std::int64_t most_work = std::numeric_limits<std::int64_t>::max(),
                                            function_ref<bool()> go_on = {}) {
    most_work_ = most_work;
    go_on_ = run_ || !go_on ? poll_ : go_on;
    for (auto& s : stores_) s.ended_early = false;
    period_ = finite(period);
    longer_than_ = longer_than;
    budget_ = budget;
    if (!reach_.measure(period_, capacity_)) {
      stores_.front().ended_early = true;
      return {};
    }
    measure_transfers();
    for (std::size_t begin = 0; begin < route_.size();) {
      std::size_t end = begin;
      while (end < route_.size() && route_[end].level == route_[begin].level) ++end;
      const auto body = [&](int i) { grow_phase(static_cast<int>(begin) + i); };
      const int count = static_cast<int>(end - begin);
      if (run_ && count > 1)
        run_(count, body);
      else
        for (int i = 0; i < count; ++i) body(i);
      begin = end;
      if (aborted()) return {};
    }
    return best_solutions(limit);
  }

  /// Whether the last solve was ended before it had an answer.
  [[nodiscard]] bool aborted() const {
    return std::any_of(stores_.begin(), stores_.end(), [](const store& s) { return s.ended_early; });
  }

  /// Ends of stages that the last solve looked at.
  [[nodiscard]] std::int64_t looked_at() const {
    std::int64_t sum = 0;
    for (const auto& s : stores_) sum += s.looked_at;
    return sum;
  }

  /// Labels kept by the last solve.
  [[nodiscard]] std::int64_t labels() const {
    std::int64_t sum = 0;
    for (const auto& s : stores_) sum += static_cast<std::int64_t>(s.labels.size());
    return sum;
  }

 private:
  // No limit on the period, but not the price of what cannot be moved at all.
  static double finite(double period) { return std::min(period, std::numeric_limits<double>::max()); }

  // A suffix of the model: its stages' latency, the warm-up state of its first stage, and how it goes on.
  struct label {
    double latency = 0;
    double end = 0;  // latency, and what updates add to it
    warmup_state state;
    std::int32_t placement = 0;
    std::int32_t cut = 0;         // first layer of the next stage
    std::int32_t next_phase = 0;  // -1: this stage is the last
    std::uint32_t next_label = 0;
  };

  // Labels by first layer, from `high` down to `low`.
  struct row {
    int low = 0, high = -1;
    std::size_t offset = 0;
  };

  struct store {
    std::vector<label> labels;
    std::vector<std::uint32_t> starts;  // per row: high - low + 2 positions in labels
    std::vector<row> rows;              // [class in subcluster][devices used]
    std::vector<row> exits;             // [class in subcluster]: what a stage in another subcluster may be put before
    std::int64_t looked_at = 0;         // ends of stages
    bool ended_early = false;
  };

  [[nodiscard]] static std::span<const label> labels_at(const store& s, const row& r, int layer) {
    if (layer < r.low || layer > r.high) return {};
    const auto i = r.offset + as_size(r.high - layer);
    return {s.labels.data() + s.starts[i], s.starts[i + 1] - s.starts[i]};
  }

  [[nodiscard]] bool no_worse(const label& a, const label& b) const {
    return a.latency <= b.latency && a.end <= b.end && algebra_.no_worse(a.state, b.state);
  }

  void keep_if_new(std::vector<label>& front, const label& candidate) const {
    for (const auto& kept : front)
      if (no_worse(kept, candidate)) return;
    std::erase_if(front, [&](const label& kept) { return no_worse(candidate, kept); });
    front.push_back(candidate);
  }

  // Transfers that keep the period, and the steps in warm-up that they cost.
  void measure_transfers() {
    if (!algebra_.by_count()) return;
    const auto measure = [&](const std::vector<transfer_price>& prices, std::vector<std::int32_t>& steps) {
      steps.resize(prices.size());
      warmup_state one{1, 0};
      for (std::size_t i = 0; i < steps.size(); ++i) {
        warmup_state out;
        const auto& c = prices[i];
        steps[i] = c.occupied <= period_ && algebra_.extend(0, c, one, period_, out) ? out.warmup - 1 : 0;
      }
    };
    measure(problem_.prices, steps_);
    measure(problem_.near_prices, near_steps_);
  }

  // Where the suffix behind a new stage may come from.
  struct source {
    const store* labels = nullptr;  // null: the end of the model
    const row* from = nullptr;
    int phase = -1;
    int taken = 0;  // devices of the node that the new stage can share, if it may share one with a stage of no more devices
    const transfer_price *price = nullptr, *near_price = nullptr;  // by kind of boundary
    const std::int32_t *step = nullptr, *near_step = nullptr;
  };

  struct candidate_stage {
    int placement = 0;
    int top = 0;  // highest cut worth a look
    int low = 0;  // lowest cut that any source has
    std::vector<source> sources;
  };

  // `used`: devices of the subcluster that the stages behind take, 0 if they lie in another one.
  void add_source(candidate_stage& stage, const store& labels, const row& from, int phase, int from_class, int used) const {
    if (from.high < from.low) return;
    const auto& placed = at(problem_.placements, stage.placement);
    source s{&labels, &from, phase};
    s.price = problem_.transfer(placed.transfer_class, from_class);
    if (algebra_.by_count()) s.step = steps_.data() + (s.price - problem_.prices.data());
    const int per_node = at(problem_.devices_per_node, placed.subcluster);
    if (!problem_.near_prices.empty() && used > 0 && placed.on_one_node && used % per_node + placed.devices <= per_node) {
      s.taken = used % per_node;
      s.near_price = problem_.near_transfer(placed.transfer_class, from_class);
      if (algebra_.by_count()) s.near_step = near_steps_.data() + (s.near_price - problem_.near_prices.data());
    }
    stage.sources.push_back(s);
    stage.top = std::max(stage.top, from.high);
    stage.low = std::min(stage.low, from.low);
  }

  void grow_phase(int ph) {
    const auto& phase = at(route_, ph);
    const auto& classes = at(classes_of_, phase.subcluster);
    const int all = at(problem_.devices, phase.subcluster);
    auto& own = at(stores_, ph);
    own.labels.clear();
    own.starts.clear();
    own.rows.assign(classes.size() * as_size(all + 1), {});
    own.exits.assign(classes.size(), {});
    own.ended_early = false;
    workspace work;
    for (int used = 1; used <= all; ++used) {
      for (std::size_t c = 0; c < classes.size(); ++c) {
        if (work.looked_at > most_work_ || (go_on_ && !go_on_())) {
          own.ended_early = true;
          return;
        }
        work.stages.clear();
        for (const int p : reach_.placements_of(phase.subcluster)) {
          const auto& placed = at(problem_.placements, p);
          if (placed.transfer_class != classes[c] || placed.devices > used) continue;
          candidate_stage stage{p, -1, problem_.layers + 1, {}};
          if (placed.devices == used) {
            if (phase.may_start) {
              stage.sources.push_back({});
              stage.top = stage.low = problem_.layers;
            }
            for (const int from : phase.from)
              for (std::size_t fc = 0; fc < at(stores_, from).exits.size(); ++fc)
                add_source(stage, at(stores_, from), at(stores_, from).exits[fc], from,
                           at(classes_of_, at(route_, from).subcluster)[fc], 0);
          } else {
            for (std::size_t fc = 0; fc < classes.size(); ++fc)
              add_source(stage, own, own.rows[fc * as_size(all + 1) + as_size(used - placed.devices)], ph, classes[fc],
                         used - placed.devices);
          }
          work.looked_at += static_cast<std::int64_t>(classes.size());
          if (stage.top >= 0) work.stages.push_back(std::move(stage));
        }
        work.bound = rents_.before(ph, used, reach_.before_without_leaving(ph, used), longer_than_, budget_);
        grow_row(own, own.rows[c * as_size(all + 1) + as_size(used)], reach_.before(ph, used), work);
      }
    }
    for (std::size_t c = 0; c < classes.size(); ++c) merge_exit(own, c, all);
    own.looked_at = work.looked_at;
  }

  // Suffixes that leave the subcluster: of any number of devices, unless all must be used.
  void merge_exit(store& own, std::size_t c, int all) {
    const row* rows = own.rows.data() + c * as_size(all + 1);
    if (use_all_) {
      own.exits[c] = rows[all];
      return;
    }
    row merged{problem_.layers, -1, own.starts.size()};
    for (int used = 1; used <= all; ++used) {
      merged.low = std::min(merged.low, rows[used].low > rows[used].high ? problem_.layers : rows[used].low);
      merged.high = std::max(merged.high, rows[used].high);
    }
    std::vector<label> front;
    for (int layer = merged.high; layer >= merged.low; --layer) {
      front.clear();
      for (int used = 1; used <= all; ++used)
        for (const auto& l : labels_at(own, rows[used], layer)) keep_if_new(front, l);
      own.starts.push_back(static_cast<std::uint32_t>(own.labels.size()));
      own.labels.insert(own.labels.end(), front.begin(), front.end());
    }
    own.starts.push_back(static_cast<std::uint32_t>(own.labels.size()));
    own.exits[c] = merged;
  }

  // Sliding-window minimum over cuts, for additive costs and warm-ups that are counts: as the first layer goes down, a suffix's
  // latency behind this placement falls by the same prefix sum for every cut, and cuts only ever drop out at the high end,
  // because time and memory of the stage grow. So per count a queue holds all that can still win: the highest cut and least key
  // in front.
  struct entry {
    double key = 0;  // latency of the suffix + transfer + prefix time at the cut
    std::int32_t cut = 0;
    std::int32_t phase = -1;
    std::uint32_t label = 0;
  };
  struct window {
    struct queue {
      std::vector<entry> entries;
      std::size_t head = 0;
      [[nodiscard]] bool empty() const { return head == entries.size(); }
      void clear() {
        entries.clear();
        head = 0;
      }
    };
    std::vector<queue> by_count;
    int low = 1, high = 0;  // counts in use
    int next_cut = -1;
    int lowest_cut = 0;  // pushed so far

    [[nodiscard]] bool idle_at(int first) const { return low > high && next_cut <= first; }
    void clear() {
      for (int n = low; n <= high; ++n) at(by_count, n).clear();
      low = 1;
      high = 0;
    }
    void push(int count, const entry& e) {
      if (by_count.size() <= as_size(count)) by_count.resize(as_size(count + 1));
      if (low > high) low = high = count;
      low = std::min(low, count);
      high = std::max(high, count);
      lowest_cut = e.cut;
      auto& q = at(by_count, count);
      while (q.entries.size() > q.head && q.entries.back().key >= e.key) q.entries.pop_back();
      q.entries.push_back(e);
    }
  };

  struct workspace {
    std::vector<candidate_stage> stages;
    std::vector<window> windows;
    std::vector<label> front;
    rent_bound::filter bound;
    double limit = 0;  // of the latency, at the layer in hand
    std::int64_t looked_at = 0;
  };

  void grow_row(store& own, row& out, int high, workspace& work) {
    out = {0, -1, own.starts.size()};
    if (high < 0 || work.stages.empty()) return;
    int highest_cut = 0;
    for (auto& stage : work.stages) {
      stage.top = std::min(stage.top, reach_.furthest(stage.placement, high));
      highest_cut = std::max(highest_cut, stage.top);
    }
    high = std::min(high, highest_cut - 1);
    const bool windows = table_.additive() && algebra_.by_count() && !with_updates_;
    if (windows) {
      if (work.windows.size() < work.stages.size()) work.windows.resize(work.stages.size());
      for (std::size_t s = 0; s < work.stages.size(); ++s) {
        work.windows[s].clear();
        work.windows[s].next_cut = work.stages[s].top;
      }
    }
    out.high = high;
    out.low = high + 1;
    int last_full = high + 1;  // lowest layer with a label so far
    for (int first = high; first >= 0; --first) {
      work.front.clear();
      work.limit = work.bound.latency_limit(first);
      bool more = false;
      for (std::size_t s = 0; s < work.stages.size(); ++s) {
        if (windows) {
          if (work.windows[s].idle_at(first))
            more |= work.windows[s].next_cut >= work.stages[s].low;
          else
            more |= gather_window(work.stages[s], work.windows[s], first, work);
          continue;
        }
        more |= gather_all(work.stages[s], first, work);
      }
      work.looked_at += static_cast<std::int64_t>(work.stages.size());
      if (!more) break;
      own.starts.push_back(static_cast<std::uint32_t>(own.labels.size()));
      if (!work.front.empty()) {
        own.labels.insert(own.labels.end(), work.front.begin(), work.front.end());
        last_full = first;
      }
      out.low = first;
    }
    own.starts.push_back(static_cast<std::uint32_t>(own.labels.size()));
    if (last_full > high) {
      own.starts.resize(out.offset);
      out = {};
      return;
    }
    own.starts.resize(out.offset + as_size(high - last_full + 2));
    out.low = last_full;
  }

  [[nodiscard]] bool shares_node(const source& s, const label& behind) const {
    if (s.near_price == nullptr) return false;
    const auto& next = at(problem_.placements, behind.placement);
    return next.on_one_node && next.devices <= s.taken;
  }

  [[nodiscard]] bool gather_window(const candidate_stage& stage, window& w, int first, workspace& work) const {
    const int p = stage.placement;
    const auto* prefix = table_.prefix(p);
    for (; w.next_cut > first && w.next_cut >= stage.low; --w.next_cut) {
      const int cut = w.next_cut;
      for (const auto& s : stage.sources) {
        if (s.labels == nullptr) {
          if (cut == problem_.layers) w.push(1, {prefix[cut].time, cut, -1, 0});
          continue;
        }
        const auto suffixes = labels_at(*s.labels, *s.from, cut);
        if (suffixes.empty()) continue;
        const int kind = problem_.kind_before(cut);
        for (const auto& l : suffixes) {
          const bool near = shares_node(s, l);
          const auto step = (near ? s.near_step : s.step)[kind];
          if (step == 0) continue;
          const double key = (near ? s.near_price : s.price)[kind].round_trip + prefix[cut].time;
          w.push(std::min(l.state.warmup + step, microbatches_),  // more do not take more memory
                 {l.latency + key, cut, s.phase, static_cast<std::uint32_t>(&l - s.labels->labels.data())});
        }
      }
    }
    const auto& from = prefix[first];
    for (; w.low <= w.high && at(w.by_count, w.low).empty(); ++w.low) at(w.by_count, w.low).clear();
    const double limit = work.limit + from.time;
    double beaten = infinity;  // by a smaller count
    for (int n = w.low; n <= w.high; ++n) {
      auto& q = at(w.by_count, n);
      const double held = std::min(n, microbatches_);
      while (!q.empty()) {
        const auto& e = q.entries[q.head];
        if (e.key > limit || e.key >= beaten) break;
        const auto& to = prefix[e.cut];
        if (to.time - from.time <= period_ && table_.memory(p, first, e.cut, held) <= at(capacity_, p)) {
          keep_if_new(work.front, {e.key - from.time, e.key - from.time, {n, 0}, p, e.cut, e.phase, e.label});
          beaten = e.key;
          break;
        }
        ++q.head;
      }
    }
    // The lowest cut is the last to drop out.
    return w.next_cut >= stage.low || (w.low <= w.high && prefix[w.lowest_cut].time - from.time <= period_);
  }

  [[nodiscard]] bool gather_all(const candidate_stage& stage, int first, workspace& work) const {
    const int p = stage.placement;
    const int top = std::min(stage.top, reach_.furthest(p, first));
    for (int cut = std::max(first + 1, stage.low); cut <= top; ++cut) {
      const double time = table_.time(p, first, cut);
      ++work.looked_at;
      if (time > period_) continue;
      const auto held = table_.memory(p, first, cut);
      const double forward = with_updates_ ? table_.forward(p, first, cut) : 0;
      const double update = with_updates_ ? updates_(p, first, cut) : 0;
      const auto consider = [&](const label& behind, const transfer_price& transfer, int phase, std::uint32_t index) {
        label l{behind.latency + time + transfer.round_trip, 0, {}, p, cut, phase, index};
        if (l.latency > work.limit) return;
        l.end = l.latency;
        if (with_updates_) {
          // A stage upstream ends later, by its own backward and the gradient's way to it.
          l.end = std::max(l.latency + update, behind.end + forward + (transfer.round_trip - transfer.slower_way));
          if (l.end > work.bound.budget - work.bound.steady) return;
        }
        if (!algebra_.extend(time, transfer, behind.state, period_, l.state)) return;
        if (held.at(std::min(l.state.warmup, microbatches_)) <= at(capacity_, p)) keep_if_new(work.front, l);
      };
      for (const auto& s : stage.sources) {
        if (s.labels == nullptr) {
          if (cut == problem_.layers) consider(label{}, {}, -1, 0);
          continue;
        }
        for (const auto& l : labels_at(*s.labels, *s.from, cut)) {
          ++work.looked_at;
          const auto& transfer = (shares_node(s, l) ? s.near_price : s.price)[problem_.kind_before(cut)];
          if (transfer.occupied > period_) continue;
          consider(l, transfer, s.phase, static_cast<std::uint32_t>(&l - s.labels->labels.data()));
        }
      }
    }
    return top >= stage.low;
  }

  [[nodiscard]] std::vector<solution> best_solutions(std::size_t limit) const {
    struct end {
      double latency;
      std::size_t phase;
      const label* first;
    };
    std::vector<end> ends;
    for (std::size_t ph = 0; ph < route_.size(); ++ph) {
      if (!route_[ph].may_end) continue;
      const auto& s = stores_[ph];
      for (const auto& r : s.exits)
        for (const auto& l : labels_at(s, r, 0)) ends.push_back({l.end, ph, &l});
    }
    std::stable_sort(ends.begin(), ends.end(), [](const end& a, const end& b) { return a.latency < b.latency; });
    if (ends.size() > limit) ends.resize(limit);
    std::vector<solution> found;
    for (const auto& e : ends) {
      solution s{e.latency, {}};
      int first = 0;
      for (const label* l = e.first;;) {
        s.stages.push_back({l->placement, {first, l->cut}});
        first = l->cut;
        if (l->next_phase < 0) break;
        l = at(stores_, l->next_phase).labels.data() + l->next_label;
      }
      found.push_back(std::move(s));
    }
    return found;
  }

  const interop_problem& problem_;
  const stage_prices& table_;
  const update_table& updates_;
  const std::vector<route_phase>& route_;
  warmup_algebra algebra_;
  int microbatches_;
  bool use_all_;
  bool with_updates_ = false;
  const parallel_for& run_;
  function_ref<bool()> poll_;
  rent_bound rents_;
  reach reach_;
  std::int64_t most_work_ = 0;
  function_ref<bool()> go_on_;
  double period_ = 0;
  double longer_than_ = 0;
  double budget_ = infinity;
  std::vector<double> capacity_;
  std::vector<std::vector<int>> classes_of_;      // transfer classes, by subcluster
  std::vector<std::int32_t> steps_, near_steps_;  // as prices; 0: slower than the period
  std::vector<store> stores_;
};

}  // namespace detail
}  // namespace hetsched
