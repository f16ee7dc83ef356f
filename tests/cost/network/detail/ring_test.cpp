// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cost/network/detail/ring.hpp>

using namespace hetsched;

TEST_CASE("rings stay inside a node where they can, and share its link to the others where they cannot") {
  const cluster c{{{"s", *find_device("T4"), 4, 8, {1e-6, 1e11}, {1e-5, 1e10}}}, {}};
  const auto hop = [&](submesh mesh, int stride, int ranks) { return detail::ring_on(c, mesh, stride, ranks).hop; };
  const hetsched::link inside{1e-6, 1e11};
  CHECK(hop({0, 1, 8}, 2, 4) == inside);
  CHECK(hop({0, 2, 8}, 2, 4) == inside);                          // 4 ranks, 2 apart, fill a node
  CHECK(hop({0, 2, 8}, 2, 8) == hetsched::link{1e-5, 1e10 / 2});  // 8 do not: two rings leave each node at once
  CHECK(hop({0, 4, 8}, 8, 4) == hetsched::link{1e-5, 1e10 / 8});
  CHECK(hop({0, 3, 8}, 1, 24) == hetsched::link{1e-5, 1e10});  // one ring through all
  auto ports = c;
  ports.subclusters[0].nics = 8;
  const auto with_ports = [&](submesh mesh, int stride, int ranks) { return detail::ring_on(ports, mesh, stride, ranks).hop; };
  CHECK(with_ports({0, 3, 8}, 1, 24) == hetsched::link{1e-5, 8e10});  // the ring is one for each port
  CHECK(with_ports({0, 4, 8}, 8, 4) == hetsched::link{1e-5, 1e10});   // eight rings, a port each
  CHECK(with_ports({0, 4, 2}, 2, 4) == hetsched::link{1e-5, 1e10});
  CHECK(with_ports({0, 4, 1}, 1, 4) == hetsched::link{1e-5, 1e10});  // one device uses one port
}

TEST_CASE("an all-gather takes one pass of pieces around the ring, an all-reduce two; alone there is nothing to do") {
  const detail::ring four{4, {1e-3, 1e6}};
  CHECK(four.collective_s(1, 8e6) == doctest::Approx(3 * (1e-3 + 2.0)));
  CHECK(four.collective_s(2, 8e6) == doctest::Approx(6 * (1e-3 + 2.0)));
  CHECK(four.collective_s(2, 0) == 0);
  CHECK(detail::ring{1, {1e-3, 1e6}}.collective_s(2, 8e6) == 0);
}

TEST_CASE("rings and exchanges on a datasheet's link take what NCCL takes of it") {
  const hetsched::link nvlink{9e-6, 300e9, link_kind::nvlink};
  const auto nccl = [&](collective kind, int ranks, double bytes) {
    return nccl_collective_s(kind, ranks, bytes, nvlink, efficiency_of(nvlink.kind));
  };
  const detail::ring eight{8, nvlink};
  CHECK(eight.collective_s(1, 1e8) == nccl(collective::all_gather, 8, 1e8));
  CHECK(eight.collective_s(2, 1e8) == nccl(collective::all_reduce, 8, 1e8));
  CHECK(eight.collective_s(2, 0) == 0);
  const cluster c{{{"s", *find_device("A100-SXM4-80GB"), 2, 8, nvlink, {1e-5, 1e10}}}, {}};
  CHECK(detail::all_to_all_s(c, {0, 1, 8}, 1, 8, 1e8) == nccl(collective::all_to_all, 8, 1e8));
  CHECK(detail::all_to_all_s(c, {0, 2, 8}, 1, 16, 1e8) ==
        doctest::Approx(nccl(collective::all_to_all, 8, 5e7) + 8 * (1e-5 + 1e8 / 16 * 8 / 1e10)));
}
