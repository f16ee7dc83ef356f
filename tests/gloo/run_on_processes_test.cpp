// SPDX-License-Identifier: Apache-2.0
#include <hetsched/gloo/run_on_processes.hpp>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/core/error.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

#include "../runtime/dense.hpp"
#include "processes.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using tensor = matrix<double>;

process_place place_of(int rank, int ranks) {
  process_place place;
  place.rank = rank;
  place.ranks = ranks;
  return place;
}

/// How a gather ends that others do not come to, and with what reason.
template <class Communicator>
std::string reason_of_gather(Communicator& comm, double deadline_s) {
  std::vector<std::vector<double>> all;
  const auto ended = comm.gather({}, all, deadline_in(deadline_s));
  return (ended == wait_result::aborted ? "aborted: " : ended == wait_result::deadline ? "late: " : "all came") + comm.failure();
}

}  // namespace

TEST_CASE("gloo processes: what is thrown in the body of one rank ends all, with its text and rank") {
  const scratch_folder folder;
  process_group processes(3, [&](int rank, const auto&) {
    gloo_options options;
    options.rendezvous = "file:" + folder.path;
    std::string last;
    run_on_processes<tensor>(place_of(rank, 3), options, [&](auto& comm) {
      if (rank == 1) throw std::runtime_error("no more data");
      last = reason_of_gather(comm, 60);
    });
    return last;
  });
  CHECK(processes.hear(1, 25) == "threw: no more data");
  for (const int r : {0, 2}) CHECK(processes.hear(r, 25) == "aborted: rank 1 failed: no more data");
}

TEST_CASE("gloo processes: a communicator that an exception destroys ends all others with that") {
  const scratch_folder folder;
  process_group processes(2, [&](int rank, const auto&) {
    gloo_options options;
    options.rendezvous = "file:" + folder.path;
    gloo_communicator<tensor> comm(place_of(rank, 2), options);
    if (rank == 1) throw std::runtime_error("no more data");
    return reason_of_gather(comm, 60);
  });
  CHECK(processes.hear(1, 25) == "threw: no more data");
  CHECK(processes.hear(0, 25) == "aborted: rank 1 was ended by an exception");
}

TEST_CASE("gloo processes: who leaves behind a gather that came to its deadline does so soon, and tells the others why") {
  const scratch_folder folder;
  process_group processes(2, [&](int rank, const auto& say) {
    gloo_options options;
    options.rendezvous = "file:" + folder.path;
    std::string last;
    double start_s = 0;
    {
      gloo_communicator<tensor> comm(place_of(rank, 2), options);
      if (rank == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // at something else
        return reason_of_gather(comm, 60);
      }
      say(reason_of_gather(comm, 0.2));
      start_s = steady_now_s();
    }
    return std::string(steady_now_s() - start_s < 2 ? "left soon" : "has waited");
  });
  CHECK(processes.hear(0, 25) == "late: rank 1 has not answered in time");
  CHECK(processes.hear(0, 25) == "left soon");
  CHECK(processes.hear(1, 25) == "aborted: rank 1 has not answered in time");
}
