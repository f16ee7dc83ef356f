// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/contract.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cost/models/replica_profile.hpp>

namespace hetsched {

HETSCHED_INLINE std::vector<placement> replica_cost_model::placements(const submesh& mesh) const {
  std::vector<placement> found;
  for (const auto& r : at(replicas_, mesh.subcluster)) {
    const int devices = r.tensor * r.context;
    if (!fits(r, mesh)) continue;
    const placement where{mesh, {mesh.device_count() / devices, r.context, r.tensor}};
    const bool listed = !found.empty() && found.back() == where;  // by a replica on fewer nodes
    if (!listed && find(where)) found.push_back(where);
  }
  return found;
}

HETSCHED_INLINE std::vector<int> replica_cost_model::measured_sizes() const {
  std::vector<int> found;
  for (const auto& all : replicas_)
    for (const auto& r : all)
      for (const auto row : r.rows) {
        const int size = profile_.rows[row].microbatch_size;
        std::size_t at = 0;
        while (at < found.size() && found[at] < size) ++at;
        if (at == found.size() || found[at] != size) found.insert(found.begin() + static_cast<std::ptrdiff_t>(at), size);
      }
  return found;
}

HETSCHED_INLINE std::optional<replica_cost_model::line_through> replica_cost_model::find(const placement& where) const {
  const auto& d = where.degrees;
  if (where.recompute != recomputation::none || where.zero != 0 || d.data < 1 || options_.microbatch_size % d.data != 0 ||
      d.expert != 1 || checked_mul(d.data, d.context, d.tensor) != where.mesh.device_count())
    return std::nullopt;
  const int samples = options_.microbatch_size / d.data;
  for (const auto& r : at(replicas_, where.mesh.subcluster)) {  // fewest nodes first
    if (r.tensor != d.tensor || r.context != d.context || !fits(r, where.mesh)) continue;
    const auto row = [&](std::size_t i) { return &profile_.rows[r.rows[i]]; };
    std::size_t above = 0;  // the first that is not smaller
    while (above < r.rows.size() && row(above)->microbatch_size < samples) ++above;
    if (above < r.rows.size() && row(above)->microbatch_size == samples) return line_through{row(above), row(above), samples};
    const bool inside = above > 0 && above < r.rows.size();
    if (!inside && !options_.extrapolate) return std::nullopt;
    if (r.rows.size() == 1) return line_through{row(0), row(0), samples};
    above = std::clamp<std::size_t>(above, 1, r.rows.size() - 1);
    return line_through{row(above - 1), row(above), samples};
  }
  return std::nullopt;
}

HETSCHED_INLINE void replica_cost_model::add(std::size_t index) {
  const auto& e = profile_.rows[index];
  const std::string place = "/costs/" + std::to_string(index);
  const auto require = [&](bool holds, const std::string& what) {
    if (!holds) throw input_error(place + what);
  };
  const auto column = [&](const auto& values, const char* name) {
    require(values.size() == profile_.layers.size(), std::string("/") + name + ": has " + std::to_string(values.size()) +
                                                         " numbers, expected one for each of the " +
                                                         std::to_string(profile_.layers.size()) + " layers");
    for (std::size_t l = 0; l < values.size(); ++l)
      require(values[l] >= 0 && static_cast<double>(values[l]) <= std::numeric_limits<double>::max(),
              std::string("/") + name + "/" + std::to_string(l) + ": must be finite and not negative");
  };
  require(e.subcluster.empty() != e.device.empty(), ": needs either a subcluster or a device");
  const auto at_least_1 = [&](int size, const char* name) { require(size >= 1, std::string(name) + ": must be at least 1"); };
  at_least_1(e.nodes, "/nodes");
  at_least_1(e.tensor, "/tensor");
  at_least_1(e.context, "/context");
  at_least_1(e.microbatch_size, "/microbatch_size");
  const auto devices = checked_mul(e.tensor, e.context);
  require(devices <= std::numeric_limits<int>::max(), "/tensor: has too many devices");
  require(devices % e.nodes == 0, "/nodes: must divide the " + std::to_string(devices) + " devices of tensor x context");
  column(e.forward_s, "forward_s");
  column(e.backward_s, "backward_s");
  column(e.weight_bytes, "weight_bytes");
  column(e.activation_bytes, "activation_bytes");
  if (!e.gradient_bytes.empty()) column(e.gradient_bytes, "gradient_bytes");
  if (!e.update_s.empty()) column(e.update_s, "update_s");
  for (std::size_t l = 0; l < e.gradient_bytes.size(); ++l)
    require(e.gradient_bytes[l] <= e.weight_bytes[l],
            "/gradient_bytes/" + std::to_string(l) + ": is more than weight_bytes, of which it is a part");
  require(e.subcluster.empty() || cluster_.find(e.subcluster), "/subcluster: the cluster has no subcluster " + e.subcluster);

  for (std::size_t s = 0; s < cluster_.subclusters.size(); ++s) {
    const auto& candidate = cluster_.subclusters[s];
    const bool named = e.device.empty() ? candidate.name == e.subcluster : same_device(candidate.device.name, e.device);
    if (!named || e.nodes > candidate.nodes || devices / e.nodes > candidate.devices_per_node) continue;
    auto& all = replicas_[s];
    std::size_t position = 0;
    while (position < all.size() && before(all[position], e)) ++position;
    if (position == all.size() || before(e, all[position])) {
      all.push_back({e.nodes, e.tensor, e.context, {}});
      for (std::size_t i = all.size() - 1; i > position; --i) std::swap(all[i], all[i - 1]);
    }
    auto& rows = all[position].rows;
    for (const auto i : rows) {
      const auto& other = profile_.rows[i];
      const std::string where = " on subcluster " + candidate.name + " as /costs/" + std::to_string(i);
      require(other.microbatch_size != e.microbatch_size, ": same degrees, nodes and microbatch_size" + where);
      const auto alike = [&](bool has, bool other_has, const char* name) {
        require(has == other_has, std::string("/") + name + (has ? ": is told, but not by" : ": is not told, but by") +
                                      " /costs/" + std::to_string(i) + " for the same replica");
      };
      alike(!e.gradient_bytes.empty(), !other.gradient_bytes.empty(), "gradient_bytes");
      alike(!e.update_s.empty(), !other.update_s.empty(), "update_s");
    }
    std::size_t smaller = 0;
    while (smaller < rows.size() && profile_.rows[rows[smaller]].microbatch_size < e.microbatch_size) ++smaller;
    rows.insert(rows.begin() + static_cast<std::ptrdiff_t>(smaller), index);
  }
}

}  // namespace hetsched
