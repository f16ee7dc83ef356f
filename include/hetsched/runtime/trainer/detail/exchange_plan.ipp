// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/reshard/gradient_chunks.hpp>
#include <hetsched/runtime/layout/model_parameter.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/trainer/detail/exchange_plan.hpp>

namespace hetsched::detail {

HETSCHED_INLINE interval kept_of(const planned_part& part, const part_piece& piece) {
  return {piece.first + std::max<std::int64_t>(part.kept_first - piece.offset, 0),
          std::min(piece.last, piece.first + part.kept_last - piece.offset)};
}

HETSCHED_INLINE std::vector<int> exchange_waves(const training_layout& t) {
  std::vector<int> waves;
  for (const auto& p : t.pipelines) {
    if (p.order.stages * p.order.directions > p.order.ranks)
      for (const auto& s : p.stages) waves.push_back(s.layers.first);
    for (int s = 0; s < p.order.stages; ++s)
      for (int l = at(p.stages, s).layers.first; l <= at(p.stages, s).layers.last && p.group(p.order.rank(0, s)).zero >= 3; ++l)
        waves.push_back(l);
  }
  std::sort(waves.begin(), waves.end());
  waves.erase(std::unique(waves.begin(), waves.end()), waves.end());
  return waves;
}

HETSCHED_INLINE chunk_waves chunks_by_wave(std::span<const model_parameter> parameters, const std::vector<int>& starts) {
  chunk_waves waves;
  for (std::size_t m = parameters.size(); m-- > 0;) {
    const auto wave = std::upper_bound(starts.begin(), starts.end(), parameters[m].id.layer) - starts.begin();
    for (std::size_t c = 0; c < parameters[m].chunks.size(); ++c)
      if (parameters[m].chunks[c].terms.size() > 1)
        waves[{-wave, parameters[m].gathered ? 2 : parameters[m].sharded ? 1 : 0}].emplace_back(m, c);
  }
  return waves;
}

HETSCHED_INLINE std::vector<std::pair<int, std::vector<std::size_t>>> contributions_of(const gradient_chunk& c, int pipeline) {
  std::vector<std::pair<int, std::vector<std::size_t>>> found;
  for (std::size_t i = 0; i < c.terms.size(); ++i) {
    if (c.terms[i].pipeline != pipeline) continue;
    if (found.size() == 1 && found.front().first == c.terms[i].device)
      found.front().second.push_back(i);
    else
      found.push_back({c.terms[i].device, {i}});
  }
  return found;
}

HETSCHED_INLINE planned_part plan_part(const gradient_chunk& c, const bucket_part& part, bool both, std::size_t number, int me,
                                       std::vector<planned_message>& messages) {
  planned_part mine{.pieces = {}, .elements = part.last - part.first, .adds = {}, .spread = {}};
  mine.owned = both || part.owner == me;
  std::vector<int> pipelines;
  for (const auto& d : c.devices)
    if (pipelines.empty() || pipelines.back() != d.pipeline) pipelines.push_back(d.pipeline);
  const auto tell = [&](planned_message m) {
    if (m.from != m.to && (m.from == me || m.to == me)) messages.push_back(std::move(m));
  };
  const auto collect = [&](std::size_t q, int at) {
    const auto all = contributions_of(c, pipelines[q]);
    for (std::size_t s = 0; s < all.size(); ++s) {
      tell({exchange_step::term, all[s].first, at, number, q, s, all[s].second});
      if (at == me) mine.adds[q].push_back(all[s].first == me ? contribution{.terms = all[s].second} : contribution{.terms = {}});
    }
  };
  for (const auto& d : c.devices) {  // who adds up the pipelines'
    if (both ? false : d.device != part.owner) continue;
    if (d.device == me) mine.adds.resize(pipelines.size());
    for (std::size_t q = 0; q < pipelines.size(); ++q) {
      const int collector = both ? d.device : part.collectors[q];
      if (collector == me && mine.adds.empty()) mine.adds.resize(pipelines.size());
      collect(q, collector);
      tell({exchange_step::share, collector, d.device, number, q, 0, {}});
      if (collector != d.device && d.device == me) mine.adds[q].push_back({});
    }
  }
  if (both) return mine;
  for (std::size_t q = 0; q < pipelines.size(); ++q) {
    tell({exchange_step::sum, part.owner, part.collectors[q], number, q, 0, {}});
    for (const auto& d : c.devices)
      if (d.pipeline == pipelines[q]) tell({exchange_step::spread, part.collectors[q], d.device, number, q, 0, {}});
  }
  return mine;
}

/// Adds the parts of a wave that a rank's groups sum by collectives.
/// `apart`: gets the chunks that are not.
inline void plan_joint_parts(std::span<const model_parameter> parameters, const chunk_waves::mapped_type& members, bool sharded,
                             const exchange_cut& cut, int me, std::vector<planned_part>& parts, chunk_waves::mapped_type& apart) {
  const auto may_join = [&](const std::vector<int>& ranks) {
    const auto room = [&](int r) { return cut.room.empty() ? 1.0 : at(cut.room, r); };
    const auto is_even = [&](int r) { return room(r) == room(ranks.front()); };
    return ranks.size() > 1 && (!sharded || std::all_of(ranks.begin(), ranks.end(), is_even)) && cut.joins(ranks);
  };
  const auto ranks_of = [](const gradient_chunk& c) {
    std::vector<int> ranks;
    for (const auto& d : c.devices) ranks.push_back(d.device);
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  };
  chunk_waves::mapped_type joint;
  std::vector<const gradient_chunk*> chunks;
  for (const auto& [m, c] : members) {
    const auto& chunk = parameters[m].chunks[c];
    const auto ranks = cut.joint_elements > 0 ? ranks_of(chunk) : std::vector<int>();
    if (!may_join(ranks)) {
      apart.emplace_back(m, c);
    } else if (std::binary_search(ranks.begin(), ranks.end(), me)) {
      joint.emplace_back(m, c);
      chunks.push_back(&chunk);
    }
  }
  if (joint.empty()) return;
  for (const auto& bucket : gradient_buckets(chunks, cut.joint_elements)) {
    const auto& chunk = *chunks[bucket.pieces.front().chunk];
    planned_part mine{.pieces = {}, .elements = bucket.elements, .joint = ranks_of(chunk), .adds = {}, .spread = {}};
    if (sharded) {
      const auto count = static_cast<std::int64_t>(mine.joint.size());
      const std::int64_t each = (bucket.elements + count - 1) / count;
      const auto place = std::lower_bound(mine.joint.begin(), mine.joint.end(), me) - mine.joint.begin();
      mine.owned = mine.sharded = true;
      mine.stays = parameters[joint[bucket.pieces.front().chunk].first].gathered;
      mine.elements = each * count;
      mine.kept_first = std::min(each * place, bucket.elements);
      mine.kept_last = std::min(each * (place + 1), bucket.elements);
    }
    std::vector<std::size_t> own;
    for (std::size_t i = 0; i < chunk.terms.size(); ++i)
      if (chunk.terms[i].device == me) own.push_back(i);
    if (!own.empty()) mine.adds.push_back({contribution{.terms = own}});
    std::int64_t at = 0;
    for (const auto& piece : bucket.pieces) {
      const auto [m, c] = joint[piece.chunk];
      mine.pieces.push_back({m, c, piece.first, piece.last, at});
      at += piece.last - piece.first;
    }
    parts.push_back(std::move(mine));
  }
}

HETSCHED_INLINE exchange_plan plan_exchange(std::span<const model_parameter> parameters, int ranks, int me,
                                            const exchange_cut& cut) {
  exchange_plan plan;
  std::vector<std::int64_t> load(as_size(ranks), 0), kept(load);
  std::vector<planned_message> late;
  const auto waves = chunks_by_wave(parameters, cut.waves);
  int number_of_wave = 0;
  for (const auto& [wave, members] : waves) {
    const bool sharded = wave.second > 0;
    chunk_waves::mapped_type apart;  // not summed by collectives
    std::vector<const gradient_chunk*> chunks;
    plan_joint_parts(parameters, members, sharded, cut, me, plan.parts, apart);
    for (const auto& [m, c] : apart) chunks.push_back(&parameters[m].chunks[c]);
    std::vector<planned_message> messages;
    for (const auto& bucket : gradient_buckets(chunks, cut.most_elements)) {
      const auto& chunk = *chunks[bucket.pieces.front().chunk];
      const bool both = chunk.devices.size() == 2 && !sharded;
      const bool held = std::any_of(chunk.devices.begin(), chunk.devices.end(), [&](const auto& d) { return d.device == me; });
      const auto parts = both ? std::vector<bucket_part>{{.first = 0, .last = bucket.elements, .owner = -1, .collectors = {}}}
                         : sharded && !cut.room.empty() ? bucket_parts(chunk, bucket.elements, cut.least_elements, kept, cut.room)
                                                        : bucket_parts(chunk, bucket.elements, cut.least_elements, load);
      if (!held) continue;
      for (const auto& part : parts) {
        auto mine = plan_part(chunk, part, both, plan.parts.size(), me, messages);
        mine.sharded = sharded;
        mine.stays = wave.second > 1;
        mine.kept_last = mine.elements;
        std::int64_t at = 0;
        for (const auto& piece : bucket.pieces) {
          const std::int64_t first = std::max(at, part.first), last = std::min(at + piece.last - piece.first, part.last);
          const auto [m, c] = apart[piece.chunk];
          if (first < last) mine.pieces.push_back({m, c, piece.first + first - at, piece.first + last - at, first - part.first});
          at += piece.last - piece.first;
        }
        plan.parts.push_back(std::move(mine));
      }
    }
    std::stable_sort(messages.begin(), messages.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
    const int count = static_cast<int>(waves.size());
    for (auto& m : messages) {
      const bool is_late = sharded && m.step >= exchange_step::sum;
      if (is_late && plan.parts[m.part].stays) continue;
      m.wave = number_of_wave + (is_late ? count : 0);
      (is_late ? late : plan.messages).push_back(std::move(m));
    }
    ++number_of_wave;
  }
  plan.late_from = plan.messages.size();
  for (auto& m : late) plan.messages.push_back(std::move(m));
  for (std::size_t i = 0; i < plan.messages.size(); ++i) {
    const auto& m = plan.messages[i];
    auto& part = plan.parts[m.part];
    const int number = static_cast<int>(i);
    if (m.step >= exchange_step::sum)
      m.to == me ? static_cast<void>(part.sum = number) : part.spread.push_back(number);
    else if (m.to == me)
      part.adds[m.pipeline][m.slot].message = number;
    else if (m.step == exchange_step::share)
      part.share = number;
  }
  return plan;
}

}  // namespace hetsched::detail
