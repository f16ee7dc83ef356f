// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/io/checkpoint/detail/checkpoint_files.hpp>

namespace hetsched::detail {

HETSCHED_INLINE void checkpoint_files::append(const std::string& path, std::span<const std::byte> bytes) {
  const int file = open(path, O_WRONLY | O_APPEND);
  while (!bytes.empty()) {
    const auto written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail(path, "cannot be written", file);
    bytes = bytes.subspan(as_size(written));
  }
  done(path, file);
}

}  // namespace hetsched::detail
