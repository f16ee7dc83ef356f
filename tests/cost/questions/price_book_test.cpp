// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cost/questions/price_book.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/questions/describe.hpp>

#include "../../plan/stub_costs.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

// Answers by the place of a question, and counts how often each was put.
struct counting_model {
  cluster hardware = two_kinds();
  int layers = 4;
  bool is_additive = true, names_classes = true, knows_nodes = true;
  mutable std::map<std::string, int> asked = {};

  [[nodiscard]] bool additive() const { return is_additive; }
  [[nodiscard]] bool has_transfer_class() const { return names_classes; }
  [[nodiscard]] bool asks_proximity() const { return knows_nodes; }
  [[nodiscard]] int layer_count() const { return layers; }
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const {
    count("placements " + describe(hardware, placement{mesh}));
    const int n = mesh.device_count();
    if (n == 1) return {{mesh}};
    return {{mesh, {n, 1, 1}}, {mesh, {1, 1, n}}, {mesh, {1, 1, n}, recomputation::full}};
  }
  [[nodiscard]] stage_cost layer(int index, const placement& where) const {
    count("layer " + std::to_string(index) + on(where));
    return {.forward_s = 1.0 + index, .backward_s = where.degrees.tensor / 8.0, .weight_bytes = 10, .temporary_bytes = index};
  }
  [[nodiscard]] stage_cost stage(layer_range range, const placement& where) const {
    count("stage of " + describe(range) + on(where));
    return {.forward_s = 100.0 * range.first + range.last};
  }
  [[nodiscard]] transfer_cost transfer(int boundary, const placement& from, const placement& to, proximity near) const {
    count("transfer " + std::to_string(boundary) + on(from) + on(to) + (near == proximity::same_node ? " near" : ""));
    return {100.0 * (boundary % 2) + 10.0 * from.degrees.data + to.degrees.data,
            knows_nodes && near == proximity::same_node ? 1.0 : 2.0};
  }
  [[nodiscard]] transfer_cost transfer(int boundary, const placement& from, const placement& to) const {
    return transfer(boundary, from, to, proximity::other_node);
  }
  [[nodiscard]] double update(layer_range range, const placement& where) const {
    count("update of " + describe(range) + on(where));
    return 10.0 * range.first + range.last;
  }
  [[nodiscard]] memory_overheads overheads(const placement& where) const {
    count("overheads" + on(where));
    return {.runtime_bytes = 1000, .fragmentation = 0.25};
  }
  [[nodiscard]] std::int64_t transfer_class(const placement& where) const { return where.degrees.data; }
  [[nodiscard]] std::int64_t boundary_class(int boundary) const { return 7 - boundary % 2; }

  [[nodiscard]] int most_asked() const {
    int most = 0;
    for (const auto& [question, times] : asked) most = std::max(most, times);
    return most;
  }
  [[nodiscard]] int questions(const std::string& about) const {
    return static_cast<int>(
        std::count_if(asked.begin(), asked.end(), [&](const auto& each) { return each.first.rfind(about, 0) == 0; }));
  }

 private:
  void count(const std::string& question) const { ++asked[question]; }
  [[nodiscard]] std::string on(const placement& where) const { return " on " + describe(hardware, where); }
};

// Everything of the standard shapes, twice.
std::vector<int> read_all(price_book& book) {
  std::vector<int> all;
  for (int round = 0; round < 2; ++round) {
    all.clear();
    for (std::size_t k = 0; k < book.hardware().subclusters.size(); ++k)
      for (const auto& mesh : submeshes(book.hardware().subclusters[k], static_cast<int>(k)))
        for (const int p : book.placements(mesh)) all.push_back(p);
    for (const int p : all) {
      (void)book.updates(p);
      for (int first = 0; first < book.layers(); ++first)
        for (int last = first + 1; last <= book.layers(); ++last) (void)book.stage(p, {first, last});
      for (const int q : all)
        for (int b = 0; b + 1 < book.layers(); ++b)
          for (const auto near : {proximity::other_node, proximity::same_node}) (void)book.transfer(b, p, q, near);
    }
  }
  return all;
}

}  // namespace

TEST_CASE("each question is put once, and its answer kept") {
  for (int kind = 0; kind < 8; ++kind) {
    CAPTURE(kind);
    const counting_model model{.is_additive = (kind & 1) != 0, .names_classes = (kind & 2) != 0, .knows_nodes = (kind & 4) != 0};
    price_book book(model.hardware, model);
    CHECK(book.layers() == 4);
    CHECK(book.boundary_kinds() == std::vector{0, 1, 0});
    CHECK(book.first_boundaries() == std::vector{0, 1});
    CHECK(model.asked.empty());
    const auto all = read_all(book);
    const int count = static_cast<int>(all.size());
    CHECK(count == 1 + 3 + 3 + 1 + 3 + 3);
    CHECK(model.most_asked() == 1);
    CHECK(model.questions("placements") == 6);
    CHECK(model.questions("overheads") == count);
    CHECK(model.questions("update") == 6 * count);  // each layer, two of them, all
    CHECK(model.questions("layer") == (model.is_additive ? 4 * count : 0));
    CHECK(model.questions("stage") == (model.is_additive ? 0 : 10 * count));
    // By classes: 1, 2 and 4 replicas, and on two nodes apart if that counts.
    int classes = count;
    if (model.names_classes) classes = model.knows_nodes ? 3 + 4 : 3 + 3;
    CHECK(model.questions("transfer") == 2 * classes * classes * (model.knows_nodes ? 2 : 1));
    for (const int p : all) {
      const auto here = book[p];
      CHECK(book.find(here.where) == p);
      CHECK(here.memory.room == room_within(gib, model.overheads(here.where)).room);
      CHECK(here.memory.scale == 1.25);
      CHECK(here.on_one_node == (here.where.mesh.subcluster == 1 && here.where.mesh.nodes == 1));
      CHECK(book.updates(p).layers == std::vector{1.0, 12.0, 23.0, 34.0});
      CHECK(book.updates(p).first_two == 2);
      CHECK(book.updates(p).all == 4);
      if (model.is_additive) {
        CHECK(book.layers_on(p)[3] == model.layer(3, here.where));
        CHECK(book.stage(p, {1, 3}) == sum_of_layers(model, {1, 3}, here.where));
      }
      for (int last = 2; last <= 4 && !model.is_additive; ++last)
        CHECK(book.stage(p, {1, last}) == model.stage({1, last}, here.where));
      for (const int q : all)
        for (int b = 0; b < 3; ++b)
          for (const auto near : {proximity::other_node, proximity::same_node})
            CHECK(book.transfer(b, p, q, near) == model.transfer(b, here.where, book[q].where, near));
    }
  }
}

TEST_CASE("answers are asked for when they are wanted, and of any placement") {
  const counting_model model;
  price_book book(model.hardware, model);
  const placement odd{{0, 1, 3}, {3, 1, 1}}, whole{{1, 2, 2}, {4, 1, 1}};
  const int a = book.find(odd), b = book.find(whole);
  CHECK(model.asked.size() == 2);  // overheads
  const transfer_cost& there = book.transfer(2, a, b, proximity::other_node);
  CHECK(there == model.transfer(2, odd, whole));
  const auto layers = book.layers_on(b);
  CHECK(model.questions("layer") == 4);
  CHECK(model.questions("update") == 0);
  // Placements that come later have their numbers behind, and what is known stays where it is.
  const auto offered = book.placements(whole.mesh);
  REQUIRE(offered.size() == 3);
  CHECK(offered[0] == b);
  CHECK(offered[2] == 3);
  (void)book.transfer(0, a, offered[2], proximity::other_node);
  CHECK(&there == &book.transfer(0, a, b, proximity::other_node));
  CHECK(layers.data() == book.layers_on(b).data());
}

TEST_CASE("of few layers, updates are asked for once, too") {
  for (const int layers : {1, 2}) {
    CAPTURE(layers);
    const counting_model model{.layers = layers};
    price_book book(model.hardware, model);
    const auto& updates = book.updates(book.find({{0, 1, 1}}));
    CHECK(updates.layers.size() == static_cast<std::size_t>(layers));
    CHECK(updates.first_two == (layers > 1 ? 2 : 0));
    CHECK(updates.all == layers);
    CHECK(model.most_asked() == 1);
  }
}

namespace {

// Sums of gradients by placement and range, layers with unlike ones on unlike devices.
struct ranged_sums : counting_model {
  [[nodiscard]] static double sums_s(layer_range range, const placement& where) {
    double all_s = 0;
    for (int l = range.first; l < range.last; ++l) all_s += l % 2 == where.mesh.subcluster ? 1 : 0.1;
    return all_s / range.size();
  }
  [[nodiscard]] stage_cost stage(layer_range range, const placement& where) const {
    return {.forward_s = 1, .backward_s = 2, .sums_s = sums_s(range, where)};
  }
};

}  // namespace

TEST_CASE("of costs that are no sums of layers, no cut is spared more sums than told") {
  ranged_sums costs;
  costs.is_additive = false;
  double most_s = 0, most_share = 0;
  for (int cuts = 0; cuts < 1 << (costs.layers - 1); ++cuts) {
    double all_s = 0;
    for (int first = 0, last = 1; last <= costs.layers; ++last) {
      if (last < costs.layers && (cuts >> (last - 1) & 1) == 0) continue;
      double stage_s = 0;
      for (const int k : {0, 1}) stage_s = std::max(stage_s, costs.sums_s({first, last}, {{k, 1, 1}}));
      all_s += stage_s;
      most_share = std::max(most_share, stage_s / 3);
      first = last;
    }
    most_s = std::max(most_s, all_s);
  }
  REQUIRE(most_s == 4);  // one stage alone has 0.55
  const auto told = price_book(costs.hardware, costs).most_spared();
  CHECK(told.seconds == doctest::Approx(most_s));
  CHECK(told.share == doctest::Approx(most_share));
}

TEST_CASE("bad answers are refused") {
  const auto hardware = two_kinds();
  const placement slow{{0, 1, 1}}, fast{{1, 1, 1}};
  CHECK_THROWS_WITH_AS(price_book(hardware, stub_costs{}), "a cost model needs at least one layer", input_error);

  stub_costs costs{.layers = {{1, 1}, {1, -1}}, .boundaries = {{-1.0}}};
  price_book book(hardware, costs);
  CHECK_THROWS_WITH_AS((void)book.layers_on(book.find(fast)),
                       "the cost of layer 1 on subcluster fast (1x1) is not finite, or negative", input_error);
  CHECK_THROWS_WITH_AS((void)book.transfer(0, book.find(slow), book.find(fast), proximity::other_node),
                       "transfer of boundary 0 from subcluster slow (1x1) to subcluster fast (1x1) is negative or not a number",
                       input_error);
  CHECK_THROWS_AS((void)book.transfer(0, book.find(slow), book.find(fast), proximity::other_node), input_error);

  stub_costs heavy{.layers = {{1, 1}}, .boundaries = {}};
  heavy.more.margin = -1;
  price_book of_heavy(hardware, heavy);
  CHECK_THROWS_WITH_AS((void)of_heavy.find(slow), "overheads of memory must not be negative", input_error);
  CHECK_THROWS_WITH_AS((void)of_heavy.placements(slow.mesh), "overheads of memory must not be negative", input_error);

  stub_costs sharing{.layers = {{1, 1, 5}, {1, 1, 5}}, .boundaries = {}};
  sharing.shared = {{.owner = 0, .layer = 1, .weight_bytes = 4}};
  price_book of_sharing(hardware, sharing);
  CHECK(of_sharing.stage(of_sharing.find(slow), {0, 2}).weight_bytes == 6);
  CHECK(of_sharing.stage(of_sharing.find(slow), {1, 2}).weight_bytes == 5);
  CHECK(of_sharing[of_sharing.find(fast)].copies == sharing.shared);
  sharing.shared = {{.owner = 0, .layer = 2}};
  price_book of_no_layer(hardware, sharing);
  CHECK_THROWS_WITH_AS((void)of_no_layer.find(slow), "layer 2's copy of parameters of layer 0: expected two of 2 layers",
                       input_error);

  struct interval_model {
    int layer_count() const { return 2; }
    std::vector<placement> placements(const submesh&) const { return {{{0, 1, 4}}}; }
    stage_cost stage(layer_range layers, const placement&) const { return {.forward_s = layers.size() > 1 ? infinity : 1}; }
    double transfer(int, const placement&, const placement&) const { return 0; }
  };
  const interval_model intervals;
  price_book of_intervals(hardware, intervals);
  const int p = of_intervals.find(slow);
  CHECK(of_intervals.stage(p, {1, 2}).forward_s == 1);
  CHECK_THROWS_WITH_AS((void)of_intervals.stage(p, {0, 2}),
                       "the cost of layers 0-1 on subcluster slow (1x1) is not finite, or negative", input_error);
  CHECK_THROWS_WITH_AS((void)of_intervals.placements(slow.mesh),
                       "a cost model's placements must lie on the submesh they were asked for", input_error);
}
