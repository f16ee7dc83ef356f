// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/interop_dp_test.cpp.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/submesh.hpp>
#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/questions/price_book.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/planners/interop_dp/detail/warmup_algebra.hpp>

namespace hetsched::detail {

/// A placement as the search sees it.
struct interop_placement {
  placement where;
  int in_book = 0;
  int subcluster = 0;
  int devices = 0;
  bool on_one_node = false;  // of several
  int transfer_class = 0;
  double memory = 0;       // bytes per device
  double room = 0;         // of it, for a stage's costs and transfers: see room_within
  double capacity = 0;     // of that, what the largest transfers leave
  double reserved = 0;     // bytes that overheads and transfers take besides: these and capacity grow with the device's memory
  double scale = 1;        // of what is in flight and temporary
  bool dominated = false;  // another one of this mesh and degrees is no worse in anything that the search looks at
  bool barred = false;     // no stage may have it; then it is marked as dominated, too

  /// The capacity if the device had `factor` times its memory.
  [[nodiscard]] double capacity_at(double factor) const { return (capacity + reserved) * factor - reserved; }
  /// Bytes of the device that costs of so many bytes take with all the rest.
  [[nodiscard]] double with_rest(double bytes) const { return (bytes + reserved) * (memory / (capacity + reserved)); }
};

/// What a search needs besides the stage costs: the placements, and the transfer prices between classes of placements.
/// Two placements are of one class if no transfer price tells them apart: the search then need not either.
struct interop_problem {
  int layers = 0;
  std::vector<int> devices;                   // per subcluster
  std::vector<interop_placement> placements;  // by subcluster, then by device count
  std::vector<int> devices_per_node;          // per subcluster
  std::vector<int> class_subcluster;
  std::vector<int> boundary_kind;  // by boundary: those of one kind have equal prices
  int kinds = 0;
  std::vector<transfer_price> prices;       // [from][to][kind of boundary]
  std::vector<transfer_price> near_prices;  // the same between stages that share a node; empty: no price depends on that

  [[nodiscard]] int classes() const { return static_cast<int>(class_subcluster.size()); }
  [[nodiscard]] const transfer_price* transfer(int from, int to) const { return prices.data() + row(from, to); }
  [[nodiscard]] const transfer_price* near_transfer(int from, int to) const {
    return (near_prices.empty() ? prices : near_prices).data() + row(from, to);
  }
  /// The kind of the boundary before layer `cut`.
  [[nodiscard]] int kind_before(int cut) const { return at(boundary_kind, cut - 1); }

  /// Whether a stage of placement p shares a node with the one behind it, of placement `next`, if stages lie side by side and
  /// those from the latter on take so many devices of the subcluster.
  [[nodiscard]] bool share_node(int p, int next, int used) const {
    const auto &a = at(placements, p), &b = at(placements, next);
    if (near_prices.empty() || !a.on_one_node || !b.on_one_node || a.subcluster != b.subcluster) return false;
    const int per_node = at(devices_per_node, a.subcluster), taken = used % per_node;
    return taken >= b.devices && taken + a.devices <= per_node;
  }
  /// Both ways' price of the boundary before layer `cut` between such stages.
  [[nodiscard]] const transfer_price& price(int p, int next, int used, int cut) const {
    const int from = at(placements, p).transfer_class;
    const int to = at(placements, next).transfer_class;
    return (share_node(p, next, used) ? near_transfer(from, to) : transfer(from, to))[kind_before(cut)];
  }

 private:
  [[nodiscard]] std::size_t row(int from, int to) const { return as_size(from * classes() + to) * as_size(kinds); }
};

/// A stage as the search decides it.
struct interop_stage {
  int placement = 0;
  layer_range layers;
  friend constexpr bool operator==(interop_stage, interop_stage) = default;
};

/// The work of make_interop_problem.
class interop_problem_maker {
 public:
  interop_problem_maker(price_book& book, function_ref<bool()> go_on)
      : book_(book), go_on_(go_on), knows_nodes_(book.costs().asks_proximity()) {}

  [[nodiscard]] interop_problem run() && {
    problem_.layers = book_.layers();
    problem_.boundary_kind = book_.boundary_kinds();
    problem_.kinds = static_cast<int>(book_.first_boundaries().size());
    if (!add_placements() || !add_classes()) return std::move(problem_);
    add_prices(problem_.prices, proximity::other_node);
    if (knows_nodes_) {
      if (std::any_of(all().begin(), all().end(), [](const auto& p) { return p.on_one_node; }))
        add_prices(problem_.near_prices, proximity::same_node);
      if (problem_.near_prices == problem_.prices) problem_.near_prices.clear();
    }
    // Room for the largest transfers that a stage may have on either side.
    for (auto& p : problem_.placements) {
      const auto c = as_size(p.transfer_class);
      const auto extra = static_cast<double>(checked_add(extra_in_[c], extra_out_[c]));
      p.capacity -= extra;
      p.reserved += extra;
    }
    return std::move(problem_);
  }

 private:
  [[nodiscard]] const std::vector<interop_placement>& all() const { return problem_.placements; }
  [[nodiscard]] bool may_go_on() const { return !go_on_ || go_on_(); }

  // Returns whether it came to its end, as add_classes.
  [[nodiscard]] bool add_placements() {
    const auto& hardware = book_.hardware();
    for (std::size_t k = 0; k < hardware.subclusters.size(); ++k) {
      const auto& s = hardware.subclusters[k];
      problem_.devices.push_back(s.device_count());
      problem_.devices_per_node.push_back(s.devices_per_node);
      for (const auto& mesh : submeshes(s, static_cast<int>(k))) {
        if (!may_go_on()) return false;
        for (const int p : book_.placements(mesh)) {
          const auto& known = book_[p];
          const auto memory = static_cast<double>(s.device.memory_bytes);
          problem_.placements.push_back({.where = known.where,
                                         .in_book = p,
                                         .subcluster = static_cast<int>(k),
                                         .devices = mesh.device_count(),
                                         .on_one_node = known.on_one_node,
                                         .memory = memory,
                                         .room = known.memory.room,
                                         .capacity = known.memory.room,
                                         .reserved = memory / (1 + known.overheads.margin) - known.memory.room,
                                         .scale = known.memory.scale});
        }
      }
    }
    return true;
  }

  // `near`: where either may be.
  [[nodiscard]] const transfer_cost& price(const interop_placement& from, const interop_placement& to, int boundary,
                                           proximity near) {
    if (from.subcluster != to.subcluster)
      near = proximity::other_node;
    else if (at(book_.hardware().subclusters, from.subcluster).nodes == 1)
      near = proximity::same_node;
    else if (!from.on_one_node || !to.on_one_node)
      near = proximity::other_node;
    return book_.transfer(boundary, from.in_book, to.in_book, near);
  }

  // Whether transfers from and to both cost the same.
  [[nodiscard]] bool alike(const interop_placement& a, const interop_placement& b) {
    for (const auto near : {proximity::other_node, proximity::same_node}) {
      if (near == proximity::same_node && !knows_nodes_) break;
      for (const auto& other : all())
        for (const int j : book_.first_boundaries())
          if (!(price(a, other, j, near) == price(b, other, j, near)) || !(price(other, a, j, near) == price(other, b, j, near)))
            return false;
    }
    return true;
  }
  [[nodiscard]] bool same_class(const interop_placement& a, const interop_placement& b) {
    if (a.subcluster != b.subcluster || (knows_nodes_ && a.on_one_node != b.on_one_node)) return false;
    if (book_[a.in_book].transfer_class == book_[b.in_book].transfer_class) return true;
    return !book_.costs().has_transfer_class() && alike(a, b);
  }

  [[nodiscard]] bool add_classes() {
    for (std::size_t p = 0; p < all().size(); ++p) {
      if (!may_go_on()) return false;
      const auto found = std::find_if(representatives_.begin(), representatives_.end(),
                                      [&](std::size_t r) { return same_class(all()[r], all()[p]); });
      problem_.placements[p].transfer_class = static_cast<int>(found - representatives_.begin());
      if (found == representatives_.end()) {
        representatives_.push_back(p);
        problem_.class_subcluster.push_back(all()[p].subcluster);
      }
    }
    extra_in_.resize(representatives_.size());
    extra_out_.resize(representatives_.size());
    return true;
  }

  void add_prices(std::vector<transfer_price>& prices, proximity near) {
    const auto& boundaries = book_.first_boundaries();
    std::vector<int> smallest(representatives_.size(), std::numeric_limits<int>::max());  // devices, by class
    for (const auto& p : all()) at(smallest, p.transfer_class) = std::min(at(smallest, p.transfer_class), p.devices);
    prices.reserve(representatives_.size() * representatives_.size() * boundaries.size());
    for (std::size_t from = 0; from < representatives_.size(); ++from)
      for (std::size_t to = 0; to < representatives_.size(); ++to) {
        if (to % 16 == 0 && !may_go_on()) return;
        const auto &a = all()[representatives_[from]], &b = all()[representatives_[to]];
        const bool fit = smallest[from] <= at(problem_.devices_per_node, a.subcluster) - smallest[to];
        for (const int j : boundaries) {
          const auto& c = price(a, b, j, fit ? near : proximity::other_node);
          const bool moves = c.slower_way_s() < longest_time_s;
          prices.push_back(moves ? transfer_price{c.slower_way_s(), c.round_trip_s(), c.occupied_s()}
                                 : transfer_price{infinity, infinity, infinity});
          if (!moves) continue;
          extra_out_[from] = std::max(extra_out_[from], c.extra_bytes);
          extra_in_[to] = std::max(extra_in_[to], c.extra_bytes);
        }
      }
  }

  price_book& book_;
  function_ref<bool()> go_on_;
  bool knows_nodes_;
  interop_problem problem_;
  std::vector<std::size_t> representatives_;   // of each class of transfers, its first placement
  std::vector<bytes_t> extra_in_, extra_out_;  // of each class, what transfers take on its devices meanwhile
};

/// Collects placements and prices. O(P^2 B) calls of transfer for P placements and B boundaries; O(C^2 B) for C classes of
/// placements and B of boundaries if the model names them. Where go_on, asked now and then, returns false, it ends and leaves the
/// rest out.
[[nodiscard]] inline interop_problem make_interop_problem(price_book& book, function_ref<bool()> go_on = {}) {
  return interop_problem_maker(book, go_on).run();
}

/// What a stage holds on each device, in bytes: whatever is in flight, and per microbatch in flight.
struct stage_bytes {
  double fixed = 0, each = 0;
  [[nodiscard]] double at(double warmup) const { return fixed + warmup * each; }
};

/// Takes off the layers with copies what single layers take more than all together, where copies need not be: then the sum over
/// a stage is never more than what the stage takes.
inline void leave_out_copies(std::vector<double>& seconds, double all_s, std::span<const parameter_copy> copies) {
  if (copies.empty()) return;
  // Of several copies, which one the model takes off where only some are together is not known: each takes off all.
  const double more_s = std::accumulate(seconds.begin(), seconds.end(), -all_s);
  for (const auto& c : copies) at(seconds, c.layer) -= std::clamp(more_s, 0.0, at(seconds, c.layer));
}

/// What stages take at the end of an iteration, by placement: a constant and a sum over layers, fitted to single layers and a
/// pair of them. Guides searches; what is told of plans is what the model answers for their stages.
class update_table {
 public:
  update_table(price_book& book, const interop_problem& problem, function_ref<bool()> go_on = {})
      : row_(as_size(problem.layers + 1)) {
    for (const auto& p : problem.placements) {
      if (go_on && !go_on()) return;
      const auto& of = book.updates(p.in_book);
      const double first = of.layers[0];
      double base = first;
      if (problem.layers > 1) base = std::clamp(first + of.layers[1] - of.first_two, 0.0, first);
      any_ = any_ || of.all > 0;
      if (!any_) {
        sums_.resize(sums_.size() + row_, 0.0);
      } else {
        auto layers = of.layers;
        for (double& layer : layers) layer = std::max(0.0, layer - base);
        leave_out_copies(layers, of.all - base, book[p.in_book].copies);
        double sum = base;
        sums_.push_back(sum);
        for (const double layer : layers) sums_.push_back(sum += layer);
      }
    }
  }

  [[nodiscard]] bool any() const { return any_; }
  /// Whether placement p takes no longer for any layers than q. O(layers).
  [[nodiscard]] bool no_later(int p, int q) const {
    const double *a = sums_.data() + as_size(p) * row_, *b = sums_.data() + as_size(q) * row_;
    if (a[0] > b[0]) return false;
    for (std::size_t l = 0; l + 1 < row_; ++l)
      if (a[l + 1] - a[l] > b[l + 1] - b[l]) return false;
    return true;
  }
  [[nodiscard]] double operator()(int p, int first, int last) const {
    const double* row = sums_.data() + as_size(p) * row_;
    return row[last] - row[first] + row[0];
  }

 private:
  std::size_t row_;
  bool any_ = false;
  std::vector<double> sums_;
};

/// Stage costs by placement: of additive models as prefix sums over layers, of others a cell for every interval of layers.
/// Memory: O(P L) for additive models, and O(P L log L) where layers have temporary bytes; else O(P L^2).
class stage_prices {
 public:
  struct sums {
    double time = 0, forward = 0, weight = 0, activation = 0;
  };

  /// Where go_on, asked now and then, returns false, it ends and leaves the rest out.
  stage_prices(price_book& book, const interop_problem& problem, function_ref<bool()> go_on = {})
      : layers_(problem.layers),
        additive_(book.additive()),
        row_(as_size(additive_ ? layers_ + 1 : (layers_ + 1) * (layers_ + 2) / 2)),
        sums_(problem.placements.size() * row_),
        updates_(book, problem, go_on) {
    for (const auto& p : problem.placements) copies_.push_back(book[p.in_book].copies);
    if (std::all_of(copies_.begin(), copies_.end(), [](const auto& c) { return c.empty(); })) copies_.clear();
    if (additive_)
      add_layers(book, problem, go_on);
    else
      add_intervals(book, problem, go_on);
  }

  /// Whether stages cost the sum of their layers: then time and memory never fall when a stage grows.
  [[nodiscard]] bool additive() const { return additive_; }
  /// Sums over the layers before each one.
  /// Requires: additive().
  [[nodiscard]] const sums* prefix(int p) const { return sums_.data() + as_size(p) * row_; }
  [[nodiscard]] double time(int p, int first, int last) const {
    const sums* row = prefix(p);
    return additive_ ? row[last].time - row[first].time : row[cell(first, last)].time;
  }
  [[nodiscard]] double forward(int p, int first, int last) const {
    const sums* row = prefix(p);
    return additive_ ? row[last].forward - row[first].forward : row[cell(first, last)].forward;
  }
  [[nodiscard]] stage_bytes memory(int p, int first, int last) const {
    const sums* row = prefix(p);
    if (!additive_) {
      const auto& c = row[cell(first, last)];
      return {c.weight, c.activation};
    }
    const auto &a = row[first], &b = row[last];
    return {b.weight - a.weight - copied(p, first, last) + temporary(p, first, last), b.activation - a.activation};
  }
  [[nodiscard]] double memory(int p, int first, int last, double warmup) const { return memory(p, first, last).at(warmup); }
  /// The most that a layer of the stage needs while it is at work.
  /// Requires: additive().
  [[nodiscard]] double temporary(int p, int first, int last) const {
    if (largest_.empty() || first >= last) return 0;
    const auto level = as_size(std::bit_width(static_cast<unsigned>(last - first)) - 1);
    const double* row = largest_.data() + (level * placements_ + as_size(p)) * as_size(layers_);
    return std::max(row[first], row[last - (1 << level)]);
  }

  /// Whether placement p takes no longer for any layer than q, and holds no more.
  /// Requires: additive().
  [[nodiscard]] bool no_worse(int p, int q) const {
    const auto *a = prefix(p), *b = prefix(q);
    for (int l = 0; l < layers_; ++l)
      if (a[l + 1].time - a[l].time > b[l + 1].time - b[l].time ||
          a[l + 1].weight - a[l].weight > b[l + 1].weight - b[l].weight ||
          a[l + 1].activation - a[l].activation > b[l + 1].activation - b[l].activation ||
          temporary(p, l, l + 1) > temporary(q, l, l + 1))
        return false;
    if (copies_.empty()) return true;
    // Without copies, too.
    const auto own = [&](const sums* row, const parameter_copy& c) {
      return row[c.layer + 1].weight - row[c.layer].weight - static_cast<double>(c.weight_bytes);
    };
    const auto &of_p = at(copies_, p), &of_q = at(copies_, q);
    for (std::size_t k = 0; k < of_p.size(); ++k)
      if (own(a, of_p[k]) > own(b, of_q[k])) return false;
    return true;
  }

  /// What stages take at the end of an iteration.
  [[nodiscard]] const update_table& updates() const { return updates_; }

  /// For every first layer a: the furthest `last` of a stage that starts at a or before and takes at most `period` and
  /// `capacity`.
  void furthest(int p, double period, double capacity, double warmup, int* out) const {
    if (!additive_)
      furthest_interval(p, period, capacity, warmup, out);
    else if (largest_.empty() && copies_.empty())
      furthest_sum(prefix(p), period, capacity, warmup, out, [](int, int) { return 0.0; });
    else
      furthest_sum(prefix(p), period, capacity, warmup, out,
                   [&](int first, int last) { return temporary(p, first, last) - copied(p, first, last); });
  }

 private:
  /// The place of an interval in a row of a model that is not additive; empty intervals are there, too, and cost nothing.
  [[nodiscard]] std::size_t cell(int first, int last) const {
    return as_size(first * (2 * layers_ + 3 - first) / 2 + last - first);
  }

  /// Bytes that the sum of these layers counts twice.
  [[nodiscard]] double copied(int p, int first, int last) const {
    double bytes = 0;
    if (copies_.empty()) return bytes;
    for (const auto& c : at(copies_, p))
      if (c.is_within({first, last})) bytes += static_cast<double>(c.weight_bytes);
    return bytes;
  }

  void add_layers(price_book& book, const interop_problem& problem, function_ref<bool()> go_on) {
    std::vector<double> temporary;  // [placement][layer]
    for (std::size_t p = 0; p < problem.placements.size(); ++p) {
      if (go_on && !go_on()) return;
      auto* row = sums_.data() + p * row_;
      const double scale = problem.placements[p].scale;
      for (const stage_cost& c : book.layers_on(problem.placements[p].in_book)) {
        row[1] = {row->time + c.total_s(), row->forward + c.forward_s, row->weight + static_cast<double>(c.weight_bytes),
                  row->activation + static_cast<double>(c.activation_bytes) * scale};
        ++row;
        temporary.push_back(static_cast<double>(c.temporary_bytes) * scale);
      }
    }
    measure_temporary(temporary);
  }

  void add_intervals(price_book& book, const interop_problem& problem, function_ref<bool()> go_on) {
    for (std::size_t p = 0; p < problem.placements.size(); ++p) {
      const double scale = problem.placements[p].scale;
      for (int a = 0; a < layers_; ++a) {
        if (go_on && !go_on()) return;
        for (int b = a + 1; b <= layers_; ++b) {
          const stage_cost c = book.stage(problem.placements[p].in_book, {a, b});
          sums_[p * row_ + cell(a, b)] = {c.total_s(), c.forward_s,
                                          static_cast<double>(c.weight_bytes) + static_cast<double>(c.temporary_bytes) * scale,
                                          static_cast<double>(c.activation_bytes) * scale};
        }
      }
    }
  }

  template <class Extra>
  void furthest_sum(const sums* at, double period, double capacity, double warmup, int* out, Extra extra) const {
    int last = 0;
    for (int a = 0; a <= layers_; ++a) {
      last = std::max(last, a);
      const auto fits = [&](const sums& end) {
        return end.time - at[a].time <= period &&
               end.weight - at[a].weight + warmup * (end.activation - at[a].activation) + extra(a, last + 1) <= capacity;
      };
      while (last < layers_ && fits(at[last + 1])) ++last;
      out[a] = last;
    }
  }

  void furthest_interval(int p, double period, double capacity, double warmup, int* out) const {
    int furthest_yet = 0;
    for (int a = 0; a <= layers_; ++a) {
      furthest_yet = std::max(furthest_yet, a);
      for (int b = layers_; b > furthest_yet; --b)
        if (time(p, a, b) <= period && memory(p, a, b, warmup) <= capacity) {
          furthest_yet = b;
          break;
        }
      out[a] = furthest_yet;
    }
  }

  // A sparse table: level k holds the largest of 2^k layers from each one on.
  void measure_temporary(const std::vector<double>& of) {
    if (std::all_of(of.begin(), of.end(), [](double bytes) { return bytes == 0; })) return;
    placements_ = of.size() / as_size(layers_);
    largest_ = of;
    for (int half = 1; 2 * half <= layers_; half *= 2) {
      const auto below = largest_.size() - of.size();
      largest_.resize(largest_.size() + of.size());
      for (std::size_t p = 0; p < placements_; ++p)
        for (int l = 0; l + 2 * half <= layers_; ++l) {
          const auto at = below + p * as_size(layers_) + as_size(l);
          largest_[at + of.size()] = std::max(largest_[at], largest_[at + as_size(half)]);
        }
    }
  }

  int layers_;
  bool additive_;
  std::size_t placements_ = 0;
  std::size_t row_;                                  // cells of a placement
  std::vector<sums> sums_;                           // [placement][layer], or [placement][first layer][last]
  std::vector<double> largest_;                      // [level][placement][first layer]; empty: nothing is temporary
  std::vector<std::vector<parameter_copy>> copies_;  // by placement; empty: no layers share parameters
  update_table updates_;
};

/// Marks placements that the search need not look at: ways of saving memory that save none here, or none for nothing. Where costs
/// are not additive, intervals may prefer one placement here and another there: all stay.
inline void mark_dominated(interop_problem& problem, const stage_prices& table, function_ref<bool()> go_on = {}) {
  if (!table.additive()) return;
  auto& all = problem.placements;
  for (std::size_t p = 0; p < all.size(); ++p) {
    if (go_on && !go_on()) return;
    for (std::size_t q = 0; q < all.size() && !all[p].dominated; ++q) {
      const auto &a = all[q], &b = all[p];
      if (p == q || a.dominated || !(a.where.mesh == b.where.mesh) || !(a.where.degrees == b.where.degrees)) continue;
      all[p].dominated = a.transfer_class == b.transfer_class && a.capacity >= b.capacity &&
                         table.no_worse(static_cast<int>(q), static_cast<int>(p)) &&
                         table.updates().no_later(static_cast<int>(q), static_cast<int>(p));
    }
  }
}

/// A refusal of kind stopped.
[[nodiscard]] inline refusal stopped_early() { return {refusal::kind::stopped, "the search was stopped before it found a plan"}; }

/// What f(problem, table) returns for placements, prices and costs of stages, the dominated placements marked; a refusal if the
/// cost model offers no placement, or go_on, asked now and then, returns false.
template <class F>
[[nodiscard]] auto with_tables(price_book& book, F f, function_ref<bool()> go_on = {}) {
  using result = std::invoke_result_t<F, const interop_problem&, const stage_prices&>;
  auto problem = make_interop_problem(book, go_on);
  if (go_on && !go_on()) return result(stopped_early());
  if (problem.placements.empty())
    return result(refusal{refusal::kind::infeasible, "the cost model offers no placement on any submesh of this cluster"});
  const stage_prices table(book, problem, go_on);
  mark_dominated(problem, table, go_on);
  if (go_on && !go_on()) return result(stopped_early());
  return f(std::as_const(problem), table);
}

}  // namespace hetsched::detail
