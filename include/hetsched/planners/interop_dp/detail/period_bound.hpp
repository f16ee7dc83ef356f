// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/interop_dp_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>
#include <hetsched/planners/interop_dp/detail/route.hpp>

namespace hetsched::detail {

/// Lower bounds on the latency sum(t + 2c) of plans that keep a period, for additive costs. Let every device of subcluster k cost
/// a rent: a plan's latency is at least its cost with rents, less the rent of all devices that there are. Without a limit on
/// devices the cheapest plan is a shortest path over the layers, whose arcs are the stages that period and memory allow. Any
/// rents give a bound; the best are dual prices of devices at that period. The ways between subclusters come on top: of up to
/// `most_listed` subclusters every choice is bounded by itself, with its shortest path; of more, each one alone, and all
/// together, where those whose rent is below their way are left out.
class period_bound {
 public:
  period_bound(const interop_problem& problem, const stage_prices& table)
      : problem_(problem), table_(table), open_in_(problem.devices.size()) {
    for (std::size_t p = 0; p < problem.placements.size(); ++p)
      if (!problem.placements[p].dominated) {
        open_.push_back(static_cast<int>(p));
        ++at(open_in_, problem.placements[p].subcluster);
      }
    find_ways();
    find_cheap();
    const auto count = problem.devices.size();
    if (count <= most_listed) {
      for (unsigned set = 1; set < 1u << count; ++set) {
        choices_.push_back({{}, std::vector<double>(count)});
        for (std::size_t k = 0; k < count; ++k) choices_.back().has.push_back(set >> k & 1u);
      }
    } else {
      for (std::size_t k = 0; k < count; ++k) {
        choices_.push_back({std::vector<bool>(count), std::vector<double>(count)});
        choices_.back().has[k] = true;
      }
      choices_.push_back({std::vector<bool>(count, true), std::vector<double>(count)});
    }
    const auto layers = as_size(problem.layers);
    nearest_.resize(open_.size() * (layers + 1));
    cost_.resize(layers + 1);
    last_stage_.resize(layers + 1);
    windows_.resize(open_.size() * layers);
  }

  /// No plan that keeps `period` has a smaller latency; infinity if none keeps it. The bound need not be the best one if that
  /// exceeds `enough`.
  /// O(2^K (2^K K + rounds P L)) for K listed subclusters.
  [[nodiscard]] double latency(double period, double enough = infinity) {
    measure(period);
    measure_ways(period);
    double least = infinity;
    best_ = nullptr;
    for (auto& c : choices_) {
      const double bound = latency(c, std::min(enough, least));
      if (bound < least) {
        least = bound;
        best_ = &c;
      }
    }
    return std::max(least * (1 - tolerance::rounding), 0.0);  // a bound in spite of rounding
  }

  /// Ends of stages looked at so far, those of placements that are never the cheapest included.
  [[nodiscard]] std::int64_t looked_at() const { return looked_at_; }

  /// At the period of the last call, and for the choice of subclusters with the least bound: the least cost, rent and transfers
  /// included, of all layers before each one.
  [[nodiscard]] const std::vector<double>& cost_before() {
    if (best_ == nullptr)
      std::fill(cost_.begin(), cost_.end(), 0.0);
    else
      (void)shortest_path(*best_, used_);
    return cost_;
  }

  /// Placements of at least so many devices, or the most that their subcluster has, that are worth a look at that period: those
  /// whose fullest stage costs at most `slack` times the least per layer in their subcluster, and the cheapest one of each
  /// transfer class.
  [[nodiscard]] std::vector<int> competitive(double slack, int least_devices) const {
    std::vector<double> least(problem_.devices.size(), infinity);
    std::vector<double> least_of_class(as_size(problem_.classes()), infinity);
    const auto each = [&](auto body) {
      for (std::size_t j = 0; j < open_.size(); ++j) {
        const auto& placed = at(problem_.placements, open_[j]);
        if (placed.devices < std::min(least_devices, at(problem_.devices, placed.subcluster))) continue;
        body(j, cost_of_layer(j), at(least, placed.subcluster), at(least_of_class, placed.transfer_class));
      }
    };
    each([](std::size_t, double price, double& of_subcluster, double& of_class) {
      of_subcluster = std::min(of_subcluster, price);
      of_class = std::min(of_class, price);
    });
    std::vector<int> found;
    each([&](std::size_t j, double price, double of_subcluster, double of_class) {
      if (price < infinity && (price <= slack * of_subcluster || price <= of_class)) found.push_back(open_[j]);
    });
    return found;
  }

 private:
  static constexpr std::size_t most_listed = 4;

  // Subclusters, the rents of their devices, and whether these were ever improved.
  struct choice {
    std::vector<bool> has;  // by subcluster
    std::vector<double> rent;
    bool known = false;

    [[nodiscard]] auto size() const { return std::count(has.begin(), has.end(), true); }
  };
  struct arc {
    int at = -1;  // in open_
    int first = 0;
  };
  struct window_entry {
    double key = 0;
    int first = 0;
  };

  // The least round trips of a stage to the next one in its subcluster, and, with what they occupy, between subclusters.
  void find_ways() {
    const auto count = problem_.devices.size();
    onward_.assign(as_size(problem_.classes()), infinity);
    const auto pairs = count * count;
    crossings_.resize(pairs);
    for (int from = 0; from < problem_.classes(); ++from)
      for (int to = 0; to < problem_.classes(); ++to) {
        const auto a = as_size(at(problem_.class_subcluster, from));
        const auto b = as_size(at(problem_.class_subcluster, to));
        for (const auto* price : {problem_.transfer(from, to), problem_.near_transfer(from, to)})
          for (int j = 0; j < problem_.kinds; ++j) {
            if (a == b) {
              auto& least = at(onward_, from);
              least = std::min(least, price[j].round_trip);
            } else {
              auto& known = crossings_[a * count + b];
              const bool beaten = std::any_of(known.begin(), known.end(), [&](const transfer_price& k) {
                return k.occupied <= price[j].occupied && k.round_trip <= price[j].round_trip;
              });
              if (!beaten) known.push_back(price[j]);
            }
          }
      }
    dearest_.assign(count, 0.0);
    for (auto& c : onward_)
      if (!(c < infinity)) c = 0;
    for (std::size_t c = 0; c < onward_.size(); ++c) {
      auto& most = at(dearest_, problem_.class_subcluster[c]);
      most = std::max(most, onward_[c]);
    }
  }

  // Those that may be the cheapest at some period: with one microbatch in flight, most ways of saving memory drop out.
  void find_cheap() {
    const auto row = as_size(problem_.layers + 1);
    std::vector<int> ends(open_.size() * row);  // of the longest stages in memory, by placement and first layer
    for (std::size_t j = 0; j < open_.size(); ++j)
      table_.furthest(open_[j], infinity, at(problem_.placements, open_[j]).capacity, 1, ends.data() + j * row);
    const auto no_worse = [&](std::size_t a, std::size_t b) {
      const auto &one = at(problem_.placements, open_[a]), &other = at(problem_.placements, open_[b]);
      if (one.transfer_class != other.transfer_class || one.devices > other.devices) return false;
      const auto *x = table_.prefix(open_[a]), *y = table_.prefix(open_[b]);
      for (std::size_t l = 0; l + 1 < row; ++l)
        if (x[l + 1].time - x[l].time > y[l + 1].time - y[l].time || ends[a * row + l] < ends[b * row + l]) return false;
      return true;
    };
    for (std::size_t j = 0; j < open_.size(); ++j) {
      bool cheap = true;
      for (std::size_t i = 0; i < open_.size() && cheap; ++i) cheap = i == j || !no_worse(i, j) || (i > j && no_worse(j, i));
      if (cheap) cheap_.push_back(j);
    }
  }

  void measure(double period) {
    std::vector<int> ends(as_size(problem_.layers + 1));
    for (std::size_t j = 0; j < open_.size(); ++j) {
      const int p = open_[j];
      table_.furthest(p, period, at(problem_.placements, p).capacity, 1, ends.data());
      // The first layer of the longest stage that ends before each layer; that layer itself if there is none.
      int* nearest = nearest_.data() + j * as_size(problem_.layers + 1);
      nearest[0] = 0;
      for (int e = 1, a = 0; e <= problem_.layers; nearest[e++] = a)
        while (a < e && at(ends, a) < e) ++a;
    }
  }

  // The least way between subclusters, either direction, that keeps the period; and out of or into each.
  void measure_ways(double period) {
    const auto count = problem_.devices.size();
    way_.assign(count * count, infinity);
    leave_.assign(count, infinity);
    for (std::size_t a = 0; a < count; ++a)
      for (std::size_t b = 0; b < count; ++b)
        for (const auto& c : crossings_[a * count + b]) {
          if (!(c.occupied <= period)) continue;
          way_[a * count + b] = std::min(way_[a * count + b], c.round_trip);
          leave_[a] = std::min(leave_[a], c.round_trip);
          leave_[b] = std::min(leave_[b], c.round_trip);
        }
  }

  // The shortest directed path through all subclusters of a choice (Held and Karp 1962). Requires: a single one, or few in all.
  [[nodiscard]] double path(const choice& c) const {
    if (c.size() == 1) return 0;
    const auto count = problem_.devices.size();
    unsigned set = 0;
    for (std::size_t k = 0; k < count; ++k)
      if (c.has[k]) set |= 1u << k;
    std::vector<double> least(std::size_t{set + 1} * count, infinity);
    for (unsigned s = 1; s <= set; ++s) {
      if ((s & set) != s) continue;
      for (std::size_t last = 0; last < count; ++last) {
        if (!(s >> last & 1u)) continue;
        auto& here = least[s * count + last];
        const unsigned before = s & ~(1u << last);
        if (before == 0) here = 0;
        for (std::size_t k = 0; k < count; ++k)
          if (before >> k & 1u) here = std::min(here, least[before * count + k] + way_[k * count + last]);
      }
    }
    return *std::min_element(least.begin() + static_cast<std::ptrdiff_t>(set * count), least.end());
  }

  // Whether a choice's subclusters may be left out.
  [[nodiscard]] bool may_leave_out(const choice& c) const { return problem_.devices.size() > most_listed && c.size() > 1; }

  // What a choice's ways between subclusters cost at the least; infinity if there are none. Of those that may be left out `way`
  // is what each one costs besides.
  [[nodiscard]] double between(const choice& c, std::vector<double>& way) const {
    const auto count = problem_.devices.size();
    const bool some = may_leave_out(c);
    double sum = 0;
    way.assign(count, 0.0);
    if (some) {
      // All but the last are left once.
      if (std::none_of(leave_.begin(), leave_.end(), [](double s) { return s < infinity; })) return infinity;
      for (std::size_t k = 0; k < count; ++k) way[k] = leave_[k] < infinity ? leave_[k] : 0;
      sum = -*std::max_element(way.begin(), way.end());
    } else {
      sum = path(c);
    }
    // One way onward less in each: its last stage's next one lies elsewhere, or there is none.
    for (std::size_t k = 0; k < count; ++k)
      if (some)
        way[k] -= dearest_[k];
      else if (c.has[k])
        sum -= dearest_[k];
    return sum;
  }

  // Of a choice: the best of the rents tried, from those of the last period on.
  [[nodiscard]] double latency(choice& c, double enough) {
    const auto count = problem_.devices.size();
    const bool some = may_leave_out(c);
    std::vector<double> way;
    const double ways = between(c, way);
    if (!(ways < infinity)) return infinity;
    // A path's cost, less the rents of all devices; `used` becomes a subgradient: the path's devices less those that there are.
    const auto evaluate = [&] {
      double bound = shortest_path(c, used_) + ways;
      for (std::size_t k = 0; k < count; ++k) {
        if (!c.has[k]) continue;
        const double rest = way[k] - c.rent[k] * problem_.devices[k];
        if (rest < 0 || !some) {
          bound += rest;
          used_[k] -= problem_.devices[k];
        }
      }
      return bound;
    };
    double best = evaluate();
    if (!(best < infinity)) return best;
    if (best < 0 && c.known) {
      // Rents of a much shorter period: begin anew.
      std::fill(c.rent.begin(), c.rent.end(), 0.0);
      c.known = false;
      best = evaluate();
    }
    auto best_rent = c.rent;
    double current = best, reach = (best < 0 ? -best : best) * (c.known ? 0.02 : 0.3);
    const int rounds = c.known ? 14 : 60;
    for (int round = 0; round < rounds && best < enough; ++round) {
      // Polyak's step to a goal that comes nearer with every failure.
      double norm = 0, slope = 0;
      for (std::size_t k = 0; k < count; ++k) {
        if (!c.has[k] || (c.rent[k] == 0 && used_[k] < 0)) used_[k] = 0;
        const double relative = used_[k] / problem_.devices[k];
        norm += relative * relative;
        slope = std::max(slope, relative < 0 ? -relative : relative);
      }
      if (slope < 1e-3) break;
      const double goal = std::min(enough, best + reach);
      for (std::size_t k = 0; k < count; ++k) {
        const double relative = used_[k] / problem_.devices[k];
        c.rent[k] = std::max(0.0, c.rent[k] + (goal - current) / norm * relative / problem_.devices[k]);
      }
      current = evaluate();
      if (current > best) {
        if (current - best > 0.5 * reach) reach *= 1.5;
        best = current;
        best_rent = c.rent;
      } else {
        reach *= 0.6;
      }
    }
    c.rent = best_rent;
    c.known = true;
    return best;
  }

  [[nodiscard]] double fixed_cost(const choice& c, std::size_t j) const {
    const auto& placed = at(problem_.placements, open_[j]);
    return at(c.rent, placed.subcluster) * placed.devices + at(onward_, placed.transfer_class);
  }
  // Of the stages of a placement that are as full as they can be, the least cost per layer.
  [[nodiscard]] double cost_of_layer(std::size_t j) const {
    double least = infinity;
    if (best_ == nullptr) return 0;
    const int* nearest = nearest_.data() + j * as_size(problem_.layers + 1);
    for (int e = 1; e <= problem_.layers; ++e)
      if (nearest[e] < e)
        least = std::min(least, (table_.time(open_[j], nearest[e], e) + fixed_cost(*best_, j)) / (e - nearest[e]));
    return least;
  }

  // The least cost of all layers as stages, with rents: into cost_, that of all layers before each one. Adds up by subcluster the
  // devices that it takes. Per placement a sliding-window minimum over the first layers of a stage.
  [[nodiscard]] double shortest_path(const choice& c, std::vector<double>& used) {
    const auto layers = as_size(problem_.layers);
    struct row {
      std::size_t open;
      const stage_prices::sums* prefix;
      const int* nearest;
      window_entry* window;
      double fixed;
      std::size_t head = 0, size = 0;
    };
    std::vector<row> rows;
    for (const auto j : cheap_)
      if (at(c.has, at(problem_.placements, open_[j]).subcluster))
        rows.push_back(
            {j, table_.prefix(open_[j]), nearest_.data() + j * (layers + 1), windows_.data() + j * layers, fixed_cost(c, j)});
    for (std::size_t k = 0; k < c.has.size(); ++k)
      if (c.has[k]) looked_at_ += open_in_[k] * std::int64_t{problem_.layers};
    cost_[0] = 0;
    for (std::size_t e = 1; e <= layers; ++e) {
      double least = infinity;
      arc by;
      const bool reached = cost_[e - 1] < infinity;
      for (auto& r : rows) {
        if (reached) {
          const double key = cost_[e - 1] - r.prefix[e - 1].time;
          while (r.size > r.head && r.window[r.size - 1].key >= key) --r.size;
          r.window[r.size++] = {key, static_cast<int>(e - 1)};
        }
        while (r.head < r.size && r.window[r.head].first < r.nearest[e]) ++r.head;
        if (r.head == r.size) continue;
        const double cost = r.window[r.head].key + r.prefix[e].time + r.fixed;
        if (cost < least) {
          least = cost;
          by = {static_cast<int>(r.open), r.window[r.head].first};
        }
      }
      cost_[e] = least;
      last_stage_[e] = by;
    }
    used.assign(problem_.devices.size(), 0.0);
    if (!(cost_[layers] < infinity)) return infinity;
    for (auto e = layers; e > 0; e = as_size(last_stage_[e].first)) {
      const auto& placed = at(problem_.placements, at(open_, last_stage_[e].at));
      at(used, placed.subcluster) += placed.devices;
    }
    return cost_[layers];
  }

  const interop_problem& problem_;
  const stage_prices& table_;
  std::vector<int> open_;                               // placements
  std::vector<int> open_in_;                            // how many, by subcluster
  std::vector<std::size_t> cheap_;                      // in open_
  std::vector<double> onward_;                          // by transfer class
  std::vector<double> dearest_;                         // of them, by subcluster
  std::vector<std::vector<transfer_price>> crossings_;  // [from][to]: none worse than another
  std::vector<double> way_, leave_;  // at the period of the last call: [from][to]; by subcluster, either direction
  std::vector<int> nearest_;         // [open][layer], at that period
  std::vector<choice> choices_;
  const choice* best_ = nullptr;
  std::vector<double> cost_;     // by layer
  std::vector<arc> last_stage_;  // by layer
  std::vector<window_entry> windows_;
  std::vector<double> used_;
  std::int64_t looked_at_ = 0;
};

}  // namespace hetsched::detail
