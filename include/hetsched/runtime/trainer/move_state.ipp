// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/runtime/layout/detail/digest.hpp>
#include <hetsched/runtime/trainer/move_state.hpp>

namespace hetsched::detail {

inline constexpr std::size_t numbers_per_piece = 5;

HETSCHED_INLINE state_moves::state_moves(std::span<const state_slice> owned, std::span<const state_slice> wanted)
    : owned_(owned), wanted_(wanted) {
  struct listed {
    const state_slice* slice;
    std::size_t number = 0;
  };
  std::map<std::pair<int, std::string_view>, listed> tensors;
  for (const auto& w : wanted) tensors.emplace(std::pair(w.layer, std::string_view(w.name)), listed{&w});
  digest list;
  for (auto& [key, t] : tensors) {
    const auto& s = *t.slice;
    t.number = sizes_.size();
    sizes_.push_back(element_size(s));
    list.add(std::int64_t{s.layer}).add(std::string_view(s.name)).add(std::string_view(s.element));
    for (const auto extent : s.shape) list.add(static_cast<std::int64_t>(extent));
  }
  told_ = {list.number()};
  for (const auto& slices : {owned, wanted}) {
    const auto count = told_.size();
    told_.push_back(0);
    for (const auto& s : slices) {
      const auto found = tensors.find({s.layer, s.name});
      if (found == tensors.end()) throw input_error(tensor_text(s.layer, s.name) + ": no rank wants any of it");
      const auto& known = *found->second.slice;
      if (s.element != known.element || s.shape != known.shape)
        throw input_error(tensor_text(s.layer, s.name) + ": found " + shape_text(s.element, s.shape) + ", expected " +
                          shape_text(known.element, known.shape));
      if (s.bytes.empty()) continue;
      const auto rows = rows_held(s, sizes_[found->second.number]).of;
      ++told_[count];
      for (const auto number : {found->second.number, rows.first, rows.length, rows.rows, rows.apart})
        told_.push_back(static_cast<double>(number));
    }
  }
}

HETSCHED_INLINE state_moves::pieces state_moves::read(std::span<const double> told) {
  pieces found;
  std::size_t at = 1;
  for (auto* list : {&found.owned, &found.wanted})
    for (auto left = static_cast<std::size_t>(told[at++]); left > 0; --left, at += numbers_per_piece) {
      const auto n = [&](std::size_t i) { return static_cast<std::size_t>(told[at + i]); };
      list->push_back({.tensor = n(0), .of = {.first = n(1), .length = n(2), .rows = n(3), .apart = n(4)}});
    }
  return found;
}

HETSCHED_INLINE std::vector<state_moves::runs_with> state_moves::runs(int me, const std::vector<std::vector<double>>& all) const {
  std::vector<pieces> of_rank;
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].front() != all.front().front())
      throw input_error("ranks 0 and " + std::to_string(r) + " list the tensors of different trainings");
    of_rank.push_back(read(all[r]));
  }
  // The slices with elements, and how they lie.
  struct held {
    const state_slice* slice;
    held_rows rows;
  };
  const auto with_elements = [&](std::span<const state_slice> slices) {
    std::vector<held> found;
    for (const auto& s : slices)
      if (!s.bytes.empty()) found.push_back({&s, rows_held(s, element_size(s))});
    return found;
  };
  const auto owned = with_elements(owned_), wanted = with_elements(wanted_);
  std::vector<std::size_t> come(wanted.size(), 0);

  // Calls visit(number of an owned piece, of a wanted piece), tensor after tensor.
  const auto each_pair = [&](const std::vector<piece>& from, const std::vector<piece>& to, auto&& visit) {
    std::vector<std::vector<std::size_t>> of_tensor(sizes_.size());
    for (std::size_t k = 0; k < to.size(); ++k) of_tensor[to[k].tensor].push_back(k);
    for (std::size_t i = 0; i < from.size(); ++i)
      for (const auto k : of_tensor[from[i].tensor]) visit(i, k);
  };
  std::vector<runs_with> found(all.size());
  const auto byte_of = [&](const held& h, std::size_t element, std::size_t row) {
    return h.slice->bytes.data() + (row * h.rows.held + element - h.rows.of.begin(row)) * element_size(*h.slice);
  };
  for (std::size_t r = 0; r < all.size(); ++r) {
    const bool own = r == as_size(me);
    each_pair(of_rank[r].owned, of_rank[as_size(me)].wanted, [&](std::size_t i, std::size_t k) {
      const auto& from = of_rank[r].owned[i];
      for_each_shared(from.of, wanted[k].rows.of, [&](std::size_t first, std::size_t last, std::size_t a, std::size_t b) {
        found[r].in.push_back({.from = own ? byte_of(owned[i], first, a) : nullptr,
                               .to = byte_of(wanted[k], first, b),
                               .bytes = (last - first) * sizes_[from.tensor]});
        come[k] += last - first;
        return true;
      });
    });
    if (own) continue;
    each_pair(of_rank[as_size(me)].owned, of_rank[r].wanted, [&](std::size_t i, std::size_t k) {
      const auto& to = of_rank[r].wanted[k];
      for_each_shared(owned[i].rows.of, to.of, [&](std::size_t first, std::size_t last, std::size_t a, std::size_t) {
        found[r].out.push_back({.from = byte_of(owned[i], first, a), .to = nullptr, .bytes = (last - first) * sizes_[to.tensor]});
        return true;
      });
    });
  }
  for (std::size_t k = 0; k < wanted.size(); ++k)
    if (const auto all_of_it = wanted[k].rows.of.length * wanted[k].rows.of.rows; come[k] != all_of_it)
      throw input_error(tensor_text(wanted[k].slice->layer, wanted[k].slice->name) + ": found " + std::to_string(come[k]) +
                        " of " + std::to_string(all_of_it) + " elements on all ranks");
  return found;
}

}  // namespace hetsched::detail
