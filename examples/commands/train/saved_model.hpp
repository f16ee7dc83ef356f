// SPDX-License-Identifier: Apache-2.0
// What a training on GPUs saves, as checkpoints have it: the trainer's on the host goes on from them, and the other way round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <hetsched/runtime/layer/parameter.hpp>

#include <gpt_cuda/description.hpp>

namespace train {

/// names: of what the optimizer keeps of each parameter; empty: nothing. A tied table is the embedding's.
[[nodiscard]] inline std::vector<hetsched::state_slice> slices_of(gpt_cuda::saved_model& all,
                                                                  const std::vector<std::string>& names, bool tied,
                                                                  std::int64_t& updates) {
  std::vector<hetsched::state_slice> slices;
  for (std::size_t l = 0; l < all.size(); ++l)
    for (std::size_t n = 0; n < all[l].size(); ++n) {
      if (tied && n == 0 && l + 1 == all.size()) continue;
      auto& p = all[l][n];
      const auto add = [&](const std::string& name, gpt_cuda::numbers& t) {
        slices.push_back({.layer = static_cast<int>(l),
                          .name = name + "." + std::to_string(n),
                          .element = "f32",
                          .shape = {t.rows, t.columns},
                          .first = 0,
                          .bytes = std::as_writable_bytes(std::span(t.values))});
      };
      add("parameter", p.value);
      slices.push_back({.layer = static_cast<int>(l),
                        .name = "updates." + std::to_string(n),
                        .element = "i64",
                        .shape = {1},
                        .first = 0,
                        .bytes = std::as_writable_bytes(std::span(&updates, 1))});
      for (std::size_t s = 0; s < names.size(); ++s) add(names[s], p.state[s]);
    }
  return slices;
}

/// Behind reading: the head's table is the embedding's.
inline void tie(gpt_cuda::saved_model& all, bool tied) {
  if (tied) all.back().front() = all.front().front();
}

}  // namespace train
