// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/gloo/detail/channel_end.hpp>

namespace hetsched::detail {

HETSCHED_INLINE std::pair<std::size_t, std::size_t> parts_of(const transfer_queue& queue, std::span<iovec> parts,
                                                             std::size_t most) {
  std::size_t count = 0, bytes = 0;
  for (auto* t = queue.first; t && count + 1 < parts.size() && bytes < most; t = t->next) {
    const auto add = [&](char* from, std::size_t size) {
      size = std::min(size, most - bytes);
      if (size > 0) parts[count++] = {from, size};
      bytes += size;
    };
    constexpr std::size_t head = sizeof(tensor_header);
    if (t->written < head) add(reinterpret_cast<char*>(&t->header) + t->written, head - t->written);
    const std::size_t done = t->written < head ? 0 : t->written - head;
    add(t->data + done, t->header.note.bytes - done);
  }
  return {count, bytes};
}

}  // namespace hetsched::detail
