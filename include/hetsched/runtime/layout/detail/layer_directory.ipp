// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/printable.hpp>
#include <hetsched/runtime/executor/stage_copy.hpp>
#include <hetsched/runtime/layout/detail/layer_directory.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched::detail {

HETSCHED_INLINE std::vector<int> layers_of_rank(const training_layout& t, int rank) {
  const auto place = t.place_of(rank);
  const auto& line = at(t.pipelines, place.pipeline);
  std::vector<int> layers;
  for (const auto& copy : stages_of_rank(line.order, place.group)) {
    const auto range = at(line.stages, copy.stage).layers;
    for (int l = range.first; l < range.last; ++l) layers.push_back(l);
  }
  return layers;
}

/// Whether a text is sound UTF-8 (RFC 3629): else documents replace some of it.
[[nodiscard]] inline bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = [&](std::size_t k) { return k < text.size() ? static_cast<unsigned char>(text[k]) : 0U; };
    const unsigned lead = byte(i);
    const std::size_t more = lead < 0x80                   ? 0
                             : lead >= 0xc2 && lead < 0xe0 ? 1
                             : (lead & 0xf0) == 0xe0       ? 2
                             : lead >= 0xf0 && lead < 0xf5 ? 3
                                                           : 4;
    if (more == 4) return false;
    for (std::size_t k = 1; k <= more; ++k)
      if ((byte(i + k) & 0xc0) != 0x80) return false;
    const unsigned second = byte(i + 1);
    if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) || (lead == 0xf0 && second < 0x90) ||
        (lead == 0xf4 && second > 0x8f))
      return false;
    i += more + 1;
  }
  return true;
}

/// Throws: input_error for a name that checkpoints would not read as it is.
inline void check_name(int layer, const char* kind, const std::string& name) {
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20; };
  if (name.size() > 256 || std::any_of(name.begin(), name.end(), is_control) || !is_utf8(name))
    throw input_error("layer " + std::to_string(layer) + ", " + kind + "_names(): found \"" + printable(name.substr(0, 64)) +
                      "\", expected a name in UTF-8 of 1 to 256 bytes without control characters");
}

HETSCHED_INLINE void tell_names(std::vector<double>& told, int layer, const char* kind, std::size_t count,
                                const std::vector<tensor_name>& names) {
  told.push_back(names.empty() ? 0 : 1);
  if (names.empty()) return;
  const auto refuse = [&](const std::string& what) {
    throw input_error("layer " + std::to_string(layer) + ", " + kind + "_names(): " + what);
  };
  std::vector<std::set<std::string>> own(count);
  std::map<std::string, int> known;
  for (const auto& [name, number] : names) {
    if (number < 0 || as_size(number) >= count)
      refuse("found \"" + name + "\" of " + kind + " " + std::to_string(number) + ", expected one of " + std::to_string(count));
    if (name.empty()) refuse(std::string("found an empty name of ") + kind + " " + std::to_string(number));
    if (const auto other = known.emplace(name, number).first->second; other != number)
      refuse("\"" + name + "\" is the name of " + std::to_string(other) + " and of " + std::to_string(number));
    at(own, number).insert(name);
  }
  for (std::size_t n = 0; n < count; ++n) {
    if (own[n].empty()) refuse(std::string(kind) + " " + std::to_string(n) + " has no name");
    told.push_back(static_cast<double>(own[n].size()));
    for (const auto& name : own[n]) {
      told.push_back(static_cast<double>(name.size()));
      for (const char letter : name) told.push_back(static_cast<unsigned char>(letter));
    }
  }
}

HETSCHED_INLINE void name_slices(std::vector<state_slice>& slices, const std::vector<layer_names>& names) {
  if (names.empty()) return;
  for (auto& s : slices) {
    const auto dot = s.name.rfind('.');
    const auto& own = at(names, s.layer);
    const auto& list = s.name.starts_with("buffer.") ? own.buffers : own.parameters;
    if (list.empty()) continue;
    const auto& all = list[as_size(std::stoi(s.name.substr(dot + 1)))];
    s.own_name = all.front();
    s.other_names.assign(all.begin() + 1, all.end());
  }
}

HETSCHED_INLINE parameter_directory learn_directory(const training_layout& t, const std::vector<std::vector<double>>& told,
                                                    std::size_t skip, const std::vector<parameter_tie>& ties) {
  parameter_directory found;
  found.buffers.resize(as_size(t.layers));
  const auto next_shape = [](auto& next) {
    tensor_shape shape;
    for (double extents = *next++; extents > 0; --extents) shape.push_back(static_cast<std::size_t>(*next++));
    return shape;
  };
  const auto next_names = [](auto& next, int layer, const char* kind, std::size_t count) {
    std::vector<std::vector<std::string>> names;
    if (*next++ == 0) return names;
    for (names.resize(count); auto& own : names)
      for (own.resize(static_cast<std::size_t>(*next++)); auto& name : own) {
        for (double letters = *next++; letters > 0; --letters)
          name.push_back(static_cast<char>(static_cast<unsigned char>(*next++)));
        check_name(layer, kind, name);  // here, where all ranks learn of it
      }
    return names;
  };
  std::vector<layer_names> names(as_size(t.layers));
  bool named = false;
  // What ranks have told by layer; in two directions, of one rank twice.
  std::vector<std::vector<std::pair<int, std::vector<told_parameter>>>> known(as_size(t.layers));
  for (std::size_t r = 0; r < told.size(); ++r) {
    auto next = told[r].begin() + static_cast<std::ptrdiff_t>(skip);
    for (const int l : layers_of_rank(t, static_cast<int>(r))) {
      auto& facts = at(known, l).emplace_back(static_cast<int>(r), std::vector<told_parameter>{}).second;
      for (double left = *next++; left > 0; --left) {
        auto& one = facts.emplace_back();
        one.shape = next_shape(next);
        one.dimension = static_cast<int>(*next++);
        const int kinds = static_cast<int>(*next++);
        one.partial_over_tensor = kinds % 2 == 1;
        one.over_experts = kinds >= 2;
        for (double pieces = *next++; pieces > 0; --pieces) one.pieces.push_back(static_cast<std::int64_t>(*next++));
        one.values = *next++;
      }
      std::vector<tensor_shape> buffers;
      for (double left = *next++; left > 0; --left) buffers.push_back(next_shape(next));
      layer_names own;
      own.parameters = next_names(next, l, "parameter", facts.size());
      own.buffers = next_names(next, l, "buffer", buffers.size());
      named = named || own != layer_names{};
      const auto& all = at(known, l);
      if (all.size() == 1) {
        at(found.buffers, l) = std::move(buffers);
        at(names, l) = std::move(own);
      } else if (all.front().second.size() == facts.size() && own != at(names, l)) {
        throw input_error("layer " + std::to_string(l) + " is not made alike on ranks " + std::to_string(all.front().first) +
                          " and " + std::to_string(r) + ": its parameters or buffers have other names");
      }
    }
  }
  if (named) found.names = std::move(names);
  // Values by what they are of, and who has told them first.
  using pieces_key = std::vector<std::int64_t>;
  std::map<std::pair<parameter_id, pieces_key>, std::pair<int, double>> values;
  for (std::size_t l = 0; l < known.size(); ++l) {
    auto& shapes = found.shapes.emplace_back();
    const auto alike = [&](bool fits, int a, int b, const std::string& what) {
      if (!fits)
        throw input_error("layer " + std::to_string(l) + " is not made alike on ranks " + std::to_string(a) + " and " +
                          std::to_string(b) + ": " + what);
    };
    const auto& [first_rank, first] = known[l].front();
    for (const auto& [rank, own] : known[l])
      alike(own.size() == first.size(), first_rank, rank, "its parameters differ in number or shape");
    for (std::size_t n = 0; n < first.size(); ++n) {
      const parameter_id id{static_cast<int>(l), static_cast<int>(n)};
      for (std::size_t i = 0; i < known[l].size(); ++i) {
        // The first rank of a group that has told speaks for how it cuts; the ranks of its tensor axis follow it.
        const int rank = known[l][i].first;
        const auto place = t.place_of(rank);
        const auto& line = at(t.pipelines, place.pipeline);
        const auto group = line.degrees_of(place.group);
        const int base = line.first_of_group(place.group);
        const auto told_by = [&](int r) -> const told_parameter& {
          return std::find_if(known[l].begin(), known[l].end(), [&](const auto& k) { return k.first == r; })->second[n];
        };
        auto& one = found.cuts[{id, place.pipeline, place.group}];
        const auto& head = told_by(base);
        if (rank == base) {
          one = {.dimension = head.dimension,
                 .partial_over_tensor = head.partial_over_tensor,
                 .points = {},
                 .over_experts = head.over_experts};
          tensor_shape whole = head.shape;
          if (head.over_experts) whole.front() *= as_size(group.expert);
          if (head.dimension >= 0) {
            auto& extent = at(whole, head.dimension);
            extent = 0;
            for (int r = 0; r < group.tensor; ++r)
              alike(told_by(base + r).pieces.size() == head.pieces.size(), base, base + r, "its parameters are cut differently");
            for (std::size_t k = 0; k < head.pieces.size(); ++k) {
              auto& points = one.points.emplace_back(std::vector{static_cast<std::int64_t>(extent)});
              for (int r = 0; r < group.tensor; ++r) {
                extent += as_size(told_by(base + r).pieces[k]);
                points.push_back(static_cast<std::int64_t>(extent));
              }
            }
          }
          if (shapes.size() == n) shapes.push_back(whole);
          alike(whole == shapes[n], first_rank, rank, "its parameters differ in number or shape");
        }
        const auto& own = known[l][i].second[n];
        const auto& like = told_by(base + place.tensor);  // the first data and context rank
        auto shape = own.shape, other = head.shape;
        if (own.dimension >= 0 && own.dimension < static_cast<int>(std::min(shape.size(), other.size())))
          at(shape, own.dimension) = at(other, own.dimension) = 0;
        alike(shape == other && own.shape == like.shape, base, rank, "its parameters differ in number or shape");
        alike(own.dimension == head.dimension && own.partial_over_tensor == head.partial_over_tensor &&
                  own.over_experts == head.over_experts && own.pieces == like.pieces,
              base, rank, "its parameters are cut differently");
        pieces_key key{one.dimension};
        for (const auto& p : one.points) {
          key.push_back(at(p, place.tensor));
          key.push_back(at(p, place.tensor + 1));
        }
        if (group.tensor == 1) key = {-1};
        if (one.over_experts && group.expert > 1) {
          key.push_back(group.expert);
          key.push_back(place.data % group.expert);
        }
        const auto before = values.try_emplace({id, key}, rank, own.values).first->second;
        alike(before.second == own.values, before.first, rank, "parameter " + std::to_string(n) + " begins with other values");
      }
    }
  }
  for (const auto& [a, b] : ties) {
    for (const auto& p : {a, b})
      if (p.layer < 0 || p.layer >= t.layers || p.number < 0 || as_size(p.number) >= at(found.shapes, p.layer).size())
        throw input_error("there is no " + to_text(p) + " to tie");
    for (auto of_a = values.lower_bound({a, {}}); of_a != values.end() && of_a->first.first == a; ++of_a)
      if (const auto of_b = values.find({b, of_a->first.second});
          of_b != values.end() && of_a->second.second != of_b->second.second)
        throw input_error(to_text(a) + " and " + to_text(b) + " are tied, but begin with other values");
  }
  return found;
}

}  // namespace hetsched::detail
