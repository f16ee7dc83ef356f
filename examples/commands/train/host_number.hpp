// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <array>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <span>
#include <string>

#include <hetsched/core/checksum.hpp>

namespace train {

/// Equal for processes that use each other's GPUs by CUDA IPC: of one start of one kernel, in one IPC namespace. From 0 to 2^32.
[[nodiscard]] inline double host_number() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  std::array<char, 256> name{};
  if (const auto n = ::readlink("/proc/self/ns/ipc", name.data(), name.size()); n > 0)
    text.append(name.data(), static_cast<std::size_t>(n));
  if (text.empty() && ::gethostname(name.data(), name.size() - 1) == 0) text = name.data();
  return static_cast<double>(hetsched::crc64(std::as_bytes(std::span(text))) & 0xffffffffU);
}

}  // namespace train
