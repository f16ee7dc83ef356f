// SPDX-License-Identifier: Apache-2.0
#include <hetsched/views/plan.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

#include <hetsched/core/random.hpp>

#include "mode.hpp"

namespace {

using namespace hetsched;

/// Pipelines, stages and groups in any numbers, none included; a stage's first layer numbers it.
plan random_plan(random_source& random) {
  plan p;
  int number = 0;
  p.pipelines.resize(static_cast<std::size_t>(random.integer(0, 3)));
  for (auto& line : p.pipelines) {
    line.stages.resize(static_cast<std::size_t>(random.integer(0, 4)));
    for (auto& s : line.stages) {
      s.layers = {number, number + 1};
      ++number;
      for (int g = random.integer(0, 2); g > 0; --g)
        s.devices.push_back({.mesh = {.subcluster = random.integer(0, 2),
                                      .nodes = random.integer(1, 2),
                                      .devices_per_node = random.integer(1, 4)},
                             .first_device = random.integer(0, 8)});
    }
    if (!line.stages.empty() && random.integer(0, 1) == 1) line.boundaries.resize(line.stages.size() - 1);
  }
  return p;
}

}  // namespace

TEST_CASE(VIEWS "stages, groups and devices of a plan are those of nested loops") {
  random_source random(1);
  for (int run = 0; run < 200; ++run) {
    const plan p = random_plan(random);
    std::vector<const stage_plan*> stages;
    std::vector<const device_group*> groups;
    std::vector<views::numbered_device> devices;
    for (const auto& line : p.pipelines)
      for (const auto& s : line.stages) {
        stages.push_back(&s);
        std::vector<views::numbered_device> own;
        for (const auto& g : s.devices) {
          groups.push_back(&g);
          for (int d = 0; d < g.mesh.device_count(); ++d) own.push_back({g.mesh.subcluster, g.first_device + d});
        }
        std::vector<views::numbered_device> seen;
        for (const auto d : views::devices(s.devices)) seen.push_back(d);
        CHECK(seen == own);
        devices.insert(devices.end(), own.begin(), own.end());
      }
    std::vector<const stage_plan*> stages_seen;
    for (const auto& s : views::stages(p)) stages_seen.push_back(&s);
    CHECK(stages_seen == stages);
    std::vector<const device_group*> groups_seen;
    for (const auto& g : views::device_groups(p)) groups_seen.push_back(&g);
    CHECK(groups_seen == groups);
    std::vector<views::numbered_device> devices_seen;
    for (const auto d : views::devices(p)) devices_seen.push_back(d);
    CHECK(devices_seen == devices);
  }
}

TEST_CASE(VIEWS "stages of a plan can be changed") {
  random_source random(2);
  plan p = random_plan(random);
  while (p.pipelines.size() < 2) p = random_plan(random);
  for (auto& s : views::stages(p)) s.zero = 2;
  for (const auto& line : p.pipelines)
    for (const auto& s : line.stages) CHECK(s.zero == 2);
}

TEST_CASE(VIEWS "each stage but the last has the boundary after it") {
  random_source random(3);
  for (int run = 0; run < 100; ++run) {
    const plan p = random_plan(random);
    for (const auto& line : p.pipelines) {
      std::size_t i = 0;
      for (const auto& [number, stage, boundary] : views::stages_with_boundaries(line)) {
        CHECK(number == i);
        CHECK(&stage == &line.stages[i]);
        CHECK(boundary == (i < line.boundaries.size() ? &line.boundaries[i] : nullptr));
        ++i;
      }
      CHECK(i == line.stages.size());
    }
  }
}
