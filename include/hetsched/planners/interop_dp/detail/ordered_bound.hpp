// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/detail/iteration_bound_test.cpp.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>

namespace hetsched::detail {

/// Seconds for which a stage stands idle at the least while it does `microbatches`, of which it may hold no more than `held` at
/// once: before its first backward it has done no more forwards than that, and after its last forward no more backwards are left.
/// Each microbatch is away for `behind` seconds between the two.
[[nodiscard]] inline double least_idle(double behind, double forward, double backward, double held, double microbatches) {
  const double others = std::min(held, microbatches) - 1;
  double idle = std::max(0.0, behind - others * forward);
  if (held < microbatches) idle += std::max(0.0, behind - others * backward);
  return idle;
}

/// How many microbatches a stage of these bytes may hold.
[[nodiscard]] inline double most_held(const stage_bytes& bytes, double room) {
  return bytes.each > 0 ? std::max(1.0, std::floor((room + 16 - bytes.fixed) / bytes.each)) : infinity;
}

/// What the first stage of a pipeline, which is done last, takes at the end at the least for parameters that it shares with the
/// stage of layer `layers - 1`; nothing where it holds that layer, too.
struct shared_parameters {
  double seconds = 0;
  int layers = 0;                    // 0: none are shared
  std::vector<double> between = {};  // [subcluster of the first stage][of the other one]: the seconds there
};

/// First stages that hold all layers that share parameters, which nothing is added up for; what is behind them is left out.
class undivided_stages {
 public:
  undivided_stages() = default;
  /// `end(p, layers)`: what such a stage takes at the end.
  undivided_stages(const interop_problem& problem, const stage_prices& table, std::span<const int> open, int layers,
                   function_ref<double(int, layer_range)> end) {
    for (const int p : open)
      if (table.memory(p, 0, layers, 1) <= at(problem.placements, p).room + 16)
        all_.push_back({p, table.time(p, 0, layers) * (1 - 1e-7), end(p, {0, layers})});
  }

  /// Calls f(placement, microbatches) for each, with how many it does within `seconds` at the most, if any.
  template <class F>
  void for_each_within(double seconds, int most, F f) const {
    for (const auto& s : all_) {
      const double all = (seconds - s.end) / std::max(s.each, 1e-300);
      if (const int m = static_cast<int>(std::clamp(all, 0.0, double(most))); m > 0) f(s.placement, m);
    }
  }

 private:
  struct stage {
    int placement;
    double each, end;  // seconds: a microbatch, and at the end
  };
  std::vector<stage> all_;
};

/// Bounds the iteration of one pipeline as iteration_bound does, T >= L_s + M t_s and by memory, with whole stages in an order of
/// their own: for a given T, a shortest way for the first microbatch through stages of which each ends by T. A state is how many
/// layers are done, on how many devices of each subcluster, and of what kind the last stage is; pipelines may come back to a
/// subcluster. For problems with few enough states.
///
/// Sets of pipelines share devices and microbatches out: by how many microbatches pipelines of so many devices do within T at the
/// most, the most that a set does is what a knapsack holds.
class ordered_bound {
 public:
  /// What a stage takes at least to add up its gradients with those of another pipeline, by placement, first and last layer.
  using reductions = function_ref<double(int, int, int)>;

  /// All outlive this. `forward_share`: at the least, of what a microbatch takes. Of one pipeline; with `between`, of sets.
  /// `splits`: as of iteration_bound.
  ordered_bound(const interop_problem& problem, const stage_prices& table, const any_cost_model& costs, double forward_share,
                const shared_parameters& shared, const undivided_stages& undivided, reductions between = {}, bool splits = false)
      : problem_(problem),
        table_(table),
        costs_(costs),
        reductions_(between),
        forward_share_(forward_share),
        shared_(shared.seconds),
        shared_layers_(shared.layers),
        undivided_(undivided),
        splits_(splits),
        layers_(as_size(problem.layers)),
        classes_(as_size(problem.classes())) {
    double counts = 1;
    for (const int d : problem.devices) {
      stride_.push_back(static_cast<std::size_t>(std::min(counts, most_states)));
      counts *= d + 1;
    }
    const double states = (static_cast<double>(layers_) + 1) * counts * static_cast<double>(classes_);
    if (!(states <= most_states)) return;
    if (const int most = most_on_node(); states * most <= most_states) runs_ = as_size(most);
    counts_ = static_cast<std::size_t>(counts);
    const bool updates = table.updates().any();
    for (std::size_t p = 0; p < problem.placements.size(); ++p) {
      const auto& placed = problem.placements[p];
      if (!placed.barred && (!placed.dominated || updates || reductions_ || splits_)) open_.push_back(static_cast<int>(p));
    }
    // Without updates it is a bound, too.
    const auto stages = layers_ * (layers_ + 1) / 2;
    if ((updates || reductions_) && open_.size() <= most_updates / stages) updates_.assign(open_.size() * stages, unknown);
    for (std::size_t c = 0; c < counts_; ++c)
      for (std::size_t k = 0; k < stride_.size(); ++k)
        used_.push_back(static_cast<int>(c / stride_[k]) % (problem.devices[k] + 1));
    price_work();
    find_ways_out();
    find_shares(shared);
  }

  /// Whether there are few enough states.
  [[nodiscard]] bool usable() const { return counts_ > 0 && !open_.empty(); }

  /// Pipelines of whole stages that the bound does not tell from what may end within some part of `seconds`, the longest part
  /// first: the least of them may be near the best there are. None where there are too many states.
  [[nodiscard]] std::vector<std::vector<interop_stage>> nearly_within(int microbatches, double seconds,
                                                                      function_ref<bool()> go_on) {
    std::vector<std::vector<interop_stage>> found;
    if (!usable() || reductions_ || zones_of(most_zones) < fewest_zones) return found;
    most_earned_ = earned_.back();
    microbatches_ = microbatches;
    most_looked_at_ = most_looks_finely;
    if (!find_ways_left(seconds - shared_, go_on)) return found;
    for (const double part : {0.995, 0.98, 0.96, 0.93, 0.9, 0.86, 0.8, 0.7}) {
      traced_.clear();
      const auto may = one_within(part * seconds, go_on, true);
      if (!may || !*may) break;
      if (!traced_.empty() && std::find(found.begin(), found.end(), traced_) == found.end()) found.push_back(traced_);
    }
    return found;
  }

  /// A lower bound, in seconds, on iterations of that many microbatches; at least `known`. The search ends within `gap` of
  /// `reached`, an iteration that is known, or at `enough`, when it has looked at too many stages, or where go_on() is false.
  /// Complexity: O(states * placements * layers of a stage) for each of up to ten times, and of sets for some numbers of
  /// microbatches at each; most states cannot be reached.
  [[nodiscard]] double bound(int microbatches, double known, double reached, double gap, double enough,
                             function_ref<bool()> go_on) {
    if (!usable() || !(reached < infinity)) return known;
    double low = known, high = std::min(reached * (1 - gap), enough);
    if (!(low < high)) return known;
    most_earned_ = earned_.back();
    microbatches_ = microbatches;
    most_looked_at_ = reductions_ ? most_looks_at_sets : most_looks;
    if (!reductions_ && !find_ways_left(high - shared_, go_on)) return known;
    const auto coarsely = [&](double seconds) {
      return reductions_ ? set_within(microbatches, seconds, go_on) : one_within(seconds, go_on, false);
    };
    low = bisected(low, high, std::max(gap, 0.001) * high, coarsely);
    if (reductions_ || !(low < high) || zones_of(most_zones) < fewest_zones) return low;
    most_looked_at_ = looked_at_ + most_looks_finely;
    return bisected(low, high, std::max(gap, 0.002) * high, [&](double seconds) { return one_within(seconds, go_on, true); });
  }

 private:
  struct way_range {
    double shortest, longest;
  };
  // Where the two stages that share parameters are, and what that takes at the least.
  struct shared_case {
    double seconds = 0;
    std::uint64_t first = ~std::uint64_t{0}, other = ~std::uint64_t{0};  // subclusters, a bit for each
  };

  static constexpr double most_states = 2e6, safely = 1 - 1e-7;
  static constexpr float unknown = -1;
  static constexpr int most_rounds = 200;
  static constexpr std::size_t most_counts = 2000;  // of devices, for sets
  static constexpr std::int64_t most_looks = 150'000'000, most_looks_at_sets = 40'000'000, most_looks_finely = 20'000'000;
  static constexpr std::size_t most_zones = 24, fewest_zones = 8;
  static constexpr double most_cells = 4e6;                // states and zones: 32 MB
  static constexpr double fine = 1.05;                     // ratio of a range of ways there and back
  static constexpr std::size_t most_updates = 16'000'000;  // 64 MB

  // What is known of a last stage: its class, and how many devices of its node it takes together with those just before it that
  // lie there, too.
  [[nodiscard]] std::size_t ends() const { return classes_ * runs_; }
  [[nodiscard]] std::size_t end_of(int transfer_class, int run) const {
    return as_size(transfer_class) * runs_ + as_size(std::min(run, static_cast<int>(runs_)) - 1);
  }
  // The most devices that stages side by side may have on a node, where transfers within one cost something else.
  [[nodiscard]] int most_on_node() const {
    int most = 1;
    for (const auto& p : problem_.placements)
      if (p.on_one_node && !problem_.near_prices.empty()) most = std::max(most, at(problem_.devices_per_node, p.subcluster));
    return most;
  }

  // Of the first zone.
  [[nodiscard]] std::size_t index(std::size_t layer, std::size_t count, std::size_t last) const {
    return ((layer * counts_ + count) * ends() + last) * zones_;
  }
  [[nodiscard]] int used(std::size_t count, int subcluster) const { return used_[count * stride_.size() + as_size(subcluster)]; }

  // What layers cost where rents are in proportion to speed, and what devices earn.
  void price_work() {
    rents_.assign(stride_.size(), 0.0);
    for (const int p : open_) {
      const auto& placed = at(problem_.placements, p);
      auto& own = at(rents_, placed.subcluster);
      own = std::max(own, std::min(1e30, 1 / (table_.time(p, 0, problem_.layers) * placed.devices)));
    }
    work_.assign(layers_ + 1, 0.0);
    if (table_.additive())
      for (std::size_t l = 0; l < layers_; ++l) {
        double least = infinity;
        for (const int p : open_) {
          const auto& placed = at(problem_.placements, p);
          const int first = static_cast<int>(l);
          least = std::min(least, at(rents_, placed.subcluster) * placed.devices * table_.time(p, first, first + 1));
        }
        work_[l + 1] = work_[l] + least * safely;
      }
    earned_.assign(counts_, 0.0);
    for (std::size_t c = 0; c < counts_; ++c)
      for (std::size_t k = 0; k < rents_.size(); ++k) earned_[c] += rents_[k] * used(c, static_cast<int>(k));
  }

  // Calls f(seconds there and back, seconds busy each way, run) for the ways from a last stage to one of placement p: within a
  // node, where there is room, and from one to another; the less of both where runs are not told apart.
  template <class F>
  void for_each_way(std::size_t last, int p, int layer, F f) const {
    const auto& placed = at(problem_.placements, p);
    const int from = static_cast<int>(last / runs_), to = placed.transfer_class;
    const auto kind = problem_.kind_before(layer);
    const auto& far = problem_.transfer(from, to)[kind];
    const auto& near = at(problem_.class_subcluster, from) == placed.subcluster ? problem_.near_transfer(from, to)[kind] : far;
    const auto pass = [&](double way, double busy, int run) { f(way * safely, busy * safely, run); };
    if (runs_ == 1 || near == far)
      return pass(std::min(way_of(far), way_of(near)), std::min(far.occupied, near.occupied), placed.devices);
    pass(way_of(far), far.occupied, placed.devices);
    const int run = static_cast<int>(last % runs_) + 1 + placed.devices;
    if (placed.on_one_node && run <= at(problem_.devices_per_node, placed.subcluster)) pass(way_of(near), near.occupied, run);
  }
  [[nodiscard]] double way_of(const transfer_price& price) const {
    return splits_ ? price.round_trip - price.slower_way : price.round_trip;
  }
  // What a microbatch's way takes of a stage's time.
  [[nodiscard]] double passage_of(int p, int first, int last, double time) const {
    return splits_ ? table_.forward(p, first, last) * safely : time;
  }

  // Asked at each state: a look at the clock is worth some of them.
  [[nodiscard]] bool tired(function_ref<bool()> go_on) {
    constexpr std::int64_t between = 20'000;
    steps_ += static_cast<std::int64_t>(open_.size());
    if (looked_at_ > most_looked_at_) return true;
    if (looked_at_ + steps_ < next_ask_) return false;
    next_ask_ = looked_at_ + steps_ + between;
    return !go_on();
  }

  // The least way from a stage to the next one, there and back.
  void find_ways_out() {
    const auto kinds = as_size(problem_.kinds);
    ways_out_.assign(classes_ * kinds, infinity);
    for (std::size_t from = 0; from < classes_; ++from)
      for (std::size_t to = 0; to < classes_; ++to)
        for (const auto* way : {problem_.transfer(static_cast<int>(from), static_cast<int>(to)),
                                problem_.near_transfer(static_cast<int>(from), static_cast<int>(to))})
          for (std::size_t k = 0; k < kinds; ++k)
            ways_out_[from * kinds + k] = std::min(ways_out_[from * kinds + k], way_of(way[k]) * safely);
  }
  [[nodiscard]] double way_out(int from, int layer) const {
    return layer == problem_.layers ? 0 : ways_out_[as_size(from * problem_.kinds + problem_.kind_before(layer))];
  }

  // The least that a microbatch takes from a layer on to the end and back, with stages of at most seconds / M each on the devices
  // that are left: by layer, devices used before it, and class of the stage before. Returns false where that takes too long.
  [[nodiscard]] bool find_ways_left(double seconds, function_ref<bool()> go_on) {
    left_.assign((layers_ + 1) * counts_, infinity);
    std::fill(left_.end() - static_cast<std::ptrdiff_t>(counts_), left_.end(), 0.0);
    const double longest = seconds / microbatches_, all = most_earned_;
    for (std::size_t layer = layers_; layer-- > 0;) {
      for (std::size_t c = 0; c < counts_; ++c) {
        if (tired(go_on)) return false;
        if (work_[layer] > earned_[c] * longest || work_[layers_] - work_[layer] > (all - earned_[c]) * longest) continue;
        double least = infinity;
        for (const int p : open_) {
          const auto& placed = at(problem_.placements, p);
          if (used(c, placed.subcluster) + placed.devices > at(problem_.devices, placed.subcluster)) continue;
          const auto next = c + as_size(placed.devices) * at(stride_, placed.subcluster);
          const int first = static_cast<int>(layer);
          for (int last = first + 1; last <= problem_.layers; ++last) {
            const double t = table_.time(p, first, last) * safely;
            if (t > longest && table_.additive()) break;
            ++looked_at_;
            if (t > longest) continue;
            least = std::min(least, passage_of(p, first, last, t) + way_out(placed.transfer_class, last) +
                                        left_[as_size(last) * counts_ + next]);
          }
        }
        left_[layer * counts_ + c] = least;
      }
    }
    return true;
  }

  // The longest time found that is out of reach, from `low` on; `high` is looked at first. Ends where the two are near, or where
  // is_within does not tell.
  template <class IsWithin>
  [[nodiscard]] static double bisected(double low, double high, double narrow, IsWithin is_within) {
    for (double middle = high; low < high; middle = low + (high - low) / 2) {
      const auto may = is_within(middle);
      if (!may) break;
      (*may ? high : low) = middle;
      if (high - low < narrow) break;
    }
    return low;
  }

  [[nodiscard]] std::size_t zones_of(std::size_t wanted) const {
    const double states = (static_cast<double>(layers_) + 1) * static_cast<double>(counts_ * ends());
    return std::min(wanted, static_cast<std::size_t>(most_cells / states));
  }

  [[nodiscard]] std::size_t zone_at(double way) const {
    return zones_ > 1 ? std::min(zones_ - 1, static_cast<std::size_t>(way / width_)) : 0;
  }
  // What of a range lies in a zone.
  [[nodiscard]] way_range in_zone(std::size_t zone, way_range all) const {
    return {std::max(all.shortest, static_cast<double>(zone) * width_),
            zone + 1 < zones_ ? std::min(all.longest, static_cast<double>(zone + 1) * width_) : all.longest};
  }
  [[nodiscard]] double latest_of(std::size_t state) const { return zones_ > 1 ? latest_[state] : infinity; }
  // Whether ways to a state are known that take in this range; without zones only the shortest counts.
  [[nodiscard]] bool knows(std::size_t state, way_range all) const {
    if (zones_ == 1) return all.shortest >= before_[state];
    for (auto zone = zone_at(all.shortest); zone <= zone_at(all.longest); ++zone) {
      const auto part = in_zone(zone, all);
      if (before_[state + zone] > part.shortest || latest_[state + zone] < part.longest) return false;
    }
    return true;
  }
  void take(std::size_t state, way_range all, int placement) {
    if (zones_ == 1) before_[state] = all.shortest;
    for (auto zone = zone_at(all.shortest); zones_ > 1 && zone <= zone_at(all.longest); ++zone) {
      const auto part = in_zone(zone, all);
      if (part.shortest < before_[state + zone]) steps_to_[state + zone] = {at_, placement};
      before_[state + zone] = std::min(before_[state + zone], part.shortest);
      latest_[state + zone] = std::max(latest_[state + zone], part.longest);
    }
  }
  // The stages on the shortest way to a state of all layers.
  void trace(std::size_t state) {
    traced_.clear();
    for (int last = problem_.layers; last > 0;) {
      const auto [from, placement] = steps_to_[state];
      const int first = static_cast<int>(from / index(1, 0, 0));
      traced_.push_back({placement, {first, last}});
      last = first;
      state = from;
    }
    std::reverse(traced_.begin(), traced_.end());
  }

  // Whether a pipeline may end within so long; none if that takes too long to tell.
  [[nodiscard]] std::optional<bool> within(double seconds, function_ref<bool()> go_on) {
    return within(seconds, {0, infinity}, 1, go_on);
  }

  // Whether one pipeline, wherever the stages are that share parameters, may end within so long in all.
  [[nodiscard]] std::optional<bool> one_within(double seconds, function_ref<bool()> go_on, bool finely) {
    bool may = false;
    undivided_.for_each_within(seconds, microbatches_, [&](int, int m) { may = may || m == microbatches_; });
    for (std::size_t s = 0; s < shares_.size() && !may; ++s) {
      share_ = shares_[s];
      const auto own = finely ? within_finely(seconds - share_.seconds, go_on) : within(seconds - share_.seconds, go_on);
      if (!own) return std::nullopt;
      may = *own;
    }
    return may;
  }

  // The cases of what is shared: subclusters that make no difference are one.
  void find_shares(const shared_parameters& shared) {
    const auto kinds = stride_.size();
    if (shared.between.empty() || kinds > 64) {
      shares_.push_back({shared.seconds});
      return;
    }
    for (std::size_t k = 0; k < kinds; ++k) {
      const auto row = std::span(shared.between).subspan(k * kinds, kinds);
      std::vector<shared_case> own;
      for (std::size_t other = 0; other < kinds; ++other) {
        if (!(row[other] < longest_time_s)) continue;
        auto same = std::find_if(own.begin(), own.end(), [&](const auto& c) { return c.seconds == row[other]; });
        if (same == own.end()) same = own.insert(own.end(), shared_case{row[other], std::uint64_t{1} << k, 0});
        same->other |= std::uint64_t{1} << other;
      }
      for (const auto& c : own) {
        const auto same = std::find_if(shares_.begin(), shares_.end(),
                                       [&](const auto& s) { return s.seconds == c.seconds && s.other == c.other; });
        if (same == shares_.end())
          shares_.push_back(c);
        else
          same->first |= c.first;
      }
    }
  }

  // The same where a microbatch takes that range of times there and back in all, by zones of when a stage is reached: what is
  // behind a stage is then known from what is before it.
  [[nodiscard]] std::optional<bool> within(double seconds, way_range all, std::size_t zones, function_ref<bool()> go_on) {
    all_ = all;
    zones_ = zones;
    width_ = zones > 1 ? all.longest / static_cast<double>(zones) : infinity;
    before_.assign((layers_ + 1) * counts_ * ends() * zones_, infinity);
    latest_.assign(zones > 1 ? before_.size() : 0, -infinity);
    steps_to_.resize(latest_.size());
    at_ = 0;
    extend(seconds, 0, 0, 0, {0, 0});
    for (std::size_t layer = 1; layer < layers_; ++layer)
      for (std::size_t state = index(layer, 0, 0); state < index(layer + 1, 0, 0); ++state) {
        const double way = before_[state];
        if (!(way < infinity)) continue;
        at_ = state;
        if (tired(go_on)) return std::nullopt;
        const auto last = state / zones_ % ends(), count = state / zones_ / ends() % counts_;
        extend(seconds, layer, count, last, {way, latest_of(state)});
      }
    for (std::size_t state = index(layers_, 0, 0); state < before_.size(); ++state)
      if (before_[state] < all.longest && latest_of(state) >= all.shortest) {
        if (zones_ > 1) trace(state);
        return true;
      }
    return false;
  }

  // The same by narrow ranges of the way there and back: halved, the shorter ones first, until none is in reach or a narrow one
  // is.
  [[nodiscard]] std::optional<bool> within_finely(double seconds, function_ref<bool()> go_on) {
    const double least = 1e-3 * seconds;  // below that, ranges are one
    std::vector<way_range> open{{left_.front(), seconds}};
    while (!open.empty()) {
      const auto all = open.back();
      open.pop_back();
      const auto may = within(seconds, all, zones_of(most_zones), go_on);
      if (!may) return std::nullopt;
      if (!*may) continue;
      const double shortest = std::max(all.shortest, least);
      if (all.longest < fine * shortest) return true;
      const double middle = std::sqrt(shortest * all.longest);
      open.push_back({middle, all.longest});
      open.push_back({all.shortest, middle});
    }
    return false;
  }

  // Whether pipelines on so many devices may end within the seconds of the last call of within().
  [[nodiscard]] bool ends_on(std::size_t count) const {
    const auto last = before_.begin() + static_cast<std::ptrdiff_t>(index(layers_, count, 0));
    return std::any_of(last, last + static_cast<std::ptrdiff_t>(ends()), [](double way) { return way < infinity; });
  }

  // Whether a set of two pipelines or more may end within so long; none if that takes too long to tell. What pipelines on so
  // many devices do at the most is known by their work first, and then, where a set needs it, by within().
  [[nodiscard]] std::optional<bool> set_within(int microbatches, double seconds, function_ref<bool()> go_on) {
    if (!(seconds > 0) || microbatches < 2) return false;
    if (counts_ > most_counts) return std::nullopt;
    std::vector<int> undivided(counts_, 0);  // microbatches of a pipeline of one such stage, by devices
    undivided_.for_each_within(seconds, microbatches - 1, [&](int p, int m) {
      const auto& placed = at(problem_.placements, p);
      auto& own = undivided[as_size(placed.devices) * at(stride_, placed.subcluster)];
      own = std::max(own, m);
    });
    least_sooner_.resize(counts_, 0);
    most_later_.resize(counts_, microbatches - 1);
    auto least = least_sooner_, most = most_later_;  // microbatches of a pipeline, by devices
    const auto can = [&](bool is_within) {
      (is_within ? most_later_ : least_sooner_) = is_within ? most : least;
      return is_within;
    };
    for (std::size_t c = 1; c < counts_; ++c) {
      const double by_work =
          work_[layers_] > 0 ? earned_[c] * std::max(seconds - shared_, 0.0) / work_[layers_] * (1 + tolerance::sums) : infinity;
      most[c] = std::max(undivided[c], static_cast<int>(std::min(by_work, double(most[c]))));
    }
    for (int round = 0; round < most_rounds; ++round) {
      const auto set = fullest_set(most);
      if (all_of_set_ < microbatches) return can(false);
      std::int64_t sure = 0;
      for (const auto c : set) sure += least[c];
      if (sure >= microbatches) return can(true);
      // So many that the set would do just enough, of the pipeline of which least is known.
      std::size_t which = 0;
      for (const auto c : set)
        if (which == 0 || most[c] - least[c] > most[which] - least[which]) which = c;
      if (most[which] == least[which]) return can(true);
      const auto share = static_cast<int>(std::ceil(double(microbatches) * most[which] / static_cast<double>(all_of_set_)));
      microbatches_ = std::clamp(share, least[which] + 1, most[which]);
      // Others than these cannot be in a set that does enough, or surely do more.
      const auto counts = [&](std::size_t c) {
        return most[c] >= microbatches_ && most[c] <= 1.3 * most[which] && most[c] + fullest_[counts_ - 1 - c] >= microbatches;
      };
      most_earned_ = 0;
      for (std::size_t c = 1; c < counts_; ++c)
        if (counts(c)) most_earned_ = std::max(most_earned_, earned_[c]);
      most_earned_ *= 1 + tolerance::sums;
      if (!find_ways_left(seconds - shared_, go_on)) return std::nullopt;
      ends_.assign(counts_, false);
      for (const auto& s : shares_) {
        share_ = s;
        if (!within(seconds - s.seconds, go_on)) return std::nullopt;
        for (std::size_t c = 1; c < counts_; ++c) ends_[c] = ends_[c] || ends_on(c);
      }
      for (std::size_t c = 1; c < counts_; ++c) {
        if (!counts(c)) continue;
        if (undivided[c] >= microbatches_ || ends_[c])
          least[c] = std::max(least[c], microbatches_);
        else
          most[c] = std::min(most[c], microbatches_ - 1);
      }
    }
    return std::nullopt;
  }

  // The numbers of devices of the pipelines that do most microbatches together, by how many each does; into fullest_ that most,
  // by devices. O(numbers^2 * subclusters).
  [[nodiscard]] std::vector<std::size_t> fullest_set(const std::vector<int>& most) {
    fullest_.assign(counts_, 0);
    looked_at_ += static_cast<std::int64_t>(counts_ * counts_ / 4);
    std::vector<std::size_t> last(counts_, 0);  // the pipeline added last; 0: none, of one device less
    const auto kinds = stride_.size();
    const auto fewer = [&](std::size_t c) {
      for (std::size_t k = 0; k < kinds; ++k)
        if (used_[c * kinds + k] > 0 && fullest_[c - stride_[k]] == fullest_[c]) return c - stride_[k];
      return std::size_t{0};
    };
    std::vector<std::size_t> some;
    for (std::size_t c = 1; c < counts_; ++c)
      if (most[c] > 0) some.push_back(c);
    for (std::size_t c = 1; c < counts_; ++c) {
      for (std::size_t k = 0; k < kinds; ++k)
        if (used_[c * kinds + k] > 0) fullest_[c] = std::max(fullest_[c], fullest_[c - stride_[k]]);
      for (const auto d : some) {
        if (d > c) break;
        bool fits = true;
        for (std::size_t k = 0; k < kinds && fits; ++k) fits = used_[d * kinds + k] <= used_[c * kinds + k];
        if (!fits || most[d] + fullest_[c - d] <= fullest_[c]) continue;
        fullest_[c] = most[d] + fullest_[c - d];
        last[c] = d;
      }
    }
    all_of_set_ = fullest_[counts_ - 1];
    std::vector<std::size_t> set;
    for (auto c = counts_ - 1; c > 0;) {
      if (last[c] > 0) set.push_back(last[c]);
      c = last[c] > 0 ? c - last[c] : fewer(c);
    }
    return set;
  }

  // All stages that may follow others, whose way there and back takes `before`.
  void extend(double seconds, std::size_t layer, std::size_t count, std::size_t behind, way_range before) {
    for (std::size_t o = 0; o < open_.size(); ++o) {
      const auto& placed = at(problem_.placements, open_[o]);
      if (used(count, placed.subcluster) + placed.devices > at(problem_.devices, placed.subcluster)) continue;
      const auto next = count + as_size(placed.devices) * at(stride_, placed.subcluster);
      const auto to = [&](double way, double busy, int run) {
        append(seconds, layer, next, o, end_of(placed.transfer_class, run), {before.shortest + way, before.longest + way}, busy);
      };
      if (layer > 0)
        for_each_way(behind, open_[o], static_cast<int>(layer), to);
      else if (share_.first >> placed.subcluster % 64 & 1)
        to(0, 0, placed.devices);
    }
  }

  // All such stages that begin in that range, the way to them busy so long for each microbatch; `next`: devices used with them.
  void append(double seconds, std::size_t layer, std::size_t next, std::size_t o, std::size_t kind, way_range begins,
              double busy) {
    const int first = static_cast<int>(layer), p = open_[o];
    const auto& placed = at(problem_.placements, p);
    const double m = microbatches_, begin = begins.shortest, longest = (seconds - begin) / m, idle = most_earned_ - earned_[next];
    if (!(longest > 0) || idle < 0) return;
    const bool shares = first > 0 && (share_.other >> placed.subcluster % 64 & 1);
    const int furthest = first < shared_layers_ && !shares ? shared_layers_ - 1 : problem_.layers;
    for (int last = first + 1; last <= furthest; ++last) {
      const double t = table_.time(p, first, last) * safely;
      if (t > longest && table_.additive()) break;
      ++looked_at_;
      const double behind_it = way_out(placed.transfer_class, last) + left_[as_size(last) * counts_ + next],
                   passage = passage_of(p, first, last, t), there = begin + passage;
      if (t > longest || there + behind_it > std::min(seconds, all_.longest)) continue;
      // All microbatches follow the first one's way, or go ahead of the last one's.
      const double forward = table_.forward(p, first, last), backward = t - forward;
      const double pace = splits_ ? forward : std::max({forward, backward, busy});
      if (std::max(all_.shortest, there + behind_it) + (m - 1) * pace * safely > seconds) continue;
      const double end = std::min(begins.longest, seconds - m * t);
      const way_range reached{there, std::min(end + passage, all_.longest - behind_it)};
      const auto state = index(as_size(last), next, kind);
      if (knows(state, reached)) continue;
      if (work_[layers_] - work_[as_size(last)] > idle * (seconds - there) / m * (1 + tolerance::sums)) continue;
      // The latest begin has the least behind it.
      const double share = std::max((passage + behind_it) / (seconds - begin), (all_.shortest - end) / (seconds - end));
      const double in_flight = std::max(1.0, std::ceil(m * share * safely));
      const auto bytes = table_.memory(p, first, last);
      if (bytes.at(std::min(in_flight, m)) > placed.room + 16) continue;
      const double held = most_held(bytes, placed.room);
      if (!splits_ && held < m &&
          soonest_end(begin, end, behind_it, forward / safely, t / (safely * safely) - forward / safely, held) > seconds)
        continue;
      if (!updates_.empty() && !ends_in_time(o, first, last, seconds, begin, t)) continue;
      take(state, reached, p);
    }
  }

  // When a stage that may hold `held` microbatches ends at the soonest, of all begins in between: it waits for what is behind it.
  [[nodiscard]] double soonest_end(double begin, double latest, double behind, double forward, double backward,
                                   double held) const {
    const double m = microbatches_, t = forward + backward, all = all_.shortest - t;
    double soonest = infinity;
    for (const double where : {begin, latest, all - behind, all - (held - 1) * forward, all - (held - 1) * backward}) {
      const double from = std::clamp(where, begin, std::max(begin, latest));
      soonest = std::min(soonest, from + least_idle(std::max(behind, all - from), forward, backward, held, m));
    }
    return soonest + m * t * safely * safely;
  }

  // A stage that is not the first does not wait for what the first adds up.
  [[nodiscard]] bool ends_in_time(std::size_t open, int first, int last, double seconds, double begin, double t) {
    const auto f = as_size(first), stage = f * layers_ - f * (f + 1) / 2 + as_size(last) - 1;
    auto& update = updates_[open * (layers_ * (layers_ + 1) / 2) + stage];
    if (update == unknown) {
      const int p = open_[open];
      double end = std::max(0.0, costs_.update({first, last}, at(problem_.placements, p).where));
      if (reductions_) end += std::max(0.0, reductions_(p, first, last));
      update = static_cast<float>(end * (1 - 1e-6));
    }
    return begin * forward_share_ + microbatches_ * t + double{update} <= seconds + (first > 0 ? share_.seconds : 0);
  }

  const interop_problem& problem_;
  const stage_prices& table_;
  any_cost_model costs_;
  reductions reductions_;
  double forward_share_, shared_;
  int shared_layers_;  // of which no first stage holds all; 0: any may
  std::vector<shared_case> shares_;
  shared_case share_;
  const undivided_stages& undivided_;
  bool splits_;
  std::size_t layers_, classes_, counts_ = 0, runs_ = 1;
  int microbatches_ = 1;
  std::vector<std::size_t> stride_;            // by subcluster, of numbers of devices used
  std::vector<int> used_, open_;               // [number][subcluster]; placements
  std::vector<double> rents_, work_, earned_;  // by subcluster; of the layers before; by number
  double most_earned_ = 0;                     // by the devices of a pipeline
  std::vector<double> ways_out_;               // [class][kind of layer]
  std::vector<bool> ends_;                     // by number: whether a pipeline may end
  std::vector<std::int64_t> fullest_;          // by number: microbatches that a set does
  std::int64_t all_of_set_ = 0;
  // By number: what pipelines do at the least within the longest time in which no set does all, and at the most within the
  // shortest in which one may.
  std::vector<int> least_sooner_, most_later_;
  std::vector<float> updates_;         // [open placement][first][last]; empty: none count
  std::vector<double> left_, before_;  // [layer][number]; [layer][number][class of the last stage][zone]
  std::vector<double> latest_;         // the same, the longest; empty: one zone
  struct step {
    std::size_t from;
    int placement;
  };
  std::vector<step> steps_to_;  // the last one on the shortest way; empty: one zone
  std::size_t at_ = 0;          // the state at hand
  std::vector<interop_stage> traced_;
  way_range all_{0, infinity};  // a microbatch's way through all layers and back
  std::size_t zones_ = 1;       // of it
  double width_ = infinity;     // of a zone
  std::int64_t looked_at_ = 0, most_looked_at_ = 0, steps_ = 0, next_ask_ = 0;
};

}  // namespace hetsched::detail
