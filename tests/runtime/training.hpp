// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/runtime/trainer/trainer.hpp>
#include <hetsched/schedule/builders/named.hpp>

#include "dense.hpp"

namespace hetsched::test {

/// Linears with activations between them, all of one width, and microbatches that are told apart by step and number.
template <class Real>
struct toy {
  using tensor = matrix<Real>;
  static constexpr std::size_t width = 3;
  int layers = 9;
  std::uint64_t seed = 1;
  std::vector<parameter_tie> ties = {};

  [[nodiscard]] any_layer<tensor> make(int layer) const {
    if (layer % 2 == 1) return activation<Real>();
    int like = layer;
    for (const auto& [a, b] : ties)
      if (b.layer == layer) like = a.layer;
    random_source random(seed * 1000 + static_cast<std::uint64_t>(like));
    return linear<Real>(width, width, random);
  }
  /// Microbatch m of a pipeline, numbered through all pipelines; the first is the input, the second the target.
  [[nodiscard]] std::pair<tensor, tensor> batch(const training_layout& layout, std::int64_t step, std::size_t pipeline,
                                                int m) const {
    for (std::size_t p = 0; p < pipeline; ++p) m += layout.pipelines[p].order.microbatches;
    const int rows = layout.pipelines[pipeline].microbatch_size;
    random_source random(seed + 7919 * static_cast<std::uint64_t>(step) + 1299709 * static_cast<std::uint64_t>(m));
    auto input = random_matrix<Real>(random, static_cast<std::size_t>(rows), width);
    return {std::move(input), random_matrix<Real>(random, static_cast<std::size_t>(rows), width)};
  }
  /// Half the squared distance to the target, per row.
  static loss_value<tensor> loss(const tensor& output, const tensor& target) {
    auto found = task<Real>::loss(output, target);
    const auto rows = static_cast<Real>(output.rows());
    found.value /= static_cast<double>(rows);
    for (std::size_t k = 0; k < output.rows() * output.columns(); ++k) found.gradient.data()[k] /= rows;
    return found;
  }
};

/// What a training has come to.
template <class Real>
struct trained {
  std::vector<double> losses, norms;                  ///< by step
  std::vector<std::vector<matrix<Real>>> parameters;  ///< by layer
  friend bool operator==(const trained&, const trained&) = default;
};

/// p and g of one parameter, in place; n counts updates from 1, `kept` is as many tensors as it likes to keep.
template <class Real>
using plain_update = std::function<void(matrix<Real>& p, const matrix<Real>& g, std::vector<matrix<Real>>& kept, int n)>;

/// One device, without any of the runtime's parts but the layers: every pipeline's microbatches, one after the other; gradients
/// are added by microbatch, in each pipeline by tied layer and direction, then by pipeline; then made a mean, then clipped.
template <class Real>
trained<Real> train_alone(const toy<Real>& t, const training_layout& layout, int steps, double clip_norm,
                          const plain_update<Real>& update) {
  using tensor = matrix<Real>;
  std::vector<any_layer<tensor>> net;
  for (int l = 0; l < t.layers; ++l) net.push_back(t.make(l));
  std::vector<std::vector<tensor>> kept(net.size());
  trained<Real> result;
  bool equal = true;
  double samples = 0, microbatches = 0;
  for (const auto& p : layout.pipelines) {
    equal = equal && p.microbatch_size == layout.pipelines[0].microbatch_size;
    samples += p.order.microbatches * p.microbatch_size;
    microbatches += p.order.microbatches;
  }
  const double all = equal ? microbatches : samples;
  const auto plus = [](tensor& sum, const tensor& term, Real factor = 1) {
    for (std::size_t k = 0; k < term.rows() * term.columns(); ++k)
      sum.data()[k] += factor == 1 ? term.data()[k] : factor * term.data()[k];
  };
  for (int step = 0; step < steps; ++step) {
    double loss_sum = 0;
    // By pipeline, layer and direction; every layer of the toy has one parameter.
    std::vector<std::vector<std::vector<tensor>>> terms(layout.pipelines.size(), std::vector<std::vector<tensor>>(net.size()));
    for (std::size_t p = 0; p < layout.pipelines.size(); ++p) {
      const auto& line = layout.pipelines[p];
      std::vector<int> direction_of(static_cast<std::size_t>(line.order.microbatches), 0);
      for (const auto& l : line.order.lanes)
        for (const auto& a : l.actions)
          if (a.kind == action_kind::forward) direction_of[static_cast<std::size_t>(a.microbatch)] = a.direction;
      const double weight = equal ? 1 : line.microbatch_size;
      for (int direction = 0; direction < line.order.directions; ++direction) {
        for (auto& layer : net)
          layer.gradients()[0].get() = tensor(layer.gradients()[0].get().rows(), layer.gradients()[0].get().columns());
        for (int m = 0; m < line.order.microbatches; ++m) {
          if (direction_of[static_cast<std::size_t>(m)] != direction) continue;
          const auto [input, target] = t.batch(layout, step, p, m);
          std::vector<tensor> outputs{input};
          std::vector<typename any_layer<tensor>::context> contexts;
          outputs.reserve(net.size() + 1);
          for (auto& layer : net) {
            contexts.push_back(layer.make_context());
            outputs.push_back(layer.forward(outputs.back(), contexts.back()));
          }
          auto found = toy<Real>::loss(outputs.back(), target);
          loss_sum += weight * found.value;
          for (std::size_t l = net.size(); l-- > 0;) found.gradient = net[l].backward(found.gradient, contexts[l]);
        }
        for (std::size_t l = 0; l < net.size(); ++l) {
          auto& g = terms[p][l].emplace_back(net[l].gradients()[0]);
          for (std::size_t k = 0; k < g.rows() * g.columns() && !equal; ++k) g.data()[k] *= static_cast<Real>(weight);
        }
      }
    }
    std::vector<std::vector<std::size_t>> groups;
    for (std::size_t l = 0; l < net.size(); ++l) {
      bool known = false;
      for (const auto& [a, b] : t.ties)
        if (static_cast<std::size_t>(b.layer) == l) {
          for (auto& g : groups)
            if (g.front() == static_cast<std::size_t>(a.layer)) g.push_back(l);
          known = true;
        }
      if (!known) groups.push_back({l});
    }
    std::vector<tensor> means;
    double squares = 0;
    for (const auto& g : groups) {
      tensor sum;
      for (const auto& pipeline : terms) {
        tensor share;
        for (const auto l : g)
          for (const auto& direction : pipeline[l]) share.rows() == 0 ? void(share = direction) : plus(share, direction);
        sum.rows() == 0 ? void(sum = share) : plus(sum, share);
      }
      for (std::size_t k = 0; k < sum.rows() * sum.columns(); ++k) {
        if (all != 1) sum.data()[k] *= static_cast<Real>(1 / all);
        squares += static_cast<double>(sum.data()[k]) * static_cast<double>(sum.data()[k]);
      }
      means.push_back(std::move(sum));
    }
    const double norm = std::sqrt(squares);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (clip_norm > 0 && norm > clip_norm)
        for (std::size_t k = 0; k < means[i].rows() * means[i].columns(); ++k)
          means[i].data()[k] *= static_cast<Real>(clip_norm / norm);
      const auto first = groups[i].front();
      update(net[first].parameters()[0], means[i], kept[first], step + 1);
      for (const auto l : groups[i]) net[l].parameters()[0].get() = net[first].parameters()[0].get();
    }
    result.losses.push_back(loss_sum / all);
    result.norms.push_back(norm);
  }
  for (auto& layer : net) result.parameters.push_back(copies_of<Real>(layer.parameters()));
  return result;
}

template <class Real>
plain_update<Real> plain_sgd(double rate, double momentum, double decay) {
  return [=](matrix<Real>& p, const matrix<Real>& g, std::vector<matrix<Real>>& kept, int n) {
    if (n == 1) kept.assign(1, matrix<Real>(p.rows(), p.columns()));
    for (std::size_t k = 0; k < p.rows() * p.columns(); ++k) {
      auto& velocity = kept[0].data()[k];
      velocity = static_cast<Real>(momentum) * velocity + (g.data()[k] + static_cast<Real>(decay) * p.data()[k]);
      p.data()[k] -= static_cast<Real>(rate) * velocity;
    }
  };
}

template <class Real>
using toy_communicator = thread_communicator<matrix<Real>>;
template <class Real, class Optimizer>
using toy_trainer = pipeline_trainer<matrix<Real>, any_layer<matrix<Real>>, toy_communicator<Real>, Optimizer>;

template <class Real, class Optimizer>
toy_trainer<Real, Optimizer> make_trainer(const toy<Real>& t, const training_layout& layout, toy_communicator<Real>& comm,
                                          const Optimizer& optimizer, trainer_options options = {}) {
  options.ties = t.ties;
  return toy_trainer<Real, Optimizer>(
      layout, [&](int l) { return t.make(l); },
      [](int, int rows) {
        return tensor_shape{static_cast<std::size_t>(rows), toy<Real>::width};
      },
      comm, optimizer, options);
}

/// Inputs and targets of a rank's pipeline in a step.
template <class Real>
std::pair<std::vector<matrix<Real>>, std::vector<matrix<Real>>> batch_of(const toy<Real>& t, const training_layout& layout,
                                                                         int rank, std::int64_t step) {
  const auto p = static_cast<std::size_t>(layout.pipeline_of(rank));
  std::pair<std::vector<matrix<Real>>, std::vector<matrix<Real>>> found;
  for (int m = 0; m < layout.pipelines[p].order.microbatches; ++m) {
    auto [input, target] = t.batch(layout, step, p, m);
    found.first.push_back(std::move(input));
    found.second.push_back(std::move(target));
  }
  return found;
}

template <class Real, class Optimizer>
step_report one_step(const toy<Real>& t, toy_trainer<Real, Optimizer>& trainer, int rank) {
  const auto [inputs, targets] = batch_of(t, trainer.layout(), rank, trainer.committed_step());
  return trainer.step(std::span<const matrix<Real>>(inputs), std::span<const matrix<Real>>(targets), toy<Real>::loss);
}

/// The mean loss over the batch of a step that is not taken.
template <class Real, class Optimizer>
double evaluated(const toy<Real>& t, toy_trainer<Real, Optimizer>& trainer, int rank, std::int64_t step) {
  const auto [inputs, targets] = batch_of(t, trainer.layout(), rank, step);
  return trainer.evaluate(std::span<const matrix<Real>>(inputs), std::span<const matrix<Real>>(targets), toy<Real>::loss);
}

/// Threads; all ranks' reports, and all holders' parameters, have to be the same. `before_step`: (trainer, rank).
template <class Real, class Optimizer>
trained<Real> train(const toy<Real>& t, const training_layout& layout, int steps, const Optimizer& optimizer,
                    const trainer_options& options = {},
                    const std::function<void(toy_trainer<Real, Optimizer>&, int)>& before_step = {}) {
  const auto ranks = static_cast<std::size_t>(layout.ranks());
  std::vector<trained<Real>> results(ranks);
  hetsched::run_on_threads(toy_communicator<Real>::connect(layout.ranks()), [&](toy_communicator<Real>& comm) {
    auto& own = results[static_cast<std::size_t>(comm.rank())];
    own.parameters.resize(static_cast<std::size_t>(t.layers));
    auto trainer = make_trainer(t, layout, comm, optimizer, options);
    for (int i = 0; i < steps; ++i) {
      if (before_step) before_step(trainer, comm.rank());
      const auto report = one_step(t, trainer, comm.rank());
      own.losses.push_back(report.loss);
      own.norms.push_back(report.gradient_norm);
    }
    for (const auto& [number, layer] : trainer.layers()) {
      auto& held = own.parameters[static_cast<std::size_t>(number)];
      auto now = copies_of<Real>(layer->parameters());
      if (!held.empty() && held != now) throw std::logic_error("two copies of a layer on one rank differ");
      held = std::move(now);
    }
  });
  auto all = results[0];
  for (const auto& r : results) {
    CHECK(r.losses == all.losses);
    CHECK(r.norms == all.norms);
    for (std::size_t l = 0; l < all.parameters.size(); ++l) {
      if (r.parameters[l].empty()) continue;
      if (all.parameters[l].empty()) all.parameters[l] = r.parameters[l];
      CHECK(r.parameters[l] == all.parameters[l]);
    }
  }
  return all;
}

/// The largest difference of any parameter.
template <class Real>
double distance(const trained<Real>& a, const trained<Real>& b) {
  double most = 0;
  for (std::size_t l = 0; l < a.parameters.size(); ++l)
    for (std::size_t p = 0; p < a.parameters[l].size(); ++p)
      for (std::size_t k = 0; k < a.parameters[l][p].rows() * a.parameters[l][p].columns(); ++k)
        most = std::max(most, std::abs(static_cast<double>(a.parameters[l][p].data()[k] - b.parameters[l][p].data()[k])));
  return most;
}

inline schedule schedule_of(std::string_view name, int ranks, int microbatches) {
  const auto n = static_cast<std::size_t>(ranks);
  return build_schedule(name,
                        {.forward_s = std::vector<double>(n, 1),
                         .backward_s = std::vector<double>(n, 2),
                         .transfer_s = std::vector<double>(n - 1, 0.5)},
                        microbatches);
}

/// Pipelines side by side.
inline training_layout side_by_side(const std::vector<training_layout>& parts) {
  training_layout all = parts.front();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    all.pipelines.push_back(parts[i].pipelines.front());
    all.pipelines.back().first_rank = all.pipelines[i - 1].first_rank + all.pipelines[i - 1].ranks();
  }
  return all;
}

}  // namespace hetsched::test
