// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/detail/iteration_bound_test.cpp.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/network/transfer.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/planners/interop_dp/detail/column_simplex.hpp>
#include <hetsched/planners/interop_dp/detail/masters.hpp>
#include <hetsched/planners/interop_dp/detail/ordered_bound.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>
#include <hetsched/planners/interop_dp/detail/work_bound.hpp>

namespace hetsched::detail {

/// Bounds the iteration from below over all pipelines of a problem, in any order of devices, and under every schedule that leaves
/// forwards and backwards whole: a microbatch comes to stage s and goes back from it in L_s = sum over the stages before of
/// (t + 2c), and in between the stage computes all m of them, so an iteration takes at least L_s + m t_s for every s. As a stage
/// holds each of them for the time R_s that it takes to the end and back, it holds m R_s / (T - L_s) of them at once or more.
/// Where schedules may split backwards, weight gradients may come last, and nobody waits for them: then L_s and R_s are the way
/// forth alone, of forwards and c.
///
/// Whether a set of pipelines may end within T is a linear program over ways to run a stage: a placement and how many layers of
/// each kind it holds, by the zone of L_s that it begins in. Devices are shared out by rents r, in microbatches: all devices cost
/// M; if every pipeline of m microbatches that may end within T costs m or more, for every m, no set does M.
/// Layers that cost the same everywhere are of one kind; what order they come in is not looked at.
class iteration_bound {
 public:
  /// What a stage takes at least to add up its gradients with those of another pipeline, by placement, first and last layer.
  using reductions = function_ref<double(int, int, int)>;

  /// All outlive this. Stages' updates count as the model answers for them. Of one pipeline; with `reductions`, of two or more.
  /// `splits`: schedules may split backwards.
  iteration_bound(const interop_problem& problem, const stage_prices& table, const cluster& hardware, const any_cost_model& costs,
                  reductions between = {}, bool splits = false)
      : problem_(problem),
        table_(table),
        costs_(costs),
        reductions_(between),
        ends_(between || table.updates().any()),
        splits_(splits) {
    find_kinds();
    if (!usable_) return;
    find_contents();
    least_way_.assign(as_size(problem.classes()), infinity);
    for (int a = 0; a < problem.classes(); ++a)
      for (int b = 0; b < problem.classes(); ++b)
        for (int k = 0; k < problem.kinds; ++k)
          for (const auto* way : {problem.transfer(a, b), problem.near_transfer(a, b)})
            at(least_way_, a) = std::min(at(least_way_, a), way_of(way[k]));
    for (auto& w : least_way_) {
      if (!(w < longest_time_s)) w = 0;  // a last stage sends nothing
      longest_way_ = std::max(longest_way_, w);
    }
    updates_.assign(problem.placements.size() * contents_.size(), ends_ ? unknown : 0.0f);
    for (std::size_t p = 0; p < problem.placements.size(); ++p) {
      const auto& placed = problem.placements[p];
      if (placed.barred || (placed.dominated && !ends_ && !splits_)) continue;
      open_.push_back(static_cast<int>(p));
      const double all = table.time(static_cast<int>(p), 0, problem.layers);
      if (all > 0) forward_share_ = std::min(forward_share_, least_forward_share(static_cast<int>(p)));
    }
    for (const auto* prices : {&problem.prices, &problem.near_prices})
      for (const auto& way : *prices)
        if (way.round_trip > 0 && way.round_trip < longest_time_s)
          forward_share_ = std::min(forward_share_, 1 - way.slower_way / way.round_trip);
    if (splits_)
      forward_share_ = 1;  // ways are of forwards already
    else
      shared_ = least_shared(hardware);
    find_undivided();
    leave_out_dominated();
  }

  /// Whether anything can be said: layers of too many kinds in too long a chain are left alone.
  [[nodiscard]] bool usable() const { return usable_ && !open_.empty(); }

  /// A lower bound, in seconds, on iterations of that many microbatches; at least `known`, a bound already. The search ends where
  /// the bound is within `gap` of `reached`, an iteration that is known, or at `enough`, after `most_programs` linear programs,
  /// or where go_on() is false. Requires: reached < infinity. Complexity: a program takes some ten or hundred passes over
  /// placements and lengths of stages.
  [[nodiscard]] double bound(int microbatches, double known, double reached, double gap, std::int64_t most_programs,
                             function_ref<bool()> go_on, double enough = infinity) {
    if (!usable() || !(reached < infinity)) return known;
    if (reductions_ && microbatches < 2) return infinity;
    const auto last = programs_ + most_programs, last_look = looked_at_ + (table_.additive() ? most_looks : most_looks / 75);
    const auto may_go_on = [&] { return programs_ < last && looked_at_ < last_look && go_on(); };
    std::int64_t last_of_test = 0;  // no time within which there is a plan takes all
    auto ask = [&] { return programs_ < last_of_test && may_go_on(); };
    const auto out_of_reach = [&](double seconds) {
      last_of_test = programs_ + most_programs / 4;
      return seconds > 0 && !within(seconds - shared_.seconds, ask);
    };
    microbatches_ = microbatches;
    pool_.clear();
    double low = std::max(0.0, known);
    const double aim = std::min(reached * (1 - gap), enough);
    const double narrow_stride = std::max(gap, 0.003) * aim;
    double missed = infinity;
    // Upwards, as rents get better on the way; in strides that grow where they hold. What is enough is mostly in reach of one
    // pipeline, which needs no rents to speak of, as little as devices of one kind do.
    const bool bare = !reductions_ || problem_.devices.size() == 1;
    for (double stride = std::max(narrow_stride, (enough > aim ? 0.1
                                                  : bare       ? 1
                                                               : 0.25) *
                                                     (aim - low));
         low < aim && may_go_on();) {
      const double next = std::min(low + stride, aim);
      if (out_of_reach(next)) {
        low = next;
        stride = std::min(1.6 * stride, 0.5 * (missed - low));
      } else {
        missed = next;
        stride *= 0.4;
      }
      if (missed < infinity && stride < narrow_stride) break;
    }
    return low;
  }

  /// The same by ordered_bound, where there are few enough states.
  [[nodiscard]] double whole_stages(int microbatches, double known, double reached, double gap, function_ref<bool()> go_on,
                                    double enough) const {
    // Of too many kinds of layers the share of forwards was not looked for.
    return ordered_bound(problem_, table_, costs_, usable_ ? forward_share_ : 0, shared_, undivided_, reductions_, splits_)
        .bound(microbatches, known, reached, gap, enough, go_on);
  }

  /// Pipelines as of ordered_bound::nearly_within.
  [[nodiscard]] std::vector<std::vector<interop_stage>> nearly_within(int microbatches, double seconds,
                                                                      function_ref<bool()> go_on) const {
    return ordered_bound(problem_, table_, costs_, usable_ ? forward_share_ : 0, shared_, undivided_, {}, splits_)
        .nearly_within(microbatches, seconds, go_on);
  }

  /// Whether no plan takes so long or less, as far as that shows after `most_programs` linear programs.
  [[nodiscard]] bool out_of_reach(int microbatches, double seconds, std::int64_t most_programs, function_ref<bool()> go_on) {
    if (!usable()) return false;
    if (reductions_ && microbatches < 2) return true;
    microbatches_ = microbatches;
    pool_.clear();
    const auto last = programs_ + most_programs, last_look = looked_at_ + most_looks / 15;
    auto ask = [&] { return programs_ < last && looked_at_ < last_look && go_on(); };
    return seconds > 0 && !within(seconds - shared_.seconds, ask);
  }

 private:
  struct content {
    layer_range layers;                        // one of the intervals that hold this
    std::vector<std::pair<int, int>> of = {};  // kind of layer, how many
  };
  struct pooled {
    double seconds;  // within which it may be
    int microbatches;
    std::vector<double> devices;  // by subcluster
  };
  struct program {
    double seconds;
    int fewest, most;       // microbatches
    double fastest, reach;  // a microbatch's way there and back
  };
  struct choice {
    double reduced = 0, cost = 0;
    int placement = -1, zone = 0;
    std::size_t what = 0;
  };
  struct cheapest {
    double cost = 0;  // at the least: rent, and a microbatch for each that it does less than the most
    double rent = 0;  // of these devices
    std::vector<double> devices = {};
  };

  static constexpr float unknown = -1;
  static constexpr int most_zones = 12, most_rounds = 60, most_kinds = 72, most_steps = 600;
  static constexpr std::size_t most_recent = 200;
  static constexpr std::int64_t most_looks = 150'000'000;  // at ways to run a stage
  static constexpr double narrow = 1.3;                    // ratio of a range of ways there and back
  static constexpr double safely = 1 - 1e-7;
  static constexpr double unlike = 1e-6;  // of a reduction of all layers

  [[nodiscard]] double least_forward_share(int p) const {
    double least = 1;
    for (int l = 0; l < problem_.layers; ++l)
      if (const double t = table_.time(p, l, l + 1); t > 0) least = std::min(least, table_.forward(p, l, l + 1) / t);
    return table_.additive() ? std::max(0.0, least) : 0;
  }

  // What stages of different layers that share parameters take at the least, the first one among them.
  [[nodiscard]] shared_parameters least_shared(const cluster& hardware) const {
    constexpr std::size_t few = 200;
    shared_parameters most;
    if (open_.empty() || open_.size() > few) return most;
    std::vector<std::vector<parameter_copy>> copies;  // by open placement; of the same layers
    std::vector<placement> unlike_ones;               // what recomputation and ZeRO make no difference to
    for (const int p : open_) {
      const auto& where = at(problem_.placements, p).where;
      copies.push_back(costs_.copies(where));
      const placement bare{where.mesh, where.degrees};
      if (std::find(unlike_ones.begin(), unlike_ones.end(), bare) == unlike_ones.end()) unlike_ones.push_back(bare);
    }
    for (std::size_t pair = 0; pair < copies.front().size(); ++pair) {
      const auto& c = copies.front()[pair];
      if (std::min(c.owner, c.layer) != 0) continue;
      auto bytes = c.reduction_bytes;
      for (const auto& of : copies) bytes = std::min(bytes, of[pair].reduction_bytes);
      if (bytes == 0) continue;
      const auto kinds = problem_.devices.size();
      shared_parameters own{infinity, std::max(c.owner, c.layer) + 1, std::vector<double>(kinds * kinds, infinity)};
      for (const auto& a : unlike_ones)
        for (const auto& b : unlike_ones) {
          auto& least = own.between[as_size(a.mesh.subcluster) * kinds + as_size(b.mesh.subcluster)];
          least = std::min(least, shared_reduction_s(hardware, a, b, static_cast<double>(bytes)) * safely);
          own.seconds = std::min(own.seconds, least);
        }
      if (own.seconds < longest_time_s && own.seconds > most.seconds) most = std::move(own);
    }
    return most;
  }

  // First stages that hold all layers that share parameters, and what no other first stage holds then.
  void find_undivided() {
    if (shared_.layers == 0) return;
    const auto end = [&](int p, layer_range layers) { return end_of(p, layers); };
    undivided_ = undivided_stages(problem_, table_, open_, shared_.layers, end);
    for (std::size_t c = 0; c < contents_.size(); ++c) {
      const auto holds = [&](int layer) {
        return std::any_of(contents_[c].of.begin(), contents_[c].of.end(),
                           [&](const auto& k) { return k.first == at(kind_, layer); });
      };
      undivided_contents_[c] = holds(0) && holds(shared_.layers - 1);
    }
  }

  // Leaves placements out for which others stand, which are no worse in anything but in what they add up or update at the end: of
  // that the least of all for which they stand counts.
  void leave_out_dominated() {
    stands_for_.resize(problem_.placements.size());
    const auto no_worse = [&](int a, int b) {
      const auto &one = at(problem_.placements, a), &other = at(problem_.placements, b);
      if (one.subcluster != other.subcluster || one.devices > other.devices || one.room < other.room ||
          at(least_way_, one.transfer_class) > at(least_way_, other.transfer_class) || !table_.no_worse(a, b))
        return false;
      for (int l = 0; l < problem_.layers; ++l) {
        const double forward = table_.forward(b, l, l + 1) - table_.forward(a, l, l + 1);
        if (forward < 0 || table_.time(b, l, l + 1) - table_.time(a, l, l + 1) < forward) return false;
      }
      return true;
    };
    std::vector<int> left;
    for (const int p : open_) {
      const auto better =
          !table_.additive() ? left.end() : std::find_if(left.begin(), left.end(), [&](int q) { return no_worse(q, p); });
      if (better != left.end()) {
        at(stands_for_, *better).push_back(p);
        continue;
      }
      at(stands_for_, p) = {p};
      if (table_.additive())
        std::erase_if(left, [&](int q) {
          if (!no_worse(p, q)) return false;
          auto& all = at(stands_for_, p);
          all.insert(all.end(), at(stands_for_, q).begin(), at(stands_for_, q).end());
          return true;
        });
      left.push_back(p);
    }
    open_ = std::move(left);
  }

  void find_kinds() {
    kind_.resize(as_size(problem_.layers));
    std::vector<int> first;
    const auto close = [](double a, double b) {
      return std::abs(a - b) <= tolerance::sums * std::max(std::abs(a), std::abs(b)) + 1e-300;
    };
    // Layers that share parameters cost less where they are together: none is like another.
    std::set<int> apart;
    if (!problem_.placements.empty())
      for (const auto& c : costs_.copies(problem_.placements.front().where)) apart.insert({c.owner, c.layer});
    // Of small layers, the difference of two sums has few digits.
    const auto reduced_alike = [&](int p, int a, int b) {
      if (!reductions_) return true;
      const double all = reductions_(p, 0, problem_.layers);
      return std::abs(reductions_(p, a, a + 1) - reductions_(p, b, b + 1)) <= unlike * all / problem_.layers;
    };
    const auto alike = [&](int a, int b) {
      if (!table_.additive() || apart.count(a) + apart.count(b) > 0) return a == b;
      for (std::size_t q = 0; q < problem_.placements.size(); ++q) {
        const int p = static_cast<int>(q);
        const auto x = table_.memory(p, a, a + 1), y = table_.memory(p, b, b + 1);
        if (!close(table_.time(p, a, a + 1), table_.time(p, b, b + 1)) ||
            !close(table_.forward(p, a, a + 1), table_.forward(p, b, b + 1)) || !close(x.fixed, y.fixed) ||
            !close(x.each, y.each) || !close(table_.temporary(p, a, a + 1), table_.temporary(p, b, b + 1)) ||
            !close(table_.updates()(p, a, a + 1), table_.updates()(p, b, b + 1)) || !reduced_alike(p, a, b))
          return false;
      }
      return true;
    };
    for (int l = 0; l < problem_.layers; ++l) {
      const auto known = std::find_if(first.begin(), first.end(), [&](int f) { return alike(f, l); });
      at(kind_, l) = static_cast<int>(known - first.begin());
      if (known == first.end()) first.push_back(l);
    }
    layers_of_kind_.assign(first.size(), 0);
    for (const int k : kind_) ++at(layers_of_kind_, k);
    usable_ = first.size() <= as_size(most_kinds);
  }

  void find_contents() {
    std::set<std::vector<int>> known;
    std::vector<int> counts(layers_of_kind_.size());
    for (int length = 1; length <= problem_.layers; ++length) {
      of_length_.push_back(contents_.size());
      std::fill(counts.begin(), counts.end(), 0);
      for (int l = 0; l < length; ++l) ++at(counts, at(kind_, l));
      for (int first = 0;; ++first) {
        if (known.insert(counts).second) {
          auto& made = contents_.emplace_back(content{{first, first + length}});
          for (std::size_t k = 0; k < counts.size(); ++k)
            if (counts[k] > 0) made.of.push_back({static_cast<int>(k), counts[k]});
        }
        if (first + length == problem_.layers) break;
        --at(counts, at(kind_, first));
        ++at(counts, at(kind_, first + length));
      }
      known.clear();
    }
    of_length_.push_back(contents_.size());
    worth_.resize(contents_.size());
    undivided_contents_.resize(contents_.size());
    most_worth_.resize(as_size(problem_.layers));
  }

  // Whether a set may end within so long, as far as is known.
  [[nodiscard]] bool within(double seconds, function_ref<bool()> go_on) {
    const auto kinds = problem_.devices.size();
    std::vector<double> rents = rents_;
    if (rents.empty()) {
      for (std::size_t k = 0; k < kinds; ++k) {
        double fastest = 0;
        for (const int p : open_)
          if (const auto& placed = at(problem_.placements, p); placed.subcluster == static_cast<int>(k))
            fastest = std::max(fastest, 1 / (table_.time(p, 0, problem_.layers) * placed.devices));
        rents.push_back(std::min(fastest, 1e30));
      }
    }
    const double wanted = microbatches_;
    const auto scale = [&] {
      double all = 0;
      for (std::size_t k = 0; k < kinds; ++k) all += rents[k] * problem_.devices[k];
      if (!(all > 0)) return false;
      for (auto& r : rents) r *= wanted / all;
      return true;
    };
    for (int round = 0; round < most_rounds; ++round) {
      if (!scale()) return true;
      // A pipeline that costs less than it does, or none.
      if (!breaks(seconds, rents, go_on)) {
        rents_ = rents;
        return false;
      }
      if (!go_on()) {
        rents_ = rents;
        return true;
      }
      // To show that a set falls short by less takes many programs more.
      if (packed(seconds, false).value >= wanted * (1 - 0.003)) return true;
      const auto guessed = packed(seconds, true);
      // Most of the way to the prices of what is known: they jump.
      for (std::size_t k = 0; k < kinds; ++k) {
        const double target = guessed.prices[k] * wanted / guessed.value;
        rents[k] = round < 2 ? target : 0.2 * rents[k] + 0.8 * target;
      }
    }
    return true;
  }

  // What pipelines of the pool do together at the most, in fractions: those that end within `seconds`; with `all`, which proves
  // nothing, those of other times too, as if they did as many more or fewer.
  [[nodiscard]] relaxed_packing packed(double seconds, bool all) const {
    packing given{.items = {}, .room = {problem_.devices.begin(), problem_.devices.end()}};
    for (const auto& p : pool_)
      if (all || p.seconds <= seconds) {
        const double times = all ? (seconds + shared_.seconds) / (p.seconds + shared_.seconds) : 1;
        given.items.push_back({p.microbatches * times, p.devices});
      }
    return solve_relaxed(given);
  }

  // Whether a pipeline may end within `seconds` that costs less than the microbatches that it does; it goes into the pool. Ranges
  // of microbatches, and of what the first of them takes there and back, are halved where that is not plain. A pipeline does no
  // more microbatches than any of its stages can, and so no more than any mean of what they can: see share_out_microbatches.
  [[nodiscard]] bool breaks(double seconds, const std::vector<double>& rents, function_ref<bool()> go_on) {
    struct range {
      int low, high;
      double shortest, longest;  // way there and back
      double most = 0;           // microbatches per rent
      cheapest by = {};
    };
    std::vector<range> open;
    std::size_t found = 0;
    const auto most_found = problem_.devices.size();
    const auto smaller = [](const range& a, const range& b) { return a.most < b.most; };
    const auto ways = [&](const range& r) { return r.longest / std::max(r.shortest, 1e-3 * seconds); };
    const auto halves_ways = [&](const range& r) { return ways(r) > narrow && ways(r) >= static_cast<double>(r.high) / r.low; };
    const auto add = [&](range r) {
      r.by = cheapest_pipeline({seconds, r.low, r.high, r.shortest, r.longest}, rents, halves_ways(r));
      r.most = r.by.cost < infinity ? r.high / std::max(r.by.cost, 1e-300) : 0;
      if (!(r.most > 1)) return;
      open.push_back(std::move(r));
      std::push_heap(open.begin(), open.end(), smaller);
    };
    const int fewest = reductions_ ? 1 : microbatches_, most = reductions_ ? microbatches_ - 1 : microbatches_;
    undivided_.for_each_within(seconds + shared_.seconds, most, [&](int p, int m) {
      const auto& placed = at(problem_.placements, p);
      if (m < fewest || at(rents, placed.subcluster) * placed.devices >= m) return;
      auto& own = pool_.emplace_back(pooled{seconds, m, std::vector<double>(rents.size(), 0.0)});
      at(own.devices, placed.subcluster) = placed.devices;
      ++found;
    });
    const double least = seconds > 0 ? least_latency(seconds, fewest) : infinity;
    if (!(least * safely <= seconds)) return found > 0;
    share_out_microbatches(rents);
    add({fewest, most, least, seconds});
    while (!open.empty()) {
      std::pop_heap(open.begin(), open.end(), smaller);
      const auto r = std::move(open.back());
      open.pop_back();
      if (halves_ways(r)) {
        const double middle = std::sqrt(std::max(r.shortest, 1e-3 * seconds) * r.longest);
        add({r.low, r.high, r.shortest, middle});
        add({r.low, r.high, middle, r.longest});
      } else if (r.low / std::max(r.by.rent, 1e-300) > 1) {
        // Some more at once: rents of many kinds of devices need as many.
        pool_.push_back({seconds, r.low, r.by.devices});
        if (++found > most_found) return true;
        if (r.low < r.high) add({r.low + 1, r.high, r.shortest, r.longest});
      } else {
        const int middle = std::max(r.low, std::min(r.high - 1, static_cast<int>(std::sqrt(double{1} * r.low * r.high))));
        add({r.low, middle, r.shortest, r.longest});
        add({middle + 1, r.high, r.shortest, r.longest});
      }
      if (!go_on()) return true;
    }
    return found > 0;
  }

  // Each content's share of the microbatches that a pipeline does: any that add up to 1 will do. By what layers cost where they
  // are cheapest, pipelines whose stages can all do as many as each other are the cheapest ones, and nothing is lost on them.
  void share_out_microbatches(const std::vector<double>& rents) {
    std::vector<double> of_kind(layers_of_kind_.size(), infinity);
    double all = 0;
    for (std::size_t k = 0; k < of_kind.size(); ++k) {
      const int layer = static_cast<int>(std::find(kind_.begin(), kind_.end(), static_cast<int>(k)) - kind_.begin());
      for (const int p : open_) {
        const auto& placed = at(problem_.placements, p);
        of_kind[k] = std::min(of_kind[k], at(rents, placed.subcluster) * placed.devices * table_.time(p, layer, layer + 1));
      }
      all += of_kind[k] * layers_of_kind_[k];
    }
    const bool known = all > 0 && all < infinity;
    shares_.assign(contents_.size(), 0.0);
    for (std::size_t c = 0; c < contents_.size(); ++c)
      for (const auto& [kind, n] : contents_[c].of)
        shares_[c] += known ? at(of_kind, kind) * n / all : double(n) / problem_.layers;
  }

  // The least cost of a pipeline, in fractions of stages. Where that is no less than the most microbatches: any bound on it that
  // is no less, without devices. `roughly`: where it is less, any cost that is less, without devices.
  [[nodiscard]] cheapest cheapest_pipeline(const program& now, const std::vector<double>& rents, bool roughly) {
    const double enough = -1e-10 * begin(now, rents);  // reduced costs above this count as none
    std::vector<choice> best(problem_.devices.size());
    double least_reduced = -infinity;  // of all ways to run a stage, at the last prices
    for (int steps = 0; steps < most_steps; ++steps) {
      for (int slacks = 0; slacks < 2 * zones_ && simplex_.enter_slack(); ++slacks) {
      }
      if (const double cost = simplex_.cost(); roughly && cost < now.most * safely) return {.cost = cost};
      price_kinds(now.seconds);
      // What other programs took, and what was nearly taken, first.
      std::fill(best.begin(), best.end(), choice{enough});
      for (const auto* ways : {&recent_, &tried_})
        for (const auto& [p, what] : *ways) offer(now, p, what, rents, at(best, at(problem_.placements, p).subcluster));
      if (enter_any(now, best)) continue;
      if (tried_.size() > most_recent) tried_.clear();
      std::fill(best.begin(), best.end(), choice{enough});
      for (const int p : open_) offer_all(now, p, rents, at(best, at(problem_.placements, p).subcluster));
      const double least = std::min_element(best.begin(), best.end(), cheaper)->reduced;
      if (const double cost = least_cost(least); cost >= now.most) return {.cost = cost};
      if (enter_any(now, best, &recent_)) continue;
      least_reduced = least;
      break;
    }
    cheapest found;
    found.cost = std::max(0.0, least_cost(least_reduced));
    found.devices.assign(problem_.devices.size(), 0.0);
    simplex_.for_each_used([&](int column_index, double often) {
      const auto& placed = at(problem_.placements, at(entered_, column_index));
      at(found.devices, placed.subcluster) += often * placed.devices;
    });
    for (std::size_t k = 0; k < rents.size(); ++k) found.rent += rents[k] * found.devices[k];
    return found;
  }

  // A program without stages. Returns what it costs to miss a layer.
  double begin(const program& now, const std::vector<double>& rents) {
    ++programs_;
    const auto& [seconds, m, most, fastest, reach] = now;
    const double longest = seconds / m;  // stage
    zones_ = m == 1 ? 1 : static_cast<int>(std::clamp(reach / longest, 1.0, double{most_zones}));
    width_ = reach / zones_;
    std::vector<double> wanted;
    for (const int n : layers_of_kind_) wanted.push_back(n);
    for (int z = 0; z < zones_; ++z) {
      const double end = (z + 1) * width_;
      wanted.push_back(z + 1 == zones_ ? (reach + longest_way_) / seconds : (end + (seconds - end) / m + longest_way_) / seconds);
    }
    double dearest = 0;
    for (std::size_t k = 0; k < rents.size(); ++k) dearest = std::max(dearest, rents[k] * problem_.devices[k]);
    const double penalty = 10 * dearest + microbatches_;
    simplex_.begin(std::move(wanted), static_cast<int>(layers_of_kind_.size()), penalty);
    entered_.clear();
    tried_.clear();
    std::sort(recent_.begin(), recent_.end());
    recent_.erase(std::unique(recent_.begin(), recent_.end()), recent_.end());
    if (recent_.size() > most_recent) recent_.clear();
    return penalty;
  }

  [[nodiscard]] static bool cheaper(const choice& a, const choice& b) { return a.reduced < b.reduced; }

  // Takes those that help into the program, the cheapest first; into `known`, too. Returns whether any did.
  bool enter_any(const program& now, std::vector<choice>& best, std::vector<std::pair<int, std::size_t>>* known = nullptr) {
    std::sort(best.begin(), best.end(), cheaper);
    bool entered = false;
    for (const auto& b : best) {
      if (b.placement < 0 || !enter(now, b)) continue;
      entered = true;
      if (known) known->push_back({b.placement, b.what});
    }
    return entered;
  }

  // Takes a way to run a stage into the program. Returns false where it would not help.
  bool enter(const program& now, const choice& c) {
    const auto& placed = at(problem_.placements, c.placement);
    const auto& what = contents_[c.what];
    const int kinds = static_cast<int>(layers_of_kind_.size());
    column_.cost = c.cost;
    column_.entries.clear();
    for (const auto& [kind, n] : what.of) column_.entries.push_back({kind, static_cast<double>(n)});
    const double taken = passage_of(c.placement, what.layers) + at(least_way_, placed.transfer_class);
    for (int z = c.zone; z < zones_; ++z) column_.entries.push_back({kinds + z, taken / now.seconds});
    if (!simplex_.enter(column_)) return false;
    entered_.push_back(c.placement);
    return true;
  }

  // What a pipeline costs at the least where no stage has a smaller reduced cost, of at most 0: none has more stages than layers.
  [[nodiscard]] double least_cost(double least_reduced) const {
    return (simplex_.dual_cost() + problem_.layers * least_reduced) * safely;
  }

  // Prices of kinds of layers and zones, and what contents are worth.
  void price_kinds(double seconds) {
    const auto kinds = layers_of_kind_.size();
    const auto& prices = simplex_.prices();
    // A zone's price is that of all that begin in it or before.
    zone_price_.assign(as_size(zones_) + 1, 0.0);
    for (int z = zones_; z-- > 0;)
      zone_price_[as_size(z)] = zone_price_[as_size(z) + 1] + std::max(0.0, -prices[kinds + as_size(z)]) / seconds;
    double most = 0;
    for (std::size_t length = 0; length + 1 < of_length_.size(); ++length) {
      for (auto c = of_length_[length]; c < of_length_[length + 1]; ++c) {
        double sum = 0;
        for (const auto& [kind, n] : contents_[c].of) sum += at(prices, kind) * n;
        worth_[c] = sum;
        most = std::max(most, sum);
      }
      most_worth_[length] = most;
    }
  }

  [[nodiscard]] double time_of(int p, layer_range layers) const { return table_.time(p, layers.first, layers.last) * safely; }
  // Of that, what a microbatch's way takes.
  [[nodiscard]] double passage_of(int p, layer_range layers) const {
    return splits_ ? table_.forward(p, layers.first, layers.last) * safely : time_of(p, layers);
  }
  [[nodiscard]] double way_of(const transfer_price& price) const {
    return splits_ ? price.round_trip - price.slower_way : price.round_trip;
  }

  // A way to run a stage, if its reduced cost is less than that of `own`. Returns whether it is.
  bool offer(const program& now, int p, std::size_t c, const std::vector<double>& rents, choice& own) {
    if (undivided_contents_[c]) return false;
    const auto& placed = at(problem_.placements, p);
    const double rent = at(rents, placed.subcluster) * placed.devices;
    if (!(rent - worth_[c] < own.reduced)) return false;
    const double t = time_of(p, contents_[c].layers);
    // The last zone is the cheapest.
    const double taken = passage_of(p, contents_[c].layers) + at(least_way_, placed.transfer_class);
    if (!(rent - worth_[c] + at(zone_price_, zones_ - 1) * taken < own.reduced)) return false;
    double latest = now.seconds - now.fewest * t;
    auto& update = updates_[as_size(p) * contents_.size() + c];
    for (bool asked = update != unknown;; asked = true) {
      if (update > 0) {
        // A stage that is not the first does not wait for what the first adds up.
        const double free = latest + shared_.seconds - double{update};
        latest = free < 0 ? -1 : forward_share_ > 0 ? std::min(latest, free / forward_share_) : latest;
      }
      if (latest < 0) return false;
      const auto best = in_best_zone(now, p, c, rent, t, latest, own.reduced);
      if (best.placement < 0) return false;
      if (asked) {
        own = best;
        return true;
      }
      double end = infinity;
      for (const int q : at(stands_for_, p)) end = std::min(end, end_of(q, contents_[c].layers));
      update = static_cast<float>(end * (1 - 1e-6));
    }
  }

  // What a stage updates and adds up at the end, at the least.
  [[nodiscard]] double end_of(int p, layer_range layers) const {
    double end = std::max(0.0, costs_.update(layers, at(problem_.placements, p).where));
    if (reductions_)
      end += std::max(0.0, reductions_(p, layers.first, layers.last) - unlike * reductions_(p, 0, problem_.layers));
    return end;
  }

  // The same in the best of the zones that it may begin in: later ones take less time from others, and in earlier ones the stage
  // can do more microbatches. No placement if none is better than `least`.
  [[nodiscard]] choice in_best_zone(const program& now, int p, std::size_t c, double rent, double t, double latest,
                                    double least) const {
    choice best{least};
    const double taken = passage_of(p, contents_[c].layers) + at(least_way_, at(problem_.placements, p).transfer_class),
                 pace = 1 / std::max(t, 1e-300);
    const auto missed_in = [&](int zone) { return std::max(0.0, now.most - (now.seconds - zone * width_) * pace); };
    const int last = std::min(zones_ - 1, static_cast<int>(std::min(latest, now.reach) / width_));
    // The last zone is the cheapest, and in the first the fewest microbatches are missed.
    if (rent + shares_[c] * missed_in(0) - worth_[c] + at(zone_price_, last) * taken >= least) return best;
    for (int zone = last; zone >= 0; --zone) {
      const double missed = missed_in(zone), cost = rent + shares_[c] * missed;
      const double reduced = cost - worth_[c] + at(zone_price_, zone) * taken;
      if (reduced < best.reduced && fits(p, contents_[c].layers, t, zone, now)) best = {reduced, cost, p, zone, c};
      if (missed == 0) break;
    }
    return best;
  }

  // All ways to run a stage on a placement, the longest first: shorter ones are worth less.
  void offer_all(const program& now, int p, const std::vector<double>& rents, choice& own) {
    const auto& placed = at(problem_.placements, p);
    const double rent = at(rents, placed.subcluster) * placed.devices, longest = now.seconds / now.fewest;
    // The greatest length of which some content is not too long; longer ones take longer.
    int low = 0, high = problem_.layers + 1;
    while (table_.additive() && high - low > 1) {
      const int middle = (low + high) / 2;
      bool any = false;
      for (auto c = at(of_length_, middle - 1); !any && c < at(of_length_, middle); ++c)
        any = time_of(p, contents_[c].layers) <= longest;
      (any ? low : high) = middle;
    }
    if (!table_.additive()) low = problem_.layers;
    for (int length = low; length >= 1 && rent - at(most_worth_, length - 1) < own.reduced; --length) {
      const auto first = at(of_length_, length - 1), last = at(of_length_, length);
      looked_at_ += static_cast<std::int64_t>(last - first);
      for (auto c = first; c < last; ++c)
        if (rent - worth_[c] < own.reduced && offer(now, p, c, rents, own)) tried_.push_back({p, c});
    }
  }

  // Whether a stage that begins in a zone may hold what it must.
  [[nodiscard]] bool fits(int p, layer_range layers, double t, int zone, const program& now) const {
    const double m = now.fewest, begin = zone * width_, pace = table_.forward(p, layers.first, layers.last) * safely;
    // All microbatches follow the first one's way, or go ahead of the last one's.
    if (now.fastest + (m - 1) * (splits_ ? pace : std::max(pace, t - pace)) > now.seconds) return false;
    const double latest = std::min(now.seconds - m * t, (zone + 1) * width_);
    const double behind = std::max(passage_of(p, layers), now.fastest - latest);
    const double in_flight = std::max(1.0, std::ceil(m * behind / (now.seconds - begin) * safely));
    const auto held = table_.memory(p, layers.first, layers.last);
    const double room = at(problem_.placements, p).room;
    if (held.at(std::min(in_flight, m)) > room + 16) return false;
    if (splits_) return true;
    const double most = most_held(held, room), all = t / safely;
    if (!(most < m)) return true;
    const double forward = std::min(all, table_.forward(p, layers.first, layers.last) / safely),
                 backward = all / safely - forward;
    // The later it begins, the less is behind it: between these begins, the end moves evenly.
    const double none_behind = now.fastest - all;
    for (const double where :
         {begin, latest, none_behind - (most - 1) * forward, none_behind - (most - 1) * backward, none_behind}) {
      const double from = std::clamp(where, begin, std::max(begin, latest));
      if (from + m * t + least_idle(none_behind - from, forward, backward, most, m) <= now.seconds) return true;
    }
    return false;
  }

  // What a microbatch takes through all layers and back at the least, by stages of at most seconds / m each.
  [[nodiscard]] double least_latency(double seconds, int m) const {
    const double longest = seconds / m;
    double sum = 0;
    for (std::size_t k = 0; k < layers_of_kind_.size(); ++k) {
      const int layer = static_cast<int>(std::find(kind_.begin(), kind_.end(), static_cast<int>(k)) - kind_.begin());
      double least = infinity;
      for (const int p : open_) {
        const double t = table_.time(p, layer, layer + 1);
        if (t <= longest) least = std::min(least, splits_ ? table_.forward(p, layer, layer + 1) : t);
      }
      sum += layers_of_kind_[k] * least;
    }
    return table_.additive() ? sum : 0;
  }

  const interop_problem& problem_;
  const stage_prices& table_;
  any_cost_model costs_;
  reductions reductions_;
  bool ends_, splits_, usable_ = false;  // ends_: there may be something to do after the last microbatch
  int microbatches_ = 1;
  double forward_share_ = 1;
  shared_parameters shared_;  // seconds here are less than an iteration by these
  undivided_stages undivided_;
  std::vector<bool> undivided_contents_;    // of these
  std::vector<int> kind_, layers_of_kind_;  // by layer; by kind
  std::vector<content> contents_;           // by rising length
  std::vector<std::size_t> of_length_;      // where those of each length begin
  std::vector<double> least_way_;           // there and back, by class of the stage that sends
  double longest_way_ = 0;
  std::vector<float> updates_;                // [placement][content]
  std::vector<int> open_;                     // placements
  std::vector<std::vector<int>> stands_for_;  // by placement: those that are no better in anything else
  std::vector<double> worth_;                 // by content
  std::vector<double> shares_;                // of a pipeline's microbatches, by content
  int zones_ = 1;
  double width_ = 0;
  column_simplex simplex_;
  column_simplex::column column_;
  std::vector<int> entered_;                                 // placements of the program's columns
  std::vector<double> zone_price_, most_worth_;              // by zone; by length, at most
  std::vector<std::pair<int, std::size_t>> recent_, tried_;  // placements and contents that programs took; for a time the best
  std::vector<pooled> pool_;
  std::vector<double> rents_;
  std::int64_t looked_at_ = 0, programs_ = 0;
};

/// What no plan of so many microbatches is below, by work and by iteration_bound: see there. Of one pipeline; with `between`,
/// what stages take to add up gradients with another pipeline at the least, of any set. `reached`: an iteration that is known.
/// `enough`: a bound that will do. `splits`: schedules may split backwards.
[[nodiscard]] inline double least_iteration(const interop_problem& problem, const stage_prices& table, const cluster& hardware,
                                            const any_cost_model& costs, int microbatches, double reached, double gap,
                                            function_ref<bool()> go_on, double enough, iteration_bound::reductions between = {},
                                            bool splits = false) {
  constexpr std::int64_t most_programs = 1500, of_sets = 3000;
  const double work = work_bound(problem, table, microbatches);
  iteration_bound one(problem, table, hardware, costs, {}, splits);
  double least = one.bound(microbatches, work, reached, gap, most_programs, go_on, enough);
  if (least < std::min(reached * (1 - gap), enough)) least = one.whole_stages(microbatches, least, reached, gap, go_on, enough);
  least = std::min(least, reached);
  if (between && least > work) {
    iteration_bound several(problem, table, hardware, costs, between, splits);
    // No more than that need be shown.
    const double wanted = std::min(reached, least / (1 - gap));
    double of_all = several.bound(microbatches, work, wanted, gap, of_sets, go_on, enough);
    if (of_all < std::min(wanted * (1 - gap), enough))
      of_all = several.whole_stages(microbatches, of_all, wanted, gap, go_on, enough);
    least = std::min(least, of_all);
  }
  return least;
}

}  // namespace hetsched::detail
