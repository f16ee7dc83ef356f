// SPDX-License-Identifier: Apache-2.0
// Corrections by forests on devices, degrees and sizes that were not measured.
#include "forest.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cost/models/analytic.hpp>
#include <hetsched/cost/models/corrected.hpp>
#include <hetsched/cost/models/operator_correction.hpp>
#include <hetsched/cost/models/tile_cost.hpp>
#include <hetsched/model/families.hpp>
#include <hetsched/model/transformer_operators.hpp>

#include "csv.hpp"
#include "tile_fit.hpp"

using namespace hetsched;

namespace validation {
namespace {

bool is_of(const group& g, const std::string& set) { return g.name.starts_with(set); }

std::string words(const operator_shape& op) {
  return std::to_string(op.batch) + " x " + std::to_string(op.m) + " x " + std::to_string(op.n) + " x " + std::to_string(op.k);
}

operator_sample sample_of(const group& g, const measurement& x) { return {g.hardware, x.op, x.seconds, x.host_s}; }

// Rows of one device beside the tile model without the forest and with it.
void add_cases(validation_part& part, const group& g, const tile_constants& c, const operator_correction& forest,
               const std::function<bool(const measurement&)>& tested) {
  for (const auto& x : g.rows) {
    if (!tested(x)) continue;
    const auto time = predict_operator(g.hardware, x.op, c);
    const double plain = time.seconds + x.host_s;
    part.cases.push_back({.set = g.name,
                          .group = g.device,
                          .what = words(x.op),
                          .measured = 1e3 * x.seconds,
                          .predicted = 1e3 * plain * forest.factor(g.hardware, x.op, time),
                          .others = {1e3 * plain}});
  }
}

// Vidur's language models differ by the width of their layers; every second shape of a weight, in order, counts as known.
bool is_known(const measurement& x, const std::set<std::tuple<std::int64_t, std::int64_t>>& known) {
  return known.contains({x.op.n, x.op.k});
}

}  // namespace

validation_part corrected_half_operators(const std::string& folder) {
  validation_part part{
      .title = "fp16 operators with a forest, device held out",
      .compared = "Vidur's operators on A40, corrected by a forest grown on A100",
      .unit = "ms",
      .method =
          "Vidur's operators on A40, which counts as never measured: the tile model's constants are fitted without "
          "it, and a forest on log(measured / tile model) of Vidur's rows on A100 corrects the prediction. Products "
          "are batch x m x n x k.",
      .goal_mean_percent = 8,
      .others = {"tile model alone"}};
  const auto groups = read_operators(folder);
  const auto c = fit(groups, {"A40"});
  std::vector<operator_sample> samples;
  for (const auto& g : groups)
    if (is_of(g, "Vidur") && g.device != "A40")
      for (const auto& x : g.rows) samples.push_back(sample_of(g, x));
  const auto forest = operator_correction::train(samples, {.trees = 50, .least_leaf_rows = 50}, c);
  for (const auto& g : groups)
    if (is_of(g, "Vidur") && g.device == "A40") add_cases(part, g, c, forest, [](const measurement&) { return true; });
  return part;
}

validation_part corrected_other_models(const std::string& folder) {
  validation_part part{.title = "fp16 operators with a forest, models held out",
                       .compared = "Vidur's operators on A40, corrected by a forest that also knows every second shape there",
                       .unit = "ms",
                       .method =
                           "As where the [device is held out](fp16-operators-with-a-forest-device-held-out.md), but every second "
                           "shape of Vidur's weights and rows counts as measured on A40 too; the others "
                           "are predicted.",
                       .others = {"tile model alone"}};
  const auto groups = read_operators(folder);
  const auto c = fit(groups, {"A40"});
  std::vector<operator_sample> samples;
  std::set<std::tuple<std::int64_t, std::int64_t>> shapes, known;
  for (const auto& g : groups)
    if (is_of(g, "Vidur") && g.device == "A40")
      for (const auto& x : g.rows)
        if (x.op.n > 1) shapes.insert({x.op.n, x.op.k});
  bool take = true;
  for (const auto& s : shapes) {
    if (take) known.insert(s);
    take = !take;
  }
  for (const auto& g : groups)
    if (is_of(g, "Vidur"))
      for (const auto& x : g.rows)
        if (g.device != "A40" || is_known(x, known)) samples.push_back(sample_of(g, x));
  const auto forest = operator_correction::train(samples, {}, c);
  for (const auto& g : groups)
    if (is_of(g, "Vidur") && g.device == "A40")
      add_cases(part, g, c, forest, [&](const measurement& x) { return x.op.n > 1 && !is_known(x, known); });
  return part;
}

validation_part corrected_single_operators(const std::string& folder) {
  validation_part part{
      .title = "fp32 operators with a forest, devices held out",
      .compared = "NeuSight's test set, corrected by a forest grown on the other devices",
      .unit = "ms",
      .method = "NeuSight's test set; for each device, the tile model's constants and the forest are from the others.",
      .goal_mean_percent = 15,
      .others = {"tile model alone"}};
  const auto groups = read_operators(folder);
  std::set<std::string> devices;
  for (const auto& g : groups)
    if (is_of(g, "NeuSight")) devices.insert(g.device);
  for (const auto& device : devices) {
    const auto c = fit(groups, {device});
    std::vector<operator_sample> samples;
    for (const auto& g : groups)
      if (is_of(g, "NeuSight") && g.device != device)
        for (const auto& x : g.rows) samples.push_back(sample_of(g, x));
    const auto forest = operator_correction::train(samples, {.trees = 50, .least_leaf_rows = 50}, c);
    for (const auto& g : groups)
      if (is_of(g, "NeuSight") && g.device == device) add_cases(part, g, c, forest, [](const measurement&) { return true; });
  }
  return part;
}

namespace {

struct measured_layer {
  std::string model, gpu;
  int mbs, tp, index;
  layer_sample of_tile, of_analytic, of_time;  // beside the tile model, the analytic one, and one second
};

std::string device_of(const std::string& gpu) {
  static const std::map<std::string, std::string> names = {
      {"A100-40", "A100-SXM4-40GB"}, {"A100-80", "A100-SXM4-80GB"}, {"GH-96", "GH200-96GB"},   {"V100-16", "V100-SXM2-16GB"},
      {"RTX-3090", "RTX3090"},       {"RTX-2080", "RTX2080Ti"},     {"Titan-RTX", "TITAN-RTX"}};
  return names.at(gpu);
}

transformer model_of(const std::string& name) {
  transformer_shape s{.vocab = 50304, .sequence = 2048, .parameter_bytes = 4};
  if (name == "OPT-350") s.layers = 24, s.hidden = 1024, s.heads = 16;
  if (name == "OPT-30") s.layers = 48, s.hidden = 7168, s.heads = 56;
  if (name == "GPT-Neo-2.7") s.layers = 32, s.hidden = 2560, s.heads = 20;
  if (name == "LLAMA-3-8") {
    s.layers = 32, s.hidden = 4096, s.heads = 32, s.kv_heads = 8, s.ffn_hidden = 14336, s.sequence = 8192;
    return llama(s);
  }
  if (s.layers == 0) throw input_error("no model is known as " + name);
  return gpt(s);
}

// A layer of every run of equal blocks. Products run as tf32 where the device has it.
std::vector<measured_layer> read_layers(const std::string& folder) {
  std::vector<measured_layer> all;
  for (auto& r : csv_rows(folder + "/sailor_layers.csv")) {
    measured_layer x{r["model"], r["gpu"], std::stoi(r["mbs"]), std::stoi(r["tp"]), std::stoi(r["first_layer"]), {}, {}, {}};
    const auto m = model_of(x.model);
    const auto last = x.index + std::stoi(r["num_identical_layers"]);
    // GPT-Neo's rows on GH200 are OPT-350M's over again.
    if (x.model == "GPT-Neo-2.7" && x.gpu == "GH-96") continue;
    // Embeddings and heads differ between these models; blocks compare.
    if (last <= 1 || x.index > m.layers) continue;
    x.index = std::clamp(x.index, 1, m.layers);
    const auto d = catalogue_device(device_of(x.gpu));
    const double by_host = 15.75e9 / 2;
    const double speed = x.gpu == "GH-96"                   ? 450e9
                         : x.gpu.starts_with("A100")        ? 300e9
                         : x.gpu == "V100-16"               ? 150e9
                         : x.gpu == "RTX-3090" && x.tp == 2 ? 56e9
                                                            : by_host;
    // Where the two models were measured with PyTorch's defaults, products did not run as tf32.
    const bool defaults = x.gpu == "A100-40" && (x.model == "OPT-30" || x.model == "LLAMA-3-8");
    const auto used = d.flops(precision::tf32) > d.flops(precision::fp32) && !defaults ? precision::tf32 : precision::fp32;
    const cluster hardware{{{"all", d, 1, 8, {10e-6, speed}, {}}}, {}};
    const placement where{{0, 1, x.tp}, {1, 1, x.tp}};
    const double forward = std::stod(r["fwd_s"]), backward = std::stod(r["bwd_s"]);
    const auto beside = [&](const auto& base) {
      const auto said = base.layer(x.index, where);
      return layer_sample{correction_features_of({m, x.mbs, used}, d, x.index, base.layer_count(), where.degrees, said),
                          said.forward_s, forward, said.backward_s, backward};
    };
    const kernel_style style{.format = format_of(used),
                             .fusion = elementwise_fusion::none,
                             .library = {.joint_projections = true, .scores = {{1, 1, 1, 1}}}};
    x.of_tile = beside(tile_cost_model(hardware, transformer_operators(m, style), {.microbatch_size = x.mbs, .precision = used}));
    x.of_analytic = beside(analytic_cost_model(hardware, make_chain(m), {.microbatch_size = x.mbs, .precision = used}));
    x.of_time = {x.of_tile.features, 1, forward, 1, backward};
    all.push_back(x);
  }
  return all;
}

}  // namespace

validation_part corrected_layers_of_sailor(const std::string& folder) {
  validation_part part{
      .title = "Layers with a forest",
      .compared = "transformer blocks, corrected by forests grown on some of them",
      .unit = "s",
      .method =
          "Sailor's transformer blocks, forward and backward, by the tile model, corrected by forests on "
          "log(measured / model) of the rows that count as measured. A column names what was predicted: *tensor 4 "
          "and 8* from 1 and 2, *microbatches between* from those of 1, 4 and 16, *larger microbatches* from those "
          "up to 4, *another device* and *another model* from all others, *all but V100* from V100.",
      .others = {"tile model alone", "analytic model with forests", "analytic model alone", "forests on time"}};
  const auto all = read_layers(folder);
  const auto study = [&](const std::string& name, const std::string& where, const auto& known, const auto& tested) {
    const auto learn = [&](layer_sample measured_layer::*beside) {
      std::vector<layer_sample> samples;
      for (const auto& x : all)
        if (known(x)) samples.push_back(x.*beside);
      return layer_correction::train(samples);
    };
    const auto tile = learn(&measured_layer::of_tile), analytic = learn(&measured_layer::of_analytic),
               timed = learn(&measured_layer::of_time);
    for (const auto& x : all) {
      if (!tested(x) || known(x)) continue;
      const auto what = x.model + ", microbatch " + std::to_string(x.mbs) + ", tensor " + std::to_string(x.tp);
      const auto& group = where.empty() ? x.gpu : where;
      const auto &t = x.of_tile, &a = x.of_analytic;
      part.cases.push_back({.set = name,
                            .group = group,
                            .what = what + ", forward",
                            .measured = t.forward_s,
                            .predicted = t.base_forward_s * tile.forward(t.features),
                            .others = {t.base_forward_s, a.base_forward_s * analytic.forward(a.features), a.base_forward_s,
                                       timed.forward(t.features)}});
      part.cases.push_back({.set = name,
                            .group = group,
                            .what = what + ", backward",
                            .measured = t.backward_s,
                            .predicted = t.base_backward_s * tile.backward(t.features),
                            .others = {t.base_backward_s, a.base_backward_s * analytic.backward(a.features), a.base_backward_s,
                                       timed.backward(t.features)}});
    }
  };
  const auto every = [](const measured_layer&) { return true; };
  std::set<std::string> gpus, models;
  for (const auto& x : all) gpus.insert(x.gpu), models.insert(x.model);
  study(
      "tensor 4 and 8", "", [](const measured_layer& x) { return x.tp <= 2; }, every);
  study(
      "microbatches between", "", [](const measured_layer& x) { return x.mbs == 1 || x.mbs == 4 || x.mbs == 16; }, every);
  study(
      "larger microbatches", "", [](const measured_layer& x) { return x.mbs <= 4; }, every);
  for (const auto& gpu : gpus)
    study(
        "another device", "", [&](const measured_layer& x) { return x.gpu != gpu; }, every);
  for (const auto& model : models)
    study(
        "another model", model, [&](const measured_layer& x) { return x.model != model; }, every);
  study(
      "all but V100", "", [](const measured_layer& x) { return x.gpu == "V100-16"; }, every);
  return part;
}

}  // namespace validation
