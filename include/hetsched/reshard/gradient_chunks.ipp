// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <climits>
#include <map>
#include <string>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/reshard/cut_points.hpp>
#include <hetsched/reshard/gradient_chunks.hpp>

namespace hetsched {

HETSCHED_INLINE std::vector<gradient_chunk> gradient_chunks(std::span<const gradient_holder> holders) {
  std::vector<gradient_chunk> chunks;
  if (holders.empty()) return chunks;
  const auto whole = holders.front().held.whole();
  std::vector<std::vector<std::int64_t>> points(whole.size());
  std::vector<std::vector<slice>> slices(holders.size());
  for (std::size_t h = 0; h < holders.size(); ++h) {
    const auto& l = holders[h].held;
    validate(l);
    if (l.whole() != whole) throw input_error("holder " + std::to_string(h) + " has another tensor than the first");
    if (h > 0 && holders[h - 1].pipeline > holders[h].pipeline)
      throw input_error("holder " + std::to_string(h) + " is of pipeline " + std::to_string(holders[h].pipeline) +
                        ", expected at least that of the one before");
    detail::expect_count(holders[h].first_device, "the first device of holder " + std::to_string(h), 0,
                         INT_MAX - l.device_count());
    for (std::size_t d = 0; d < whole.size(); ++d)
      for (int p = 0, parts = detail::unchecked::parts(l, d); p < parts; ++p) {
        points[d].push_back(detail::unchecked::part(l, d, p).first);
        points[d].push_back(detail::unchecked::part(l, d, p).last);
      }
    for (int device = 0, devices = l.device_count(); device < devices; ++device)
      slices[h].push_back(detail::unchecked::slice_of(l, device));
  }
  for (auto& p : points) {
    std::sort(p.begin(), p.end());
    p.erase(std::unique(p.begin(), p.end()), p.end());
  }
  // Devices whose gradient counts; along axes that neither cut nor are summed, the first.
  const auto counts = [&](const gradient_holder& holder, int device) {
    for (std::size_t axis = 0; axis < holder.held.mesh.size(); ++axis) {
      bool told = axis < holder.summed.size() && holder.summed[axis] != 0;
      for (const auto& cut : holder.held.dimensions)
        told = told || std::find(cut.axes.begin(), cut.axes.end(), static_cast<int>(axis)) != cut.axes.end();
      if (!told && detail::unchecked::position(holder.held, device, static_cast<int>(axis)) > 0) return false;
    }
    return true;
  };
  const auto visit = [&](auto& self, slice& part, std::size_t d) -> void {
    if (d < whole.size()) {
      for (std::size_t i = 0; i + 1 < points[d].size(); ++i) {
        part.push_back({points[d][i], points[d][i + 1]});
        self(self, part, d + 1);
        part.pop_back();
      }
      return;
    }
    auto& chunk = chunks.emplace_back();
    chunk.part = part;
    for (std::size_t h = 0; h < holders.size(); ++h)
      for (std::size_t device = 0; device < slices[h].size(); ++device) {
        if (!detail::unchecked::contains(slices[h][device], part)) continue;
        const int number = holders[h].first_device + static_cast<int>(device);
        chunk.devices.push_back({holders[h].pipeline, number});
        if (counts(holders[h], static_cast<int>(device)))
          chunk.terms.push_back({holders[h].pipeline, static_cast<int>(h), number});
      }
    std::sort(chunk.devices.begin(), chunk.devices.end());
    chunk.devices.erase(std::unique(chunk.devices.begin(), chunk.devices.end()), chunk.devices.end());
  };
  slice part;
  visit(visit, part, 0);
  return chunks;
}

HETSCHED_INLINE std::vector<gradient_bucket> gradient_buckets(std::span<const gradient_chunk* const> chunks,
                                                              std::int64_t most_elements) {
  detail::expect_count(most_elements, "most_elements");
  for (std::size_t c = 0; c < chunks.size(); ++c)
    if (!chunks[c]) throw input_error("chunk " + std::to_string(c) + " is null");
  using key = std::pair<std::vector<chunk_device>, std::vector<chunk_device>>;
  std::map<key, std::size_t> open;
  std::vector<gradient_bucket> buckets;
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    key same{chunks[c]->devices, {}};
    for (const auto& t : chunks[c]->terms) same.second.push_back({t.pipeline, t.device});
    const std::int64_t all = element_count(chunks[c]->part);
    for (std::int64_t first = 0; first < all;) {
      auto found = open.find(same);
      if (found == open.end() || buckets[found->second].elements == most_elements) {
        found = open.insert_or_assign(same, buckets.size()).first;
        buckets.emplace_back();
      }
      auto& bucket = buckets[found->second];
      const std::int64_t last = all - first < most_elements - bucket.elements ? all : first + most_elements - bucket.elements;
      bucket.pieces.push_back({c, first, last});
      bucket.elements += last - first;
      first = last;
    }
  }
  return buckets;
}

HETSCHED_INLINE std::vector<bucket_part> bucket_parts(const gradient_chunk& chunk, std::int64_t elements,
                                                      std::int64_t least_elements, std::span<std::int64_t> load,
                                                      std::span<const double> room) {
  detail::expect_count(elements, "the elements of a bucket", 0);
  const auto devices = static_cast<std::int64_t>(chunk.devices.size());
  if (devices == 0) throw input_error("a chunk has no devices");
  std::int64_t loads = checked_mul(elements, devices);
  for (const auto& d : chunk.devices) {
    detail::expect_count(d.device, "a device of a chunk", 0, static_cast<std::int64_t>(load.size()) - 1);
    detail::expect_count(at(load, d.device), "the load of device " + std::to_string(d.device), 0);
    loads = checked_add(loads, at(load, d.device));
    if (room.empty()) continue;
    detail::expect_count(d.device, "a device of a chunk", 0, static_cast<std::int64_t>(room.size()) - 1);
    detail::expect_natural(at(room, d.device), "the room of device " + std::to_string(d.device));
  }
  std::int64_t parts = std::clamp<std::int64_t>(elements / std::max<std::int64_t>(least_elements, 1), 1, devices);
  auto owners = chunk.devices;
  const auto load_of = [&](const chunk_device& d) -> std::int64_t& { return at(load, d.device); };
  std::vector<std::int64_t> points;
  if (!room.empty() && elements > 0) {
    const auto room_of = [&](const chunk_device& d) { return at(room, d.device); };
    // What each lacks of its share of all that these devices will own then.
    double all = static_cast<double>(elements), weight = 0;
    for (const auto& d : owners) {
      all += static_cast<double>(load_of(d));
      weight += room_of(d);
    }
    detail::expect_positive(weight, "the room of all devices of a chunk");
    const auto lacks = [&](const chunk_device& d) {
      return std::max(0.0, all * room_of(d) / weight - static_cast<double>(load_of(d)));
    };
    std::stable_sort(owners.begin(), owners.end(), [&](const auto& a, const auto& b) { return lacks(a) > lacks(b); });
    std::vector<double> shares;
    for (std::int64_t p = 0; p < parts; ++p) shares.push_back(lacks(at(owners, p)));
    points = cut_points(elements, shares);
    // Shares fall, so that empty parts are the last.
    while (at(points, parts - 1) == elements) --parts;
  } else if (parts < devices) {
    std::stable_sort(owners.begin(), owners.end(), [&](const auto& a, const auto& b) { return load_of(a) < load_of(b); });
  }
  std::vector<bucket_part> found;
  for (std::int64_t p = 0; p < parts; ++p) {
    const auto owner = at(owners, p);
    auto& part = found.emplace_back();
    part.first = points.empty() ? elements * p / parts : at(points, p);
    part.last = points.empty() ? elements * (p + 1) / parts : at(points, p + 1);
    part.owner = owner.device;
    load_of(owner) += part.last - part.first;
    for (auto first = chunk.devices.begin(); first != chunk.devices.end();) {
      const auto last = std::find_if(first, chunk.devices.end(), [&](const auto& d) { return d.pipeline != first->pipeline; });
      int only = -1;
      for (const auto& t : chunk.terms)
        if (t.pipeline == first->pipeline) only = only == -1 || only == t.device ? t.device : -2;
      const auto spread = first + (last - first) * static_cast<std::ptrdiff_t>(p) / static_cast<std::ptrdiff_t>(parts);
      part.collectors.push_back(first->pipeline == owner.pipeline ? owner.device : only >= 0 ? only : spread->device);
      first = last;
    }
  }
  return found;
}

}  // namespace hetsched
