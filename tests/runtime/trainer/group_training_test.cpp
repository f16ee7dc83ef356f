// SPDX-License-Identifier: Apache-2.0
// Trainings whose stages are groups of data ranks, against one device that adds in the same order.
#include <hetsched/runtime/trainer/trainer.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/cost/memory/memory.hpp>
#include <hetsched/runtime/group/any_communicator.hpp>
#include <hetsched/runtime/group/stage_group.hpp>
#include <hetsched/runtime/trainer/train_on_threads.hpp>

#include "../../sanitizer_share.hpp"
#include "../group/groups.hpp"
#include "../packed_layers.hpp"
#include "../set_groups.hpp"
#include "../training.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using tensor = matrix<double>;
using channel = thread_communicator<tensor>;
using layout_type = hetsched::layout;
constexpr double rate = 0.05;

tensor rows_of(const tensor& all, interval rows) {
  tensor part(static_cast<std::size_t>(rows.size()), all.columns());
  for (std::size_t i = 0; i < part.rows(); ++i)
    for (std::size_t j = 0; j < part.columns(); ++j) part(i, j) = all(static_cast<std::size_t>(rows.first) + i, j);
  return part;
}
void put_rows(tensor& all, const tensor& part, interval rows) {
  for (std::size_t i = 0; i < part.rows(); ++i)
    for (std::size_t j = 0; j < part.columns(); ++j) all(static_cast<std::size_t>(rows.first) + i, j) = part(i, j);
}

training_layout grouped(int layers, schedule order, int microbatch_size, const std::vector<degrees>& groups) {
  auto t = even_layout(layers, std::move(order), microbatch_size);
  test::set_groups(t.pipelines[0], &group_layout::degrees, groups);
  validate(t);
  return t;
}

struct result {
  std::vector<double> losses;
  std::vector<std::vector<tensor>> parameters;
};

/// One pipeline of one direction: each data rank of a stage adds up its rows of all microbatches, then ranks are added up.
result alone(const toy<double>& t, const training_layout& layout, int steps) {
  const auto& line = layout.pipelines[0];
  std::vector<any_layer<tensor>> net;
  std::vector<int> data_of, group_of;
  for (std::size_t s = 0; s < line.stages.size(); ++s)
    for (int l = line.stages[s].layers.first; l < line.stages[s].layers.last; ++l) {
      net.push_back(t.make(l));
      group_of.push_back(line.order.rank(0, static_cast<int>(s)));
      data_of.push_back(line.degrees_of(group_of.back()).data);
    }
  result found;
  const int rows = line.microbatch_size;
  for (int step = 0; step < steps; ++step) {
    double loss = 0;
    std::vector<std::vector<tensor>> sums(net.size());  // by data rank
    for (std::size_t l = 0; l < net.size(); ++l) {
      const auto& g = net[l].gradients()[0].get();
      sums[l].assign(static_cast<std::size_t>(data_of[l]), tensor(g.rows(), g.columns()));
    }
    for (int m = 0; m < line.order.microbatches; ++m) {
      const auto [input, target] = t.batch(layout, step, 0, m);
      std::vector<tensor> outputs{input};
      for (auto& layer : net) {
        auto context = layer.make_context();
        outputs.push_back(layer.forward(outputs.back(), context));
      }
      tensor gradient(target.rows(), target.columns());
      double here = 0;
      for (int d = 0; d < data_of.back(); ++d) {
        const auto part = line.samples_of(group_of.back(), d);
        auto one = toy<double>::loss(rows_of(outputs.back(), part), rows_of(target, part));
        const double share = static_cast<double>(part.size()) / rows;
        if (share != 1) detail::scale(one.gradient, share);
        here += share * one.value;
        put_rows(gradient, one.gradient, part);
      }
      loss += here;
      for (std::size_t l = net.size(); l-- > 0;) {
        tensor next(outputs[l].rows(), outputs[l].columns());
        for (int d = 0; d < data_of[l]; ++d) {
          const auto part = line.samples_of(group_of[l], d);
          auto& own = net[l].gradients()[0].get();
          std::swap(own, sums[l][static_cast<std::size_t>(d)]);
          const auto x = rows_of(outputs[l], part);
          auto context = net[l].make_context();
          (void)net[l].forward(x, context);
          put_rows(next, net[l].backward(rows_of(gradient, part), context), part);
          std::swap(own, sums[l][static_cast<std::size_t>(d)]);
        }
        gradient = std::move(next);
      }
    }
    for (std::size_t l = 0; l < net.size(); ++l) {
      auto sum = sums[l][0];
      for (std::size_t d = 1; d < sums[l].size(); ++d) detail::add(sum, sums[l][d]);
      if (line.order.microbatches > 1) detail::scale(sum, 1.0 / line.order.microbatches);
      std::vector<tensor> kept;
      plain_sgd<double>(rate, 0, 0)(net[l].parameters()[0].get(), sum, kept, 1);
    }
    found.losses.push_back(loss / line.order.microbatches);
  }
  for (auto& layer : net) found.parameters.push_back(copies_of<double>(layer.parameters()));
  return found;
}

tensor_shape toy_shape(int, int rows) { return {static_cast<std::size_t>(rows), toy<double>::width}; }

template <class MakeLayer, class Optimizer = sgd, class Shape = decltype(&toy_shape)>
std::vector<result> on_devices(const toy<double>& t, const training_layout& layout, int steps, MakeLayer make_layer,
                               const trainer_options& options = {}, const Optimizer& optimizer = {.learning_rate = rate},
                               const std::vector<training_layout>& moves = {}, Shape shape = &toy_shape) {
  std::vector<result> all(static_cast<std::size_t>(layout.ranks()));
  hetsched::run_on_threads(channel::connect(layout.ranks()), [&](channel& comm) {
    auto trainer = hetsched::make_trainer<tensor>(layout, make_layer, shape, comm, optimizer, options);
    auto& own = all[static_cast<std::size_t>(comm.rank())];
    own.parameters.resize(static_cast<std::size_t>(t.layers));
    const auto p = static_cast<std::size_t>(layout.pipeline_of(comm.rank()));
    for (int i = 0; i < steps; ++i) {
      if (i > 0 && i <= static_cast<int>(moves.size()))
        trainer.move_layers(moves[static_cast<std::size_t>(i - 1)], make_layer, shape);
      std::vector<tensor> inputs, targets;
      for (int m = 0; m < trainer.pipeline().order.microbatches; ++m) {
        const auto [input, target] = t.batch(layout, trainer.committed_step(), p, m);
        inputs.push_back(rows_of(input, trainer.samples()));
        targets.push_back(rows_of(target, trainer.samples()));
      }
      own.losses.push_back(
          trainer.step(std::span<const tensor>(inputs), std::span<const tensor>(targets), toy<double>::loss).loss);
    }
    for (const auto& [number, layer] : trainer.layers())
      own.parameters[static_cast<std::size_t>(number)] = copies_of<double>(layer->parameters());
  });
  return all;
}

void check_same(const std::vector<result>& all, const result& expected) {
  for (const auto& r : all) {
    CHECK(r.losses == expected.losses);
    for (std::size_t l = 0; l < expected.parameters.size(); ++l)
      if (!r.parameters[l].empty()) CHECK(r.parameters[l] == expected.parameters[l]);
  }
}

std::vector<degrees> data_only(const std::vector<int>& counts) {
  std::vector<degrees> groups;
  for (const int n : counts) groups.push_back({.data = n});
  return groups;
}

}  // namespace

TEST_CASE("[threads] groups of data ranks give the bits of one device that adds as they do") {
  const toy<double> t{.layers = 12};
  const auto make = [&](int l) { return t.make(l); };
  const std::vector<std::vector<int>> shapes{{2, 1, 3}, {1, 2}, {3, 2}, {2, 2}, {1, 1, 1}, {6, 1}, {1, 6, 2}};
  for (const auto& counts : shapes)
    for (const auto* name : {"gpipe", "1f1b", "zb_v", "interleaved_1f1b"}) {
      CAPTURE(name);
      CAPTURE(counts.size());
      const int ranks = static_cast<int>(counts.size());
      auto layout = grouped(t.layers, schedule_of(name, ranks, 2 * ranks), 6, data_only(counts));
      const auto expected = alone(t, layout, 3);
      check_same(on_devices(t, layout, 3, make), expected);
      for (const auto how : all_reshard_strategies) {
        if (how != reshard_strategy::leader_broadcast && std::string_view(name) != "1f1b") continue;
        test::set_reshard(layout.pipelines[0], how);
        check_same(on_devices(t, layout, 1, make), alone(t, layout, 1));
      }
    }
}

TEST_CASE("[threads] data ranks with uneven shares give the bits of one device that weights and adds as they do") {
  const toy<double> t{.layers = 8};
  const auto make = [&](int l) { return t.make(l); };
  random_source random(7);
  for (int run = 0; run < 40 / sanitizer_share; ++run) {
    const int ranks = static_cast<int>(random.integer(1, 3)), size = static_cast<int>(random.integer(3, 7));
    const auto* name = std::vector{"gpipe", "1f1b", "zb_v"}[static_cast<std::size_t>(random.integer(0, 2))];
    std::vector<degrees> groups;
    std::vector<std::vector<std::int64_t>> points;
    for (int g = 0; g < ranks; ++g) {
      groups.push_back({.data = static_cast<int>(random.integer(1, 3))});
      std::vector<double> shares;
      for (int d = 0; d < groups.back().data; ++d) shares.push_back(random.uniform(1, 1.5));
      points.push_back(cut_points(size, shares));
    }
    CAPTURE(run);
    CAPTURE(name);
    CAPTURE(points);
    auto layout = even_layout(t.layers, schedule_of(name, ranks, 3), size);
    test::set_groups(layout.pipelines[0], &group_layout::degrees, groups);
    test::set_groups(layout.pipelines[0], &group_layout::sample_points, points);
    test::set_reshard(layout.pipelines[0], all_reshard_strategies[static_cast<std::size_t>(random.integer(0, 7))]);
    check_same(on_devices(t, layout, 2, make), alone(t, layout, 2));
  }
}

TEST_CASE("[threads] three tensors of three types between stages: the bits of layers that hand them on by themselves") {
  const three_parts net{};
  const toy<double> t{.layers = net.layers};
  const auto make = [&](int l) { return net.make(l); };
  for (const std::vector<int>& counts : std::vector<std::vector<int>>{{1}, {1, 1}, {1, 1, 1}, {2, 1, 3}, {3, 2}})
    for (const auto* name : {"gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_v"}) {
      CAPTURE(name);
      CAPTURE(counts);
      const int ranks = static_cast<int>(counts.size());
      auto layout = grouped(net.layers, schedule_of(name, ranks, 2 * ranks), 6, data_only(counts));
      if (ranks == 2)
        for (auto& g : layout.pipelines[0].groups) g.recompute = recomputation::full;
      const auto [losses, weights] = net.alone(layout, 3, rate);
      result expected{losses, {}};
      for (const auto& w : weights) expected.parameters.push_back({w});
      check_same(on_devices(t, layout, 3, make, {}, sgd{.learning_rate = rate}, {}, &three_parts::shape_after), expected);
    }
}

TEST_CASE("[threads] ranges of tensors whose number and lengths change with the microbatch") {
  using list = std::vector<tensor>;
  // Sequences of several lengths: each layer adds a part, the weighted sum of those before it; the last one is the output.
  struct adding {
    struct context {
      const list* input = nullptr;
    };
    list forward(const list& x, context& c) {
      c.input = &x;
      list y = x;
      auto& made = y.emplace_back(x[0].rows(), x[0].columns());
      for (const auto& part : x)
        for (std::size_t k = 0; k < made.rows() * made.columns(); ++k) made.data()[k] += weights[0](0, 0) * part.data()[k];
      return y;
    }
    list backward(const list& dy, context& c) {
      list dx(dy.begin(), dy.end() - 1);
      for (std::size_t p = 0; p < dx.size(); ++p)
        for (std::size_t k = 0; k < dx[p].rows() * dx[p].columns(); ++k) {
          sums[0](0, 0) += dy.back().data()[k] * (*c.input)[p].data()[k];
          dx[p].data()[k] += weights[0](0, 0) * dy.back().data()[k];
        }
      return dx;
    }
    list& parameters() { return weights; }
    list& gradients() { return sums; }
    list weights, sums;
  };
  struct begin : adding {
    list forward(const tensor& x, context&) { return {x}; }
    tensor backward(const list& dy, context&) { return dy[0]; }
  };
  struct end : adding {
    tensor forward(const list& x, context& c) {
      c.input = &x;
      return x.back();
    }
    list backward(const tensor& dy, context& c) {
      list dx;
      for (const auto& part : *c.input) dx.emplace_back(part.rows(), part.columns());
      dx.back() = dy;
      return dx;
    }
  };
  constexpr int layers = 4;
  constexpr std::size_t longest = 5;
  const auto own = [](int l, auto layer) {
    layer.weights.assign(1, tensor(1, 1)), layer.sums.assign(1, tensor(1, 1));
    layer.weights[0](0, 0) = 0.5 + 0.25 * l;
    return layer;
  };
  const auto behind = [](int l, int rows) {
    return packed_shape<tensor, list>(
        std::vector<tensor_shape>(static_cast<std::size_t>(l) + 1, {static_cast<std::size_t>(rows), longest}));
  };
  const auto make = [&](int l) -> any_layer<tensor> {
    const packed_room room{.output = behind(l, 1).output[1], .input_gradient = l > 0 ? behind(l - 1, 1).gradient[1] : 0};
    if (l == 0) return packed_layer<tensor, tensor, list, begin>(own(l, begin{}), room);
    if (l + 1 == layers) return packed_layer<tensor, list, tensor, end>(own(l, end{}), room);
    return packed_layer<tensor, list, list, adding>(own(l, adding{}), room);
  };
  const auto length = [](std::int64_t step, int m) {
    return 1 + (static_cast<std::size_t>(step) * 2 + static_cast<std::size_t>(m)) % longest;
  };
  constexpr int steps = 4, microbatches = 4, rows = 6;
  const auto row = [&](std::int64_t step, int m, std::size_t first, std::size_t count) {
    tensor x(count, length(step, m));
    for (std::size_t k = 0; k < x.rows() * x.columns(); ++k)
      x.data()[k] = static_cast<double>((first * x.columns() + k) % 7) - 2 + 0.125 * m;
    return x;
  };
  // The output is x w1 (1 + w2), of the weights of layers 1 and 2.
  std::vector<double> losses;
  double w1 = 0.75, w2 = 1;
  for (int step = 0; step < steps; ++step) {
    double loss = 0, d1 = 0, d2 = 0;
    for (int m = 0; m < microbatches; ++m) {
      const auto x = row(step, m, 0, rows);
      for (std::size_t k = 0; k < x.rows() * x.columns(); ++k) {
        const double y = x.data()[k] * (w2 + w1 * w2);
        loss += 0.5 * y * y / rows / microbatches;
        d1 += y / rows / microbatches * x.data()[k] * w2;
        d2 += y / rows / microbatches * x.data()[k] * (1 + w1);
      }
    }
    losses.push_back(loss);
    w1 -= 0.01 * d1, w2 -= 0.01 * d2;
  }
  const auto squares = [](const tensor& y, const tensor& nothing) {
    return toy<double>::loss(y, tensor(y.rows(), y.columns() + 0 * nothing.rows()));
  };
  for (const std::vector<int>& counts : std::vector<std::vector<int>>{{1}, {1, 1, 1}, {2, 3}}) {
    const int ranks = static_cast<int>(counts.size());
    const auto layout =
        grouped(layers, schedule_of(ranks == 1 ? "gpipe" : "zb_h1", ranks, microbatches), rows, data_only(counts));
    hetsched::run_on_threads(channel::connect(layout.ranks()), [&](channel& comm) {
      auto trainer = hetsched::make_trainer<tensor>(layout, make, behind, comm, sgd{.learning_rate = 0.01});
      for (int step = 0; step < steps; ++step) {
        std::vector<tensor> inputs;
        for (int m = 0; m < microbatches; ++m)
          inputs.push_back(row(step, m, static_cast<std::size_t>(trainer.samples().first),
                               static_cast<std::size_t>(trainer.samples().size())));
        const double loss = trainer.step(std::span<const tensor>(inputs), std::span<const tensor>(inputs), squares).loss;
        if (std::abs(loss - losses[static_cast<std::size_t>(step)]) > 1e-12 * (1 + loss)) throw error("another loss");
      }
    });
  }
}

TEST_CASE("[threads] half_squares is the same loss for any number of data ranks") {
  const toy<double> t;
  const auto make = [&](int l) { return t.make(l); };
  const auto loss_of = [&](int data) {
    const auto layout = grouped(t.layers, gpipe(1, 1), 4, data_only({data}));
    const auto step = [&](auto& trainer, int) {
      matrix<double> own(4u / static_cast<unsigned>(data), toy<double>::width);
      std::fill_n(own.data(), own.rows() * own.columns(), 0.25);
      const std::vector<matrix<double>> inputs{own}, targets{matrix<double>(own.rows(), toy<double>::width)};
      return trainer.step(inputs, targets, half_squares());
    };
    return train_on_threads<matrix<double>>(layout, make, {4, toy<double>::width}, 2, step, sgd{.learning_rate = 0.1}).back();
  };
  const auto one = loss_of(1), two = loss_of(2);
  CHECK(one.loss > 0);
  CHECK(two.loss == doctest::Approx(one.loss).epsilon(1e-12));
  CHECK(two.gradient_norm == doctest::Approx(one.gradient_norm).epsilon(1e-12));
}

TEST_CASE("packed parts that do not fit, and what holds none, are told") {
  using parts = three_parts::parts;
  const auto why = [](auto&& body) {
    try {
      body();
    } catch (const input_error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const auto behind = three_parts::shape_after(0, 4);
  // 28 bytes of header, then 3 x 8, 2 x 4 and 8; back 24 and all but the mask.
  CHECK(behind == boundary_shape({4, 9}, {4, 7}));
  packed_layer<tensor, tensor, parts, three_parts::first> first(three_parts::first(0));
  packed_layer<tensor, parts, tensor, three_parts::last> last(three_parts::last(1));
  auto a = first.make_context();
  auto b = last.make_context();
  const tensor x(4, 3);
  const tensor between = first.forward(x, a);
  CHECK(detail::shape_of(between) == behind.output);
  const tensor y = last.forward(between, b);
  CHECK(detail::shape_of(last.backward(y, b)) == behind.gradient);
  CHECK_NOTHROW((void)first.backward(between, a));  // as a profile does, whose gradients are of no meaning
  CHECK(why([&] { (void)last.forward(x, b); }) == "the input is not of packed parts: found 0, expected 3");
  CHECK(why([&] { (void)last.forward(tensor(0, 9), b); }) ==
        "the input is of the shape 0 x 9, expected are rows of packed parts");
  CHECK(why([&] { (void)last.forward(last.backward(y, b), b); }) == "part 2 of the input has been left out");
  CHECK(why([&] { (void)packed_shape<tensor, parts>({{4, 3}, {4, 2}}); }) == "shapes of 2 parts, expected are 3");
  CHECK(why([&] {
          (void)packed_shape<tensor, parts>({{4, 3}, {4, 2}, {3, 1}});
        }) == "part 2 of the boundary is of the shape 3 x 1, expected are 4 rows, as the others have");
  packed_layer<tensor, tensor, parts, three_parts::first> narrow(three_parts::first(0), {.output = 5});
  auto c = narrow.make_context();
  CHECK(why([&] { (void)narrow.forward(x, c); }) ==
        "the parts of the output take 9 elements a row, more than the boundary has room for, 5");
  // A header that says more than its rows hold.
  tensor wrong = between;
  std::uint32_t extent = 1u << 31;
  std::memcpy(reinterpret_cast<std::byte*>(wrong.data()) + 8, &extent, sizeof extent);
  CHECK(why([&] { (void)last.forward(wrong, b); }) == "the input is not of packed parts: part 0 is longer than its rows");
  // A row of another sender, whose parts are shorter.
  wrong = between;
  extent = 2;
  std::memcpy(reinterpret_cast<std::byte*>(wrong.data() + 9) + 8, &extent, sizeof extent);
  CHECK(why([&] { (void)last.forward(wrong, b); }) ==
        "the input is not of packed parts: row 1 has parts of other shapes than row 0");
}

TEST_CASE("[threads] shares of the state that ZeRO shares out change no bit, and each rank holds its share") {
  const toy<double> t{.layers = 8};
  random_source random(13);
  for (int run = 0; run < 20 / sanitizer_share + 1; ++run) {
    const int ranks = static_cast<int>(random.integer(1, 2)), data = static_cast<int>(random.integer(2, 4));
    auto layout =
        grouped(t.layers, schedule_of("1f1b", ranks, 3), 12, data_only(std::vector<int>(static_cast<std::size_t>(ranks), data)));
    const auto train = [&](const training_layout& by) {
      std::vector<std::vector<tensor>> parameters(static_cast<std::size_t>(t.layers));
      std::vector<double> state(static_cast<std::size_t>(by.ranks()));
      std::mutex guard;
      hetsched::run_on_threads(channel::connect(by.ranks()), [&](channel& comm) {
        auto trainer = hetsched::make_trainer<tensor>(
            by, [&](int l) { return t.make(l); },
            [](int, int rows) {
              return tensor_shape{static_cast<std::size_t>(rows), toy<double>::width};
            },
            comm, adamw{.learning_rate = rate}, {.bucket_bytes = 64});
        for (int i = 0; i < 2; ++i) {
          std::vector<tensor> inputs, targets;
          for (int m = 0; m < 3; ++m) {
            const auto [input, target] = t.batch(by, i, 0, m);
            inputs.push_back(rows_of(input, trainer.samples()));
            targets.push_back(rows_of(target, trainer.samples()));
          }
          (void)trainer.step(std::span<const tensor>(inputs), std::span<const tensor>(targets), toy<double>::loss);
        }
        const std::lock_guard lock(guard);
        state[static_cast<std::size_t>(comm.rank())] = static_cast<double>(trainer.held().optimizer);
        if (trainer.place().data == 0)
          for (const auto& [number, layer] : trainer.layers())
            parameters[static_cast<std::size_t>(number)] = copies_of<double>(layer->parameters());
      });
      return std::pair{parameters, state};
    };
    const auto [expected, whole] = train(layout);
    for (auto& g : layout.pipelines[0].groups) g.zero = 1 + run % 2;
    std::vector<double> shares;
    double all = 0;
    for (int d = 0; d < data; ++d) all += shares.emplace_back(d == 1 && run % 3 == 0 ? 0.0 : random.uniform(0.2, 1));
    for (auto& s : shares) s /= all;
    for (auto& g : layout.pipelines[0].groups) g.state_shares = shares;
    validate(layout);
    CAPTURE(run);
    CAPTURE(shares);
    const auto [got, state] = train(layout);
    CHECK(got == expected);
    for (int r = 0; r < layout.ranks(); ++r) {
      const double share = shares[static_cast<std::size_t>(layout.place_of(r).data)];
      // Buckets of 8 elements with two moments each.
      CHECK(std::abs(state[static_cast<std::size_t>(r)] - share * whole[static_cast<std::size_t>(r)]) <= 2 * 8 * 16);
      if (share == 0) CHECK(state[static_cast<std::size_t>(r)] == 0);
    }
  }
}

namespace {

using state_elements = std::map<std::pair<int, std::string>, std::map<std::size_t, std::vector<std::byte>>>;

/// A training's losses, that of a batch beside it, and all elements of its state.
struct told {
  std::vector<double> losses;
  state_elements state;
  friend bool operator==(const told&, const told&) = default;
};

void add_state(state_elements& all, const std::vector<state_slice>& slices) {
  for (const auto& s : slices) {
    const std::size_t each = s.element == "i64" ? sizeof(std::int64_t) : sizeof(double);
    const std::size_t rows = s.rows, length = (s.bytes.size() / each - (rows - 1) * s.held_apart);
    for (std::size_t row = 0; row < rows; ++row)
      for (std::size_t k = 0; k < length; ++k) {
        const auto from = s.bytes.subspan((row * s.held_apart + k) * each, each);
        auto& element = all[{s.layer, s.name}][s.first + row * s.apart + k];
        if (!element.empty()) FAIL_CHECK("an element of " << s.name << " is on two ranks");
        element.assign(from.begin(), from.end());
      }
  }
}

template <class MakeLayer>
told train_by(const toy<double>& t, const training_layout& by, int steps, MakeLayer make,
              const std::vector<training_layout>& moves = {}) {
  told all;
  std::mutex guard;
  hetsched::run_on_threads(channel::connect(by.ranks()), [&](channel& comm) {
    auto trainer = hetsched::make_trainer<tensor>(by, make, toy_shape, comm, adamw{.learning_rate = rate},
                                                  {.clip_norm = 0.5, .ties = t.ties, .bucket_bytes = 64});
    const auto batch = [&](std::int64_t step) {
      std::pair<std::vector<tensor>, std::vector<tensor>> made;
      for (int m = 0; m < trainer.pipeline().order.microbatches; ++m) {
        const auto [input, target] = t.batch(by, step, 0, m);
        made.first.push_back(rows_of(input, trainer.samples()));
        made.second.push_back(rows_of(target, trainer.samples()));
      }
      return made;
    };
    std::vector<double> losses;
    for (int i = 0; i < steps; ++i) {
      if (i > 0 && i <= static_cast<int>(moves.size()))
        trainer.move_layers(moves[static_cast<std::size_t>(i - 1)], make, toy_shape);
      const auto more = batch(100 + i), last = batch(i);
      trainer.accumulate(std::span<const tensor>(more.first), std::span<const tensor>(more.second), toy<double>::loss);
      losses.push_back(
          trainer.step(std::span<const tensor>(last.first), std::span<const tensor>(last.second), toy<double>::loss).loss);
      const auto beside = batch(50 + i);
      losses.push_back(
          trainer.evaluate(std::span<const tensor>(beside.first), std::span<const tensor>(beside.second), toy<double>::loss));
    }
    const bool gathers = trainer.pipeline().group(trainer.place().group).zero == 3 && trainer.group().data > 1;
    const auto tied = [&](int l) {
      return std::any_of(t.ties.begin(), t.ties.end(),
                         [&](const parameter_tie& both) { return both.first.layer == l || both.second.layer == l; });
    };
    for (const auto& [number, layer] : trainer.layers())
      for (const tensor& p : layer->parameters()) CHECK((p.rows() == 0) == (gathers && !tied(number)));
    const std::lock_guard lock(guard);
    if (all.losses.empty()) all.losses = losses;
    CHECK(losses == all.losses);
    add_state(all.state, trainer.state(true));
  });
  return all;
}

}  // namespace

TEST_CASE("[threads] stages that gather parameters for each use have the bits of those that keep them whole") {
  const toy<double> plain{.layers = 9}, tied{.layers = 9, .ties = {{{0, 0}, {6, 0}}}};
  random_source random(31);
  for (int run = 0; run < (sanitizer_share > 1 ? 2 : 6); ++run) {
    const auto& t = run % 3 == 1 ? tied : plain;
    const auto make = [&](int l) { return t.make(l); };
    const int ranks = static_cast<int>(random.integer(1, 3));
    const auto* name = std::vector{"1f1b", "gpipe", "zb_v", "interleaved_1f1b"}[as_size(ranks > 1 ? run % 4 : run % 2)];
    std::vector<int> data;
    for (int r = 0; r < ranks; ++r) data.push_back(static_cast<int>(random.integer(r == 0 ? 2 : 1, 4)));
    const auto whole = grouped(t.layers, schedule_of(name, ranks, 2 * ranks), 12, data_only(data));
    auto gathering = whole;
    for (auto& g : gathering.pipelines[0].groups) {
      g.zero = &g == &gathering.pipelines[0].groups.front() ? 3 : static_cast<int>(random.integer(0, 3));
      if (random.integer(0, 2) == 0) g.recompute = recomputation::full;
      if (random.integer(0, 2) > 0) continue;
      g.state_shares.assign(as_size(g.degrees.data), 1.0 / g.degrees.data);
      if (g.degrees.data == 2) g.state_shares = {1, 0};
    }
    CAPTURE(run);
    CAPTURE(name);
    CHECK(train_by(t, gathering, 2, make) == train_by(t, whole, 2, make));
    if (run % 2 == 0) continue;
    auto moved = gathering;
    auto& stages = moved.pipelines[0].stages;
    if (stages.size() > 1 && stages[0].layers.last < stages[1].layers.last - 1) stages[1].layers.first = ++stages[0].layers.last;
    CHECK(train_by(t, gathering, 3, make, {moved, whole}) == train_by(t, whole, 3, make, {moved, gathering}));
  }
}

namespace {

/// Bytes of this thread's tensors.
thread_local std::size_t live = 0;

template <class T>
struct counting_allocator {
  using value_type = T;
  counting_allocator() = default;
  template <class U>
  counting_allocator(const counting_allocator<U>&) {}  // NOLINT: as allocators convert
  T* allocate(std::size_t n) {
    live += n * sizeof(T);
    return std::allocator<T>().allocate(n);
  }
  void deallocate(T* p, std::size_t n) {
    live -= n * sizeof(T);
    std::allocator<T>().deallocate(p, n);
  }
  friend bool operator==(const counting_allocator&, const counting_allocator&) { return true; }
};

struct counted_tensor {
  using value_type = double;
  counted_tensor() = default;
  explicit counted_tensor(const tensor_shape& s) : extents{s.at(0), s.at(1)}, values(s[0] * s[1]) {}
  [[nodiscard]] const std::array<std::size_t, 2>& shape() const { return extents; }
  [[nodiscard]] double* data() { return values.data(); }
  [[nodiscard]] const double* data() const { return values.data(); }
  std::array<std::size_t, 2> extents{};
  std::vector<double, counting_allocator<double>> values;
};

/// y = x w, element by element of a row.
struct weighted {
  struct context {
    const counted_tensor* x = nullptr;
  };
  explicit weighted(std::size_t n) : weight{counted_tensor({1, n})}, sum{counted_tensor({1, n})} {
    std::fill(weight[0].values.begin(), weight[0].values.end(), 1.5);
  }
  counted_tensor forward(const counted_tensor& x, context& c) {
    c.x = &x;
    on_forward();
    CHECK(known == weight[0].values.at(0));
    auto y = x;
    for (std::size_t k = 0; k < y.values.size(); ++k) y.values[k] *= weight[0].values[k % weight[0].values.size()];
    return y;
  }
  counted_tensor backward(const counted_tensor& dy, context& c) {
    auto dx = dy;
    for (std::size_t k = 0; k < dx.values.size(); ++k) {
      const auto column = k % weight[0].values.size();
      sum[0].values[column] += dy.values[k] * c.x->values[k];
      dx.values[k] *= weight[0].values[column];
    }
    return dx;
  }
  void parameters_changed() { known = weight[0].values.at(0); }
  std::array<counted_tensor, 1>& parameters() { return weight; }
  std::array<counted_tensor, 1>& gradients() { return sum; }
  std::array<counted_tensor, 1> weight, sum;
  double known = 1.5;  ///< what it makes of its parameter
  std::function<void()> on_forward;
};

constexpr std::size_t weights = 8192;  // 64 KiB a layer: a part for each of four ranks

template <class Communicator>
auto weighted_trainer(Communicator& comm, int layers, int zero, const std::function<void(int)>& on_forward) {
  auto layout = grouped(layers, gpipe(1, 1), 4, data_only({comm.ranks()}));
  layout.pipelines[0].groups[0].zero = zero;
  return hetsched::make_trainer<counted_tensor>(
      layout,
      [=](int l) {
        weighted made(weights);
        made.on_forward = [=] { on_forward(l); };
        return made;
      },
      [](int, int rows) {
        return tensor_shape{static_cast<std::size_t>(rows), weights};
      },
      comm, adamw{.learning_rate = rate});
}

template <class Trainer>
void step_of_ones(Trainer& trainer) {
  std::vector<counted_tensor> inputs(1, counted_tensor({1, weights})), targets = inputs;
  std::fill(inputs[0].values.begin(), inputs[0].values.end(), 1);
  (void)trainer.step(std::span<const counted_tensor>(inputs), std::span<const counted_tensor>(targets),
                     [](const counted_tensor& y, const counted_tensor&) {
                       return loss_value<counted_tensor>{y.values.front(), y};
                     });
}

}  // namespace

namespace {

/// Bytes that a rank has between steps, and the most while a layer computes that its last one follows.
struct held_bytes {
  std::size_t between = 0, forward = 0;
};

template <class Ends>
held_bytes bytes_at(Ends ends, int layers, int zero) {
  held_bytes found;
  run_on_threads(std::move(ends), [&](auto& comm) {
    std::size_t forward = 0;
    live = 0;
    auto trainer = weighted_trainer(comm, layers, zero, [&](int layer) {
      if (layer > 0 && layer + 1 < layers) forward = std::max(forward, live);
    });
    step_of_ones(trainer);
    const auto between = live;
    forward = 0;
    step_of_ones(trainer);
    const auto held = trainer.held();
    if (zero == 3)
      CHECK(static_cast<bytes_t>(held.total() - held.pipeline) ==
            state_bytes(layers * weights, {.data = comm.ranks()}, 3,
                        {.weight_bytes = 8, .gradient_bytes = 8, .optimizer_bytes = 16}));
    if (comm.rank() == 2) found = {between, forward};
  });
  return found;
}

}  // namespace

TEST_CASE("[threads] between uses a stage that gathers parameters holds what is priced, and two layers' and parts in a use") {
  constexpr int layers = 8;
  constexpr std::size_t layer_bytes = weights * sizeof(double);
  using threads = thread_communicator<counted_tensor>;
  const auto whole = bytes_at(threads::connect(4), layers, 2), shared = bytes_at(threads::connect(4), layers, 3),
             sent = bytes_at(plain<plain_byte_plane>(threads::connect(4)), layers, 3);
  std::vector<any_communicator<counted_tensor>> any;
  for (auto& end : threads::connect(4)) any.emplace_back(end);
  const auto erased = bytes_at(std::move(any), layers, 3);
  // Where parameters stay whole the share is there beside them.
  CHECK(whole.between - shared.between == layers * layer_bytes);
  const auto in_a_use = [&](const held_bytes& h) { return layers * layer_bytes - (whole.forward - h.forward); };
  CHECK(in_a_use(shared) ==
        2 * layer_bytes + 2 * layer_bytes / 4);  // others may still copy this rank's part of the layer at work
  CHECK(in_a_use(erased) == in_a_use(shared));
  CHECK(in_a_use(sent) == 2 * layer_bytes + layer_bytes / 4);
}

namespace {

/// A rank leaves a layer once the other, which needs its part of the next layer's parameters, has come to that. Returns how often
/// that did not happen.
template <class Ends>
int late_gathers(Ends ends) {
  constexpr int layers = 4;
  std::mutex guard;
  std::condition_variable changed;
  int come_to = -1, late = 0;
  run_on_threads(std::move(ends), [&](auto& comm) {
    auto trainer = weighted_trainer(comm, layers, 3, [&](int layer) {
      std::unique_lock lock(guard);
      if (comm.rank() == 0) {
        come_to = layer;
        changed.notify_all();
      } else if (layer + 1 < layers && !changed.wait_for(lock, std::chrono::seconds(20), [&] { return come_to > layer; })) {
        ++late;
      }
    });
    std::vector<counted_tensor> inputs(1, counted_tensor({2, weights})), targets = inputs;
    for (int step = 0; step < 2; ++step) {
      if (comm.rank() == 0) {
        const std::lock_guard lock(guard);
        come_to = -1;
      }
      (void)trainer.step(std::span<const counted_tensor>(inputs), std::span<const counted_tensor>(targets),
                         [](const counted_tensor& y, const counted_tensor&) {
                           return loss_value<counted_tensor>{y.values.front(), y};
                         });
    }
  });
  return late;
}

}  // namespace

TEST_CASE("[threads] while a layer computes, the parameters of the next one are gathered") {
  using threads = thread_communicator<counted_tensor>;
  CHECK(late_gathers(threads::connect(2)) == 0);
  CHECK(late_gathers(plain(threads::connect(2))) == 0);
}

TEST_CASE("a use of a layer that the pass does not have next is an error") {
  struct nothing_owned {
    struct piece {
      std::size_t parameter = 0, chunk = 0;
      std::int64_t first = 0;
      tensor value;
    };
    std::vector<gathered_range> ranges;
    std::vector<piece> pieces;
    [[nodiscard]] const std::vector<gathered_range>& gathered() const { return ranges; }
    [[nodiscard]] std::size_t owned_count() const { return pieces.size(); }
    piece& owned(std::size_t k) { return pieces[k]; }
  };
  auto ends = channel::connect(1);
  const std::vector<model_parameter> model(2);
  std::vector<tensor> values(2, tensor(1, 1));
  std::vector<hetsched::detail::held_parameter<tensor>> held(2);
  for (int l = 0; l < 2; ++l) {
    auto& p = held[as_size(l)];
    p.what.layer = l;
    p.model = as_size(l);
    p.value = &values[as_size(l)];
    p.shape = {1, 1};
    p.gathered = true;
  }
  nothing_owned exchange;
  hetsched::detail::gathered_layers<tensor, channel, host_queue> layers({{0, 2}}, model, held, exchange, ends[0], {}, {}, {});
  CHECK_THROWS_WITH_AS((void)layers.gather(0), doctest::Contains("layer 0 is used, and"), input_error);
  layers.begin_pass([](auto&& list) { list(action_kind::forward, 0); });
  CHECK_THROWS_WITH_AS((void)layers.gather(1), doctest::Contains("parameters is layer 0"), input_error);
  CHECK_FALSE(layers.gather(0));
  CHECK_FALSE(layers.gather(1));
  CHECK_THROWS_WITH_AS((void)layers.gather(1), doctest::Contains("parameters is none"), input_error);
}

TEST_CASE("[threads] a rank that fails between gathers ends the others, and all have what was there before") {
  std::array<std::string, 4> why;
  run_on_threads(thread_communicator<counted_tensor>::connect(4), [&](thread_communicator<counted_tensor>& comm) {
    const bool fails = comm.rank() == 1;
    bool second = false;
    auto trainer = weighted_trainer(comm, 3, 3, [&](int layer) {
      if (fails && second && layer == 1) throw std::runtime_error("planted");
    });
    const auto copies = [&] {
      std::vector<std::vector<std::byte>> all;
      for (const auto& s : trainer.state(true)) all.emplace_back(s.bytes.begin(), s.bytes.end());
      return all;
    };
    step_of_ones(trainer);
    const auto before = copies();
    second = true;
    try {
      step_of_ones(trainer);
    } catch (const std::exception& e) {
      why[as_size(comm.rank())] = e.what();
    }
    CHECK(copies() == before);
  });
  for (const auto& text : why) {
    CAPTURE(text);
    CHECK(text.find("rank 1, step 1: 0F0 (stage 0, layer 1") != std::string::npos);
    CHECK(text.find("planted") != std::string::npos);
    if (&text != &why[1]) CHECK(text.find("all_gather over ranks that gather parameters (ranks 0 1 2 3)") != std::string::npos);
  }
}

TEST_CASE("[threads] a stage does not gather parameters that another pipeline or direction has, too") {
  const toy<double> t{.layers = 4};
  const auto refused = [&](training_layout layout) {
    layout.pipelines[0].groups[0].zero = 3;
    try {
      (void)on_devices(t, layout, 1, [&](int l) { return t.make(l); });
    } catch (const std::exception& e) {
      const std::string text = e.what();
      CAPTURE(text);
      CHECK(text.find("parameter 0 of layer 0 is in a stage with ZeRO stage 3, and another direction or pipeline has it") !=
            std::string::npos);
      return;
    }
    FAIL_CHECK("it was run");
  };
  const auto one = grouped(t.layers, schedule_of("1f1b", 2, 2), 4, data_only({2, 1}));
  refused(side_by_side({one, one}));
  refused(grouped(t.layers, schedule_of("chimera", 2, 2), 4, data_only({2, 2})));
}

TEST_CASE("[threads] layers move between groups of data ranks, whoever keeps the optimizer's state, and change no bit") {
  const toy<double> t{.layers = 8};
  const auto layout = grouped(t.layers, schedule_of("1f1b", 2, 3), 12, data_only({3, 3}));
  auto moved = layout;
  moved.pipelines[0].stages[0].layers.last = moved.pipelines[0].stages[1].layers.first = 6;
  auto sharded = layout;
  sharded.pipelines[0].stages[0].layers.last = sharded.pipelines[0].stages[1].layers.first = 1;
  for (auto& g : sharded.pipelines[0].groups) g.zero = 2;
  sharded.pipelines[0].groups[1].state_shares = {0.5, 0.5, 0};
  const auto make = [&](int l) { return t.make(l); };
  const adamw usual{.learning_rate = rate};
  const trainer_options options{.bucket_bytes = 64};
  const auto still = on_devices(t, layout, 5, make, options, usual);
  auto expected = still.front();
  for (std::size_t l = 0; l < expected.parameters.size(); ++l)
    if (expected.parameters[l].empty()) expected.parameters[l] = still.back().parameters[l];
  check_same(on_devices(t, layout, 5, make, options, usual, {moved, sharded, layout, moved}), expected);
}

TEST_CASE("[threads] a layout that does not cut whole samples over data cannot be uneven") {
  const toy<double> t{.layers = 4};
  auto layout = grouped(t.layers, gpipe(2, 2), 4, {{.data = 2}, {}});
  layout.pipelines[0].groups[0].sample_points = {0, 3, 4};
  const auto of_columns = [](const tensor_shape& whole, const degrees& d) {
    layout_type l{.mesh = {d.data, d.context, d.tensor}, .dimensions = {}};
    for (const auto extent : whole) l.dimensions.push_back({.extent = static_cast<std::int64_t>(extent)});
    l.dimensions.back().axes = {data_axis};
    return l;
  };
  try {
    (void)on_devices(t, layout, 1, [&](int l) { return t.make(l); }, {.boundary_layout = of_columns});
    FAIL("an uneven cut of columns was run");
  } catch (const input_error& e) {
    const std::string text = e.what();
    CHECK(text.find("stage 0 has uneven shares of data") != std::string::npos);
  }
}

TEST_CASE("[threads] tensor ranks that are replicas count once, in losses as in gradients") {
  const toy<double> t{.layers = 6};
  using group_type = stage_group<tensor, channel>;
  const auto make = [&](int l, const group_type& group) {
    if (group.place().tensor >= group.degrees().tensor) throw std::logic_error("no place in the group");
    return t.make(l);
  };
  const std::vector<std::vector<degrees>> shapes{{{.data = 2, .tensor = 2}, {.tensor = 3}, {.data = 2}},
                                                 {{.data = 2}, {.tensor = 2}, {.data = 2, .tensor = 2}},
                                                 {{.tensor = 2}, {.tensor = 2}, {.tensor = 2}}};
  for (const auto& groups : shapes) {
    auto layout = grouped(t.layers, schedule_of("1f1b", 3, 4), 4, groups);
    auto plain = layout;
    for (auto& g : plain.pipelines[0].groups) g.degrees = {.data = g.degrees.data};
    const auto expected = alone(t, plain, 2);
    for (const auto how : all_reshard_strategies) {
      test::set_reshard(layout.pipelines[0], how);
      check_same(on_devices(t, layout, 2, make), expected);
    }
  }
}

TEST_CASE("[threads] sums of data ranks begin before the schedule has ended, and pipelines with groups work side by side") {
  const toy<double> t{.layers = 6};
  const auto one = grouped(t.layers, schedule_of("1f1b", 2, 4), 4, data_only({2, 1}));
  const auto two = grouped(t.layers, schedule_of("1f1b", 2, 4), 4, data_only({1, 4}));
  training_layout both = one;
  both.pipelines.push_back(two.pipelines[0]);
  both.pipelines[1].first_rank = one.ranks();
  const auto all = on_devices(t, both, 2, [&](int l) { return t.make(l); });
  for (const auto& r : all) {
    CHECK(r.losses == all[0].losses);
    for (std::size_t l = 0; l < r.parameters.size(); ++l)
      for (const auto& other : all)
        if (!r.parameters[l].empty() && !other.parameters[l].empty()) CHECK(r.parameters[l] == other.parameters[l]);
  }
}

TEST_CASE("[threads] what does not fit the groups is refused") {
  const toy<double> t{.layers = 4};
  const auto make = [&](int l) { return t.make(l); };
  const auto layout = grouped(t.layers, gpipe(2, 2), 2, {{.data = 2}, {}});
  const auto why = [&](const layout_rule& of) {
    try {
      (void)on_devices(t, layout, 1, make, {.boundary_layout = of});
    } catch (const input_error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(why({}).empty());
  CHECK(why([](const tensor_shape& whole, const degrees& d) {
          auto l = batch_layout(whole, d);
          ++l.dimensions[1].extent;
          return l;
        }).find("a tensor of another shape") != std::string::npos);
  CHECK(why([](const tensor_shape& whole, const degrees&) {
          return batch_layout(whole, {});
        }).find("the layouts behind stage 0 are for 1 and 1 devices, but its groups have 2 and 1") != std::string::npos);
}

TEST_CASE("[threads] layers that are made without the group cannot be on tensor ranks") {
  const toy<double> t{.layers = 4};
  const auto layout = grouped(t.layers, gpipe(2, 2), 2, {{.tensor = 2}, {}});
  CHECK_THROWS_AS(on_devices(t, layout, 1, [&](int l) { return t.make(l); }), input_error);
}
