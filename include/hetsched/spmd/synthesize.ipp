// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/model/tensor_segments.hpp>
#include <hetsched/spmd/detail/prices.hpp>
#include <hetsched/spmd/detail/program_space.hpp>
#include <hetsched/spmd/detail/share_master.hpp>
#include <hetsched/spmd/detail/shares.hpp>
#include <hetsched/spmd/min_sum.hpp>
#include <hetsched/spmd/ratios.hpp>
#include <hetsched/spmd/synthesize.hpp>

namespace hetsched::spmd {

HETSCHED_INLINE void detail::expect_options(const synthesis_options& options) {
  hetsched::detail::expect_count(options.rounds, "rounds", 1, 1'000'000);
  if (!(options.work >= 0)) hetsched::detail::expect_natural(options.work, "work");
  if (!(options.gap >= -1 && options.gap < infinity))
    hetsched::detail::refuse_value("gap", hetsched::detail::number_text(options.gap), "a finite number of at least -1");
}

HETSCHED_INLINE std::optional<spmd::solution> even_data_parallel(spmd::problem problem, const synthesis_options& options) {
  validate(problem);
  detail::expect_options(options);
  return detail::unchecked::even_data_parallel(std::move(problem), options);
}

HETSCHED_INLINE std::optional<spmd::solution> detail::unchecked::even_data_parallel(spmd::problem problem,
                                                                                    const synthesis_options& options) {
  problem.data_parallel_only = true;
  const detail::program_space space(problem, detail::form_pairs::none, options.largest_table);
  const auto even = detail::even_shares(problem);
  const auto prices = detail::prices_in({even, even}, problem, detail::weights_by_speed(problem));
  const auto solved = space.solve(prices);
  if (!std::isfinite(solved.value)) return std::nullopt;
  auto steps = space.program(solved.values, prices);
  const double seconds = unchecked::seconds_of(unchecked::stages_of(problem, steps), even, problem.segments());
  return spmd::solution{std::move(steps), even, seconds, 0};
}

namespace detail {

// Programs and shares for a problem, the best so far, and boxes of shares with what none of their programs beats.
class spmd_search {
 public:
  spmd_search(const spmd::problem& problem, const synthesis_options& options)
      : problem_(problem), options_(options), speed_(weights_by_speed(problem)) {
    space_.emplace(problem, form_pairs::all, options.largest_table);
    if (!space_->exact()) {
      space_.emplace(problem, form_pairs::joined, options.largest_table);
      small_.emplace(problem, form_pairs::none, options.largest_table);
    }
    const auto slowest = as_size(std::min_element(speed_.begin(), speed_.end()) - speed_.begin());
    weights_.push_back(speed_);
    if (problem.kinds.size() > 1) weights_.push_back(weight_on(problem, slowest));
  }

  [[nodiscard]] std::optional<spmd::solution> run() {
    share_box all{even_shares(problem_)};
    for (std::size_t i = 0; i < all.low.size(); ++i) {
      all.low[i] = 0;
      all.high.push_back(1.0 / problem_.kinds[i % problem_.kinds.size()].count);
    }
    if (auto simple = unchecked::even_data_parallel(problem_, options_)) {
      auto balanced = unchecked::best_shares(unchecked::stages_of(problem_, simple->program), problem_.kinds, simple->shares);
      best_ = spmd::solution{std::move(simple->program), std::move(balanced.shares), balanced.seconds, 0};
    }
    alternate(shares_by_speed(problem_));
    alternate(even_shares(problem_));
    look_at(all, speed_, options_.rounds);
    std::vector<share_box> open{all};
    double closed = infinity;  // the least bound of what is not looked at any more
    const auto later = [](const share_box& a, const share_box& b) { return a.bound > b.bound; };
    while (!open.empty() && work_ < options_.work) {
      std::pop_heap(open.begin(), open.end(), later);
      auto box = std::move(open.back());
      open.pop_back();
      if (proven(box.bound) || (options_.progress && best_ && !options_.progress(best_->seconds, box.bound))) {
        closed = std::min(closed, box.bound);
        break;
      }
      for (auto& half : split(box)) {
        const auto start = half.weights;
        look_at(half, start, 3);
        open.push_back(std::move(half));
        std::push_heap(open.begin(), open.end(), later);
      }
    }
    if (!best_) return std::nullopt;
    for (const auto& box : open) closed = std::min(closed, box.bound);
    best_->bound = std::min(closed, best_->seconds);
    return std::move(best_);
  }

 private:
  [[nodiscard]] const program_space& programs() const { return small_ ? *small_ : *space_; }
  [[nodiscard]] min_sum_solution solve(const program_space& space, const std::vector<node_price>& prices) {
    work_ += space.work();
    return space.solve(prices);
  }
  [[nodiscard]] bool proven(double bound) const { return best_ && best_->seconds <= bound * (1 + options_.gap); }

  // The best shares of a program, which may be better than the best.
  std::vector<double> take(const spmd::program& steps, const std::vector<double>& start) {
    auto balanced = unchecked::best_shares(unchecked::stages_of(problem_, steps), problem_.kinds, start);
    if (!best_ || balanced.seconds < best_->seconds) best_ = spmd::solution{steps, balanced.shares, balanced.seconds, 0};
    return std::move(balanced.shares);
  }

  // Programs for shares and shares for programs in turn, until nothing gets better.
  void alternate(std::vector<double> shares) {
    for (int round = 0; round < options_.rounds; ++round) {
      const double before = best_ ? best_->seconds : infinity;
      const share_box here{shares, shares};
      for (const auto& w : weights_) {
        const auto prices = prices_in(here, problem_, w);
        const auto solved = solve(programs(), prices);
        if (!std::isfinite(solved.value)) continue;
        const auto steps = programs().program(solved.values, prices);
        const double seconds = unchecked::seconds_of(unchecked::stages_of(problem_, steps), here.low, problem_.segments());
        shares = take(steps, shares);
        // Nothing is faster at these shares: other weights find nothing.
        if (seconds <= solved.bound * (1 + 0.1 * options_.gap)) break;
      }
      if (!best_ || best_->seconds >= before * (1 - tolerance::sums)) break;
    }
  }

  // Raises the bound of a box: the weights under which the cheapest sum of prices is largest, by cuts. The programs on the way
  // may be better than the best.
  void look_at(share_box& box, std::vector<double> weights, int evaluations) {
    const std::size_t kinds = problem_.kinds.size();
    std::vector<share_cut> cuts;
    for (int i = 0; i < evaluations; ++i) {
      const auto prices = prices_in(box, problem_, weights);
      const auto solved = solve(*space_, prices);
      if (i == 0 || solved.bound > box.bound) box.weights = weights;
      box.bound = std::max(box.bound, solved.bound);
      if (proven(box.bound) || kinds == 1 || work_ > options_.work) return;
      if (!std::isfinite(solved.value)) return;
      const auto steps = space_->program(solved.values, prices);
      if (space_->possible(solved.values)) take(steps, centre(box));
      // The sum of prices of this program is linear in the weights near these; what the weight of one kind alone would make of it
      // is no cut, but its slope is.
      share_cut cut{0, std::vector<double>(kinds)};
      for (const auto& step : steps)
        if (step.collective || is_border(problem_.graph.at(step.node))) cut.height += price_of(at(prices, step.node), step);
      cut.height += solved.bound - solved.value;  // what was relaxed is not in the program
      loads_in(box, steps, weights, cut.slopes);
      cuts.push_back(std::move(cut));
      // share_master minimises the largest of cuts with slopes that are not negative.
      double most = 0;
      for (const auto& c : cuts)
        for (std::size_t k = 0; k < kinds; ++k) most = std::max(most, c.slopes[k] * problem_.kinds[k].count);
      auto turned = cuts;
      for (auto& c : turned) {
        c.height = -c.height;
        for (std::size_t k = 0; k < kinds; ++k)
          c.slopes[k] = most * problem_.kinds[k].count - c.slopes[k] * problem_.kinds[k].count;
      }
      const auto next = share_master(problem_.kinds).solve(turned);
      if (most - next.value <= box.bound * (1 + tolerance::sums)) return;
      weights = next.shares;
    }
  }

  // Seconds of each kind's devices in a program, with the shares in the box that are cheapest under the weights for each node.
  void loads_in(const share_box& box, const spmd::program& steps, const std::vector<double>& weights,
                std::vector<double>& loads) const {
    std::vector<double> rest(as_size(problem_.segments()), 1.0);
    for (std::size_t i = 0; i < box.low.size(); ++i)
      rest[i / loads.size()] -= box.low[i] * problem_.kinds[i % loads.size()].count;
    std::vector<std::pair<double, std::size_t>> cheapest(loads.size());
    for (const auto& step : steps) {
      const auto& n = problem_.graph.at(step.node);
      if (step.collective || is_leaf(n) || is_border(n)) continue;
      const auto first = problem_.first_share(step.node);
      for (std::size_t k = 0; k < loads.size(); ++k) {
        const auto& one = problem_.compute_of(step.node, k);
        loads[k] += step.rule.shared ? one.at(box.low[first + k]) : one.whole();
        cheapest[k] = {weights[k] * one.slope_s, k};
      }
      if (!step.rule.shared) continue;
      std::sort(cheapest.begin(), cheapest.end());
      double left = at(rest, n.segment);
      for (const auto& [per_share, k] : cheapest) {
        const double taken = std::min(left, (box.high[first + k] - box.low[first + k]) * problem_.kinds[k].count);
        if (taken <= 0) continue;
        loads[k] += problem_.compute_of(step.node, k).slope_s * taken / problem_.kinds[k].count;
        left -= taken;
      }
    }
  }

  [[nodiscard]] int count(std::size_t share) const { return problem_.kinds[share % problem_.kinds.size()].count; }

  // Shares in the middle of a box, made to add up.
  [[nodiscard]] std::vector<double> centre(const share_box& box) const {
    const auto kinds = problem_.kinds.size();
    std::vector<double> shares, all(box.low.size() / kinds);
    for (std::size_t i = 0; i < box.low.size(); ++i) {
      shares.push_back((box.low[i] + box.high[i]) / 2);
      all[i / kinds] += shares.back() * count(i);
    }
    for (std::size_t i = 0; i < shares.size(); ++i) shares[i] /= all[i / kinds];
    return shares;
  }

  // Halves across the widest side that have shares which add up to 1.
  [[nodiscard]] std::vector<share_box> split(const share_box& box) const {
    std::size_t widest = 0;
    const auto width = [&](std::size_t i) { return (box.high[i] - box.low[i]) * count(i); };
    for (std::size_t i = 1; i < box.low.size(); ++i)
      if (width(i) > width(widest)) widest = i;
    std::vector<share_box> halves{box, box};
    halves[0].high[widest] = halves[1].low[widest] = (box.low[widest] + box.high[widest]) / 2;
    const auto kinds = problem_.kinds.size(), begin = widest / kinds * kinds;  // the others of its segment
    std::erase_if(halves, [&](share_box& half) {
      double least = 0, most = 0;
      for (auto i = begin; i < begin + kinds; ++i) {
        least += half.low[i] * count(i);
        most += half.high[i] * count(i);
      }
      // What the other kinds leave for one is all that it can have.
      for (auto i = begin; i < begin + kinds; ++i) {
        half.high[i] = std::min(half.high[i], half.low[i] + (1 - least) / count(i));
        half.low[i] = std::max(half.low[i], half.high[i] - std::max(0.0, most - 1) / count(i));
      }
      return least > 1 || most < 1;
    });
    return halves;
  }

  const spmd::problem& problem_;
  const synthesis_options& options_;
  std::optional<program_space> space_, small_;  // small_: where programs come from if space_ is not exact
  std::vector<double> speed_;
  double work_ = 0;
  std::vector<std::vector<double>> weights_;
  std::optional<spmd::solution> best_;
};

}  // namespace detail

HETSCHED_INLINE std::optional<spmd::solution> synthesize(const spmd::problem& problem, const synthesis_options& options) {
  validate(problem);
  detail::expect_options(options);
  return detail::unchecked::synthesize(problem, options);
}

HETSCHED_INLINE std::optional<spmd::solution> detail::unchecked::synthesize(const spmd::problem& problem,
                                                                            const synthesis_options& options) {
  return spmd_search(problem, options).run();
}

}  // namespace hetsched::spmd
