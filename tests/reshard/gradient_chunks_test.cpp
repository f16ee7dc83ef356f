// SPDX-License-Identifier: Apache-2.0
#include <hetsched/reshard/gradient_chunks.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>

using namespace hetsched;

namespace {

std::vector<std::int64_t> random_points(random_source& random, std::int64_t extent, int parts) {
  std::vector<std::int64_t> points{0, extent};
  for (int p = 1; p < parts; ++p) points.push_back(random.integer(0, static_cast<int>(extent)));
  std::sort(points.begin(), points.end());
  return points;
}

/// Pipelines of one or two holders each, on devices of their own or the same ones.
std::vector<gradient_holder> random_holders(random_source& random, const std::vector<int>& extents) {
  std::vector<gradient_holder> holders;
  int device = 0;
  for (int p = 0, pipelines = random.integer(1, 3); p < pipelines; ++p) {
    for (int more = random.integer(1, 2); more > 0; --more) {
      gradient_holder h{.pipeline = p,
                        .held = {.mesh = {random.integer(1, 3), random.integer(1, 2), random.integer(1, 3)}},
                        .first_device = device,
                        .summed = {1, 1, 0}};
      for (const int extent : extents) h.held.dimensions.push_back({extent, {}, {}});
      if (const int cut = random.integer(-1, static_cast<int>(extents.size()) - 1); cut >= 0) {
        auto& d = h.held.dimensions[static_cast<std::size_t>(cut)];
        d.axes = {tensor_axis};
        if (random.integer(0, 1) == 0) d.points = random_points(random, d.extent, h.held.mesh[tensor_axis]);
      } else {
        h.summed[tensor_axis] = static_cast<char>(random.integer(0, 1));
      }
      if (random.integer(0, 3) > 0) device += h.held.device_count();
      holders.push_back(std::move(h));
    }
    device = holders.back().first_device + holders.back().held.device_count();
    for (const auto& h : holders) device = std::max(device, h.first_device + h.held.device_count());
  }
  return holders;
}

std::string text_of(const std::vector<gradient_holder>& holders) {
  std::string text;
  for (const auto& h : holders) {
    text += "pipeline " + std::to_string(h.pipeline) + " from device " + std::to_string(h.first_device) + ": mesh";
    for (const int n : h.held.mesh) text += " " + std::to_string(n);
    for (const auto& d : h.held.dimensions)
      text += ", " + std::to_string(d.extent) + (d.axes.empty() ? "" : d.points.empty() ? " cut" : " cut unevenly");
    text += h.summed[tensor_axis] ? ", partial; " : "; ";
  }
  return text;
}

/// All indices of an element.
std::vector<std::int64_t> indices(std::int64_t element, const std::vector<int>& extents) {
  std::vector<std::int64_t> at(extents.size());
  for (std::size_t d = extents.size(); d-- > 0; element /= extents[d]) at[d] = element % extents[d];
  return at;
}
bool lies_in(const std::vector<std::int64_t>& at, const slice& s) {
  for (std::size_t d = 0; d < at.size(); ++d)
    if (at[d] < s[d].first || at[d] >= s[d].last) return false;
  return true;
}

}  // namespace

TEST_CASE("every element is in one chunk, with the terms and devices that a look at each holder finds") {
  random_source random(1);
  for (int run = 0; run < 500; ++run) {
    std::vector<int> extents;
    for (int d = random.integer(1, 3); d > 0; --d) extents.push_back(random.integer(1, 7));
    const auto holders = random_holders(random, extents);
    const auto text = text_of(holders);
    CAPTURE(run);
    CAPTURE(text);
    const auto chunks = gradient_chunks(holders);
    const int elements = std::accumulate(extents.begin(), extents.end(), 1, [](int a, int b) { return a * b; });
    for (int e = 0; e < elements; ++e) {
      const auto at = indices(e, extents);
      std::vector<gradient_term> terms;
      std::set<chunk_device> devices;
      for (std::size_t h = 0; h < holders.size(); ++h) {
        const auto& [data, context, tensor] = std::tie(holders[h].held.mesh[0], holders[h].held.mesh[1], holders[h].held.mesh[2]);
        const bool cut = std::any_of(holders[h].held.dimensions.begin(), holders[h].held.dimensions.end(),
                                     [](const auto& d) { return !d.axes.empty(); });
        for (int x = 0; x < data; ++x)
          for (int y = 0; y < context; ++y)
            for (int z = 0; z < tensor; ++z) {
              const int device = (x * context + y) * tensor + z;
              if (!lies_in(at, slice_of(holders[h].held, device))) continue;
              devices.insert({holders[h].pipeline, holders[h].first_device + device});
              if (cut || holders[h].summed[tensor_axis] || z == 0)
                terms.push_back({holders[h].pipeline, static_cast<int>(h), holders[h].first_device + device});
            }
      }
      int found = 0;
      for (const auto& c : chunks) {
        if (!lies_in(at, c.part)) continue;
        ++found;
        CHECK(c.terms == terms);
        CHECK(c.devices == std::vector<chunk_device>(devices.begin(), devices.end()));
      }
      CHECK(found == 1);
    }
  }
}

TEST_CASE("buckets have every element once, of chunks with the same devices, and are bounded") {
  random_source random(2);
  for (int run = 0; run < 200; ++run) {
    std::vector<gradient_chunk> chunks;
    for (int tensors = random.integer(1, 4); tensors > 0; --tensors) {
      random_source same(static_cast<std::uint64_t>(random.integer(0, 2)));
      for (auto& c : gradient_chunks(random_holders(same, {random.integer(1, 7), random.integer(1, 7)})))
        chunks.push_back(std::move(c));
    }
    std::vector<const gradient_chunk*> all;
    for (const auto& c : chunks) all.push_back(&c);
    const int most = random.integer(1, 20);
    CAPTURE(run);
    std::vector<std::int64_t> next(chunks.size(), 0);
    const auto devices_of = [](const gradient_chunk& c) {
      std::vector<chunk_device> found;
      for (const auto& t : c.terms) found.push_back({t.pipeline, t.device});
      return found;
    };
    for (const auto& b : gradient_buckets(all, most)) {
      std::int64_t elements = 0;
      for (const auto& piece : b.pieces) {
        CHECK(piece.first == next[piece.chunk]);
        CHECK(piece.first < piece.last);
        next[piece.chunk] = piece.last;
        elements += piece.last - piece.first;
        CHECK(chunks[piece.chunk].devices == chunks[b.pieces.front().chunk].devices);
        CHECK(devices_of(chunks[piece.chunk]) == devices_of(chunks[b.pieces.front().chunk]));
      }
      CHECK(elements == b.elements);
      CHECK(elements <= most);
    }
    for (std::size_t c = 0; c < chunks.size(); ++c) CHECK(next[c] == element_count(chunks[c].part));
  }
}

TEST_CASE("parts have every element once; each pipeline adds on one of its devices") {
  random_source random(3);
  for (int run = 0; run < 500; ++run) {
    const auto holders = random_holders(random, {random.integer(1, 5)});
    const auto text = text_of(holders);
    CAPTURE(run);
    CAPTURE(text);
    int devices = 0;
    for (const auto& h : holders) devices = std::max(devices, h.first_device + h.held.device_count());
    for (const auto& c : gradient_chunks(holders)) {
      std::vector<std::int64_t> load(static_cast<std::size_t>(devices), 0);
      const int elements = random.integer(1, 40), least = random.integer(1, 9);
      std::int64_t next = 0;
      for (const auto& p : bucket_parts(c, elements, least, load)) {
        CHECK(p.first == next);
        CHECK(p.first < p.last);
        CHECK((p.last - p.first >= least || p.last - p.first == elements));
        next = p.last;
        std::set<int> pipelines;
        for (const auto& d : c.devices) pipelines.insert(d.pipeline);
        CHECK(p.collectors.size() == pipelines.size());
        auto collector = p.collectors.begin();
        bool owned = false;
        for (const int pipeline : pipelines) {
          CHECK(std::count(c.devices.begin(), c.devices.end(), chunk_device{pipeline, *collector}) == 1);
          owned = owned || *collector == p.owner;
          ++collector;
        }
        CHECK(owned);
      }
      CHECK(next == elements);
      const auto most = *std::max_element(load.begin(), load.end());
      if (elements >= least * static_cast<int>(c.devices.size()))
        for (const auto& d : c.devices) CHECK(most - load[static_cast<std::size_t>(d.device)] <= 1);
    }
  }
}

TEST_CASE("parts by room: every element once, and devices own what they have room for") {
  random_source random(11);
  for (int run = 0; run < 200; ++run) {
    const int devices = random.integer(1, 6);
    const gradient_holder one{0, {.mesh = {devices, 1, 1}, .dimensions = {{1000, {}, {}}}}, 0, {1, 1, 0}};
    const auto chunk = gradient_chunks(std::vector{one}).front();
    std::vector<double> room;
    double weight = 0;
    for (int d = 0; d < devices; ++d)
      weight += room.emplace_back(d > 0 && random.integer(0, 3) == 0 ? 0.0 : random.uniform(0.1, 3));
    std::vector<std::int64_t> load(static_cast<std::size_t>(devices), 0);
    std::int64_t all = 0;
    const int least = random.integer(1, 200);
    CAPTURE(run);
    for (int bucket = 0; bucket < 60; ++bucket) {
      const std::int64_t elements = random.integer(1, 500);
      all += elements;
      std::int64_t next = 0;
      for (const auto& p : bucket_parts(chunk, elements, least, load, room)) {
        CHECK(p.first == next);
        CHECK(p.first < p.last);
        CHECK(room[static_cast<std::size_t>(p.owner)] > 0);
        CHECK(p.collectors == std::vector{p.owner});
        next = p.last;
      }
      CHECK(next == elements);
    }
    // No more than a bucket away from its share.
    for (std::size_t d = 0; d < room.size(); ++d)
      CHECK(std::abs(static_cast<double>(load[d]) - static_cast<double>(all) * room[d] / weight) <= 500);
  }
}

TEST_CASE("tensor parallelism of 1, 2 and 3 in three pipelines") {
  const auto holder = [](int pipeline, int first, int tensor, std::vector<std::int64_t> points) {
    return gradient_holder{
        pipeline, {.mesh = {1, 1, tensor}, .dimensions = {{4, {}, {}}, {8, {tensor_axis}, std::move(points)}}}, first, {1, 1, 0}};
  };
  const auto chunks = gradient_chunks(std::vector{holder(0, 0, 1, {}), holder(1, 1, 2, {}), holder(2, 3, 3, {0, 1, 5, 8})});
  std::vector<interval> columns;
  std::vector<std::vector<int>> devices;
  for (const auto& c : chunks) {
    CHECK(c.part[0] == interval{0, 4});
    columns.push_back(c.part[1]);
    auto& own = devices.emplace_back();
    for (const auto& t : c.terms) own.push_back(t.device);
  }
  CHECK(columns == std::vector<interval>{{0, 1}, {1, 4}, {4, 5}, {5, 8}});
  CHECK(devices == std::vector<std::vector<int>>{{0, 1, 3}, {0, 1, 4}, {0, 2, 4}, {0, 2, 5}});
}
