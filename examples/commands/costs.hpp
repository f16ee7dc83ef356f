// SPDX-License-Identifier: Apache-2.0
// The costs that commands plan and predict with, and the options that choose them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include <hetsched/cost/analytic.hpp>
#include <hetsched/cost/profile.hpp>
#include <hetsched/cost/tile_cost.hpp>
#include <hetsched/io/model_json.hpp>
#include <hetsched/io/profile_json.hpp>

namespace command {

/// Any additive cost model whose transfer prices know one class: a planner is compiled once for all of them.
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
  [[nodiscard]] double transfer(int boundary, const hetsched::placement& from, const hetsched::placement& to) const {
    return costs_->transfer(boundary, from, to);
  }
  [[nodiscard]] double update(hetsched::layer_range layers, const hetsched::placement& where) const {
    return costs_->update(layers, where);
  }
  [[nodiscard]] static constexpr int transfer_class(const hetsched::placement&) { return 0; }

 private:
  struct model {
    virtual ~model() = default;
    virtual int layer_count() const = 0;
    virtual std::vector<hetsched::placement> placements(const hetsched::submesh&) const = 0;
    virtual hetsched::stage_cost layer(int, const hetsched::placement&) const = 0;
    virtual hetsched::stage_cost stage(hetsched::layer_range, const hetsched::placement&) const = 0;
    virtual double transfer(int, const hetsched::placement&, const hetsched::placement&) const = 0;
    virtual double update(hetsched::layer_range, const hetsched::placement&) const = 0;
  };
  template <class Costs>
  struct held final : model {
    static_assert(Costs::transfer_class(hetsched::placement{}) == 0);

    explicit held(Costs c) : costs(std::move(c)) {}
    int layer_count() const override { return costs.layer_count(); }
    std::vector<hetsched::placement> placements(const hetsched::submesh& mesh) const override { return costs.placements(mesh); }
    hetsched::stage_cost layer(int index, const hetsched::placement& where) const override { return costs.layer(index, where); }
    hetsched::stage_cost stage(hetsched::layer_range layers, const hetsched::placement& where) const override {
      return costs.stage(layers, where);
    }
    double transfer(int boundary, const hetsched::placement& from, const hetsched::placement& to) const override {
      return costs.transfer(boundary, from, to);
    }
    double update(hetsched::layer_range layers, const hetsched::placement& where) const override {
      return hetsched::cost_of::update(costs, layers, where);
    }
    Costs costs;
  };

  std::shared_ptr<const model> costs_;
};

static_assert(hetsched::additive_cost_model<any_costs>);

inline const std::map<std::string, hetsched::granularity> granularities{{"block", hetsched::granularity::block},
                                                                        {"sublayer", hetsched::granularity::sublayer}};
inline const std::map<std::string, hetsched::recomputation> recomputations{{"none", hetsched::recomputation::none},
                                                                           {"selective", hetsched::recomputation::selective},
                                                                           {"full", hetsched::recomputation::full}};

[[nodiscard]] inline CLI::IsMember one_of(const auto& names) {
  std::vector<std::string> keys;
  for (const auto& [name, ignored] : names) keys.push_back(name);
  return CLI::IsMember(keys);
}

struct cost_choice {
  std::string profile, formulas, granularity = "sublayer", recompute = "none";
  int zero = 0;
  int sequence = 0;

  void add_options(CLI::App& app) {
    const auto measured = app.add_option("--profile", profile, "profile.json: measured costs in place of the formulas");
    app.add_option("--cost", formulas, "analytic: formulas for whole layers; tile: the operators of transformers one by one")
        ->check(CLI::IsMember({"analytic", "tile"}))
        ->excludes(measured);
    app.add_option("--granularity", granularity, "where transformers may be cut")
        ->check(one_of(granularities))
        ->capture_default_str();
    app.add_option("--sequence", sequence, "tokens per sample, in place of the model file's")->check(CLI::Range(1, 1 << 24));
    app.add_option("--recompute", recompute, "what backward computes again; not with a profile")
        ->check(one_of(recomputations))
        ->capture_default_str()
        ->excludes(measured);
    app.add_option("--zero", zero, "ZeRO stage; not with a profile")
        ->check(CLI::Range(0, 3))
        ->capture_default_str()
        ->excludes(measured);
  }

  [[nodiscard]] hetsched::model_file read_model(const std::string& path) const {
    return hetsched::read_model(path, {.cut = granularities.at(granularity), .sequence = sequence});
  }

  /// Mixed precision with Adam, or fp32 throughout for models of that.
  [[nodiscard]] hetsched::training_memory state(const hetsched::model_file& model) const {
    if (model.chain.parameter_bytes == 4) return {.zero = zero, .weight_bytes = 4, .gradient_bytes = 4, .optimizer_bytes = 8};
    return {.zero = zero};
  }

  /// The costs that were chosen, by default analytic ones, for microbatches of that many samples.
  [[nodiscard]] any_costs costs(const hetsched::cluster& hardware, const hetsched::model_file& model, int microbatch_size,
                                int max_context = 1) const {
    if (!profile.empty()) return measured_costs(hardware);
    const auto set = [&](auto options) {
      options.microbatch_size = microbatch_size;
      options.precision = model.precision;
      options.recompute = recomputations.at(recompute);
      options.memory = state(model);
      options.max_context = max_context;
      return options;
    };
    if (formulas != "tile")
      return any_costs(hetsched::analytic_cost_model(hardware, model.chain, set(hetsched::analytic_options{})));
    if (!model.family)
      throw hetsched::input_error("--cost: tile needs a transformer, whose operators are known; found a file of layers");
    return any_costs(hetsched::make_tile_cost(hardware, *model.family, set(hetsched::tile_cost_options{}),
                                              {.sequence_parallel = true}, granularities.at(granularity)));
  }

  [[nodiscard]] std::string text() const {
    return !profile.empty() ? "measured costs of " + profile : formulas == "tile" ? "costs of the tile model" : "analytic costs";
  }

 private:
  [[nodiscard]] any_costs measured_costs(const hetsched::cluster& hardware) const {
    auto measured = hetsched::read_profile(profile);
    try {
      return any_costs(hetsched::profile_cost_model(hardware, std::move(measured)));
    } catch (const hetsched::file_error&) {
      throw;
    } catch (const hetsched::input_error& wrong) {
      throw hetsched::file_error(profile, {}, wrong.what());
    }
  }
};

}  // namespace command
