// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cost/questions/check_cost.hpp>
#include <hetsched/cost/questions/price_book.hpp>

namespace hetsched {

HETSCHED_INLINE price_book::price_book(const cluster& hardware, any_cost_model costs)
    : hardware_(hardware),
      costs_(std::move(costs)),
      layers_(costs_.layer_count()),
      additive_(costs_.additive()),
      asks_proximity_(costs_.asks_proximity()) {
  if (layers_ < 1) throw input_error("a cost model needs at least one layer");
  std::vector<std::int64_t> classes;
  for (int j = 0; j + 1 < layers_; ++j) {
    const auto own = costs_.boundary_class(j);
    const auto known = std::find(classes.begin(), classes.end(), own);
    boundary_kinds_.push_back(static_cast<int>(known - classes.begin()));
    if (known != classes.end()) continue;
    classes.push_back(own);
    first_boundaries_.push_back(j);
  }
}

HETSCHED_INLINE price_book::mesh_placements& price_book::on(const submesh& mesh) {
  const auto known = std::find_if(meshes_.begin(), meshes_.end(), [&](const auto& m) { return m.mesh == mesh; });
  return known != meshes_.end() ? *known : meshes_.emplace_back(mesh_placements{mesh});
}

HETSCHED_INLINE const std::vector<int>& price_book::placements(const submesh& mesh) {
  auto& here = on(mesh);
  if (here.is_asked) return here.offered;
  std::vector<int> offered;
  for (const placement& p : costs_.placements(mesh)) {
    if (!(p.mesh == mesh)) throw input_error("a cost model's placements must lie on the submesh they were asked for");
    offered.push_back(find(here, p));
  }
  here.is_asked = true;
  here.offered = std::move(offered);
  return here.offered;
}

HETSCHED_INLINE int price_book::find(const placement& where) { return find(on(where.mesh), where); }

HETSCHED_INLINE int price_book::find(mesh_placements& known, const placement& where) {
  for (const int p : known.known)
    if (at(placements_, p).where == where) return p;
  const auto& s = subcluster_of(hardware_, where.mesh);
  booked_placement added{.where = where, .overheads = costs_.overheads(where), .copies = costs_.copies(where), .memory = {}};
  validate(added.overheads);
  check_copies(added.copies, layers_);
  const auto same_layers = [](const parameter_copy& a, const parameter_copy& b) {
    return a.owner == b.owner && a.layer == b.layer;
  };
  const auto &own = added.copies, &first = placements_.empty() ? own : placements_.front().copies;
  if (!std::equal(own.begin(), own.end(), first.begin(), first.end(), same_layers))
    throw input_error("copies: of other layers on one placement than on another");
  added.memory = room_within(s.device.memory_bytes, added.overheads);
  added.on_one_node = s.nodes > 1 && where.mesh.nodes == 1 && s.devices_per_node > 1;
  added.transfer_class = class_of(added);
  placements_.push_back(added);
  costs_of_.emplace_back();
  updates_.emplace_back();
  known.known.push_back(static_cast<int>(placements_.size()) - 1);
  return known.known.back();
}

HETSCHED_INLINE int price_book::class_of(const booked_placement& added) {
  const bool names_classes = costs_.has_transfer_class();
  const std::tuple side{added.where.mesh.subcluster, asks_proximity_ && added.on_one_node,
                        names_classes ? costs_.transfer_class(added.where) : 0};
  const auto known = names_classes ? std::find(classes_.begin(), classes_.end(), side) : classes_.end();
  const auto found = static_cast<int>(known - classes_.begin());
  if (known == classes_.end()) {
    classes_.push_back(side);
    transfers_.emplace_back();
  }
  return found;
}

HETSCHED_INLINE void price_book::ask_layers(int p) {
  const auto& where = at(placements_, p).where;
  std::vector<stage_cost> all;
  all.reserve(as_size(layers_));
  for (int l = 0; l < layers_; ++l) {
    all.push_back(costs_.layer(l, where));
    check_cost(all.back(), hardware_, {l, l + 1}, where);
  }
  at(costs_of_, p) = std::move(all);
}

HETSCHED_INLINE stage_cost price_book::stage(int p, layer_range layers) {
  if (additive_) {
    stage_cost sum;
    for (const auto& cost : layers_on(p).subspan(as_size(layers.first), as_size(layers.size()))) sum += cost;
    drop_copies(sum, layers, at(placements_, p).copies);
    return sum;
  }
  auto& row = at(costs_of_, p);
  if (row.empty()) row.resize(as_size(layers_ * (layers_ + 1) / 2), {.forward_s = -1});
  auto& cell = at(row, layers.first * (2 * layers_ - 1 - layers.first) / 2 + layers.last - 1);
  if (cell.forward_s < 0) {
    const auto& where = at(placements_, p).where;
    const stage_cost answer = costs_.stage(layers, where);
    check_cost(answer, hardware_, layers, where);
    cell = answer;
  }
  return cell;
}

HETSCHED_INLINE const transfer_cost& price_book::ask_transfer(int boundary, int from, int to, proximity near) {
  const auto &a = at(placements_, from), &b = at(placements_, to);
  const transfer_cost answer = costs_.transfer(boundary, a.where, b.where, near);
  check_transfer(answer, hardware_, boundary, a.where, b.where);
  auto& row = at(transfers_, a.transfer_class);
  row.resize(2 * classes_.size() * first_boundaries_.size());
  return *(row[cell_of(boundary, to, near)] = &*transfer_costs_.insert(answer).first);
}

HETSCHED_INLINE void price_book::ask_updates(int p) {
  const auto& where = at(placements_, p).where;
  booked_updates answers;
  for (int l = 0; l < layers_; ++l) answers.layers.push_back(costs_.update({l, l + 1}, where));
  answers.all = layers_ > 1 ? costs_.update({0, layers_}, where) : answers.layers[0];
  if (layers_ > 1) answers.first_two = layers_ > 2 ? costs_.update({0, 2}, where) : answers.all;
  at(updates_, p) = std::move(answers);
}

HETSCHED_INLINE price_book::sums_spared price_book::most_spared() {
  sums_spared most;
  std::vector<int> offered;
  for (int k = 0; k < static_cast<int>(hardware_.subclusters.size()); ++k)
    for (const auto& mesh : submeshes(at(hardware_.subclusters, k), k))
      for (const int p : placements(mesh)) offered.push_back(p);
  // Where costs are sums of layers, no range has more than its layers, each where it has most.
  const int longest = additive_ ? 1 : layers_;
  std::vector<double> before(as_size(layers_ + 1));  // of the layers before, cut as they have most
  for (int last = 1; last <= layers_; ++last)
    for (int first = std::max(0, last - longest); first < last; ++first) {
      double range_s = 0;
      for (const int p : offered) {
        const stage_cost c = additive_ ? layers_on(p)[as_size(first)] : stage(p, {first, last});
        range_s = std::max(range_s, c.sums_s);
        if (c.total_s() > 0) most.share = std::max(most.share, std::min(1.0, c.sums_s / c.total_s()));
      }
      at(before, last) = std::max(at(before, last), at(before, first) + range_s);
    }
  most.seconds = before.back();
  return most;
}

}  // namespace hetsched
