// SPDX-License-Identifier: Apache-2.0
// The costs that commands plan and predict with, and the options that choose them.
#pragma once

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include <hetsched/cost/analytic.hpp>
#include <hetsched/cost/profile.hpp>
#include <hetsched/cost/tile_cost.hpp>
#include <hetsched/io/json/model_json.hpp>
#include <hetsched/io/json/profile_json.hpp>
#include <hetsched/model/flash_attention.hpp>
#include <hetsched/plan/plan.hpp>

#include "any_costs.hpp"

namespace command {

inline const std::map<std::string, hetsched::granularity> granularities{{"block", hetsched::granularity::block},
                                                                        {"sublayer", hetsched::granularity::sublayer}};

[[nodiscard]] inline CLI::IsMember one_of(const auto& names) {
  std::vector<std::string> keys;
  for (const auto& [name, ignored] : names) keys.push_back(name);
  return CLI::IsMember(keys);
}

/// What the command line says of costs; empty or 0 where it says nothing.
struct cost_choice {
  std::string profile, formulas, granularity, attention, recompute = "auto", zero = "auto";
  int sequence = 0;

  /// `plans`: whether the command chooses how stages save memory.
  void add_options(CLI::App& app, bool plans) {
    const auto measured = app.add_option("--profile", profile, "profile.json: measured costs in place of the formulas");
    app.add_option("--cost", formulas,
                   "tile: the operators of transformers one by one (default where it can); analytic: formulas for whole layers")
        ->check(CLI::IsMember({"analytic", "tile"}))
        ->excludes(measured);
    app.add_option("--granularity", granularity, "where transformers may be cut (sublayer)")->check(one_of(granularities));
    app.add_option("--sequence", sequence, "tokens per sample, in place of the model file's")->check(CLI::Range(1, 1 << 24));
    app.add_option("--attention", attention, "flash: never stores the scores (default); standard")
        ->check(CLI::IsMember({"flash", "standard"}))
        ->excludes(measured);
    if (!plans) return;
    app.add_option("--recompute", recompute,
                   "what backward computes again: the best per stage, or none, selective, full; not with a profile")
        ->check(CLI::IsMember({"auto", "none", "selective", "full"}))
        ->capture_default_str()
        ->excludes(measured);
    app.add_option("--zero", zero, "ZeRO stage: the best per stage, or 0, 1, 2, 3; not with a profile")
        ->check(CLI::IsMember({"auto", "0", "1", "2", "3"}))
        ->capture_default_str()
        ->excludes(measured);
  }

  /// Takes what the command line leaves open from what a plan was made with.
  void take(const hetsched::plan_setting& s) {
    if (profile.empty() && formulas.empty() && (s.costs == "tile" || s.costs == "analytic")) formulas = s.costs;
    if (granularity.empty() && granularities.contains(s.granularity)) granularity = s.granularity;
    if (sequence == 0) sequence = s.sequence;
    if (attention.empty() && (s.attention == "flash" || s.attention == "standard")) attention = s.attention;
  }
};

/// The costs of a model on a cluster, for any microbatch size.
class cost_source {
 public:
  /// Reads the profile and the model, which may be missing where there is a profile. Throws input_error as these do.
  cost_source(const cost_choice& given, const std::string& model_path) : given_(given), model_path_(model_path) {
    if (given.profile.empty() && model_path.empty()) throw hetsched::input_error("--model is required without --profile");
    if (!given.profile.empty()) profile_ = hetsched::read_profile(given.profile);
    if (!model_path.empty())
      model_ = hetsched::read_model(
          model_path,
          {.cut = granularities.at(given.granularity.empty() ? "sublayer" : given.granularity), .sequence = given.sequence});
  }

  [[nodiscard]] bool measured() const { return profile_.has_value(); }
  [[nodiscard]] const std::optional<hetsched::model_file>& model() const { return model_; }
  [[nodiscard]] hetsched::precision precision() const { return model_ ? model_->precision : hetsched::precision::fp16; }
  [[nodiscard]] double flops_per_sample() const { return model_ ? hetsched::training_flops(model_->chain) : 0; }

  /// Where the layers come from, for messages.
  [[nodiscard]] std::string layer_file() const { return measured() ? given_.profile : model_path_; }

  [[nodiscard]] int layer_count() const { return measured() ? static_cast<int>(profile_->layers.size()) : model_->chain.size(); }

  /// The model's costs by name: "profile", "tile" or "analytic". Tile where operators and devices are known, unless told else.
  [[nodiscard]] std::string kind(const hetsched::cluster& hardware) const {
    if (measured()) return "profile";
    if (given_.formulas == "tile" && !model_->family)
      throw hetsched::input_error("--cost: tile needs a transformer, whose operators are known; found a file of layers");
    if (!given_.formulas.empty()) return given_.formulas;
    const bool known = std::all_of(hardware.subclusters.begin(), hardware.subclusters.end(), [](const auto& s) {
      return s.device.multiprocessors > 0 && s.device.flops(hetsched::precision::fp32) > 0;
    });
    return model_->family && known ? "tile" : "analytic";
  }

  [[nodiscard]] std::string text(const hetsched::cluster& hardware) const {
    const auto name = kind(hardware);
    return name == "profile" ? "measured costs of " + given_.profile
           : name == "tile"  ? "costs of the tile model"
                             : "analytic costs";
  }

  /// What a plan should remember of its costs.
  [[nodiscard]] hetsched::plan_setting setting(const hetsched::cluster& hardware) const {
    hetsched::plan_setting s{.costs = kind(hardware)};
    if (!model_) return s;
    s.precision = name_of(model_->precision);
    if (!model_->family) return s;
    s.sequence = model_->family->sequence;
    if (measured()) return s;
    s.granularity = given_.granularity.empty() ? "sublayer" : given_.granularity;
    s.attention = flash() ? "flash" : "standard";
    return s;
  }

  /// Costs of microbatches of that many samples; formulas for context degrees up to `max_context`.
  [[nodiscard]] any_costs costs(const hetsched::cluster& hardware, int microbatch_size, int max_context = 1) const {
    if (measured()) return measured_costs(hardware);
    const auto set = [&](auto options) {
      options.microbatch_size = microbatch_size;
      options.precision = model_->precision;
      options.recompute = recomputations();
      options.zero = zero_stages();
      // Mixed precision with Adam, or fp32 throughout for models of that.
      if (model_->chain.parameter_bytes == 4) options.memory = {.weight_bytes = 4, .gradient_bytes = 4, .optimizer_bytes = 8};
      options.max_context = max_context;
      return options;
    };
    if (kind(hardware) == "analytic") {
      auto chain = flash() ? with_flash_attention(model_->chain) : model_->chain;
      return any_costs(hetsched::analytic_cost_model(hardware, std::move(chain), set(hetsched::analytic_options{})));
    }
    const auto kernels = flash() ? hetsched::attention_kernels::flash : hetsched::attention_kernels::plain;
    return any_costs(hetsched::make_tile_cost(hardware, *model_->family, set(hetsched::tile_cost_options{}),
                                              {.attention = kernels, .causal = causal(), .sequence_parallel = true},
                                              granularities.at(given_.granularity.empty() ? "sublayer" : given_.granularity)));
  }

  /// What could be changed where memory is short, as the end of a sentence; empty if nothing.
  [[nodiscard]] std::string ways_out() const {
    std::string text;
    const auto add = [&](const std::string& way) { text += (text.empty() ? "" : "; ") + way; };
    if (measured()) return text;
    if (model_->family && given_.sequence == 0)
      add("the " + std::to_string(model_->family->sequence) + " tokens per sample are those of " + model_path_ +
          ": --sequence takes fewer");
    if (given_.recompute != "auto" && given_.recompute != "full")
      add("--recompute is " + given_.recompute + ": auto or full keeps less");
    if (given_.zero != "auto" && given_.zero != "3") add("--zero is " + given_.zero + ": auto or 3 keeps less");
    if (given_.attention == "standard") add("--attention is standard: flash keeps no scores");
    return text;
  }

 private:
  [[nodiscard]] bool flash() const { return given_.attention != "standard"; }
  [[nodiscard]] bool causal() const { return model_->family->head == hetsched::output_head::language_model; }

  [[nodiscard]] std::vector<hetsched::recomputation> recomputations() const {
    using enum hetsched::recomputation;
    if (const auto one = hetsched::find_recomputation(given_.recompute)) return {*one};
    return {none, selective, full};
  }
  [[nodiscard]] std::vector<int> zero_stages() const {
    if (given_.zero != "auto") return {given_.zero[0] - '0'};
    return {0, 1, 2, 3};
  }

  [[nodiscard]] any_costs measured_costs(const hetsched::cluster& hardware) const {
    try {
      return any_costs(hetsched::profile_cost_model(hardware, *profile_));
    } catch (const hetsched::file_error&) {
      throw;
    } catch (const hetsched::input_error& wrong) {
      throw hetsched::file_error(given_.profile, {}, wrong.what());
    }
  }

  cost_choice given_;
  std::string model_path_;
  std::optional<hetsched::profile> profile_;
  std::optional<hetsched::model_file> model_;
};

}  // namespace command
