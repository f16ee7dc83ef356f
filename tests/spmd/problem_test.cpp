// SPDX-License-Identifier: Apache-2.0
#include <hetsched/spmd/problem.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

namespace {

using namespace hetsched;

constexpr auto whole = spmd::tensor_form::whole(), partial = spmd::tensor_form::partial();
constexpr spmd::tensor_form cut(int d) { return spmd::tensor_form::cut(d); }

bool has(const tensor_node& n, const spmd::rule& rule) {
  const auto rules = spmd::rules_of(n);
  return std::find(rules.begin(), rules.end(), rule) != rules.end();
}

}  // namespace

TEST_CASE("the rules of a product are those of HAP's figure 9, and parts of sums") {
  tensor_graph g;
  const int x = add_placeholder(g, "x", {4, 6}), w = add_parameter(g, "w", {6, 8});
  const auto& n = g.at(add_matmul(g, "h", x, w));
  CHECK(spmd::rules_of(n).size() == 6);
  CHECK(has(n, {{whole, whole}, whole, false}));
  CHECK(has(n, {{cut(0), whole}, cut(0), true}));
  CHECK(has(n, {{whole, cut(1)}, cut(1), true}));
  CHECK(has(n, {{cut(1), cut(0)}, partial, true}));
  CHECK(has(n, {{partial, whole}, partial, false}));
  CHECK(has(n, {{whole, partial}, partial, false}));
}

TEST_CASE("transposes of a product turn its rules") {
  tensor_graph g;
  const int x = add_placeholder(g, "x", {6, 4}), w = add_parameter(g, "w", {8, 6});
  const auto& n = g.at(add_matmul(g, "h", x, w, true, true));
  CHECK(has(n, {{cut(1), whole}, cut(0), true}));
  CHECK(has(n, {{whole, cut(0)}, cut(1), true}));
  CHECK(has(n, {{cut(0), cut(1)}, partial, true}));
}

TEST_CASE("rows of a softmax are not cut, nor is anything linear in it") {
  tensor_graph g;
  const int x = add_placeholder(g, "x", {4, 6});
  const auto& n = g.at(add_softmax(g, "p", x));
  CHECK(spmd::rules_of(n) == std::vector<spmd::rule>{{{whole}, whole, false}, {{cut(0)}, cut(0), true}});
}

TEST_CASE("a table that is cut by rows gives parts of sums, by columns columns") {
  tensor_graph g;
  const int ids = add_placeholder(g, "ids", {4}), table = add_parameter(g, "table", {10, 6});
  const auto& n = g.at(add_embedding(g, "e", ids, table));
  CHECK(has(n, {{whole, cut(0)}, partial, true}));
  CHECK(has(n, {{whole, cut(1)}, cut(1), true}));
  CHECK(has(n, {{cut(0), whole}, cut(0), true}));
  CHECK(has(n, {{whole, partial}, partial, false}));
}

TEST_CASE("dimensions that are joined are cut into parts that fit all of them") {
  tensor_graph g;
  // Heads: columns of 12 = 3 heads of 4 each can be cut into 3 parts.
  const int x = add_placeholder(g, "x", {8, 12}), w = add_parameter(g, "w", {12, 12});
  const int y = add_matmul(g, "y", x, w), heads = add_reshape(g, "heads", y, {8, 3, 4});
  const auto parts = spmd::cut_parts(g);
  const auto of = [&](int node) { return parts[static_cast<std::size_t>(node)]; };
  CHECK(of(y) == std::vector<std::int64_t>{8, 3});
  CHECK(of(w) == std::vector<std::int64_t>{12, 3});
  CHECK(of(x) == std::vector<std::int64_t>{8, 12});
  CHECK(of(heads)[1] == 3);
}
