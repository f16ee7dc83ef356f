// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/placement.hpp>
#include <hetsched/cluster/submesh.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/layer_range.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/cost/questions/memory_use.hpp>
#include <hetsched/cost/questions/stage_cost.hpp>

namespace hetsched {

/// A placement in a price_book.
struct booked_placement {
  placement where;
  memory_overheads overheads;
  std::vector<parameter_copy> copies{};  ///< of parameters that layers share
  memory_room memory;                    ///< bytes of a device: see room_within
  bool on_one_node = false;              ///< of several, which have more than one device: other stages may share it
  int transfer_class = 0;  ///< placements of one class have equal transfer prices; each its own if the model names none
};

/// Seconds that stages of one placement take after the last backward of an iteration.
struct booked_updates {
  std::vector<double> layers;  ///< each alone
  double first_two = 0;        ///< layers together; 0 if there is one only
  double all = 0;
};

/// What a cost model answers about a cluster, for searches to read. A question is asked when it is first wanted, and once; the
/// answer is checked and kept. Placements are numbered in the order in which they are asked for.
/// What is not const may ask, so it is not for several threads at once: read what parallel parts of a search need before they
/// begin. Planners that are given one book, one after the other, share the answers.
/// Memory, for P placements, C classes of them, L layers and B kinds of boundaries: 80 P L bytes for additive models, 40 P L^2
/// for others, 16 C^2 B for transfers, as far as they were asked for.
class price_book {
 public:
  /// Both outlive it.
  /// Throws: input_error if the model has no layers.
  price_book(const cluster& hardware, any_cost_model costs);
  price_book(const price_book&) = delete;
  price_book& operator=(const price_book&) = delete;

  [[nodiscard]] const cluster& hardware() const { return hardware_; }
  [[nodiscard]] const any_cost_model& costs() const { return costs_; }
  [[nodiscard]] int layers() const { return layers_; }
  [[nodiscard]] bool additive() const { return additive_; }

  /// Those that the model offers on a submesh, in its order. The list is valid until placements of another submesh are asked for.
  /// Throws: input_error if one does not lie on it, or for overheads or copies out of range.
  [[nodiscard]] const std::vector<int>& placements(const submesh& mesh);
  /// The number of a placement, which the model need not offer.
  /// Throws: input_error for overheads or copies out of range.
  [[nodiscard]] int find(const placement& where);
  /// Valid until other placements are asked for.
  [[nodiscard]] const booked_placement& operator[](int p) const { return at(placements_, p); }

  /// The kind of each boundary: those of one kind have equal transfer prices.
  [[nodiscard]] const std::vector<int>& boundary_kinds() const { return boundary_kinds_; }
  /// The first boundary of each kind.
  [[nodiscard]] const std::vector<int>& first_boundaries() const { return first_boundaries_; }

  /// Each layer inside a stage of placement p; valid as long as the book.
  /// Requires: additive().
  /// Throws: as check_cost.
  [[nodiscard]] std::span<const stage_cost> layers_on(int p) {
    if (at(costs_of_, p).empty()) ask_layers(p);
    return at(costs_of_, p);
  }
  /// Of additive models the sum of its layers, less copies, in O(layers).
  /// Throws: as check_cost.
  [[nodiscard]] stage_cost stage(int p, layer_range layers);

  /// Of stages of one subcluster, `near` tells where they lie. Valid as long as the book.
  /// Throws: as check_transfer.
  [[nodiscard]] const transfer_cost& transfer(int boundary, int from, int to, proximity near) {
    const auto& row = at(transfers_, at(placements_, from).transfer_class);
    const auto cell = cell_of(boundary, to, near);
    if (cell < row.size() && row[cell]) return *row[cell];
    return ask_transfer(boundary, from, to, near);
  }

  /// What sums of gradients make of prices of one pipeline that does the whole batch where several do it.
  struct sums_spared {
    double seconds = 0;  ///< by which an iteration may be shorter at the most: those of all layers, as cut and placed where most
    double share = 0;    ///< the same of any work
  };
  /// A path through an iteration has each stage's backward no more often than its pipeline has microbatches. O(placements *
  /// layers), of models that are not additive O(placements * layers^2). Throws: as stage.
  [[nodiscard]] sums_spared most_spared();

  [[nodiscard]] const booked_updates& updates(int p) {
    if (at(updates_, p).layers.empty()) ask_updates(p);
    return at(updates_, p);
  }

 private:
  struct mesh_placements {
    submesh mesh;
    bool is_asked = false;
    std::vector<int> known = {}, offered = {};
  };
  struct less {
    [[nodiscard]] static auto key(const transfer_cost& c) {
      return std::tie(c.forward_s, c.backward_s, c.bytes, c.extra_bytes, c.strategy, c.forward_occupied_s, c.backward_occupied_s);
    }
    bool operator()(const transfer_cost& a, const transfer_cost& b) const { return key(a) < key(b); }
  };

  [[nodiscard]] std::size_t cell_of(int boundary, int to, proximity near) const {
    const auto place =
        as_size(at(placements_, to).transfer_class) * 2 + (asks_proximity_ && near == proximity::same_node ? 1 : 0);
    return place * first_boundaries_.size() + as_size(at(boundary_kinds_, boundary));
  }

  [[nodiscard]] mesh_placements& on(const submesh& mesh);
  int find(mesh_placements& known, const placement& where);
  [[nodiscard]] int class_of(const booked_placement& added);
  void ask_layers(int p);
  [[nodiscard]] const transfer_cost& ask_transfer(int boundary, int from, int to, proximity near);
  void ask_updates(int p);

  const cluster& hardware_;
  any_cost_model costs_;
  int layers_;
  bool additive_, asks_proximity_;
  std::vector<int> boundary_kinds_, first_boundaries_;
  std::vector<mesh_placements> meshes_;
  std::vector<booked_placement> placements_;
  std::vector<std::vector<stage_cost>>
      costs_of_;                         // [placement][layer], or [placement][first layer, last one]; negative: not asked
  std::vector<booked_updates> updates_;  // by placement
  std::vector<std::tuple<int, bool, std::int64_t>> classes_;  // subcluster, whether on one node, and the model's own
  std::vector<std::vector<const transfer_cost*>> transfers_;  // [from][to][near][kind of boundary], by class; null: not asked
  std::set<transfer_cost, less> transfer_costs_;              // equal ones are one
};

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/questions/price_book.ipp>
#endif
