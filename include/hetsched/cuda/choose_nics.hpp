// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cuda/find_nics.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>

namespace hetsched {

/// A rank whose process connects it by NCCL, and what there is on its machine.
struct nic_user {
  double host = 0;             ///< a number, equal for ranks of one machine
  pci_place gpu = {};          ///< the rank's
  std::vector<nic> nics = {};  ///< that its process sees
  bool is_set = false;         ///< whether its user has chosen: NCCL's variables are set
};

/// The network cards of a rank's process, and why these.
struct nic_choice {
  std::vector<nic> wanted = {};  ///< by the rank's transfers to other machines, the nearest first
  std::vector<nic> nics = {};    ///< that NCCL is told of: what all ranks of this machine want; none: NCCL's own choice
  bool sockets = false;          ///< NCCL is told to take none, as not all machines have cards of one kind
  std::string reason = {};
};

/// Pairs of ranks, the smaller first, between which a training's tensors or gradients pass: those of neighbouring stages, of one
/// group, and of groups that hold the same layers or one end each of a tie.
/// Requires: validate(t); layers of ties are the training's.
/// Complexity: O(ranks^2 + ties).
[[nodiscard]] inline std::vector<std::pair<int, int>> joined_ranks(const training_layout& t,
                                                                   const std::vector<std::pair<int, int>>& tied_layers = {}) {
  struct held {
    layer_range layers;
    int first, last;  ///< ranks
  };
  std::vector<held> all;
  std::vector<std::pair<int, int>> pairs;
  const auto join = [&](const held& a, const held& b) {
    for (int r = a.first; r < a.last; ++r)
      for (int s = b.first; s < b.last; ++s)
        if (r != s) pairs.emplace_back(std::min(r, s), std::max(r, s));
  };
  for (const auto& line : t.pipelines)
    for (int direction = 0; direction < line.order.directions; ++direction)
      for (int stage = 0; stage < line.order.stages; ++stage) {
        const int group = line.order.rank(direction, stage), first = line.first_of_group(group);
        const auto layers = at(line.stages, stage).layers;
        all.push_back({layers, first, first + line.degrees_of(group).device_count()});
        join(all.back(), all.back());
        if (stage > 0) join(all[all.size() - 2], all.back());
      }
  for (const auto& a : all)
    for (const auto& b : all) {
      const auto has = [](const held& h, int layer) { return h.layers.first <= layer && layer < h.layers.last; };
      const bool tied = std::any_of(tied_layers.begin(), tied_layers.end(),
                                    [&](const auto& tie) { return has(a, tie.first) && has(b, tie.second); });
      if (tied || (a.layers.first < b.layers.last && b.layers.first < a.layers.last)) join(a, b);
    }
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  return pairs;
}

namespace detail {

/// Of ports that a GPU may take: without those than which another is nearer and no slower, or faster and as near.
[[nodiscard]] inline std::vector<nic> best_nics(const std::vector<nic>& all, const pci_place& gpu) {
  std::vector<nic> best;
  for (const auto& a : all) {
    const auto near = nearness(a.place, gpu);
    const bool is_worse = std::any_of(all.begin(), all.end(), [&](const nic& b) {
      const auto other = nearness(b.place, gpu);
      return (other > near && b.bandwidth >= a.bandwidth) || (other == near && b.bandwidth > a.bandwidth);
    });
    if (!is_worse) best.push_back(a);
  }
  std::stable_sort(best.begin(), best.end(),
                   [&](const nic& a, const nic& b) { return nearness(a.place, gpu) > nearness(b.place, gpu); });
  return best;
}

}  // namespace detail

/// The network cards for the transfers of a plan, by rank. Ranks that are joined, if by way of others, get ports of one link
/// layer, as NCCL connects no others: the one whose slowest rank is the fastest. Of these a rank that has transfers to other
/// machines wants those that are not farther from its GPU than an equally fast one, nor slower than one as near. All joined ranks
/// of a machine are told of what one of them wants, as NCCL counts the ports of a machine and finds its ways alike in each of its
/// processes; it then takes the best for each GPU. Ranks without transfers to other machines, and those where one of the joined
/// ranks' users has chosen, are told nothing. Throws: input_error for a pair of ranks that are not there. Complexity: O((ranks +
/// pairs) x ports^2).
[[nodiscard]] inline std::vector<nic_choice> choose_nics(const std::vector<nic_user>& ranks,
                                                         const std::vector<std::pair<int, int>>& joined) {
  const int count = static_cast<int>(ranks.size());
  std::vector<int> set(ranks.size());  // that a rank is joined with: its smallest rank
  std::vector<char> leaves(ranks.size());
  for (int r = 0; r < count; ++r) at(set, r) = r;
  for (const auto& [a, b] : joined) {
    if (std::min(a, b) < 0 || std::max(a, b) >= count)
      throw input_error("ranks " + std::to_string(a) + " and " + std::to_string(b) + " are joined, but there are " +
                        std::to_string(count));
    const auto [low, high] = std::minmax(at(set, a), at(set, b));
    std::replace(set.begin(), set.end(), int{high}, int{low});
    if (at(ranks, a).host != at(ranks, b).host) at(leaves, a) = at(leaves, b) = 1;
  }
  const auto is_known = [](const std::vector<nic>& all, const nic& port) {
    return std::any_of(all.begin(), all.end(), [&](const nic& n) { return n.name == port.name && n.port == port.port; });
  };
  std::vector<nic_choice> chosen(ranks.size());
  for (int first = 0; first < count; ++first) {
    std::vector<int> of_set;
    for (int r = 0; r < count; ++r)
      if (at(set, r) == first) of_set.push_back(r);
    const auto any = [&](auto is) { return std::any_of(of_set.begin(), of_set.end(), is); };
    const auto tell = [&](const std::string& reason) {
      for (const int r : of_set) at(chosen, r).reason = reason;
    };
    if (!any([&](int r) { return at(leaves, r) != 0; })) {
      tell("transfers stay on one machine");
      continue;
    }
    if (any([&](int r) { return at(ranks, r).is_set; })) {
      tell("NCCL's variables are set");
      continue;
    }
    if (!any([&](int r) { return !at(ranks, r).nics.empty(); })) {
      tell("no machine has a network card that NCCL knows beside sockets");
      continue;
    }
    // What all of a machine's processes see.
    std::vector<std::vector<nic>> seen;
    std::vector<std::string> layers;
    for (const int r : of_set) {
      auto& own = seen.emplace_back();
      for (const auto& n : at(ranks, r).nics) {
        if (any([&](int s) { return at(ranks, s).host == at(ranks, r).host && !is_known(at(ranks, s).nics, n); })) continue;
        own.push_back(n);
        layers.push_back(n.link_layer);
      }
    }
    std::sort(layers.begin(), layers.end());
    layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
    const auto of_layer = [](const std::vector<nic>& all, const std::string& layer) {
      std::vector<nic> found;
      for (const auto& n : all)
        if (n.link_layer == layer) found.push_back(n);
      return found;
    };
    std::string taken;
    double fastest = -1;
    for (const auto& layer : layers) {
      double slowest = -1;  // of the ranks' fastest; -1: not all have one
      for (std::size_t k = 0; k < of_set.size(); ++k) {
        double own = -1;
        for (const auto& n : of_layer(seen[k], layer)) own = std::max(own, n.bandwidth);
        slowest = k == 0 ? own : std::min(slowest, own);
      }
      if (slowest > fastest) {
        fastest = slowest;
        taken = layer;
      }
    }
    if (fastest < 0) {
      tell("the machines have no cards of one kind: by sockets");
      for (const int r : of_set) at(chosen, r).sockets = true;
      continue;
    }
    for (std::size_t k = 0; k < of_set.size(); ++k) {
      const int r = of_set[k];
      if (at(leaves, r) != 0) at(chosen, r).wanted = detail::best_nics(of_layer(seen[k], taken), at(ranks, r).gpu);
    }
    for (const int r : of_set) {
      auto& c = at(chosen, r);
      for (const int s : of_set)
        if (at(ranks, s).host == at(ranks, r).host)
          for (const auto& n : at(chosen, s).wanted)
            if (!is_known(c.nics, n)) c.nics.push_back(n);
      std::sort(c.nics.begin(), c.nics.end(),
                [](const nic& a, const nic& b) { return std::pair(a.name, a.port) < std::pair(b.name, b.port); });
      c.reason = at(leaves, r) == 0 ? "for other ranks of its machine"
                 : taken.empty()    ? "the nearest and fastest"
                                    : "the nearest and fastest of " + taken + ", which all machines have";
    }
  }
  return chosen;
}

/// The variables that a process sets before NCCL starts, which reads them once.
[[nodiscard]] inline std::vector<std::pair<std::string, std::string>> nccl_environment(const nic_choice& choice) {
  if (choice.sockets) return {{"NCCL_IB_DISABLE", "1"}};
  if (choice.nics.empty()) return {};
  std::string names;  // behind =, they are whole names
  for (const auto& n : choice.nics) names += (names.empty() ? "=" : ",") + n.name + ":" + std::to_string(n.port);
  return {{"NCCL_IB_HCA", names}};
}

/// The variables by which a user chooses NCCL's network cards.
inline constexpr const char* nccl_nic_variables[] = {"NCCL_IB_HCA", "NCCL_IB_DISABLE", "NCCL_NET", "NCCL_NET_PLUGIN"};

}  // namespace hetsched
