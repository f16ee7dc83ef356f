// SPDX-License-Identifier: Apache-2.0
// Reads files of any format: usage read_json FILE...; a wrong one is told on standard error, with status 2.
#include <cstdio>
#include <string>

#include <hetsched/io.hpp>

int main(int argc, char** argv) {
  using namespace hetsched;
  for (int i = 1; i < argc; ++i) try {
      const auto text = read_text(argv[i]);
      const auto is = [&](const char* kind) { return text.find(std::string("\"hetsched/") + kind + "\"") != std::string::npos; };
      if (is("cluster"))
        (void)parse_cluster(text, argv[i]);
      else if (is("profile"))
        (void)parse_profile_file(text, argv[i]);
      else if (is("pipeline"))
        (void)parse_pipeline(text, argv[i]);
      else if (is("graph"))
        (void)parse_graph(text, argv[i]);
      else if (is("stack"))
        (void)parse_stack(text, argv[i]);
      else if (is("target"))
        (void)parse_target(text, argv[i]);
      else if (is("plan"))
        (void)parse_plan(text, argv[i]);
      else
        (void)parse_model(text, argv[i]);
    } catch (const error& wrong) {
      std::fprintf(stderr, "%s\n", wrong.what());
      return 2;
    }
  return 0;
}
