// SPDX-License-Identifier: Apache-2.0
// HAP's settings, under one cost model: our programs against data parallelism and the programs that the paper describes.
#include <hetsched/spmd/synthesize.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/spmd/detail/program_space.hpp>
#include <hetsched/spmd/memory.hpp>
#include <hetsched/spmd/ratios.hpp>

#include "../sanitizer_share.hpp"
#include "hap_models.hpp"

namespace {

using namespace hetsched;

/// Forms that somebody chose: of parameters (others are whole), and of some other tensors a form to bring them into.
struct chosen_forms {
  std::map<std::string, spmd::tensor_form> parameters{}, others{};
};

/// The program of chosen forms: what is not chosen follows from its inputs, as in GSPMD. Of the ways to compute a node from what
/// is there, it takes one that devices share, and of these the one with the least collective afterwards.
spmd::program program_of(const spmd::problem& p, const chosen_forms& chosen) {
  spmd::program program;
  std::vector<std::vector<spmd::tensor_form>> there(p.graph.nodes.size());
  const auto has = [&](int node, spmd::tensor_form f) {
    const auto& forms = there[static_cast<std::size_t>(node)];
    const auto is = [&](spmd::tensor_form g) { return std::find(forms.begin(), forms.end(), g) != forms.end(); };
    return is(f) || (f.is_cut() && is(spmd::tensor_form::whole()));
  };
  const auto bring = [&](int node, spmd::tensor_form from, spmd::tensor_form to) {
    if (from == to || from.is_whole()) return;
    program.push_back(
        {.node = node, .collective = true, .how = *spmd::detail::collective_between(from, to), .from = from, .to = to});
    there[static_cast<std::size_t>(node)].push_back(to);
  };
  const auto needed = spmd::detail::needed_nodes(p);
  for (int i = 0; i < p.graph.size(); ++i) {
    const auto& n = p.graph.at(i);
    if (!needed[static_cast<std::size_t>(i)]) continue;
    if (is_leaf(n)) {
      const auto own = chosen.parameters.find(n.name);
      const auto form = is_placeholder(n)                ? spmd::tensor_form::cut(n.batch_dimension)
                        : own != chosen.parameters.end() ? own->second
                                                         : spmd::tensor_form::whole();
      program.push_back({.node = i, .rule = {.result = form}});
      there[static_cast<std::size_t>(i)] = {form};
      continue;
    }
    const spmd::rule* best = nullptr;
    const auto rules = spmd::rules_of(n);
    const auto rank = [](const spmd::rule& r) { return r.result.is_cut() ? 0 : r.shared ? 1 : r.result.is_partial() ? 2 : 3; };
    for (const auto& rule : rules) {
      bool possible = true, cuts = false;  // one that only cuts what all have is for nobody
      for (std::size_t k = 0; k < n.inputs.size(); ++k) {
        possible = possible && has(n.inputs[k], rule.inputs[k]);
        const auto& forms = there[static_cast<std::size_t>(n.inputs[k])];
        cuts = cuts || (rule.inputs[k].is_cut() && std::find(forms.begin(), forms.end(), rule.inputs[k]) != forms.end());
      }
      if (possible && (cuts || !rule.shared) && (best == nullptr || rank(rule) < rank(*best))) best = &rule;
    }
    if (best == nullptr) throw std::logic_error("nothing to compute " + n.name + " from");
    program.push_back({.node = i, .rule = *best});
    there[static_cast<std::size_t>(i)] = {best->result};
    if (const auto to = chosen.others.find(n.name); to != chosen.others.end()) bring(i, best->result, to->second);
  }
  for (const auto& [parameter, gradient] : p.goal.gradients)
    if (const auto wanted = there[static_cast<std::size_t>(parameter)][0]; !has(gradient, wanted))
      bring(gradient, there[static_cast<std::size_t>(gradient)][0], wanted);
  return program;
}

/// The fully connected layers of VGG19 cut by columns and rows, as in tensor parallelism, all else by samples (sec. 7.2).
chosen_forms vgg_cut() {
  const auto whole = spmd::tensor_form::whole(), samples = spmd::tensor_form::cut(0);
  return {{{"fc1.w", spmd::tensor_form::cut(1)}, {"fc1.b", samples}, {"fc2.w", spmd::tensor_form::cut(0)}},
          {{"flat", whole}, {"fc2.xw", samples}, {"d_fc2", whole}, {"d_flat", samples}}};
}

/// Experts on devices of their own and all-to-alls before and behind them, as in GShard and DeepSpeed (sec. 7.2).
chosen_forms experts_cut(const tensor_graph& graph) {
  chosen_forms chosen;
  const auto expert = spmd::tensor_form::cut(0), group = spmd::tensor_form::cut(1);
  for (const auto& n : graph.nodes)
    if (is_parameter(n) && n.shape.size() == 3) chosen.parameters.emplace(n.name, expert);
  for (const auto& n : graph.nodes) {
    const auto ends = [&](const char* tail) { return n.shape.size() == 4 && n.name.ends_with(tail); };
    if (n.op == "dispatch") chosen.others.emplace(n.name, expert);
    if (ends(".down") && n.op == "matmul") chosen.others.emplace(n.name, group);
    if (ends(".slots") && n.op == "matmul") chosen.others.emplace(n.name, group);  // the gradient
  }
  return chosen;
}

double millions(const tensor_graph& g) {
  double all = 0;
  for (const auto& n : g.nodes)
    if (is_parameter(n)) all += static_cast<double>(elements_of(n.shape));
  return all / (1 << 20);
}

}  // namespace

TEST_CASE("HAP's models have the parameters of its table 1") {
  CHECK(std::floor(millions(hap::model(0, 8))) == 133);
  CHECK(std::floor(millions(hap::model(1, 8))) == 54);
  CHECK(std::floor(millions(hap::model(2, 8))) == 102);
  for (const int gpus : {8, 64}) CHECK(millions(hap::model(3, gpus)) == doctest::Approx(84.5 + 36 * gpus).epsilon(0.02));
}

TEST_CASE("HAP's settings: no more than data parallelism, and than the programs that the paper describes, take") {
  for (const int gpus_each : {1, 4, 8}) {
    if (hetsched::test::sanitizer_share > 1 && gpus_each > 1) continue;
    for (int which = 0; which < (hetsched::test::sanitizer_share > 1 ? 1 : 4); ++which) {
      const auto p = hap::problem(which, gpus_each);
      const auto found = spmd::synthesize(p, {.work = 3e7});
      const auto even = spmd::even_data_parallel(p);
      REQUIRE(found);
      REQUIRE(even);
      const auto by_speed = spmd::seconds_of(spmd::stages_of(p, even->program), hap::by_speed(p));
      double described = by_speed;
      if (which == 0 || which == 3) {
        const auto program = program_of(p, which == 0 ? vgg_cut() : experts_cut(p.graph));
        int exchanges = 0;
        for (const auto& step : program) exchanges += step.collective && step.how == spmd::collective::all_to_all;
        if (which == 3) CHECK(exchanges == 4 * 4);  // for each layer with experts
        described = spmd::best_shares(spmd::stages_of(p, program), p.kinds, hap::by_speed(p)).seconds;
      }
      CAPTURE(hap::names()[static_cast<std::size_t>(which)]);
      CAPTURE(8 * gpus_each);
      for (const double other : {even->seconds, by_speed, described}) {
        CHECK(found->seconds <= other * (1 + 1e-9));
        CHECK(found->bound <= other);
      }
      const auto two = hap::problem(which, gpus_each, true);
      const auto apart = spmd::synthesize(two, {.work = 3e6});
      REQUIRE(apart);
      const auto whole_apart = spmd::round_shares(two, apart->program, apart->shares);
      MESSAGE("two segments: ", apart->seconds, " s, bound ", apart->bound, ", whole rows ", whole_apart.seconds,
              ", shares of a V100 ", apart->shares[0], " and ", apart->shares[2]);
      const auto whole = spmd::round_shares(p, found->program, found->shares);
      const double dp_bytes = spmd::memory_of(p, even->program, spmd::state_bytes_of(p.graph.format, true)).at(even->shares[0]);
      MESSAGE(hap::names()[static_cast<std::size_t>(which)], ", ", 8 * gpus_each, " GPUs: ", found->seconds, " s, bound ",
              found->bound, ", whole rows ", whole.seconds, "; DP-EV ", even->seconds / found->seconds, ", DP-CP ",
              by_speed / found->seconds, ", described ", described / found->seconds, "; share of a V100 ", found->shares[0],
              "; DP holds GiB ", dp_bytes / (1 << 30));
    }
  }
}
