// SPDX-License-Identifier: Apache-2.0
// Where ranks compute: on the host, on GPUs, or some on each.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/core/error.hpp>

namespace train {

#ifdef HETSCHED_WITH_CUDA
inline constexpr bool with_cuda = true;
#else
inline constexpr bool with_cuda = false;
#endif
#ifdef HETSCHED_WITH_NCCL
inline constexpr bool with_nccl = true;
#else
inline constexpr bool with_nccl = false;
#endif

/// The names in a list with commas between. Throws: input_error for one that is not cpu, cuda or cuda:N.
[[nodiscard]] inline std::vector<std::string> device_names(std::string_view text) {
  std::vector<std::string> names;
  for (std::size_t first = 0; first <= text.size();) {
    const auto end = std::min(text.find(',', first), text.size());
    const auto& name = names.emplace_back(text.substr(first, end - first));
    const auto number = name.starts_with("cuda:") ? name.substr(5) : "";
    if (name != "cpu" && name != "cuda" &&
        (number.empty() || number.size() > 4 || number.find_first_not_of("0123456789") != std::string::npos))
      throw hetsched::input_error("--device: expected cpu, cuda or cuda:N, found \"" + name + "\"");
    first = end + 1;
  }
  return names;
}

/// Throws: input_error as device_names, and where another device is asked for than the host, or NCCL, and this program has none.
inline void require_device(const std::string& device, bool nccl = false) {
  (void)device_names(device);
  if (device != "cpu" && !with_cuda) throw hetsched::input_error("--device: this program was built without CUDA (HETSCHED_CUDA)");
  if (nccl && device == "cpu") throw hetsched::input_error("--nccl needs --device cuda");
  if (nccl && !with_nccl) throw hetsched::input_error("--nccl: this program was built without NCCL (HETSCHED_NCCL)");
}

/// How many names there are, with commas between.
[[nodiscard]] inline int names_in(std::string_view text) {
  return static_cast<int>(std::count(text.begin(), text.end(), ',')) + 1;
}

/// The place of a rank: the number of a GPU of this host, or -1 for the host. `text`: cpu, cuda or cuda:N for all ranks, or such
/// names for each of them, with commas between; cuda alone takes the GPUs in turn.
/// Throws: input_error for other names, another number of them than ranks, and a GPU of this rank's that is not there.
[[nodiscard]] inline int place_of(std::string_view text, int ranks, int rank, int gpus) {
  const auto wrong = [&](const std::string& what) { return hetsched::input_error("--device: " + what); };
  auto names = device_names(text);
  if (names.size() == 1) names.resize(static_cast<std::size_t>(ranks), names.front());
  if (names.size() != static_cast<std::size_t>(ranks))
    throw wrong("found " + std::to_string(names.size()) + " names for " + std::to_string(ranks) + " ranks");
  int next = 0, place = -1;
  for (int r = 0; r < ranks; ++r) {
    const auto& name = names[static_cast<std::size_t>(r)];
    const int device = name == "cpu" ? -1 : name == "cuda" ? next++ % gpus : std::stoi(name.substr(5));
    if (r != rank) continue;
    if (device >= gpus) throw wrong("there is no GPU " + std::to_string(device) + " among " + std::to_string(gpus));
    place = device;
  }
  return place;
}
/// Of all ranks, on this host. Throws: as place_of.
[[nodiscard]] inline std::vector<int> places_of(std::string_view text, int ranks, int gpus) {
  std::vector<int> places;
  for (int r = 0; r < ranks; ++r) places.push_back(place_of(text, ranks, r, gpus));
  return places;
}

}  // namespace train
