// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/hexiscale/hexiscale_test.cpp.

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/submesh.hpp>
#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/questions/price_book.hpp>

namespace hetsched::detail {

/// One way to run a stage on devices of one node.
struct stage_choice {
  placement where;
  int in_book = 0;
  double room = 0, scale = 1;               // bytes of a device for a stage's costs: see room_within
  double whole_s = 0;                       // of all layers
  std::span<const stage_cost> layers = {};  // of additive models
  std::vector<double> until_s = {};         // of them: what all layers before each one take
};

/// What a book says of stages on single nodes and of transfers between them.
class machine_costs {
 public:
  /// Where go_on, asked now and then, returns false, it ends and leaves the rest out.
  explicit machine_costs(price_book& book, function_ref<bool()> go_on = {}) : book_(book) {
    const auto& hardware = book.hardware();
    for (std::size_t k = 0; k < hardware.subclusters.size(); ++k) {
      auto& sizes = by_size_.emplace_back();
      for (const auto& mesh : submeshes(hardware.subclusters[k], static_cast<int>(k))) {
        if (go_on && !go_on()) return;
        if (mesh.nodes == 1) add(mesh, sizes);
      }
    }
  }

  struct size_choices {
    int devices = 0;
    std::vector<int> choices;
  };

  [[nodiscard]] int layers() const { return book_.layers(); }
  /// The stage sizes of a subcluster that have costs, ascending.
  [[nodiscard]] const std::vector<size_choices>& sizes(int subcluster) const { return at(by_size_, subcluster); }
  [[nodiscard]] const stage_choice& operator[](int choice) const { return at(choices_, choice); }

  /// Puts layer `index` in front of a stage of layers [index + 1, last) that costs `so_far`.
  void grow(int choice, int index, int last, stage_cost& so_far) const {
    const auto& by = (*this)[choice];
    if (!book_.additive()) {
      so_far = book_.stage(by.in_book, {index, last});
      return;
    }
    so_far += by.layers[as_size(index)];
    for (const auto& c : book_[by.in_book].copies)
      if (c.owner == index || c.layer == index) drop_copies(so_far, {index, last}, {&c, 1});
  }

  /// What a stage takes at the least; 0 of models that are not additive.
  [[nodiscard]] double least_s(int choice, int first, int last) const {
    const auto& until = (*this)[choice].until_s;
    return until.empty() ? 0 : (at(until, last) - at(until, first)) * (1 - tolerance::sums);
  }

  /// The boundary before layer `cut`.
  [[nodiscard]] const transfer_cost& transfer(int cut, int from, int to, proximity near) const {
    return book_.transfer(cut - 1, (*this)[from].in_book, (*this)[to].in_book, near);
  }

 private:
  void add(const submesh& mesh, std::vector<size_choices>& sizes) {
    size_choices found{.devices = mesh.device_count(), .choices = {}};
    for (const int p : book_.placements(mesh)) {
      stage_choice choice{book_[p].where, p, book_[p].memory.room, book_[p].memory.scale};
      if (book_.additive()) {
        choice.layers = book_.layers_on(p);
        choice.until_s.push_back(0);
        for (const auto& cost : choice.layers) choice.until_s.push_back(choice.whole_s += cost.total_s());
        const auto no_better = [&](int known) { return no_worse((*this)[known], choice); };
        if (std::any_of(found.choices.begin(), found.choices.end(), no_better)) continue;
      } else {
        choice.whole_s = book_.stage(p, {0, layers()}).total_s();
      }
      found.choices.push_back(static_cast<int>(choices_.size()));
      choices_.push_back(std::move(choice));
    }
    if (!found.choices.empty()) sizes.push_back(std::move(found));
  }

  // Whether a is as good as b of the same degrees in every layer.
  [[nodiscard]] static bool no_worse(const stage_choice& a, const stage_choice& b) {
    if (!(a.where.degrees == b.where.degrees) || a.room < b.room || a.scale > b.scale) return false;
    for (std::size_t l = 0; l < a.layers.size(); ++l) {
      const auto &x = a.layers[l], &y = b.layers[l];
      if (x.total_s() > y.total_s() || x.weight_bytes > y.weight_bytes || x.activation_bytes > y.activation_bytes ||
          x.temporary_bytes > y.temporary_bytes)
        return false;
    }
    return true;
  }

  price_book& book_;
  std::vector<stage_choice> choices_;
  std::vector<std::vector<size_choices>> by_size_;
};

}  // namespace hetsched::detail
