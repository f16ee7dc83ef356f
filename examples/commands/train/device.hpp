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
/// Throws: input_error where another device is asked for than the host, and this program has none.
inline void require_device(const std::string& device) {
  if (device != "cpu" && !with_cuda) throw hetsched::input_error("--device: this program was built without CUDA (HETSCHED_CUDA)");
}

/// How many names there are, with commas between.
[[nodiscard]] inline int names_in(std::string_view text) {
  return static_cast<int>(std::count(text.begin(), text.end(), ',')) + 1;
}

/// The place of each rank: the number of a GPU, or -1 for the host. `text`: cpu, cuda or cuda:N for all ranks, or such names for
/// each of them, with commas between; cuda alone takes the GPUs in turn.
/// Throws: input_error for other names, another number of them than ranks, and GPUs that are not there.
[[nodiscard]] inline std::vector<int> places_of(std::string_view text, int ranks, int gpus) {
  const auto wrong = [&](const std::string& what) { return hetsched::input_error("--device: " + what); };
  std::vector<std::string> names;
  for (std::size_t first = 0; first <= text.size();) {
    const auto end = std::min(text.find(',', first), text.size());
    names.emplace_back(text.substr(first, end - first));
    first = end + 1;
  }
  if (names.size() == 1) names.resize(static_cast<std::size_t>(ranks), names.front());
  if (names.size() != static_cast<std::size_t>(ranks))
    throw wrong("found " + std::to_string(names.size()) + " names for " + std::to_string(ranks) + " ranks");
  std::vector<int> places;
  int next = 0;
  for (const auto& name : names) {
    if (name == "cpu") {
      places.push_back(-1);
      continue;
    }
    const auto number = name.starts_with("cuda:") ? name.substr(5) : "";
    if (name != "cuda" && (number.empty() || number.size() > 4 || number.find_first_not_of("0123456789") != std::string::npos))
      throw wrong("expected cpu, cuda or cuda:N, found \"" + name + "\"");
    const int device = name == "cuda" ? next++ % gpus : std::stoi(number);
    if (device >= gpus) throw wrong("there is no GPU " + number + " among " + std::to_string(gpus));
    places.push_back(device);
  }
  return places;
}

}  // namespace train
