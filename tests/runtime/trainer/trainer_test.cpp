// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/trainer/trainer.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/runtime/trainer/train_on_threads.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>

#include "../../sanitizer_share.hpp"
#include "../training.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

const sgd usual{.learning_rate = 0.05, .momentum = 0.9, .weight_decay = 0.01};

template <class Real>
plain_update<Real> usual_update() {
  return plain_sgd<Real>(usual.learning_rate, usual.momentum, usual.weight_decay);
}

/// Norms are added up in another order than the reference's, everything else in the same.
template <class Real>
void check_same(const trained<Real>& got, const trained<Real>& expected) {
  CHECK(got.losses == expected.losses);
  CHECK(got.parameters == expected.parameters);
  REQUIRE(got.norms.size() == expected.norms.size());
  for (std::size_t i = 0; i < got.norms.size(); ++i) CHECK(got.norms[i] == doctest::Approx(expected.norms[i]).epsilon(1e-13));
}

const std::vector<parameter_tie> some_ties{{{0, 0}, {8, 0}}, {{3, 0}, {5, 0}}};

template <class Real>
void check_names() {
  int run = 0;
  for (const auto name : schedule_names())
    for (int ranks = 1; ranks <= 4; ++ranks)
      for (const int microbatches : {1, 4, 5}) {
        if (++run % sanitizer_share != 0) continue;
        schedule order;
        try {
          order = schedule_of(name, ranks, microbatches);
        } catch (const input_error&) {
          continue;  // numbers that the schedule is not made for
        }
        CAPTURE(name);
        CAPTURE(ranks);
        CAPTURE(microbatches);
        const toy<Real> t{.seed = static_cast<std::uint64_t>(run),
                          .ties = run % 2 == 0 ? some_ties : std::vector<parameter_tie>{}};
        const auto layout = even_layout(t.layers, order);
        check_same(train(t, layout, 3, usual), train_alone(t, layout, 3, 0, usual_update<Real>()));
      }
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("[threads] every schedule trains as one device does, to the last bit") {
  check_names<float>();
  check_names<double>();
}

TEST_CASE("[threads] train_on_threads trains as its trainers do, with one shape for all layers") {
  const toy<double> t;
  const auto layout = even_layout(t.layers, one_f_one_b({3, 2, 1}, 4));
  const auto expected = train(t, layout, 3, usual);
  std::vector<std::vector<matrix<double>>> parameters(static_cast<std::size_t>(t.layers));
  const auto make = [&](int l) { return t.make(l); };
  const auto step = [&](auto& trainer, int n) {
    const auto [inputs, targets] = batch_of(t, layout, 0, n);
    const auto report = trainer.step(inputs, targets, half_squares());
    for (const auto& [number, layer] : trainer.layers())  // each on one thread
      parameters[static_cast<std::size_t>(number)] = copies_of<double>(layer->parameters());
    return report;
  };
  const auto reports = train_on_threads<matrix<double>>(layout, make, {1, toy<double>::width}, 3, step, usual);
  REQUIRE(reports.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(reports[i].step == static_cast<std::int64_t>(i));
    CHECK(reports[i].loss == doctest::Approx(expected.losses[i]).epsilon(1e-13));
  }
  CHECK(parameters == expected.parameters);
  const auto of_another_shape = [&](auto& trainer, int n) {
    const std::vector<matrix<double>> targets(4, matrix<double>(2, toy<double>::width));
    return trainer.step(batch_of(t, layout, 0, n).first, targets, half_squares());
  };
  std::string text;
  try {
    (void)train_on_threads<matrix<double>>(layout, make, tensor_shape{1, toy<double>::width}, 1, of_another_shape);
  } catch (const layer_error& e) {
    text = e.what();
  }
  CHECK(text ==
        "rank 2, step 0: 2F0 (stage 2, the loss of microbatch 0) failed: the target is of the shape 2 x 3, expected is 1 x 3");
}

TEST_CASE("[threads] tied parameters are the same bits on any number of stages") {
  for (const auto& ties :
       {some_ties, {{{0, 0}, {4, 0}}, {{4, 0}, {8, 0}}}, {{{2, 0}, {4, 0}}, {{2, 0}, {8, 0}}, {{1, 0}, {7, 0}}}}) {
    toy<float> t{.seed = 3, .ties = ties};
    if (ties[1].first == parameter_id{4, 0}) t.ties[1].first = {0, 0};  // for the layers' first values; tied all the same
    const auto expected = train_alone(t, even_layout(t.layers, schedule_of("1f1b", 1, 6)), 4, 0.5, usual_update<float>());
    trained<float> one;
    for (int ranks = 1; ranks <= 4; ++ranks) {
      CAPTURE(ranks);
      auto with = t;
      with.ties = ties;
      if (ties[1].first == parameter_id{4, 0}) with.ties = t.ties;
      const auto got = train(with, even_layout(t.layers, schedule_of("1f1b", ranks, 6)), 4, usual, {.clip_norm = 0.5});
      for (const auto& [a, b] : t.ties)
        CHECK(got.parameters[static_cast<std::size_t>(a.layer)] == got.parameters[static_cast<std::size_t>(b.layer)]);
      if (ranks == 1) one = got;
      CHECK(got == one);
      CHECK(distance(got, expected) < 1e-6);
    }
  }
}

TEST_CASE("[threads] pipelines of other cuts and counts of microbatches") {
  const auto check = [](const auto& t, const training_layout& layout, const training_layout& alone) {
    using real = typename std::decay_t<decltype(t)>::tensor::value_type;
    CAPTURE(layout.ranks());
    const auto got = train(t, layout, 3, usual);
    check_same(got, train_alone(t, layout, 3, 0, usual_update<real>()));
    // Where pipelines are cut does not matter.
    CHECK(train(t, alone, 3, usual) == got);
  };
  for (const auto& ties : {std::vector<parameter_tie>{}, some_ties}) {
    const toy<float> f{.seed = 5, .ties = ties};
    const toy<double> d{.seed = 6, .ties = ties};
    const auto part = [&](std::string_view name, int ranks, int microbatches) {
      return even_layout(f.layers, schedule_of(name, ranks, microbatches));
    };
    const auto two = side_by_side({part("1f1b", 2, 3), part("zb_v", 3, 5)});
    const auto two_alone = side_by_side({part("gpipe", 1, 3), part("gpipe", 1, 5)});
    const auto three = side_by_side({part("h1f1b", 3, 4), part("interleaved_1f1b", 2, 1), part("gpipe", 1, 6)});
    const auto three_alone = side_by_side({part("1f1b", 1, 4), part("1f1b", 1, 1), part("1f1b", 2, 6)});
    check(f, two, two_alone);
    check(d, two, two_alone);
    check(f, three, three_alone);
    check(d, three, three_alone);
    // A bidirectional one has its own order over directions.
    const auto mixed = side_by_side({part("chimera", 2, 4), part("1f1b", 3, 3), part("dualpipe", 4, 6)});
    check_same(train(d, mixed, 3, usual), train_alone(d, mixed, 3, 0, usual_update<double>()));
    check_same(train(f, mixed, 3, usual), train_alone(f, mixed, 3, 0, usual_update<float>()));
  }
}

TEST_CASE("[threads] the same microbatches in another order of sums come to nearly the same") {
  const toy<float> t{.seed = 7, .ties = some_ties};
  const auto part = [&](std::string_view name, int ranks, int microbatches) {
    return even_layout(t.layers, schedule_of(name, ranks, microbatches));
  };
  const auto one = train(t, part("1f1b", 3, 8), 4, usual);
  for (const auto& layout : {side_by_side({part("1f1b", 2, 3), part("zb_h1", 1, 5)}),
                             side_by_side({part("1f1b", 2, 1), part("v_half", 2, 5), part("1f1b", 3, 2)}), part("chimera", 4, 8),
                             part("dualpipe", 2, 8)}) {
    CAPTURE(layout.ranks());
    const auto other = train(t, layout, 4, usual);
    CHECK(distance(other, one) < 1e-5);
    CHECK_FALSE(other == one);
  }
}

TEST_CASE("[threads] an evaluation is the loss of a step that is not taken, and leaves no trace") {
  const toy<float> t{.seed = 12, .ties = some_ties};
  const auto part = [&](std::string_view name, int ranks, int microbatches) {
    return even_layout(t.layers, schedule_of(name, ranks, microbatches));
  };
  std::vector<training_layout> layouts{side_by_side({part("1f1b", 2, 3), part("zb_v", 3, 5)}),
                                       side_by_side({part("chimera", 2, 4), part("1f1b", 1, 3), part("dualpipe", 4, 6)})};
  layouts.back().pipelines[1].microbatch_size = 3;
  for (const auto name : share_of(schedule_names())) layouts.push_back(part(name, 4, 16));
  for (std::size_t k = 0; k < layouts.size(); ++k) {
    const auto& layout = layouts[k];
    CAPTURE(k);
    const trainer_options options{.clip_norm = 0.7, .shard_optimizer = k % 2 == 1};
    std::mutex guard;
    std::map<std::int64_t, std::set<double>> seen;  // by step
    const auto got = train<float, sgd>(t, layout, 3, usual, options, [&](auto& trainer, int rank) {
      const auto step = trainer.committed_step();
      if (step == 1) return;  // evaluations come as they like, or not at all
      const double other = evaluated(t, trainer, rank, step + 100), own = evaluated(t, trainer, rank, step);
      CHECK(trainer.committed_step() == step);
      const std::lock_guard lock(guard);
      seen[step].insert(own);
      seen[step + 100].insert(other);
    });
    CHECK(got == train(t, layout, 3, usual, options));
    for (const std::int64_t step : {0, 2}) {
      CHECK(seen[step] == std::set{got.losses[static_cast<std::size_t>(step)]});
      CHECK(seen[step + 100].size() == 1);
      CHECK(seen[step + 100] != seen[step]);
    }
  }
}

TEST_CASE("[threads] batches that are accumulated are a step of all their microbatches, to the last bit") {
  const toy<double> t{.seed = 31, .ties = some_ties};
  using tensor = matrix<double>;
  constexpr int steps = 3;
  int k = 0;
  for (const auto name : share_of(schedule_names())) {
    const auto whole = even_layout(t.layers, schedule_of(name, 2, 12));
    if (whole.pipelines[0].order.directions > 1) continue;
    CAPTURE(name);
    auto part = even_layout(t.layers, schedule_of(name, 2, 4));
    if (k % 3 == 2) part.pipelines[0].groups.assign(2, {.zero = 2});
    const trainer_options options{.clip_norm = 0.7, .shard_optimizer = k++ % 3 == 1};
    const auto expected = train(t, whole, steps, usual, {.clip_norm = 0.7});
    std::vector<std::vector<double>> losses(2), norms(2);
    std::vector<std::vector<tensor>> parameters(static_cast<std::size_t>(t.layers));
    std::mutex guard;
    hetsched::run_on_threads(toy_communicator<double>::connect(2), [&](toy_communicator<double>& comm) {
      auto trainer = make_trainer(t, part, comm, usual, options);
      for (int step = 0; step < steps; ++step)
        for (int pass = 0; pass < 3; ++pass) {
          std::vector<tensor> inputs, targets;
          for (int m = 0; m < 4; ++m) {
            auto [input, target] = t.batch(whole, step, 0, 4 * pass + m);
            inputs.push_back(std::move(input));
            targets.push_back(std::move(target));
          }
          const std::span<const tensor> in(inputs), wanted(targets);
          if (pass < 2) {
            trainer.accumulate(in, wanted, toy<double>::loss);
            continue;
          }
          const auto report = trainer.step(in, wanted, toy<double>::loss);
          CHECK(report.step == step);
          const std::lock_guard lock(guard);
          losses[static_cast<std::size_t>(comm.rank())].push_back(report.loss);
          norms[static_cast<std::size_t>(comm.rank())].push_back(report.gradient_norm);
        }
      const std::lock_guard lock(guard);
      for (const auto& [number, layer] : trainer.layers())
        parameters[static_cast<std::size_t>(number)] = copies_of<double>(layer->parameters());
    });
    for (std::size_t r = 0; r < 2; ++r) {
      CHECK(norms[r] == expected.norms);
      for (std::size_t i = 0; i < steps; ++i) CHECK(losses[r][i] == doctest::Approx(expected.losses[i]).epsilon(1e-14));
    }
    CHECK(parameters == expected.parameters);
  }
  CHECK(k > 0);
}

TEST_CASE("[threads] schedules may change between steps: the bits stay") {
  const toy<double> t{.seed = 37, .ties = some_ties};
  const auto layout = even_layout(t.layers, one_f_one_b({3, 2, 1}, 6));
  const auto expected = train(t, layout, 6, usual);
  const std::vector<schedule> orders{one_f_one_b({6, 6, 1}, 6), one_f_one_b({5, 3, 1}, 6), schedule_of("gpipe", 3, 6),
                                     one_f_one_b({3, 2, 1}, 6), schedule_of("zb_h1", 3, 6)};
  std::vector<std::size_t> steps(3, 0);
  const auto changed = train<double, sgd>(t, layout, 6, usual, {}, [&](toy_trainer<double, sgd>& trainer, int rank) {
    const auto step = steps[static_cast<std::size_t>(rank)]++;
    if (step == 0) return;
    trainer.reschedule({orders[step - 1]});
    CHECK(trainer.layout().pipelines[0].order == orders[step - 1]);
    CHECK_THROWS_AS(trainer.reschedule({}), input_error);
    CHECK_THROWS_AS(trainer.reschedule({schedule_of("1f1b", 3, 5)}), input_error);
    CHECK_THROWS_AS(trainer.reschedule({schedule_of("interleaved_1f1b", 3, 6)}), input_error);
  });
  CHECK(changed.losses == expected.losses);
  CHECK(changed.parameters == expected.parameters);
  // Ranks that differ all hear of it, and go on as before.
  const auto apart = train<double, sgd>(t, layout, 2, usual, {}, [&](toy_trainer<double, sgd>& trainer, int rank) {
    CHECK_THROWS_WITH_AS(trainer.reschedule({orders[rank == 1 ? 1 : 0]}),
                         "rank 1 does not train what the others do, it differs in: schedules", input_error);
  });
  CHECK(std::equal(apart.losses.begin(), apart.losses.end(), expected.losses.begin()));
}

namespace {

/// Restarts from what all ranks held: every tensor whole, by layer and name.
struct whole_state {
  std::mutex guard;
  std::map<std::pair<int, std::string>, std::vector<std::byte>> tensors;

  void take(std::span<const state_slice> owned) {
    const std::lock_guard lock(guard);
    for (const auto& s : owned) visit(s, [](std::byte* whole, std::byte* held, std::size_t n) { std::memcpy(whole, held, n); });
  }
  void give(std::span<const state_slice> wanted) {
    const std::lock_guard lock(guard);
    for (const auto& s : wanted) visit(s, [](std::byte* whole, std::byte* held, std::size_t n) { std::memcpy(held, whole, n); });
  }

 private:
  template <class Copy>
  void visit(const state_slice& s, Copy copy) {
    std::size_t size = static_cast<std::size_t>(std::stoi(s.element.substr(1))) / 8, all = size;
    for (const auto extent : s.shape) all *= extent;
    auto& whole = tensors[{s.layer, s.name}];
    whole.resize(all);
    if (s.bytes.empty()) return;
    const auto length = s.held_apart > 0 ? s.bytes.size() - (s.rows - 1) * s.held_apart * size : s.bytes.size() / s.rows;
    for (std::size_t r = 0; r < s.rows; ++r)
      copy(whole.data() + (s.first + r * s.apart) * size,
           s.bytes.data() + (s.held_apart > 0 ? r * s.held_apart * size : r * length), length);
  }
};

}  // namespace

TEST_CASE("[threads] layers move between steps: the bits are those of a restart under the new layout") {
  const toy<double> t{.seed = 41, .ties = some_ties};
  const auto part = [&](std::string_view name, int ranks, int microbatches, std::vector<int> cuts = {}) {
    auto layout = even_layout(t.layers, schedule_of(name, ranks, microbatches));
    for (std::size_t s = 0; s + 1 < cuts.size(); ++s) layout.pipelines[0].stages[s].layers = {cuts[s], cuts[s + 1]};
    return layout;
  };
  const auto shape = [](int, int rows) { return tensor_shape{static_cast<std::size_t>(rows), toy<double>::width}; };
  // Cuts; schedules of several stages per rank; two pipelines in place of one.
  for (const auto& layouts : std::vector<std::vector<training_layout>>{
           {part("1f1b", 4, 6), part("1f1b", 4, 6, {0, 1, 6, 8, 9}), part("zb_h1", 4, 6, {0, 4, 5, 6, 9})},
           {part("1f1b", 4, 8, {0, 1, 2, 3, 9}), part("interleaved_1f1b", 4, 8), part("chimera", 4, 8)},
           {part("1f1b", 4, 6), side_by_side({part("1f1b", 2, 2), part("zb_v", 2, 4)}), part("gpipe", 4, 6)}}) {
    CAPTURE(layouts[1].pipelines[0].order.stages);
    const trainer_options options{.clip_norm = 0.7, .shard_optimizer = layouts[1].pipelines.size() > 1};
    // Two steps under each of them in turn.
    const auto moved = train<double, sgd>(t, layouts[0], 6, usual, options, [&](toy_trainer<double, sgd>& trainer, int rank) {
      const auto step = static_cast<std::size_t>(trainer.committed_step());
      if (step % 2 == 0 && step > 0)
        trainer.move_layers(
            layouts[step / 2], [&](int l) { return t.make(l); }, shape);
      CHECK(trainer.committed_step() == static_cast<std::int64_t>(step));
      CHECK(trainer.layout() == layouts[step / 2]);
      CHECK(trainer.place() == layouts[step / 2].place_of(rank));
    });
    trained<double> expected;
    whole_state kept;
    for (std::size_t k = 0; k < 3; ++k) {
      std::vector<trained<double>> by_rank(4);
      hetsched::run_on_threads(toy_communicator<double>::connect(4), [&](toy_communicator<double>& comm) {
        auto own = options;
        own.first_step = static_cast<std::int64_t>(2 * k);
        auto trainer = make_trainer(t, layouts[k], comm, usual, own);
        if (k > 0) {
          kept.give(trainer.state());
          trainer.state_loaded();
        }
        auto& told = by_rank[static_cast<std::size_t>(comm.rank())];
        for (int i = 0; i < 2; ++i) {
          const auto report = one_step(t, trainer, comm.rank());
          told.losses.push_back(report.loss);
          told.norms.push_back(report.gradient_norm);
        }
        kept.take(trainer.state(true));
      });
      expected.losses.insert(expected.losses.end(), by_rank[0].losses.begin(), by_rank[0].losses.end());
      expected.norms.insert(expected.norms.end(), by_rank[0].norms.begin(), by_rank[0].norms.end());
    }
    CHECK(moved.losses == expected.losses);
    CHECK(moved.norms == expected.norms);
    for (int l = 0; l < t.layers; ++l)
      for (std::size_t n = 0; n < moved.parameters[static_cast<std::size_t>(l)].size(); ++n) {
        const auto& p = moved.parameters[static_cast<std::size_t>(l)][n];
        const auto found = kept.tensors.find({l, "parameter." + std::to_string(n)});
        if (found == kept.tensors.end()) continue;  // goes by the one that it is tied to
        REQUIRE(found->second.size() == p.rows() * p.columns() * sizeof(double));
        CHECK(std::memcmp(found->second.data(), p.data(), found->second.size()) == 0);
      }
  }
}

TEST_CASE("[threads] layouts that differ, or are of other layers or ranks, move nothing, and the training goes on") {
  const toy<double> t{.seed = 42};
  const auto layout = even_layout(t.layers, schedule_of("1f1b", 3, 4));
  auto other = layout, fewer = layout;
  other.pipelines[0].stages[0].layers.last = other.pipelines[0].stages[1].layers.first = 2;
  fewer.layers = 8;
  fewer.pipelines[0].stages[2].layers.last = 8;
  const auto shape = [](int, int rows) { return tensor_shape{static_cast<std::size_t>(rows), toy<double>::width}; };
  const auto tried = train<double, sgd>(t, layout, 2, usual, {}, [&](toy_trainer<double, sgd>& trainer, int rank) {
    const auto move = [&](const training_layout& next) {
      trainer.move_layers(
          next, [&](int l) { return t.make(l); }, shape);
    };
    CHECK_THROWS_WITH_AS(move(fewer), "a training of 9 layers on 3 ranks cannot go on with 8 on 3", input_error);
    CHECK_THROWS_AS(move(even_layout(t.layers, schedule_of("1f1b", 2, 4))), input_error);
    CHECK_THROWS_WITH_AS(move(rank == 1 ? other : layout), "rank 1 does not train what the others do, it differs in: stages",
                         input_error);
    CHECK(trainer.layout() == layout);
  });
  CHECK(tried == train(t, layout, 2, usual));
}

TEST_CASE("[threads] a loss that is scaled by a power of two gives the same bits, and its scale follows skipped steps") {
  const toy<double> t{.seed = 32};
  using tensor = matrix<double>;
  const auto layout = even_layout(t.layers, schedule_of("1f1b", 3, 4));
  const auto plain = train(t, layout, 4, usual, {.clip_norm = 0.7});
  CHECK(train(t, layout, 4, usual, {.clip_norm = 0.7, .scaling = {.scale = 4096}}) == plain);
  hetsched::run_on_threads(toy_communicator<double>::connect(3), [&](toy_communicator<double>& comm) {
    auto trainer = make_trainer(t, layout, comm, usual, {.scaling = {.scale = 8, .growth = 4, .backoff = 0.5, .interval = 2}});
    const auto [inputs, targets] = batch_of(t, layout, comm.rank(), 1);
    std::vector<double> scales;
    for (const bool overflows : {false, true, false, false, false}) {
      const auto report = trainer.step(std::span<const tensor>(inputs), std::span<const tensor>(targets),
                                       [&](const tensor& output, const tensor& target) {
                                         auto found = toy<double>::loss(output, target);
                                         if (overflows) found.gradient(0, 0) = std::numeric_limits<double>::infinity();
                                         return found;
                                       });
      CHECK(report.updated != overflows);
      scales.push_back(report.loss_scale);
    }
    CHECK(scales == std::vector<double>{8, 8, 4, 4, 16});
    CHECK(trainer.scaling().scale == 16);
    CHECK(trainer.scaling().good_steps == 1);
  });
  auto ends = toy_communicator<double>::connect(1);
  const auto one = even_layout(t.layers, schedule_of("1f1b", 1, 4));
  CHECK_THROWS_AS(make_trainer(t, one, ends[0], usual, {.scaling = {.scale = 0}}), input_error);
}

TEST_CASE("[threads] an evaluation needs the loss's value alone; one that fails ends on all ranks, and says which it was") {
  const toy<double> t{.seed = 13};
  using tensor = matrix<double>;
  const auto layout = even_layout(t.layers, schedule_of("1f1b", 3, 4));
  std::mutex guard;
  std::vector<std::string> texts;
  hetsched::run_on_threads(toy_communicator<double>::connect(3), [&](toy_communicator<double>& comm) {
    auto trainer = make_trainer(t, layout, comm, usual, {.deadline_s = 20});
    const auto [inputs, targets] = batch_of(t, layout, comm.rank(), 5);
    const auto by = [&](const auto& loss) {
      return trainer.evaluate(std::span<const tensor>(inputs), std::span<const tensor>(targets), loss);
    };
    const double value = by([](const tensor& output, const tensor& target) { return toy<double>::loss(output, target).value; });
    CHECK(value == evaluated(t, trainer, comm.rank(), 5));
    try {
      (void)by([](const tensor&, const tensor&) -> double { throw std::runtime_error("no such label"); });
    } catch (const std::exception& e) {
      const std::lock_guard lock(guard);
      texts.emplace_back(e.what());
    }
  });
  REQUIRE(texts.size() == 3);
  std::sort(texts.begin(), texts.end());
  const std::string cause = "rank 2, evaluation 2: 2F0 (stage 2, the loss of microbatch 0) failed: no such label";
  CHECK(texts[2] == cause);
  for (const std::size_t r : {0, 1}) {
    // A rank may have sent all it has, and wait for the losses.
    const auto who = "rank " + std::to_string(r) + ", ";
    const bool named = texts[r].starts_with(who + "evaluation 2: ") || texts[r].starts_with(who + "in an evaluation: ");
    CHECK(named);
    CHECK(contains(texts[r], "ended, as " + cause));
  }
}

TEST_CASE("[threads] microbatches of several sizes count by their samples") {
  const toy<double> t{.seed = 8, .ties = some_ties};
  auto layout =
      side_by_side({even_layout(t.layers, schedule_of("1f1b", 2, 3)), even_layout(t.layers, schedule_of("1f1b", 1, 4))});
  layout.pipelines[0].microbatch_size = 3;
  layout.pipelines[1].microbatch_size = 2;
  const auto got = train(t, layout, 3, usual);
  const auto expected = train_alone(t, layout, 3, 0, usual_update<double>());
  CHECK(distance(got, expected) < 1e-14);
  for (std::size_t i = 0; i < 3; ++i) CHECK(got.losses[i] == doctest::Approx(expected.losses[i]).epsilon(1e-14));
  // Counted alike, they give something else.
  auto alike = layout;
  alike.pipelines[0].microbatch_size = alike.pipelines[1].microbatch_size = 2;
  CHECK(distance(train_alone(t, alike, 3, 0, usual_update<double>()), expected) > 1e-4);
}

TEST_CASE("[threads] gradients are clipped by their norm over all stages and pipelines") {
  const toy<float> t{.seed = 9, .ties = some_ties};
  const auto norms = train_alone(t, even_layout(t.layers, schedule_of("gpipe", 1, 4)), 1, 0, usual_update<float>()).norms;
  for (const double share : {0.5, 0.999, 1.001}) {
    CAPTURE(share);
    const double clip = norms[0] * share;
    trained<float> first;
    for (int ranks = 1; ranks <= 4; ++ranks) {
      CAPTURE(ranks);
      const auto layout = even_layout(t.layers, schedule_of("1f1b", ranks, 4));
      const auto got = train(t, layout, 4, usual, {.clip_norm = clip});
      if (ranks == 1) first = got;
      CHECK(got == first);
      CHECK(distance(got, train_alone(t, layout, 4, clip, usual_update<float>())) < 1e-6);
      const bool clipped = distance(got, train_alone(t, layout, 1, 0, usual_update<float>())) > 0;
      CHECK(clipped);
    }
  }
  const auto layout =
      side_by_side({even_layout(t.layers, schedule_of("1f1b", 2, 3)), even_layout(t.layers, schedule_of("zb_h1", 3, 2))});
  CHECK(distance(train(t, layout, 4, usual, {.clip_norm = 0.3}), train_alone(t, layout, 4, 0.3, usual_update<float>())) < 1e-6);
}

TEST_CASE("[threads] AdamW on any cut") {
  const toy<double> t{.seed = 10, .ties = some_ties};
  const adamw optimizer{.learning_rate = 0.01, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-6, .weight_decay = 0.1};
  const plain_update<double> update = [&](matrix<double>& p, const matrix<double>& g, std::vector<matrix<double>>& kept, int n) {
    if (n == 1) kept.assign(2, matrix<double>(p.rows(), p.columns()));
    for (std::size_t k = 0; k < p.rows() * p.columns(); ++k) {
      auto &m = kept[0].data()[k], &v = kept[1].data()[k];
      m = 0.8 * m + 0.2 * g.data()[k];
      v = 0.95 * v + 0.05 * g.data()[k] * g.data()[k];
      const double step = m / (1 - std::pow(0.8, n)) / (std::sqrt(v / (1 - std::pow(0.95, n))) + 1e-6);
      p.data()[k] -= 0.01 * (step + 0.1 * p.data()[k]);
    }
  };
  trained<double> first;
  for (int ranks = 1; ranks <= 4; ++ranks) {
    CAPTURE(ranks);
    const auto layout = even_layout(t.layers, schedule_of("zb_h1", ranks, 3));
    const auto got = train(t, layout, 5, optimizer);
    if (ranks == 1) first = got;
    CHECK(got == first);
    CHECK(distance(got, train_alone(t, layout, 5, 0, update)) < 1e-12);
  }
}

TEST_CASE("[threads] layers are made where they are held, and the learning rate may change") {
  const toy<double> t{.seed = 11};
  const auto layout =
      side_by_side({even_layout(t.layers, schedule_of("zb_v", 2, 3)), even_layout(t.layers, schedule_of("1f1b", 3, 2))});
  hetsched::run_on_threads(toy_communicator<double>::connect(5), [&](toy_communicator<double>& comm) {
    std::vector<int> made;
    toy_trainer<double, sgd> trainer(
        layout,
        [&](int l) {
          made.push_back(l);
          return t.make(l);
        },
        [](int) {
          return tensor_shape{1, toy<double>::width};
        },
        comm, sgd{.learning_rate = 0});
    std::vector<int> held;
    for (const auto& [number, layer] : trainer.layers()) held.push_back(number);
    if (made != held) throw std::logic_error("made others than held");
    const auto& line = layout.pipelines[comm.rank() < 2 ? 0 : 1];
    std::vector<int> expected;
    for (int s = 0; s < line.order.stages; ++s)
      if (line.order.rank(0, s) == comm.rank() - line.first_rank)
        for (int l = line.stages[static_cast<std::size_t>(s)].layers.first;
             l < line.stages[static_cast<std::size_t>(s)].layers.last; ++l)
          expected.push_back(l);
    if (held != expected) throw std::logic_error("other layers than the layout's");
    const auto before = copies_of<double>(trainer.layers()[0].second->parameters());
    (void)one_step(t, trainer, comm.rank());
    if (copies_of<double>(trainer.layers()[0].second->parameters()) != before) throw std::logic_error("changed at rate 0");
    trainer.optimizer_settings().learning_rate = 0.1;
    (void)one_step(t, trainer, comm.rank());
    if (copies_of<double>(trainer.layers()[0].second->parameters()) == before) throw std::logic_error("not changed at rate 0.1");
    if (trainer.committed_step() != 2) throw std::logic_error("other steps than 2");
  });
}

TEST_CASE("[threads] a rank with another plan is named on all ranks") {
  const toy<double> t{.seed = 12};
  const auto usual_layout =
      side_by_side({even_layout(t.layers, schedule_of("1f1b", 2, 3)), even_layout(t.layers, schedule_of("1f1b", 2, 2))});
  struct setting {
    training_layout layout;
    toy<double> task;
    trainer_options options;
    sgd optimizer = usual;
    std::string differs;  ///< of rank 2
  };
  const setting same{.layout = usual_layout, .task = t, .options = {}, .differs = ""};
  std::vector<setting> others;
  const auto other = [&](const std::string& differs) -> setting& {
    others.push_back(same);
    others.back().differs = differs;
    return others.back();
  };
  other("ranks and microbatches, schedule").layout.pipelines[1] =
      side_by_side({usual_layout, even_layout(t.layers, schedule_of("1f1b", 2, 1))}).pipelines[2];
  others.back().layout.pipelines[1].first_rank = 2;
  auto& stages = other("stages").layout.pipelines[0].stages;
  ++stages[0].layers.last;
  ++stages[1].layers.first;
  other("schedule").layout.pipelines[1].order = schedule_of("gpipe", 2, 2);
  other("optimizer").optimizer.momentum = 0;
  other("optimizer").optimizer.learning_rate = 0.04;
  other("ties").task.ties = some_ties;
  other("clipping").options.clip_norm = 1;
  other("step").options.first_step = 1;
  other("configuration").options.configuration_digest = 1;
  other("layer 0 is not made alike on ranks 0 and 2: parameter 0 begins with other values").task.seed = 13;
  for (auto& o : others)
    if (!o.differs.starts_with("layer")) o.differs = "rank 2 does not train what the others do, it differs in: " + o.differs;
  for (const auto& o : others) {
    CAPTURE(o.differs);
    std::vector<std::string> texts(4);
    std::atomic<int> constructed{0};
    const auto failures = on_ranks(4, [&, ends = toy_communicator<double>::connect(4)](int r) {
      auto comm = ends[static_cast<std::size_t>(r)];
      const auto& own = r == 2 ? o : same;
      try {
        (void)make_trainer(own.task, own.layout, comm, own.optimizer, own.options);
        ++constructed;
      } catch (const std::exception& e) {
        texts[static_cast<std::size_t>(r)] = e.what();
      }
    });
    rethrow_first(failures);
    CHECK(constructed == 0);
    for (const auto& text : texts) {
      CAPTURE(text);
      CHECK(contains(text, o.differs));
    }
  }
}

namespace {

/// A linear that may do something before it goes back.
struct fragile : linear<double> {
  using linear<double>::linear;
  tensor backward(const tensor& dy, context& c) {
    if (before) before();
    return linear<double>::backward(dy, c);
  }
  tensor backward_input(const tensor& dy, context& c) {
    if (before) before();
    return linear<double>::backward_input(dy, c);
  }
  std::function<void()> before;
};

std::vector<std::vector<std::byte>> bits_of(const std::vector<state_slice>& slices) {
  std::vector<std::vector<std::byte>> bits;
  for (const auto& s : slices) bits.emplace_back(s.bytes.begin(), s.bytes.end());
  return bits;
}

/// Of the bytes of an updates.n.
std::int64_t updates_in(const std::vector<std::byte>& bytes) {
  std::int64_t count = 0;
  std::memcpy(&count, bytes.data(), std::min(bytes.size(), sizeof count));
  return count;
}

}  // namespace

TEST_CASE("[threads] a layer that fails leaves all ranks with what they had committed") {
  const toy<double> t{.seed = 14};
  const auto two =
      side_by_side({even_layout(t.layers, schedule_of("zb_h1", 3, 4)), even_layout(t.layers, schedule_of("1f1b", 2, 3))});
  const auto one = even_layout(t.layers, schedule_of("1f1b", 3, 4));
  const auto check = [&](const training_layout& layout, int bad, bool at_last) {
    CAPTURE(bad);
    CAPTURE(at_last);
    const int ranks = layout.ranks();
    std::vector<std::string> texts(static_cast<std::size_t>(ranks));
    std::vector<char> kept(texts.size(), 0);
    auto ends = toy_communicator<double>::connect(ranks);
    rethrow_first(on_ranks(ranks, [&](int r) {
      const auto k = static_cast<std::size_t>(r);
      int calls_left = -1, backwards = 0;
      const auto make = [&](int l) -> any_layer<matrix<double>> {
        if (l % 2 == 1) return activation<double>();
        random_source random(static_cast<std::uint64_t>(l));
        fragile layer(toy<double>::width, toy<double>::width, random);
        layer.before = [&] {
          ++backwards;
          if (calls_left > 0 && --calls_left == 0) throw std::runtime_error("no more");
        };
        return layer;
      };
      toy_trainer<double, sgd> trainer(
          layout, make,
          [](int) {
            return tensor_shape{1, toy<double>::width};
          },
          ends[k], usual);
      for (int i = 0; i < 2; ++i) (void)one_step(t, trainer, r);
      const auto before = bits_of(trainer.state());
      if (r == bad) calls_left = at_last ? backwards / 2 : 2;
      try {
        (void)one_step(t, trainer, r);
      } catch (const std::exception& e) {
        texts[k] = e.what();
      }
      kept[k] = bits_of(trainer.state()) == before && trainer.committed_step() == 2;
    }));
    for (int r = 0; r < ranks; ++r) {
      CAPTURE(r);
      const auto& text = texts[static_cast<std::size_t>(r)];
      CAPTURE(text);
      CHECK(kept[static_cast<std::size_t>(r)]);
      if (r == bad) {
        CHECK(contains(text, ") failed: no more"));
      } else {
        CHECK(contains(text, "rank " + std::to_string(r) + ", step 2"));
        CHECK(contains(text, "ended, as rank " + std::to_string(bad) + ", step 2"));
        CHECK(contains(text, "failed: no more"));
      }
    }
  };
  for (const bool at_last : {false, true}) {
    for (int bad = 0; bad < 5; ++bad) check(two, bad, at_last);
    // In the end, the other ranks have nothing left to do but to agree.
    for (int bad = 0; bad < 3; ++bad) check(one, bad, at_last);
  }
}

TEST_CASE("[threads] what is not finite is not taken into the parameters") {
  const toy<double> t{.seed = 15};
  const auto layout =
      side_by_side({even_layout(t.layers, schedule_of("1f1b", 2, 2)), even_layout(t.layers, schedule_of("1f1b", 1, 2))});
  for (const auto behaviour : {nonfinite::skip, nonfinite::fail})
    for (const bool of_loss : {true, false}) {
      CAPTURE(of_loss);
      std::vector<std::string> texts(3);
      auto ends = toy_communicator<double>::connect(3);
      rethrow_first(on_ranks(3, [&](int r) {
        const auto k = static_cast<std::size_t>(r);
        auto trainer = make_trainer(t, layout, ends[k], usual, {.on_nonfinite = behaviour});
        const std::vector<matrix<double>> inputs(2, matrix<double>(1, toy<double>::width)), targets = inputs;
        const auto step = [&](double value, double slope) {
          return trainer.step(std::span<const matrix<double>>(inputs), std::span<const matrix<double>>(targets),
                              [&](const matrix<double>& y, const matrix<double>&) {
                                loss_value<matrix<double>> found{value, matrix<double>(y.rows(), y.columns())};
                                found.gradient(0, 0) = slope;
                                return found;
                              });
        };
        if (!step(1, 1).updated) throw std::logic_error("a finite step was skipped");
        const auto before = bits_of(trainer.state());
        const double inf = std::numeric_limits<double>::infinity();
        try {
          // One pipeline's only.
          const auto report = step(r == 2 && of_loss ? inf : 1, r == 2 && !of_loss ? inf : 1);
          texts[k] = report.updated ? "updated" : "skipped";
          if (trainer.committed_step() != 2) texts[k] += ", not counted";
          if (bits_of(trainer.state()) != before) texts[k] += ", changed";
          if (!step(1, 1).updated) texts[k] += ", and the next";
          if (updates_in(bits_of(trainer.state())[1]) != 2) texts[k] += ", counted as an update";
        } catch (const input_error& e) {
          texts[k] = e.what();
          if (bits_of(trainer.state()) != before || trainer.committed_step() != 1) texts[k] += ", changed";
        }
      }));
      for (const auto& text : texts)
        CHECK(text == (behaviour == nonfinite::skip ? "skipped"
                       : of_loss                    ? "step 1: the loss is not finite"
                                                    : "step 1: the gradients are not finite"));
    }
}

TEST_CASE("[threads] state that is written under one cut goes on under another") {
  const toy<float> t{.seed = 16, .ties = some_ties};
  const adamw optimizer{.learning_rate = 0.01};
  const trainer_options options{.clip_norm = 0.5};
  const auto whole = even_layout(t.layers, schedule_of("1f1b", 1, 4));
  const auto undisturbed = train(t, whole, 5, optimizer, options);
  for (const auto& from :
       {whole, even_layout(t.layers, schedule_of("zb_v", 3, 4)), even_layout(t.layers, schedule_of("1f1b", 4, 4))})
    for (const int to : {1, 2, 4}) {
      CAPTURE(from.ranks());
      CAPTURE(to);
      std::map<std::pair<int, std::string>, std::pair<state_slice, std::vector<std::byte>>> saved;
      std::mutex guard;
      bool twice = false;
      hetsched::run_on_threads(toy_communicator<float>::connect(from.ranks()), [&](toy_communicator<float>& comm) {
        auto trainer = make_trainer(t, from, comm, optimizer, options);
        for (int i = 0; i < 3; ++i) (void)one_step(t, trainer, comm.rank());
        const std::lock_guard lock(guard);
        for (const auto& s : trainer.state(true))
          twice = !saved.emplace(std::pair(s.layer, s.name), std::pair(s, std::vector<std::byte>(s.bytes.begin(), s.bytes.end())))
                       .second ||
                  twice;
      });
      CHECK_FALSE(twice);
      CHECK(saved.size() == 4 * 7);  // value, two moments and a count of 9 parameters, two of them tied to others
      const auto& moment = saved.at({2, "adamw.second_moment.0"}).first;
      CHECK(moment.element == "f32");
      CHECK(updates_in(saved.at({2, "updates.0"}).second) == 3);
      CHECK(moment.shape == std::vector<std::size_t>{3, 3});
      trained<float> resumed;
      std::vector<std::vector<matrix<float>>> parameters(9);
      hetsched::run_on_threads(toy_communicator<float>::connect(to), [&](toy_communicator<float>& comm) {
        const auto layout = even_layout(t.layers, schedule_of("1f1b", to, 4));
        auto with = options;
        if (to == 2) with.first_step = 3;
        auto trainer = make_trainer(t, layout, comm, optimizer, with);
        for (auto& s : trainer.state()) {
          const auto& [slice, bytes] = saved.at({s.layer, s.name});
          if (slice.element != s.element || slice.shape != s.shape ||
              (bytes.size() != s.bytes.size() && !s.bytes.empty()))  // empty: on the other rank
            throw std::logic_error("other slices");
          std::copy_n(bytes.begin(), s.bytes.size(), s.bytes.begin());
        }
        if (to != 2) trainer.set_committed_step(3);
        step_report last;
        for (int i = 0; i < 2; ++i) last = one_step(t, trainer, comm.rank());
        const std::lock_guard lock(guard);
        if (last.step != 4 || last.loss != undisturbed.losses[4] || last.gradient_norm != undisturbed.norms[4])
          throw std::logic_error("other steps");
        for (const auto& [number, layer] : trainer.layers())
          parameters[static_cast<std::size_t>(number)] = copies_of<float>(layer->parameters());
      });
      CHECK(parameters == undisturbed.parameters);
    }
}

namespace {

/// Takes a running mean of its inputs off them, and is told by nobody but its checkpoint what that is.
struct centred {
  using tensor = matrix<double>;
  struct context {};
  tensor forward(const tensor& x, context&) {
    tensor y = x;
    for (std::size_t i = 0; i < x.rows(); ++i)
      for (std::size_t j = 0; j < x.columns(); ++j) {
        y(i, j) -= means[0](0, j);
        means[0](0, j) += 0.1 * (x(i, j) - means[0](0, j));
      }
    return y;
  }
  tensor backward(const tensor& dy, context&) { return dy; }
  std::vector<tensor>& parameters() { return none; }
  std::vector<tensor>& gradients() { return none; }
  std::vector<tensor>& buffers() { return means; }
  static std::vector<tensor_name> buffer_names() { return {{"means", 0}}; }
  std::vector<tensor> none, means{tensor(1, toy<double>::width)};
};

}  // namespace

TEST_CASE("[threads] buffers of layers are part of the state") {
  const toy<double> t{.layers = 6, .seed = 33};
  using tensor = matrix<double>;
  // A layer of its own, and one inside of a pair.
  const auto make = [&](int l) -> any_layer<tensor> {
    if (l == 1) return centred();
    if (l == 4) return layer_tuple<tensor, any_layer<tensor>, centred>(t.make(l), centred());
    return t.make(l);
  };
  using key = std::pair<int, std::string>;
  const auto run = [&](int ranks, int from, int to, std::map<key, std::vector<std::byte>>& saved) {
    std::vector<double> losses;
    std::mutex guard;
    const auto layout = even_layout(t.layers, schedule_of("1f1b", ranks, 4));
    std::map<key, std::vector<std::byte>> written;
    hetsched::run_on_threads(toy_communicator<double>::connect(ranks), [&](toy_communicator<double>& comm) {
      auto trainer = hetsched::make_trainer<tensor>(layout, make,
                                                    [](int, int rows) {
                                                      return tensor_shape{static_cast<std::size_t>(rows), toy<double>::width};
                                                    },
                                                    comm, usual, {.first_step = from});
      if (from > 0)
        for (auto& s : trainer.state()) std::copy_n(saved.at({s.layer, s.name}).begin(), s.bytes.size(), s.bytes.begin());
      for (int step = from; step < to; ++step) {
        const double loss = one_step(t, trainer, comm.rank()).loss;
        const std::lock_guard lock(guard);
        if (comm.rank() == 0) losses.push_back(loss);
      }
      const std::lock_guard lock(guard);
      for (const auto& s : trainer.state()) {  // of other ranks' layers, too
        CAPTURE(s.name);
        CHECK(s.own_name == (s.name != "buffer.0" ? "" : s.layer == 1 ? "means" : "1.means"));
      }
      for (const auto& s : trainer.state(true)) {
        const bool fresh = written.emplace(key(s.layer, s.name), std::vector<std::byte>(s.bytes.begin(), s.bytes.end())).second;
        CHECK(fresh);
      }
    });
    saved = written;
    return losses;
  };
  std::map<key, std::vector<std::byte>> saved;
  const auto undisturbed = run(1, 0, 5, saved);
  CHECK(saved.count({1, "buffer.0"}) == 1);
  CHECK(saved.count({4, "buffer.0"}) == 1);
  for (const int other : {1, 2, 3}) {
    auto losses = run(3, 0, 3, saved);
    const auto rest = run(other, 3, 5, saved);
    losses.insert(losses.end(), rest.begin(), rest.end());
    CHECK(losses == undisturbed);
    auto without = saved;
    (void)run(3, 0, 3, without);
    without.at({1, "buffer.0"}).assign(without.at({1, "buffer.0"}).size(), std::byte{});
    CHECK(run(other, 3, 5, without) != rest);
  }
}

TEST_CASE("[threads] trainings that cannot be") {
  const toy<double> t{.seed = 17};
  const auto layout = even_layout(t.layers, schedule_of("1f1b", 2, 2));
  const auto why = [&](const toy<double>& of, const training_layout& how, int ranks, auto make,
                       std::size_t width) -> std::string {
    try {
      hetsched::run_on_threads(toy_communicator<double>::connect(ranks), [&](toy_communicator<double>& comm) {
        trainer_options options;
        options.ties = of.ties;
        (void)toy_trainer<double, sgd>(
            how, make,
            [&](int) {
              return tensor_shape{1, comm.rank() == 1 ? width : 3};
            },
            comm, usual, options);
      });
    } catch (const input_error& e) {
      return e.what();
    }
    return "";
  };
  const auto plain = [&](int l) { return t.make(l); };
  CHECK(why(t, layout, 2, plain, 3).empty());
  CHECK(contains(why(t, layout, 3, plain, 3), "a training on 2 ranks, but the communicator has 3"));
  CHECK(contains(why(t, layout, 2, plain, 4), "ranks 0 and 1 expect tensors of other shapes"));
  auto tied = t;
  tied.ties = {{{0, 0}, {1, 0}}};
  CHECK(contains(why(tied, layout, 2, plain, 3), "tied, but"));
  tied.ties = {{{0, 0}, {2, 0}}};
  CHECK(contains(why(tied, layout, 2, plain, 3),
                 "parameter 0 of layer 0 and parameter 0 of layer 2 are tied, but begin with other values"));
  tied.ties = {{{0, 0}, {2, 1}}};
  CHECK(contains(why(tied, layout, 2, plain, 3), "there is no parameter 1 of layer 2"));
  const auto no_gradients = [&](int l) -> any_layer<matrix<double>> {
    auto layer = activation<double>();
    if (l == 7) layer.sum.clear();
    return layer;
  };
  CHECK(contains(why(t, layout, 2, no_gradients, 3), "layer 7 has 1 parameters, but 0 gradients"));
  auto broken = layout;
  broken.pipelines[0].order.lanes[1].actions.pop_back();
  CHECK(contains(why(t, broken, 2, plain, 3), "the schedule cannot run"));
  auto serving = layout;
  serving.pipelines[0].order = forward_schedule(serving.pipelines[0].order.ranks, serving.pipelines[0].order.microbatches);
  CHECK(contains(why(t, serving, 2, plain, 3), "its schedule has no backwards"));
}
