// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/detail/rented_path_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/planners/parallel_pipelines/detail/rented_path.hpp>

namespace hetsched::detail {

/// Cheap pipelines if devices cost rent: the chain program of interop_dp, from the last layer to the first, without a count of
/// devices and with their rent. Labels keep what the warm-ups need; those that cannot end within the budget, by rented_path's
/// costs of the layers before, are dropped, and of the others only the cheapest few of each layer and class are kept. No bound
/// rests on it.
class rented_search {
 public:
  struct solution {
    double cost = 0;
    std::vector<interop_stage> stages;
  };

  rented_search(const interop_problem& problem, const stage_prices& table, const end_table& ends, const warmup_algebra& algebra,
                int microbatches)
      : problem_(problem),
        table_(table),
        ends_(ends),
        algebra_(algebra),
        microbatches_(microbatches),
        classes_(as_size(problem.classes())),
        fronts_(as_size(problem.layers + 1) * classes_) {
    for (std::size_t p = 0; p < problem.placements.size(); ++p)
      if (!problem.placements[p].dominated) open_.push_back(static_cast<int>(p));
  }

  /// Pipelines of cost at most `budget`, as rented_path counts it, at most one for each number of devices; none if
  /// more than `most_work` ends of stages were looked at: then aborted() is true.
  /// `bound`: solved for the same period, rents and reductions.
  [[nodiscard]] std::vector<solution> solve(const rented_path& bound, double low, double period, const device_prices& prices,
                                            bool reductions, double budget, std::int64_t most_work) {
    aborted_ = false;
    labels_.clear();
    done_.clear();
    for (auto& f : fronts_) f.clear();
    looked_at_ = 0;
    for (int first = problem_.layers - 1; first >= 0; --first) {
      grow(bound, first, low, period, prices, reductions, budget, most_work);
      for (std::size_t c = 0; c < classes_; ++c)
        keep_best(fronts_[as_size(first) * classes_ + c], [&](auto i) { return labels_[i].cost + labels_[i].end; });
    }
    if (aborted_) return {};
    const auto total = [&](auto i) { return labels_[i].cost + labels_[i].end; };
    std::sort(done_.begin(), done_.end(), [&](auto a, auto b) { return total(a) < total(b); });
    std::vector<solution> found;
    std::vector<std::vector<int>> known;
    for (const auto label_at : done_) {
      solution s{total(label_at), {}};
      std::vector<int> devices(problem_.devices.size());
      int first = 0;
      for (auto i = label_at; i != none; i = labels_[i].next) {
        const auto& l = labels_[i];
        s.stages.push_back({l.placement, {first, l.cut}});
        const auto& placed = at(problem_.placements, l.placement);
        at(devices, placed.subcluster) += placed.devices;
        first = l.cut;
      }
      if (std::find(known.begin(), known.end(), devices) != known.end()) continue;
      known.push_back(std::move(devices));
      found.push_back(std::move(s));
    }
    return found;
  }

  [[nodiscard]] bool aborted() const { return aborted_; }
  [[nodiscard]] std::int64_t looked_at() const { return looked_at_; }

 private:
  static constexpr std::size_t width = 4;
  static constexpr auto none = std::numeric_limits<std::uint32_t>::max();

  // A suffix of the model from one layer on: its cost, the warm-up state of its first stage, and how it goes on.
  struct label {
    double cost = 0;
    double end = 0;  // what its stages add at the end, before the stages in front of it
    warmup_state state;
    int placement = 0;
    int cut = 0;  // first layer of the next stage
    std::uint32_t next = none;
  };
  // A suffix as a stage of some class in front of it sees it.
  struct entry {
    double cost = 0, end = 0;
    transfer_price way;
    warmup_state state;
    std::uint32_t next = none;
  };

  [[nodiscard]] bool no_worse(const entry& a, const entry& b) const {
    return a.cost <= b.cost && a.cost + a.end <= b.cost + b.end && a.way.round_trip <= b.way.round_trip &&
           a.way.slower_way <= b.way.slower_way && algebra_.no_worse(a.state, b.state) && a.state.warmup <= b.state.warmup;
  }

  // Suffixes from `cut` on, as stages of each class see them.
  void enter(int cut, double period) {
    entries_.resize(fronts_.size());
    for (std::size_t c = 0; c < classes_; ++c) {
      auto& front = entries_[as_size(cut) * classes_ + c];
      front.clear();
      if (cut == problem_.layers) {
        front.push_back({});
        continue;
      }
      const int kind = problem_.kind_before(cut);
      for (std::size_t to = 0; to < classes_; ++to) {
        const auto& apart = problem_.transfer(static_cast<int>(c), static_cast<int>(to))[kind];
        const auto& near = problem_.near_transfer(static_cast<int>(c), static_cast<int>(to))[kind];
        const auto& way = near.round_trip < apart.round_trip ? near : apart;
        if (!(way.occupied <= period) || !(way.round_trip < infinity)) continue;
        for (const auto i : fronts_[as_size(cut) * classes_ + to]) {
          const entry candidate{labels_[i].cost + way.round_trip, std::max(0.0, labels_[i].end - way.slower_way), way,
                                labels_[i].state, i};
          if (std::any_of(front.begin(), front.end(), [&](const entry& e) { return no_worse(e, candidate); })) continue;
          std::erase_if(front, [&](const entry& e) { return no_worse(candidate, e); });
          front.push_back(candidate);
        }
      }
      keep_best(front, [](const entry& e) { return e.cost + e.end; });
    }
  }

  // The cheapest few of a front.
  template <class Front, class Cost>
  static void keep_best(Front& front, Cost cost) {
    if (front.size() <= width) return;
    std::stable_sort(front.begin(), front.end(), [&](const auto& a, const auto& b) { return cost(a) < cost(b); });
    front.resize(width);
  }

  void grow(const rented_path& bound, int first, double low, double period, const device_prices& prices, bool reductions,
            double budget, std::int64_t most_work) {
    enter(first + 1, period);
    for (const int p : open_) {
      const auto& placed = at(problem_.placements, p);
      const auto own_class = as_size(placed.transfer_class);
      const double before = bound.before(first, placed.transfer_class);
      if (!(before < infinity)) continue;
      const double rent = at(prices.rent, placed.subcluster) * placed.devices;
      const double fee = at(prices.fee, placed.subcluster) * placed.devices;
      auto& front = fronts_[as_size(first) * classes_ + own_class];
      for (int last = first + 1; last <= problem_.layers; ++last) {
        if (aborted_) return;
        const double t = table_.time(p, first, last);
        const auto bytes = table_.memory(p, first, last);
        if (table_.additive() && (t > period || bytes.at(1) > placed.capacity)) break;
        if (t > period || bytes.at(1) > placed.capacity) continue;
        if (++looked_at_ > most_work) {
          aborted_ = true;
          return;
        }
        const double own = t + std::max(low, t) * rent + fee, backward = t - table_.forward(p, first, last);
        const double end = table_.updates()(p, first, last) + (reductions ? ends_.reduction(p, first, last) : 0.0);
        for (const auto& e : entries_[as_size(last) * classes_ + own_class]) {
          const double cost = e.cost + own;
          label next{cost, std::max(end, e.end - backward), {}, p, last, e.next};
          if (cost + before + (first == 0 ? next.end : 0.0) > budget) continue;
          if (!algebra_.extend(t, e.way, e.state, period, next.state)) continue;
          if (bytes.at(std::min(next.state.warmup, microbatches_)) > placed.capacity) continue;
          if (first == 0) {
            done_.push_back(static_cast<std::uint32_t>(labels_.size()));
            labels_.push_back(next);
            continue;
          }
          const auto beats = [&](const label& a, const label& b) {
            return a.cost <= b.cost && a.cost + a.end <= b.cost + b.end && a.state.warmup <= b.state.warmup &&
                   algebra_.no_worse(a.state, b.state);
          };
          if (std::any_of(front.begin(), front.end(), [&](auto i) { return beats(labels_[i], next); })) continue;
          std::erase_if(front, [&](auto i) { return beats(next, labels_[i]); });
          front.push_back(static_cast<std::uint32_t>(labels_.size()));
          labels_.push_back(next);
        }
      }
    }
  }

  const interop_problem& problem_;
  const stage_prices& table_;
  const end_table& ends_;
  const warmup_algebra& algebra_;
  int microbatches_;
  std::size_t classes_;
  std::vector<int> open_;
  std::vector<label> labels_;
  std::vector<std::uint32_t> done_;                 // labels of whole pipelines
  std::vector<std::vector<std::uint32_t>> fronts_;  // [first layer][class]: labels
  std::vector<std::vector<entry>> entries_;         // [cut][class]
  bool aborted_ = false;
  std::int64_t looked_at_ = 0;
};

}  // namespace hetsched::detail
