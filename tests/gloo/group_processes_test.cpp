// SPDX-License-Identifier: Apache-2.0
// Stages of several processes: slices of every strategy, and what becomes of the others when one is killed.
#include <hetsched/gloo/gloo_communicator.hpp>

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <hetsched/schedule/builders/one_f_one_b.hpp>

#include "../runtime/numbered.hpp"
#include "processes.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

/// 2 x 2 devices with a tensor cut twice, then three of which two are replicas.
numbered_pipeline pipeline_of(reshard_strategy how) {
  const layout four{.mesh = {2, 2}, .dimensions = {{.extent = 6, .axes = {0}}, {.extent = 4, .axes = {1}}}};
  const layout three{.mesh = {3}, .dimensions = {{.extent = 6, .axes = {0}, .points = {0, 1, 3, 6}}, {.extent = 4}}};
  return {.order = one_f_one_b({2, 1}, 4),
          .groups = {.devices = {4, 3}, .boundaries = {make_boundary_transfer(four, three, how, {.chunks = 2})}},
          .options = {.deadline_s = 20},
          .meets = false};
}

}  // namespace

TEST_CASE("gloo processes: slices of every strategy") {
  const scratch_folder folder;
  process_group processes(7, [&](int rank, const auto&) {
    gloo_options options;
    options.rendezvous = "file:" + folder.path;
    const process_place place{.rank = rank, .ranks = 7, .launcher = {}, .master = {}, .run = {}};
    for (const auto how : all_reshard_strategies) {
      options.run = std::string(name_of(how));
      gloo_communicator<box_tensor> comm(place, options);
      run_device(comm, pipeline_of(how), 2, nullptr);
    }
    return std::string();
  });
  for (int r = 0; r < 7; ++r) {
    CAPTURE(r);
    CHECK(processes.hear(r) == "");
  }
}

TEST_CASE("gloo processes: a device of a group that is killed ends all others with the reason") {
  for (const int killed : {1, 5}) {
    CAPTURE(killed);
    const scratch_folder folder;
    process_group processes(7, [&](int rank, const auto& say) {
      gloo_options options;
      options.rendezvous = "file:" + folder.path;
      gloo_communicator<box_tensor> comm({.rank = rank, .ranks = 7, .launcher = {}, .master = {}, .run = {}}, options);
      run_device(comm, pipeline_of(reshard_strategy::one_to_one), 1, nullptr, [&](int, numbered_stage& stage) {
        if (rank == killed)
          stage.before_each = [&] {
            say("here");
            std::this_thread::sleep_for(std::chrono::seconds(60));
          };
      });
      return std::string();
    });
    CHECK(processes.hear(killed) == "here");
    processes.kill(killed);
    for (int r = 0; r < 7; ++r) {
      if (r == killed) continue;
      const auto text = processes.hear(r, 15);
      CAPTURE(text);
      CHECK(text.starts_with("threw: "));
      CHECK(text.find("rank " + std::to_string(killed)) != std::string::npos);
    }
  }
}
