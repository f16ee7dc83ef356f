// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <vector>

namespace rows {

inline int failed = 0;

/// A line of the table. `good`: whether what was checked holds; measured figures have nothing to hold.
inline void row(const std::string& what, bool good, const std::string& figure) {
  failed += !good;
  std::printf("%-60s %-6s %s\n", what.c_str(), good ? "ok" : "FAILED", figure.c_str());
  std::fflush(stdout);
}

inline std::string number(const char* format, double x) {
  char text[96];
  std::snprintf(text, sizeof text, format, x);
  return text;
}

struct check {
  const char* name;
  std::function<void()> run;
};

/// A program of checks: `--list` prints their names, a name runs one, without arguments all are run. Status 1 where one fails, 2
/// where it cannot be run.
inline int main(int argc, char** argv, const std::vector<check>& all) try {
  if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
    for (const auto& c : all) std::printf("%s\n", c.name);
    return 0;
  }
  bool found = false;
  for (const auto& c : all) {
    if (argc == 2 && std::strcmp(argv[1], c.name) != 0) continue;
    found = true;
    c.run();
  }
  if (!found) std::printf("there is no check %s\n", argv[1]);
  return found ? failed > 0 : 2;
} catch (const std::exception& e) {
  std::printf("%s\n", e.what());
  return 2;
}

}  // namespace rows
