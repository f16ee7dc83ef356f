// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/detail/iteration_bound_test.cpp.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
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

  /// All outlive this. `forward_share`: at the least, of what a microbatch takes; `shared_s`: what the first stage takes at the
  /// end, at the least, for parameters that it shares. Of one pipeline; with `between`, of sets. `splits`: as of iteration_bound.
  ordered_bound(const interop_problem& problem, const stage_prices& table, const any_cost_model& costs, double forward_share,
                double shared_s, reductions between = {}, bool splits = false)
      : problem_(problem),
        table_(table),
        costs_(costs),
        reductions_(between),
        forward_share_(forward_share),
        shared_(shared_s),
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
  }

  /// Whether there are few enough states.
  [[nodiscard]] bool usable() const { return counts_ > 0 && !open_.empty(); }

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
    if (!reductions_ && !find_ways_left(high - shared_, go_on)) return known;
    const double narrow = std::max(gap, 0.001) * high;
    for (double middle = high; low < high; middle = low + (high - low) / 2) {
      const auto is_within = reductions_ ? set_within(microbatches, middle - shared_, go_on) : within(middle - shared_, go_on);
      if (!is_within) break;
      (*is_within ? high : low) = middle;
      if (high - low < narrow) break;
    }
    return low;
  }

 private:
  static constexpr double most_states = 2e6, safely = 1 - 1e-7;
  static constexpr float unknown = -1;
  static constexpr int most_rounds = 200;
  static constexpr std::size_t most_counts = 2000;  // of devices, for sets
  static constexpr std::int64_t most_looks = 150'000'000, most_looks_at_sets = 40'000'000;
  static constexpr std::size_t most_updates = 16'000'000;  // 64 MB

  [[nodiscard]] std::size_t index(std::size_t layer, std::size_t count, std::size_t last) const {
    return (layer * counts_ + count) * classes_ + last;
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

  [[nodiscard]] double way_between(int from, int to, int layer) const {
    const auto kind = problem_.kind_before(layer);
    double way = way_of(problem_.transfer(from, to)[kind]);
    if (at(problem_.class_subcluster, from) == at(problem_.class_subcluster, to))
      way = std::min(way, way_of(problem_.near_transfer(from, to)[kind]));
    return way;
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
    if (looked_at_ > (reductions_ ? most_looks_at_sets : most_looks)) return true;
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

  // Whether a pipeline may end within so long; none if that takes too long to tell.
  [[nodiscard]] std::optional<bool> within(double seconds, function_ref<bool()> go_on) {
    before_.assign((layers_ + 1) * counts_ * classes_, infinity);
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      if (layer == 0) {
        extend(seconds, 0, 0, -1, 0);
        continue;
      }
      for (std::size_t c = 0; c < counts_; ++c)
        for (std::size_t last = 0; last < classes_; ++last)
          if (const double way = before_[index(layer, c, last)]; way < infinity) {
            if (tired(go_on)) return std::nullopt;
            extend(seconds, layer, c, static_cast<int>(last), way);
          }
    }
    const auto last = before_.end() - static_cast<std::ptrdiff_t>(counts_ * classes_);
    return std::any_of(last, before_.end(), [](double way) { return way < infinity; });
  }

  // Whether pipelines on so many devices may end within the seconds of the last call of within().
  [[nodiscard]] bool ends_on(std::size_t count) const {
    const auto last = before_.begin() + static_cast<std::ptrdiff_t>(index(layers_, count, 0));
    return std::any_of(last, last + static_cast<std::ptrdiff_t>(classes_), [](double way) { return way < infinity; });
  }

  // Whether a set of two pipelines or more may end within so long; none if that takes too long to tell. What pipelines on so
  // many devices do at the most is known by their work first, and then, where a set needs it, by within().
  [[nodiscard]] std::optional<bool> set_within(int microbatches, double seconds, function_ref<bool()> go_on) {
    if (!(seconds > 0) || microbatches < 2) return false;
    if (counts_ > most_counts) return std::nullopt;
    least_sooner_.resize(counts_, 0);
    most_later_.resize(counts_, microbatches - 1);
    auto least = least_sooner_, most = most_later_;  // microbatches of a pipeline, by devices
    const auto can = [&](bool is_within) {
      (is_within ? most_later_ : least_sooner_) = is_within ? most : least;
      return is_within;
    };
    for (std::size_t c = 1; c < counts_; ++c) {
      const double by_work = work_[layers_] > 0 ? earned_[c] * seconds / work_[layers_] * (1 + tolerance::sums) : infinity;
      most[c] = static_cast<int>(std::min(by_work, double(most[c])));
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
      if (!find_ways_left(seconds, go_on)) return std::nullopt;
      if (!within(seconds, go_on)) return std::nullopt;
      for (std::size_t c = 1; c < counts_; ++c) {
        if (!counts(c)) continue;
        if (ends_on(c))
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
  void extend(double seconds, std::size_t layer, std::size_t count, int behind, double before) {
    const int first = static_cast<int>(layer);
    const double m = microbatches_;
    for (std::size_t o = 0; o < open_.size(); ++o) {
      const int p = open_[o];
      const auto& placed = at(problem_.placements, p);
      if (used(count, placed.subcluster) + placed.devices > at(problem_.devices, placed.subcluster)) continue;
      const auto next = count + as_size(placed.devices) * at(stride_, placed.subcluster);
      const double begin = before + (behind < 0 ? 0 : way_between(behind, placed.transfer_class, first) * safely);
      const double longest = (seconds - begin) / m, idle = most_earned_ - earned_[next];
      if (!(longest > 0) || idle < 0) continue;
      for (int last = first + 1; last <= problem_.layers; ++last) {
        const double t = table_.time(p, first, last) * safely;
        if (t > longest && table_.additive()) break;
        ++looked_at_;
        const double behind_it = way_out(placed.transfer_class, last) + left_[as_size(last) * counts_ + next],
                     passage = passage_of(p, first, last, t), there = begin + passage;
        auto& known = before_[index(as_size(last), next, as_size(placed.transfer_class))];
        if (t > longest || there >= known || there + behind_it > seconds) continue;
        if (work_[layers_] - work_[as_size(last)] > idle * (seconds - there) / m * (1 + tolerance::sums)) continue;
        const double in_flight = std::max(1.0, std::ceil(m * (passage + behind_it) / (seconds - begin) * safely));
        const auto bytes = table_.memory(p, first, last);
        if (bytes.at(std::min(in_flight, m)) > placed.room + 16) continue;
        const double held = most_held(bytes, placed.room), forward = table_.forward(p, first, last) / safely;
        if (!splits_ && held < m &&
            begin + m * t + least_idle(behind_it, forward, t / (safely * safely) - forward, held, m) > seconds)
          continue;
        if (!updates_.empty() && !ends_in_time(o, first, last, seconds, begin, t)) continue;
        known = there;
      }
    }
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
    return begin * forward_share_ + microbatches_ * t + double{update} <= seconds + (first > 0 ? shared_ : 0);
  }

  const interop_problem& problem_;
  const stage_prices& table_;
  any_cost_model costs_;
  reductions reductions_;
  double forward_share_, shared_;
  bool splits_;
  std::size_t layers_, classes_, counts_ = 0;
  int microbatches_ = 1;
  std::vector<std::size_t> stride_;            // by subcluster, of numbers of devices used
  std::vector<int> used_, open_;               // [number][subcluster]; placements
  std::vector<double> rents_, work_, earned_;  // by subcluster; of the layers before; by number
  double most_earned_ = 0;                     // by the devices of a pipeline
  std::vector<double> ways_out_;               // [class][kind of layer]
  std::vector<std::int64_t> fullest_;          // by number: microbatches that a set does
  std::int64_t all_of_set_ = 0;
  // By number: what pipelines do at the least within the longest time in which no set does all, and at the most within the
  // shortest in which one may.
  std::vector<int> least_sooner_, most_later_;
  std::vector<float> updates_;         // [open placement][first][last]; empty: none count
  std::vector<double> left_, before_;  // [layer][number]; [layer][number][class of the last stage]
  std::int64_t looked_at_ = 0, steps_ = 0, next_ask_ = 0;
};

}  // namespace hetsched::detail
