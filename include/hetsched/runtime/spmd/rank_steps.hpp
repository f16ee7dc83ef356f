// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/spmd/spmd_layer_test.cpp.

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>
#include <hetsched/spmd/problem.hpp>
#include <hetsched/spmd/program.hpp>

namespace hetsched {

/// Where the devices' parts of a dimension begin, and the last one ends.
using part_points = std::vector<std::size_t>;

/// Which part of every tensor each device has, in whole rows: per node and dimension.
/// Complexity: see spmd::round_shares.
class spmd_parts {
 public:
  /// Requires: shares of the problem's kinds, per segment, that times counts add up to 1.
  spmd_parts(const spmd::problem& problem, const spmd::program& program, const std::vector<double>& shares);

  [[nodiscard]] const part_points& points(int node, int dimension) const { return at(at(points_, node), dimension); }
  [[nodiscard]] std::size_t first(int node, int dimension, int device) const { return at(points(node, dimension), device); }
  [[nodiscard]] std::size_t size(int node, int dimension, int device) const {
    const auto& p = points(node, dimension);
    return at(p, device + 1) - at(p, device);
  }

 private:
  std::vector<std::vector<part_points>> points_;
};

namespace detail {

// A tensor that a device has: a node in one form.
struct held_tensor {
  int node = 0;
  spmd::tensor_form form = spmd::tensor_form::whole();
  tensor_shape shape{};  // of what this device has
};

struct rank_step {
  enum class kind { compute, part, change } what = kind::compute;
  int node = 0;
  int result = 0;             // of the held tensors
  std::vector<int> inputs{};  // the same
  std::int64_t row = 0;       // of an embedding or its gradient: the first row of the table that is here
  bool late = false;          // depends on the gradient of the output
};

// What one device does of a program: steps on the tensors that it holds. Leaves are given: placeholders whole, parameters in
// one form, whole or that of their first use.
class rank_steps {
 public:
  rank_steps(const spmd::problem& problem, const spmd::program& program, const spmd_parts& parts, int device, int late_leaf = -1);

  [[nodiscard]] const std::vector<held_tensor>& held() const { return held_; }
  [[nodiscard]] const std::vector<rank_step>& steps() const { return steps_; }
  // The given tensor of a leaf; -1 if the program does not read it.
  [[nodiscard]] int leaf_of(int node) const;
  // A tensor that the device holds at the end; -1 if it does not.
  [[nodiscard]] int find(int node, spmd::tensor_form form) const;

 private:
  // What the steps are made from.
  struct source {
    const spmd::problem& problem;
    const spmd_parts& parts;
    int device;
    std::vector<char> late;  // nodes
  };

  int hold(const source& from, int node, spmd::tensor_form form);
  void add(const source& from, rank_step step, spmd::tensor_form form);
  // The tensor in a form; where it is not there yet it is taken from the whole one, or a leaf is cut elsewhere.
  int tensor_of(const source& from, int node, spmd::tensor_form form);

  std::vector<held_tensor> held_;
  std::vector<rank_step> steps_;
  std::map<int, int> given_;
  std::map<std::pair<int, spmd::tensor_form>, int> known_;
};

}  // namespace detail
}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/spmd/rank_steps.ipp>
#endif
