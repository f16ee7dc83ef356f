// SPDX-License-Identifier: Apache-2.0
// Layers that hand on three tensors of three element types, and what they come to without the runtime and without packing.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <hetsched/runtime/layer/any_layer.hpp>
#include <hetsched/runtime/layer/packed_layer.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/trainer/trainer.hpp>

#include "training.hpp"

namespace hetsched::test {

/// A hidden state, a memory and a mask, of so many columns: the first layer makes them of an input, those between change all of
/// them, and the last makes an output of them. Every operation is of one row.
struct three_parts {
  using tensor = matrix<double>;
  using parts = std::tuple<tensor, matrix<float>, matrix<std::int64_t>>;
  static constexpr std::size_t width = toy<double>::width;

  struct layer_base {
    explicit layer_base(int number) : weights{tensor(1, width + 1)}, sums{tensor(1, width + 1)} {
      random_source random(static_cast<std::uint64_t>(number) + 1);
      weights[0] = random_matrix<double>(random, 1, width + 1);
    }
    std::vector<tensor>& parameters() { return weights; }
    std::vector<tensor>& gradients() { return sums; }
    double w(std::size_t j) const { return weights[0](0, j); }
    std::vector<tensor> weights, sums;
  };

  struct first : layer_base {
    using layer_base::layer_base;
    struct context {
      const tensor* input = nullptr;
    };
    parts forward(const tensor& x, context& c) {
      c.input = &x;
      parts y{tensor(x.rows(), width), matrix<float>(x.rows(), 2), matrix<std::int64_t>(x.rows(), 1)};
      auto& [hidden, memory, mask] = y;
      for (std::size_t i = 0; i < x.rows(); ++i) {
        for (std::size_t j = 0; j < width; ++j) hidden(i, j) = x(i, j) * w(j);
        for (std::size_t k = 0; k < 2; ++k) memory(i, k) = static_cast<float>(x(i, k) * w(width));
        mask(i, 0) = x(i, 0) > 0 ? (std::int64_t{1} << 40) + 1 : -2;
      }
      return y;
    }
    tensor backward(const parts& dy, context& c) {
      const auto& [hidden, memory, mask] = dy;
      for (std::size_t i = 0; i < hidden.rows(); ++i) {
        for (std::size_t j = 0; j < width; ++j) sums[0](0, j) += hidden(i, j) * (*c.input)(i, j);
        for (std::size_t k = 0; k < 2; ++k) sums[0](0, width) += static_cast<double>(memory(i, k)) * (*c.input)(i, k);
      }
      return tensor(hidden.rows(), width);
    }
  };

  struct middle : layer_base {
    using layer_base::layer_base;
    struct context {
      const parts* input = nullptr;
    };
    static bool open(const parts& x, std::size_t i) { return (std::get<2>(x)(i, 0) & 1) != 0; }
    parts forward(const parts& x, context& c) {
      c.input = &x;
      parts y = x;
      auto& [hidden, memory, mask] = y;
      for (std::size_t i = 0; i < hidden.rows(); ++i) {
        for (std::size_t j = 0; j < width; ++j)
          hidden(i, j) = (open(x, i) ? std::tanh(hidden(i, j)) : hidden(i, j)) * w(j) + static_cast<double>(memory(i, j % 2));
        for (std::size_t k = 0; k < 2; ++k) memory(i, k) = static_cast<float>(memory(i, k) * w(width));
        ++mask(i, 0);
      }
      return y;
    }
    parts backward_input(const parts& dy, context& c) {
      parts dx{std::get<0>(dy), std::get<1>(dy), {}};
      auto& [hidden, memory, none] = dx;
      for (std::size_t i = 0; i < hidden.rows(); ++i) {
        for (std::size_t k = 0; k < 2; ++k) memory(i, k) = static_cast<float>(memory(i, k) * w(width));
        for (std::size_t j = 0; j < width; ++j) {
          memory(i, j % 2) += static_cast<float>(hidden(i, j));
          const double t = std::tanh(std::get<0>(*c.input)(i, j));
          hidden(i, j) *= w(j) * (open(*c.input, i) ? 1 - t * t : 1);
        }
      }
      return dx;
    }
    void backward_weight(const parts& dy, context& c) {
      const auto& [hidden, memory, mask] = *c.input;
      for (std::size_t i = 0; i < hidden.rows(); ++i) {
        for (std::size_t j = 0; j < width; ++j)
          sums[0](0, j) += std::get<0>(dy)(i, j) * (open(*c.input, i) ? std::tanh(hidden(i, j)) : hidden(i, j));
        for (std::size_t k = 0; k < 2; ++k)
          sums[0](0, width) += static_cast<double>(std::get<1>(dy)(i, k)) * static_cast<double>(memory(i, k));
      }
    }
    parts backward(const parts& dy, context& c) {
      auto dx = backward_input(dy, c);
      backward_weight(dy, c);
      return dx;
    }
  };

  struct last : layer_base {
    using layer_base::layer_base;
    struct context {
      const parts* input = nullptr;
    };
    tensor forward(const parts& x, context& c) {
      c.input = &x;
      tensor y = std::get<0>(x);
      for (std::size_t i = 0; i < y.rows(); ++i)
        for (std::size_t j = 0; j < width; ++j) y(i, j) += w(j) * static_cast<double>(std::get<1>(x)(i, j % 2));
      return y;
    }
    parts backward(const tensor& dy, context& c) {
      parts dx{dy, matrix<float>(dy.rows(), 2), {}};
      for (std::size_t i = 0; i < dy.rows(); ++i)
        for (std::size_t j = 0; j < width; ++j) {
          std::get<1>(dx)(i, j % 2) += static_cast<float>(dy(i, j) * w(j));
          sums[0](0, j) += dy(i, j) * static_cast<double>(std::get<1>(*c.input)(i, j % 2));
        }
      return dx;
    }
  };

  int layers = 6;

  [[nodiscard]] any_layer<tensor> make(int l) const {
    if (l == 0) return packed_layer<tensor, tensor, parts, first>(first(l));
    if (l + 1 == layers) return packed_layer<tensor, parts, tensor, last>(last(l));
    return packed_layer<tensor, parts, parts, middle>(middle(l));
  }
  static auto shape_after(int, int rows) {
    const auto n = static_cast<std::size_t>(rows);
    return packed_shape<tensor, parts>({{n, width}, {n, 2}, {n, 1}});
  }

  /// The losses of a training with whole microbatches over a communicator.
  template <class Communicator>
  [[nodiscard]] std::vector<double> train(const training_layout& layout, int steps, double rate, Communicator comm) const {
    auto trainer = hetsched::make_trainer<tensor>(
        layout, [&](int l) { return make(l); }, &shape_after, std::move(comm), sgd{.learning_rate = rate});
    std::vector<double> losses;
    for (int step = 0; step < steps; ++step) {
      std::vector<tensor> inputs, targets;
      for (int m = 0; m < layout.pipelines[0].order.microbatches; ++m) {
        auto [input, target] = toy<double>{}.batch(layout, step, 0, m);
        inputs.push_back(std::move(input));
        targets.push_back(std::move(target));
      }
      losses.push_back(trainer.step(std::span<const tensor>(inputs), std::span<const tensor>(targets), toy<double>::loss).loss);
    }
    return losses;
  }

  struct result {
    std::vector<double> losses;
    std::vector<tensor> weights;  ///< by layer
  };
  /// One pipeline of one direction, row by row: the rows of each data rank of a stage are added up by themselves.
  [[nodiscard]] result alone(const training_layout& layout, int steps, double rate) const {
    const auto& line = layout.pipelines[0];
    const toy<double> batches{};
    first begin(0);
    last end(layers - 1);
    std::vector<middle> between;
    for (int l = 1; l + 1 < layers; ++l) between.emplace_back(l);
    std::vector<layer_base*> all{&begin};
    for (auto& m : between) all.push_back(&m);
    all.push_back(&end);
    const auto group_of = [&](int l) {
      for (std::size_t s = 0; s < line.stages.size(); ++s)
        if (l >= line.stages[s].layers.first && l < line.stages[s].layers.last) return line.order.rank(0, static_cast<int>(s));
      return -1;
    };
    const auto data_rank = [&](int group, std::int64_t row) {
      int d = 0;
      while (line.samples_of(group, d).last <= row) ++d;
      return d;
    };
    result found;
    for (int step = 0; step < steps; ++step) {
      std::vector<std::vector<tensor>> sums;
      for (int l = 0; l < layers; ++l)
        sums.emplace_back(static_cast<std::size_t>(line.degrees_of(group_of(l)).data), tensor(1, width + 1));
      double loss = 0;
      for (int m = 0; m < line.order.microbatches; ++m) {
        const auto [input, target] = batches.batch(layout, step, 0, m);
        const int data = line.degrees_of(group_of(layers - 1)).data;
        std::vector<double> of_ranks(static_cast<std::size_t>(data), 0);
        for (std::size_t i = 0; i < input.rows(); ++i) {
          tensor x(1, width);
          for (std::size_t j = 0; j < width; ++j) x(0, j) = input(i, j);
          first::context c0;
          std::vector<middle::context> contexts(between.size());
          last::context c1;
          std::vector<parts> kept{begin.forward(x, c0)};
          kept.reserve(between.size() + 1);
          for (std::size_t k = 0; k < between.size(); ++k) kept.push_back(between[k].forward(kept[k], contexts[k]));
          tensor dy = end.forward(kept.back(), c1);
          const auto row = static_cast<std::int64_t>(i);
          const int d = data_rank(group_of(layers - 1), row);
          const auto n = static_cast<double>(line.samples_of(group_of(layers - 1), d).size());
          const double share = n / line.microbatch_size;
          for (std::size_t j = 0; j < width; ++j) {
            const double off = dy(0, j) - target(i, j);
            of_ranks[static_cast<std::size_t>(d)] += 0.5 * off * off;
            dy(0, j) = off / n * share;
          }
          const auto into = [&](int l, auto&& back) {
            auto& own = *all[static_cast<std::size_t>(l)];
            auto& sum = sums[static_cast<std::size_t>(l)][static_cast<std::size_t>(data_rank(group_of(l), row))];
            std::swap(own.sums[0], sum);
            auto dx = back();
            std::swap(own.sums[0], sum);
            return dx;
          };
          parts g = into(layers - 1, [&] { return end.backward(dy, c1); });
          for (std::size_t k = between.size(); k-- > 0;)
            g = into(static_cast<int>(k) + 1, [&] { return between[k].backward(g, contexts[k]); });
          (void)into(0, [&] { return begin.backward(g, c0); });
        }
        double here = 0;
        for (int d = 0; d < data; ++d) {
          const auto n = static_cast<double>(line.samples_of(group_of(layers - 1), d).size());
          here += n / line.microbatch_size * (of_ranks[static_cast<std::size_t>(d)] / n);
        }
        loss += here;
      }
      found.losses.push_back(loss / line.order.microbatches);
      for (std::size_t l = 0; l < all.size(); ++l) {
        auto& sum = sums[l][0];
        for (std::size_t d = 1; d < sums[l].size(); ++d) detail::add(sum, sums[l][d]);
        if (line.order.microbatches > 1) detail::scale(sum, 1.0 / line.order.microbatches);
        for (std::size_t j = 0; j <= width; ++j) all[l]->weights[0](0, j) -= rate * sum(0, j);
      }
    }
    for (const auto* l : all) found.weights.push_back(l->weights[0]);
    return found;
  }
};

}  // namespace hetsched::test
