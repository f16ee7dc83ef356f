// SPDX-License-Identifier: Apache-2.0
#include <hetsched/gloo/gloo_communicator.hpp>

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "../runtime/every_schedule.hpp"
#include "processes.hpp"

using namespace hetsched;
using namespace hetsched::test;

TEST_CASE("gloo processes: every schedule gives the bits of one device") {
  for (const int ranks : {1, 2, 3, 4, 6}) {
    CAPTURE(ranks);
    const auto microbatches = ranks < 6 ? std::vector<int>{1, 2, 3, 5, 8, 16} : std::vector<int>{6, 16};
    const scratch_folder folder;
    process_group processes(ranks, [&](int rank, const auto&) {
      gloo_options options;
      options.rendezvous = "file:" + folder.path;
      const process_place place{.rank = rank, .ranks = ranks, .launcher = {}, .master = {}, .run = {}};
      options.run = "single";
      gloo_communicator<matrix<float>> singles(place, options);
      options.run = "double";
      gloo_communicator<matrix<double>> doubles(place, options);
      int run = 0;
      std::string wrong;
      for (const auto& one : schedule_instances(ranks, microbatches)) {
        const auto found = one.single ? differences<float>(one, singles) : differences<double>(one, doubles);
        if (!found.empty()) wrong += one.name + ":" + found + "\n";
        ++run;
      }
      return run == 0 ? "nothing was run" : wrong;
    });
    for (int r = 0; r < ranks; ++r) {
      CAPTURE(r);
      CHECK(processes.hear(r) == "");
    }
  }
}
