// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/reshard/layout.hpp>
#include <hetsched/runtime/executor/boundary_transfer.hpp>
#include <hetsched/runtime/layout/detail/digest.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/trainer/detail/agreement.hpp>
#include <hetsched/schedule/action.hpp>

namespace hetsched::detail {

HETSCHED_INLINE digest digest_of_ranks(const training_layout& t) {
  digest d;
  for (const auto& p : t.pipelines) {
    for (const int number : {p.first_rank, p.order.ranks, p.order.microbatches, p.microbatch_size}) d.add(std::int64_t{number});
    for (int r = 0; r < p.order.ranks; ++r) {
      const auto& g = p.group(r);
      for (const int number : {g.degrees.data, g.degrees.context, g.degrees.tensor, g.degrees.expert, g.zero})
        d.add(std::int64_t{number});
      d.add(static_cast<std::int64_t>(g.recompute)).add(static_cast<std::int64_t>(g.sample_points.size()));
      for (const auto point : g.sample_points) d.add(point);
      for (const auto* shares : {&g.state_shares, &g.tensor_shares})
        d.add(static_cast<std::int64_t>(shares->size())).add(std::as_bytes(std::span(*shares)));
    }
  }
  return d;
}

HETSCHED_INLINE digest digest_of_stages(const training_layout& t) {
  digest d;
  d.add(std::int64_t{t.layers});
  for (const auto& p : t.pipelines)
    for (const auto& s : p.stages) d.add(std::int64_t{s.layers.last});
  return d;
}

HETSCHED_INLINE digest digest_of_schedules(const training_layout& t) {
  digest d;
  for (const auto& p : t.pipelines) {
    d.add(std::int64_t{p.order.directions});
    for (const auto& s : p.stages) d.add(static_cast<std::int64_t>(s.reshard));
    for (const int rank : p.order.rank_of) d.add(std::int64_t{rank});
    for (const auto& l : p.order.lanes) {
      for (const int number : {l.rank, static_cast<int>(l.stream), l.peer}) d.add(std::int64_t{number});
      for (const auto& a : l.actions)
        for (const int number :
             {static_cast<int>(a.kind), static_cast<int>(a.joined), static_cast<int>(a.direction), a.stage, a.microbatch})
          d.add(std::int64_t{number});
    }
  }
  return d;
}

HETSCHED_INLINE digest digest_of(const pipeline_groups& groups) {
  digest d;
  for (const auto& b : groups.boundaries) {
    d.add(std::int64_t{b.merged});
    for (const auto* l : {&b.from, &b.to, &b.gradient_from(), &b.gradient_to()}) {
      d.add(static_cast<std::int64_t>(l->dimensions.size()));
      for (int device = 0; device < l->device_count(); ++device)
        for (const auto& i : slice_of(*l, device)) d.add(i.first).add(i.last);
    }
  }
  return d;
}

HETSCHED_INLINE std::string disagreement(const std::vector<std::vector<double>>& told,
                                         std::span<const std::string_view> aspects) {
  const auto of = [&](std::size_t r, std::size_t i) { return i < told[r].size() ? told[r][i] : -1; };
  std::vector<std::string> differs(told.size());
  for (std::size_t i = 0; i < aspects.size(); ++i) {
    std::size_t usual = 0;
    std::ptrdiff_t most = 0;
    // Once one has more than half on its side, no other has.
    for (std::size_t r = 0; r < told.size() && 2 * as_size(most) <= told.size(); ++r) {
      const auto alike = std::count_if(told.begin(), told.end(),
                                       [&](const auto& other) { return (i < other.size() ? other[i] : -1) == of(r, i); });
      if (alike > most) {
        most = alike;
        usual = r;
      }
    }
    for (std::size_t r = 0; r < told.size(); ++r)
      if (of(r, i) != of(usual, i)) differs[r] += (differs[r].empty() ? "" : ", ") + std::string(aspects[i]);
  }
  std::string text;
  for (std::size_t r = 0; r < told.size(); ++r)
    if (!differs[r].empty())
      text += (text.empty() ? "rank " : "; rank ") + std::to_string(r) +
              " does not train what the others do, it differs in: " + differs[r];
  return text;
}

}  // namespace hetsched::detail
