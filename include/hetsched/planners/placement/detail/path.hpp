// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/placement/search_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/placement/chain.hpp>

namespace hetsched::detail {

// Finds the cheapest stages of a chain, none slower than a limit: a shortest path over (first layer, its kind, devices used of
// each pool), from the last layer to the first. Labels are ordered by a bound: every pool charges a rent for its devices, which
// makes their number irrelevant, so a table over (layer, kind) has what the rest costs at least; rents are raised where the
// path of that table takes too many devices. The first complete label is optimal.
class placement_path {
 public:
  enum class answer { found, impossible, stopped };
  struct result {
    answer what = answer::impossible;
    placed_chain chain{};  // if found; of small_sum, also where it is spent, without stages if it met none
    double bound = 0;      // of what was minimised, if stopped
    bool spent = false;    // stopped by the number of labels
  };

  explicit placement_path(const placement_chain& chain)
      : chain_(chain), layers_(chain.layers), kinds_(static_cast<int>(chain.kinds.size())) {
    for (const auto& p : chain.pools) devices_ += p.count;
    most_ = std::min(chain.stages > 0 ? chain.stages : devices_, std::min(devices_, layers_));
    sum_rents_.first.assign(chain.pools.size(), 0.0);
    any_rents_ = sum_rents_;
    pool_rents_ = sum_rents_.first;
    rest_.resize(as_size(layers_ + 1) * as_size(kinds_ + 1));
    inside_.resize(rest_.size());
    step_.resize(rest_.size());
    next_.resize(rest_.size());
    moved_.resize(chain.transfers.size());
    fronts_.resize(chain.kinds.size());
    in_front_.resize(chain.kinds.size() * as_size(layers_));
  }

  [[nodiscard]] std::int64_t labels() const { return made_; }

  // Steps of tables and of labels, some nanoseconds each, beyond which a search ends: but the first one only much later, as it
  // tells whether there are any stages. With many pools, tables alone take long.
  static constexpr double most_work = 1e9;

  // Of a first search, to be let alone.
  static constexpr std::int64_t long_first = 200'000;

  // Called now and then, in the first search only once that has taken long; false ends the search.
  function_ref<bool(std::int64_t labels)> go_on = {};
  // Asked often, from the start; false ends the search.
  function_ref<bool()> poll = {};

  // The least sum of seconds, with nothing above `limit_s`.
  [[nodiscard]] result least_sum(double limit_s, std::int64_t most_labels = std::numeric_limits<std::int64_t>::max()) {
    return search(limit_s, true, most_labels);
  }
  // The same if it is below `below_s`, else impossible. Spent after so many labels: then with some stages that are mostly
  // good, if any are met.
  [[nodiscard]] result small_sum(double limit_s, std::int64_t most_labels, double below_s = none) {
    below_s_ = below_s;
    auto got = search(limit_s, true, most_labels);
    if (got.spent)
      if (auto met = beam(beam_width)) got.chain = *std::move(met);
    below_s_ = none;
    return got;
  }
  // Anything with nothing above `limit_s`.
  [[nodiscard]] result any(double limit_s) { return search(limit_s, false, std::numeric_limits<std::int64_t>::max()); }

  // Whether poll has ended the search.
  [[nodiscard]] bool ended() const { return poll && !poll(); }

  // The first layer that a stage of kind k may begin with if it ends before layer `last` and so much is in flight.
  [[nodiscard]] int earliest(int k, int last, double in_flight) {
    auto& table = earliest_[in_flight];
    if (table.empty()) table.assign(as_size(kinds_) * as_size(layers_ + 1), -1);
    auto& known = table[as_size(k) * as_size(layers_ + 1) + as_size(last)];
    if (known >= 0) return known;
    const auto& kind = at(chain_.kinds, k);
    double temporary = 0;
    int first = last;
    while (first > 0) {
      const auto f = as_size(first - 1), l = as_size(last);
      temporary = std::max(temporary, kind.temporary[f]);
      const double held = kind.state({first - 1, last}) +
                          (in_flight * (kind.in_flight_before[l] - kind.in_flight_before[f]) + temporary) * kind.memory.scale;
      if (!(held <= kind.memory.room)) break;
      --first;
    }
    return known = first;
  }

 private:
  static constexpr double none = infinity;
  static constexpr std::size_t beam_width = 24;

  [[nodiscard]] bool ends() const {
    const bool first = searches_ <= 1;
    if (work_ > (first ? 10 : 1) * most_work) return true;
    return (!first || made_ > long_first) && go_on && !go_on(made_);
  }

  using count = std::int16_t;  // of devices in use; a chain has fewer stages

  struct label {
    double cost;          // of the stages so far, without rents
    std::int32_t first;   // layer
    std::int32_t kind;    // of the stage that begins with it; kinds_: none yet
    std::int32_t parent;  // -1: none
    std::int32_t stages;
    std::int32_t used;    // where its devices by pool stand
    bool beaten = false;  // by another label
  };

  [[nodiscard]] std::size_t cell(int layer, int kind) const { return as_size(layer) * as_size(kinds_ + 1) + as_size(kind); }
  [[nodiscard]] double seconds(int k, int first, int last) const {
    const auto& sums = at(chain_.kinds, k).seconds_before;
    return at(sums, last) - at(sums, first);
  }
  [[nodiscard]] std::size_t pool_of(int k) const { return as_size(at(chain_.kinds, k).pool); }
  [[nodiscard]] double rent(int k) const { return pool_rents_[pool_of(k)] + stage_rent_; }
  // What a transfer adds; infinity if it may not be.
  [[nodiscard]] double moved(int boundary, int from, int to) const {
    return moved_[(as_size(chain_.boundary_kind(boundary)) * as_size(kinds_) + as_size(from)) * as_size(kinds_) + as_size(to)];
  }
  // earliest, and not slower than the limit.
  [[nodiscard]] int earliest_in_time(int k, int last, double in_flight) {
    int first = earliest(k, last, in_flight);
    const auto& sums = at(chain_.kinds, k).seconds_before;
    while (first < last && seconds(k, first, last) > limit_s_) {
      const auto from = sums.begin() + first, to = sums.begin() + last;
      const auto cut = std::lower_bound(from, to, at(sums, last) - limit_s_);
      first = std::max(first, static_cast<int>(cut - sums.begin()));
      if (first < last && seconds(k, first, last) > limit_s_) ++first;  // rounding
    }
    return first;
  }

  // Fills the table of what layers before cost at least, rents included, if nothing limits the number of devices, unless poll
  // ends it: rest_[layer, kind], where the stage behind the layers is of that kind. O(layers * kinds^2).
  void fill_rest() {
    work_ += 1.0 * layers_ * kinds_ * kinds_;
    for (int k = 0; k <= kinds_; ++k) rest_[cell(0, k)] = 0;
    std::fill(fronts_.begin(), fronts_.end(), front{});
    for (int j = 1; j <= layers_ && !ended(); ++j) {
      for (int k = 0; k < kinds_; ++k) {
        // The least of rest - seconds_before over the first layers that the stage may have: they only move on.
        auto& f = at(fronts_, k);
        auto* const line = in_front_.data() + as_size(k) * as_size(layers_);
        const auto& sums = at(chain_.kinds, k).seconds_before;
        const double value = rest_[cell(j - 1, k)] - (weigh_ ? at(sums, j - 1) : 0.0);
        while (f.end > f.begin && line[f.end - 1].second >= value) --f.end;
        line[f.end++] = {j - 1, value};
        const int first = starts_[cell(j, k)];
        while (f.begin < f.end && line[f.begin].first < first) ++f.begin;
        if (f.begin == f.end) {
          inside_[cell(j, k)] = none;
        } else {
          inside_[cell(j, k)] = line[f.begin].second + (weigh_ ? at(sums, j) : 0.0) + rent(k);
          step_[cell(j, k)] = line[f.begin].first;
        }
      }
      const double* const inside = inside_.data() + cell(j, 0);
      for (int k = 0; k <= kinds_; ++k) {
        double best = none;
        int best_from = 0;
        for (int from = 0; from < kinds_; ++from) {
          const double with = inside[from] + (k < kinds_ && j < layers_ ? moved(j - 1, from, k) : 0.0);
          if (with < best) best = with, best_from = from;
        }
        next_[cell(j, k)] = best_from;
        rest_[cell(j, k)] = j < layers_ && k == kinds_ ? none : best;
      }
    }
  }

  [[nodiscard]] double rents_of_all() const {
    double sum = stage_rent_ * chain_.stages;
    for (std::size_t p = 0; p < pool_rents_.size(); ++p) sum += pool_rents_[p] * chain_.pools[p].count;
    return sum;
  }

  // How good rents are that have this bound. Without seconds, rents of 0 have the bound 0, which rules out nothing: what counts
  // is the share of all rents that is left over.
  [[nodiscard]] double score_of(double bound) const {
    if (weigh_) return bound;
    const double all = rents_of_all();
    return all > 0 ? bound / all : std::numeric_limits<double>::lowest();
  }

  // What is sought costs less. A feasibility question may lack something by rounding.
  [[nodiscard]] double most_cost() const { return weigh_ ? below_s_ : tolerance::sums; }

  // Raises the rents of pools of which the table's path takes too many, for a larger bound.
  void raise_rents() {
    auto best_rents = pool_rents_;
    double best_stage_rent = stage_rent_;
    double best_score = -none;
    double scale = 0;
    for (int k = 0; k < kinds_; ++k) scale = std::max(scale, weigh_ ? seconds(k, 0, layers_) : 1.0);
    double pace = 1.0 / std::max(1, most_);
    std::vector<double> excess(pool_rents_.size());
    int stale = 0;
    for (int round = 0; round < 120 && stale < 30 && !ended(); ++round) {
      fill_rest();
      const double bound = rest_[cell(layers_, kinds_)] - rents_of_all();
      if (const double score = score_of(bound); score > best_score) {
        if (!(score < best_score + tolerance::sums * scale)) stale = 0;
        best_score = score, best_rents = pool_rents_, best_stage_rent = stage_rent_;
      }
      if (++stale % 8 == 0) pace *= 0.5;
      if (!(bound < most_cost())) break;
      int stages = 0;
      for (std::size_t p = 0; p < excess.size(); ++p) excess[p] = -chain_.pools[p].count;
      for (int j = layers_, k = kinds_; j > 0;) {
        k = next_[cell(j, k)];
        excess[pool_of(k)] += 1;
        ++stages;
        j = step_[cell(j, k)];
      }
      const double wanted = chain_.stages > 0 ? stages - chain_.stages : 0;
      if (!weigh_ && wanted == 0 && std::all_of(excess.begin(), excess.end(), [](double x) { return x <= 0; })) return;
      double norm = wanted * wanted;
      for (std::size_t p = 0; p < excess.size(); ++p)
        if (excess[p] > 0 || pool_rents_[p] > 0) norm += excess[p] * excess[p];
      if (norm == 0) break;  // the path takes no more than there is
      for (std::size_t p = 0; p < excess.size(); ++p)
        pool_rents_[p] = std::max(0.0, pool_rents_[p] + pace * scale * excess[p] / norm);
      if (chain_.stages > 0) stage_rent_ += pace * scale * wanted / norm;
    }
    pool_rents_ = best_rents, stage_rent_ = best_stage_rent;
    fill_rest();
  }

  [[nodiscard]] result search(double limit_s, bool weigh, std::int64_t most_labels) {
    limit_s_ = limit_s, weigh_ = weigh;
    if (ended() || (searches_++ > 0 && ends())) return {.what = answer::stopped};
    std::transform(chain_.transfers.begin(), chain_.transfers.end(), moved_.begin(), [&](const placement_transfer& t) {
      return t.occupied_s <= limit_s_ && t.seconds < longest_time_s ? (weigh_ ? t.seconds : 0) : none;
    });
    starts_.assign(rest_.size(), 0);
    for (int j = 1; j <= layers_; ++j)
      for (int k = 0; k < kinds_; ++k) starts_[cell(j, k)] = earliest_in_time(k, j, chain_.in_flight(1));
    if (ended()) return {.what = answer::stopped};
    auto& rents = weigh ? sum_rents_ : any_rents_;
    pool_rents_ = rents.first, stage_rent_ = rents.second;
    if (!weigh) {
      const bool impossible = choose_rents() > tolerance::sums;
      if (ended()) return {.what = answer::stopped};
      if (impossible) return {};
      // Where there are such stages these rents mostly lead to them.
      constexpr std::int64_t soon = 500;
      if (auto first = walk_for_any(soon); first.what != answer::stopped || !first.spent) return first;
    }
    raise_rents();
    if (ended()) return {.what = answer::stopped};
    rents = {pool_rents_, stage_rent_};
    if (weigh) return walk(most_labels);
    if (auto met = beam(beam_width)) return {.what = answer::found, .chain = *std::move(met)};
    return walk_for_any(most_labels);
  }

  [[nodiscard]] result walk_for_any(std::int64_t most_labels) {
    return any_order() ? walk_in_any_order(most_labels) : walk(most_labels);
  }

  // Rents for a question of feasibility: the last ones, or a device is worth the layers that it can take, on average or at the
  // most places. Returns the bound with those that leave least room.
  [[nodiscard]] double choose_rents() {
    const auto pools = chain_.pools.size();
    std::vector<double> mean(pools), median(pools);
    std::vector<int> takes(as_size(layers_));
    for (int k = 0; k < kinds_; ++k) {
      double sum = 0;
      for (int j = 1; j <= layers_; ++j) sum += at(takes, j - 1) = j - starts_[cell(j, k)];
      std::nth_element(takes.begin(), takes.begin() + layers_ / 2, takes.end());
      mean[pool_of(k)] = std::max(mean[pool_of(k)], sum / layers_);
      median[pool_of(k)] = std::max(median[pool_of(k)], static_cast<double>(at(takes, layers_ / 2)));
    }
    auto best_rents = pool_rents_;
    double best_stage_rent = stage_rent_, best_bound = 0, best_score = -none;
    const auto consider = [&] {
      fill_rest();
      const double bound = rest_[cell(layers_, kinds_)] - rents_of_all();
      if (const double score = score_of(bound); score > best_score)
        best_score = score, best_bound = bound, best_rents = pool_rents_, best_stage_rent = stage_rent_;
    };
    consider();
    for (const auto* rents : {&mean, &median}) {
      pool_rents_ = *rents, stage_rent_ = 0;
      for (double& r : pool_rents_) r /= layers_;
      consider();
    }
    pool_rents_ = best_rents, stage_rent_ = best_stage_rent;
    fill_rest();
    return best_bound;
  }

  // Whether every kind may follow every other one, so that only the devices used and the layers left count; and these can be
  // numbered.
  [[nodiscard]] bool any_order() const {
    if (chain_.stages > 0) return false;
    double states = 1;
    for (const auto& p : chain_.pools) states *= p.count + 1;
    if (!(states < 1e18)) return false;
    return std::all_of(chain_.transfers.begin(), chain_.transfers.end(),
                       [&](const placement_transfer& t) { return t.occupied_s <= limit_s_ && t.seconds < longest_time_s; });
  }

  // walk for a question of feasibility where any_order: every stage takes all layers that it can, and of the labels that use
  // the same devices the one with fewest layers left is enough.
  [[nodiscard]] result walk_in_any_order(std::int64_t most_labels) {
    const auto pools = chain_.pools.size();
    const double all_rents = rents_of_all();
    const auto least_rest = [&](int layer) {
      double least = layer == layers_ ? rest_[cell(layer, kinds_)] : none;
      for (int k = 0; k < kinds_; ++k) least = std::min(least, rest_[cell(layer, k)]);
      return least;
    };
    std::vector<double> least(as_size(layers_) + 1);
    for (int j = 0; j <= layers_; ++j) at(least, j) = least_rest(j);
    std::vector<label> all{{0, layers_, kinds_, -1, 0, 0}};
    std::vector<std::int32_t> used(pools, 0), counts(pools);
    std::vector<std::int32_t> open{0};  // the last one is next: depth first
    std::unordered_map<std::uint64_t, std::int32_t> furthest;
    struct child {
      double bound;
      label l;
    };
    std::vector<child> children;
    while (!open.empty()) {
      const auto id = open.back();
      open.pop_back();
      const auto l = at(all, id);
      if (l.first == 0) return {.what = answer::found, .chain = trace(all, id)};
      if (ended() || (++made_ % 4096 == 0 && ends())) return {.what = answer::stopped};
      if (static_cast<std::int64_t>(all.size()) > most_labels) return {.what = answer::stopped, .spent = true};
      if (l.stages == most_) continue;
      const double in_flight = chain_.in_flight(l.stages + 1);
      children.clear();
      for (int k = 0; k < kinds_; ++k) {
        const auto p = pool_of(k);
        const auto* now = used.data() + static_cast<std::ptrdiff_t>(l.used);
        if (now[p] >= chain_.pools[p].count) continue;
        if (const int twin = chain_.pools[p].twin; twin >= 0 && now[p] == 0 && now[twin] == 0) continue;
        const int first = std::max(starts_[cell(l.first, k)], earliest(k, l.first, in_flight));
        if (first == l.first) continue;
        work_ += static_cast<double>(pools);
        std::copy(now, now + pools, counts.begin());
        ++counts[p];
        double rents = 0;
        std::uint64_t number = 0;
        for (std::size_t q = 0; q < pools; ++q) {
          rents += pool_rents_[q] * counts[q];
          number = number * static_cast<std::uint64_t>(chain_.pools[q].count + 1) + static_cast<std::uint64_t>(counts[q]);
        }
        const double bound = rents + at(least, first) - all_rents;
        if (!(bound < tolerance::sums)) continue;
        if (const auto [known, is_new] = furthest.try_emplace(number, first); !is_new) {
          if (known->second <= first) continue;
          known->second = first;
        }
        children.push_back({bound, {0, first, k, id, l.stages + 1, static_cast<std::int32_t>(used.size())}});
        used.insert(used.end(), counts.begin(), counts.end());
      }
      std::sort(children.begin(), children.end(), [](const child& a, const child& b) { return a.bound > b.bound; });
      for (const auto& c : children) {
        all.push_back(c.l);
        open.push_back(static_cast<std::int32_t>(all.size()) - 1);
      }
    }
    return {};
  }

  // Calls put(label, bound) for every stage that may stand before those of a label; put may add to `used`.
  template <class Put>
  void extend(const label& l, std::int32_t id, const std::vector<count>& used, std::vector<count>& counts, double all_rents,
              Put put) {
    const auto pools = chain_.pools.size();
    const double in_flight = chain_.in_flight(l.stages + 1);
    for (int k = 0; k < kinds_; ++k) {
      const auto p = pool_of(k);
      const auto* now = used.data() + static_cast<std::ptrdiff_t>(l.used);
      if (now[p] >= chain_.pools[p].count) continue;
      if (const int twin = chain_.pools[p].twin; twin >= 0 && now[p] == 0 && now[twin] == 0) continue;
      const double across = l.kind == kinds_ ? 0.0 : moved(l.first - 1, k, l.kind);
      if (!(across < none)) continue;
      work_ += static_cast<double>(pools);
      std::copy(now, now + counts.size(), counts.begin());
      ++counts[p];
      double rents = stage_rent_ * (l.stages + 1);
      for (std::size_t q = 0; q < pools; ++q) rents += pool_rents_[q] * counts[q];
      // Each stage that is still to come takes a layer.
      const int left = chain_.stages - l.stages - 1;
      for (int i = std::max({starts_[cell(l.first, k)], earliest(k, l.first, in_flight), left}); i < l.first; ++i) {
        if (i == 0 && chain_.stages > 0 && l.stages + 1 != chain_.stages) continue;
        const double cost = l.cost + across + (weigh_ ? seconds(k, i, l.first) : 0.0);
        double bound = cost + rents + rest_[cell(i, k)] - all_rents;
        if (i == 0) bound = std::max(bound, cost);  // devices that were left pay no rent
        put(label{cost, i, k, id, l.stages + 1, static_cast<std::int32_t>(used.size())}, bound);
      }
    }
  }

  [[nodiscard]] result walk(std::int64_t most_labels) {
    std::vector<label> all;
    std::vector<count> used(lanes(), 0), counts(used);
    std::vector<std::vector<known_label>> known(rest_.size());  // by (first, kind)
    using entry = std::pair<std::pair<double, std::int32_t>, std::int32_t>;
    std::priority_queue<entry, std::vector<entry>, std::greater<>> open;
    const double all_rents = rents_of_all();
    const double too_much = most_cost();
    if (!(rest_[cell(layers_, kinds_)] - all_rents < too_much)) return {};
    all.push_back({0, layers_, kinds_, -1, 0, 0});
    open.push({{rest_[cell(layers_, kinds_)] - all_rents, layers_}, 0});
    while (!open.empty()) {
      const auto [key, id] = open.top();
      open.pop();
      const auto l = at(all, id);
      if (l.beaten) continue;
      if (l.first == 0) return {.what = answer::found, .chain = trace(all, id)};
      if (ended() || (++made_ % 4096 == 0 && ends())) return {.what = answer::stopped, .bound = key.first};
      if (static_cast<std::int64_t>(all.size()) > most_labels)
        return {.what = answer::stopped, .bound = key.first, .spent = true};
      if (l.stages == most_) continue;
      extend(l, id, used, counts, all_rents, [&](const label& made, double bound) {
        auto& there = known[cell(made.first, made.kind)];
        work_ += static_cast<double>(there.size() * lanes() / group);
        if (!(bound < too_much) || !keep(made, counts, all, used, there)) return;
        used.insert(used.end(), counts.begin(), counts.end());
        all.push_back(made);
        there.push_back({made.cost, made.stages, made.used, static_cast<std::int32_t>(all.size()) - 1});
        open.push({{bound, made.first}, there.back().id});
      });
    }
    return {};
  }

  // The best of `width` labels at each layer, by their bounds: some stages, mostly good ones.
  [[nodiscard]] std::optional<placed_chain> beam(std::size_t width) {
    std::vector<label> all{{0, layers_, kinds_, -1, 0, 0}};
    std::vector<count> used(lanes(), 0), counts(used);
    std::vector<std::int32_t> best;
    std::vector<std::vector<std::pair<double, label>>> at_layer(as_size(layers_));
    const double all_rents = rents_of_all();
    // Of labels with equal first layers and kinds, those that beat others have the lower bounds.
    const auto later = [](const auto& a, const auto& b) { return a.first > b.first; };
    const auto spread = [&](std::int32_t id) {
      const auto l = at(all, id);
      if (l.stages == most_) return;
      ++made_;
      extend(l, id, used, counts, all_rents, [&](const label& made, double bound) {
        if (bound < most_cost()) at(at_layer, made.first).push_back({bound, made});
      });
    };
    spread(0);
    for (auto layer = at_layer.size(); layer-- > 1;) {
      if (ended()) return {};
      auto& here = at_layer[layer];
      std::make_heap(here.begin(), here.end(), later);
      for (best.clear(); !here.empty() && best.size() < width; here.pop_back()) {
        std::pop_heap(here.begin(), here.end(), later);
        auto made = here.back().second;
        const auto* before = used.data() + at(all, made.parent).used;
        std::copy(before, before + counts.size(), counts.begin());
        ++counts[pool_of(made.kind)];
        if (std::any_of(best.begin(), best.end(), [&](std::int32_t id) {
              const auto& other = at(all, id);
              return other.kind == made.kind && other.cost <= made.cost && (chain_.stages == 0 || other.stages == made.stages) &&
                     covers(used.data() + other.used, counts.data());
            }))
          continue;
        made.used = static_cast<std::int32_t>(used.size());
        used.insert(used.end(), counts.begin(), counts.end());
        all.push_back(made);
        best.push_back(static_cast<std::int32_t>(all.size()) - 1);
      }
      for (const auto id : best) spread(id);
    }
    const auto end = std::min_element(at_layer.front().begin(), at_layer.front().end(),
                                      [](const auto& a, const auto& b) { return a.second.cost < b.second.cost; });
    if (end == at_layer.front().end()) return {};
    all.push_back(end->second);
    return trace(all, static_cast<std::int32_t>(all.size()) - 1);
  }

  // Counts stand in groups of four, which are compared as one number.
  static constexpr std::size_t group = 4;
  [[nodiscard]] std::size_t lanes() const { return (chain_.pools.size() + group - 1) / group * group; }
  // Whether no count of a is above that of b.
  [[nodiscard]] bool covers(const count* a, const count* b) const {
    constexpr std::uint64_t tops = 0x8000'8000'8000'8000;
    for (std::size_t q = 0; q < chain_.pools.size(); q += group) {
      std::uint64_t x, y;
      std::memcpy(&x, a + q, sizeof x);
      std::memcpy(&y, b + q, sizeof y);
      if ((((y | tops) - x) & tops) != tops) return false;
    }
    return true;
  }

  struct known_label {
    double cost;
    std::int32_t stages, used, id;
  };
  // Whether no label at the same place is as cheap with as few devices; takes out those that are worse.
  [[nodiscard]] bool keep(const label& made, const std::vector<count>& counts, std::vector<label>& all,
                          const std::vector<count>& used, std::vector<known_label>& there) const {
    for (std::size_t n = 0; n < there.size();) {
      const auto& other = there[n];
      const auto* its = used.data() + other.used;
      const bool alike = chain_.stages == 0 || other.stages == made.stages;
      if (alike && other.cost <= made.cost && covers(its, counts.data())) return false;
      if (alike && made.cost <= other.cost && covers(counts.data(), its)) {
        at(all, other.id).beaten = true;
        there[n] = there.back();
        there.pop_back();
      } else {
        ++n;
      }
    }
    return true;
  }

  [[nodiscard]] placed_chain trace(const std::vector<label>& all, std::int32_t id) const {
    placed_chain found;
    while (at(all, id).kind < kinds_) {
      const auto& l = at(all, id);
      const auto& behind = at(all, l.parent);
      found.stages.push_back({{l.first, behind.first}, l.kind});
      id = l.parent;
    }
    for (std::size_t i = 0; i < found.stages.size(); ++i) {
      const auto& s = found.stages[i];
      const double compute_s = seconds(s.kind, s.layers.first, s.layers.last);
      found.sum_s += compute_s;
      found.slowest_s = std::max(found.slowest_s, compute_s);
      if (i == 0) continue;
      const auto& t = chain_.transfer(s.layers.first - 1, found.stages[i - 1].kind, s.kind);
      found.sum_s += t.seconds;
      found.slowest_s = std::max(found.slowest_s, t.occupied_s);
    }
    return found;
  }

  const placement_chain& chain_;
  int layers_, kinds_, devices_ = 0, most_ = 0;
  double limit_s_ = none;
  double below_s_ = none;
  bool weigh_ = true;
  double stage_rent_ = 0;
  std::vector<double> pool_rents_;
  std::pair<std::vector<double>, double> sum_rents_, any_rents_;  // of the last searches, to begin with
  std::vector<double> rest_, inside_;                             // [layers ending here][kind]
  std::vector<int> starts_, step_, next_;                         // first layer allowed; first layer and kind of the stage chosen
  std::vector<double> moved_;                                     // as chain_.transfers
  struct front {
    std::ptrdiff_t begin = 0, end = 0;
  };
  std::vector<front> fronts_;                     // by kind, of in_front_
  std::vector<std::pair<int, double>> in_front_;  // [kind][...] first layers that may be best for a stage, and their value
  std::map<double, std::vector<int>> earliest_;   // by what is in flight
  std::int64_t made_ = 0, searches_ = 0;
  double work_ = 0;
};

}  // namespace hetsched::detail
