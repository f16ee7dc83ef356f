// SPDX-License-Identifier: Apache-2.0
#include "hostile.hpp"

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cost/memory/training_memory.hpp>
#include <hetsched/cost/models/like_cases.hpp>
#include <hetsched/cost/network/boundary.hpp>
#include <hetsched/cost/network/collective.hpp>
#include <hetsched/cost/network/link_efficiency.hpp>
#include <hetsched/cost/network/transfer.hpp>
#include <hetsched/cost/network/transfer_curve.hpp>

using namespace hetsched;
using namespace hetsched::test;

namespace {

submesh some_mesh(random_source& r) { return {mostly(r, r.integer(0, 1)), mostly(r, r.integer(1, 2), 20), mostly(r, 4, 20)}; }
degrees some_degrees(random_source& r) {
  return {mostly(r, r.integer(1, 2), 20), mostly(r, 1, 20), mostly(r, r.integer(1, 2), 20), mostly(r, 1, 20)};
}
placement some_placement(random_source& r) { return {.mesh = some_mesh(r), .degrees = some_degrees(r)}; }
std::vector<placement> some_placements(random_source& r) {
  std::vector<placement> all;
  for (int i = r.integer(0, 3); i > 0; --i) all.push_back(some_placement(r));
  return all;
}
rank_group<> some_group(random_source& r) {
  return {mostly(r, r.integer(1, 3), 15), mostly(r, r.integer(1, 3), 15), {1e-6, 1e10}, {1e-5, 1e9}, mostly(r, 1, 15)};
}
double some_bytes(random_source& r) { return one_in(r, 3) ? some_double(r) : 1000; }
link_kind some_link_kind(random_source& r) { return static_cast<link_kind>(r.integer(0, link_kind_count - 1)); }
collective some_kind(random_source& r) { return static_cast<collective>(r.integer(0, 5)); }
collective_algorithm some_algorithm(random_source& r) { return static_cast<collective_algorithm>(r.integer(0, 2)); }
std::vector<double> some_shards(random_source& r, const rank_group<>& g) {
  const auto ranks = std::int64_t{g.nodes} * g.per_node;
  return some_times(r, ranks >= 0 && ranks <= 9 ? static_cast<int>(ranks) : 2);
}

const std::vector<door> doors{
    {"wire_share", [](random_source& r) { expect_time(wire_share(some_kind(r), some_int(r))); }},
    {"basis_of",
     [](random_source& r) {
       auto c = hardware();
       c.subclusters.front().nodes = some_int(r);
       c.subclusters.front().device.speed = some_double(r);
       (void)basis_of(c);
     }},
    {"collective_s",
     [](random_source& r) {
       expect(collective_s(some_kind(r), some_algorithm(r), some_group(r), some_bytes(r)) >= 0, "a time");
     }},
    {"fastest_collective_s",
     [](random_source& r) { expect(fastest_collective_s(some_kind(r), some_group(r), some_bytes(r)) >= 0, "a time"); }},
    {"efficiency_of", [](random_source& r) { (void)efficiency_of(some_link_kind(r)); }, false},
    {"nccl_collective_s",
     [](random_source& r) {
       const hetsched::link over{some_time(r), some_time(r), some_link_kind(r)};
       expect(nccl_collective_s(some_kind(r), some_int(r), some_bytes(r), over, efficiency_of(over.kind)) >= 0, "a time");
     }},
    {"library_collective_s",
     [](random_source& r) {
       auto g = some_group(r);
       g.inside.kind = some_link_kind(r);
       expect(library_collective_s(some_kind(r), g, some_bytes(r)) >= 0, "a time");
     }},
    {"uneven_all_gather_s",
     [](random_source& r) {
       const auto g = some_group(r);
       const auto how = one_in(r, 2) ? uneven_gather::padded : uneven_gather::grouped_broadcast;
       expect(uneven_all_gather_s(how, some_algorithm(r), g, some_shards(r, g)) >= 0, "a time");
     }},
    {"fastest_uneven_gather",
     [](random_source& r) {
       const auto g = some_group(r);
       (void)fastest_uneven_gather(some_algorithm(r), g, some_shards(r, g));
     }},
    {"link_between", [](random_source& r) { (void)link_between(hardware(), some_mesh(r), some_mesh(r)); }},
    {"stage_transfer_s",
     [](random_source& r) { expect(stage_transfer_s(hardware(), some_mesh(r), some_mesh(r), some_bytes(r)) >= 0, "a time"); }},
    {"union_of_cuts",
     [](random_source& r) {
       auto holders = some_placements(r);
       // Legal pieces that are too many to count here.
       for (auto& h : holders)
         if (h.degrees.tensor == 1 << 16) h.degrees.tensor = 3;
       expect(union_of_cuts(holders) >= 0, "a count");
     }},
    {"shared_reduction_s",
     [](random_source& r) {
       expect(shared_reduction_s(hardware(), some_placement(r), some_placement(r), some_bytes(r)) >= 0, "a time");
     }},
    {"gradient_reduction_s",
     [](random_source& r) { expect(gradient_reduction_s(hardware(), some_placements(r), some_bytes(r)) >= 0, "a time"); }},
    {"fit_transfer_curve",
     [](random_source& r) {
       std::vector<transfer_sample> samples;
       for (int i = r.integer(0, 6); i > 0; --i)
         samples.push_back(
             {one_in(r, 30) ? some_double(r) : r.uniform(1, 1e6), one_in(r, 30) ? some_double(r) : r.uniform(1e-6, 1)});
       const auto curve =
           fit_transfer_curve(samples, {.max_pieces = some_count(r), .noise = one_in(r, 8) ? some_double(r) : 0.01});
       expect(!curve.pieces.empty(), "a curve");
     }},
    {"boundary_cost",
     [](random_source& r) {
       const auto near = one_in(r, 4) ? proximity::same_node : proximity::other_node;
       expect(boundary_cost(hardware(), some_placement(r), some_placement(r), near, mostly64(r, 1 << 20)).forward_s >= 0,
              "a time");
     }},
    {"boundary_side_class",
     [](random_source& r) {
       (void)boundary_side_class({.mesh = {0, r.integer(1, 9), 4}});
     },
     false},
    {"validate",
     [](random_source& r) {
       validate(training_memory{some_int(r), some_int(r), some_int(r)});
     }},
    {"validate_zero", [](random_source& r) { validate_zero(some_int(r)); }},
    {"parameter_share",
     [](random_source& r) {
       if (one_in(r, 2))
         return expect(parameter_share(mostly64(r, 100), mostly(r, 2), some_degrees(r), some_int(r), 2) >= 0, "bytes");
       (void)parameter_share(mostly64(r, 100), mostly64(r, 10), mostly(r, 2), some_degrees(r), some_int(r), 2);
     }},
    {"state_bytes",
     [](random_source& r) {
       const training_memory m{mostly(r, 2), mostly(r, 2), mostly(r, 12)};
       expect(state_bytes(mostly64(r, 100), some_degrees(r), r.integer(0, 3), m) >= 0, "bytes");
     }},
    {"gpt_parameter_count",
     [](random_source& r) { (void)gpt_parameter_count(some_int64(r), some_int64(r), some_int64(r), some_int64(r)); }},
    {"gpt_block_activation_bytes",
     [](random_source& r) {
       (void)gpt_block_activation_bytes(mostly64(r, 64), mostly64(r, 2), mostly64(r, 64), mostly64(r, 4), some_int(r),
                                        one_in(r, 2), static_cast<recomputation>(r.integer(0, 2)));
     }},
};

TEST_CASE("public functions of cost refuse what they cannot take") { knock(doors, 20'000); }

}  // namespace
