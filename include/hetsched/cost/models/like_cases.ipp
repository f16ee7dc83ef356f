// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdio>

#include <hetsched/cluster/validate.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cost/models/like_cases.hpp>
#include <hetsched/cost/models/tile_cost.hpp>

namespace hetsched {

HETSCHED_INLINE std::span<const like_cases> known_cases() {
  // From docs/accuracy/, by bench/validation/like_cases.py.
  static constexpr like_cases all[] = {
      // clang-format off
      {cost_basis::datasheets, "hetsched", "iterations on one H100 or H200", 115, -0.2125, 0.2154, "through-the-commands"},
      {cost_basis::datasheets, "hetsched", "iterations of plans of HARP and HexiScale", 19, -0.0376, 0.0904, "through-the-commands"},
      {cost_basis::datasheets, "hetsched", "layers on seven unlike GPUs", 1050, -0.2590, 0.2990, "sailor-layers-in-training-on-seven-gpus"},
      {cost_basis::datasheets, "megatron", "iterations on 8 to 2,240 A100", 9, -0.0661, 0.0661, "through-the-commands", send_mode::grouped},
      {cost_basis::datasheets, "megatron", "iterations on 16 A100, H20 and Ascend A2", 3, -0.0290, 0.0460, "through-the-commands", send_mode::grouped},
      {cost_basis::datasheets, "fsdp", "iterations on one H100 or H200", 66, -0.0240, 0.0750, "through-the-commands"},
      {cost_basis::datasheets, "ddp", "iterations on one H100 or H200", 49, -0.0796, 0.0808, "through-the-commands"},
      {cost_basis::datasheets, "llm-foundry of 2023", "iterations on 8 to 512 A100 and H100", 172, -0.0350, 0.0555, "through-the-commands"},
      {cost_basis::datasheets, "inference", "products and attention on one H100", 267, 0.0093, 0.1017, "through-the-commands"},
      {cost_basis::calibrated, "", "products on seven GPUs", 16824, -0.0110, 0.0780, "calibrated-on-twenty-products"},
      {cost_basis::calibrated, "", "vector operators on six GPUs", 4793, -0.0080, 0.0280, "calibrated-on-twenty-vector-operators"},
      {cost_basis::profile, "", "iterations on GH200 and mixed RTX nodes", 17, 0.0150, 0.0790, "sailor-whole-iterations-on-gh200-and-mixed-rtx-nodes"},
      // clang-format on
  };
  return all;
}

HETSCHED_INLINE std::vector<like_cases> cases_like(cost_basis basis, std::string_view stack) {
  std::vector<like_cases> found;
  for (const auto& one : known_cases())
    if (one.basis == basis && (one.stack.empty() || one.stack == stack)) found.push_back(one);
  return found;
}

HETSCHED_INLINE cost_basis basis_of(const cluster& c) {
  validate(c);
  auto least = cost_basis::profile;
  for (const auto& s : c.subclusters) {
    const auto& d = s.device;
    const auto own = d.is_anchored()                            ? cost_basis::anchored
                     : !known_by_operators(d)                   ? cost_basis::layers
                     : !(d.calibration == device_calibration{}) ? cost_basis::calibrated
                                                                : cost_basis::datasheets;
    least = std::min(least, own);
  }
  return least;
}

HETSCHED_INLINE std::string cases_text(std::span<const like_cases> cases) {
  if (cases.empty()) return "no like cases were measured";
  char text[160];
  const auto sends = cases.front().sends;
  const bool held_up = sends != send_mode::asynchronous &&
                       std::all_of(cases.begin(), cases.end(), [&](const auto& one) { return one.sends == sends; });
  const std::string end = held_up ? ", with " + std::string(at(send_modes, sends)) + " sends)" : ")";
  if (cases.size() == 1) {
    const auto& one = cases.front();
    std::snprintf(text, sizeof text, "like cases %+.1f %% on average, +-%.1f %% (%d ", 100 * one.bias, 100 * one.mean, one.cases);
    return text + std::string(one.what) + end;
  }
  const auto [low, high] = std::minmax_element(cases.begin(), cases.end(), [](auto& a, auto& b) { return a.bias < b.bias; });
  const auto [near, far] = std::minmax_element(cases.begin(), cases.end(), [](auto& a, auto& b) { return a.mean < b.mean; });
  int count = 0;
  for (const auto& one : cases) count += one.cases;
  std::snprintf(text, sizeof text, "like cases %+.1f to %+.1f %% on average, +-%.1f to +-%.1f %% (%d, of %zu kinds",
                100 * low->bias, 100 * high->bias, 100 * near->mean, 100 * far->mean, count, cases.size());
  return text + end;
}

}  // namespace hetsched
