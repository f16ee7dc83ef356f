// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/group_training_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/layer_range.hpp>
#include <hetsched/reshard/gradient_chunks.hpp>
#include <hetsched/reshard/slice.hpp>
#include <hetsched/reshard/strided_runs.hpp>
#include <hetsched/runtime/device/detail/on_queue.hpp>
#include <hetsched/runtime/group/axis_group.hpp>
#include <hetsched/runtime/group/stage_group.hpp>
#include <hetsched/runtime/layout/model_parameter.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>
#include <hetsched/runtime/trainer/detail/held_parameter.hpp>
#include <hetsched/runtime/trainer/detail/tensor_runs.hpp>
#include <hetsched/schedule/action_kind.hpp>

namespace hetsched::detail {

/// This rank's layers at ZeRO stage 3: their parameters are empty tensors but for the time of a use, ahead of which all ranks of
/// the stage that hold them gather what each of them owns. These do the same actions in the same order, so that each axis has
/// its gathers in one order, as it has the layers' own collectives. A gather is begun before the layer that is used ahead of it
/// computes, on a queue of its own: so there are the parameters of one layer, all parts of the next and this rank's part of it,
/// and never more; where ranks read each other's memory this rank's part of the one, too, which others may come for until then.
template <class Tensor, class Communicator, class Queue>
class gathered_layers {
  using traits = tensor_traits<Tensor>;
  using axis = typename axis_of<Tensor, Communicator>::type;
  /// Whether others may read this rank's part when all is there: unless the axis says that they do not. An axis that works on a
  /// queue has its gathers in order there.
  static constexpr bool lends_parts = [] {
    if constexpr (requires { axis::lends_parts; })
      return axis::lends_parts;
    else if constexpr (requires(const axis& a) { a.await_gathers(); })
      return true;
    else
      return false;
  }();

 public:
  /// `stages`: the layers of this rank's. `parameters`, `exchange`: stay where they are; what ranks own is the exchange's.
  /// `options`: of the first axis; others are numbered on from there. `q`: of computations; `side`: of gathers. All ranks of a
  /// stage make one at the same time.
  /// Throws: input_error where the communicator has no collectives for these tensors.
  template <class Exchange>
  gathered_layers(std::vector<layer_range> stages, std::span<const model_parameter> model,
                  std::span<held_parameter<Tensor>> parameters, Exchange& exchange, const Communicator& comm,
                  axis_options options, Queue q, Queue side)
      : queue_(std::move(q)), side_(std::move(side)), stages_(std::move(stages)) {
    // Sets of ranks in an order that all ranks find.
    std::vector<std::vector<int>> sets;
    std::map<std::pair<std::size_t, std::size_t>, std::size_t> set_of;  // by parameter and chunk
    for (std::size_t m = 0; m < model.size(); ++m)
      for (std::size_t c = 0; c < model[m].chunks.size() && model[m].gathered; ++c) {
        auto ranks = ranks_of(model[m].chunks[c]);
        const auto known = std::find(sets.begin(), sets.end(), ranks);
        set_of[{m, c}] = as_size(known - sets.begin());
        if (known == sets.end()) sets.push_back(std::move(ranks));
      }
    for (auto& p : parameters)
      if (p.gathered) layers_[p.what.layer].parameters.push_back(&p);
    for (auto& [number, one] : layers_) list_shares(one, model, exchange, sets, set_of, comm.rank());
    open(sets, comm, std::move(options));
  }

  gathered_layers(const gathered_layers&) = delete;
  gathered_layers& operator=(const gathered_layers&) = delete;
  ~gathered_layers() { abandon(); }

  /// What a pass computes, in the order in which it does: list(what, of which stage) for each. Layers are used as layer_list
  /// does.
  template <class ForEachComputation>
  void begin_pass(ForEachComputation&& for_each) {
    abandon();
    uses_.clear();
    next_ = 0;
    for_each([&](action_kind what, std::size_t stage) {
      const auto& l = stages_.at(stage);
      const bool back = what == action_kind::backward || what == action_kind::backward_input;
      for (int k = 0; k < l.size(); ++k)
        if (const int layer = back ? l.last - 1 - k : l.first + k; layers_.contains(layer)) uses_.push_back(layer);
    });
  }
  /// Makes the parameters of the layer that is used now whole, and begins with the next one's. Returns whether they have changed
  /// since the last time.
  /// Throws: communication_error as collectives do, and the communicator is aborted then; input_error for a layer that the pass
  /// does not use now.
  bool gather(int layer) {
    const auto found = layers_.find(layer);
    if (found == layers_.end()) return false;
    auto& here = found->second;
    if (next_ >= uses_.size() || uses_[next_] != layer)
      throw input_error("layer " + std::to_string(layer) +
                        " is used, and the schedule's next one that gathers its parameters is " +
                        (next_ < uses_.size() ? "layer " + std::to_string(uses_[next_]) : "none"));
    if (!begun_) begin(here);
    for (auto* const p : here.parameters) *p->value = make_tensor<Tensor>(p->shape, queue_);
    for (auto& s : here.shares) {
      end_collect(axes_.at(s.set), std::as_const(s.part), s.whole, s.counts);
      unpack<Tensor>(s.whole, s.all, queue_);
      if constexpr (lends_parts) lent_[s.set] = std::move(s.part);  // all are through with the one before
      s.part = Tensor{};
      s.whole = Tensor{};
    }
    begun_ = nullptr;
    if (++next_ < uses_.size()) begin(layers_.at(uses_[next_]));
    return std::exchange(here.changed, false);
  }
  /// Nobody reads the layer's parameters before the next gather(). Behind the last use of a pass all ranks wait until nobody
  /// needs the others' parts. Throws: as gather().
  void release(int layer) {
    const auto found = layers_.find(layer);
    if (found == layers_.end()) return;
    for (auto* const p : found->second.parameters) *p->value = Tensor{};
    if constexpr (lends_parts)
      if (next_ == uses_.size()) {
        for (const auto& [set, part] : lent_) axes_.at(set).await_gathers();
        lent_.clear();
      }
  }
  void release() {
    for (const auto& [number, one] : layers_) release(number);
  }
  /// What is owned of a layer has changed. Returns whether it is one of these layers.
  bool mark(int layer) {
    const auto found = layers_.find(layer);
    if (found == layers_.end()) return false;
    found->second.changed = true;
    return true;
  }

 private:
  /// Of a layer what the same ranks hold.
  struct share {
    std::size_t set = 0;
    std::vector<std::size_t> counts;        ///< elements that each of them owns
    std::vector<tensor_runs<Tensor>> mine;  ///< owned pieces, and where they are in this rank's part
    std::vector<tensor_runs<Tensor>> all;   ///< the parameters, and where they are in all parts
    Tensor part, whole;                     ///< this rank's part and all, while they are gathered
  };
  struct gathered_layer {
    std::vector<held_parameter<Tensor>*> parameters;
    std::vector<share> shares;
    bool changed = false;
  };

  [[nodiscard]] static std::vector<int> ranks_of(const gradient_chunk& c) {
    std::vector<int> ranks;
    for (const auto& d : c.devices) ranks.push_back(d.device);
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  }

  template <class Exchange, class SetOf>
  void list_shares(gathered_layer& one, std::span<const model_parameter> model, Exchange& exchange,
                   const std::vector<std::vector<int>>& sets, const SetOf& set_of, int me) {
    std::map<std::size_t, share> by_set;
    std::map<std::size_t, std::int64_t> taken;
    std::map<std::size_t, std::vector<std::size_t>> owners;  // of what is in share::all
    for (const auto& g : exchange.gathered()) {              // rank after rank, as parts lie in a gather
      const auto p = std::find_if(one.parameters.begin(), one.parameters.end(),
                                  [&](const auto* held) { return held->model == g.parameter; });
      if (p == one.parameters.end()) continue;
      const auto& chunk = model[g.parameter].chunks[g.chunk].part;
      const auto held = std::find_if((*p)->pieces.begin(), (*p)->pieces.end(),
                                     [&](const held_piece& piece) { return contains(piece.part, chunk); });
      if (held == (*p)->pieces.end()) continue;  // another tensor or expert rank's
      const auto set = set_of.at({g.parameter, g.chunk});
      auto& s = by_set[set];
      s.set = set;
      s.counts.resize(sets[set].size());
      auto& before = taken[set];
      for (auto r : runs_of(held->array, chunk, chunk, g.elements.first, g.elements.last)) {
        r.first_b += before - g.elements.first;
        s.all.push_back({(*p)->value, r});
      }
      before += g.elements.size();
      const auto owner = as_size(std::find(sets[set].begin(), sets[set].end(), g.rank) - sets[set].begin());
      owners[set].resize(s.all.size(), owner);
      auto& own = s.counts[owner];
      for (std::size_t k = 0; k < exchange.owned_count() && g.rank == me; ++k) {
        auto& o = exchange.owned(k);
        if (o.parameter == g.parameter && o.chunk == g.chunk && o.first == g.elements.first)
          s.mine.push_back(
              {&o.value, {.first_a = 0, .first_b = static_cast<std::int64_t>(own), .length = g.elements.size(), .rows = 1}});
      }
      own += as_size(g.elements.size());
    }
    for (auto& [set, s] : by_set) {
      if constexpr (requires { requires axis::prefers_even_parts; }) taken[set] += even_out(s, owners[set]);
      most_[set] = std::max(most_[set], as_size(taken[set]) * sizeof(typename traits::element));
      one.shares.push_back(std::move(s));
    }
  }

  /// Makes parts as large as the largest, where that is not much more, or less than calls cost. `owners`: of the pieces of all.
  /// Returns: the elements that come on top.
  static std::int64_t even_out(share& s, const std::vector<std::size_t>& owners) {
    constexpr std::size_t much = 8;       // one more for so many
    constexpr std::size_t little = 1024;  // for each rank
    const auto sum = std::accumulate(s.counts.begin(), s.counts.end(), std::size_t{0});
    const auto most = *std::max_element(s.counts.begin(), s.counts.end());
    const auto added = most * s.counts.size() - sum;
    if (added > std::max(sum / much, little * s.counts.size())) return 0;
    std::vector<std::int64_t> further;  // than before, by owner
    for (std::int64_t before = 0; const auto n : s.counts) {
      further.push_back(static_cast<std::int64_t>(further.size() * most) - before);
      before += static_cast<std::int64_t>(n);
    }
    for (std::size_t k = 0; k < s.all.size(); ++k) s.all[k].at.first_b += further[owners[k]];
    std::fill(s.counts.begin(), s.counts.end(), most);
    return static_cast<std::int64_t>(added);
  }

  void open(const std::vector<std::vector<int>>& sets, const Communicator& comm, axis_options options) {
    options.scatters = true;
    for (std::size_t set = 0; set < sets.size(); ++set, ++options.number) {
      if (!most_.contains(set)) continue;
      options.most_bytes = most_[set];
      const auto& along = axes_.emplace(set, open_axis<Tensor>(comm, sets[set], options)).first->second;
      if constexpr (requires { along.connects(); })
        if (!along.connects())
          throw input_error("a stage asks for ZeRO stage 3, and the communicator has no collectives for its ranks");
    }
  }

  /// What a step that has failed has begun.
  void abandon() {
    if constexpr (lends_parts) {
      for (const auto& [set, part] : lent_) axes_.at(set).abandon();
      lent_.clear();
    }
    if (!begun_) return;
    for (auto& s : begun_->shares) {
      if constexpr (requires { axes_.at(s.set).abandon(); }) axes_.at(s.set).abandon();
      s.part = Tensor{};
      s.whole = Tensor{};
    }
    begun_ = nullptr;
  }
  /// Behind the use of the layer before, whose parts are freed by then.
  void begin(gathered_layer& one) {
    side_.wait(queue_.record());
    begun_ = &one;
    for (auto& s : one.shares) {
      const auto& along = axes_.at(s.set);
      s.part = make_tensor<Tensor>({1, at(s.counts, along.rank())}, side_);
      s.whole = make_tensor<Tensor>({1, std::accumulate(s.counts.begin(), s.counts.end(), std::size_t{0})}, side_);
      pack<Tensor>(s.part, s.mine, side_);
      begin_collect(along, std::as_const(s.part), s.whole, s.counts);
    }
  }
  using element = typename traits::element;
  static std::span<const element> values(const Tensor& t) { return {traits::data(t), elements(t)}; }
  static std::span<element> values(Tensor& t) { return {traits::data(t), elements(t)}; }
  /// On a queue, nothing is left for the end: whoever reads what comes waits for it there.
  void begin_collect(const axis& along, const Tensor& mine, Tensor& all, std::span<const std::size_t> counts) const {
    if constexpr (requires { along.all_gather(mine, all, counts, side_); })
      along.all_gather(mine, all, counts, side_);
    else if constexpr (traits::space != memory_space::device)
      along.begin_all_gather(values(mine), values(all), counts);
  }
  void end_collect(const axis& along, const Tensor& mine, Tensor& all, std::span<const std::size_t> counts) const {
    if constexpr (!requires { along.all_gather(mine, all, counts, side_); } && traits::space != memory_space::device)
      along.end_all_gather(values(mine), values(all), counts);
  }

  [[no_unique_address]] Queue queue_;
  [[no_unique_address]] Queue side_;
  std::vector<layer_range> stages_;
  std::vector<int> uses_;            ///< of layers that are gathered, in this pass
  std::size_t next_ = 0;             ///< of them
  gathered_layer* begun_ = nullptr;  ///< the one that is being gathered
  std::map<int, gathered_layer> layers_;
  std::map<std::size_t, axis> axes_;         ///< by set of ranks, those of this rank
  std::map<std::size_t, std::size_t> most_;  ///< bytes of a gather
  std::map<std::size_t, Tensor> lent_;       ///< by set, this rank's part of the last gather that has ended
};

}  // namespace hetsched::detail
