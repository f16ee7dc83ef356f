// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/cost/models/hexiscale.hpp>
#include <hetsched/cost/network/collective.hpp>
#include <hetsched/cost/network/measured_collectives.hpp>

using namespace hetsched;

namespace {

using enum collective;
using enum collective_algorithm;

constexpr hetsched::link wire{2e-6, 5e9};
constexpr hetsched::link nvlink{1e-6, 1e11};
constexpr hetsched::link network{1e-5, 1e10};

// Time until every rank has every block when ranks exchange messages step by step; the caller says who sends what to whom.
// A message takes latency + bytes / bandwidth; a rank sends one and receives one at a time.
struct exchange {
  int ranks;
  double block;
  std::vector<std::vector<bool>> has;
  double now = 0;

  exchange(int n, double bytes)
      : ranks(n), block(bytes / n), has(static_cast<std::size_t>(n), std::vector<bool>(static_cast<std::size_t>(n))) {
    for (std::size_t r = 0; r < has.size(); ++r) has[r][r] = true;
  }
  // One step: rank r receives from (r + distance) mod n all blocks it lacks, at most `most` of them.
  void pull(int distance, int most) {
    const auto before = has;
    int largest = 0;
    for (int r = 0; r < ranks; ++r) {
      int moved = 0;
      const auto& from = before[static_cast<std::size_t>((r + distance) % ranks)];
      for (int k = 0; k < ranks && moved < most; ++k) {
        const auto b = static_cast<std::size_t>((r + distance + k) % ranks);
        if (from[b] && !has[static_cast<std::size_t>(r)][b]) has[static_cast<std::size_t>(r)][b] = true, ++moved;
      }
      largest = std::max(largest, moved);
    }
    now += wire.transfer_s(largest * block);
  }
  [[nodiscard]] bool done() const {
    return std::all_of(has.begin(), has.end(),
                       [](const auto& row) { return std::all_of(row.begin(), row.end(), [](bool b) { return b; }); });
  }
};

std::vector<transfer_sample> samples_of(const transfer_curve& truth, int count, double noise, random_source& random) {
  std::vector<transfer_sample> samples;
  for (int i = 0; i < count; ++i) {
    const double bytes = std::exp2(random.uniform(10, 30));
    samples.push_back({bytes, truth.transfer_s(bytes) * (1 + noise * random.uniform(-1, 1))});
  }
  return samples;
}

std::vector<collective_measurements> read_network() {
  std::ifstream file(HETSCHED_SOURCE_DIR "/tests/data/vidur_network.csv");
  REQUIRE(file);
  std::string line;
  std::getline(file, line);
  std::map<std::pair<int, int>, collective_measurements> groups;
  while (std::getline(file, line)) {
    std::stringstream text(line);
    std::vector<std::string> cell(6);
    for (auto& c : cell) std::getline(text, c, ',');
    const int ranks = std::stoi(cell[2]), per_node = std::stoi(cell[3]);
    auto& g = groups[{ranks / per_node, per_node}];
    g.collective = all_reduce;
    g.nodes = ranks / per_node;
    g.per_node = per_node;
    g.samples.push_back({std::stod(cell[4]), std::stod(cell[5]) * 1e-3});
  }
  std::vector<collective_measurements> found;
  for (auto& [shape, g] : groups) found.push_back(std::move(g));
  return found;
}

}  // namespace

TEST_CASE("rings and trees of an all-gather take what a step-by-step exchange takes") {
  for (int n = 2; n <= 17; ++n) {
    CAPTURE(n);
    const rank_group<> group{1, n, wire, {}, 1};
    const double bytes = 1e6 * n;
    exchange circle(n, bytes);
    for (int step = 1; step < n; ++step) circle.pull(1, 1);
    CHECK(circle.done());
    CHECK(collective_s(all_gather, ring, group, bytes) == doctest::Approx(circle.now).epsilon(1e-12));
    exchange doubling(n, bytes);
    for (int reach = 1; reach < n; reach *= 2) doubling.pull(reach, n);
    CHECK(doubling.done());
    CHECK(collective_s(all_gather, tree, group, bytes) == doctest::Approx(doubling.now).epsilon(1e-12));
    for (const auto how : {ring, tree})
      CHECK(collective_s(reduce_scatter, how, group, bytes) == collective_s(all_gather, how, group, bytes));
    CHECK(collective_s(all_reduce, ring, group, bytes) ==
          doctest::Approx(collective_s(reduce_scatter, ring, group, bytes) + collective_s(all_gather, ring, group, bytes)));
  }
}

TEST_CASE("a tree all-to-all delivers every block along the bits of its distance") {
  for (int n = 2; n <= 12; ++n) {
    CAPTURE(n);
    // at[r]: distances still to go of the blocks at rank r, all alike by symmetry
    std::vector<int> left(static_cast<std::size_t>(n));
    for (int d = 0; d < n; ++d) left[static_cast<std::size_t>(d)] = d;
    double seconds = 0;
    for (int reach = 1; reach < n; reach *= 2) {
      int moved = 0;
      for (auto& d : left)
        if (d & reach) d -= reach, ++moved;
      seconds += wire.transfer_s(moved * 1e5);
    }
    CHECK(*std::max_element(left.begin(), left.end()) == 0);
    CHECK(collective_s(all_to_all, tree, rank_group<>{1, n, wire, {}, 1}, 1e5 * n) == doctest::Approx(seconds).epsilon(1e-12));
  }
}

TEST_CASE("no collective beats its wire share of the bandwidth, and large ones come near it") {
  for (const int n : {2, 3, 8, 16, 64})
    for (const auto kind : {all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, point_to_point}) {
      const rank_group<> group{1, n, {1e-6, 1e9}, {}, 1};
      CAPTURE(n);
      CAPTURE(static_cast<int>(kind));
      for (const double bytes : {1.0, 1e3, 1e6, 1e9})
        for (const auto how : {ring, tree}) CHECK(collective_s(kind, how, group, bytes) >= wire_share(kind, n) * bytes / 1e9);
      CHECK(collective_s(kind, ring, group, 1e12) <= 1.01 * wire_share(kind, n) * 1e12 / 1e9);
    }
}

TEST_CASE("few bytes go by tree, many by ring, and across nodes by hierarchy") {
  const rank_group<> node{1, 64, wire, {}, 1};
  CHECK(collective_s(all_reduce, tree, node, 1e3) < collective_s(all_reduce, ring, node, 1e3));
  CHECK(collective_s(all_gather, tree, node, 1e3) < collective_s(all_gather, ring, node, 1e3));
  CHECK(collective_s(all_reduce, ring, node, 1e10) < collective_s(all_reduce, tree, node, 1e10));
  const rank_group<> nodes{4, 8, nvlink, network, 8};
  CHECK(collective_s(all_reduce, hierarchical, nodes, 1e6) < collective_s(all_reduce, ring, nodes, 1e6));
  // A ring for each rail is wider still, for those that do not mind its many steps.
  CHECK(fastest_collective_s(all_reduce, nodes, 1e9) == collective_s(all_reduce, ring, nodes, 1e9));
  // 1/8 of the tensor goes round each of 8 rails
  const double inside = 2 * 7 * nvlink.transfer_s(1e9 / 8), across = 2 * 3 * network.transfer_s(1e9 / 8 / 4);
  CHECK(collective_s(all_reduce, hierarchical, nodes, 1e9) == doctest::Approx(inside + across).epsilon(1e-12));
  // and all of it round one
  const rank_group<> shared{4, 8, nvlink, network, 1};
  CHECK(fastest_collective_s(all_reduce, shared, 1e9) == collective_s(all_reduce, hierarchical, shared, 1e9));
  CHECK(collective_s(all_reduce, hierarchical, shared, 1e9) ==
        doctest::Approx(inside + 2 * 3 * network.transfer_s(1e9 / 4)).epsilon(1e-12));
}

TEST_CASE("a ring through nodes is one for each rail that has a rank on every node") {
  const rank_group<> one{.nodes = 2, .per_node = 4, .inside = {0, 1e15}, .across = {0, 1e9}};
  auto two = one, many = one;
  two.rails = 2;
  many.rails = 16;
  const auto ring_s = [](const rank_group<>& g) {
    return collective_s(collective::all_gather, collective_algorithm::ring, g, 8e9);
  };
  CHECK(ring_s(one) == doctest::Approx(7));
  CHECK(ring_s(two) == doctest::Approx(3.5));
  CHECK(ring_s(many) == doctest::Approx(1.75));
}

TEST_CASE("an all-to-all across nodes sends each rank its block, those of other nodes over the shared rails") {
  // 2 nodes of 4 ranks, 2 rails: 3 partners inside, 4 outside, each message beside one other
  const rank_group<> group{2, 4, nvlink, network, 2};
  CHECK(collective_s(all_to_all, ring, group, 8e6) ==
        doctest::Approx(3 * nvlink.transfer_s(1e6) + 4 * network.transfer_s(2e6)).epsilon(1e-12));
  CHECK(collective_s(all_to_all, ring, rank_group<>{8, 1, nvlink, network, 1}, 8e6) ==
        doctest::Approx(7 * network.transfer_s(1e6)).epsilon(1e-12));
}

TEST_CASE("what lies in one node or on one rank is the same by hierarchy and by ring") {
  for (const auto kind : {all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, point_to_point}) {
    CAPTURE(static_cast<int>(kind));
    CHECK(collective_s(kind, hierarchical, rank_group<>{1, 8, nvlink, network, 1}, 1e7) ==
          collective_s(kind, ring, rank_group<>{1, 8, nvlink, network, 1}, 1e7));
    CHECK(collective_s(kind, hierarchical, rank_group<>{8, 1, nvlink, network, 1}, 1e7) ==
          doctest::Approx(collective_s(kind, ring, rank_group<>{8, 1, nvlink, network, 1}, 1e7)));
    CHECK(collective_s(kind, tree, rank_group<>{1, 1, nvlink, network, 1}, 1e7) == 0);
    CHECK(collective_s(kind, ring, rank_group<>{2, 2, nvlink, network, 1}, 0) == 0);
  }
  CHECK_THROWS_AS((void)collective_s(all_reduce, ring, rank_group<>{0, 1, nvlink, network, 1}, 1), input_error);
  CHECK_THROWS_AS((void)collective_s(all_reduce, ring, rank_group<>{1, 2, nvlink, network, 0}, 1), input_error);
  CHECK_THROWS_AS((void)collective_s(all_reduce, ring, rank_group<>{1, 2, nvlink, network, 1}, -1), input_error);
}

TEST_CASE("even shards are gathered padded, skewed ones broadcast") {
  const rank_group<> group{2, 2, nvlink, network, 1};
  const std::vector<double> even(4, 1e6), skewed{3.4e6, 2e5, 2e5, 2e5};
  CHECK(fastest_uneven_gather(ring, group, even) == uneven_gather::padded);
  CHECK(fastest_uneven_gather(ring, group, skewed) == uneven_gather::grouped_broadcast);
  CHECK(uneven_all_gather_s(uneven_gather::padded, ring, group, even) == collective_s(all_gather, ring, group, 4e6));
  CHECK(uneven_all_gather_s(uneven_gather::padded, ring, group, skewed) == collective_s(all_gather, ring, group, 4 * 3.4e6));
  CHECK(uneven_all_gather_s(uneven_gather::grouped_broadcast, ring, group, skewed) ==
        doctest::Approx(collective_s(broadcast, ring, group, 3.4e6) + 3 * collective_s(broadcast, ring, group, 2e5)));
  CHECK_THROWS_AS((void)uneven_all_gather_s(uneven_gather::padded, ring, group, std::vector<double>(3, 1.0)), input_error);
}

TEST_CASE("a fitted curve finds the pieces it was made of") {
  const transfer_curve truth{{{1e5, 2e-5, 0}, {1e7, 1e-5, 1e-10}, {std::numeric_limits<double>::infinity(), 4e-4, 2e-11}}};
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    random_source random(seed);
    const auto samples = samples_of(truth, 200, 0.01, random);
    const auto curve = fit_transfer_curve(samples);
    CAPTURE(seed);
    CAPTURE(curve.pieces.size());
    CHECK(curve.pieces.size() == 3);
    for (double bytes = 2e3; bytes < 1e9; bytes *= 1.7) {
      if (std::abs(std::log(bytes / 1e5)) < 0.3 || std::abs(std::log(bytes / 1e7)) < 0.3) continue;
      CAPTURE(bytes);
      CHECK(curve.transfer_s(bytes) == doctest::Approx(truth.transfer_s(bytes)).epsilon(0.02));
    }
  }
}

TEST_CASE("cutting into pieces is optimal: no other cut of few samples has less squared error") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    random_source random(seed);
    std::vector<transfer_sample> samples;
    const int n = random.integer(6, 10);
    for (int i = 0; i < n; ++i) samples.push_back({std::exp2(i + 10), random.uniform(1, 10)});
    const auto error = [&](const transfer_curve& c) {
      double sum = 0;
      for (const auto& s : samples) sum += std::pow(c.transfer_s(s.bytes) / s.seconds - 1, 2);
      return sum;
    };
    // Noise so small that as many pieces as allowed pay.
    const auto two = fit_transfer_curve(samples, {.max_pieces = 2, .noise = 1e-9});
    if (two.pieces.size() < 2) continue;
    double least = 1e300;
    for (int cut = 3; cut <= n - 3; ++cut) {
      const auto all = std::span(samples);
      const auto low = fit_transfer_curve(all.first(static_cast<std::size_t>(cut)), {.max_pieces = 1});
      const auto high = fit_transfer_curve(all.subspan(static_cast<std::size_t>(cut)), {.max_pieces = 1});
      transfer_curve joined{{low.pieces[0], high.pieces[0]}};
      joined.pieces[0].up_to_bytes = samples[static_cast<std::size_t>(cut - 1)].bytes;
      least = std::min(least, error(joined));
    }
    CAPTURE(seed);
    CHECK(error(two) == doctest::Approx(least));
    // One piece is the best line: nudging it makes it worse.
    const auto one = fit_transfer_curve(samples, {.max_pieces = 1});
    for (const double factor : {0.99, 1.01}) {
      auto latency = one, slope = one;
      latency.pieces[0].latency_s *= factor;
      slope.pieces[0].s_per_byte *= factor;
      CHECK(error(latency) >= error(one) * (1 - 1e-9));
      CHECK(error(slope) >= error(one) * (1 - 1e-9));
    }
  }
}

TEST_CASE("curves of few, equal or wrong samples") {
  const std::vector<transfer_sample> single{{1e6, 1e-3}},
      same{{1e6, 1e-3}, {1e6, 1e-3}, {1e6, 1e-3}, {1e6, 1e-3}, {1e6, 1e-3}, {1e6, 1e-3}};
  CHECK(fit_transfer_curve(single).transfer_s(1e6) == doctest::Approx(1e-3));
  CHECK(fit_transfer_curve(same).pieces.size() == 1);
  CHECK(fit_transfer_curve(same).transfer_s(1e6) == doctest::Approx(1e-3));
  CHECK_THROWS_AS((void)fit_transfer_curve({}), input_error);
  CHECK_THROWS_AS((void)fit_transfer_curve(std::vector<transfer_sample>{{0, 1}}), input_error);
  CHECK_THROWS_AS((void)fit_transfer_curve(std::vector<transfer_sample>{{1, -1}}), input_error);
  CHECK_THROWS_AS((void)fit_transfer_curve(single, {.max_pieces = 0}), input_error);
  CHECK_THROWS_AS((void)fit_transfer_curve(single, {.noise = 0}), input_error);
}

TEST_CASE("measured all-reduces with each size held out: within 8 % in a node, 12 % across nodes, where one pair is off") {
  for (const auto& g : read_network()) {
    CAPTURE(g.nodes);
    CAPTURE(g.per_node);
    double sum = 0, single = 0;
    int count = 0;
    for (std::size_t fold = 0; fold < 10; ++fold) {
      std::vector<transfer_sample> rest, held;
      for (std::size_t i = 0; i < g.samples.size(); ++i) (i % 10 == fold ? held : rest).push_back(g.samples[i]);
      const auto curve = fit_transfer_curve(rest);
      const auto line = fit_transfer_curve(rest, {.max_pieces = 1});
      for (const auto& s : held)
        if (s.bytes >= 1e6) {
          sum += std::abs(curve.transfer_s(s.bytes) / s.seconds - 1);
          single += std::abs(line.transfer_s(s.bytes) / s.seconds - 1);
          ++count;
        }
    }
    CHECK(count > 100);
    CHECK(sum / count < (g.nodes == 1 ? 0.08 : 0.12));
    if (g.nodes > 1) CHECK(single / count > 0.25);
  }
}

TEST_CASE("groups inside a node are predicted from other groups") {
  const auto all = read_network();
  double sum = 0;
  int count = 0;
  for (const auto& held : all) {
    if (held.nodes > 1) continue;
    std::vector<collective_measurements> others;
    for (const auto& g : all)
      if (g.per_node != held.per_node || g.nodes != held.nodes) others.push_back(g);
    const measured_collectives model(others);
    for (const auto& s : held.samples)
      if (s.bytes >= 1e6) {
        const auto seconds = model.seconds(all_reduce, 1, held.per_node, s.bytes);
        REQUIRE(seconds);
        sum += std::abs(*seconds / s.seconds - 1);
        ++count;
      }
  }
  CHECK(count > 300);
  CHECK(sum / count < 0.1);
}

TEST_CASE("what is measured comes back, what is like it is scaled, what is not is none") {
  const auto line = [](double seconds_per_byte) {
    std::vector<transfer_sample> samples;
    for (double b = 1e4; b < 1e9; b *= 2) samples.push_back({b, seconds_per_byte * b});
    return samples;
  };
  const std::vector<collective_measurements> measured{
      {all_reduce, 1, 2, line(1)}, {all_reduce, 1, 8, line(2)}, {all_reduce, 2, 8, line(30)}, {reduce_scatter, 4, 8, line(7)}};
  const measured_collectives model(measured);
  CHECK(*model.seconds(all_reduce, 1, 2, 1e6) == doctest::Approx(1e6));
  CHECK(*model.seconds(all_reduce, 1, 8, 1e6) == doctest::Approx(2e6));
  // 4 ranks lie halfway between 2 and 8 by ratio; their wire shares are 1, 1.5 and 1.75
  CHECK(*model.seconds(all_reduce, 1, 4, 1e6) == doctest::Approx(std::sqrt(1.5e6 * 2e6 * 1.5 / 1.75)));
  // and 3 lie at log 1.5 / log 4 of the way
  const double way = std::log(1.5) / std::log(4.0);
  CHECK(*model.seconds(all_reduce, 1, 3, 1e6) == doctest::Approx(4.0 / 3 * 1e6 * std::pow(2 / 1.75, way)));
  CHECK(*model.seconds(all_reduce, 1, 16, 1e6) == doctest::Approx(2e6 * 1.875 / 1.75));
  CHECK(*model.seconds(all_reduce, 8, 8, 1e6) == doctest::Approx(30e6 * (2.0 * 63 / 64) / 1.875));
  // Where measured groups show how seconds per byte on the wire grow with the nodes, more nodes follow the last two of them.
  const double wire_8 = 2.0 * 63 / 64, wire_32 = 2.0 * 255 / 256;
  const auto growing = [&](double on_2, double on_8) {  // seconds per byte on the wire
    return measured_collectives(std::vector<collective_measurements>{{all_reduce, 8, 8, line(on_8 * wire_8)},
                                                                     {all_reduce, 2, 8, line(on_2 * 1.875)},
                                                                     {all_reduce, 1, 8, line(1)},
                                                                     {all_gather, 4, 8, line(1)}});
  };
  CHECK(*growing(30, 60).seconds(all_reduce, 32, 8, 1e6) == doctest::Approx(120e6 * wire_32));
  const measured_collectives three(std::vector<collective_measurements>{
      {all_reduce, 2, 8, line(30 * 1.875)}, {all_reduce, 4, 8, line(30 * 2.0 * 31 / 32)}, {all_reduce, 8, 8, line(60 * wire_8)}});
  CHECK(*three.seconds(all_reduce, 32, 8, 1e6) == doctest::Approx(240e6 * wire_32));
  // never faster for more nodes, never slower than in proportion to them
  CHECK(*growing(30, 20).seconds(all_reduce, 32, 8, 1e6) == doctest::Approx(20e6 * wire_32));
  CHECK(*growing(1, 3000).seconds(all_reduce, 32, 8, 1e6) == doctest::Approx(4 * 3000e6 * wire_32));
  // also beside larger groups unlike the one asked for; and fewer nodes with more ranks gain nothing from the trend
  const measured_collectives beside(std::vector<collective_measurements>{
      {all_reduce, 2, 8, line(30 * 1.875)}, {all_reduce, 8, 8, line(60 * wire_8)}, {all_reduce, 64, 4, line(1)}});
  CHECK(*beside.seconds(all_reduce, 32, 8, 1e6) == doctest::Approx(120e6 * wire_32));
  CHECK(*growing(30, 60).seconds(all_reduce, 4, 64, 1e6) == doctest::Approx(60e6 * wire_32));
  // and groups with other ranks per node tell nothing
  const measured_collectives apart(
      std::vector<collective_measurements>{{all_reduce, 2, 4, line(1)}, {all_reduce, 8, 8, line(60)}});
  CHECK(*apart.seconds(all_reduce, 32, 8, 1e6) == doctest::Approx(60e6 * wire_32 / wire_8));
  CHECK(*model.seconds(all_gather, 1, 8, 1e6) == doctest::Approx(1e6));
  CHECK(*model.seconds(all_gather, 4, 8, 1e6) == doctest::Approx(7e6));
  CHECK(*model.seconds(all_reduce, 1, 1, 1e6) == 0);
  CHECK(!model.seconds(all_to_all, 1, 8, 1e6));
  CHECK(!model.seconds(broadcast, 2, 8, 1e6));
  // Pairs have a link ten times as fast as what joins four: four take what two take for ten times the bytes, and the other way.
  const measured_collectives pairs(std::vector<collective_measurements>{{all_reduce, 1, 2, line(1), 300e9}});
  CHECK(pairs.seconds(all_reduce, 1, 4, 1e6, 30e9).value() ==
        doctest::Approx(1.5 * pairs.seconds(all_reduce, 1, 2, 1e7, 300e9).value()));
  CHECK(pairs.seconds(all_reduce, 1, 4, 1e6).value() == doctest::Approx(1.5 * pairs.seconds(all_reduce, 1, 2, 1e6).value()));
  CHECK_THROWS_AS(measured_collectives(std::vector<collective_measurements>{measured[0], measured[0]}), input_error);
  CHECK_THROWS_AS(measured_collectives(std::vector<collective_measurements>{{all_reduce, 1, 1, line(1)}}), input_error);
  CHECK_THROWS_AS((void)model.seconds(all_reduce, 0, 8, 1), input_error);
  CHECK_THROWS_WITH_AS((void)model.seconds(all_reduce, 1 << 16, 1 << 16, 1), "a collective has too many ranks", input_error);
}

TEST_CASE("HexiScale's formulas, term by term") {
  const device any{.name = "any"};
  const hetsched::link inside{1e-6, 1e10}, across{1e-4, 1e9};
  const cluster c{{{"a", any, 2, 2, inside, across}, {"b", any, 1, 2, inside, {}}}, {}};
  const hexiscale_cost::layer_shape l{.samples = 2, .sequence = 1024, .hidden = 2048, .element_bytes = 2};
  const double bytes = 2.0 * 1024 * 2048 * 2;
  const std::vector<device_id> three{{0, 0, 0}, {0, 0, 1}, {0, 1, 0}}, node{{0, 1, 0}, {0, 1, 1}}, apart{{0, 0, 0}, {1, 0, 0}};
  // The device alone on its node sends both parts across.
  CHECK(hexiscale_cost::tensor_layer_s(l, c, three) == doctest::Approx(12 * 2 * (1e-4 + bytes / 3 / 1e9)));
  CHECK(hexiscale_cost::gradient_layer_s(l, c, node) == doctest::Approx(2 * (1e-6 + 12.0 * 2048 * 2048 * 2 / 2 / 1e10)));
  CHECK(hexiscale_cost::boundary_s(l, c, std::vector<device_id>{{0, 0, 0}}, node) ==
        doctest::Approx(2 * ((1e-4 + bytes / 1e9) + (1e-6 + bytes / 2 / 1e10))));
  CHECK(hexiscale_cost::compute_layer_s(l, 1e14, 4) ==
        doctest::Approx(96.0 * 2 * 1024 * 2048 * 2048 * (1 + 1024 / (6 * 2048.0)) / 4e14));
  CHECK(hexiscale_cost::layer_bytes(l, 4) == doctest::Approx(48.0 * 2048 * 2048 * 2 / 4 + bytes));
  CHECK(hexiscale_cost::exchange_s(c, std::vector<device_id>{{0, 0, 0}}, 1e9) == 0);
  CHECK(std::isinf(hexiscale_cost::exchange_s(c, apart, 1e9)));
  CHECK(std::isinf(hexiscale_cost::boundary_s(l, c, std::vector<device_id>{{0, 0, 0}}, std::vector<device_id>{{1, 0, 0}})));
}
