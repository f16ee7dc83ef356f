// SPDX-License-Identifier: Apache-2.0
// Groups and routers over Gloo.
#include <hetsched/gloo/gloo_communicator.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/communicator/router.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/runtime/group/axis_group.hpp>

#include "../runtime/dense.hpp"
#include "../runtime/group/groups.hpp"
#include "processes.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using tensor = matrix<double>;
using channel = gloo_communicator<tensor>;
static_assert(!has_groups<channel, tensor> && waking_plane<channel>);

/// body(end) for ranks of this process, a thread each.
template <class Body>
std::vector<std::exception_ptr> over_gloo(int ranks, Body body) {
  const auto store = make_process_store();
  return on_ranks(ranks, [&](int r) {
    gloo_options options;
    options.store = store;
    channel end(process_place{.rank = r, .ranks = ranks, .launcher = {}, .master = {}, .run = {}}, options);
    body(end);
  });
}

/// Sums and gathers over all ranks against one device.
template <class Communicator>
void check_group(Communicator& comm) {
  std::vector<int> ranks;
  for (int r = 0; r < comm.ranks(); ++r) ranks.push_back(r);
  const auto n = ranks.size(), me = static_cast<std::size_t>(comm.rank());
  const axis_group<tensor, Communicator> axis(comm, ranks, {.deadline_s = 20});
  random_source random(4);  // the same on all ranks
  for (int round = 0; round < 8; ++round) {
    const auto size = static_cast<std::size_t>(round % 2 == 0 ? random.integer(0, 60) : random.integer(3000, 9000));
    std::vector<std::vector<double>> of_ranks;
    for (std::size_t k = 0; k < n; ++k) of_ranks.push_back(wild_numbers<double>(random, size * n));
    const auto sum = serial_sum(of_ranks);
    auto values = of_ranks[me];
    axis.all_reduce(values);
    if (!same_bits<double>(values, sum)) throw error("another sum");
    std::vector<double> part(size);
    axis.reduce_scatter(of_ranks[me], part);
    if (!same_bits<double>(part, std::span(sum).subspan(me * size, size))) throw error("another part");
    axis.all_gather(part, values);
    if (!same_bits<double>(values, sum)) throw error("other parts");
    axis.broadcast(of_ranks[me], static_cast<int>(n) - 1);
    if (!same_bits<double>(of_ranks[me], of_ranks[n - 1])) throw error("other numbers");
  }
}

}  // namespace

TEST_CASE("[threads] gloo: collectives have the bits of one device") {
  rethrow_first(over_gloo(3, [](channel& end) { check_group(end); }));
}

TEST_CASE("[threads] gloo: a rank that does not come to a collective is named") {
  const auto failures = over_gloo(2, [](channel& end) {
    const axis_group<tensor, channel> axis(end, {0, 1}, {.name = "the tensor axis", .deadline_s = 1});
    std::vector<double> values(10, 1.0);
    axis.all_reduce(values);
    if (end.rank() == 1) {
      std::vector<std::vector<double>> all;
      (void)end.gather({}, all, deadline_in(20));
      return;
    }
    axis.all_reduce(values);
  });
  REQUIRE(failures[0]);
  const auto text = hetsched::detail::text_of(failures[0]);
  CAPTURE(text);
  CHECK(text.find("rank 0: all_reduce over the tensor axis (ranks 0 1) waits for rank 1, for 1.0") == 0);
  CHECK_FALSE(failures[1]);
}

TEST_CASE("[threads] gloo: a router over Gloo and threads") {
  const auto threads = thread_communicator<tensor>::connect(3);
  rethrow_first(over_gloo(3, [&](channel& end) {
    // Neighbours over threads, ranks 0 and 2 over Gloo, which also agrees.
    const auto route = [](const edge& e) { return routed_edge{e.from + e.to == 2 ? 0U : 1U, e}; };
    router<channel, decltype(route), channel, thread_communicator<tensor>> comm(end, route, end,
                                                                                threads[static_cast<std::size_t>(end.rank())]);
    check_group(comm);
  }));
}
