// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include <hetsched/core/compiled.hpp>
#include <hetsched/io/checkpoint/snapshot_ring.hpp>

namespace hetsched {

HETSCHED_INLINE snapshot_ring::snapshot_ring(std::string folder) : folder_(std::move(folder)) {
  std::error_code none;
  const std::filesystem::path own(folder_);
  const auto alike = own.filename().string().substr(0, own.filename().string().rfind('-') + 1);
  if (!alike.empty())
    for (const auto& other : std::filesystem::directory_iterator(own.parent_path(), none))
      if (other.path().filename().string().starts_with(alike))
        if (const int left = hold(other.path().string()); left >= 0) {
          std::filesystem::remove_all(other.path(), none);
          ::close(left);
        }
  remove_all();
  detail::checkpoint_files::make_folder(folder_);
  held_ = hold(folder_);
}

HETSCHED_INLINE std::vector<std::byte> snapshot_ring::read_part(const kept& k, int part) const {
  const auto path = detail::part_path(path_of(k), part);
  const auto notes = nlohmann::json(k.info).dump();
  std::vector<std::byte> bytes;
  const auto add = [&](std::span<const std::byte> some) {
    for (std::size_t i = 0; i < 8; ++i) bytes.push_back(static_cast<std::byte>(some.size() >> (8 * i) & 0xff));
    bytes.insert(bytes.end(), some.begin(), some.end());
  };
  add(std::as_bytes(std::span(notes)));
  add(read_all(path + ".json"));
  add(read_all(path + ".bin"));
  return bytes;
}

HETSCHED_INLINE void snapshot_ring::write_part(kept& k, int part, std::span<const std::byte> bytes) const {
  const auto take = [&] {
    std::size_t length = 0;
    for (std::size_t i = 0; i < 8 && bytes.size() >= 8; ++i) length |= std::to_integer<std::size_t>(bytes[i]) << (8 * i);
    if (bytes.size() < 8 || length > bytes.size() - 8) throw error("a part of a snapshot came in a wrong length");
    const auto some = bytes.subspan(8, length);
    bytes = bytes.subspan(8 + length);
    return some;
  };
  detail::checkpoint_files::make_folder(path_of(k));
  const auto path = detail::part_path(path_of(k), part);
  const auto notes = take();
  k.info = nlohmann::json::parse(reinterpret_cast<const char*>(notes.data()),
                                 reinterpret_cast<const char*>(notes.data()) + notes.size());
  write_all(path + ".json", take());
  write_all(path + ".bin", take());
  k.held.insert(part);
}

}  // namespace hetsched
