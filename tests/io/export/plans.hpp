// SPDX-License-Identifier: Apache-2.0
// Plans and clusters for tests of what other trainers are given.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/io/export/placed_plan.hpp>
#include <hetsched/io/json/plan_json.hpp>

namespace hetsched::test {

/// A stage on `devices` devices of a subcluster from `first_device` on; layers from the end of the stage before to `end`.
struct planned_stage {
  int end = 0;
  int subcluster = 0, first_device = 0;
  hetsched::degrees degrees{};
  recomputation recompute = recomputation::none;
  int zero = 0;
};

inline plan_file plan_of(const std::vector<planned_stage>& stages, const std::string& schedule = "1f1b", int microbatches = 8,
                         int size = 4) {
  plan_file file{.plan = {}, .subclusters = {"a", "v"}};
  file.plan.setting = {.costs = "tile", .granularity = "block", .sequence = 1024, .precision = "bf16", .attention = "flash"};
  pipeline_plan line{.microbatches = microbatches, .microbatch_size = size};
  line.schedule.name = schedule;
  int first = 0;
  for (const auto& s : stages) {
    const int devices = s.degrees.data * s.degrees.context * s.degrees.tensor;
    const int host = s.subcluster == 0 ? 8 : 4, nodes = devices > host ? devices / host : 1;
    line.stages.push_back({.layers = {first, s.end},
                           .devices = {{{s.subcluster, nodes, devices / nodes}, s.first_device}},
                           .degrees = s.degrees,
                           .recompute = s.recompute,
                           .zero = s.zero});
    first = s.end;
  }
  file.plan.pipelines = {line};
  return file;
}

/// Equal stages on subcluster a: embedding, blocks and head in equal parts.
inline plan_file equal_plan(int layers, int stages, degrees each = {}, const std::string& schedule = "1f1b") {
  std::vector<planned_stage> all;
  const int devices = each.data * each.context * each.tensor;
  for (int s = 0; s < stages; ++s)
    all.push_back({.end = s + 1 == stages ? layers : (s + 1) * (layers / stages), .first_device = s * devices, .degrees = each});
  return plan_of(all, schedule);
}

/// Two hosts of eight A100 and two of four V100, which have no bf16.
inline cluster hosts_of_two_sizes() {
  cluster c;
  const auto add = [&](const char* name, const char* device, int nodes, int per_node) {
    c.subclusters.push_back({.name = name, .device = find_device(device).value(), .nodes = nodes, .devices_per_node = per_node});
    c.subclusters.back().intra_node = c.subclusters.back().inter_node = {.latency_s = 1e-6, .bandwidth = 1e10};
  };
  add("a", "A100-SXM4-80GB", 2, 8);
  add("v", "V100-SXM2-32GB", 2, 4);
  c.links.push_back({.a = 0, .b = 1, .link = {.latency_s = 1e-6, .bandwidth = 1e9}});
  return c;
}

/// The text of a refusal; empty if there is none.
template <class Call>
std::string refusal(const Call& call) {
  try {
    (void)call();
    return "";
  } catch (const inexpressible& why) {
    return why.what();
  }
}

inline bool has(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CAPTURE(part);
  return text.find(part) != std::string::npos;
}

}  // namespace hetsched::test
