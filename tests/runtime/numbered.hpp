// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/reshard/cut_points.hpp>
#include <hetsched/reshard/layout.hpp>
#include <hetsched/reshard/slice.hpp>
#include <hetsched/reshard/strategies.hpp>
#include <hetsched/reshard/strided_runs.hpp>
#include <hetsched/runtime/executor/boundary_transfer.hpp>
#include <hetsched/runtime/executor/executor.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched::test {

/// Any number of dimensions.
class box_tensor {
 public:
  using value_type = double;
  box_tensor() = default;
  explicit box_tensor(const tensor_shape& shape) : shape_(shape) {
    std::size_t count = 1;
    for (const auto extent : shape) count *= extent;
    data_.assign(count, -1);
  }
  [[nodiscard]] const tensor_shape& shape() const { return shape_; }
  [[nodiscard]] double* data() { return data_.data(); }
  [[nodiscard]] const double* data() const { return data_.data(); }
  friend bool operator==(const box_tensor&, const box_tensor&) = default;

 private:
  tensor_shape shape_;
  std::vector<double> data_;
};

/// A slice of a tensor whose elements are all different, and not those of a tensor of another number.
inline box_tensor numbered(const layout& l, int device, double number) {
  const auto whole = l.whole(), part = slice_of(l, device);
  box_tensor all(detail::shape_of_slice(whole)), own(detail::shape_of_slice(part));
  for (std::int64_t k = 0; k < element_count(whole); ++k) all.data()[k] = number * 1e5 + static_cast<double>(k);
  copy_part(all.data(), whole, own.data(), part, part);
  return own;
}

/// A layout of at most `most` devices: axes that cut dimensions, evenly or not, or that hold replicas.
inline layout random_layout(random_source& random, const std::vector<std::int64_t>& extents, const std::vector<int>& mesh) {
  layout l{.mesh = mesh, .dimensions = {}};
  for (const auto extent : extents) l.dimensions.push_back({.extent = extent});
  for (int a = 0; a < static_cast<int>(l.mesh.size()); ++a) {
    const int d = random.integer(-1, static_cast<int>(extents.size()) - 1);
    if (d >= 0) l.dimensions[static_cast<std::size_t>(d)].axes.push_back(a);
  }
  for (std::size_t d = 0; d < extents.size(); ++d) {
    if (random.integer(0, 1) == 0) continue;
    std::vector<double> shares;
    for (int p = 0; p < l.parts(d); ++p) shares.push_back(random.uniform(0.2, 1));
    l.dimensions[d].points = cut_points(extents[d], shares);
  }
  return l;
}

inline std::vector<int> random_mesh(random_source& random, int most) {
  std::vector<int> mesh;
  int devices = 1;
  for (int axes = random.integer(1, 3); axes > 0; --axes) {
    mesh.push_back(random.integer(1, most / devices));
    devices *= mesh.back();
  }
  return mesh;
}

inline reshard_strategy random_strategy(random_source& random) {
  return all_reshard_strategies[static_cast<std::size_t>(random.integer(0, static_cast<int>(all_reshard_strategies.size()) - 1))];
}

/// Where the devices of a group wait for each other, as in a collective that nobody leaves before all have come.
class meeting {
 public:
  explicit meeting(int members) : members_(members) {}
  /// Throws: std::runtime_error if not all have come in time, or somebody has said that it will not.
  void meet(double limit_s = 20) {
    std::unique_lock lock(guard_);
    const auto round = rounds_;
    if (++arrived_ == members_) {
      arrived_ = 0;
      ++rounds_;
      all_.notify_all();
    } else if (!all_.wait_for(lock, std::chrono::duration<double>(limit_s), [&] { return rounds_ > round || left_; })) {
      throw std::runtime_error("others of the group have not come to a computation");
    } else if (rounds_ == round) {
      throw std::runtime_error("one of the group has failed");
    }
  }
  void leave() {
    const std::lock_guard lock(guard_);
    left_ = true;
    all_.notify_all();
  }

 private:
  std::mutex guard_;
  std::condition_variable all_;
  int members_, arrived_ = 0;
  long rounds_ = 0;
  bool left_ = false;
};

/// A stage that knows what has to come, and sends on what the next one knows.
struct numbered_stage {
  struct context {};
  box_tensor forward(const box_tensor& x, context&) {
    before(x);
    const int m = forwards.at(done_forward++ % forwards.size());
    if (input && x != numbered(*input, device, 100 * stage + m)) throw std::runtime_error("a wrong activation");
    return output ? numbered(*output, device, 100 * (stage + 1) + m) : x;
  }
  box_tensor backward(const box_tensor& dy, context&) {
    before(dy);
    const int m = backwards.at(done_backward++ % backwards.size());
    if (output && dy != numbered(*output, device, 1e4 + 100 * (stage + 1) + m)) throw std::runtime_error("a wrong gradient");
    return input ? numbered(*input, device, 1e4 + 100 * stage + m) : dy;
  }
  void before(const box_tensor&) {
    if (before_each) before_each();
    if (random.integer(0, 9) == 0) std::this_thread::sleep_for(std::chrono::microseconds(random.integer(0, longest_us)));
    if (together) together->meet();
  }
  std::vector<box_tensor>& parameters() { return none; }
  std::vector<box_tensor>& gradients() { return none; }

  int stage = 0, device = 0;
  const layout *input = nullptr, *output = nullptr;
  std::vector<int> forwards, backwards;  ///< microbatches in their order
  std::size_t done_forward = 0, done_backward = 0;
  random_source random{1};
  int longest_us = 300;
  meeting* together = nullptr;
  std::function<void()> before_each = {};
  std::vector<box_tensor> none = {};
};

/// A pipeline of groups over numbered tensors.
struct numbered_pipeline {
  schedule order;
  pipeline_groups groups;
  executor_options options;
  bool meets = true;  ///< the devices of a group, in every computation
  std::uint64_t seed = 1;
};

inline int device_count(const numbered_pipeline& p) {
  int all = 0;
  for (const int n : p.groups.devices) all += n;
  return all;
}

/// The group of a rank, and its place there.
inline std::pair<int, int> place_of(const numbered_pipeline& p, int rank) {
  int group = 0;
  for (; rank >= p.groups.devices[static_cast<std::size_t>(group)]; ++group)
    rank -= p.groups.devices[static_cast<std::size_t>(group)];
  return {group, rank};
}

/// Steps of one device.
template <class Stager = no_stager, class Communicator>
void run_device(Communicator& end, const numbered_pipeline& p, int steps, meeting* together,
                const std::function<void(int, numbered_stage&)>& adjust = {}) {
  std::vector<std::vector<int>> forwards(p.order.rank_of.size()), backwards = forwards;
  for (const auto& l : p.order.lanes)
    for (const auto& a : l.actions) {
      const auto copy = static_cast<std::size_t>(a.direction * p.order.stages + a.stage);
      if (a.kind == action_kind::forward) forwards[copy].push_back(a.microbatch);
      if (a.kind == action_kind::backward || a.kind == action_kind::backward_input) backwards[copy].push_back(a.microbatch);
    }
  const int rank = end.rank();
  const auto [group, index] = place_of(p, rank);
  std::vector<numbered_stage> stages;
  for (const auto& [direction, s] : stages_of_rank(p.order, group)) {
    const auto copy = static_cast<std::size_t>(direction * p.order.stages + s);
    const auto behind = static_cast<std::size_t>(direction * (p.order.stages - 1) + s);
    auto& one = stages.emplace_back();
    one.stage = s;
    one.device = index;
    one.forwards = forwards[copy];
    one.backwards = backwards[copy];
    if (s > 0) one.input = &p.groups.boundaries[behind - 1].to;
    if (s + 1 < p.order.stages) one.output = &p.groups.boundaries[behind].from;
    one.random = random_source(p.seed * 100 + static_cast<std::uint64_t>(rank));
    one.together = together;
    if (adjust) adjust(rank, one);
  }
  pipeline_executor<box_tensor, numbered_stage, Communicator, Stager> executor(p.order, std::span(stages), p.groups, end,
                                                                               p.options);
  const std::vector<box_tensor> inputs(static_cast<std::size_t>(p.order.microbatches), box_tensor({1}));
  const std::vector<int> targets(inputs.size());
  for (int i = 0; i < steps; ++i)
    executor.step(std::span<const box_tensor>(inputs), std::span<const int>(targets), [](const box_tensor& y, int) {
      return loss_value<box_tensor>{1, y};
    });
}

}  // namespace hetsched::test
