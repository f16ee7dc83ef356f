// SPDX-License-Identifier: Apache-2.0
#include "hostile.hpp"

#include <hetsched/cluster.hpp>
#include <hetsched/cluster/without_devices.hpp>

using namespace hetsched;
using namespace hetsched::test;

namespace {

cluster some_cluster(random_source& r) {
  cluster c{.subclusters = {{"a", catalogue_device("T4"), 4, 8, {1e-6, 1e10}, {1e-5, 1e9}, {}},
                            {"b", catalogue_device("A10"), 2, 4, {1e-6, 1e10}, {1e-5, 1e9}, {}}}};
  if (one_in(r, 2)) c.links.push_back({mostly(r, 0), mostly(r, 1), {some_time(r), some_time(r)}});
  if (one_in(r, 8)) one_of(r, c.subclusters).intra_node = {some_double(r), some_double(r)};
  if (one_in(r, 8)) one_of(r, c.subclusters).nodes = some_int(r);
  if (one_in(r, 8)) one_of(r, c.subclusters).devices_per_node = some_int(r);
  if (one_in(r, 16)) one_of(r, c.subclusters).device.memory_bytes = some_int64(r);
  if (one_in(r, 16)) one_of(r, c.subclusters).name = one_in(r, 2) ? "" : "a";
  if (one_in(r, 16)) c.subclusters.clear();
  return c;
}

std::vector<device_group> some_groups(random_source& r) {
  std::vector<device_group> groups;
  for (int i = r.integer(0, 3); i > 0; --i)
    groups.push_back({{mostly(r, 0), mostly(r, r.integer(1, 2)), mostly(r, 4)}, mostly(r, r.integer(0, 9))});
  return groups;
}

const std::vector<door> doors{
    {"validate", [](random_source& r) { validate(some_cluster(r)); }},
    {"connect",
     [](random_source& r) {
       auto c = some_cluster(r);
       const std::vector<std::string> names{"a", "b", "c", ""};
       connect(c, one_of(r, names), one_of(r, names), {some_time(r), some_time(r)});
     }},
    {"cluster::between",
     [](random_source& r) {
       (void)some_cluster(r).between(device_id{mostly(r, 0), mostly(r, 1), 0}, device_id{mostly(r, r.integer(0, 1)), 0, 0});
     }},
    {"proximity_of", [](random_source& r) { (void)proximity_of(some_groups(r), some_groups(r), mostly(r, 8)); }},
    {"device_count", [](random_source& r) { expect(device_count(some_groups(r)) >= 0, "devices"); }},
    {"shape_of",
     [](random_source& r) {
       const auto s = shape_of(some_groups(r));
       expect(s.nodes >= 1 && s.devices_per_node >= 1, "a shape");
     }},
    {"subcluster_of",
     [](random_source& r) {
       (void)subcluster_of(some_cluster(r), {mostly(r, r.integer(0, 1), 2), 1, 1}).name;
     }},
    {"submeshes",
     [](random_source& r) {
       subcluster s{.name = "a", .nodes = some_count(r), .devices_per_node = mostly(r, 8)};
       for (const auto& m : submeshes(s, mostly(r, 0))) expect(m.device_count() >= 1, "a shape");
     }},
    {"without_devices",
     [](random_source& r) {
       (void)without_devices(some_cluster(r), {.subcluster = mostly(r, 0), .count = mostly(r, r.integer(0, 20), 3)});
     }},
    {"replicas", [](random_source& r) { (void)replicas({.data = some_int(r), .context = some_int(r)}); }, false},
    {"slower_of",
     [](random_source& r) {
       (void)slower_of({some_time(r), some_time(r)}, {some_double(r), some_double(r)});
     },
     false},
    {"find_link_kind", [](random_source& r) { (void)find_link_kind(one_in(r, 2) ? "pcie" : "ether"); }, false},
    {"usual_link_kind",
     [](random_source& r) { (void)usual_link_kind(one_in(r, 2) ? device{} : catalogue_device("A10"), some_double(r)); }, false},
    {"maker_of", [](random_source& r) { (void)maker_of(one_in(r, 2) ? device{} : catalogue_device("A10")); }, false},
    {"catalogue_device", [](random_source& r) { (void)catalogue_device(one_in(r, 2) ? "T4" : "T5"); }},
};

TEST_CASE("public functions of cluster refuse what they cannot take") { knock(doors, 20'000); }

}  // namespace
