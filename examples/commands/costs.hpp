// SPDX-License-Identifier: Apache-2.0
// The costs that commands plan and predict with, and the options that choose them.
#pragma once

#include <algorithm>
#include <charconv>
#include <climits>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <CLI/App.hpp>
#include <nlohmann/json.hpp>

#include <hetsched/cost/models/like_cases.hpp>
#include <hetsched/cost/models/operator_correction.hpp>
#include <hetsched/cost/models/profile.hpp>
#include <hetsched/cost/models/replica_profile.hpp>
#include <hetsched/cost/models/training_costs.hpp>
#include <hetsched/cost/models/training_stack.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/cost/questions/describe.hpp>
#include <hetsched/evaluate/sends.hpp>
#include <hetsched/io/json/correction_json.hpp>
#include <hetsched/io/json/model_json.hpp>
#include <hetsched/io/json/profile_json.hpp>
#include <hetsched/io/json/stack_json.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/planners/find_inference_plan.hpp>
#include <hetsched/planners/priced_model.hpp>

#include "names.hpp"

namespace command {

inline const std::map<std::string, hetsched::granularity> granularities{{"block", hetsched::granularity::block},
                                                                        {"sublayer", hetsched::granularity::sublayer}};

[[nodiscard]] inline CLI::IsMember one_of(const auto& names) {
  std::vector<std::string> keys;
  for (const auto& [name, ignored] : names) keys.push_back(name);
  return CLI::IsMember(keys);
}

/// Refuses formats of 8 bits as a --dtype with what to say in place of them.
inline const CLI::Validator in_16_or_32_bits(
    [](std::string& name) -> std::string {
      if (hetsched::find_precision(name)) return "";
      std::string text = "found " + name + ", expected one of fp32, tf32, fp16, bf16";
      if (name == "fp8")
        text +=
            "; products in fp8 are \"products\": \"fp8\" of a --stack file in training, --products fp8 of hetsched-plan in "
            "inference";
      if (name == "int8" || name == "int4") text += "; for inference, hetsched-plan has --weight-bits, and --products int8";
      return text;
    },
    "{fp32,tf32,fp16,bf16}");

/// The file of costs that are called "forest:FILE"; of others nothing.
[[nodiscard]] inline std::string forest_of(const std::string& costs) {
  constexpr std::string_view kind = "forest:";
  return costs.starts_with(kind) ? costs.substr(kind.size()) : "";
}

/// What the command line says of costs; empty or 0 where it says nothing.
struct cost_choice {
  std::string profile, formulas, granularity, attention, dtype, stack, recompute = "auto", zero = "auto";
  int sequence = 0;
  int max_context = 1, max_expert = INT_MAX;
  bool extrapolate = false;
  int batch = 0;  ///< samples of an iteration, which the command knows; 0: not known

  /// `plans`: whether the command chooses how stages save memory.
  void add_options(CLI::App& app, bool plans) {
    const auto measured = app.add_option("--profile", profile, "profile.json: measured costs in place of the formulas");
    app.add_option("--cost", formulas,
                   "tile: the operators of transformers one by one (default where it can); analytic: formulas for whole layers; "
                   "forest:F: tile, corrected by a file of hetsched-calibrate --forest; hexiscale: HexiScale's formulas for "
                   "equal blocks")
        ->check([](const std::string& name) {
          const bool known = name == "analytic" || name == "tile" || name == "hexiscale" || !forest_of(name).empty();
          return known ? "" : "expected tile, analytic, forest:F or hexiscale; found " + name;
        })
        ->excludes(measured);
    app.add_option("--granularity", granularity, "where transformers may be cut (sublayer)")->check(one_of(granularities));
    app.add_option("--sequence", sequence, "tokens per sample, in place of the model file's")->check(CLI::Range(1, 1 << 24));
    app.add_option("--attention", attention, "flash: never stores the scores (default); standard")
        ->check(CLI::IsMember({"flash", "standard"}))
        ->excludes(measured);
    app.add_option("--dtype", dtype, "fp32, tf32, fp16, bf16: of the formulas, in place of the model file's; not with a profile")
        ->check(in_16_or_32_bits)
        ->excludes(measured);
    app.add_option(
           "--stack", stack,
           "the trainer that runs the plan: hetsched (default), megatron, fsdp, torchtitan, deepspeed, ddp, or a stack.json; in "
           "place of the cluster file's")
        ->excludes(measured);
    app.add_flag("--extrapolate", extrapolate, "also microbatch sizes beyond those that the profile measured")->needs(measured);
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
    app.add_option(
           "--max-context", max_context,
           "context degrees of transformers' stages, whose devices share every sequence, up to this; a profile has its own")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str()
        ->excludes(measured);
    app.add_option(
           "--max-expert", max_expert,
           "expert degrees of stages of models with experts, whose data ranks share them out, up to this (all); not with a "
           "profile")
        ->check(CLI::Range(1, 1 << 20))
        ->excludes(measured);
  }

  /// Takes what the command line leaves open from what a plan was made with. A correction is looked for where the plan says, and
  /// beside the plan.
  /// Throws: file_error if it is not there.
  void take(const hetsched::plan_setting& s, const std::string& plan_path) {
    if (profile.empty() && formulas.empty() && (s.costs == "tile" || s.costs == "analytic" || s.costs == "hexiscale"))
      formulas = s.costs;
    if (const auto path = forest_of(s.costs); profile.empty() && formulas.empty() && !path.empty()) {
      const auto beside = (std::filesystem::path(plan_path).parent_path() / std::filesystem::path(path).filename()).string();
      std::error_code unknown;
      const auto found = std::filesystem::exists(path, unknown) ? path : std::filesystem::exists(beside, unknown) ? beside : "";
      if (found.empty())
        throw hetsched::file_error(plan_path, "/setting/costs",
                                   "found " + s.costs + ", and " +
                                       (path == beside ? "it is not there" : "neither " + path + " nor " + beside + " is there") +
                                       "; expected the file that the plan was priced with: --cost forest:F says where "
                                       "it is, and --cost tile prices without it");
      formulas = "forest:" + found;
    }
    if (granularity.empty() && granularities.contains(s.granularity)) granularity = s.granularity;
    if (sequence == 0) sequence = s.sequence;
    if (dtype.empty() && profile.empty() && hetsched::find_precision(s.precision)) dtype = s.precision;
    if (attention.empty() && (s.attention == "flash" || s.attention == "standard")) attention = s.attention;
  }
};

/// The costs of a model as the command line and its files tell them, and what is to be said of them.
class cost_source {
 public:
  /// Reads the profile and the model, which may be missing where there is a profile, and the stack if one is named; `usual`: if
  /// none is. Throws input_error as these do.
  cost_source(const cost_choice& given, const std::string& model_path, const std::optional<hetsched::training_stack>& usual)
      : given_(given), model_path_(model_path) {
    priced_.options = options_of(usual.value_or(hetsched::training_stack{}));
    if (!given.stack.empty()) priced_.options.stack = hetsched::read_stack(given.stack);
    if (given.profile.empty() && model_path.empty()) throw hetsched::input_error("--model is required without --profile");
    if (!given.profile.empty()) read_profile();
    if (const auto forest = forest_of(given.formulas); !forest.empty()) read_forest(forest);
    if (given.extrapolate && of_shapes())
      throw hetsched::input_error("--extrapolate: " + given.profile + " is of version 1, which holds the costs of one size");
    if (!model_path.empty()) read_model();
    if (priced_.options.formulas == hetsched::cost_formulas::tile && !model_->family)
      throw hetsched::input_error("--cost: " + std::string(corrected() ? "forest" : "tile") +
                                  " needs a transformer, whose operators are known; found a file of layers");
    if (given.formulas == "hexiscale") {
      expect_hexiscale();
      priced_.instead = hetsched::hexiscale_formulas{};
    }
  }

  /// For the library.
  [[nodiscard]] const hetsched::priced_model& priced() const { return priced_; }

  [[nodiscard]] bool measured() const { return !given_.profile.empty(); }
  /// Whether they are those of HexiScale's paper, which knows blocks, and neither stacks nor ways to save memory.
  [[nodiscard]] bool by_hexiscale() const { return given_.formulas == "hexiscale"; }
  /// Whether they are a profile of version 1: of one microbatch size.
  [[nodiscard]] bool of_shapes() const { return knows_shapes_only(priced_); }
  [[nodiscard]] const std::optional<hetsched::model_file>& model() const { return model_; }
  [[nodiscard]] hetsched::precision precision() const { return priced_.options.precision; }

  /// Where the layers come from, for messages.
  [[nodiscard]] std::string layer_file() const { return measured() ? given_.profile : model_path_; }

  [[nodiscard]] int layer_count() const {
    if (by_hexiscale()) return model_->family->layers;
    if (!measured()) return model_->chain.size();
    return static_cast<int>(of_shapes() ? std::get<hetsched::profile>(priced_.instead).layers.size()
                                        : std::get<hetsched::replica_profile>(priced_.instead).layers.size());
  }

  /// The most parts that a model can be cut into: sublayers of a transformer.
  [[nodiscard]] int part_count() const {
    if (measured() || by_hexiscale() || !model_->family) return layer_count();
    return std::max(layer_count(), hetsched::make_chain(*model_->family, hetsched::granularity::sublayer).size());
  }

  /// The model's costs by name: "profile", "hexiscale", "tile" or "analytic". Tile where operators and devices are known, unless
  /// told else.
  [[nodiscard]] std::string kind(const hetsched::cluster& hardware) const { return std::string(costs_name(hardware, priced_)); }

  /// `trained`: by the stack, else of inference.
  [[nodiscard]] std::string text(const hetsched::cluster& hardware, bool trained = true) const {
    const auto name = kind(hardware);
    if (name == "hexiscale") return "costs by HexiScale's formulas";
    if (name == "profile") return "measured costs of " + given_.profile;
    std::string text = name == "tile" ? "costs of the tile model" : "analytic costs";
    if (corrected()) text += " corrected by " + priced_.correction;
    if (trained) text += "; stack " + stack_name() + (priced_.options.stack.fp8_products ? ", products in fp8" : "");
    const auto precision = trained ? precision_text(hardware) : precision_text(hardware, {});
    for (const auto& more : {anchored_text(hardware), whole_layers_text(hardware), precision})
      text += (more.empty() ? "" : "; ") + more;
    return text;
  }

  /// Where somebody measured what such costs say; `trained`: by the stack, else of inference.
  [[nodiscard]] std::vector<hetsched::like_cases> like_cases(const hetsched::cluster& hardware, bool trained = true) const {
    return like_cases_of(hardware, priced_, trained);
  }

  /// The same as JSON.
  [[nodiscard]] nlohmann::ordered_json like_cases_json(const hetsched::cluster& hardware, bool trained = true) const {
    auto all = nlohmann::ordered_json::array();
    for (const auto& one : like_cases(hardware, trained)) {
      all.push_back({{"what", one.what}, {"cases", one.cases}, {"bias", one.bias}, {"mean", one.mean}, {"page", one.page}});
      if (one.sends != hetsched::send_mode::asynchronous) all.back()["sends"] = hetsched::at(hetsched::send_modes, one.sends);
    }
    return all;
  }

  /// "ascend priced by whole layers, as its multiprocessors or fp32 peak are not known", or nothing.
  [[nodiscard]] std::string whole_layers_text(const hetsched::cluster& hardware) const {
    const auto names = priced_by_whole_layers(hardware, priced_);
    return names.empty() ? ""
                         : listed(names) + " priced by whole layers, as " + (names.size() == 1 ? "its" : "their") +
                               " multiprocessors or fp32 peak are not known";
  }

  /// What the trainer holds of each parameter: "megatron: 2 + 4 + 12 bytes a parameter for weights, gradients, optimizer".
  [[nodiscard]] std::string stack_bytes_text() const {
    const auto m = memory_in(priced_.options.stack, precision(), model_->chain.parameter_bytes);
    return std::to_string(m.weight_bytes) + " + " + std::to_string(m.gradient_bytes) + " + " + std::to_string(m.optimizer_bytes) +
           " bytes a parameter: weights, gradients, optimizer" +
           (m.fp8_bytes > 0 ? "; of blocks " + std::to_string(m.fp8_bytes) + " more, for products in fp8" : "");
  }
  [[nodiscard]] const std::string& stack_name() const { return priced_.options.stack.name; }

  /// How ranks send under a plan: as is asked for, or, if nothing is, as the stack does where it counts.
  [[nodiscard]] hetsched::send_mode sends(const std::string& asked, const hetsched::plan& p) const {
    using namespace hetsched;
    return asked.empty() ? sends_under(p, trainer_sends(asked)) : trainer_sends(asked);
  }

  /// How the trainer sends, whatever the plan.
  [[nodiscard]] hetsched::send_mode trainer_sends(const std::string& asked) const {
    using namespace hetsched;
    if (asked.empty()) return measured() || by_hexiscale() ? send_mode::asynchronous : priced_.options.stack.sends;
    return static_cast<send_mode>(std::find(send_modes.begin(), send_modes.end(), asked) - send_modes.begin());
  }

  /// A line for an iteration whose sends hold ranks up; nothing for none.
  [[nodiscard]] static std::string held_up_text(hetsched::send_mode sends, std::optional<double> seconds) {
    if (!seconds) return "";
    return "\nwith " + std::string(hetsched::at(hetsched::send_modes, sends)) + " sends an iteration takes " +
           hetsched::format_seconds(*seconds) + "\n";
  }

  /// What the costs rest on: a profile, or datasheets, and which devices are calibrated; and how far off like cases were.
  [[nodiscard]] std::string basis_text(const hetsched::cluster& hardware, bool trained = true) const {
    const auto cases = cases_text(like_cases(hardware, trained));
    if (measured()) return "measured: " + given_.profile + "; " + cases;
    std::vector<std::string> calibrated;
    for (const auto& s : hardware.subclusters)
      if (!(s.device.calibration == hetsched::device_calibration{})) calibrated.push_back(s.name);
    std::string text = "from datasheets" + (corrected() ? ", corrected by " + priced_.correction : "") +
                       (calibrated.empty() ? "" : "; calibrated: " + listed(calibrated));
    for (const auto& more : {anchored_text(hardware), whole_layers_text(hardware), cases})
      text += (more.empty() ? "" : "; ") + more;
    return text;
  }

  /// "anchored: a x 0.46", the subclusters whose devices are as fast as they were measured, or nothing; "a (products x 0.8,
  /// attention x 0.5, others x 1)" where classes of operators differ.
  [[nodiscard]] static std::string anchored_text(const hetsched::cluster& hardware) {
    std::vector<std::string> anchors;
    for (const auto& s : hardware.subclusters) {
      if (!s.device.is_anchored()) continue;
      const auto factor = [](double speed) {
        char text[32];
        std::snprintf(text, sizeof text, " x %.3g", speed);
        return std::string(text);
      };
      const auto& own = s.device.class_speeds;
      if (own[0] == own[1] && own[1] == own[2]) {
        anchors.push_back(s.name + factor(s.device.speed * own[0]));
        continue;
      }
      std::string text = s.name + " (";
      for (std::size_t k = 0; k < own.size(); ++k)
        text += (k > 0 ? ", " : "") + std::string(hetsched::operator_class_names[k]) + factor(s.device.speed * own[k]);
      anchors.push_back(text + ")");
    }
    return anchors.empty() ? "" : "anchored: " + listed(anchors);
  }

  /// The file's cluster with devices as fast as its anchors say.
  /// Throws: input_error where anchors would not be used, and as hetsched::anchored.
  [[nodiscard]] hetsched::cluster anchored(const hetsched::cluster_file& file) const {
    if (file.anchors.empty()) return file.hardware;
    if (by_hexiscale()) throw hetsched::input_error("\"measured\" of devices is not used by --cost hexiscale; take it out");
    if (measured())
      throw hetsched::input_error("\"measured\" of devices is not used: " + given_.profile +
                                  " has times of its own; take one out");
    return hetsched::anchored(file.hardware, file.anchors, priced_);
  }

  /// Where the anchors of a device do not agree: how far off the costs of each are on the devices as anchored().
  [[nodiscard]] std::vector<std::string> anchor_warnings(const hetsched::cluster_file& file,
                                                         const hetsched::cluster& hardware) const {
    std::vector<std::string> all;
    if (file.anchors.size() < 2) return all;
    const auto residuals = anchor_residuals(hardware, file.anchors, priced_);
    std::map<std::string, std::vector<double>> by;  // device
    for (std::size_t i = 0; i < residuals.size(); ++i) by[file.anchors[i].device].push_back(residuals[i]);
    for (const auto& [device, off] : by) {
      const auto far = [](double r) { return std::abs(r) > hetsched::far_residual; };
      if (std::none_of(off.begin(), off.end(), far)) continue;
      std::string text = "what was \"measured\" of " + device + " does not agree: as anchored, times are";
      for (std::size_t i = 0; i < off.size(); ++i)
        text += (i > 0 ? ", " : " ") + std::string(off[i] > 0 ? "+" : "") + hetsched::format_percent(off[i]) + " off /measured/" +
                std::to_string(i);
      all.push_back(text + "; did all run under the same stack, with the model, degrees and recomputation that they tell?");
    }
    return all;
  }

  /// Throws input_error for a device whose calibration, or speeds of classes of operators, would not be used.
  void check_calibrations(const hetsched::cluster& hardware) const {
    using cause = hetsched::unused_calibration::cause;
    const auto unused = find_unused_calibration(hardware, priced_);
    if (!unused) return;
    const auto& name = hetsched::at(hardware.subclusters, unused->subcluster).name;
    if (unused->why == cause::class_speeds)
      throw hetsched::input_error("the speeds of classes of operators of " + name +
                                  " are not used, as it is priced by whole layers; say one \"speed\"");
    if (unused->why == cause::corrected)
      throw hetsched::input_error("the calibration of " + name + " does not go with " + priced_.correction +
                                  ", which corrects what datasheets say: take one of them out");
    throw hetsched::input_error("the calibration of " + name + " is not used: " +
                                (model_->family ? "it is one of operators, which need the device's multiprocessors and fp32 peak"
                                                : "it is one of operators, and " + model_path_ + " is a file of layers") +
                                "; take it out, or choose --cost analytic");
  }

  /// What to do where all is priced in fp32 only because a config.json stores weights so; else nothing.
  [[nodiscard]] std::string stored_precision_text() const {
    if (measured() || !given_.dtype.empty() || !model_->stored_as_fp32) return "";
    return model_path_ + " stores weights in float32, so all is priced in fp32; if it runs in mixed precision, say --dtype bf16";
  }

  /// What the links of each subcluster's nodes add up to, in Gbit/s: "a: 3600 in a node (nvlink-sharp), 8 x 400 = 3200 between
  /// nodes"; nothing where there are none.
  [[nodiscard]] static std::string links_text(const hetsched::cluster& hardware) {
    std::vector<std::pair<std::string, std::vector<std::string>>> like;  // what is said, of whom
    for (const auto& s : hardware.subclusters) {
      const auto gbit = [](double bandwidth) { return hetsched::detail::number_text(bandwidth * 8 / 1e9); };
      std::string text;
      if (s.devices_per_node > 1)
        text = gbit(s.intra_node.bandwidth) + " in a node (" + std::string(name_of(s.intra_node.kind)) + ")";
      if (s.nodes > 1) {
        text += text.empty() ? "" : ", ";
        if (s.nics > 1) text += std::to_string(s.nics) + " x " + gbit(s.inter_node.bandwidth) + " = ";
        text += gbit(s.inter_node.bandwidth * s.nics) + " between nodes";
      }
      if (text.empty()) continue;
      const auto known = std::find_if(like.begin(), like.end(), [&](const auto& l) { return l.first == text; });
      (known == like.end() ? like.emplace_back(text, std::vector<std::string>{}) : *known).second.push_back(s.name);
    }
    std::string all;
    for (const auto& [text, names] : like) all += (all.empty() ? "" : "; ") + listed(names) + ": " + text;
    return all;
  }

  /// Where nodes of eight devices that are sold with a network port each have one port's rate in all: what to ask; else nothing.
  [[nodiscard]] static std::string ports_text(const hetsched::cluster& hardware) {
    for (const auto& s : hardware.subclusters) {
      const double gbit = s.inter_node.bandwidth * 8 / 1e9;
      const bool of_one_port = gbit == 200 || gbit == 400 || gbit == 800;
      if (s.intra_node.kind == hetsched::link_kind::nvlink_sharp && s.devices_per_node == 8 && s.nodes > 1 && s.nics == 1 &&
          of_one_port)
        return "the 8 devices of a node of " + s.name + " share " + hetsched::detail::number_text(gbit) +
               " Gbit/s to other nodes; if each has a port of that rate, say \"nics\": 8";
    }
    return "";
  }

  /// What a user should see on standard error before anything is priced.
  [[nodiscard]] std::vector<std::string> warnings(const hetsched::cluster& hardware) const {
    return warnings(hardware, precision_text(hardware));
  }
  /// The same where that is to be said of precision.
  [[nodiscard]] std::vector<std::string> warnings(const hetsched::cluster& hardware, const std::string& precision) const {
    std::vector<std::string> all;
    for (auto text : {precision, whole_layers_text(hardware), stored_precision_text(), ports_text(hardware)})
      if (!text.empty()) all.push_back(std::move(text));
    if (model_)
      for (const auto& text : model_->remarks) all.push_back(model_path_ + ": " + text);
    return all;
  }

  /// Where formulas price another precision than the model's, or than its stack's products, which devices lack: "v100 has no
  /// bf16: priced in fp16 there".
  [[nodiscard]] std::string precision_text(const hetsched::cluster& hardware) const {
    if (!priced_.options.stack.fp8_products || by_hexiscale()) return precision_text(hardware, {});
    return precision_text(hardware, hetsched::number_format::fp8);
  }
  /// The same of inference, whose linear layers multiply in `products` if there are any.
  [[nodiscard]] std::string precision_text(const hetsched::cluster& hardware,
                                           std::optional<hetsched::number_format> products) const {
    std::string text;
    if (measured()) return text;
    std::map<hetsched::precision, std::vector<std::string>> lacking;  // by what is used
    for (const auto& s : hardware.subclusters)
      if (const auto used = s.device.computes_in(precision()); used != precision()) lacking[used].push_back(s.name);
    if (products) {
      const bool fp8 = *products == hetsched::number_format::fp8;
      std::vector<std::string> wide;
      for (const auto& s : hardware.subclusters)
        if (!(fp8 ? multiplies_fp8(s.device) : multiplies_int8(s.device)) || !known_by_operators(s.device))
          wide.push_back(s.name);
      if (!wide.empty())
        text = listed(wide) + (wide.size() == 1 ? " has" : " have") + (fp8 ? " no fp8" : " no int8") +
               ": products priced in 16 bits there";
    }
    for (const auto& [used, names] : lacking)
      text += (text.empty() ? "" : ", ") + listed(names) + (names.size() == 1 ? " has no " : " have no ") +
              std::string(name_of(precision())) + ": priced in " + std::string(name_of(used)) + " there";
    return text;
  }

  /// What to know of the costs that a plan was judged by: measured sizes that were left, and sums of gradients that count as
  /// free.
  [[nodiscard]] std::vector<std::string> remarks(const hetsched::cluster& hardware, const hetsched::plan& p) const {
    return profile_remarks(hardware, priced_, p);
  }

  /// Why no stage can have costs at a microbatch size; empty if some can.
  [[nodiscard]] std::string lacks(const hetsched::cluster& hardware, int microbatch_size) const {
    const auto text = lacking_costs(hardware, priced_, microbatch_size);
    return text.empty() ? "" : text + beyond_text(hardware);
  }

  /// Which sizes replicas were measured at.
  [[nodiscard]] std::string measured_text(const hetsched::cluster& hardware) const {
    return named([&] { return measured_sizes_text(hardware, priced_); }) + beyond_text(hardware);
  }

  /// Costs of microbatches of that many samples.
  [[nodiscard]] hetsched::any_cost_model costs(const hetsched::cluster& hardware, int microbatch_size) const {
    return named([&] { return costs_on(hardware, priced_, microbatch_size); });
  }

  /// What linear layers multiply in, in inference: as is asked for, "same", "fp8" or "int8", or if nothing is, as the model's
  /// file says; none: in the precision.
  [[nodiscard]] std::optional<hetsched::number_format> products(const std::string& asked) const {
    if (asked == "fp8") return hetsched::number_format::fp8;
    if (asked == "int8") return hetsched::number_format::int8;
    return asked.empty() && model_ ? model_->products : std::nullopt;
  }

  /// Costs of serving requests; `how` but for what the model and the command line's costs say. Throws input_error where there
  /// are no such costs.
  [[nodiscard]] hetsched::inference_cost_model<> serving(const hetsched::cluster& hardware,
                                                         hetsched::inference_options how) const {
    if (measured()) throw hetsched::input_error("--profile: holds costs of training, not of inference");
    if (corrected()) throw hetsched::input_error("--cost: forest is of training; inference is priced by tile");
    if (!priced_.options.flash_attention) throw hetsched::input_error("--attention: inference is priced with flash only");
    if (how.weight_bits == 0) how.weight_bits = model_->weight_bits;
    if (how.cache_bits == 0) how.cache_bits = model_->cache_bits;
    return inference_costs_on(hardware, priced_, how);
  }

  /// Costs of serving requests that are one forward each, of a model that is told by its layers.
  [[nodiscard]] hetsched::forward_cost_model<hetsched::any_cost_model> forwards(const hetsched::cluster& hardware,
                                                                                int batch) const {
    return forward_costs_on(hardware, priced_, batch);
  }

  /// What could be changed where memory is short, as the end of a sentence; empty if nothing.
  [[nodiscard]] std::string ways_out() const {
    std::string text;
    const auto add = [&](const std::string& way) { text += (text.empty() ? "" : "; ") + way; };
    if (measured() || by_hexiscale()) return text;
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
  void read_profile() {
    auto file = hetsched::read_profile_file(given_.profile);
    std::visit([&](auto& measured) { priced_.instead = std::move(measured); }, file);
    priced_.extrapolate = given_.extrapolate;
    priced_.profile_name = given_.profile;
  }

  void read_forest(const std::string& path) {
    if (path.size() > 240) throw hetsched::input_error("--cost: the path of the forest is longer than 240 bytes");
    if (std::any_of(path.begin(), path.end(), [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }))
      throw hetsched::input_error("--cost: the path of the forest has control characters, which a plan could not name");
    auto& options = priced_.options;
    options.correction = [of = std::make_shared<const hetsched::operator_correction>(hetsched::read_correction(path).correction)](
                             const hetsched::tile_device& d, const hetsched::operator_shape& op,
                             const hetsched::operator_time& time) { return of->factor(d, op, time); };
    options.formulas = hetsched::cost_formulas::tile;
    priced_.correction = path;
  }

  void read_model() {
    const auto dtype = given_.dtype.empty() ? std::nullopt : hetsched::find_precision(given_.dtype);
    model_ = hetsched::read_model(model_path_, {.cut = priced_.options.cut, .sequence = given_.sequence, .dtype = dtype});
    priced_.options.precision = model_->precision;
    if (model_->family) {
      priced_.model = *model_->family;
      priced_.options.max_context = given_.max_context;
    } else {
      priced_.model = model_->chain;
    }
  }

  // What the command line says of formulas.
  [[nodiscard]] hetsched::training_cost_options options_of(const hetsched::training_stack& usual) const {
    using namespace hetsched;
    training_cost_options options{.cut = granularities.at(given_.granularity.empty() ? "sublayer" : given_.granularity),
                                  .flash_attention = given_.attention != "standard",
                                  .stack = usual,
                                  .batch = given_.batch,
                                  .max_expert = given_.max_expert};
    if (given_.formulas == "tile") options.formulas = cost_formulas::tile;
    if (given_.formulas == "analytic") options.formulas = cost_formulas::analytic;
    if (const auto one = find_recomputation(given_.recompute)) options.recompute = {*one};
    if (given_.zero != "auto") options.zero = {given_.zero[0] - '0'};
    return options;
  }

  [[nodiscard]] bool corrected() const { return !priced_.correction.empty(); }

  // "; --extrapolate goes beyond", where sizes were measured and it is not said.
  [[nodiscard]] std::string beyond_text(const hetsched::cluster& hardware) const {
    const bool any = !named([&] { return replica_costs_on(hardware, priced_, 1); }).measured_sizes().empty();
    return any && !given_.extrapolate ? "; --extrapolate goes beyond" : "";
  }

  // Throws input_error for what HexiScale's formulas do not know.
  void expect_hexiscale() const {
    const auto require = [](bool holds, const std::string& what) {
      if (!holds) throw hetsched::input_error("--cost: hexiscale " + what);
    };
    require(model_ && model_->family, "needs a transformer; found a file of layers");
    require(given_.stack.empty() && given_.granularity.empty() && given_.attention.empty() && given_.recompute == "auto" &&
                given_.zero == "auto" && given_.max_context == 1 && given_.max_expert == INT_MAX,
            "counts whole blocks with all of them computed again: --stack, --granularity, --attention, --recompute, --zero, "
            "--max-context and --max-expert do not go with it");
  }

  // Errors name the profile.
  template <class Make>
  [[nodiscard]] std::invoke_result_t<Make&> named(Make make) const {
    try {
      return make();
    } catch (const hetsched::input_error& wrong) {
      if (!measured()) throw;
      throw hetsched::file_error(given_.profile, {}, wrong.what());
    }
  }

  cost_choice given_;
  std::string model_path_;
  std::optional<hetsched::model_file> model_;
  hetsched::priced_model priced_;
};

}  // namespace command
