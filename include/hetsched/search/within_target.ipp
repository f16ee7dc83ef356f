// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/plan/detail/device_rules.hpp>
#include <hetsched/search/within_target.hpp>

namespace hetsched {

namespace detail {

// Whether a target runs a placement; `alone`: and only as that of a single stage.
[[nodiscard]] inline bool is_of(const plan_target& t, const placement& where, bool alone) {
  return alone ? allows(t, where, true) && !allows(t, where) : allows(t, where);
}

inline constexpr int any_value = -1;

[[nodiscard]] inline std::vector<int> values_of(const std::vector<stage_trait>& traits, const placement& where) {
  std::vector<int> values;
  for (const auto trait : traits) values.push_back(matters(trait, where) ? value_of(trait, where) : any_value);
  return values;
}

// Whether a stage of these values may stand beside others of a choice.
[[nodiscard]] inline bool fits(const std::vector<int>& values, const std::vector<int>& choice) {
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i] != choice[i] && values[i] != any_value) return false;
  return true;
}

// How much memory stages of a choice save, to be compared: what they compute again, then by cutting and sharing.
[[nodiscard]] inline std::vector<int> savings(const target_choice& choice) {
  std::vector<int> saved;
  for (const auto trait : {stage_trait::recompute, stage_trait::tensor, stage_trait::zero, stage_trait::data})
    for (std::size_t i = 0; i < choice.traits.size(); ++i)
      if (choice.traits[i] == trait) saved.push_back(choice.values[i]);
  return saved;
}

// The rows of values that placements have. Stages of which a trait says nothing may stand beside any others: they are a row of
// their own only if there are no others.
[[nodiscard]] inline std::vector<std::vector<int>> rows_of(const std::vector<stage_trait>& traits,
                                                           const std::vector<placement>& all) {
  std::vector<std::vector<int>> rows;
  for (const auto& where : all) rows.push_back(values_of(traits, where));
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  auto kept = rows;
  std::erase_if(kept, [&](const auto& row) {
    return std::any_of(rows.begin(), rows.end(), [&](const auto& other) { return other != row && fits(row, other); });
  });
  return kept;
}

/// Sets of devices that a target takes together, none part of another, as nodes by subcluster.
class device_sets {
 public:
  device_sets(const cluster& hardware, const plan_target& t, std::optional<precision> asked)
      : hardware_(hardware), target_(t), asked_(asked) {}

  [[nodiscard]] std::vector<std::vector<int>> run() {
    std::map<precision, std::vector<int>> alike;
    for (std::size_t k = 0; k < hardware_.subclusters.size(); ++k) {
      const auto computed = asked_ ? hardware_.subclusters[k].device.computes_in(*asked_) : target_.precisions.front();
      const auto& known = target_.precisions;
      if (std::find(known.begin(), known.end(), computed) == known.end() ||
          (target_.joined_by_nccl && !known_to_nccl(hardware_.subclusters[k].device)))
        continue;
      alike[target_.one_precision ? bits_of(computed) : precision::fp32].push_back(static_cast<int>(k));
    }
    for (auto& [ignored, members] : alike) target_.joined_by_nccl ? add_joined({}, members, {}) : add(members);
    return std::move(found_);
  }

 private:
  void add(const std::vector<int>& members) {
    std::vector<int> nodes(hardware_.subclusters.size());
    for (const int k : members)
      at(nodes, k) = target_.joined_by_nccl && !joined_by_nccl(hardware_, k, k) ? 1 : at(hardware_.subclusters, k).nodes;
    found_.push_back(std::move(nodes));
  }

  // The largest sets that have `in` and some of `may`, of which all are joined with each other; those with any of `seen` were
  // found before. Source: Bron and Kerbosch.
  void add_joined(const std::vector<int>& in, std::vector<int> may, std::vector<int> seen) {
    if (may.empty() && seen.empty()) return add(in);
    const auto joined_to = [&](int k, std::vector<int> others) {
      std::erase_if(others, [&](int other) { return other == k || !joined_by_nccl(hardware_, k, other); });
      return others;
    };
    if (may.empty()) return;
    const int first = may.front();  // of which every set has it, or one that is not joined to it
    auto tried = may;
    std::erase_if(tried, [&](int k) { return k != first && joined_by_nccl(hardware_, first, k); });
    for (const int k : tried) {
      auto more = in;
      more.push_back(k);
      add_joined(more, joined_to(k, may), joined_to(k, seen));
      std::erase(may, k);
      seen.push_back(k);
    }
  }

  const cluster& hardware_;
  const plan_target& target_;
  std::optional<precision> asked_;
  std::vector<std::vector<int>> found_;
};

// Degrees of experts that a target takes on each subcluster; empty if any.
[[nodiscard]] inline std::vector<int> most_expert_of(const cluster& hardware, const plan_target& t,
                                                     std::optional<precision> asked) {
  std::vector<int> most;
  if (t.fp16_experts || !asked) return most;
  for (const auto& s : hardware.subclusters)
    most.push_back(s.device.computes_in(*asked) == precision::fp16 ? 1 : std::numeric_limits<int>::max());
  return most;
}

// "fp32, tf32 or bf16".
[[nodiscard]] inline std::string listed_names(const std::vector<precision>& kinds) {
  std::string text;
  for (std::size_t i = 0; i < kinds.size(); ++i)
    text += (i == 0 ? "" : i + 1 == kinds.size() ? " or " : ", ") + std::string(name_of(kinds[i]));
  return text;
}

// "all devices are to be used, and with those of b it takes 0 of 2 nodes of a".
[[nodiscard]] inline std::string left_out_text(const cluster& hardware, const target_choice& choice) {
  std::string taken, left;
  for (std::size_t k = 0; k < choice.nodes.size(); ++k) {
    const auto& s = hardware.subclusters[k];
    if (choice.nodes[k] > 0) taken += (taken.empty() ? "" : ", ") + s.name;
    if (choice.nodes[k] < s.nodes)
      left +=
          (left.empty() ? "" : ", ") + std::to_string(choice.nodes[k]) + " of " + std::to_string(s.nodes) + " nodes of " + s.name;
  }
  return "all devices are to be used, and with those of " + taken + " it takes " + left;
}

// Whether a choice takes the devices of a placement.
[[nodiscard]] inline bool has_devices_of(const target_choice& choice, const placement& where) {
  const auto& mesh = where.mesh;
  return (choice.nodes.empty() || mesh.nodes <= at(choice.nodes, mesh.subcluster)) &&
         (choice.most_expert.empty() || where.degrees.expert <= at(choice.most_expert, mesh.subcluster)) &&
         (choice.stage_devices == 0 || mesh.device_count() == choice.stage_devices);
}

// The stages of a plan of one pipeline on devices so that no host is come back to, next to each other as far as a host has room;
// the plan as it is if that takes more hosts than there are.
[[nodiscard]] inline plan with_hosts_in_a_row(const cluster& hardware, plan p) {
  struct place {
    int fresh = 0;            // nodes from this one on are free
    int node = 0, taken = 0;  // where the last stage was put; devices
  };
  if (p.pipelines.size() != 1) return p;
  std::vector<place> places(hardware.subclusters.size());
  auto stages = p.pipelines.front().stages;
  int last = -1;  // subcluster that a part of a node was taken of
  for (auto& s : stages) {
    if (s.devices.size() != 1) return p;
    auto& group = s.devices.front();
    const int k = group.mesh.subcluster;
    const auto& sub = at(hardware.subclusters, k);
    auto& where = at(places, k);
    const int wanted = group.mesh.devices_per_node;
    const bool part = group.mesh.nodes == 1 && wanted < sub.devices_per_node;
    if (!part && wanted != sub.devices_per_node) return p;
    if (!part || k != last || where.taken + wanted > sub.devices_per_node) {
      where.node = where.fresh;
      where.taken = 0;
      where.fresh += group.mesh.nodes;
    }
    if (where.fresh > sub.nodes) return p;
    group.first_device = where.node * sub.devices_per_node + where.taken;
    where.taken += wanted;
    last = part ? k : -1;
  }
  p.pipelines.front().stages = std::move(stages);
  return p;
}

/// No iteration on such placements is shorter, 0 where costs are no sums of layers: let a second of a device of subcluster k cost
/// 1 / (the seconds of devices that all layers take there at the least). Then a microbatch costs at least the sum over layers of
/// the least price, and what an iteration may cost is what its devices are worth.
[[nodiscard]] inline double least_iteration_of(const std::vector<placement>& all, const cluster& hardware,
                                               const any_cost_model& costs, int microbatches) {
  if (!costs.additive()) return 0;
  const auto layers = as_size(costs.layer_count());
  std::vector<std::vector<double>> work(hardware.subclusters.size());  // by layer; empty where there is no placement
  for (const auto& where : all) {
    auto& least = at(work, where.mesh.subcluster);
    least.resize(layers, infinity);
    for (int l = 0; l < costs.layer_count(); ++l) {
      const auto own = costs.layer(l, where);  // of several pipelines, each may have but one microbatch, which adds to no other
      at(least, l) = std::min(at(least, l), where.mesh.device_count() * (own.total_s() - own.sums_s));
    }
  }
  double worth = 0;  // of a second of all devices
  std::vector<double> price(layers, infinity);
  for (std::size_t k = 0; k < work.size(); ++k) {
    const double whole_s = std::accumulate(work[k].begin(), work[k].end(), 0.0);
    if (!(whole_s > 0)) continue;
    worth += hardware.subclusters[k].device_count() / whole_s;
    for (std::size_t l = 0; l < layers; ++l) price[l] = std::min(price[l], work[k][l] / whole_s);
  }
  return worth > 0 ? microbatches * std::accumulate(price.begin(), price.end(), 0.0) / worth * (1 - tolerance::sums) : 0;
}

/// What is known of choices together, while they are searched one by one.
struct searched_choices {
  std::optional<refusal> why = {};  ///< that says most: of a search that was stopped, else of the choice that saves most memory

  bool refusals_prove = true;

  void note(double bound, bool complete) { seen_.push_back({bound, complete}); }

  void note(const target_choice& choice, const refusal& refused) {
    const auto saved = savings(choice);
    const bool all_seen = refused.why == refusal::kind::infeasible;
    if (!all_seen) note(0, false);
    if (all_seen && !refusals_prove) note(choice.least_s, false);
    if (why && (why->why != refusal::kind::infeasible || (all_seen && saved <= most_saved_))) return;
    why = refused;
    most_saved_ = saved;
  }

  /// Tells it of the best plan; no choice was asked for one that is not below `beat`.
  void tell(search_evidence& told, double value, double beat, int choices) const {
    told.objective_value = told.objective_bound = value;
    told.complete = true;
    for (const auto& one : seen_) {
      told.objective_bound = std::min(told.objective_bound, one.bound);
      told.complete = told.complete && (one.complete || one.bound >= std::min(beat, value));
    }
    if (choices > 1) told.sum_bound = 0;  // of one choice only
    told.work.emplace_back("choices", choices);
  }

  struct one_choice {
    double bound = 0;
    bool complete = false;
  };
  std::vector<one_choice> seen_ = {};
  std::vector<int> most_saved_ = {};
};

}  // namespace detail

HETSCHED_INLINE target_costs::target_costs(any_cost_model costs, const plan_target& t, target_choice choice)
    : costs_(std::move(costs)), target_(&t), choice_(std::move(choice)), layers_(costs_.layer_count()) {
  constexpr int both_ends = 4;  // layers; of fewer nothing is left to cut
  ends_ = t.cuts == target_cuts::blocks_with_ends && layers_ >= both_ends && !choice_.alone;
  if (ends_) layers_ -= 2;
  if (choice_.alone) layers_ = 1;
}

HETSCHED_INLINE layer_range target_costs::within(layer_range layers) const {
  if (choice_.alone) return {0, costs_.layer_count()};
  if (!ends_) return layers;
  return {layers.first == 0 ? 0 : layers.first + 1, layers.last == layers_ ? layers.last + 2 : layers.last + 1};
}

HETSCHED_INLINE int target_costs::seen_as(int own_layer) const {
  return joins_layers() ? std::clamp(own_layer - 1, 0, layers_ - 1) : own_layer;
}

HETSCHED_INLINE std::vector<placement> target_costs::placements(const submesh& mesh) const {
  auto found = costs_.placements(mesh);
  std::erase_if(found, [&](const placement& p) {
    return !detail::is_of(*target_, p, choice_.alone) || !detail::has_devices_of(choice_, p) ||
           !detail::fits(detail::values_of(choice_.traits, p), choice_.values);
  });
  return found;
}

HETSCHED_INLINE stage_cost target_costs::layer(int index, const placement& where) const {
  const auto own = within({index, index + 1});
  return own.size() == 1 ? costs_.layer(own.first, where) : costs_.stage(own, where);
}

HETSCHED_INLINE std::vector<parameter_copy> target_costs::copies(const placement& where) const {
  auto found = costs_.copies(where);
  for (auto& c : found) {
    c.owner = seen_as(c.owner);
    c.layer = seen_as(c.layer);
  }
  // A copy inside one layer: what that layer costs leaves it out already.
  std::erase_if(found, [](const parameter_copy& c) { return c.owner == c.layer; });
  return found;
}

HETSCHED_INLINE outcome<plan> with_own_layers(const cluster& hardware, const costs_by_size& costs_for, const target_costs& view,
                                              plan p, const evaluate_options& options) {
  auto placed = p;
  if (view.target().hosts_in_a_row && !gaps(p, view.target(), hardware).empty())
    placed = detail::with_hosts_in_a_row(hardware, std::move(placed));
  if (!view.joins_layers() && placed == p) return p;
  p = std::move(placed);
  const auto evidence = p.evidence;
  for (auto& line : p.pipelines)
    for (auto& s : line.stages) s.layers = view.within(s.layers);
  auto judged = evaluate(hardware, costs_for, std::move(p), options);
  if (!judged) return judged.why_not();
  judged->plan.evidence = evidence;
  return std::move(judged->plan);
}

HETSCHED_INLINE cluster hardware_of(const target_choice& choice, cluster hardware) {
  for (std::size_t k = 0; k < choice.nodes.size(); ++k) hardware.subclusters[k].nodes = std::max(1, choice.nodes[k]);
  return hardware;
}

HETSCHED_INLINE std::vector<target_choice> with_equal_stages(const target_choice& choice, const cluster& hardware) {
  std::set<int> sizes;
  for (std::size_t k = 0; k < hardware.subclusters.size(); ++k)
    for (const auto& mesh : submeshes(hardware.subclusters[k], static_cast<int>(k))) sizes.insert(mesh.device_count());
  std::vector<target_choice> found;
  for (const int size : sizes) {
    found.push_back(choice);
    found.back().stage_devices = size;
  }
  return found;
}

HETSCHED_INLINE std::vector<target_choice> choices(const cluster& hardware, const any_cost_model& costs, const plan_target& t,
                                                   int microbatches, std::optional<precision> asked) {
  std::vector<target_choice> found;
  const auto most_expert = detail::most_expert_of(hardware, t, asked);
  for (const auto& nodes : detail::device_sets(hardware, t, asked).run())
    for (const bool alone : {false, true}) {
      target_choice of_devices{.alone = alone, .most_expert = most_expert};
      for (std::size_t k = 0; k < nodes.size(); ++k)
        if (nodes[k] != hardware.subclusters[k].nodes) of_devices.nodes = nodes;
      const auto seen = hardware_of(of_devices, hardware);
      std::vector<placement> all;
      for (std::size_t k = 0; k < seen.subclusters.size(); ++k)
        for (const auto& mesh : submeshes(seen.subclusters[k], static_cast<int>(k)))
          for (const auto& where : costs.placements(mesh))
            if (detail::is_of(t, where, alone) && detail::has_devices_of(of_devices, where)) all.push_back(where);
      auto traits = t.equal;
      if (!all.empty() && !costs.copies(all.front()).empty())
        for (const auto trait : t.equal_at_ends)
          if (std::find(traits.begin(), traits.end(), trait) == traits.end()) traits.push_back(trait);
      for (auto& row : detail::rows_of(traits, all)) {
        auto choice = of_devices;
        choice.traits = traits;
        choice.values = std::move(row);
        std::vector<placement> own;
        for (const auto& where : all)
          if (detail::fits(detail::values_of(traits, where), choice.values)) own.push_back(where);
        choice.least_s = detail::least_iteration_of(own, seen, costs, microbatches);
        found.push_back(std::move(choice));
      }
    }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.least_s < b.least_s; });
  return found;
}

namespace detail {

/// Why a target has no placement to search; `devices`: whether it has sets of them.
[[nodiscard]] inline refusal no_placement(const plan_target& t, const plan_setting& setting, bool devices) {
  const auto own = find_precision(setting.precision);
  std::string reason;
  if (devices)
    reason = "no placement that the costs know is one that " + t.name + " runs";
  else if (own && std::find(t.precisions.begin(), t.precisions.end(), *own) == t.precisions.end())
    reason = "the model is priced in " + setting.precision + ", and " + t.name + " runs " + listed_names(t.precisions);
  else
    reason = "no device computes in " + listed_names(t.precisions) + (t.joined_by_nccl ? ", or NCCL does not know it" : "");
  return {refusal::kind::infeasible, std::move(reason)};
}

}  // namespace detail

HETSCHED_INLINE outcome<plan> within_target(const cluster& hardware, const costs_by_size& costs_for, const plan_target& t,
                                            planning_problem problem, const target_planner& make,
                                            const within_target_options& options) {
  const auto& setting = options.setting;
  detail::searched_choices searched{.refusals_prove = options.proves};
  std::optional<plan> best;
  auto all = choices(hardware, costs_for(problem.microbatch_size), t, problem.microbatches, find_precision(setting.precision));
  const bool by_time = problem.objective == plan_objective::iteration;
  for (std::size_t next = 0; next < all.size(); ++next) {
    const auto choice = all[next];
    const bool part = choice.stage_devices > 0;  // of a choice that was searched, and whose bound is noted
    if (!problem.may_go_on() && (best || searched.why)) {
      searched.note(0, false);
      break;
    }
    if (problem.use_all_devices && !choice.nodes.empty()) {
      searched.note(choice, {refusal::kind::infeasible, detail::left_out_text(hardware, choice)});
      continue;
    }
    if (best && by_time && choice.least_s >= problem.beat) {
      if (!part) searched.note(choice.least_s, false);
      continue;
    }
    const costs_by_size own = [&](int size) { return any_cost_model::owner_of(target_costs(costs_for(size), t, choice)); };
    auto found = make(hardware_of(choice, hardware), own, problem);
    if (!found) {
      if (!part) searched.note(choice, found.why_not());
      continue;
    }
    const auto evidence = found->evidence.value_or(search_evidence{});
    const double bound = std::max(evidence.objective_bound, by_time ? choice.least_s : 0), planned = objective_of(*found);
    found = with_own_layers(hardware, costs_for, target_costs(costs_for(problem.microbatch_size), t, choice), *std::move(found),
                            options.judging);
    if (!found) return found;
    found->setting = setting;
    const auto wrong = gaps(*found, t, hardware);
    if (!part)
      searched.note(bound, evidence.complete && wrong.empty() && objective_of(*found) <= planned * (1 + tolerance::sums));
    if (!wrong.empty()) {
      // What only the whole plan shows: too few stages for its schedule, or a host that is come back to. Others may be well.
      if (t.hosts_in_a_row && !part)
        for (auto& other : with_equal_stages(choice, hardware)) all.push_back(std::move(other));
      if (!searched.why) searched.why = refusal{refusal::kind::infeasible, to_text(wrong.front())};
      continue;
    }
    if (best && objective_of(*found) >= objective_of(*best)) continue;
    best = *std::move(found);
    problem.beat = std::min(problem.beat, objective_of(*best));
  }
  if (!best && searched.why) return *std::move(searched.why);
  if (!best) {
    const bool devices = !detail::device_sets(hardware, t, find_precision(setting.precision)).run().empty();
    return detail::no_placement(t, setting, devices);
  }
  if (best->evidence) searched.tell(*best->evidence, objective_of(*best), problem.beat, static_cast<int>(all.size()));
  return *std::move(best);
}

}  // namespace hetsched
