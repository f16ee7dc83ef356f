// SPDX-License-Identifier: Apache-2.0
#include <hetsched/reshard/strategies.hpp>
#include <hetsched/reshard/strided_runs.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <bitset>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <hetsched/core/random.hpp>

#include "../sanitizer_share.hpp"
#include "random_layout.hpp"

using namespace hetsched;
using hetsched::test::random_layout;
using hetsched::test::search_share;
using hetsched::test::to_text;

namespace {

constexpr std::size_t most_elements = 256;
using elements = std::bitset<most_elements>;

// The elements of a slice as bits.
elements bits_of(std::span<const interval> s, const std::vector<std::int64_t>& shape) {
  elements set;
  slice whole;
  for (const auto extent : shape) whole.push_back({0, extent});
  for_each_run(whole, whole, s, [&](std::int64_t first, std::int64_t, std::int64_t length) {
    for (std::int64_t i = 0; i < length; ++i) set.set(static_cast<std::size_t>(first + i));
  });
  return set;
}

// What is wrong with a plan; empty: nothing.
std::string fault_of(const transfer_plan& p, const layout& from, const layout& to, const std::vector<std::int64_t>& shape,
                     bool crosses_once) {
  std::vector<elements> holds(static_cast<std::size_t>(p.sources + p.destinations)), written(holds.size());
  std::vector<elements> wants(holds.size());
  for (int i = 0; i < p.sources; ++i) holds[static_cast<std::size_t>(i)] = bits_of(slice_of(from, i), shape);
  for (int j = 0; j < p.destinations; ++j) wants[static_cast<std::size_t>(p.sources + j)] = bits_of(slice_of(to, j), shape);
  elements crossed;
  for (std::size_t phase = 0; phase < p.phase_count(); ++phase) {
    std::vector<std::pair<std::size_t, elements>> arrived;
    for (const auto& m : p.phase(phase)) {
      const auto moved = bits_of(p.slice_of(m), shape);
      const auto sender = static_cast<std::size_t>(m.from), receiver = static_cast<std::size_t>(m.to);
      if (static_cast<std::int64_t>(moved.count()) != m.elements || moved.none()) return "a message of the wrong size";
      if ((moved & ~holds[sender]).any()) return "device " + std::to_string(m.from) + " sends what it does not hold";
      if ((moved & wants[receiver] & written[receiver]).any()) return "device " + std::to_string(m.to) + " gets an element twice";
      written[receiver] |= moved;
      arrived.emplace_back(receiver, moved);
      if (p.crosses(m)) {
        if (crosses_once && (moved & crossed).any()) return "an element crosses twice";
        crossed |= moved;
      }
      if (m.from >= p.sources && m.to < p.sources) return "a message goes back";
    }
    for (const auto& [receiver, moved] : arrived) holds[receiver] |= moved;
  }
  for (std::size_t d = static_cast<std::size_t>(p.sources); d < holds.size(); ++d)
    if ((wants[d] & ~written[d]).any()) return "device " + std::to_string(d) + " lacks an element";
  return {};
}

}  // namespace

TEST_CASE("every strategy brings every element once to all who want it, from one who has it") {
  random_source random(20261122);
  const int pairs = 100'000 / search_share;
  std::size_t messages = 0;
  int several_phases = 0;
  for (int k = 0; k < pairs; ++k) {
    std::vector<std::int64_t> shape;
    for (int dimensions = random.integer(0, 4), left = most_elements; dimensions > 0; --dimensions) {
      shape.push_back(random.integer(1, std::min(left, 12)));
      left /= static_cast<int>(shape.back());
    }
    const int most = random.integer(0, 15) == 0 ? 64 : 12;
    const auto from = random_layout(random, shape, most), to = random_layout(random, shape, most);
    const int outer = random.integer(0, 1) ? 1 : std::gcd(from.mesh.front(), to.mesh.front());
    for (const auto s : all_reshard_strategies) {
      const auto p = plan_transfer(from, to, s, {.outer = outer, .chunks = random.integer(0, 3) ? 1 : 3});
      const bool once = s == reshard_strategy::scatter_gather || s == reshard_strategy::leader_broadcast;
      const auto fault = fault_of(p, from, to, shape, once);
      REQUIRE_MESSAGE(fault.empty(), name_of(s), ": ", fault, "; outer ", outer, ", chunks ", p.chunks, "\nfrom ", to_text(from),
                      "\nto ", to_text(to));
      messages += p.messages.size();
      several_phases += p.phase_count() > 1;
    }
  }
  CHECK(messages > static_cast<std::size_t>(pairs) * 20);
  CHECK(several_phases > pairs);
}
