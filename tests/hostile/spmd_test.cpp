// SPDX-License-Identifier: Apache-2.0
#include "hostile.hpp"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include <hetsched/spmd/costs.hpp>
#include <hetsched/spmd/memory.hpp>
#include <hetsched/spmd/min_sum.hpp>
#include <hetsched/spmd/program_costs.hpp>
#include <hetsched/spmd/ratios.hpp>
#include <hetsched/spmd/synthesize.hpp>

#include "hostile_costs.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

std::vector<device_id> some_devices(random_source& r) {
  std::vector<device_id> devices{{0, 0, 0}, {0, 0, 1}, {1, 0, 0}};
  if (one_in(r, 12)) devices.clear();
  if (one_in(r, 12)) devices.push_back({some_int(r), some_int(r), some_int(r)});
  return devices;
}

/// Two layers and a sum. One of the fields of a node may be wrong.
tensor_graph some_graph(random_source& r, int n = 4) {
  tensor_graph g;
  const int x = add_placeholder(g, "x", {8, 4}), w = add_parameter(g, "w", {4, 8}), v = add_parameter(g, "v", {8, 4});
  const int h = add_elementwise(g, "h", "relu", {add_matmul(g, "xw", x, w)});
  add_sum(g, "loss", add_elementwise(g, "y", "add", {x, add_matmul(g, "hv", h, v)}, {{0, 1}}));
  if (!one_in(r, n)) return g;
  auto& node = one_of(r, g.nodes);
  switch (r.integer(0, 13)) {
    case 0:
      node.inputs = {some_int(r)};
      break;
    case 1:
      node.shape.push_back(some_int64(r));
      break;
    case 2:
      node.shape.assign(static_cast<std::size_t>(r.integer(0, 80)), 1);
      break;
    case 3:
      node.loops.push_back({some_int64(r)});
      break;
    case 4:
      node.loops.clear();
      break;
    case 5:
      node.input_loops.push_back({some_int(r)});
      break;
    case 6:
      node.input_loops.clear();
      break;
    case 7:
      node.result_loops.push_back(some_int(r));
      break;
    case 8:
      node.linear = {{some_int(r)}};
      break;
    case 9:
      node.segment = some_int(r);
      break;
    case 10:
      node.batch_dimension = some_int(r);
      break;
    case 11:
      node.op = one_in(r, 2) ? "border" : "parameter";
      break;
    case 12:
      node.kernel.emplace();
      node.kernel->m = some_int64(r);
      node.kernel->traffic_bytes = some_double(r);
      break;
    default:
      g.nodes.clear();
  }
  return g;
}

spmd::share_cost some_cost(random_source& r, int n = 200) { return {some_time(r, n), some_time(r, n)}; }

/// Trains, or only computes; on one or two kinds of devices.
spmd::problem some_problem(random_source& r, int n = 3) {
  spmd::problem p{.graph = some_graph(r, 1'000'000)};
  p.goal.loss = p.graph.size() - 1;
  if (one_in(r, 2)) p.goal = add_backward(p.graph, p.goal.loss);
  if (one_in(r, 6)) {
    std::vector<int> segments(p.graph.nodes.size());
    tensor_graph forward = some_graph(r, 1'000'000);
    segments.assign(forward.nodes.size(), 0);
    std::fill(segments.begin() + static_cast<std::ptrdiff_t>(segments.size() / 2), segments.end(), 1);
    p.graph = in_segments(forward, segments).first;
    p.goal = {.loss = p.graph.size() - 1};
  }
  for (int k = r.integer(1, 2); k > 0; --k) p.kinds.push_back({"kind", r.integer(1, 2)});
  p.compute.resize(p.graph.nodes.size() * p.kinds.size());
  p.collect.resize(p.graph.nodes.size());
  for (auto& c : p.compute) c = some_cost(r, 1'000'000);
  for (auto& c : p.collect)
    c = {some_cost(r, 1'000'000), some_cost(r, 1'000'000), some_cost(r, 1'000'000), some_cost(r, 1'000'000), {.1, .2}};
  p.data_parallel_only = one_in(r, 6);
  if (!one_in(r, n)) return p;
  switch (r.integer(0, 11)) {
    case 0:
      p.graph = some_graph(r, 1);
      break;
    case 1:
      p.goal.loss = some_int(r);
      break;
    case 2:
      p.goal.gradients.emplace_back(some_int(r), some_int(r));
      break;
    case 3:
      p.goal.gradients.emplace_back(r.integer(0, p.graph.size() - 1), r.integer(0, p.graph.size() - 1));
      break;
    case 4:
      p.goal.whole = {mostly(r, 1, 2)};
      break;
    case 5:
      p.kinds[0].count = some_int(r);
      break;
    case 6:
      p.kinds.clear();
      break;
    case 7:
      one_of(r, p.compute) = some_cost(r, 2);
      break;
    case 8:
      one_of(r, p.collect).reduce_scatter = some_cost(r, 2);
      break;
    case 9:
      (one_in(r, 2) ? (void)p.compute.pop_back() : (void)p.collect.pop_back());
      break;
    case 10:
      p.holding_s = some_times(r, p.graph.size(), 3);
      break;
    default:
      p.goal = {};
  }
  return p;
}

spmd::synthesis_options some_options(random_source& r) {
  return {.largest_table = one_in(r, 12) ? static_cast<std::size_t>(r.integer(0, 30)) : std::size_t{1} << 20,
          .rounds = one_in(r, 12) ? one_of(r, std::vector<int>{0, -1, INT_MIN, 1}) : 3,
          .work = one_in(r, 12) ? one_of(r, std::vector<double>{0, -1, std::nan("")}) : 1e4,
          .gap = one_in(r, 12) ? some_double(r) : 1e-3};
}

std::vector<double> even(const spmd::problem& p) {
  double all = 0;
  for (const auto& k : p.kinds) all += k.count;
  return std::vector<double>(p.kinds.size() * static_cast<std::size_t>(std::clamp(p.segments(), 1, 10)), 1 / all);
}
std::vector<double> some_shares(random_source& r, const spmd::problem& p) {
  auto shares = even(p);
  if (one_in(r, 6)) shares = some_times(r, static_cast<int>(shares.size()), 2);
  return shares;
}

spmd::tensor_form some_form(random_source& r) {
  return one_in(r, 4)   ? spmd::tensor_form::whole()
         : one_in(r, 4) ? spmd::tensor_form::partial()
                        : spmd::tensor_form::cut(one_in(r, 12) ? some_int(r) : r.integer(0, 2));
}

/// A program that is right, or was until one of its instructions was changed.
spmd::program some_program(random_source& r, const spmd::problem& p) {
  const auto found = spmd::synthesize(p, {.rounds = 1, .work = 0});
  if (!found) return {};
  auto program = found->program;
  if (!one_in(r, 3) || program.empty()) return program;
  auto& step = one_of(r, program);
  switch (r.integer(0, 7)) {
    case 0:
      step.node = some_int(r);
      break;
    case 1:
      step.collective = !step.collective;
      break;
    case 2:
      step.rule.inputs.push_back(some_form(r));
      break;
    case 3:
      step.rule.inputs.clear();
      break;
    case 4:
      step.rule.result = some_form(r);
      break;
    case 5:
      step.how = static_cast<spmd::collective>(r.integer(0, 7));
      break;
    case 6:
      (one_in(r, 2) ? step.from : step.to) = some_form(r);
      break;
    default:
      program.erase(program.begin());
  }
  return program;
}

spmd::stage some_stage(random_source& r, std::size_t shares) {
  spmd::stage s{.collective = some_cost(r), .compute = {}};
  for (std::size_t i = 0; i < shares; ++i) s.compute.push_back(some_cost(r));
  if (one_in(r, 20)) s.compute.emplace_back();
  if (one_in(r, 20)) (one_in(r, 2) ? s.segment : s.other) = some_int(r);
  return s;
}

std::vector<spmd::device_kind> some_kinds(random_source& r) {
  std::vector<spmd::device_kind> kinds;
  for (int k = r.integer(one_in(r, 20) ? 0 : 1, 3); k > 0; --k) kinds.push_back({"kind", mostly(r, r.integer(1, 3), 40)});
  return kinds;
}

void expect_shares(const std::vector<double>& shares) {
  for (const double s : shares) expect(s >= 0 && s <= 1 + 1e-6, "the result is no share");
}
void expect_solution(const spmd::problem& p, const std::optional<spmd::solution>& found) {
  if (!found) return;
  expect_time(found->seconds);
  expect(found->bound <= found->seconds, "the bound is above what it bounds");
  expect_shares(found->shares);
  validate(p, found->program);
}

spmd::instruction some_instruction(random_source& r, const spmd::problem& p) {
  const auto program = some_program(r, p);
  return program.empty() ? spmd::instruction{.node = some_int(r)} : one_of(r, program);
}

/// Two layers' product, or a graph that may be wrong.
spmd::program_graph some_layers(random_source& r, layer_range layers) {
  if (layers.first == 1 && one_in(r, 3)) return {some_graph(r, 2), mostly(r, 0, 6), mostly(r, 5, 6), one_in(r, 2)};
  spmd::program_graph made;
  made.input = add_placeholder(made.graph, "x", {8, 4});
  made.output = add_matmul(made.graph, "y", made.input, add_parameter(made.graph, "w", {4, 4}));
  return made;
}

void stage_program(random_source& r, bool price) {
  const auto hardware = some_hardware(r);
  const spmd::program_costs costs(hardware, hostile_costs{}, [&](layer_range layers) { return some_layers(r, layers); },
                                  {.slices = mostly(r, 8, 12), .search = {.rounds = one_in(r, 12) ? 0 : 1, .work = 1}});
  std::vector<stage_part> parts;
  for (int k = r.integer(one_in(r, 12) ? 0 : 1, 2); k > 0; --k)
    parts.push_back(
        {.where = {.mesh = {2 - k, 1, 1}}, .devices = {{{mostly(r, 2 - k, 20), 1, 1}, mostly(r, 0, 20)}}, .slices = 4});
  if (!parts.empty() && one_in(r, 12)) parts[0].slices = some_int(r);
  const layer_range layers{one_in(r, 12) ? some_int(r) : r.integer(0, 1), mostly(r, 2, 20)};
  if (!price) return (void)costs.program(layers, parts);
  const auto found = costs.sliced_stage(layers, parts);
  expect(found.slowest.forward_s >= 0 && found.slowest.backward_s >= 0, "the result is no time");
}

const std::vector<door> doors{
    {"slowest_group", [](random_source& r) { (void)spmd::slowest_group(some_hardware(r), some_devices(r)); }},
    {"make_problem",
     [](random_source& r) {
       const auto timer = [&](const tile_device&, const operator_shape&) { return some_time(r, 60); };
       auto graph = some_graph(r);
       const tensor_goal goal{.loss = mostly(r, graph.size() - 1, 12)};
       if (const auto p = one_in(r, 2) ? spmd::make_problem(some_hardware(r), some_devices(r), std::move(graph), goal)
                                       : spmd::make_problem(some_hardware(r), some_devices(r), std::move(graph), goal, timer))
         validate(*p);
     }},
    {"state_bytes_of", [](random_source& r) { expect(spmd::state_bytes_of(number_format::fp16, one_in(r, 2)) >= 2, "bytes"); },
     false},
    {"cut_parts",
     [](random_source& r) {
       for (const auto& node : spmd::cut_parts(some_graph(r)))
         for (const auto parts : node) expect(parts >= 1, "no parts");
     }},
    {"rules_of",
     [](random_source& r) {
       const auto g = some_graph(r);
       if (!g.nodes.empty()) expect(!spmd::rules_of(one_of(r, g.nodes)).empty(), "there is no rule");
     }},
    {"is_exchange",
     [](random_source& r) {
       const auto p = some_problem(r);
       (void)spmd::is_exchange(p, some_instruction(r, p));
     }},
    {"validate",
     [](random_source& r) {
       const auto p = some_problem(r);
       validate(p, some_program(r, p));
     }},
    {"stages_of",
     [](random_source& r) {
       const auto p = some_problem(r);
       expect(!spmd::stages_of(p, some_program(r, p)).empty(), "there is no stage");
     }},
    {"seconds_of",
     [](random_source& r) {
       const int segments = one_in(r, 12) ? some_count(r) : r.integer(1, 2);
       const auto shares = some_times(r, 2 * std::clamp(segments, 1, 9), 30);
       expect(spmd::seconds_of({some_stage(r, shares.size()), some_stage(r, shares.size())}, shares, segments) >= 0, "no time");
     }},
    {"text_of",
     [](random_source& r) {
       const auto p = some_problem(r);
       if (one_in(r, 2)) return expect(!spmd::text_of(some_form(r)).empty(), "there is no text");
       expect(!spmd::text_of(p.graph, some_instruction(r, p)).empty(), "there is no text");
     }},
    {"best_shares",
     [](random_source& r) {
       spmd::problem p{.kinds = some_kinds(r)};
       const auto start = some_shares(r, p);
       const auto found = spmd::best_shares({some_stage(r, start.size()), some_stage(r, start.size())}, p.kinds, start);
       expect_shares(found.shares);
       expect(found.bound <= found.seconds, "the bound is above what it bounds");
     }},
    {"whole_parts",
     [](random_source& r) {
       const spmd::problem p{.kinds = some_kinds(r)};
       const auto parts = mostly64(r, 12, 3);
       const auto whole = spmd::whole_parts(parts, p.kinds, some_shares(r, p));
       expect(std::accumulate(whole.begin(), whole.end(), std::int64_t{0}) == parts, "other parts");
     }},
    {"round_shares",
     [](random_source& r) {
       const auto p = some_problem(r);
       expect_time(spmd::round_shares(p, some_program(r, p), some_shares(r, p)).seconds);
     }},
    {"memory_of",
     [](random_source& r) {
       const auto p = some_problem(r);
       const auto scale = one_in(r, 2) ? std::vector<double>{} : some_times(r, std::clamp(p.segments(), 0, 9), 6);
       const auto memory = spmd::memory_of(p, some_program(r, p), one_in(r, 6) ? some_double(r) : 16, scale);
       expect(memory.at(one_in(r, 6) ? some_double(r) : .5) >= 0, "no bytes");
     }},
    {"program_memory::at",
     [](random_source& r) {
       expect_time(spmd::program_memory{{1, 2}, {{3, 4}}}.at(std::min(some_double(r), 1e300)));
     }},
    {"program_memory::largest_share",
     [](random_source& r) {
       const double share = spmd::program_memory{{1, 2}, {{3, 4}}}.largest_share(some_double(r));
       expect(share <= 1 && share >= -1, "no share");
     }},
    {"peak_bytes",
     [](random_source& r) {
       const auto p = some_problem(r);
       for (const double bytes : spmd::peak_bytes(p, some_program(r, p), some_shares(r, p), one_in(r, 6) ? some_double(r) : 16))
         expect_time(bytes);
     }},
    {"least_bytes",
     [](random_source& r) { expect_time(spmd::least_bytes(some_problem(r), one_in(r, 6) ? some_double(r) : 16)); }},
    {"even_data_parallel",
     [](random_source& r) {
       const auto p = some_problem(r);
       expect_solution(p, spmd::even_data_parallel(p, some_options(r)));
     }},
    {"synthesize",
     [](random_source& r) {
       const auto p = some_problem(r);
       expect_solution(p, spmd::synthesize(p, some_options(r)));
     }},
    {"synthesize_within",
     [](random_source& r) {
       const auto p = some_problem(r, 6);
       std::vector<double> capacity(p.kinds.size(), r.uniform(0, 3000));
       if (one_in(r, 6) && !capacity.empty()) capacity[0] = some_double(r);
       if (one_in(r, 12)) capacity.push_back(1);
       auto options = some_options(r);
       options.work = std::min(options.work, 1e2);
       const auto fit = spmd::synthesize_within(p, capacity, one_in(r, 12) ? some_double(r) : 16, options);
       expect_solution(p, fit.solution);
       for (const double bytes : fit.bytes) expect_time(bytes);
     }},
    {"min_sum::solve",
     [](random_source& r) {
       std::vector<int> domains{2, 3, mostly(r, 2, 20)};
       const spmd::min_sum_factor last{.variables = {mostly(r, 1, 20), mostly(r, 2, 20)}, .table = mostly(r, 1, 20)};
       const spmd::min_sum search(domains, {{{0, 1}, 0}, last}, one_in(r, 6) ? 0 : 1000);
       const std::vector<std::vector<double>> tables{some_times(r, 6, 6), some_times(r, 6, 6)};
       const auto found = search.solve(tables);
       expect(found.bound <= found.value, "the bound is above what it bounds");
     }},
    {"program_costs::sliced_stage", [](random_source& r) { stage_program(r, true); }},
    {"program_costs::program", [](random_source& r) { stage_program(r, false); }},
};

TEST_CASE("public functions of spmd refuse what they cannot take") { knock(doors, 8'000); }

}  // namespace
