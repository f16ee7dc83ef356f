// SPDX-License-Identifier: Apache-2.0
// Chains to place, at random, and the best stages by trying all.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/planners/placement/search.hpp>

namespace placement_test {

struct chain_sizes {
  int layers = 5, pools = 3, devices = 2;
  bool alike = false;  ///< layers cost alike, as those of transformers do
};

[[nodiscard]] inline hetsched::placement_chain random_chain(hetsched::random_source& random, const chain_sizes& most) {
  using namespace hetsched;
  placement_chain chain;
  chain.layers = random.integer(most.alike ? most.layers : 1, most.layers);
  const int pools = random.integer(1, most.pools);
  // Whole numbers now and then: many ways are equally good.
  const bool whole = random.integer(0, 2) == 0;
  const auto number = [&](double least, double high) {
    const double x = random.uniform(least, high);
    return whole ? std::floor(x * 3) + 1 : x;
  };
  const double bytes_of_layer = random.uniform(0.5, 2), tight = random.uniform(1, 2.5);
  std::vector<double> work;
  for (int l = 0; l < chain.layers; ++l) work.push_back(most.alike && l > 0 ? work[0] : number(0.5, 2));
  for (int p = 0; p < pools; ++p) {
    chain.pools.push_back({.count = random.integer(1, most.devices)});
    const int ways = most.alike ? 1 : random.integer(1, 2);
    for (int w = 0; w < ways; ++w) {
      placement_kind kind{.pool = p, .seconds_before = {0}, .state_before = {0}, .in_flight_before = {0}};
      const double slow = number(0.5, 3);
      for (int l = 0; l < chain.layers; ++l) {
        const double own = most.alike ? 1 : random.uniform(0.8, 1.2);
        kind.seconds_before.push_back(kind.seconds_before.back() + (whole ? work[static_cast<std::size_t>(l)] * slow
                                                                          : work[static_cast<std::size_t>(l)] * slow * own));
        kind.state_before.push_back(kind.state_before.back() + bytes_of_layer * (w == 0 ? 1 : 1.2));
        kind.in_flight_before.push_back(kind.in_flight_before.back() + (w == 0 ? 0.3 : 0.1));
        kind.temporary.push_back(random.uniform(0, 0.4));
      }
      kind.memory = {.room = chain.layers * bytes_of_layer / pools * tight * random.uniform(0.7, 1.5) + 0.5,
                     .scale = random.uniform(1, 1.1)};
      chain.kinds.push_back(kind);
    }
  }
  // In some, a layer shares bytes with the first one, and no more than it has: a longer stage never holds less.
  if (auto more = random; bytes_of_layer >= 1 && chain.layers > 1 && more.integer(0, 1) == 0)
    for (auto& kind : chain.kinds) kind.copies = {{.owner = 0, .layer = more.integer(1, chain.layers - 1), .weight_bytes = 1}};
  const auto k = chain.kinds.size();
  const bool islands = random.integer(0, 5) == 0;
  std::vector<placement_transfer> between;
  for (std::size_t n = 0; n < k * k; ++n) {
    const double seconds = number(0.05, 1.5);
    const bool cut = islands && random.integer(0, 4) == 0;
    constexpr double never = std::numeric_limits<double>::infinity();
    between.push_back(cut ? placement_transfer{never, never}
                          : placement_transfer{seconds, seconds * (random.integer(0, 1) == 0 ? 1 : 0.5)});
  }
  for (int b = 0; b + 1 < chain.layers; ++b)
    for (const auto& t : between) {
      const double size = most.alike || whole ? 1 : random.uniform(0.5, 1.5);
      chain.transfers.push_back({t.seconds * size, t.occupied_s * size});
    }
  if (random.integer(0, 2) == 0) {
    int devices = 0;
    for (const auto& p : chain.pools) devices += p.count;
    chain.stages = random.integer(1, std::min(devices, chain.layers));
  }
  if (random.integer(0, 1) == 0) {
    const int microbatches = random.integer(1, 4);
    chain.in_flight = [microbatches](int n) { return static_cast<double>(std::min(n, microbatches)); };
  } else {
    const int requests = random.integer(1, 3);
    chain.in_flight = [requests](int) { return static_cast<double>(requests); };
  }
  return chain;
}

/// Calls visit(placed_chain) for all stages that fit.
template <class Visit>
class every_way {
 public:
  every_way(const hetsched::placement_chain& chain, Visit visit) : chain_(chain), visit_(visit), used_(chain.pools.size()) {
    extend(chain.layers);
  }

 private:
  void extend(int last) {
    const int n = static_cast<int>(stages_.size());
    if (last == 0) {
      if (chain_.stages == 0 || chain_.stages == n) {
        hetsched::placed_chain all;
        all.stages.assign(stages_.rbegin(), stages_.rend());
        for (std::size_t i = 0; i < all.stages.size(); ++i) {
          const auto& s = all.stages[i];
          const auto& sums = chain_.kinds[static_cast<std::size_t>(s.kind)].seconds_before;
          const double seconds = sums[static_cast<std::size_t>(s.layers.last)] - sums[static_cast<std::size_t>(s.layers.first)];
          all.sum_s += seconds;
          all.slowest_s = std::max(all.slowest_s, seconds);
          if (i == 0) continue;
          const auto& t = chain_.transfer(s.layers.first - 1, all.stages[i - 1].kind, s.kind);
          all.sum_s += t.seconds;
          all.slowest_s = std::max(all.slowest_s, t.occupied_s);
        }
        if (all.sum_s < std::numeric_limits<double>::infinity()) visit_(all);
      }
      return;
    }
    for (int k = 0; k < static_cast<int>(chain_.kinds.size()); ++k) {
      const auto& kind = chain_.kinds[static_cast<std::size_t>(k)];
      auto& used = used_[static_cast<std::size_t>(kind.pool)];
      if (used == chain_.pools[static_cast<std::size_t>(kind.pool)].count) continue;
      for (int first = 0; first < last; ++first) {
        double held = 0, temporary = 0;
        for (auto l = static_cast<std::size_t>(first); l < static_cast<std::size_t>(last); ++l) {
          held += kind.state_before[l + 1] - kind.state_before[l];
          held += chain_.in_flight(n + 1) * (kind.in_flight_before[l + 1] - kind.in_flight_before[l]) * kind.memory.scale;
          temporary = std::max(temporary, kind.temporary[l]);
        }
        for (const auto& c : kind.copies)
          if (std::min(c.owner, c.layer) >= first && std::max(c.owner, c.layer) < last)
            held -= static_cast<double>(c.weight_bytes);
        if (held + temporary * kind.memory.scale > kind.memory.room) continue;
        ++used;
        stages_.push_back({{first, last}, k});
        extend(first);
        stages_.pop_back();
        --used;
      }
    }
  }

  const hetsched::placement_chain& chain_;
  Visit visit_;
  std::vector<int> used_;
  std::vector<hetsched::placed_stage> stages_;  // from the last one
};

}  // namespace placement_test
