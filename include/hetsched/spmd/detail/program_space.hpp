// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <hetsched/core/contract.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/model/tensor_segments.hpp>
#include <hetsched/spmd/detail/prices.hpp>
#include <hetsched/spmd/min_sum.hpp>
#include <hetsched/spmd/program.hpp>

namespace hetsched::spmd::detail {

/// The forms in which a tensor can be had.
class tensor_forms {
 public:
  constexpr tensor_forms() = default;
  constexpr tensor_forms(std::initializer_list<tensor_form> forms) {
    for (const auto f : forms) bits_ |= bit(f);
  }
  [[nodiscard]] constexpr bool has(tensor_form f) const { return (bits_ & bit(f)) != 0; }
  /// Whether a rule can read that form: a device that has all of a tensor takes its part.
  [[nodiscard]] constexpr bool gives(tensor_form f) const { return has(f) || (f.is_cut() && has(tensor_form::whole())); }
  [[nodiscard]] constexpr int count() const { return std::popcount(bits_); }
  [[nodiscard]] constexpr std::uint64_t bits() const { return bits_; }
  [[nodiscard]] friend constexpr tensor_forms operator|(tensor_forms a, tensor_forms b) {
    a.bits_ |= b.bits_;
    return a;
  }
  friend constexpr bool operator==(tensor_forms, tensor_forms) = default;

 private:
  [[nodiscard]] static constexpr std::uint64_t bit(tensor_form f) {
    return std::uint64_t{1} << (f.is_whole() ? 0 : f.is_partial() ? 1 : 2 + f.dimension());
  }
  std::uint64_t bits_ = 0;
};

[[nodiscard]] inline std::optional<spmd::collective> collective_between(tensor_form from, tensor_form to) {
  if (from == to || from.is_whole() || to.is_partial()) return std::nullopt;
  if (from.is_partial()) return to.is_whole() ? spmd::collective::all_reduce : spmd::collective::reduce_scatter;
  return to.is_whole() ? spmd::collective::padded_gather : spmd::collective::all_to_all;
}

/// Whether a tensor can be used in the form in which it was produced besides the one that a collective gave it. Only where
/// several operators read it does that matter. `joined` has few choices in place of all pairs: cut in two ways counts as cut in
/// all, and a part of a sum besides another form as besides all; no program costs less than with these.
enum class form_pairs { none, joined, all };

/// A problem with its rules, and for each tensor the forms in which a program may have it, laid out for search. A tensor is
/// produced in one form, and one collective may give it another.
class program_space {
 public:
  program_space(const spmd::problem& problem, form_pairs pairs, std::size_t largest_table)
      : problem_(&problem),
        needed_(needed_nodes(problem)),
        class_of_(problem.graph.nodes.size(), -1),
        variable_(problem.graph.nodes.size(), -1) {
    draft all{.parts = unchecked::cut_parts(problem.graph),
              .of_use = std::vector<tensor_forms>(problem.graph.nodes.size(), tensor_forms{tensor_form::whole()}),
              .domains = {},
              .factors = {}};
    auto rules = find_rules(all);
    const auto readers = readers_of();
    add_operators(all, rules, readers, pairs);
    add_goals(all);
    add_holding(all);
    search_.emplace(std::move(all.domains), all.factors, largest_table);
  }

  [[nodiscard]] const spmd::problem& problem() const { return *problem_; }
  [[nodiscard]] const std::vector<tensor_forms>& choices(int node) const { return at(choices_, node); }
  /// Requires: a node that is needed and no leaf.
  [[nodiscard]] const std::vector<spmd::rule>& rules(int node) const { return at(classes_, at(class_of_, node)).rules; }
  [[nodiscard]] bool needed(int node) const { return at(needed_, node) != 0; }
  [[nodiscard]] bool exact() const { return search_->exact(); }
  [[nodiscard]] double work() const { return search_->work(); }

  /// The choices with the least sum of prices, for each node.
  [[nodiscard]] min_sum_solution solve(const std::vector<node_price>& prices) const {
    std::vector<std::vector<double>> tables;
    tables.reserve(classes_.size() + goals_.size());
    for (const auto& c : classes_) tables.push_back(table_of(c, at(prices, c.node)));
    tables.insert(tables.end(), goals_.begin(), goals_.end());
    auto solved = search_->solve(tables);
    std::vector<int> values(variable_.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      if (variable_[i] >= 0) values[i] = at(solved.values, variable_[i]);
    solved.values = std::move(values);
    return solved;
  }

  /// Whether a program can have its tensors in the chosen forms, rather than only in fewer.
  [[nodiscard]] bool possible(const std::vector<int>& values) const {
    for (int i = 0; i < problem_->graph.size(); ++i)
      if (needed(i) && !is_leaf(problem_->graph.at(i)) && choice(values, i).count() > 2) return false;
    return true;
  }

  /// The program of choices that are allowed together, each collective as late as can be, so that few stages hold much.
  /// Requires: a finite sum of prices. Unless possible(values), a collective gives joined forms all at once.
  [[nodiscard]] spmd::program program(const std::vector<int>& values, const std::vector<node_price>& prices) const {
    spmd::program steps;
    std::vector<tensor_forms> there(choices_.size());
    std::vector<tensor_form> produced(choices_.size(), tensor_form::whole());
    const auto choice = [&](int node) { return this->choice(values, node); };
    const auto provide = [&](int node, tensor_form form) {
      auto& forms = at(there, node);
      if (forms.gives(form)) return;
      if (is_leaf(problem_->graph.at(node))) {
        const auto read = choice(node).has(form) ? form : tensor_form::whole();
        steps.push_back({.node = node, .rule = {.result = read}});
        forms = forms | tensor_forms{read};
        return;
      }
      const auto step = step_to(at(produced, node), choice(node), at(prices, node));
      steps.push_back({.node = node, .collective = true, .how = step->how, .from = at(produced, node), .to = step->to});
      forms = forms | (choice(node).count() > 2 ? choice(node) : tensor_forms{step->to});
    };
    for (int i = 0; i < problem_->graph.size(); ++i) {
      const auto& n = problem_->graph.at(i);
      if (!needed(i) || is_leaf(n)) continue;
      const auto& price = at(prices, i);
      const spmd::rule* best = nullptr;
      double least = infinity;
      for (const auto& rule : rules(i)) {
        bool possible = true;
        for (std::size_t k = 0; k < n.inputs.size(); ++k) possible = possible && choice(n.inputs[k]).gives(rule.inputs[k]);
        if (!possible) continue;
        const double seconds = (rule.shared ? price.shared : price.whole) + seconds_to(rule.result, choice(i), price);
        if (seconds < least) {
          least = seconds;
          best = &rule;
        }
      }
      HETSCHED_EXPECTS(best != nullptr);
      for (std::size_t k = 0; k < n.inputs.size(); ++k) provide(n.inputs[k], best->inputs[k]);
      steps.push_back({.node = i, .rule = *best});
      at(there, i) = {best->result};
      at(produced, i) = best->result;
    }
    for (const auto& [parameter, gradient] : problem_->goal.gradients)
      for (const auto form : all_forms(parameter))
        if (choice(parameter).has(form)) provide(gradient, form);
    for (const int node : problem_->goal.whole) provide(node, tensor_form::whole());
    return steps;
  }

 private:
  // What the search is made of, as it comes together.
  struct draft {
    std::vector<std::vector<std::int64_t>> parts;  // of each node's dimensions
    std::vector<tensor_forms> of_use;              // by node: in which somebody reads it
    std::vector<int> domains;
    std::vector<min_sum_factor> factors;
  };
  struct reader_counts {
    std::vector<int> all, linear;  // by node
  };

  [[nodiscard]] bool allowed(const draft& all, int node, tensor_form f) const {
    return !f.is_cut() || at(at(all.parts, node), f.dimension()) >= std::max(2, problem_->device_count());
  }

  // The rules of each node that its parts are enough for. What they and the goals read is noted.
  [[nodiscard]] std::vector<std::vector<spmd::rule>> find_rules(draft& all) const {
    const auto& graph = problem_->graph;
    std::vector<std::vector<spmd::rule>> rules(graph.nodes.size());
    for (int i = 0; i < graph.size(); ++i) {
      const auto& n = graph.at(i);
      if (!needed(i) || is_leaf(n)) continue;
      auto& own = at(rules, i);
      own = unchecked::rules_of(n);
      std::erase_if(own, [&](const spmd::rule& rule) {
        bool possible = allowed(all, i, rule.result);
        for (std::size_t k = 0; k < n.inputs.size(); ++k) possible = possible && allowed(all, n.inputs[k], rule.inputs[k]);
        return !possible;
      });
      for (const auto& rule : own)
        for (std::size_t k = 0; k < n.inputs.size(); ++k) {
          auto& forms = at(all.of_use, n.inputs[k]);
          forms = forms | tensor_forms{rule.inputs[k]};
        }
    }
    const auto end = [&](int node, int as) {
      auto& forms = at(all.of_use, node);
      for (const auto f : all_forms(as))
        if (allowed(all, node, f)) forms = forms | tensor_forms{f};
    };
    if (problem_->goal.loss >= 0) end(problem_->goal.loss, problem_->goal.loss);
    for (const auto& [parameter, gradient] : problem_->goal.gradients) end(gradient, parameter);
    return rules;
  }

  [[nodiscard]] reader_counts readers_of() const {
    const auto& graph = problem_->graph;
    reader_counts readers{std::vector<int>(graph.nodes.size()), std::vector<int>(graph.nodes.size())};
    for (int i = 0; i < graph.size(); ++i) {
      if (!needed(i)) continue;
      const auto& n = graph.at(i);
      for (const int j : n.inputs) ++at(readers.all, j);
      for (const auto& set : n.linear)
        for (const int input : set) ++at(readers.linear, at(n.inputs, input));
    }
    // Weights that are read cut in two ways need their gradient in both.
    for (const auto& [parameter, gradient] : problem_->goal.gradients) at(readers.all, gradient) += at(readers.all, parameter);
    for (const int node : problem_->goal.whole) ++at(readers.all, node);
    return readers;
  }

  // The choices of each node, and a factor for each operator. Takes the rules.
  void add_operators(draft& all, std::vector<std::vector<spmd::rule>>& rules, const reader_counts& readers, form_pairs pairs) {
    std::map<std::vector<double>, int> known;
    for (int i = 0; i < problem_->graph.size(); ++i) {
      const auto& n = problem_->graph.at(i);
      const auto at_i = as_size(i);
      choices_.push_back(choices_of(n, all.of_use[at_i], rules[at_i], readers.all[at_i] > 1 ? pairs : form_pairs::none,
                                    readers.linear[at_i] > 0));
      if (!needed(i)) continue;
      variable_[at_i] = static_cast<int>(all.domains.size());
      all.domains.push_back(static_cast<int>(choices(i).size()));
      if (is_leaf(n)) continue;
      const auto [found, fresh] = known.emplace(look_of(i, rules[at_i]), static_cast<int>(classes_.size()));
      if (fresh) classes_.push_back({i, std::move(rules[at_i])});
      class_of_[at_i] = found->second;
      min_sum_factor f{.variables = {}, .table = found->second};
      for (const int j : distinct_inputs(n)) f.variables.push_back(at(variable_, j));
      f.variables.push_back(variable_[at_i]);
      double entries = 1;
      for (const int v : f.variables) entries *= at(all.domains, v);
      if (entries > most_entries)
        throw input_error("operator " + n.name + " (" + n.op + ") and what it reads have " +
                          hetsched::detail::number_text(entries) + " ways to lie on devices together, expected at most 2^28");
      all.factors.push_back(std::move(f));
    }
  }

  // Whatever part of a parameter a device has, it needs that part of the gradient; and what is to be whole in the end is.
  void add_goals(draft& all) {
    std::map<std::vector<double>, int> known;
    for (const auto& [parameter, gradient] : problem_->goal.gradients) {
      std::vector<double> look;
      for (const int i : {parameter, gradient}) add_choices(look, i);
      const auto [found, fresh] = known.emplace(std::move(look), static_cast<int>(classes_.size() + goals_.size()));
      if (fresh) {
        goals_.emplace_back();
        for (const auto& p : choices(parameter))
          for (const auto& g : choices(gradient)) goals_.back().push_back(gives_all(gradient, g, p) ? 0 : infinity);
      }
      all.factors.push_back({.variables = {at(variable_, parameter), at(variable_, gradient)}, .table = found->second});
    }
    for (const int node : problem_->goal.whole) {
      all.factors.push_back({.variables = {at(variable_, node)}, .table = static_cast<int>(classes_.size() + goals_.size())});
      goals_.emplace_back();
      for (const auto& forms : choices(node)) goals_.back().push_back(forms.has(tensor_form::whole()) ? 0 : infinity);
    }
  }

  // What memory costs, where it has a price.
  void add_holding(draft& all) {
    const int devices = problem_->device_count();
    std::map<std::vector<double>, int> known;
    for (int i = 0; i < problem_->graph.size() && !problem_->holding_s.empty(); ++i) {
      const double whole_s = at(problem_->holding_s, i);
      if (!needed(i) || whole_s == 0) continue;
      std::vector<double> table;
      for (const auto& forms : choices(i)) {
        const int cuts = std::popcount(forms.bits() >> 2);
        table.push_back(whole_s * (forms.count() - cuts) + whole_s * cuts / devices);
      }
      const auto [found, fresh] = known.emplace(table, static_cast<int>(classes_.size() + goals_.size()));
      if (fresh) goals_.push_back(std::move(table));
      all.factors.push_back({.variables = {at(variable_, i)}, .table = found->second});
    }
  }

  static constexpr double most_entries = 1 << 28;  // of the table of an operator: 2 GiB

  struct change {
    spmd::collective how;
    tensor_form to;
    double seconds;
  };

  [[nodiscard]] std::vector<tensor_form> all_forms(int node) const {
    std::vector<tensor_form> all{tensor_form::whole(), tensor_form::partial()};
    for (std::size_t d = 0; d < problem_->graph.at(node).shape.size(); ++d) all.push_back(tensor_form::cut(static_cast<int>(d)));
    return all;
  }
  [[nodiscard]] bool gives_all(int node, tensor_forms some, tensor_forms wanted) const {
    for (const auto f : all_forms(node))
      if (wanted.has(f) && !some.gives(f)) return false;
    return true;
  }

  // Operators that are priced alike, with their rules.
  struct node_class {
    int node;  // one of them
    std::vector<spmd::rule> rules;
  };

  [[nodiscard]] tensor_forms choice(const std::vector<int>& values, int node) const {
    return at(choices(node), at(values, node));
  }

  [[nodiscard]] static std::vector<int> distinct_inputs(const tensor_node& n) {
    std::vector<int> distinct;
    for (const int i : n.inputs)
      if (std::find(distinct.begin(), distinct.end(), i) == distinct.end()) distinct.push_back(i);
    return distinct;
  }

  // Forms that no operator reads are left out.
  [[nodiscard]] std::vector<tensor_forms> choices_of(const tensor_node& n, tensor_forms of_use,
                                                     const std::vector<spmd::rule>& rules, form_pairs pairs, bool linear) const {
    const auto whole = tensor_form::whole(), partial = tensor_form::partial();
    std::vector<tensor_form> cuts;
    for (auto bits = of_use.bits() >> 2; bits != 0; bits &= bits - 1) cuts.push_back(tensor_form::cut(std::countr_zero(bits)));
    if (is_leaf(n) && problem_->data_parallel_only) {
      const auto batch = tensor_form::cut(n.batch_dimension);
      return {is_placeholder(n) && of_use.has(batch) ? tensor_forms{batch} : tensor_forms{whole}};
    }
    std::vector<tensor_forms> all;
    tensor_forms any_cut;
    for (const auto f : cuts) {
      all.push_back({f});
      any_cut = any_cut | all.back();
    }
    all.push_back({whole});
    if (!is_placeholder(n) && cuts.size() > 1) {
      if (pairs == form_pairs::joined) all.push_back(any_cut);
      if (pairs == form_pairs::all)
        for (std::size_t a = 0; a < cuts.size(); ++a)
          for (std::size_t b = a + 1; b < cuts.size(); ++b) all.push_back({cuts[a], cuts[b]});
    }
    if (!of_use.has(partial) ||
        std::none_of(rules.begin(), rules.end(), [](const spmd::rule& rule) { return rule.result.is_partial(); }))
      return all;
    all.push_back({partial});
    if (!linear || pairs == form_pairs::none) return all;
    if (pairs == form_pairs::joined) {
      all.push_back(tensor_forms{partial, whole} | any_cut);
    } else {
      all.push_back({partial, whole});
      for (const auto f : cuts) all.push_back({partial, f});
    }
    return all;
  }

  void add_choices(std::vector<double>& look, int node) const {
    look.push_back(static_cast<double>(choices(node).size()));
    for (const auto forms : choices(node)) look.push_back(static_cast<double>(forms.bits()));
  }

  // All that its table depends on.
  [[nodiscard]] std::vector<double> look_of(int node, const std::vector<spmd::rule>& rules) const {
    const auto& n = problem_->graph.at(node);
    const auto distinct = distinct_inputs(n);
    std::vector<double> look{static_cast<double>(n.segment),
                             is_border(n) ? static_cast<double>(problem_->graph.at(n.inputs[0]).segment) : -1};
    const auto add = [&](const share_cost& cost) { look.insert(look.end(), {cost.fixed_s, cost.slope_s}); };
    for (std::size_t k = 0; k < problem_->kinds.size(); ++k) add(problem_->compute_of(node, k));
    const auto& collect = at(problem_->collect, node);
    for (std::size_t c = 0; c < 5; ++c) add(price_of(collect, static_cast<spmd::collective>(c)));
    for (const int i : n.inputs)
      look.push_back(static_cast<double>(std::find(distinct.begin(), distinct.end(), i) - distinct.begin()));
    for (const int i : distinct) add_choices(look, i);
    add_choices(look, node);
    for (const auto& rule : rules) {
      for (const auto f : rule.inputs) look.push_back(static_cast<double>(tensor_forms{f}.bits()));
      look.push_back(static_cast<double>(tensor_forms{rule.result}.bits()));
      look.push_back(rule.shared);
    }
    return look;
  }

  // The collective after which a tensor that is produced in one form can be had in others; none if one cannot do it.
  [[nodiscard]] std::optional<change> step_to(tensor_form produced, tensor_forms forms, const node_price& price) const {
    if (forms.count() > 1 && !forms.has(produced)) return std::nullopt;
    std::optional<change> best;
    const auto seek = [&](tensor_form to) {
      if (to == produced || !forms.has(to)) return;
      const auto how = collective_between(produced, to);
      if (!how || (problem_->data_parallel_only && *how != spmd::collective::all_reduce)) return;
      const auto use = [&](spmd::collective c) {
        const double seconds = at(price.collective, c);
        if (!best || seconds < best->seconds) best = change{c, to, seconds};
      };
      use(*how);
      if (*how == spmd::collective::padded_gather) use(spmd::collective::broadcast_gather);
    };
    seek(tensor_form::whole());
    for (auto cuts = forms.bits() >> 2; cuts != 0; cuts &= cuts - 1) seek(tensor_form::cut(std::countr_zero(cuts)));
    return best;
  }
  [[nodiscard]] double seconds_to(tensor_form produced, tensor_forms forms, const node_price& price) const {
    if (forms == tensor_forms{produced}) return 0;
    const auto step = step_to(produced, forms, price);
    return step ? step->seconds : infinity;
  }

  // What an operator and its collective add, by the choices of its inputs and its own.
  [[nodiscard]] std::vector<double> table_of(const node_class& of, const node_price& price) const {
    const auto& n = problem_->graph.at(of.node);
    const auto inputs = distinct_inputs(n);
    std::vector<std::size_t> place;
    std::size_t combinations = 1;
    for (const int i : n.inputs) place.push_back(as_size(std::find(inputs.begin(), inputs.end(), i) - inputs.begin()));
    for (const int i : inputs) combinations *= choices(i).size();
    const auto& own = choices(of.node);
    std::vector<double> seconds;  // per rule, of its own choices
    for (const auto& rule : of.rules)
      for (const auto& forms : own)
        seconds.push_back((rule.shared ? price.shared : price.whole) + seconds_to(rule.result, forms, price));
    std::vector<double> table(combinations * own.size(), infinity);
    std::vector<std::size_t> digit(inputs.size());
    for (std::size_t c = 0; c < combinations; ++c) {
      for (std::size_t r = 0; r < of.rules.size(); ++r) {
        bool possible = true;
        for (std::size_t k = 0; possible && k < n.inputs.size(); ++k)
          possible = choices(n.inputs[k])[digit[place[k]]].gives(of.rules[r].inputs[k]);
        if (!possible) continue;
        for (std::size_t o = 0; o < own.size(); ++o)
          table[c * own.size() + o] = std::min(table[c * own.size() + o], seconds[r * own.size() + o]);
      }
      for (std::size_t k = inputs.size(); k-- > 0;) {
        if (++digit[k] < choices(inputs[k]).size()) break;
        digit[k] = 0;
      }
    }
    return table;
  }

  const spmd::problem* problem_;
  std::vector<char> needed_;
  std::vector<std::vector<tensor_forms>> choices_;
  std::vector<node_class> classes_;
  std::vector<std::vector<double>> goals_;  // tables
  std::vector<int> class_of_, variable_;    // of nodes
  std::optional<min_sum> search_;
};

}  // namespace hetsched::spmd::detail
