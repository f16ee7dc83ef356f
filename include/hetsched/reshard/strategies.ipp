// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/reshard/slice.hpp>
#include <hetsched/reshard/strategies.hpp>

namespace hetsched::detail {

/// Boxes of a tensor that devices hold or want. Devices with equal boxes are one cell.
class piece_list {
 public:
  explicit piece_list(std::size_t dimensions) : dimensions_(dimensions) {}
  /// All devices of a layout, numbered from `first` on.
  piece_list(const layout& l, int first) : dimensions_(l.dimensions.size()) {
    const int devices = l.device_count();
    std::vector<int> cell_of;  // by parts
    std::size_t cells = 1;
    for (std::size_t d = 0; d < dimensions_; ++d) cells *= as_size(unchecked::parts(l, d));
    cell_of.assign(cells, -1);
    for (int device = 0; device < devices; ++device) {
      std::size_t index = 0;
      for (std::size_t d = 0; d < dimensions_; ++d)
        index = index * as_size(unchecked::parts(l, d)) + as_size(unchecked::part_of(l, d, device));
      auto& cell = cell_of[index];
      if (cell < 0) {
        cell = static_cast<int>(devices_.size());
        for (std::size_t d = 0; d < dimensions_; ++d) boxes_.push_back(unchecked::part(l, d, unchecked::part_of(l, d, device)));
        devices_.emplace_back();
      }
      at(devices_, cell).push_back(first + device);
    }
  }

  void add(int device, std::span<const interval> box) {
    for (std::size_t c = 0; c < size(); ++c)
      if (std::equal(box.begin(), box.end(), this->box(c).begin())) {
        devices_[c].push_back(device);
        return;
      }
    add_cell({device}, box);
  }
  /// Requires: a box that is not there.
  void add_cell(std::vector<int> devices, std::span<const interval> box) {
    boxes_.insert(boxes_.end(), box.begin(), box.end());
    devices_.push_back(std::move(devices));
  }

  [[nodiscard]] std::size_t size() const { return devices_.size(); }
  [[nodiscard]] std::span<const interval> box(std::size_t cell) const {
    return std::span(boxes_).subspan(cell * dimensions_, dimensions_);
  }
  [[nodiscard]] const std::vector<int>& devices(std::size_t cell) const { return devices_[cell]; }

 private:
  std::size_t dimensions_;
  std::vector<interval> boxes_;
  std::vector<std::vector<int>> devices_;
};

class transfer_planner {
 public:
  transfer_planner(const layout& from, const layout& to, const reshard_options& options)
      : from_(from), to_(to), outer_(outer_parts(options.outer)) {
    plan_.sources = from.device_count();
    plan_.destinations = to.device_count();
    plan_.dimensions = from.dimensions.size();
    for (int j = 0; j < plan_.destinations; ++j) plan_.wanted.push_back(element_count(unchecked::slice_of(to, j)));
    loads_.assign(as_size(plan_.sources + plan_.destinations), 0);
  }

  [[nodiscard]] transfer_plan make(reshard_strategy s) {
    plan_.strategy = name_of(s);
    const piece_list have(from_, 0), want(to_, plan_.sources);
    switch (s) {
      case reshard_strategy::direct:
        exchange(have, want, false);
        break;
      case reshard_strategy::load_balanced:
        exchange(have, want, true);
        break;
      case reshard_strategy::one_to_one:
        one_to_one(have, want);
        break;
      case reshard_strategy::inner_rank_0:
        inner_rank_0(have, want);
        break;
      case reshard_strategy::leader_broadcast:
        leader_broadcast(have, want);
        break;
      case reshard_strategy::scatter_gather:
        scatter_gather(have, want);
        break;
      case reshard_strategy::regroup_before:
        regroup_before(have, want);
        break;
      case reshard_strategy::regroup_after:
        regroup_after(have, want);
        break;
    }
    return std::move(plan_);
  }

 private:
  /// As many parts as both sides' first axes and cuts allow.
  [[nodiscard]] int outer_parts(int wanted) const {
    const auto fits = [&](const layout& l, int parts) { return !l.mesh.empty() && l.mesh.front() % parts == 0; };
    if (wanted <= 1 || !fits(from_, wanted) || !fits(to_, wanted)) return 1;
    // The same dimension, cut by the first axis before any other, at the same places.
    bool cuts = false;
    for (std::size_t d = 0; d < from_.dimensions.size(); ++d) {
      const auto leads = [&](const layout& l) { return !l.dimensions[d].axes.empty() && l.dimensions[d].axes.front() == 0; };
      const auto has_first_axis = [&](const layout& l) {
        return std::count(l.dimensions[d].axes.begin(), l.dimensions[d].axes.end(), 0) > 0;
      };
      if (leads(from_) != leads(to_) || leads(from_) != has_first_axis(from_) || leads(to_) != has_first_axis(to_)) return 1;
      cuts = cuts || leads(from_);
      for (int o = 1; leads(from_) && o < wanted; ++o)
        if (unchecked::part(from_, d, unchecked::parts(from_, d) / wanted * o).first !=
            unchecked::part(to_, d, unchecked::parts(to_, d) / wanted * o).first)
          return 1;
    }
    return cuts ? wanted : 1;
  }
  /// The box of an outer part.
  [[nodiscard]] slice box_of(int part) const {
    auto box = from_.whole();
    for (std::size_t d = 0; outer_ > 1 && d < box.size(); ++d)
      if (!from_.dimensions[d].axes.empty() && from_.dimensions[d].axes.front() == 0) {
        const int each = unchecked::parts(from_, d) / outer_;
        box[d] = {unchecked::part(from_, d, part * each).first, unchecked::part(from_, d, (part + 1) * each - 1).last};
      }
    return box;
  }

  void send(int from, int to, std::span<const interval> box) {
    if (from == to) return;
    const auto elements = element_count(box);
    if (elements == 0) return;
    plan_.messages.push_back({from, to, plan_.intervals.size(), elements});
    for (const auto i : box) plan_.intervals.push_back(i);
    at(loads_, from) += elements;
  }
  /// Ends a phase. Senders begin with different receivers: in the order of how far a receiver is from its sender.
  void end_phase(bool stagger = false) {
    const auto first = plan_.messages.begin() + static_cast<std::ptrdiff_t>(plan_.phases.back());
    const int all = plan_.sources + plan_.destinations;
    if (stagger) {
      const auto distance = [&](const slice_message& m) { return (m.to - m.from + all) % all; };
      std::stable_sort(first, plan_.messages.end(),
                       [&](const slice_message& a, const slice_message& b) { return distance(a) < distance(b); });
    }
    if (first != plan_.messages.end()) plan_.phases.push_back(plan_.messages.size());
    std::fill(loads_.begin(), loads_.end(), 0);
  }

  /// One phase, in which every device of `want` gets what it lacks from those of `have`. Of several that hold the same, the
  /// k-th serves the k-th of those that want the same, or the least loaded does.
  void exchange(const piece_list& have, const piece_list& want, bool balanced) {
    const auto order = by_first_dimension(have);
    slice common(plan_.dimensions);
    for (std::size_t w = 0; w < want.size(); ++w) {
      const auto to_box = want.box(w);
      const auto& receivers = want.devices(w);
      for (auto h = order.from(to_box); h != order.cells.end(); ++h) {
        const auto from_box = have.box(h->cell);
        if (plan_.dimensions > 0 && from_box[0].first >= to_box[0].last) break;
        bool shared = true;
        for (std::size_t d = 0; shared && d < plan_.dimensions; ++d) {
          common[d] = {std::max(from_box[d].first, to_box[d].first), std::min(from_box[d].last, to_box[d].last)};
          shared = common[d].first < common[d].last;
        }
        if (!shared) continue;
        const auto& holders = have.devices(h->cell);
        for (std::size_t k = 0; k < receivers.size(); ++k) {
          int from = holders[k % holders.size()];
          if (holders.size() > 1) {
            if (std::find(holders.begin(), holders.end(), receivers[k]) != holders.end()) continue;
            if (balanced)
              from =
                  *std::min_element(holders.begin(), holders.end(), [&](int a, int b) { return at(loads_, a) < at(loads_, b); });
          }
          send(from, receivers[k], common);
        }
      }
    }
    end_phase(balanced);
  }

  /// Cells by where they begin along the first dimension, so that those that may share something with a box are found.
  struct ordered_cells {
    struct entry {
      std::size_t cell = 0;
      std::int64_t first = 0, reach = 0;  // reach: the furthest that it or one before it goes
    };
    std::vector<entry> cells;
    [[nodiscard]] std::vector<entry>::const_iterator from(std::span<const interval> box) const {
      if (box.empty()) return cells.begin();
      return std::partition_point(cells.begin(), cells.end(), [&](const entry& e) { return e.reach <= box[0].first; });
    }
  };
  [[nodiscard]] ordered_cells by_first_dimension(const piece_list& list) const {
    ordered_cells order;
    order.cells.reserve(list.size());
    for (std::size_t c = 0; c < list.size(); ++c)
      order.cells.push_back(plan_.dimensions == 0 ? ordered_cells::entry{c, 0, 1}
                                                  : ordered_cells::entry{c, list.box(c)[0].first, list.box(c)[0].last});
    const auto before = [](const auto& a, const auto& b) { return a.first < b.first; };
    if (!std::is_sorted(order.cells.begin(), order.cells.end(), before))
      std::stable_sort(order.cells.begin(), order.cells.end(), before);
    for (std::size_t i = 1; i < order.cells.size(); ++i)
      order.cells[i].reach = std::max(order.cells[i].reach, order.cells[i - 1].reach);
    return order;
  }

  void one_to_one(const piece_list& have, const piece_list& want) {
    piece_list here(plan_.dimensions), there(plan_.dimensions);
    for (int part = 0; part < outer_; ++part) {
      here.add_cell({plan_.sources / outer_ * part}, box_of(part));
      there.add_cell({plan_.sources + plan_.destinations / outer_ * part}, box_of(part));
    }
    exchange(have, here, false);
    exchange(here, there, false);
    exchange(there, want, false);
  }

  /// What the first data ranks of every part hold if they have gathered along data; devices are numbered from `first` on.
  [[nodiscard]] piece_list gathered(const layout& l, int first) const {
    piece_list found(plan_.dimensions);
    for (int device = 0, devices = l.device_count(); device < devices; ++device) {
      const int rows = l.mesh.empty() ? 1 : l.mesh.front() / outer_;
      if (!l.mesh.empty() && unchecked::position(l, device, 0) % rows != 0) continue;
      auto box = unchecked::slice_of(l, device);
      for (std::size_t d = 0; d < box.size(); ++d) {
        const auto& axes = l.dimensions[d].axes;
        const auto cut = std::find(axes.begin(), axes.end(), 0);
        if (cut == axes.end()) continue;
        // Only a leading axis makes the gathered parts one box.
        if (cut != axes.begin() || axes.size() > 1) return piece_list(plan_.dimensions);
        const int p = unchecked::part_of(l, d, device);
        box[d] = {unchecked::part(l, d, p).first, unchecked::part(l, d, p + rows - 1).last};
      }
      found.add(first + device, box);
    }
    return found;
  }

  void inner_rank_0(const piece_list& have, const piece_list& want) {
    const auto here = gathered(from_, 0), there = gathered(to_, plan_.sources);
    if (here.size() == 0 || there.size() == 0) return exchange(have, want, false);
    exchange(have, here, false);
    exchange(here, there, false);
    exchange(there, want, false);
  }

  void leader_broadcast(const piece_list& have, const piece_list& want) {
    piece_list leaders(plan_.dimensions);
    std::size_t most = 1;
    for (std::size_t w = 0; w < want.size(); ++w) {
      leaders.add_cell({want.devices(w).front()}, want.box(w));
      most = std::max(most, want.devices(w).size());
    }
    exchange(have, leaders, false);
    for (std::size_t known = 1; known < most; known *= 2) {
      for (std::size_t w = 0; w < want.size(); ++w) {
        const auto& group = want.devices(w);
        for (std::size_t i = 0; i < known && known + i < group.size(); ++i) send(group[i], group[known + i], want.box(w));
      }
      end_phase();
    }
  }

  /// Parts of a box for so many devices, cut along its longest dimension.
  [[nodiscard]] static slice part_of_box(std::span<const interval> box, std::size_t part, std::size_t parts) {
    slice cut(box.begin(), box.end());
    const auto longest = std::max_element(cut.begin(), cut.end(), [](interval a, interval b) { return a.size() < b.size(); });
    if (longest == cut.end()) return cut;
    const auto n = longest->size(), i = static_cast<std::int64_t>(part), all = static_cast<std::int64_t>(parts);
    *longest = {longest->first + i * n / all, longest->first + (i + 1) * n / all};
    return cut;
  }

  void scatter_gather(const piece_list& have, const piece_list& want) {
    piece_list parts(plan_.dimensions);
    std::size_t most = 1;
    for (std::size_t w = 0; w < want.size(); ++w) {
      const auto& group = want.devices(w);
      if (want.box(w).empty() && group.size() > 1) return leader_broadcast(have, want);  // a scalar
      most = std::max(most, group.size());
      for (std::size_t i = 0; i < group.size(); ++i)
        if (const auto box = part_of_box(want.box(w), i, group.size()); element_count(box) > 0) parts.add_cell({group[i]}, box);
    }
    exchange(have, parts, true);
    // Rings: in each round every device passes on the part that it got last.
    for (std::size_t round = 0; round + 1 < most; ++round) {
      for (std::size_t w = 0; w < want.size(); ++w) {
        const auto& group = want.devices(w);
        const auto n = group.size();
        for (std::size_t i = 0; i < n && round + 1 < n; ++i)
          send(group[i], group[(i + 1) % n], part_of_box(want.box(w), (i + n - round) % n, n));
      }
      end_phase();
    }
  }

  void regroup_before(const piece_list& have, const piece_list& want) {
    std::vector<int> proxy(as_size(plan_.destinations));
    piece_list proxies(plan_.dimensions);
    for (int j = 0; j < plan_.destinations; ++j)
      at(proxy, j) = static_cast<int>(std::int64_t{j} * plan_.sources / plan_.destinations);
    std::vector<std::pair<int, std::size_t>> cell_of(as_size(plan_.destinations));
    for (std::size_t w = 0; w < want.size(); ++w) {
      std::vector<int> who;
      for (const int device : want.devices(w)) {
        const int p = at(proxy, device - plan_.sources);
        if (std::find(who.begin(), who.end(), p) == who.end()) who.push_back(p);
        at(cell_of, device - plan_.sources) = {p, w};
      }
      proxies.add_cell(std::move(who), want.box(w));
    }
    exchange(have, proxies, true);
    for (int j = 0; j < plan_.destinations; ++j) send(at(cell_of, j).first, plan_.sources + j, want.box(at(cell_of, j).second));
    end_phase(true);
  }

  void regroup_after(const piece_list& have, const piece_list& want) {
    piece_list proxies(plan_.dimensions);
    for (std::size_t h = 0; h < have.size(); ++h) {
      // Holders of the same take turns.
      const auto& holders = have.devices(h);
      const int from = holders[h % holders.size()];
      const int to = plan_.sources + static_cast<int>(std::int64_t{from} * plan_.destinations / plan_.sources);
      send(from, to, have.box(h));
      proxies.add_cell({to}, have.box(h));
    }
    end_phase(true);
    exchange(proxies, want, true);
  }

  const layout& from_;
  const layout& to_;
  int outer_;
  transfer_plan plan_;
  std::vector<std::int64_t> loads_;  // elements that devices send in this phase
};

}  // namespace hetsched::detail

namespace hetsched::detail::unchecked {

HETSCHED_INLINE transfer_plan in_chunks(const transfer_plan& p, int chunks) {
  if (chunks <= 1 || p.phase_count() < 2 || p.dimensions == 0) return p;
  std::vector<std::int64_t> shortest(p.dimensions, INT64_MAX), extent(p.dimensions, 0);
  for (const auto& m : p.messages)
    for (std::size_t d = 0; d < p.dimensions; ++d) {
      const auto i = p.slice_of(m)[d];
      shortest[d] = std::min(shortest[d], i.size());
      extent[d] = std::max(extent[d], i.last);
    }
  // Whole in all messages where possible, else long in all.
  std::size_t along = 0;
  const auto worth = [&](std::size_t d) { return std::pair(shortest[d] == extent[d] && extent[d] >= chunks, shortest[d]); };
  for (std::size_t d = 1; d < p.dimensions; ++d)
    if (worth(d) > worth(along)) along = d;
  transfer_plan cut{.strategy = p.strategy,
                    .sources = p.sources,
                    .destinations = p.destinations,
                    .dimensions = p.dimensions,
                    .chunks = chunks,
                    .wanted = p.wanted};
  for (int c = 0; c < chunks; ++c)
    for (std::size_t phase = 0; phase < p.phase_count(); ++phase) {
      for (const auto& m : p.phase(phase)) {
        slice box(p.slice_of(m).begin(), p.slice_of(m).end());
        box[along].first = std::max(box[along].first, extent[along] * c / chunks);
        box[along].last = std::min(box[along].last, extent[along] * (c + 1) / chunks);
        if (box[along].size() <= 0) continue;
        cut.messages.push_back({m.from, m.to, cut.intervals.size(), element_count(box)});
        cut.intervals.insert(cut.intervals.end(), box.begin(), box.end());
      }
      cut.phases.push_back(cut.messages.size());
    }
  return cut;
}

HETSCHED_INLINE transfer_plan plan_transfer(const layout& from, const layout& to, reshard_strategy strategy,
                                            const reshard_options& options) {
  return unchecked::in_chunks(transfer_planner(from, to, options).make(strategy), options.chunks);
}

}  // namespace hetsched::detail::unchecked

namespace hetsched::detail {

HETSCHED_INLINE std::int64_t validate(const transfer_plan& p) {
  expect_count(p.sources, "the sources of a transfer", 0);
  expect_count(p.destinations, "the destinations of a transfer", 0, INT_MAX - p.sources);
  expect_size(p.wanted.size(), as_size(p.destinations), "wanted", "one per destination");
  for (const auto elements : p.wanted) expect_count(elements, "the elements that a destination wants", 0);
  if (p.phases.empty() || p.phases.front() != 0 || p.phases.back() != p.messages.size() ||
      !std::is_sorted(p.phases.begin(), p.phases.end()))
    throw input_error("the phases of a transfer do not go from its first to its last message");
  expect_count(p.chunks, "the chunks of a transfer", 1, most_chunks);
  if (p.phase_count() % as_size(p.chunks) != 0)
    throw input_error("a transfer of " + std::to_string(p.phase_count()) + " phases is not one of " + std::to_string(p.chunks) +
                      " chunks");
  // In one pass without branches, as plans are long; what is wrong is looked for if anything is.
  const auto devices = static_cast<unsigned>(p.sources + p.destinations);
  const bool fit = p.dimensions <= p.intervals.size();
  const std::size_t last = fit ? p.intervals.size() - p.dimensions : 0;
  bool good = true;
  std::int64_t bits = 0;
  std::uint64_t sum = 0;
  for (const auto& m : p.messages) {
    good = good & (static_cast<unsigned>(m.from) < devices) & (static_cast<unsigned>(m.to) < devices) & (m.from != m.to) &
           (m.intervals <= last);
    bits |= m.elements;
    sum += static_cast<std::uint64_t>(m.elements);
  }
  if (!good || (!fit && !p.messages.empty()))
    for (std::size_t i = 0; i < p.messages.size(); ++i) {
      const auto name = "message " + std::to_string(i) + " of a transfer: ";
      const auto& m = p.messages[i];
      for (const int device : {m.from, m.to}) expect_count(device, name + "a device", 0, static_cast<std::int64_t>(devices) - 1);
      if (m.from == m.to) throw input_error(name + "it goes from a device to itself");
      if (!fit || m.intervals > last) throw input_error(name + "its slice is not among the intervals");
    }
  if (bits < 0) throw input_error("a message of a transfer has less than 0 elements");
  if (!p.messages.empty() && bits > INT64_MAX / static_cast<std::int64_t>(p.messages.size())) {
    std::int64_t all = 0;
    for (const auto& m : p.messages) all = checked_add(all, m.elements);
  }
  return static_cast<std::int64_t>(sum);
}

HETSCHED_INLINE void validate_pair(const layout& from, const layout& to) {
  hetsched::validate(from);
  hetsched::validate(to);
  if (from.dimensions.size() != to.dimensions.size())
    throw input_error("layouts of " + std::to_string(from.dimensions.size()) + " and " + std::to_string(to.dimensions.size()) +
                      " dimensions are not of one tensor");
  for (std::size_t d = 0; d < from.dimensions.size(); ++d)
    if (from.dimensions[d].extent != to.dimensions[d].extent)
      throw input_error("layouts whose dimension " + std::to_string(d) + " is " + std::to_string(from.dimensions[d].extent) +
                        " and " + std::to_string(to.dimensions[d].extent) + " are not of one tensor");
  expect_count(std::int64_t{from.device_count()} + to.device_count(), "the number of devices of two layouts", 2, INT_MAX);
}

HETSCHED_INLINE void expect_strategy(reshard_strategy s) {
  expect_count(static_cast<std::int64_t>(s), "the number of a resharding strategy", 0,
               static_cast<std::int64_t>(all_reshard_strategies.size()) - 1);
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE transfer_plan in_chunks(const transfer_plan& p, int chunks) {
  detail::expect_count(chunks, "chunks", 1, most_chunks);
  detail::validate(p);
  for (const auto& i : p.intervals)
    if (i.first < 0 || i.last < i.first || i.last > INT64_MAX / most_chunks)
      throw input_error("an interval of a transfer goes from " + std::to_string(i.first) + " to " + std::to_string(i.last));
  return detail::unchecked::in_chunks(p, chunks);
}

HETSCHED_INLINE transfer_plan plan_transfer(const layout& from, const layout& to, reshard_strategy strategy,
                                            const reshard_options& options) {
  detail::validate_pair(from, to);
  detail::expect_strategy(strategy);
  detail::expect_count(options.outer, "outer");
  detail::expect_count(options.chunks, "chunks", 1, most_chunks);
  return detail::unchecked::plan_transfer(from, to, strategy, options);
}

}  // namespace hetsched
