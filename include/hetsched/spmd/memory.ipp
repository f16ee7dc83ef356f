// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/spmd/detail/prices.hpp>
#include <hetsched/spmd/detail/program_space.hpp>
#include <hetsched/spmd/detail/shares.hpp>
#include <hetsched/spmd/memory.hpp>
#include <hetsched/spmd/ratios.hpp>

namespace hetsched::spmd {

namespace detail {

inline void expect_parameter_bytes(double bytes) {
  if (!(bytes >= 0 && bytes <= 1e9))
    hetsched::detail::refuse_value("parameter_bytes", hetsched::detail::number_text(bytes), "0 to 1e9");
}

inline void expect_number(double value, std::string_view what) {
  if (std::isnan(value)) hetsched::detail::refuse_value(what, hetsched::detail::number_text(value), "a number");
}

}  // namespace detail

HETSCHED_INLINE double program_memory::at(double share) const {
  hetsched::detail::expect_natural(share, "share");
  double most = 0;
  for (const auto& s : steps) most = std::max(most, s.at(share));
  return state.at(share) + most;
}

HETSCHED_INLINE double program_memory::largest_share(double bytes) const {
  detail::expect_number(bytes, "bytes");
  double most = 1;
  for (const auto& s : steps) {
    const double left = bytes - state.fixed_s - s.fixed_s, slope = state.slope_s + s.slope_s;
    if (left < 0) return -1;
    if (slope > 0) most = std::min(most, left / slope);
  }
  return most;
}

HETSCHED_INLINE program_memory memory_of(const spmd::problem& p, const spmd::program& steps, double parameter_bytes,
                                         const std::vector<double>& scale) {
  validate(p, steps);
  detail::expect_parameter_bytes(parameter_bytes);
  if (!scale.empty())
    hetsched::detail::expect_size(scale.size(), as_size(p.segments()), "scale", "one for each segment, or none");
  hetsched::detail::expect_naturals(scale, "scale");
  return detail::unchecked::memory_of(p, steps, parameter_bytes, scale);
}

HETSCHED_INLINE std::vector<double> peak_bytes(const spmd::problem& p, const spmd::program& steps,
                                               const std::vector<double>& shares, double parameter_bytes) {
  validate(p, steps);
  detail::expect_parameter_bytes(parameter_bytes);
  detail::expect_shares(shares, p.kinds, as_size(p.segments()), "shares");
  return detail::unchecked::peak_bytes(p, steps, shares, parameter_bytes);
}

HETSCHED_INLINE double least_bytes(const spmd::problem& p, double parameter_bytes) {
  validate(p);
  detail::expect_parameter_bytes(parameter_bytes);
  return detail::unchecked::least_bytes(p, parameter_bytes);
}

}  // namespace hetsched::spmd

namespace hetsched::spmd::detail::unchecked {

HETSCHED_INLINE program_memory memory_of(const spmd::problem& p, const spmd::program& steps, double parameter_bytes,
                                         const std::vector<double>& scale) {
  struct instance {
    tensor_form form = tensor_form::whole();
    std::size_t last = 0;
    share_cost bytes{};
  };
  std::vector<std::vector<instance>> of(p.graph.nodes.size());  // as a node is produced, and after its collective
  // The tensor that is read in a form: that one, or all of it.
  const auto read = [&](int node, tensor_form form, std::size_t step) {
    auto& all = at(of, node);
    auto found = std::find_if(all.begin(), all.end(), [&](const instance& t) { return t.form == form; });
    if (found == all.end()) found = std::find_if(all.begin(), all.end(), [](const instance& t) { return t.form.is_whole(); });
    if (found != all.end()) found->last = step;
  };
  program_memory memory;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto& step = steps[i];
    const auto& n = p.graph.at(step.node);
    if (step.collective) read(step.node, step.from, i);
    for (std::size_t k = 0; k < n.inputs.size() && !step.collective; ++k) read(n.inputs[k], step.rule.inputs[k], i);
    const auto form = step.collective ? step.to : step.rule.result;
    const double bytes =
        static_cast<double>(elements_of(n.shape)) * (is_parameter(n) ? parameter_bytes : element_bytes(p.graph.format));
    const double times = scale.empty() ? 1 : at(scale, n.segment);
    const share_cost more = form.is_cut() ? share_cost{0, times * bytes} : share_cost{bytes, 0};
    if (!is_parameter(n)) {
      at(of, step.node).push_back({form, i, more});
      continue;
    }
    memory.state.fixed_s += more.fixed_s;
    memory.state.slope_s += more.slope_s;
  }
  const auto keep = [&](int node) {
    for (auto& t : at(of, node)) t.last = steps.size();
  };
  if (p.goal.loss >= 0) keep(p.goal.loss);
  for (const int node : p.goal.whole) keep(node);
  for (const auto& [parameter, gradient] : p.goal.gradients)
    if (const auto& all = at(of, gradient); !all.empty()) {
      // Of a gradient the last form that it is brought into; both where its parameter is read in both.
      at(of, gradient).back().last = steps.size();
    }
  std::vector<std::vector<share_cost>> made(steps.size() + 1), gone(steps.size() + 2);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto& step = steps[i];
    const auto form = step.collective ? step.to : step.rule.result;
    for (const auto& t : at(of, step.node))
      if (t.form == form) {
        made[i].push_back(t.bytes);
        gone[t.last + 1].push_back(t.bytes);
      }
  }
  share_cost now;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    for (const auto& t : gone[i]) now = {now.fixed_s - t.fixed_s, now.slope_s - t.slope_s};
    for (const auto& t : made[i]) now = {now.fixed_s + t.fixed_s, now.slope_s + t.slope_s};
    memory.steps.push_back(now);
  }
  return memory;
}

HETSCHED_INLINE std::vector<double> peak_bytes(const spmd::problem& p, const spmd::program& steps,
                                               const std::vector<double>& shares, double parameter_bytes) {
  std::vector<double> bytes;
  for (std::size_t k = 0; k < p.kinds.size(); ++k) {
    std::vector<double> own;
    for (std::size_t i = k; i < shares.size(); i += p.kinds.size()) own.push_back(shares[i]);
    bytes.push_back(unchecked::memory_of(p, steps, parameter_bytes, own).at(1));
  }
  return bytes;
}

HETSCHED_INLINE double least_bytes(const spmd::problem& p, double parameter_bytes) {
  const auto needed = needed_nodes(p);
  double bytes = 0;
  for (int i = 0; i < p.graph.size(); ++i)
    if (at(needed, i) && is_parameter(p.graph.at(i)))
      bytes += static_cast<double>(elements_of(p.graph.at(i).shape)) * parameter_bytes;
  for (const auto& [parameter, gradient] : p.goal.gradients) bytes += tensor_bytes(p.graph, gradient);
  return bytes;
}

}  // namespace hetsched::spmd::detail::unchecked

namespace hetsched::spmd {

namespace detail {

// Shares at or below limits, as near as can be to the given ones: what is cut off goes to the others in proportion, and where
// these have nothing evenly. Empty where limits add up to less than 1.
[[nodiscard]] inline std::vector<double> shares_within(std::vector<double> shares, const std::vector<double>& limits,
                                                       const std::vector<device_kind>& kinds) {
  double room = 0;
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    if (limits[k] < 0) return {};
    room += limits[k] * kinds[k].count;
  }
  if (room < 1) return {};
  std::vector<char> full(kinds.size());
  for (std::size_t round = 0; round <= kinds.size(); ++round) {
    double over = 0, weight = 0, free = 0;
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      if (shares[k] > limits[k]) {
        over += (shares[k] - limits[k]) * kinds[k].count;
        shares[k] = limits[k];
        full[k] = 1;
      }
      if (full[k]) continue;
      weight += shares[k] * kinds[k].count;
      free += kinds[k].count;
    }
    if (over <= 0 || free == 0) break;
    for (std::size_t k = 0; k < kinds.size(); ++k)
      if (!full[k]) shares[k] = weight > 0 ? shares[k] * (1 + over / weight) : shares[k] + over / free;
  }
  return shares;
}

// Shares in proportion to memory.
[[nodiscard]] inline std::vector<double> shares_by_room(const spmd::problem& p, std::vector<double> room) {
  double all = 0;
  for (std::size_t k = 0; k < room.size(); ++k) all += room[k] * p.kinds[k].count;
  for (auto& share : room) share = all > 0 ? share / all : 1.0 / p.device_count();
  return room;
}

// A program with the best of the shares that memory leaves; none where it leaves none.
[[nodiscard]] inline std::optional<spmd::solution> within(const spmd::problem& p, spmd::program steps, std::vector<double> shares,
                                                          const std::vector<double>& capacity, double parameter_bytes) {
  const auto memory = unchecked::memory_of(p, steps, parameter_bytes);
  std::vector<double> limits;
  for (const double bytes : capacity) limits.push_back(memory.largest_share(bytes));
  shares = shares_within(std::move(shares), limits, p.kinds);
  if (shares.empty()) return std::nullopt;
  const double seconds = unchecked::seconds_of(unchecked::stages_of(p, steps), shares);
  return spmd::solution{std::move(steps), std::move(shares), seconds, 0};
}

// The search for a program that fits, by prices of holding tensors. It keeps the best one, and until there is one what the
// nearest holds.
class fit_search {
 public:
  fit_search(const spmd::problem& problem, const std::vector<double>& capacity, double parameter_bytes,
             const synthesis_options& options, spmd::fit& fit)
      : problem_(problem),
        capacity_(capacity),
        parameter_bytes_(parameter_bytes),
        options_(options),
        fit_(fit),
        priced_(problem) {}

  /// Takes a program if it fits and is better; returns whether it fits.
  bool take(const spmd::program& steps, const std::vector<double>& shares) {
    auto found = within(problem_, steps, shares, capacity_, parameter_bytes_);
    const auto memory = unchecked::memory_of(problem_, steps, parameter_bytes_);
    if (found) {
      if (fit_.solution && fit_.solution->seconds <= found->seconds) return true;
      fit_.bytes.clear();
      for (const double share : found->shares) fit_.bytes.push_back(memory.at(share));
      fit_.solution = std::move(found);
      fit_.solution->bound = fit_.bound;
      return true;
    }
    if (!fit_.solution) note_nearest(memory);
    return false;
  }

  /// Raises the price until programs fit, then looks for how much of the graph needs it. `fastest_s`: of the fastest program.
  void price_memory(double fastest_s) {
    double all_bytes = 0;
    int forward = 0;
    for (int i = 0; i < problem_.graph.size(); ++i) {
      all_bytes += tensor_bytes(problem_.graph, i);
      if (problem_.graph.at(i).gradient_of < 0) forward = i + 1;
    }
    constexpr int most_raised = 12, halvings = 8;
    double high = 1e-3 * fastest_s / all_bytes;
    int raised = 0;
    while (!fits_at(high, high, forward) && raised < most_raised) {
      high *= 8;
      ++raised;
    }
    if (raised == most_raised && !fit_.solution) return;
    for (const double low : {0.0, high / 8}) {
      int fits = forward, lacks = 0;
      for (int halved = 0; halved < halvings && fits - lacks > 1; ++halved) {
        const int middle = (fits + lacks) / 2;
        (fits_at(low, high, middle) ? fits : lacks) = middle;
      }
    }
  }

 private:
  void note_nearest(const program_memory& memory) {
    const auto by_room = shares_by_room(problem_, capacity_);
    double most = 0;
    std::vector<double> bytes;
    for (std::size_t k = 0; k < capacity_.size(); ++k) {
      bytes.push_back(memory.at(by_room[k]));
      most = std::max(most, bytes.back() / capacity_[k]);
    }
    if (!(most < nearest_)) return;
    nearest_ = most;
    fit_.bytes = std::move(bytes);
  }

  // Whether a program fits where holding has the high price up to a node and what belongs to its backward, the low one behind it:
  // so alike layers need not be computed alike.
  bool fits_at(double low, double high, int to) {
    priced_.holding_s.clear();
    for (int i = 0; i < problem_.graph.size(); ++i) {
      const auto& n = problem_.graph.at(i);
      const double per_byte = (n.gradient_of < 0 ? i : n.gradient_of) < to ? high : low;
      priced_.holding_s.push_back(per_byte * static_cast<double>(elements_of(n.shape)) *
                                  (is_parameter(n) ? parameter_bytes_ : element_bytes(problem_.graph.format)));
    }
    const program_space space(priced_, form_pairs::none, options_.largest_table);
    bool fits = false;
    for (const auto& shares : {shares_by_speed(problem_), shares_by_room(problem_, capacity_)}) {
      const auto prices = prices_in({shares, shares}, problem_, shares_by_speed(problem_));
      const auto solved = space.solve(prices);
      if (!std::isfinite(solved.value)) continue;
      auto steps = space.program(solved.values, prices);
      const auto best = unchecked::best_shares(unchecked::stages_of(problem_, steps), problem_.kinds, shares);
      fits = take(steps, best.shares) || fits;
      fits = take(steps, shares) || fits;
    }
    return fits;
  }

  const spmd::problem& problem_;
  const std::vector<double>& capacity_;
  double parameter_bytes_;
  const synthesis_options& options_;
  spmd::fit& fit_;
  spmd::problem priced_;
  double nearest_ = infinity;  // the fullest device's share of its memory, of the nearest program that does not fit
};

}  // namespace detail

HETSCHED_INLINE spmd::fit synthesize_within(const spmd::problem& problem, const std::vector<double>& all_capacity,
                                            double parameter_bytes, const synthesis_options& options) {
  validate(problem);
  detail::expect_options(options);
  detail::expect_parameter_bytes(parameter_bytes);
  hetsched::detail::expect_size(all_capacity.size(), problem.kinds.size(), "capacity", "one for each kind of device");
  std::vector<double> capacity;
  for (const double bytes : all_capacity) {
    if (!(bytes >= 0)) hetsched::detail::expect_natural(bytes, "capacity");
    capacity.push_back(std::min(bytes, 1e30));  // infinite ones have no proportion
  }
  spmd::fit fit;
  auto fastest = detail::unchecked::synthesize(problem, options);
  if (!fastest) return fit;
  fit.bound = fastest->bound;
  double room = 0;
  for (std::size_t k = 0; k < capacity.size(); ++k) room += capacity[k] * problem.kinds[k].count;
  fit.none_fits = detail::unchecked::least_bytes(problem, parameter_bytes) > room;
  if (problem.segments() > 1) {
    fit.bytes = detail::unchecked::peak_bytes(problem, fastest->program, fastest->shares, parameter_bytes);
    bool fits = true;
    for (std::size_t k = 0; k < capacity.size(); ++k) fits = fits && fit.bytes[k] <= capacity[k];
    if (fits) fit.solution = std::move(fastest);
    return fit;
  }
  detail::fit_search search(problem, capacity, parameter_bytes, options, fit);
  if (!search.take(fastest->program, fastest->shares)) search.price_memory(fastest->seconds);
  return fit;
}

}  // namespace hetsched::spmd
