// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/cost/network/detail/ring.hpp>
#include <hetsched/cost/network/link_efficiency.hpp>

using namespace hetsched;

namespace {

const hetsched::link hopper{5.3e-6, gbit_per_s(3600), link_kind::nvlink_sharp};

double seconds(collective kind, int ranks, double bytes, const hetsched::link& over) {
  return nccl_collective_s(kind, ranks, bytes, over, efficiency_of(over.kind));
}

}  // namespace

TEST_CASE("collectives in a node take what NCCL takes: within 16 % over NVLink on average, a factor of two over PCIe") {
  std::ifstream file(HETSCHED_SOURCE_DIR "/tests/data/nccl_in_a_node.csv");
  REQUIRE(file);
  std::map<std::string, std::pair<double, int>> off;  // by source and kind: sum of errors, rows
  std::string line;
  std::getline(file, line);
  REQUIRE(line == "source,device,kind,gbit_per_s,latency_us,op,ranks,bytes,measured_us");
  while (std::getline(file, line)) {
    std::istringstream cells(line);
    std::string source, device, kind, op, cell;
    const auto number = [&] {
      std::getline(cells, cell, ',');
      return std::stod(cell);
    };
    for (auto* s : {&source, &device, &kind}) std::getline(cells, *s, ',');
    const double gbit = number(), latency_us = number();
    std::getline(cells, op, ',');
    const int ranks = static_cast<int>(number());
    const double bytes = number(), measured_us = number();
    const auto what = op == "all_reduce"       ? collective::all_reduce
                      : op == "all_gather"     ? collective::all_gather
                      : op == "reduce_scatter" ? collective::reduce_scatter
                                               : collective::all_to_all;
    const auto k = find_link_kind(kind);
    REQUIRE(k);
    auto& [sum, rows] = off[source + ", " + kind];
    sum += std::abs(seconds(what, ranks, bytes, {latency_us * 1e-6, gbit_per_s(gbit), *k}) * 1e6 / measured_us - 1);
    ++rows;
  }
  const auto mean = [&](const std::string& group) { return off.at(group).first / off.at(group).second; };
  CHECK(off.at("aiconfigurator, nvlink-sharp").second == 360);
  CHECK(mean("aiconfigurator, nvlink") < 0.08);
  CHECK(mean("aiconfigurator, nvlink-sharp") < 0.09);
  CHECK(mean("Vidur, nvlink") < 0.22);
  CHECK(mean("Galvatron, nvlink") < 0.30);
  CHECK(mean("Vidur, pcie-p2p") < 0.06);
  CHECK(mean("aiconfigurator, pcie") < 0.40);
}

TEST_CASE("a collective in a node grows with bytes and ranks and never gets more than the datasheet's bandwidth") {
  for (const auto kind : {link_kind::nvlink, link_kind::nvlink_sharp, link_kind::pcie_p2p, link_kind::pcie})
    for (const auto what : {collective::all_reduce, collective::all_gather, collective::reduce_scatter, collective::all_to_all,
                            collective::broadcast}) {
      CAPTURE(std::string(name_of(kind)));
      const hetsched::link over{5e-6, 100e9, kind};
      CHECK(seconds(what, 1, 1e6, over) == 0);
      CHECK(seconds(what, 8, 0, over) == 0);
      double before = 0;
      for (double bytes = 1; bytes < 1e11; bytes *= 4) {
        const double now = seconds(what, 8, bytes, over);
        CHECK(now > before);
        CHECK(now > over.latency_s);
        CHECK(now > bytes / over.bandwidth * (what == collective::broadcast || what == collective::all_reduce ? 1 : 7.0 / 8));
        CHECK(seconds(what, 2, bytes, over) < now);
        before = now;
      }
    }
}

TEST_CASE("switches that add up serve large all-reduces of many ranks, and nothing else") {
  const hetsched::link without{hopper.latency_s, hopper.bandwidth, link_kind::nvlink};
  CHECK(seconds(collective::all_reduce, 8, 512e6, hopper) < 0.9 * seconds(collective::all_reduce, 8, 512e6, without));
  CHECK(seconds(collective::all_reduce, 2, 512e6, hopper) == seconds(collective::all_reduce, 2, 512e6, without));
  CHECK(seconds(collective::all_gather, 8, 512e6, hopper) == seconds(collective::all_gather, 8, 512e6, without));
}

TEST_CASE("groups on one node of a datasheet's link run as NCCL does, others by formula") {
  const rank_group<> node{.per_node = 8, .inside = hopper};
  CHECK(library_collective_s(collective::all_gather, node, 1e8) == seconds(collective::all_gather, 8, 1e8, hopper));
  const rank_group<> measured{.per_node = 8, .inside = {hopper.latency_s, hopper.bandwidth}};
  CHECK(library_collective_s(collective::all_gather, measured, 1e8) ==
        fastest_collective_s(collective::all_gather, measured, 1e8));
  const rank_group<> nodes{.nodes = 2, .per_node = 8, .inside = hopper, .across = {1e-5, 5e10}};
  CHECK(library_collective_s(collective::all_gather, nodes, 1e8) == fastest_collective_s(collective::all_gather, nodes, 1e8));
}

TEST_CASE("collectives that no node has are refused") {
  const auto refused = [](collective kind, int ranks, double bytes, const hetsched::link& over, const char* why) {
    CHECK_THROWS_WITH_AS((void)seconds(kind, ranks, bytes, over), doctest::Contains(why), input_error);
  };
  refused(collective::all_reduce, 0, 1, hopper, "the ranks of a collective");
  refused(collective::all_reduce, 2, -1, hopper, "the bytes of a collective");
  refused(collective::all_reduce, 2, 1, {-1, 1e9, link_kind::pcie}, "the latency of a link");
  refused(collective::all_reduce, 2, 1, {0, 0, link_kind::pcie}, "the bandwidth of a link");
  refused(collective::point_to_point, 2, 1, hopper, "a message between two ranks");
}
