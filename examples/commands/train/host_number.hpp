// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <span>
#include <string>

#include <hetsched/core/checksum.hpp>

namespace train {

namespace detail {

[[nodiscard]] inline std::string kernel_start() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}
[[nodiscard]] inline double number_of(const std::string& text) {
  return static_cast<double>(hetsched::crc64(std::as_bytes(std::span(text))) & 0xffffffffU);
}

}  // namespace detail

/// Equal for processes that use each other's GPUs by CUDA IPC: of one start of one kernel, in one IPC namespace. From 0 to 2^32.
[[nodiscard]] inline double host_number() {
  std::string text = detail::kernel_start();
  std::array<char, 256> name{};
  if (const auto n = ::readlink("/proc/self/ns/ipc", name.data(), name.size()); n > 0)
    text.append(name.data(), static_cast<std::size_t>(n));
  if (text.empty() && ::gethostname(name.data(), name.size() - 1) == 0) text = name.data();
  return detail::number_of(text);
}

/// Equal for processes that NCCL takes for those of one host: of one name and start of a kernel, or of one NCCL_HOSTID.
[[nodiscard]] inline double nccl_host_number() {
  if (const char* const said = std::getenv("NCCL_HOSTID")) return detail::number_of(said);
  std::array<char, 256> name{};
  (void)::gethostname(name.data(), name.size() - 1);
  return detail::number_of(name.data() + detail::kernel_start());
}

}  // namespace train
