// SPDX-License-Identifier: Apache-2.0
// One type for every cost model of the commands: a planner is compiled once for all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/cost/questions/concepts.hpp>
#include <hetsched/cost/questions/stage_part.hpp>

namespace command {

/// Any additive cost model that tells the classes of its transfer prices.
class any_costs {
 public:
  template <hetsched::additive_cost_model Costs>
  explicit any_costs(Costs costs) : costs_(std::make_shared<held<Costs>>(std::move(costs))) {}

  [[nodiscard]] int layer_count() const { return costs_->layer_count(); }
  [[nodiscard]] std::vector<hetsched::placement> placements(const hetsched::submesh& mesh) const {
    return costs_->placements(mesh);
  }
  [[nodiscard]] hetsched::stage_cost layer(int index, const hetsched::placement& where) const {
    return costs_->layer(index, where);
  }
  [[nodiscard]] hetsched::stage_cost stage(hetsched::layer_range layers, const hetsched::placement& where) const {
    return costs_->stage(layers, where);
  }
  [[nodiscard]] hetsched::transfer_cost transfer(int boundary, const hetsched::placement& from, const hetsched::placement& to,
                                                 hetsched::proximity near = hetsched::proximity::other_node) const {
    return costs_->transfer(boundary, from, to, near);
  }
  [[nodiscard]] double update(hetsched::layer_range layers, const hetsched::placement& where) const {
    return costs_->update(layers, where);
  }
  [[nodiscard]] hetsched::reduction_cost gradient_sync(hetsched::layer_range layers,
                                                       std::span<const hetsched::placement> holders) const {
    return costs_->gradient_sync(layers, holders);
  }
  [[nodiscard]] hetsched::memory_overheads overheads(const hetsched::placement& where) const { return costs_->overheads(where); }
  [[nodiscard]] int slices() const { return costs_->slices(); }
  [[nodiscard]] hetsched::parts_cost sliced_stage(hetsched::layer_range layers,
                                                  std::span<const hetsched::stage_part> parts) const {
    return costs_->sliced_stage(layers, parts);
  }
  [[nodiscard]] std::int64_t transfer_class(const hetsched::placement& where) const { return costs_->transfer_class(where); }
  [[nodiscard]] std::int64_t boundary_class(int boundary) const { return costs_->boundary_class(boundary); }

 private:
  struct model {
    virtual ~model() = default;
    virtual int layer_count() const = 0;
    virtual std::vector<hetsched::placement> placements(const hetsched::submesh&) const = 0;
    virtual hetsched::stage_cost layer(int, const hetsched::placement&) const = 0;
    virtual hetsched::stage_cost stage(hetsched::layer_range, const hetsched::placement&) const = 0;
    virtual hetsched::transfer_cost transfer(int, const hetsched::placement&, const hetsched::placement&,
                                             hetsched::proximity) const = 0;
    virtual double update(hetsched::layer_range, const hetsched::placement&) const = 0;
    virtual hetsched::reduction_cost gradient_sync(hetsched::layer_range, std::span<const hetsched::placement>) const = 0;
    virtual hetsched::memory_overheads overheads(const hetsched::placement&) const = 0;
    virtual int slices() const = 0;
    virtual hetsched::parts_cost sliced_stage(hetsched::layer_range, std::span<const hetsched::stage_part>) const = 0;
    virtual std::int64_t transfer_class(const hetsched::placement&) const = 0;
    virtual std::int64_t boundary_class(int) const = 0;
  };
  template <class Costs>
  struct held final : model {
    explicit held(Costs c) : costs(std::move(c)) {}
    int layer_count() const override { return hetsched::cost_of::layer_count(costs); }
    std::vector<hetsched::placement> placements(const hetsched::submesh& mesh) const override {
      return hetsched::cost_of::placements(costs, mesh);
    }
    hetsched::stage_cost layer(int index, const hetsched::placement& where) const override {
      return hetsched::cost_of::layer(costs, index, where);
    }
    hetsched::stage_cost stage(hetsched::layer_range layers, const hetsched::placement& where) const override {
      return hetsched::cost_of::stage(costs, layers, where);
    }
    hetsched::transfer_cost transfer(int boundary, const hetsched::placement& from, const hetsched::placement& to,
                                     hetsched::proximity near) const override {
      return hetsched::cost_of::transfer(costs, boundary, from, to, near);
    }
    double update(hetsched::layer_range layers, const hetsched::placement& where) const override {
      return hetsched::cost_of::update(costs, layers, where);
    }
    hetsched::reduction_cost gradient_sync(hetsched::layer_range layers,
                                           std::span<const hetsched::placement> holders) const override {
      return hetsched::cost_of::gradient_sync(costs, layers, holders);
    }
    hetsched::memory_overheads overheads(const hetsched::placement& where) const override {
      return hetsched::cost_of::overheads(costs, where);
    }
    int slices() const override { return hetsched::cost_of::slices(costs); }
    hetsched::parts_cost sliced_stage(hetsched::layer_range layers, std::span<const hetsched::stage_part> parts) const override {
      return hetsched::cost_of::sliced_stage(costs, layers, parts);
    }
    std::int64_t transfer_class(const hetsched::placement& where) const override {
      return hetsched::cost_of::transfer_class(costs, where);
    }
    std::int64_t boundary_class(int boundary) const override { return hetsched::cost_of::boundary_class(costs, boundary); }
    Costs costs;
  };

  std::shared_ptr<const model> costs_;
};

static_assert(hetsched::additive_cost_model<any_costs>);

}  // namespace command
