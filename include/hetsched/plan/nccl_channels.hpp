// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace hetsched {

/// Channels of NCCL for transfers between GPUs of which the smallest has so many multiprocessors, 0: not known. A channel is a
/// multiprocessor's as long as a transfer lasts: 4, but 2 where 4 are more than a 32nd part. A power of two, as NCCL takes the
/// next one for transfers, and 2 for a link where nothing limits it.
[[nodiscard]] constexpr int nccl_channels(int multiprocessors) { return multiprocessors > 0 && multiprocessors < 4 * 32 ? 2 : 4; }

/// That in words, with the share of the multiprocessors.
[[nodiscard]] inline std::string nccl_channels_text(int multiprocessors) {
  const int channels = nccl_channels(multiprocessors);
  const auto text = std::to_string(channels) + " channels";
  if (multiprocessors <= 0) return text;
  const std::int64_t all = multiprocessors, percent = (200 * channels + all) / (2 * all);
  return text + ", while transfers last " + std::to_string(percent) + "% of the smallest GPU's " +
         std::to_string(multiprocessors) + " multiprocessors";
}

}  // namespace hetsched
