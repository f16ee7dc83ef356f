// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

// Of c10's logging, which has the names of the test's.
#undef CHECK

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <unistd.h>

#include <hetsched/hetsched.hpp>
#include <hetsched/io/checkpoint/checkpoint.hpp>
#include <hetsched/runtime.hpp>
#include <hetsched/torch.hpp>
#include <hetsched/torch/state_file.hpp>

#include "small_gpt.hpp"

namespace {

namespace nn = torch::nn;
using doubles = hetsched::torch_tensor<double>;
using namespace small_gpt;

// The losses of a training on threads.
template <class Optimizer>
std::vector<double> losses_on_threads(const hetsched::training_layout& layout, int ranks, const Optimizer& optimizer,
                                      const hetsched::trainer_options& options = {}, int many = steps) {
  std::vector<double> losses;
  using channels = hetsched::thread_communicator<torch::Tensor>;
  hetsched::run_on_threads(channels::connect(ranks), [&](channels& channel) {
    auto trainer = hetsched::make_trainer<torch::Tensor>(layout, make_layer, shape_after, channel, optimizer, options);
    for (int s = 0; s < many; ++s) {
      auto b = numbers_of(s);
      const auto own = trainer.samples();
      for (auto* tensors : {&b.inputs, &b.targets})
        for (auto& t : *tensors) t = t.narrow(0, own.first, own.size());
      const auto report = trainer.step(b.inputs, b.targets, hetsched::torch_loss(cross_entropy));
      if (channel.rank() == 0) losses.push_back(report.loss);
    }
  });
  return losses;
}

template <class Optimizer>
std::vector<double> losses_on_threads(const hetsched::schedule& order, int ranks, const Optimizer& optimizer,
                                      const hetsched::trainer_options& options = {}) {
  return losses_on_threads(hetsched::even_layout(layers, order, samples), ranks, optimizer, options);
}

double apart(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

/// What a dropout without parameters gives of the same batch in each step of a training, forward by forward.
std::vector<torch::Tensor> masks_of_steps(int many, std::int64_t first, hetsched::recomputation recompute) {
  std::vector<torch::Tensor> seen;
  auto layout = hetsched::even_layout(2, one_f_one_b(1));
  layout.pipelines[0].groups.assign(1, {.recompute = recompute});
  using channels = hetsched::thread_communicator<torch::Tensor>;
  hetsched::run_on_threads(channels::connect(1), [&](channels& channel) {
    auto trainer = hetsched::make_trainer<torch::Tensor>(
        layout,
        [&](int layer) -> hetsched::any_layer<torch::Tensor> {
          if (layer == 1) return hetsched::torch_layer(nn::Linear(8, 8));
          nn::Dropout dropout(0.5);
          return hetsched::torch_layer<>(dropout.ptr(), [&seen, dropout](const torch::Tensor& x) mutable {
            seen.push_back(dropout->forward(x).detach());
            return seen.back().clone();
          });
        },
        [](int) {
          return hetsched::tensor_shape{8, 8};
        },
        channel, hetsched::sgd{.learning_rate = 0.1}, hetsched::trainer_options{.first_step = first});
    std::vector<torch::Tensor> inputs;
    for (int m = 0; m < microbatches; ++m) inputs.push_back(torch::full({8, 8}, m + 1.0));
    for (int s = 0; s < many; ++s)
      trainer.step(inputs, inputs,
                   hetsched::torch_loss([](const auto& y, const auto& wanted) { return torch::mse_loss(y, wanted); }));
  });
  return seen;
}

// What a call throws.
template <class Body>
std::string thrown(Body&& body) {
  try {
    body();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "nothing";
}

}  // namespace

TEST_CASE("torch: modules train with the same bits under every schedule, and LibTorch's losses") {
  torch::set_num_threads(1);
  const hetsched::torch_optimizer<torch::optim::AdamW> optimizer{adamw};
  const auto one = losses_on_threads(one_f_one_b(1), 1, optimizer);
  CHECK(one.back() < one.front() - 0.1);
  CHECK(apart(one, losses_of_libtorch<torch::optim::AdamW>(adamw)) < 1e-6);
  for (const int ranks : {2, 4}) {
    CHECK(losses_on_threads(one_f_one_b(ranks), ranks, optimizer) == one);
    CHECK(losses_on_threads(hetsched::interleaved_1f1b(ranks, 2, microbatches), ranks, optimizer) == one);
  }
  // A backward in two halves adds up the same products.
  for (const int ranks : {1, 2, 4}) CHECK(losses_on_threads(hetsched::zb_h1(ranks, microbatches), ranks, optimizer) == one);
}

TEST_CASE("torch: fifty steps under six schedules have LibTorch's losses, to 1e-6") {
  torch::set_num_threads(1);
  const hetsched::torch_optimizer<torch::optim::AdamW> optimizer{adamw};
  const auto expected = losses_of_libtorch<torch::optim::AdamW>(adamw, 50);
  REQUIRE(expected.size() == 50);
  for (const auto& order :
       {hetsched::gpipe(2, microbatches), one_f_one_b(2), hetsched::interleaved_1f1b(2, 2, microbatches),
        hetsched::looped_bfs(2, 2, microbatches), hetsched::zb_h1(2, microbatches), hetsched::zb_v(2, microbatches)}) {
    CAPTURE(order.stages);
    CHECK(apart(losses_on_threads(hetsched::even_layout(layers, order, samples), 2, optimizer, {}, 50), expected) < 1e-6);
  }
}

TEST_CASE("torch: optimizers of torch train as LibTorch's own, with state that is sharded as any other") {
  torch::set_num_threads(1);
  const auto sgd = torch::optim::SGDOptions(0.05).momentum(0.9).dampening(0.1).nesterov(false).weight_decay(0.01);
  const auto one = losses_on_threads(one_f_one_b(1), 1, hetsched::torch_optimizer<torch::optim::SGD>{sgd});
  CHECK(apart(one, losses_of_libtorch<torch::optim::SGD>(sgd)) < 1e-6);
  CHECK(losses_on_threads(one_f_one_b(2), 2, hetsched::torch_optimizer<torch::optim::SGD>{sgd}) == one);
  const auto adam = torch::optim::AdamOptions(1e-2).amsgrad(true);
  const auto largest = losses_on_threads(one_f_one_b(1), 1, hetsched::torch_optimizer<torch::optim::Adam>{adam});
  CHECK(apart(largest, losses_of_libtorch<torch::optim::Adam>(adam)) < 1e-6);
  // The library's own do the same arithmetic.
  const hetsched::adamw own{.learning_rate = 1e-2, .weight_decay = 0.1};
  CHECK(apart(losses_on_threads(one_f_one_b(2), 2, own), losses_of_libtorch<torch::optim::AdamW>(adamw)) < 1e-6);
}

TEST_CASE("torch: a training goes on from what its state was, of modules and of torch's optimizers") {
  torch::set_num_threads(1);
  using channels = hetsched::thread_communicator<torch::Tensor>;
  const auto layout = hetsched::even_layout(layers, one_f_one_b(1), samples);
  std::vector<std::vector<std::byte>> kept;
  std::vector<double> first, again;
  const auto train = [&](std::vector<double>& losses, int from, auto&& before) {
    hetsched::run_on_threads(channels::connect(1), [&](channels& channel) {
      auto trainer = hetsched::make_trainer<torch::Tensor>(layout, make_layer, shape_after, channel,
                                                           hetsched::torch_optimizer<torch::optim::AdamW>{adamw});
      for (int s = from; s < 6; ++s) {
        const auto b = numbers_of(s);
        before(trainer, s);
        losses.push_back(trainer.step(b.inputs, b.targets, hetsched::torch_loss(cross_entropy)).loss);
      }
    });
  };
  train(first, 0, [&](auto& trainer, int s) {
    if (s != 3) return;
    for (const auto& slice : trainer.state()) kept.emplace_back(slice.bytes.begin(), slice.bytes.end());
  });
  train(again, 3, [&](auto& trainer, int s) {
    if (s != 3) return;
    const auto state = trainer.state();
    REQUIRE(state.size() == kept.size());
    CHECK(std::any_of(state.begin(), state.end(), [](const auto& slice) { return slice.name == "torch_adamw.exp_avg_sq.0"; }));
    for (std::size_t i = 0; i < state.size(); ++i) std::copy(kept[i].begin(), kept[i].end(), state[i].bytes.begin());
    trainer.state_loaded();
  });
  CHECK(again == std::vector<double>(first.begin() + 3, first.end()));
}

TEST_CASE("torch: a training goes on, on other ranks, from a file of torch's with the modules' names") {
  torch::set_num_threads(1);
  using channels = hetsched::thread_communicator<torch::Tensor>;
  const auto folder = std::filesystem::temp_directory_path() / ("hetsched_torch_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const std::string path = folder / "state.pt", model_only = folder / "model.pt";
  const auto train = [&](const hetsched::schedule& order, int ranks, int from, int to, auto&& before) {
    std::vector<double> losses;
    hetsched::run_on_threads(channels::connect(ranks), [&](channels& channel) {
      auto trainer =
          hetsched::make_trainer<torch::Tensor>(hetsched::even_layout(layers, order, samples), make_layer, shape_after, channel,
                                                hetsched::torch_optimizer<torch::optim::AdamW>{adamw}, {.shard_optimizer = true});
      for (int s = from; s < to; ++s) {
        if (s == 3) before(trainer, channel);
        const auto b = numbers_of(s);
        const auto report = trainer.step(b.inputs, b.targets, hetsched::torch_loss(cross_entropy));
        if (channel.rank() == 0) losses.push_back(report.loss);
      }
      CHECK(trainer.committed_step() == to);
    });
    return losses;
  };
  const auto first = train(hetsched::zb_h1(2, microbatches), 2, 0, 6,
                           [&](auto& trainer, auto& comm) { hetsched::save_torch(trainer, comm, path, {.writer = 1}); });
  const std::vector<double> later(first.begin() + 3, first.end());
  CHECK(train(one_f_one_b(4), 4, 3, 6, [&](auto& trainer, auto& comm) { hetsched::load_torch(trainer, comm, path); }) == later);

  const auto file = hetsched::detail::read_torch_archive(path);
  CHECK(file.at("step").toInt() == 3);
  auto model = file.at("model").toGenericDict();
  const auto optimizer = file.at("optimizer").toGenericDict();
  CHECK(model.size() == 2 + 6 * 12 + 4);
  CHECK(model.at("1.mlp.1.weight").toTensor().sizes() == at::IntArrayRef({4 * width, width}));
  CHECK(optimizer.at("0.places").toGenericDict().at("step").toTensor().item<float>() == 3);
  CHECK(optimizer.at("0.places").toGenericDict().at("exp_avg_sq").toTensor().sizes() == at::IntArrayRef({length, width}));

  // The model alone: new state, so other losses; and what does not fit.
  const auto loads = [&](const hetsched::detail::torch_dict& from) {
    hetsched::detail::write_torch_archive(model_only, from);
    std::vector<double> losses;
    const auto said = thrown([&] {
      losses = train(one_f_one_b(1), 1, 3, 4, [&](auto& trainer, auto& comm) {
        hetsched::load_torch(trainer, comm, model_only);
        trainer.set_committed_step(3);
      });
    });
    return losses == std::vector<double>{later[0]} ? "the loss" : said;
  };
  CHECK(loads(model) == "the loss");
  model.insert_or_assign("7.1.bias", torch::zeros({3}));
  CHECK(loads(model).find(model_only + ": 7.1.bias: found the shape [3], expected [11]") != std::string::npos);
  CHECK(model.erase("7.1.bias") == 1);
  CHECK(loads(model).find(model_only + ": 7.1.bias: missing") != std::string::npos);
  CHECK(thrown([&] {
          static_cast<void>(hetsched::detail::read_torch_archive(folder / "none"));
        }).ends_with("none: cannot be opened"));
  std::filesystem::remove_all(folder);
}

TEST_CASE("torch: checkpoints know tensors by the modules' names, in whatever order they are registered") {
  torch::set_num_threads(1);
  using channels = hetsched::thread_communicator<torch::Tensor>;
  const auto folder = std::filesystem::temp_directory_path() / ("hetsched_names_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  // Two linears of one shape, under these names in this order.
  const auto train = [&](const hetsched::schedule& order, int ranks, const std::vector<std::string>& names, int from, int to) {
    std::vector<double> losses;
    hetsched::run_on_threads(channels::connect(ranks), [&](channels& channel) {
      const auto make = [&](int layer) {
        return hetsched::torch_seeded(static_cast<std::uint64_t>(layer) + 1, [&] {
          const auto module = std::make_shared<nn::Module>();
          nn::Linear first(width, width), second(width, width);
          for (const auto& name : names) module->register_module(name, name == "second" ? second : first);
          return hetsched::torch_layer(
              module, [first, second](const torch::Tensor& x) mutable { return x + second(torch::tanh(first(x))); });
        });
      };
      auto trainer = hetsched::make_trainer<torch::Tensor>(hetsched::even_layout(4, order, samples), make,
                                                           [](int) {
                                                             return hetsched::tensor_shape{samples, width};
                                                           },
                                                           channel, hetsched::torch_optimizer<torch::optim::AdamW>{adamw},
                                                           {.shard_optimizer = true});
      if (from > 0) {
        auto slices = trainer.state();
        hetsched::load_checkpoint(*hetsched::find_checkpoint(folder).newest, slices);
        trainer.state_loaded();
        trainer.set_committed_step(from);
      }
      std::vector<torch::Tensor> inputs, targets;
      for (int m = 0; m < microbatches; ++m) {
        inputs.push_back(torch::sin(torch::arange(samples * width).view({samples, width}) * (m + 1)).to(torch::kFloat));
        targets.push_back(torch::roll(inputs.back(), 1, 1).contiguous());
      }
      const auto loss = hetsched::torch_loss(
          [](const torch::Tensor& y, const torch::Tensor& wanted) { return nn::functional::mse_loss(y, wanted); });
      for (int s = from; s < to; ++s) {
        const auto report = trainer.step(inputs, targets, loss);
        if (channel.rank() == 0) losses.push_back(report.loss);
      }
      if (from > 0) return;
      hetsched::write_checkpoint_part(folder, to, channel.rank(), trainer.state(true));
      std::vector<std::vector<double>> all;
      REQUIRE(channel.gather({}, all, hetsched::deadline_in(60)) == hetsched::wait_result::progress);
      if (channel.rank() == 0) hetsched::commit_checkpoint(folder, to, ranks);
    });
    return losses;
  };
  const auto whole = train(one_f_one_b(1), 1, {"first", "second"}, 0, 6);
  std::filesystem::remove_all(folder / "step-000006");
  const auto before = train(hetsched::zb_h1(2, microbatches), 2, {"first", "second"}, 0, 3);
  CHECK(before == std::vector<double>(whole.begin(), whole.begin() + 3));
  const auto checkpoint = *hetsched::find_checkpoint(folder).newest;
  CHECK(std::any_of(checkpoint.slices.begin(), checkpoint.slices.end(), [](const auto& s) {
    return s.layer == 3 && s.name == "torch_adamw.exp_avg_sq.2" && s.own_name == "second.weight";
  }));
  CHECK(train(one_f_one_b(4), 4, {"first", "second"}, 3, 6) == std::vector<double>(whole.begin() + 3, whole.end()));
  CHECK(train(one_f_one_b(1), 1, {"second", "first"}, 3, 6) == std::vector<double>(whole.begin() + 3, whole.end()));
  const auto renamed = thrown([&] { static_cast<void>(train(one_f_one_b(1), 1, {"up", "second"}, 3, 6)); });
  CHECK(renamed.find("layer 0, parameter.0 (up.weight)") != std::string::npos);
  CHECK(renamed.find("layer 0, parameter.0 (first.weight)") != std::string::npos);
  std::filesystem::remove_all(folder);
}

TEST_CASE("torch: a module of tensors by their names") {
  const auto weight = torch::ones({2, 2}).requires_grad_(), frozen = torch::ones({2});
  const auto module = hetsched::named_torch_module({{"a.0.weight", weight}, {"a.0.bias", frozen}, {"scale", weight}},
                                                   {{"a.1.mean", torch::zeros({3})}});
  hetsched::torch_layer<> layer(module, [&](const torch::Tensor& x) { return x.matmul(weight); });
  REQUIRE(layer.parameters().size() == 1);
  CHECK(layer.parameters()[0].is_same(weight));
  using names = std::vector<std::pair<std::string, int>>;
  CHECK(layer.parameter_names() == names{{"scale", 0}, {"a.0.weight", 0}});
  CHECK(layer.buffer_names() == names{{"a.0.bias", 0}, {"a.1.mean", 1}});
  for (const std::string name : {"a..b", "", "a."})
    CHECK(thrown([&] {
            static_cast<void>(hetsched::named_torch_module({{name, frozen}}));
          }) == "a tensor of a module: found the name \"" + name + "\", expected no empty part");
  CHECK(thrown([&] {
          static_cast<void>(hetsched::named_torch_module({{"b", frozen}}, {{"b", frozen}}));
        }) == "a tensor of a module: the name \"b\" is there twice");
}

TEST_CASE("torch: modules are layers as check_layer wants them, in doubles") {
  torch::set_num_threads(1);
  const auto text = [](auto module, const hetsched::tensor_shape& in, const hetsched::tensor_shape& out) {
    module->to(torch::kDouble);
    return hetsched::check_layer<doubles>(hetsched::torch_layer<doubles>(module), in, {.output = out}).text();
  };
  CHECK(hetsched::torch_seeded(3, [&] {
          return text(std::make_shared<block_module>(), {2, length, width}, {2, length, width});
        }) == "");
  // Modules whose graphs keep their outputs, whose outputs are views of their inputs, and that compute nothing.
  CHECK(text(nn::Sequential(nn::Linear(5, 4), nn::Tanh()), {3, 5}, {3, 4}) == "");
  CHECK(text(nn::Sequential(nn::Linear(6, 4), nn::Softmax(-1)), {3, 6}, {3, 4}) == "");
  CHECK(text(nn::Sequential(nn::Unflatten(nn::UnflattenOptions(1, {2, 3}))), {4, 6}, {4, 2, 3}) == "");
  CHECK(text(nn::Sequential(nn::Identity()), {4, 6}, {4, 6}) == "");
  // Dropout draws other numbers where the input is another, as in finite differences, and that is said; in evaluation none.
  CHECK(text(nn::Sequential(nn::Dropout(0.5)), {8, 8}, {8, 8}) != "");
  nn::Sequential still(nn::Linear(8, 8), nn::Dropout(0.5));
  still->eval();
  CHECK(text(still, {8, 8}, {8, 8}) == "");
}

TEST_CASE("torch: recomputed and frozen modules train with the same bits") {
  torch::set_num_threads(1);
  const hetsched::torch_optimizer<torch::optim::AdamW> optimizer{adamw};
  const auto one = losses_on_threads(one_f_one_b(1), 1, optimizer);
  auto layout = hetsched::even_layout(layers, hetsched::zb_h1(2, microbatches), samples);
  layout.pipelines[0].groups.assign(2, {.recompute = hetsched::recomputation::full});
  CHECK(losses_on_threads(layout, 2, optimizer) == one);
  // Two data ranks for each stage, without and with a part of the optimizer's state each.
  layout.pipelines[0].groups.assign(2, {.degrees = {.data = 2}});
  const auto apiece = losses_on_threads(layout, 4, optimizer);
  CHECK(apart(apiece, one) < 1e-5);
  CHECK(losses_on_threads(layout, 4, optimizer, {.shard_optimizer = true}) == apiece);

  nn::Sequential net(nn::Linear(4, 6), nn::BatchNorm1d(6), nn::Linear(6, 3));
  for (auto& p : net[0]->parameters()) p.requires_grad_(false);
  hetsched::torch_layer<> layer(net);
  CHECK(layer.parameters().size() == 4);
  // The frozen weight and bias, running mean and variance; how many batches there were is no float.
  REQUIRE(layer.buffers().size() == 4);
  hetsched::torch_layer<>::context c;
  static_cast<void>(layer.backward(layer.forward(torch::randn({5, 4}), c), c));
  CHECK(layer.gradients()[0].abs().sum().item<float>() > 0);
  CHECK(layer.buffers()[2].is_same(dynamic_cast<nn::BatchNorm1dImpl&>(*net[1]).running_mean));
}

TEST_CASE("torch: dropout draws the same numbers when it is recomputed, and under every schedule") {
  torch::set_num_threads(1);
  const auto train = [](const hetsched::schedule& order, int ranks, hetsched::recomputation recompute, std::uint64_t seed = 0) {
    static constexpr int deep = 4, wide = 8;
    auto layout = hetsched::even_layout(deep, order);
    layout.pipelines[0].groups.assign(static_cast<std::size_t>(ranks), {.recompute = recompute});
    std::vector<double> losses;
    using channels = hetsched::thread_communicator<torch::Tensor>;
    hetsched::run_on_threads(channels::connect(ranks), [&](channels& channel) {
      auto trainer = hetsched::make_trainer<torch::Tensor>(
          layout,
          [&](int layer) {
            return hetsched::torch_seeded(static_cast<std::uint64_t>(layer), [&] {
              hetsched::torch_layer<> made(nn::Sequential(nn::Linear(wide, wide), nn::Tanh(), nn::Dropout(0.5)));
              if (seed != 0) made.draw(seed);
              return made;
            });
          },
          [](int) {
            return hetsched::tensor_shape{2, wide};
          },
          channel, hetsched::sgd{.learning_rate = 0.1});
      std::vector<torch::Tensor> inputs, targets;
      for (int m = 0; m < microbatches; ++m) {
        inputs.push_back((torch::arange(2.0 * wide).reshape({2, wide}) + m).sin());
        targets.push_back(inputs.back() * 0.5);
      }
      for (int s = 0; s < 3; ++s) {
        const auto loss =
            trainer
                .step(inputs, targets,
                      hetsched::torch_loss([](const auto& y, const auto& wanted) { return torch::mse_loss(y, wanted); }))
                .loss;
        if (channel.rank() == 0) losses.push_back(loss);
      }
    });
    return losses;
  };
  constexpr auto none = hetsched::recomputation::none, full = hetsched::recomputation::full;
  const auto one = train(one_f_one_b(1), 1, none);
  CHECK(train(one_f_one_b(1), 1, full) == one);
  CHECK(train(one_f_one_b(2), 2, full) == one);
  CHECK(train(hetsched::zb_h1(2, microbatches), 2, full) == one);
  CHECK(train(hetsched::gpipe(4, microbatches), 4, none) == one);
  CHECK(train(one_f_one_b(1), 1, none, 7) != one);
  // Each microbatch and each step has numbers of its own, half of them kept.
  hetsched::torch_layer<> alone(nn::Sequential(nn::Dropout(0.5)));
  hetsched::torch_layer<>::context c;
  const auto x = torch::ones({64, 64}), y = alone.forward(x, c);
  CHECK(std::abs(y.count_nonzero().item<double>() / 4096 - 0.5) < 0.1);
  CHECK(alone.forward(x, c).equal(y));
  CHECK(!alone.forward(x * 2, c).equal(y * 2));
  // The program's own numbers go on as if nobody had drawn.
  torch::manual_seed(5);
  const auto drawn = torch::rand({1});
  torch::manual_seed(5);
  CHECK(alone.forward(x, c).equal(y));
  CHECK(torch::rand({1}).equal(drawn));
  // Numbers that a function of the caller's draws, which nobody sees but by draw().
  hetsched::torch_layer<> own(nn::Linear(4, 4).ptr(), [](const torch::Tensor& in) { return in + torch::rand({2, 4}); });
  const auto zeros = torch::zeros({2, 4});
  CHECK(!own.forward(zeros, c).equal(own.forward(zeros, c)));
  own.draw(1);
  CHECK(own.forward(zeros, c).equal(own.forward(zeros, c)));
}

TEST_CASE("torch: a dropout whose layer trains nothing has other numbers in the next step, and those of a step once more") {
  torch::set_num_threads(1);
  constexpr std::size_t each = microbatches;
  const auto seen = masks_of_steps(2, 0, hetsched::recomputation::none);
  REQUIRE(seen.size() == 2 * each);
  for (std::size_t m = 0; m < each; ++m) CHECK(!seen[m].equal(seen[each + m]));
  // A training that goes on from there has those of an uninterrupted one.
  const auto later = masks_of_steps(1, 1, hetsched::recomputation::none);
  REQUIRE(later.size() == each);
  for (std::size_t m = 0; m < each; ++m) CHECK(later[m].equal(seen[each + m]));
  // Recomputed, each is there twice.
  const auto again = masks_of_steps(2, 0, hetsched::recomputation::full);
  REQUIRE(again.size() == 4 * each);
  for (const auto& mask : seen)
    CHECK(std::count_if(again.begin(), again.end(), [&](const torch::Tensor& t) { return t.equal(mask); }) == 2);
}

TEST_CASE("torch: forwards in eval() go on beside each other, and draw nothing") {
  torch::set_num_threads(1);
  // Each forward waits until the other one has begun.
  std::atomic<int> begun{0};
  std::atomic<bool> met{true};
  const auto evaluate = [&] {
    nn::Sequential net(nn::Dropout(0.5));
    net->eval();
    hetsched::torch_layer<> layer(net.ptr(), [&, net](const torch::Tensor& x) mutable {
      ++begun;
      for (const auto until = hetsched::deadline_in(10); begun < 2 && met; std::this_thread::yield())
        if (std::chrono::steady_clock::now() > until) met = false;
      return net->forward(x);
    });
    hetsched::torch_layer<>::context c;
    const auto x = torch::ones({4, 4});
    CHECK(layer.forward(x, c).equal(x));
  };
  std::thread other(evaluate);
  evaluate();
  other.join();
  CHECK(met);
}

TEST_CASE("torch: a forward that draws may make modules under a seed") {
  hetsched::torch_layer<> layer(nn::Linear(4, 4).ptr(), [](const torch::Tensor& x) {
    return x + hetsched::torch_seeded(3, [] { return torch::rand({2, 4}); });
  });
  layer.draw(1);
  hetsched::torch_layer<>::context c;
  torch::manual_seed(3);
  const auto drawn = torch::rand({2, 4});
  CHECK(layer.forward(torch::zeros({2, 4}), c).equal(drawn));
}

TEST_CASE("torch: a forward takes the generator when no other thread is at it") {
  const auto generator = at::detail::getDefaultCPUGenerator();
  torch::manual_seed(17);
  hetsched::torch_layer<> layer(nn::Sequential(nn::Dropout(0.5)));
  std::atomic<bool> ended{false};
  std::unique_lock hold(at::Generator(generator).mutex());  // as a kernel of torch's does that draws
  std::thread other([&] {
    hetsched::torch_layer<>::context c;
    static_cast<void>(layer.forward(torch::ones({4, 4}), c));
    ended = true;
  });
  bool is_left = true;
  for (const auto until = hetsched::deadline_in(0.2); std::chrono::steady_clock::now() < until; std::this_thread::yield())
    is_left = is_left && generator.current_seed() == 17;
  CHECK(is_left);
  CHECK(!ended);
  hold.unlock();
  other.join();
  CHECK(generator.current_seed() == 17);
}

TEST_CASE("torch: modules that draw without a dropout among them draw the same numbers when they are recomputed") {
  torch::set_num_threads(1);
  nn::MultiheadAttention attention(nn::MultiheadAttentionOptions(8, 2).dropout(0.5));
  nn::LSTM lstm(nn::LSTMOptions(8, 8).num_layers(2).dropout(0.5));
  nn::GRU gru(nn::GRUOptions(8, 8).num_layers(2).dropout(0.5));
  nn::RNN rnn(nn::RNNOptions(8, 8).num_layers(2).dropout(0.5));
  nn::RReLU rrelu;
  nn::FractionalMaxPool2d pool(nn::FractionalMaxPool2dOptions(2).output_size(3));
  using layer = hetsched::torch_layer<>;
  std::pair<std::string, layer> all[] = {
      {"attention", layer(attention.ptr(), [=](const auto& x) mutable { return std::get<0>(attention->forward(x, x, x)); })},
      {"lstm", layer(lstm.ptr(), [=](const auto& x) mutable { return std::get<0>(lstm->forward(x)); })},
      {"gru", layer(gru.ptr(), [=](const auto& x) mutable { return std::get<0>(gru->forward(x)); })},
      {"rnn", layer(rnn.ptr(), [=](const auto& x) mutable { return std::get<0>(rnn->forward(x)); })},
      {"rrelu", layer(rrelu)},
      {"pool", layer(pool)}};
  for (auto& [name, one] : all) {
    CAPTURE(name);
    layer::context c;
    const auto x = torch::randn({8, 8, 8});
    const auto y = one.forward(x, c);
    const auto dx = one.backward(torch::ones_like(y), c);
    CHECK(one.forward(x, c).equal(y));
    CHECK(one.backward(torch::ones_like(y), c).equal(dx));
    CHECK(!one.forward(x + 0.001, c).equal(y));
  }
}

TEST_CASE("torch: frozen weights of other elements beside parameters, and a parameter that nothing reads") {
  struct quantised : nn::Module {
    quantised() {
      weight = register_parameter("weight", torch::randint(-100, 100, {4, 4}).to(torch::kChar), false);
      scale = register_parameter("scale", torch::full({4}, 0.01, torch::kHalf), false);
      bias = register_parameter("bias", torch::zeros({4}));
      unused = register_parameter("unused", torch::ones({2}));
    }
    torch::Tensor forward(const torch::Tensor& x) {
      return torch::tanh(x.matmul(weight.to(torch::kFloat) * scale.to(torch::kFloat)) + bias);
    }
    torch::Tensor weight, scale, bias, unused;
  };
  const auto module = std::make_shared<quantised>();
  hetsched::torch_layer<> layer(module);
  CHECK(layer.parameters().size() == 2);
  CHECK(layer.buffers().empty());
  hetsched::torch_layer<>::context c;
  const auto x = torch::randn({3, 4});
  const auto y = layer.forward(x, c);
  const auto dx = layer.backward(torch::ones({3, 4}), c);
  const auto dz = 1 - y.square();
  CHECK(torch::allclose(layer.gradients()[0], dz.sum(0)));
  CHECK(torch::allclose(dx, dz.matmul((module->weight.to(torch::kFloat) * 0.01).t()), 1e-2));
  CHECK(layer.gradients()[1].equal(torch::zeros({2})));
  module->scale.requires_grad_();
  CHECK(thrown([&] { hetsched::torch_layer<> trained(module); }) ==
        "the parameter scale is of Half on cpu, expected is Float on cpu");
}

TEST_CASE("torch: a parameter that two submodules share is trained once") {
  const nn::Linear shared(4, 4);
  nn::Sequential net(shared, nn::Tanh(), shared);
  net->to(torch::kDouble);
  CHECK(net->parameters().size() == 4);
  hetsched::torch_layer<doubles> layer(net);
  CHECK(layer.parameters().size() == 2);
  CHECK(hetsched::check_layer<doubles>(std::move(layer), {3, 4}, {.output = {3, 4}}).text() == "");
}

TEST_CASE("torch: a layer is any module, or a function of one") {
  const auto x = torch::randn({3, 4}).contiguous();
  nn::Linear linear(4, 4);
  hetsched::torch_layer<> by_any{nn::AnyModule(linear)}, by_pointer(linear.ptr()),
      by_function(linear.ptr(), [linear](const torch::Tensor&in) mutable { return linear(in).transpose(0, 1); });
  hetsched::torch_layer<>::context c;
  const auto y = by_any.forward(x, c);
  CHECK(y.equal(by_pointer.forward(x, c)));
  // Strided results are made contiguous.
  const auto turned = by_function.forward(x, c);
  CHECK(turned.is_contiguous());
  CHECK(turned.equal(y.t()));
  CHECK(by_function.backward(torch::ones({4, 3}), c).is_contiguous());
  // An input that nothing depends on, as of tokens, has a gradient of zeros.
  hetsched::torch_layer<> table(nn::Embedding(4, 2).ptr(), [](const torch::Tensor& in) { return in.detach() * 2; });
  CHECK(table.backward(table.forward(x, c), c).equal(torch::zeros({3, 4})));
}

TEST_CASE("torch: what a layer hands on is nobody else's, and copied only if it was") {
  nn::Linear linear(4, 4);
  const void* made = nullptr;
  const auto moves = [&](auto&& function) {
    hetsched::torch_layer<> layer(linear.ptr(), [&](const torch::Tensor& in) {
      const torch::Tensor y = function(in);
      made = y.data_ptr();
      return y;
    });
    hetsched::torch_layer<>::context c;
    const auto x = torch::randn({3, 4});
    const auto y = layer.forward(x, c);
    CHECK(y.data_ptr() != x.data_ptr());
    return y.data_ptr() == made;
  };
  CHECK(moves([&](const torch::Tensor& in) { return linear->forward(in); }));
  CHECK(!moves([&](const torch::Tensor& in) { return linear->forward(in).tanh(); }));  // whose backward reads it
  CHECK(!moves([&](const torch::Tensor& in) { return in.view({4, 3}); }));
  CHECK(!moves([&](const torch::Tensor& in) { return in; }));
}

TEST_CASE("torch: elements of 16 bits") {
  using halves = hetsched::torch_tensor<at::BFloat16>;
  nn::Sequential net(nn::Linear(4, 4), nn::Tanh());
  net->to(torch::kBFloat16);
  CHECK(hetsched::check_layer<halves>(hetsched::torch_layer<halves>(net), {2, 4}, {.output = {2, 4}, .tolerance = 0.2}).text() ==
        "");
}

TEST_CASE("torch: what does not fit is told") {
  using traits = hetsched::tensor_traits<torch::Tensor>;
  const torch::Tensor none;
  CHECK(thrown([&] { static_cast<void>(traits::data(none)); }) == "a tensor is an undefined torch::Tensor");
  CHECK(thrown([&] { static_cast<void>(traits::contiguous(torch::zeros({2}, torch::kLong))); }) ==
        "a tensor is of Long on cpu, expected is Float on cpu");
  CHECK(thrown([&] { static_cast<void>(traits::contiguous(torch::zeros({2}, torch::kMeta))); }) ==
        "a tensor is of Float on meta, expected is Float on cpu");
  CHECK(!traits::contiguous(torch::zeros({2, 3}).t()));
  CHECK(thrown([&] {
          hetsched::detail::require_handed_over(torch::Tensor(torch::zeros({2, 3}).t()), {3, 2}, "the output");
        }).starts_with("the output"));

  nn::Linear half(2, 2);
  half->to(torch::kHalf);
  CHECK(thrown([&] { hetsched::torch_layer<> layer(half); }) ==
        "the parameter weight is of Half on cpu, expected is Float on cpu");

  struct elsewhere : nn::Module {
    elsewhere() { register_parameter("weight", torch::zeros({2, 2}, torch::kMeta)); }
  };
  CHECK(thrown([&] { hetsched::torch_layer<> layer(std::make_shared<elsewhere>(), [](const torch::Tensor& x) { return x; }); }) ==
        "the parameter weight is of Float on meta, expected is Float on cpu");

  hetsched::torch_layer<>::context c;
  const auto says = [&](std::function<torch::Tensor(const torch::Tensor&)> forward) {
    hetsched::torch_layer<> layer(nn::Linear(2, 2).ptr(), std::move(forward));
    return thrown([&] { static_cast<void>(layer.forward(torch::zeros({2, 2}), c)); });
  };
  CHECK(says([](const torch::Tensor&) { return torch::Tensor(); }) == "the module's output is an undefined torch::Tensor");
  CHECK(says([](const torch::Tensor& x) { return x.argmax(1); }) ==
        "the module's output is of Long on cpu, expected is Float on cpu");
  // A module that writes to its input, which is only lent.
  CHECK(says([](const torch::Tensor& x) { return torch::Tensor(x).add_(1); }).find("in-place") != std::string::npos);

  // By a training: the rank, the layer and the cause.
  const auto trained = [](auto make, const torch::Tensor& input) {
    using channels = hetsched::thread_communicator<torch::Tensor>;
    return thrown([&] {
      hetsched::run_on_threads(channels::connect(1), [&](channels& channel) {
        auto trainer = hetsched::make_trainer<torch::Tensor>(
            hetsched::even_layout(2, one_f_one_b(1)), make,
            [](int) {
              return hetsched::tensor_shape{2, 2};
            },
            channel, hetsched::sgd{});
        const std::vector<torch::Tensor> inputs(microbatches, input);
        trainer.step(inputs, inputs, hetsched::torch_loss([](const auto& y, const auto& wanted) { return (y - wanted).sum(); }));
      });
    });
  };
  const auto zeros = torch::zeros({2, 2});
  CHECK(trained([](int layer) { return hetsched::torch_layer(nn::Linear(2, layer == 0 ? 3 : 2)); }, zeros) ==
        "rank 0, step 0: 0F0 (stage 0, layer 0, forward of microbatch 0) failed: the output is of the shape 2 x 3, expected is 2 "
        "x 2");
  const auto linears_of_two = [](int) { return hetsched::torch_layer(nn::Linear(2, 2)); };
  CHECK(
      trained(linears_of_two, zeros.to(torch::kLong)) ==
      "rank 0, step 0: 0F0 (stage 0, layer 0, forward of microbatch 0) failed: the module's input is of Long on cpu, expected is "
      "Float on cpu");
  CHECK(trained(linears_of_two, torch::zeros({2, 4}).slice(1, 0, 4, 2)) == "nothing");  // strided, which modules take

  // A layer that somebody wrote by hand, and whose gradients are not there.
  struct by_hand {
    struct context {};
    torch::Tensor forward(const torch::Tensor& x, context&) { return x.clone(); }
    torch::Tensor backward(const torch::Tensor&, context&) { return {}; }
    std::vector<torch::Tensor>& parameters() { return none; }
    std::vector<torch::Tensor>& gradients() { return none; }
    std::vector<torch::Tensor> none;
  };
  CHECK(trained(
            [](int layer) -> hetsched::any_layer<torch::Tensor> {
              if (layer == 1) return by_hand{};
              return hetsched::torch_layer(nn::Linear(2, 2));
            },
            zeros) ==
        "rank 0, step 0: 0B0 (stage 0, layer 1, backward of microbatch 0) failed: a tensor is an undefined torch::Tensor");
}
