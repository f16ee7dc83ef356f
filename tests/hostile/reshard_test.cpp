// SPDX-License-Identifier: Apache-2.0
#include "hostile.hpp"

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/reshard.hpp>
#include <hetsched/reshard/cut_points.hpp>

#include "../reshard/random_layout.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

layout some_layout(random_source& r, const std::vector<std::int64_t>& shape) {
  auto l = random_layout(r, shape, 16);
  if (!one_in(r, 3)) return l;
  switch (r.integer(0, 6)) {
    case 0:
      one_of(r, l.mesh) = -r.integer(0, 2);
      break;
    case 1:
      for (int i = 0; i < 4; ++i) l.mesh.push_back(1 << 16);
      break;
    case 2:
      l.mesh.pop_back();
      break;
    case 3:
      if (!l.dimensions.empty()) one_of(r, l.dimensions).axes.push_back(some_int(r));
      break;
    case 4:
      if (!l.dimensions.empty()) one_of(r, l.dimensions).extent = some_int64(r);
      break;
    case 5:
      if (!l.dimensions.empty()) one_of(r, l.dimensions).points.push_back(some_int64(r));
      break;
    case 6:
      l.dimensions.push_back({some_int64(r), {some_int(r)}, {0, some_int64(r)}});
      break;
  }
  return l;
}

std::vector<std::int64_t> some_shape(random_source& r) {
  std::vector<std::int64_t> shape;
  for (int d = r.integer(0, 3); d > 0; --d) shape.push_back(r.integer(0, 12));
  return shape;
}

slice some_slice(random_source& r, int dimensions) {
  slice s;
  if (one_in(r, 12)) ++dimensions;
  for (int d = 0; d < dimensions; ++d) {
    const std::int64_t first = r.integer(0, 4);
    s.push_back({mostly64(r, first, 20), mostly64(r, first + r.integer(0, 5), 20)});
  }
  return s;
}

/// Two slices and a part of both, mostly.
struct slices {
  slice a, b, part;
  std::int64_t first, last;
};
slices some_slices(random_source& r) {
  const int dimensions = r.integer(0, 3);
  slices s{some_slice(r, dimensions), some_slice(r, dimensions), {}, 0, 0};
  if (s.a.size() == s.b.size() && !one_in(r, 4)) {
    s.part = intersection(s.a, s.b);
    s.last = element_count(s.part);
  } else {
    s.part = some_slice(r, dimensions);
  }
  s.first = mostly64(r, 0, 8);
  s.last = mostly64(r, s.last, 8);
  return s;
}

cluster some_cluster(random_source& r) {
  cluster c{.subclusters = {{"a", catalogue_device("T4"), 4, 8, {1e-6, 1e10}, {1e-5, 1e9}, {}},
                            {"b", catalogue_device("A10"), 4, 8, {1e-6, 1e10}, {1e-5, 1e9}, {}}}};
  if (!one_in(r, 6)) connect(c, "a", "b", {1e-4, 1e8});
  if (one_in(r, 8)) one_of(r, c.subclusters).intra_node = {some_double(r), some_double(r)};
  if (one_in(r, 8)) one_of(r, c.subclusters).nodes = some_count(r);
  return c;
}

std::vector<device_id> some_devices(random_source& r, int count) {
  std::vector<device_id> devices;
  const int first = one_in(r, 8) ? 0 : 32;
  if (one_in(r, 12)) ++count;
  for (int i = 0; i < count; ++i) {
    const int n = i < count / 2 ? i : i + first;
    device_id d{n / 32 % 2, n / 8 % 4, n % 8};
    if (one_in(r, 200)) one_of(r, std::vector{&d.subcluster, &d.node, &d.slot})[0] = some_int(r);
    devices.push_back(d);
  }
  return devices;
}

transfer_plan some_plan(random_source& r) {
  const auto shape = some_shape(r);
  auto p = plan_transfer(random_layout(r, shape, 8), random_layout(r, shape, 8), one_of(r, all_reshard_strategies),
                         {.outer = r.integer(1, 2), .chunks = r.integer(1, 3)});
  if (!one_in(r, 3)) return p;
  switch (r.integer(0, 7)) {
    case 0:
      p.sources = some_int(r);
      break;
    case 1:
      p.destinations = some_int(r);
      break;
    case 2:
      p.dimensions = static_cast<std::size_t>(some_int64(r));
      break;
    case 3:
      p.chunks = some_int(r);
      break;
    case 4:
      if (!p.intervals.empty()) one_of(r, p.intervals).last = some_int64(r);
      break;
    case 5:
      if (!p.messages.empty()) {
        auto& m = one_of(r, p.messages);
        m = {mostly(r, m.from, 2), mostly(r, m.to, 2), static_cast<std::size_t>(some_int64(r)), some_int64(r)};
      }
      break;
    case 6:
      if (one_in(r, 3))
        p.phases.clear();
      else
        one_of(r, p.phases) = static_cast<std::size_t>(some_int64(r));
      break;
    case 7:
      if (!p.wanted.empty()) one_of(r, p.wanted) = some_int64(r);
      break;
  }
  return p;
}

/// Two layouts, mostly of one tensor, and what may be asked of them.
struct move {
  layout from, to;
  reshard_strategy strategy;
  reshard_options options;
};
move some_move(random_source& r) {
  const auto shape = some_shape(r);
  return {some_layout(r, shape),
          some_layout(r, one_in(r, 10) ? some_shape(r) : shape),
          one_in(r, 20) ? static_cast<reshard_strategy>(some_int(r)) : one_of(r, all_reshard_strategies),
          {.outer = some_count(r, 3), .chunks = one_in(r, 20) ? INT_MAX : some_count(r, 3)}};
}

choice_options some_choice(random_source& r) {
  choice_options o{.outer = some_count(r, 3), .memory_bytes = some_int64(r), .chunks = {}};
  for (int i = r.integer(0, 2); i >= 0; --i) o.chunks.push_back(mostly(r, r.integer(1, 4), 20));
  if (one_in(r, 10)) o.chunks.clear();
  if (one_in(r, 10)) o.strategies = {};
  return o;
}

int devices_of(const layout& from, const layout& to) {
  try {
    return from.device_count() + to.device_count();
  } catch (const error&) {
    return 2;
  }
}

void expect_price(const reshard_price& p) {
  expect(p.seconds >= 0 && p.occupied_s >= 0 && p.cross_bytes >= 0, "the result is no price");
}

void with_choice(random_source& r,
                 void (*then)(const cluster&, const std::vector<device_id>&, const move&, double, const choice_options&)) {
  const auto m = some_move(r);
  const int devices = devices_of(m.from, m.to);
  then(some_cluster(r), some_devices(r, devices > 0 && devices <= 64 ? devices : 2), m, one_in(r, 12) ? some_double(r) : 2,
       some_choice(r));
}

gradient_chunk some_chunk(random_source& r) {
  gradient_chunk c{some_slice(r, r.integer(0, 3)), {}, {}};
  for (int i = r.integer(0, 4), device = 0; i > 0; --i, ++device) {
    c.devices.push_back({i < 2, mostly(r, device, 30)});
    c.terms.push_back({i < 2, 0, mostly(r, device, 30)});
  }
  return c;
}

const std::vector<door> doors{
    {"cut_points",
     [](random_source& r) {
       const auto extent = mostly64(r, r.integer(0, 100), 4);
       const auto points = cut_points(extent, some_times(r, r.integer(0, 4)));
       expect(points.front() == 0 && points.back() == extent && std::is_sorted(points.begin(), points.end()), "cuts");
     }},
    {"layout::parts", [](random_source& r) { (void)some_layout(r, some_shape(r)).parts(as_size(r.integer(0, 3))); }},
    {"layout::part",
     [](random_source& r) { (void)some_layout(r, some_shape(r)).part(as_size(r.integer(0, 2)), mostly(r, r.integer(0, 2), 4)); }},
    {"layout::part_of",
     [](random_source& r) {
       (void)some_layout(r, some_shape(r)).part_of(as_size(r.integer(0, 2)), mostly(r, r.integer(0, 9), 4));
     }},
    {"layout::position",
     [](random_source& r) { (void)some_layout(r, some_shape(r)).position(mostly(r, r.integer(0, 9), 4), mostly(r, 0, 4)); }},
    {"layout::device_count", [](random_source& r) { expect(some_layout(r, some_shape(r)).device_count() >= 1, "devices"); }},
    {"slice_of", [](random_source& r) { (void)slice_of(some_layout(r, some_shape(r)), mostly(r, r.integer(0, 9), 4)); }},
    {"validate", [](random_source& r) { validate(some_layout(r, some_shape(r))); }},
    {"boundary_layout",
     [](random_source& r) {
       validate(boundary_layout({.data = mostly(r, 2), .context = mostly(r, 1), .tensor = some_count(r)}, mostly64(r, 8),
                                mostly64(r, 64), mostly64(r, 16), one_in(r, 2)));
     }},
    {"element_count", [](random_source& r) { expect(element_count(some_slice(r, r.integer(0, 3))) >= 0, "elements"); }},
    {"intersection", [](random_source& r) { (void)intersection(some_slice(r, 2), some_slice(r, 2)); }},
    {"overlap", [](random_source& r) { (void)overlap(some_slice(r, 2), some_slice(r, 2)); }},
    {"contains", [](random_source& r) { (void)contains(some_slice(r, 2), some_slice(r, 2)); }},
    {"for_each_strided",
     [](random_source& r) {
       const auto s = some_slices(r);
       if (element_count(s.part) > 4096) return;
       std::int64_t elements = 0;
       for_each_strided(s.a, s.b, s.part, s.first, s.last,
                        [&](const strided_runs& runs) { elements += runs.length * runs.rows; });
       expect(elements == (s.first < s.last ? s.last - s.first : 0), "elements");
     }},
    {"runs_of",
     [](random_source& r) {
       const auto s = some_slices(r);
       if (element_count(s.part) <= 4096) (void)runs_of(s.a, s.b, s.part, s.first, s.last);
     }},
    {"for_each_run",
     [](random_source& r) {
       const auto s = some_slices(r);
       if (element_count(s.part) <= 4096) for_each_run(s.a, s.b, s.part, [](std::int64_t, std::int64_t, std::int64_t) {});
     }},
    {"copy_part",
     [](random_source& r) {
       const auto s = some_slices(r);
       const auto from = element_count(s.a), to = element_count(s.b);
       if (from > 4096 || to > 4096) return;
       const std::vector<int> source(as_size(from), 1);
       std::vector<int> target(as_size(to), 0);
       copy_part(source.data(), s.a, target.data(), s.b, s.part);
       expect(std::count(target.begin(), target.end(), 1) == element_count(s.part), "copied");
     }},
    {"in_chunks",
     [](random_source& r) {
       (void)in_chunks(some_plan(r), one_in(r, 12) ? one_of(r, std::vector{INT_MAX, INT_MIN, 0}) : some_count(r));
     }},
    {"plan_transfer",
     [](random_source& r) {
       const auto m = some_move(r);
       (void)plan_transfer(m.from, m.to, m.strategy, m.options);
     }},
    {"devices_of",
     [](random_source& r) {
       std::vector<device_group> groups;
       for (int i = r.integer(0, 3); i > 0; --i)
         groups.push_back({{mostly(r, 0), mostly(r, 1), mostly(r, r.integer(1, 8))}, mostly(r, r.integer(0, 9))});
       for (const auto& d : hetsched::devices_of(some_cluster(r), groups)) expect(d.node >= 0 && d.slot >= 0, "a device");
     }},
    {"price_of",
     [](random_source& r) {
       const auto p = some_plan(r);
       const bool few = p.sources >= 0 && p.destinations >= 0 && p.sources <= 32 && p.destinations <= 32;
       expect_price(price_of(p, some_cluster(r), some_devices(r, few ? p.sources + p.destinations : 2),
                             one_in(r, 8) ? some_double(r) : 2));
     }},
    {"price_strategies",
     [](random_source& r) {
       with_choice(r, [](auto& c, auto& devices, auto& m, double bytes, auto& o) {
         for (const auto& choice : price_strategies(c, devices, m.from, m.to, bytes, o)) expect_price(choice.price);
       });
     }},
    {"choose_reshard",
     [](random_source& r) {
       with_choice(r, [](auto& c, auto& devices, auto& m, double bytes, auto& o) {
         expect_price(choose_reshard(c, devices, m.from, m.to, bytes, o).price);
       });
     }},
    {"cheapest",
     [](random_source& r) {
       std::vector<reshard_choice> all(as_size(r.integer(0, 4)));
       for (auto& c : all) c.price = {.seconds = some_time(r), .peak_extra_bytes = some_int64(r)};
       (void)cheapest(all, some_int64(r));
     }},
    {"gradient_chunks",
     [](random_source& r) {
       const auto shape = some_shape(r);
       std::vector<gradient_holder> holders;
       for (int i = 0, n = r.integer(0, 3); i < n; ++i)
         holders.push_back({mostly(r, i), some_layout(r, one_in(r, 12) ? some_shape(r) : shape), mostly(r, 16 * i), {}});
       for (auto& h : holders) h.summed.resize(as_size(r.integer(0, 3)), 1);
       (void)gradient_chunks(holders);
     }},
    {"gradient_buckets",
     [](random_source& r) {
       std::vector<gradient_chunk> chunks;
       for (int i = r.integer(0, 3); i > 0; --i) chunks.push_back(some_chunk(r));
       std::vector<const gradient_chunk*> pointers;
       for (const auto& c : chunks) pointers.push_back(one_in(r, 20) ? nullptr : &c);
       const bool few = std::all_of(chunks.begin(), chunks.end(), [](const auto& c) { return element_count(c.part) < 4096; });
       (void)gradient_buckets(pointers, few ? mostly64(r, 5) : INT64_MAX);
     }},
    {"bucket_parts",
     [](random_source& r) {
       auto load = std::vector<std::int64_t>(as_size(r.integer(3, 5)), mostly64(r, 3, 20));
       const auto room = one_in(r, 2) ? std::vector<double>{} : some_times(r, 5);
       const auto elements = mostly64(r, r.integer(0, 40));
       const auto parts = bucket_parts(some_chunk(r), elements, mostly64(r, 4), load, room);
       expect(parts.front().first == 0 && parts.back().last == elements, "parts");
     }},
};

TEST_CASE("public functions of reshard refuse what they cannot take") { knock(doors, 20'000); }

}  // namespace
