// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/network/send_mode.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched {

/// What a plan is to be good at, where ranks and links vary from iteration to iteration.
struct robust_options {
  double share = 0.9;   ///< of iterations that are to be as short as possible: the quantile
  double spread = 0.1;  ///< as jitter_options have it
  int samples = 200;
  std::uint64_t seed = 1;
  send_mode sends = send_mode::asynchronous;  ///< of the trainer: iterations are those with them, as of fastest_with_sends
  evaluate_options how = {};
  /// Called before each plan is looked at, with how many have been and the best quantile; false ends the search.
  std::function<bool(int plans, double best_s)> go_on = {};
};

/// A plan chosen by a quantile of its iterations.
struct robust_plan {
  hetsched::plan plan;    ///< evaluated; its prediction is the iteration without noise
  double quantile_s = 0;  ///< of noise that the search has not seen, four times as many samples
  double fastest_s = 0;   ///< the same of the plan with the shortest iteration that the search began with
  double searched_s = 0;  ///< the least quantile that the search saw; too good by what suits its noise by chance
  int plans = 0;          ///< looked at
};

/// Iterations of an evaluated plan in which every rank, its update included, and every wire is faster or slower by a random
/// factor, which it keeps through the iteration; in seconds, one per sample, in the order in which they were drawn. Reductions
/// between pipelines take their time. `trainer` sends as for sends_under. Throws: input_error for a plan that was not evaluated,
/// a spread or samples below 0, and no way to send. Complexity: samples times simulate. Determinism: as makespans_under_jitter.
[[nodiscard]] std::vector<double> iterations_under_jitter(const plan& p, double spread, int samples, std::uint64_t seed = 1,
                                                          send_mode trainer = send_mode::asynchronous);

/// The plan whose quantile of noisy iterations is least that a local search finds: it begins with the best of some plans, and
/// moves single layers between neighbouring stages, raises and lowers warm-ups, and moves microbatches between pipelines as long
/// as that helps, within memory. All plans of a shape get the same noise. What fits that noise by chance is no gain: other noise
/// then judges between the plan that was found, the best one that it began with, and the one with the shortest iteration. The
/// evidence of a plan that has changed tells its iteration and the bound as before, as no longer complete.
/// Returns: the refusal of the first plan if none of them can be evaluated and fits.
/// Throws: input_error for no plans, a share outside of (0, 1], a spread below 0 and no samples; and as evaluate.
/// Complexity: (plans looked at) * (evaluate + up to `samples` times simulate). Determinism: by the arguments, unless go_on ends
/// it.
[[nodiscard]] outcome<robust_plan> most_robust_plan(const cluster& hardware, const costs_by_size& costs_for,
                                                    std::vector<plan> plans, const robust_options& options = {});

/// A cluster as it may turn out to be.
struct speed_case {
  std::string device;         ///< the only kind that is not as fast as priced; empty: none or several
  std::vector<double> speed;  ///< factor of each subcluster: 0.8 is 20 % slower than priced
  cluster hardware;
};

/// What costs are on a cluster whose devices have another speed, device::speed; the answer may refer to the cluster.
using costs_on_cluster = std::function<costs_by_size(const cluster&)>;

/// The cluster as priced; then each kind of device (by name) alone slower and faster by the share `bias`; then, of two to four
/// kinds, all of them slower or faster in every combination.
/// Throws: input_error as validate, and for a bias outside of (0, 1).
[[nodiscard]] std::vector<speed_case> speed_cases(const cluster& hardware, double bias);

struct regret_options {
  evaluate_options how = {};
  bool moves = true;  ///< whether neighbours of the best plan are looked at, too, as most_robust_plan does
  send_mode sends = send_mode::asynchronous;  ///< of the trainer: iterations are those with them, as of fastest_with_sends
  /// Called before each plan is looked at, with how many have been and the least worst loss; false ends the search.
  std::function<bool(int plans, double worst_loss)> go_on = {};
};

/// What knowing the speed of a kind of device would be worth.
struct speed_doubt {
  std::string device;
  double gain = 0;  ///< share by which a plan made for its speed is faster at the most, if all else is as priced

  friend bool operator==(const speed_doubt&, const speed_doubt&) = default;
};

/// A plan that loses little, whichever case comes true.
struct unbiased_plan {
  hetsched::plan plan;              ///< evaluated in the first case
  double worst_loss = 0;            ///< over the cases, its iteration over that of the best plan known in the same case, less 1
  double fastest_loss = 0;          ///< the same of the plan with the shortest iteration in the first case
  double worst_s = 0;               ///< its longest iteration
  std::vector<double> losses;       ///< of each case
  std::vector<speed_doubt> doubts;  ///< of each kind of device, the largest gain first: what is to be measured next
  int plans = 0;                    ///< looked at
};

/// Of some plans and what a local search makes of the best of them, the one whose worst loss is least. The worst iteration itself
/// would tell plans little apart: it is that of devices which are all slow, where the best plan hardly changes. The plan has no
/// evidence, as what a search says of one case says nothing of others.
/// Returns: the refusal of the first plan if none of them can be evaluated and fits.
/// Throws: input_error for no plans and no cases; and as evaluate.
/// Complexity: (plans looked at) * (cases) * evaluate. Determinism: by the arguments, unless go_on ends it.
[[nodiscard]] outcome<unbiased_plan> least_regret_plan(std::span<const speed_case> cases, const costs_on_cluster& costs_on,
                                                       std::vector<plan> plans, const regret_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/evaluate/robust.ipp>
#endif
