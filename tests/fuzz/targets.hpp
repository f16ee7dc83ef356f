// SPDX-License-Identifier: Apache-2.0
// Which of the fuzz targets in one program runs: that of its name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>

namespace hetsched {

struct fuzz_target {
  std::string_view name;
  int (*run)(const std::uint8_t* data, std::size_t size);
};

inline int (*chosen_target)(const std::uint8_t* data, std::size_t size) = nullptr;

inline int choose_target(std::span<const fuzz_target> targets, std::string_view program) {
  const auto name = program.substr(program.rfind('/') + 1);
  for (const auto& t : targets)
    if (t.name == name) chosen_target = t.run;
  if (!chosen_target) {
    std::fprintf(stderr, "%.*s: no such target; call the program by the name of one:", static_cast<int>(name.size()),
                 name.data());
    for (const auto& t : targets) std::fprintf(stderr, " %.*s", static_cast<int>(t.name.size()), t.name.data());
    std::fputc('\n', stderr);
    std::exit(2);
  }
  return 0;
}

}  // namespace hetsched
