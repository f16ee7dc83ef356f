// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/submesh.hpp>
#include <hetsched/cluster/validate.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/planners/any_schedule.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>
#include <hetsched/search/pack_devices.hpp>

namespace hetsched {

namespace detail {

/// Shortest ways of the first microbatch through stages that all end in time.
class any_schedule_search {
 public:
  any_schedule_search(const cluster& hardware, const interop_problem& problem, const stage_prices& table,
                      const any_schedule_options& how)
      : hardware_(hardware),
        problem_(problem),
        table_(table),
        how_(how),
        microbatches_(how.haste * how.microbatches),
        layers_(as_size(problem.layers)),
        most_(as_size(*std::max_element(problem.devices.begin(), problem.devices.end()))) {
    for (std::size_t p = 0; p < problem.placements.size(); ++p)
      if (!problem.placements[p].dominated) usable_.push_back(static_cast<int>(p));
    if (problem.devices.size() > most_subclusters) return;
    sets_ = std::size_t{1} << problem.devices.size();
    // The furthest end of a stage that fits.
    reach_.resize(problem.placements.size());
    for (const int p : usable_) {
      auto& row = at(reach_, p);
      row.assign(layers_ + 1, 0);
      table_.furthest(p, infinity, at(problem.placements, p).capacity, how.in_flight, row.data());
    }
  }

  /// Whether there is room for what it keeps.
  [[nodiscard]] bool fits() const {
    constexpr std::size_t most_states = 400'000;
    return sets_ > 0 && states() <= most_states;
  }

  [[nodiscard]] std::optional<bounded_pipeline> best() {
    double low = 0, high = how_.below_s > 0 ? how_.below_s : infinity;
    std::optional<bounded_pipeline> found;
    if (high == infinity) {
      found = within(infinity);
      if (!found) return found;
      high = found->bound_s;
    }
    while (high - low > 1e-5 * high && !tired_) {
      const double middle = low + (high - low) / 2;
      if (!(middle > low && middle < high)) break;
      auto better = within(middle);
      if (better) {
        high = std::min(middle, better->bound_s);
        found = std::move(better);
      } else if (!tired_) {
        low = middle;
      }
    }
    if (found && !tired_) found->lowest_s = low;
    return found;
  }

 private:
  static constexpr std::size_t most_subclusters = 8;
  struct step {
    double before = infinity;  ///< what the first microbatch takes there and back, this stage included
    int placement = -1, first = 0;
    std::uint32_t from = 0;
  };

  [[nodiscard]] std::size_t states() const { return (layers_ + 1) * sets_ * as_size(problem_.classes()) * (most_ + 1); }
  [[nodiscard]] std::size_t index(std::size_t layer, std::size_t set, int behind, std::size_t used) const {
    return ((layer * sets_ + set) * as_size(problem_.classes()) + as_size(behind)) * (most_ + 1) + used;
  }
  /// The pipeline whose first microbatch takes the least of those that end by `limit`.
  [[nodiscard]] std::optional<bounded_pipeline> within(double limit) {
    steps_.assign(states(), {});
    const auto try_stages = [&](std::size_t layer, std::size_t set, int behind, int used, double before, std::uint32_t from) {
      for (const int p : usable_) {
        const auto& next = at(problem_.placements, p);
        const auto own = std::size_t{1} << next.subcluster;
        const bool stays = behind >= 0 && at(problem_.class_subcluster, behind) == next.subcluster;
        if (!stays && (set & own) != 0) continue;
        const int taken = (stays ? used : 0) + next.devices;
        if (taken > at(problem_.devices, next.subcluster)) continue;
        double way = 0;
        if (behind >= 0) {
          const auto kind = problem_.kind_before(static_cast<int>(layer));
          way = problem_.transfer(behind, next.transfer_class)[kind].round_trip;
          // Where on a node they lie is not known yet.
          if (stays && next.on_one_node)
            way = std::min(way, problem_.near_transfer(behind, next.transfer_class)[kind].round_trip);
        }
        const double here = before + way;
        const int first = static_cast<int>(layer), furthest = at(reach_, p)[layer];
        for (int last = first + 1; last <= furthest; ++last) {
          const double seconds = table_.time(p, first, last);
          const bool in_time = here + microbatches_ * seconds <= limit;
          if (table_.additive() && !in_time) break;  // else more layers may take less, and less memory
          ++looked_at_;
          if (!table_.additive() && (!in_time || table_.memory(p, first, last, how_.in_flight) > next.capacity)) continue;
          auto& known = steps_[index(as_size(last), set | own, next.transfer_class, as_size(taken))];
          if (here + seconds < known.before) known = {here + seconds, p, first, from};
        }
      }
    };
    try_stages(0, 0, -1, 0, 0, 0);
    const auto per_layer = states() / (layers_ + 1);
    for (std::size_t layer = 1; layer < layers_; ++layer)
      for (std::size_t k = 0; k < per_layer; ++k) {
        const auto& s = steps_[layer * per_layer + k];
        if (!(s.before < infinity)) continue;
        if (looked_at_ > how_.steps) {
          tired_ = true;
          return std::nullopt;
        }
        const auto used = static_cast<int>(k % (most_ + 1));
        const auto rest = k / (most_ + 1);
        const auto classes = as_size(problem_.classes());
        try_stages(layer, rest / classes, static_cast<int>(rest % classes), used, s.before,
                   static_cast<std::uint32_t>(layer * per_layer + k));
      }
    const auto ends = steps_.begin() + static_cast<std::ptrdiff_t>(layers_ * per_layer);
    const auto end = std::min_element(ends, steps_.end(), [](const step& a, const step& b) { return a.before < b.before; });
    if (!(end->before < infinity)) return std::nullopt;
    return trace(static_cast<std::uint32_t>(end - steps_.begin()));
  }

  [[nodiscard]] bounded_pipeline trace(std::uint32_t end) const {
    bounded_pipeline found;
    found.line.microbatches = how_.microbatches;
    std::vector<submesh> meshes;
    int last = problem_.layers;
    while (true) {
      const auto& s = steps_[end];
      const auto& p = at(problem_.placements, s.placement);
      const double seconds = table_.time(s.placement, s.first, last);
      found.bound_s = std::max(found.bound_s, s.before + (microbatches_ - 1) * seconds);
      stage_plan stage;
      stage.layers = {s.first, last};
      meshes.insert(meshes.begin(), p.where.mesh);
      stage.degrees = p.where.degrees;
      stage.recompute = p.where.recompute;
      stage.zero = p.where.zero;
      found.line.stages.insert(found.line.stages.begin(), std::move(stage));
      if (s.first == 0) break;
      last = s.first;
      end = s.from;
    }
    const auto groups = pack_devices(hardware_, meshes);
    for (std::size_t i = 0; i < groups.size(); ++i) found.line.stages[i].devices = {groups[i]};
    return found;
  }

  const cluster& hardware_;
  const interop_problem& problem_;
  const stage_prices& table_;
  any_schedule_options how_;
  double microbatches_;
  std::size_t layers_, most_, sets_ = 0;
  std::vector<int> usable_;
  std::vector<std::vector<int>> reach_;  ///< by placement and first layer
  std::vector<step> steps_;  ///< [layers done][subclusters used][class of the last stage][devices used of its subcluster]
  std::int64_t looked_at_ = 0;
  bool tired_ = false;
};

}  // namespace detail

HETSCHED_INLINE outcome<std::vector<std::optional<bounded_pipeline>>> any_schedule_pipelines(
    price_book& book, std::span<const any_schedule_options> options, function_ref<bool()> go_on) {
  using all = std::vector<std::optional<bounded_pipeline>>;
  for (const auto& o : options)
    if (o.microbatches < 1 || !(o.haste > 0 && o.haste <= 1e9) || o.in_flight < 1 || !(o.below_s >= 0 && o.below_s < infinity))
      throw input_error("a pipeline for any schedule needs microbatches, a haste above 0, one in flight and no negative limit");
  detail::validate_network(book.hardware(), false);
  return detail::with_tables(
      book,
      [&](const detail::interop_problem& problem, const detail::stage_prices& table) -> outcome<all> {
        all found;
        for (const auto& o : options) {
          if (go_on && !go_on()) break;
          detail::any_schedule_search search(book.hardware(), problem, table, o);
          if (!search.fits())
            return refusal{refusal::kind::infeasible, "the cluster is too large for a search over all schedules"};
          found.push_back(search.best());
        }
        found.resize(options.size());
        return found;
      },
      go_on);
}

}  // namespace hetsched
