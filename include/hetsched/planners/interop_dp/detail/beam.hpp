// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/interop_dp_test.cpp.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>
#include <hetsched/planners/interop_dp/detail/route.hpp>
#include <hetsched/planners/interop_dp/detail/warmup_algebra.hpp>

namespace hetsched::detail {

/// Good plans for one period, fast: stages as full as period and memory allow are put in front of each other, and of all suffixes
/// that use as many devices the few are kept whose latency, with what the layers before them cost at the least, is smallest; and
/// the one that leaves fewest layers. With one microbatch in flight everywhere, which is enough for an unlimited period under
/// exact warm-ups, that last one is all that counts: then a plan is found if there is one.
/// Complexity: O(states * placements * width * log L) for the phases' devices as states.
class beam_search {
 public:
  struct solution {
    double latency = 0;  // with updates
    std::vector<interop_stage> stages;
  };

  beam_search(const interop_problem& problem, const stage_prices& table, const std::vector<route_phase>& route,
              warmup_algebra algebra, int microbatches, bool use_all)
      : problem_(problem),
        table_(table),
        updates_(table.updates()),
        route_(route),
        algebra_(algebra),
        microbatches_(microbatches),
        use_all_(use_all) {
    kept_.resize(route.size());
    exits_.resize(route.size());
    options_.resize(problem.devices.size());
  }

  /// Suffixes that stages were put in front of so far.
  [[nodiscard]] std::int64_t looked_at() const { return looked_at_; }

  /// Plans that keep `period`, of these placements, best first, `most` at the most. `cost_before`: of all layers before each one.
  /// None where go_on, asked now and then, returns false.
  [[nodiscard]] std::vector<solution> solve(double period, const std::vector<int>& placements,
                                            const std::vector<double>& cost_before, int width, std::size_t most,
                                            function_ref<bool()> go_on = {}) {
    period_ = std::min(period, std::numeric_limits<double>::max());
    cost_before_ = &cost_before;
    width_ = width;
    arena_.clear();
    for (auto& all : options_) all.clear();
    for (const int p : placements) {
      if (go_on && !go_on()) return {};
      auto& o = at(options_, at(problem_.placements, p).subcluster).emplace_back();
      o.placement = p;
      o.furthest.resize(as_size(problem_.layers + 1));
      table_.furthest(p, period_, at(problem_.placements, p).capacity, 1, o.furthest.data());
      // The first layer of the longest stage that ends before each layer; that layer itself if none does.
      o.nearest.assign(as_size(problem_.layers + 1), 0);
      for (int e = 1, a = 0; e <= problem_.layers; at(o.nearest, e++) = a)
        while (a < e && at(o.furthest, a) < e) ++a;
    }
    for (std::size_t ph = 0; ph < route_.size(); ++ph)
      if (!grow(static_cast<int>(ph), go_on)) return {};
    return finished(most);
  }

 private:
  struct option {
    int placement = 0;
    std::vector<int> furthest, nearest;
  };
  struct label {
    double latency = 0;
    double end = 0;   // latency, and what the stages' updates add to it
    double cost = 0;  // end, with the layers before it
    warmup_state state;
    std::int32_t first = 0;
    std::int32_t placement = 0;
    std::int32_t next = -1;  // in the arena; -1: the last stage
  };

  // False if go_on has ended it.
  [[nodiscard]] bool grow(int ph, function_ref<bool()> go_on) {
    const auto& phase = at(route_, ph);
    const int all = at(problem_.devices, phase.subcluster);
    auto& kept = at(kept_, ph);
    kept.assign(as_size(all + 1), {});
    auto& exits = at(exits_, ph);
    exits.clear();
    for (int used = 1; used <= all; ++used) {
      if (go_on && !go_on()) return false;
      fresh_.clear();
      for (const auto& o : at(options_, phase.subcluster)) {
        const int behind = used - at(problem_.placements, o.placement).devices;
        if (behind < 0) continue;
        if (behind > 0) {
          for (const auto l : at(kept, behind)) extend(o, l, behind);
          continue;
        }
        if (phase.may_start) extend(o, -1, 0);
        for (const int from : phase.from)
          for (const auto l : at(exits_, from)) extend(o, l, 0);
      }
      keep(at(kept, used));
      if (!use_all_ || used == all) exits.insert(exits.end(), at(kept, used).begin(), at(kept, used).end());
    }
    thin(exits);
    return true;
  }

  static bool before(const label& a, const label& b) {
    if (a.cost != b.cost) return a.cost < b.cost;
    return a.first != b.first ? a.first < b.first : a.placement < b.placement;
  }

  // Of labels, the few of different first layers that cost least, of any transfer class; the cheapest one of each other class, as
  // ways on depend on it; and the one that leaves fewest layers. Best first, but for the last. Complexity: O(labels * chosen).
  template <class Of>
  void choose(int count, Of label_of, std::vector<int>& chosen) {
    chosen.clear();
    of_class_.clear();
    const auto class_of = [&](int i) { return at(problem_.placements, label_of(i).placement).transfer_class; };
    const auto better = [&](int a, int b) { return before(label_of(a), label_of(b)); };
    const auto width = as_size(width_);
    const bool all_classes = period_ < std::numeric_limits<double>::max();
    int furthest = -1;
    for (int i = 0; i < count; ++i) {
      const label& l = label_of(i);
      if (furthest < 0 || l.first < label_of(furthest).first || (l.first == label_of(furthest).first && better(i, furthest)))
        furthest = i;
      const int own = class_of(i);
      if (all_classes) {
        const auto known = std::find_if(of_class_.begin(), of_class_.end(), [&](int other) { return class_of(other) == own; });
        if (known == of_class_.end())
          of_class_.push_back(i);
        else if (better(i, *known))
          *known = i;
      }
      if (chosen.size() == width && !better(i, chosen.back())) continue;
      const auto twin = std::find_if(chosen.begin(), chosen.end(),
                                     [&](int other) { return label_of(other).first == l.first && class_of(other) == own; });
      if (twin != chosen.end()) {
        if (!better(i, *twin)) continue;
        chosen.erase(twin);
      }
      chosen.insert(std::upper_bound(chosen.begin(), chosen.end(), i, better), i);
      if (chosen.size() > width) chosen.pop_back();
    }
    const auto few = static_cast<std::ptrdiff_t>(chosen.size());
    std::sort(of_class_.begin(), of_class_.end(), better);
    for (const int i : of_class_)
      if (std::find(chosen.begin(), chosen.begin() + few, i) == chosen.begin() + few) chosen.push_back(i);
    if (furthest >= 0 && std::find(chosen.begin(), chosen.end(), furthest) == chosen.end()) chosen.push_back(furthest);
  }

  void thin(std::vector<std::int32_t>& labels) {
    choose(
        static_cast<int>(labels.size()), [&](int i) -> const label& { return at(arena_, at(labels, i)); }, chosen_);
    for (std::size_t i = 0; i < chosen_.size(); ++i) chosen_[i] = at(labels, chosen_[i]);
    labels.assign(chosen_.begin(), chosen_.end());
  }

  void keep(std::vector<std::int32_t>& kept) {
    choose(
        static_cast<int>(fresh_.size()), [&](int i) -> const label& { return at(fresh_, i); }, chosen_);
    for (const int i : chosen_) {
      kept.push_back(static_cast<std::int32_t>(arena_.size()));
      arena_.push_back(at(fresh_, i));
    }
  }

  // Puts a stage in front of a suffix: the longest that fits, and the next shorter ones.
  void extend(const option& o, std::int32_t next, int used) {
    const int cut = next < 0 ? problem_.layers : at(arena_, next).first;
    if (cut == 0) return;
    ++looked_at_;
    const label behind = next < 0 ? label{} : at(arena_, next);
    const transfer_price price = next < 0 ? transfer_price{} : problem_.price(o.placement, behind.placement, used, cut);
    if (price.occupied > period_) return;
    const double capacity = at(problem_.placements, o.placement).capacity;
    int low = at(o.nearest, cut);
    if (low >= cut) return;
    const auto fits = [&](int first, warmup_state& state) {
      const double time = table_.time(o.placement, first, cut);
      return time <= period_ && algebra_.extend(time, price, behind.state, period_, state) &&
             table_.memory(o.placement, first, cut, std::min(state.warmup, microbatches_)) <= capacity;
    };
    warmup_state state;
    if (!fits(low, state)) {
      // Shorter stages take less memory.
      int high = cut;
      while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        (fits(middle, state) ? high : low) = middle;
      }
      low = high;
      if (low >= cut) return;
    }
    constexpr int shorter = 2;
    for (int first = low; first < cut && first <= low + shorter; ++first) {
      if (!fits(first, state)) continue;
      label l;
      l.latency = behind.latency + table_.time(o.placement, first, cut) + price.round_trip;
      // A stage upstream ends later, by its own backward and the gradient's way to it.
      l.end = std::max(l.latency + updates_(o.placement, first, cut),
                       behind.end + table_.forward(o.placement, first, cut) + (price.round_trip - price.slower_way));
      l.cost = l.end + (*cost_before_)[as_size(first)];
      l.state = state;
      l.first = first;
      l.placement = o.placement;
      l.next = next;
      fresh_.push_back(l);
      if (first == 0) break;
    }
  }

  [[nodiscard]] std::vector<solution> finished(std::size_t most) const {
    std::vector<const label*> ends;
    for (std::size_t ph = 0; ph < route_.size(); ++ph)
      if (route_[ph].may_end)
        for (const auto l : exits_[ph])
          if (at(arena_, l).first == 0) ends.push_back(&at(arena_, l));
    std::stable_sort(ends.begin(), ends.end(), [](const label* a, const label* b) { return a->end < b->end; });
    if (ends.size() > most) ends.resize(most);
    std::vector<solution> found;
    for (const auto* l : ends) {
      solution s{l->end, {}};
      for (int first = 0;; l = &at(arena_, l->next)) {
        const int last = l->next < 0 ? problem_.layers : at(arena_, l->next).first;
        s.stages.push_back({l->placement, {first, last}});
        first = last;
        if (l->next < 0) break;
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
  double period_ = 0;
  const std::vector<double>* cost_before_ = nullptr;
  int width_ = 1;
  std::int64_t looked_at_ = 0;
  std::vector<std::vector<option>> options_;  // by subcluster
  std::vector<label> arena_, fresh_;
  std::vector<int> chosen_, of_class_;
  std::vector<std::vector<std::vector<std::int32_t>>> kept_;  // [phase][devices used]
  std::vector<std::vector<std::int32_t>> exits_;              // [phase]
};

}  // namespace hetsched::detail
