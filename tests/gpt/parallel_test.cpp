// SPDX-License-Identifier: Apache-2.0
// Tests examples/gpt/parallel_linear.hpp, examples/gpt/sequence_slices.hpp, examples/gpt/expert_axis.hpp, and the layers made of
// them.
#include <gpt/parallel_linear.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/runtime/group/stage_group.hpp>
#include <hetsched/runtime/layer/layer_stack.hpp>

#include <gpt/batch.hpp>
#include <gpt/model.hpp>

#include "../runtime/group/groups.hpp"
#include "gradient_check.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

std::vector<gpt::config> parallel_configs() {
  const gpt::config plain{.layers = 2, .hidden = 16, .heads = 8, .kv_heads = 4, .ffn_hidden = 12, .sequence = 8, .vocab = 11};
  auto modern = plain;
  modern.norm = gpt::norm_kind::rms;
  modern.activation = gpt::activation_kind::swiglu;
  modern.positions = gpt::position_kind::rotary;
  modern.bias = modern.tied = false;
  auto mixed = modern;
  mixed.heads = 4;
  mixed.kv_heads = 0;
  mixed.bias = mixed.tied = true;
  return {plain, modern, mixed};
}

/// What a rank has of `parts` equal parts: from `first` to before `last`.
struct held_parts {
  std::size_t first, last, parts;
};

/// The part of a whole parameter, or of its gradient, that a rank has.
template <class Real>
gpt::tensor<Real> part_of(const gpt::tensor<Real>& whole, const parameter_cut& cut, const held_parts& held) {
  if (cut.dimension < 0) return whole;
  const std::size_t extent = whole.shape()[static_cast<std::size_t>(cut.dimension)], count = held.last - held.first;
  const auto pieces = cut.pieces.empty() ? std::vector<std::size_t>{extent / held.parts * count} : cut.pieces;
  std::vector<std::size_t> kept;
  std::size_t first = 0;
  for (const auto p : pieces) {
    for (std::size_t i = 0; i < p; ++i) kept.push_back(first + held.first * (p / count) + i);
    first += p / count * held.parts;
  }
  if (first != extent) throw error("pieces do not make up the whole");
  const bool rows = cut.dimension == 0;
  gpt::tensor<Real> own(rows ? kept.size() : whole.rows(), rows ? whole.columns() : kept.size());
  for (std::size_t i = 0; i < own.rows(); ++i)
    for (std::size_t j = 0; j < own.columns(); ++j) own(i, j) = whole(rows ? kept[i] : i, rows ? j : kept[j]);
  return own;
}

/// The rows that the experts of a rank of `parts` have.
template <class Real>
gpt::tensor<Real> experts_of(const gpt::tensor<Real>& all, std::size_t part, std::size_t parts) {
  gpt::tensor<Real> own(all.rows() / parts, all.columns());
  std::copy_n(all.data() + part * own.size(), own.size(), own.data());
  return own;
}
/// And these rows among the others', which are 0.
template <class Real>
gpt::tensor<Real> among_experts(const gpt::tensor<Real>& own, std::size_t part, std::size_t parts) {
  gpt::tensor<Real> all(own.rows() * parts, own.columns());
  std::copy_n(own.data(), own.size(), all.data() + part * own.size());
  return all;
}

/// The largest difference, as a share of the largest number.
template <class Real>
double difference(const gpt::tensor<Real>& a, const gpt::tensor<Real>& b) {
  if (a.shape() != b.shape()) return 1e9;
  double largest = 1e-6, apart = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(b.data()[i])));
    const double here = std::abs(static_cast<double>(a.data()[i]) - static_cast<double>(b.data()[i]));
    if (!(here <= apart)) apart = here;  // none is less than what is no number
  }
  return apart / largest;
}

template <class Real>
using model = layer_list<gpt::tensor<Real>, any_layer<gpt::tensor<Real>>>;

/// One forward and backward of layers [first, last) on one device and on a group, with any group's communicator. Returns the
/// largest difference of initial parameters (which have to be alike), outputs, losses and gradients. `shares`: of the tensor
/// axis.
template <class Real, class Communicator>
double compare(std::vector<Communicator> ends, const gpt::config& m, const degrees& d, int first, int last, int samples,
               const std::vector<double>& shares = {}) {
  using tensor = gpt::tensor<Real>;
  random_source random(m.seed + 100);
  const bool loss = last == gpt::layer_count(m);
  const auto x = first == 0 ? random_tokens<Real>(random, samples * m.sequence, m.vocab)
                            : random_tensor<Real>(random, static_cast<std::size_t>(samples * m.sequence),
                                                  static_cast<std::size_t>(m.hidden));
  const auto targets = random_tokens<Real>(random, samples * m.sequence, m.vocab);
  const auto dy = random_tensor<Real>(random, x.rows(), static_cast<std::size_t>(m.hidden));
  const auto make = [&](const auto& layer) {
    std::vector<any_layer<tensor>> layers;
    for (int l = first; l < last; ++l) layers.push_back(layer(l));
    return model<Real>(std::move(layers));
  };

  auto alone = make([&](int l) { return gpt::make_layer<Real>(m, l); });
  auto context = alone.make_context();
  const tensor y = alone.forward(x, context);
  const auto found = loss ? gpt::cross_entropy(y, targets) : loss_value<tensor>{0, dy};
  const tensor dx = alone.backward(found.gradient, context);

  std::vector<double> worst(ends.size(), 0);
  run_on_threads(std::move(ends), [&](Communicator& comm) {
    std::vector<int> ranks(static_cast<std::size_t>(comm.ranks()));
    std::iota(ranks.begin(), ranks.end(), 0);
    const stage_group<tensor, Communicator> group(comm, ranks, d, {.tensor_shares = shares, .deadline_s = 30});
    const auto mine = [&](const tensor& all) { return gpt::rows_of(all, m.sequence, d, group.place()); };
    double& apart = worst[static_cast<std::size_t>(comm.rank())];
    const auto expect = [&](const tensor& a, const tensor& b) {
      if (!(difference(a, b) <= apart)) apart = difference(a, b);
    };

    auto net = make([&](int l) { return gpt::make_layer<Real>(m, l, group); });
    auto own = net.make_context();
    const auto cuts = net.parameter_cuts();
    const auto parameters = net.parameters(), gradients = net.gradients(), whole = alone.parameters(),
               whole_gradients = alone.gradients();
    if (cuts.size() != whole.size()) throw error("cuts are missing");
    const auto part = static_cast<std::size_t>(group.tensor().rank());
    held_parts tensor_parts{part, part + 1, static_cast<std::size_t>(group.tensor().size())};
    if (!shares.empty()) {
      double before = 0;
      for (std::size_t r = 0; r < part; ++r) before += shares[r];
      tensor_parts.parts = static_cast<std::size_t>(m.key_heads());
      tensor_parts.first = static_cast<std::size_t>(std::lround(before * m.key_heads()));
      tensor_parts.last = static_cast<std::size_t>(std::lround((before + shares[part]) * m.key_heads()));
    }
    const auto expert = static_cast<std::size_t>(group.expert().rank()),
               experts = static_cast<std::size_t>(group.expert().size());
    for (std::size_t n = 0; n < cuts.size(); ++n) {
      auto mine_of = part_of(whole[n].get(), cuts[n], tensor_parts);
      if (cuts[n].over_experts) mine_of = experts_of(mine_of, expert, experts);
      if (parameters[n].get() != mine_of) throw error("another beginning");
    }

    const tensor input = mine(x), own_dy = mine(dy), own_targets = mine(targets);
    const tensor own_y = net.forward(input, own);
    expect(own_y, mine(y));
    const auto value = loss ? gpt::cross_entropy_part(own_y, own_targets, x.rows()) : loss_value<tensor>{0, own_dy};
    expect(net.backward(value.gradient, own), mine(dx));
    std::vector<tensor> once;
    for (const tensor& g : gradients) once.push_back(g);
    for (std::size_t n = 0; n < cuts.size(); ++n) {
      tensor sum = cuts[n].over_experts ? among_experts(gradients[n].get(), expert, experts) : gradients[n].get();
      group.data().all_reduce({sum.data(), sum.size()});
      group.context().all_reduce({sum.data(), sum.size()});
      if (cuts[n].partial_over_tensor) group.tensor().all_reduce({sum.data(), sum.size()});
      expect(sum, part_of(whole_gradients[n].get(), cuts[n], tensor_parts));
    }
    tensor one(1, 1), all(1, 1);
    one(0, 0) = static_cast<Real>(value.value);
    group.data().all_reduce({one.data(), 1});
    group.context().all_reduce({one.data(), 1});
    group.tensor().all_reduce({one.data(), 1});
    all(0, 0) = static_cast<Real>(found.value);
    expect(one, all);

    // Once more in two halves: the same bits.
    for (tensor& g : gradients) std::fill_n(g.data(), g.size(), Real{0});
    if (tensor(net.forward(input, own)) != own_y) throw error("another forward");
    (void)net.backward_input(value.gradient, own);
    net.backward_weight(value.gradient, own);
    for (std::size_t n = 0; n < once.size(); ++n)
      if (gradients[n].get() != once[n]) throw error("halves differ from the whole");
  });
  return *std::max_element(worst.begin(), worst.end());
}

template <class Real>
auto ends_of(const degrees& d) {
  return thread_communicator<gpt::tensor<Real>>::connect(d.device_count());
}

}  // namespace

TEST_CASE("[threads] a block on any tensor and data degrees is the block on one device") {
  for (const auto& m : parallel_configs()) {
    CAPTURE(m);
    for (const degrees d : {degrees{1, 1, 1}, degrees{1, 1, 2}, degrees{1, 1, 4}, degrees{2, 1, 2}}) {
      CAPTURE(d.tensor);
      for (const int samples : {2, 4}) CHECK(compare<double>(ends_of<double>(d), m, d, 1, 2, samples) < 1e-12);
    }
    CHECK(compare<double>(ends_of<double>({1, 1, 2}), m, {1, 1, 2}, 1, 2, 1) < 1e-12);
    CHECK(compare<double>(plain(ends_of<double>({1, 1, 4})), m, {1, 1, 4}, 1, 2, 3) < 1e-12);
    CHECK(compare<float>(ends_of<float>({1, 1, 4}), m, {1, 1, 4}, 1, 2, 3) < 1e-5);
  }
}

TEST_CASE("[threads] a whole GPT on any tensor and data degrees is that on one device") {
  for (const auto& m : parallel_configs()) {
    CAPTURE(m);
    const int last = gpt::layer_count(m);
    for (const degrees d : {degrees{1, 1, 1}, degrees{1, 1, 2}, degrees{1, 1, 4}, degrees{2, 1, 1}, degrees{2, 1, 2}}) {
      CAPTURE(d.data);
      CAPTURE(d.tensor);
      CHECK(compare<double>(ends_of<double>(d), m, d, 0, last, 2) < 1e-12);
    }
    CHECK(compare<double>(plain(ends_of<double>({2, 1, 2})), m, {2, 1, 2}, 0, last, 4) < 1e-12);
    CHECK(compare<float>(ends_of<float>({1, 1, 2}), m, {1, 1, 2}, 0, last, 2) < 1e-5);
  }
}

TEST_CASE("[threads] a block and a whole GPT with unlike numbers of heads on tensor ranks are those on one device") {
  const std::vector<std::pair<degrees, std::vector<double>>> shapes{
      {{1, 1, 2}, {0.75, 0.25}}, {{1, 1, 2}, {0.25, 0.75}}, {{2, 1, 2}, {0.75, 0.25}}, {{1, 2, 2}, {0.25, 0.75}}};
  for (auto m : parallel_configs()) {
    CAPTURE(m);
    for (const auto& [d, shares] : shapes) {
      CAPTURE(d.data);
      CAPTURE(d.context);
      CAPTURE(shares);
      CHECK(compare<double>(ends_of<double>(d), m, d, 1, 2, 2, shares) < 1e-12);
      CHECK(compare<double>(ends_of<double>(d), m, d, 0, gpt::layer_count(m), 2, shares) < 1e-12);
    }
    m.experts = 4;
    CHECK(compare<double>(ends_of<double>({2, 1, 2, 2}), m, {2, 1, 2, 2}, 1, 2, 4, {0.75, 0.25}) < 1e-12);
    m.heads = m.kv_heads = 8;
    m.ffn_hidden = 24;
    m.positions = gpt::position_kind::learned;  // heads of two numbers can turn, too
    CHECK(compare<double>(ends_of<double>({1, 1, 4}), m, {1, 1, 4}, 1, 2, 1, {0.125, 0.5, 0.25, 0.125}) < 1e-12);
  }
}

TEST_CASE("uneven shares that the heads do not allow are refused by name") {
  gpt::config m{.layers = 1, .hidden = 8, .heads = 4, .ffn_hidden = 8, .sequence = 4, .vocab = 7};
  const auto message = [&](const std::vector<double>& shares) {
    std::string found = "accepted";
    run_on_threads(ends_of<double>({1, 1, 2}), [&](auto& comm) {
      const stage_group<gpt::tensor<double>, std::remove_reference_t<decltype(comm)>> group(comm, {0, 1}, {1, 1, 2},
                                                                                            {.tensor_shares = shares});
      try {
        (void)gpt::make_layer<double>(m, 1, group);
      } catch (const input_error& e) {
        if (comm.rank() == 0) found = e.what();
      }
    });
    return found;
  };
  CHECK(message({0.75, 0.25}) == "accepted");
  CHECK(message({0.95, 0.05}) == "gpt: a tensor rank has none of the 4 heads of keys and values");
  CHECK(message({0.5, 0.3, 0.2}) == "gpt: 3 shares for 2 tensor ranks");
  m.ffn_hidden = 6;
  CHECK(message({0.75, 0.25}) == "gpt: ffn_hidden (6) must be divisible by kv_heads (4) for uneven shares of the tensor axis");
  CHECK(message({0.5, 0.5}) == "accepted");
  m.ffn_hidden = 8;
  m.sequence = 5;
  CHECK(message({0.75, 0.25}) == "gpt: sequence (5) must be divisible by the context degree (1) times the tensor degree (2)");
}

TEST_CASE("[threads] a block and a whole GPT whose sequence is cut over a context axis are those on one device") {
  for (const auto& m : parallel_configs()) {
    CAPTURE(m);
    const int last = gpt::layer_count(m);
    for (const degrees d : {degrees{1, 2, 1}, degrees{1, 4, 1}, degrees{1, 2, 2}, degrees{2, 2, 1}, degrees{1, 8, 1}}) {
      CAPTURE(d.data);
      CAPTURE(d.context);
      CAPTURE(d.tensor);
      CHECK(compare<double>(ends_of<double>(d), m, d, 1, 2, 2) < 1e-12);
      if (d.context < 8) CHECK(compare<double>(ends_of<double>(d), m, d, 0, last, 2) < 1e-12);
    }
    CHECK(compare<double>(plain(ends_of<double>({1, 2, 2})), m, {1, 2, 2}, 0, last, 3) < 1e-12);
    CHECK(compare<float>(ends_of<float>({1, 4, 1}), m, {1, 4, 1}, 0, last, 3) < 1e-5);
  }
}

TEST_CASE("[threads] blocks and a GPT whose experts lie on several devices are those on one device") {
  for (auto m : parallel_configs()) {
    m.experts = 4;
    m.moe_every = m.bias ? 1 : 2;
    for (const int per_token : {1, 2, 3}) {
      m.experts_per_token = per_token;
      CAPTURE(m);
      for (const degrees d : {degrees{1, 1, 1}, degrees{2, 1, 1, 2}, degrees{4, 1, 1, 2}, degrees{4, 1, 1, 4},
                              degrees{2, 1, 2, 2}, degrees{2, 2, 1, 2}, degrees{2, 1, 2, 1}}) {
        if (per_token != 2 && d.data * d.tensor != 4) continue;
        CAPTURE(d.data);
        CAPTURE(d.context);
        CAPTURE(d.tensor);
        CAPTURE(d.expert);
        CHECK(compare<double>(ends_of<double>(d), m, d, m.moe_every, m.moe_every + 1, 4) < 1e-12);
        if (per_token == 2) CHECK(compare<double>(ends_of<double>(d), m, d, 0, gpt::layer_count(m), 4) < 1e-12);
      }
    }
    CHECK(compare<double>(plain(ends_of<double>({2, 1, 2, 2})), m, {2, 1, 2, 2}, 0, gpt::layer_count(m), 2) < 1e-12);
    CHECK(compare<float>(ends_of<float>({4, 1, 1, 4}), m, {4, 1, 1, 4}, 0, gpt::layer_count(m), 4) < 1e-4);
  }
  CHECK_THROWS_WITH_AS(gpt::validate({.experts = 6}, 1, 1, 4), "gpt: experts (6) must be divisible by the expert degree (4)",
                       input_error);
}

TEST_CASE("one device's cuts are of whole parameters, and heads, columns and positions have to be divisible") {
  gpt::config m{.layers = 1, .hidden = 8, .heads = 4, .kv_heads = 2, .ffn_hidden = 6, .sequence = 4, .vocab = 7};
  auto block = gpt::make_layer<double>(m, 1);
  const auto cuts = block.parameter_cuts();
  const parameter_cut partial{.dimension = -1, .partial_over_tensor = true, .pieces = {}};
  const parameter_cut qkv{.dimension = 1, .partial_over_tensor = false, .pieces = {8, 4, 4}};
  const parameter_cut columns{.dimension = 1, .partial_over_tensor = false, .pieces = {}};
  const parameter_cut rows{.dimension = 0, .partial_over_tensor = false, .pieces = {}};
  CHECK(cuts == std::vector{partial, partial, qkv, qkv, rows, partial, partial, partial, columns, columns, rows, partial});

  const auto message = [&](const gpt::config& c, int degree) {
    try {
      gpt::validate(c, degree);
    } catch (const input_error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  CHECK(message(m, 2) == "accepted");
  CHECK(message(m, 3) == "gpt: heads (4) must be divisible by the tensor degree (3)");
  CHECK(message(m, 4) == "gpt: kv_heads (2) must be divisible by the tensor degree (4)");
  m.kv_heads = 4;
  CHECK(message(m, 4) == "gpt: ffn_hidden (6) must be divisible by the tensor degree (4)");
  m.ffn_hidden = 8;
  m.sequence = 6;
  CHECK(message(m, 4) == "gpt: sequence (6) must be divisible by the tensor degree (4)");
  CHECK_THROWS_WITH_AS(gpt::validate(m, 2, 2),
                       "gpt: sequence (6) must be divisible by the context degree (2) times the tensor degree (2)", input_error);
}

TEST_CASE("rows of a microbatch go to the ranks that work on them") {
  gpt::tensor<double> all(2 * 4, 1);  // two samples of four tokens
  std::iota(all.data(), all.data() + all.size(), 0.0);
  const auto of = [&](const degrees& d, const stage_place& p) {
    const auto own = gpt::rows_of(all, 4, d, p);
    return std::vector<double>(own.data(), own.data() + own.size());
  };
  CHECK(of({1, 1, 1}, {}) == std::vector<double>{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(of({1, 1, 2}, {.tensor = 1}) == std::vector<double>{2, 3, 6, 7});
  CHECK(of({2, 1, 1}, {.data = 1}) == std::vector<double>{4, 5, 6, 7});
  CHECK(of({2, 1, 2}, {.data = 1, .tensor = 0}) == std::vector<double>{4, 5});
  CHECK_THROWS_AS(of({1, 1, 3}, {}), input_error);
  CHECK_THROWS_AS(of({4, 1, 1}, {}), input_error);
  CHECK(of({1, 2, 1}, {.context = 1}) == std::vector<double>{2, 3, 6, 7});
  CHECK(of({2, 2, 2}, {.data = 1, .context = 1, .tensor = 0}) == std::vector<double>{6});
  CHECK_THROWS_AS(of({1, 3, 1}, {}), input_error);
}
