// SPDX-License-Identifier: Apache-2.0
#include "operator_tables.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <tuple>

#include "calibration.hpp"
#include "csv.hpp"
#include "text.hpp"
#include "tile_fit.hpp"
#include "whole_models.hpp"

namespace validation {

namespace {

using device_set = std::set<std::string>;

// Devices with one chip.
device_set chip_of(const std::string& device) {
  for (const auto& chip : {device_set{"P100-PCIe-16GB", "P100-SXM2-16GB"},
                           {"V100-PCIe-32GB", "V100-SXM2-16GB"},
                           {"A100-PCIe-40GB", "A100-PCIe-80GB", "A100-SXM4-80GB", "A100-SXM4-40GB"}})
    if (chip.contains(device)) return chip;
  return {device};
}

// Constants fitted without some devices; each fit is made once.
class held_out_constants {
 public:
  explicit held_out_constants(const std::vector<group>& groups) : groups_(groups) {}

  const tile_constants& without_chip_of(const std::string& device) { return without(chip_of(device)); }
  const tile_constants& without_generation_of(const std::string& device) {
    const auto generation = catalogue_device(device).generation;
    device_set devices;
    for (const auto& g : groups_)
      if (catalogue_device(g.device).generation == generation) devices.insert(g.device);
    return without(devices);
  }

 private:
  const tile_constants& without(const device_set& devices) {
    const auto found = fits_.find(devices);
    return found != fits_.end() ? found->second : fits_.emplace(devices, fit(groups_, devices)).first->second;
  }

  const std::vector<group>& groups_;
  std::map<device_set, tile_constants> fits_;
};

// What peak and bandwidth alone say.
double roofline_s(const operator_shape& op, const tile_device& d) {
  const double flops = op.kind == operator_kind::gemm ? 2 * static_cast<double>(op.batch) * static_cast<double>(op.m) *
                                                            static_cast<double>(op.n) * static_cast<double>(op.k)
                                                      : 0;
  return std::max(flops / d.peak_flops[static_cast<std::size_t>(op.format)], op.traffic_bytes / d.memory_bandwidth);
}

std::string words(const operator_shape& op) {
  const auto n = [](std::int64_t v) { return std::to_string(v); };
  if (op.kind == operator_kind::gemm)
    return (op.batch > 1 ? n(op.batch) + " of " : "") + n(op.m) + " x " + n(op.n) + ", reduced over " + n(op.k);
  if (op.kind == operator_kind::elementwise || op.kind == operator_kind::gather) return n(op.m) + " elements";
  return n(op.m) + " rows of " + n(op.n);
}

bool is_product(const measurement& x) { return x.op.kind == operator_kind::gemm; }

// What the tables call the kinds.
std::string kind_name(const measurement& x) {
  if (x.set == "DeepBench") return x.op.format == number_format::fp16 ? "fp16" : "fp32";
  if (is_product(x)) return x.kind == "bmm" ? "batched products" : x.set == "NeuSight" ? "linear layers" : "products";
  return x.kind == "rowwise"     ? "gated activations, rotary embeddings"
         : x.kind == "embedding" ? "embeddings"
         : x.kind == "norm"      ? "norms"
                                 : x.kind;
}

std::string by_device(const measurement& x) { return x.device; }
std::string by_generation(const measurement& x) { return catalogue_device(x.device).generation; }

// What is left out of the fit for a prediction.
enum class held_out_set { chip, generation };

class operator_tables {
 public:
  explicit operator_tables(const std::string& data) : data_(data), groups_(read_operators(data)), fits_(groups_) {}

  [[nodiscard]] std::vector<validation_part> parts();

 private:
  using choice = std::function<bool(const measurement&)>;
  using name = std::function<std::string(const measurement&)>;

  [[nodiscard]] validation_part part_of(const std::vector<group>& groups, validation_part part, const choice& wanted,
                                        const name& group_name, held_out_set without = held_out_set::chip);
  [[nodiscard]] const tile_constants& constants_for(const std::string& device, held_out_set without) {
    return without == held_out_set::chip ? fits_.without_chip_of(device) : fits_.without_generation_of(device);
  }
  [[nodiscard]] std::vector<validation_part> generations(const std::vector<group>& hopper);
  [[nodiscard]] validation_part vidur(const std::string& device, const std::string& short_name, double goal);
  [[nodiscard]] validation_part engines(bool eight_bits);
  [[nodiscard]] validation_part llmcompass();
  [[nodiscard]] validation_part whole_models(held_out_set without);

  std::string data_;
  std::vector<group> groups_;
  held_out_constants fits_;
};

validation_part operator_tables::part_of(const std::vector<group>& groups, validation_part part, const choice& wanted,
                                         const name& group_name, held_out_set without) {
  part.unit = "ms";
  part.others = {"roofline"};
  for (const auto& g : groups) {
    if (g.rows.empty() || !wanted(g.rows.front())) continue;
    const auto& constants = constants_for(g.device, without);
    for (const auto& x : g.rows)
      part.cases.push_back({.set = kind_name(x),
                            .group = group_name(x),
                            .what = words(x.op),
                            .measured = 1e3 * x.seconds,
                            .predicted = 1e3 * x.seconds * (1 + relative_error(g, x, constants)),
                            .others = {1e3 * roofline_s(x.op, g.hardware)}});
  }
  return part;
}

validation_part operator_tables::vidur(const std::string& device, const std::string& short_name, double goal) {
  return part_of(
      groups_,
      {.title = "Vidur fp16 operators, " + short_name + " held out",
       .compared = "operators of language models as an inference engine launches them, on " + short_name,
       .method = "Operators of language models in fp16 as an inference engine launches them, by tokens and tensor-parallel "
                 "degree; medians in steps of 1 us. The constants are fitted without all boards of this chip. Groups are "
                 "operators.",
       .goal_mean_percent = goal,
       .remarks = std::string("The worst take a few microseconds, which the table rounds to whole ones.") +
                  (device == "A40" ? " Its worst products are the library's choice: in Qwen-72B's second inner layer 240 "
                                     "tokens take 1.0 ms, 272 to 336 tokens 2.8 to 2.9 ms."
                                   : ""),
       .goal_of_all = true},
      [&](const auto& x) { return x.set == "Vidur" && x.device == device; }, kind_name);
}

std::vector<validation_part> operator_tables::parts() {
  std::vector<validation_part> found;
  found.push_back(part_of(
      groups_,
      {.title = "NeuSight fp32 products",
       .compared = "linear layers and batched products of PyTorch, on six GPUs",
       .method = text("Linear layers and batched products of PyTorch, NeuSight's test set. The tile model knows the shape "
                      "and the datasheet; its constants are fitted to the operators of NeuSight, Vidur and DeepBench on all "
                      "chips but the one predicted. The set was timed one launch at a time: %.0f us of host time are added, "
                      "which the shortest rows show.",
                      1e6 * neusight_host_s),
       .goal_mean_percent = 15,
       .remarks =
           "Most of T4's error comes from batched products: on 70 W they run at 1.1 to 7.0 TFLOP/s. Its two worst linear layers "
           "run "
           "at 1.5 TFLOP/s where neighbours with as long a reduction reach 3.8 to 4.0, and V100's two at 7.8 where all "
           "others of that reduction reach 12 to 13.9; the shapes do not explain it. Linear layers of P100 slow down from 6.9 to "
           "2.1 TFLOP/s as their input grows from 0.5 to 4 GB, P4's from 4.4 to 2.1; `page_misses` follows the mean of both."},
      [](const auto& x) { return x.set == "NeuSight" && is_product(x); }, by_device));
  found.push_back(part_of(
      groups_,
      {.title = "NeuSight fp32 vector operators",
       .compared = "elementwise operators, softmax and norms of PyTorch, on six GPUs",
       .method = "Elementwise operators, softmax and layer norms of NeuSight's test set, predicted in the same way as its "
                 "[products](neusight-fp32-products.md).",
       .goal_mean_percent = 15,
       .remarks = "What is left lies in softmax and norms with rows of 1280 to 16384 elements: PyTorch has several kernels "
                  "by row length, the model has one of each."},
      [](const auto& x) { return x.set == "NeuSight" && !is_product(x); }, by_device));
  std::vector<measurement> training;
  read_neusight(data_ + "/neusight_train_gemm_1in8.csv", training);
  read_neusight(data_ + "/neusight_train_vec_1in4.csv", training);
  found.push_back(part_of(
      grouped(training),
      {.title = "NeuSight fp32 training set",
       .compared = "operators of random shapes, on five GPUs",
       .method = "What NeuSight's networks are trained on, thinned out. Nothing here is fitted to it. Shapes are random and "
                 "many are small: launches, and tiles that hang over the edge, count for more than in models.",
       .remarks = "P4's large linear layers run at 0.9 to 1.6 TFLOP/s on average here, whatever their shape, but at 2.7 to "
                  "4.5 in the test set: the board must have been throttled. T4's are a quarter slower than there. Single "
                  "products in batched kernels are predicted too slow on A100: the model gives those of devices with tf32 "
                  "one tile, 128 x 128, and does not split their reduction."},
      [](const auto&) { return true; }, by_device));
  std::vector<measurement> hopper;
  read_neusight(data_ + "/neusight_h100.csv", hopper);
  found.push_back(part_of(
      grouped(hopper),
      {.title = "NeuSight fp32 products on H100",
       .compared = "linear layers and batched products of PyTorch, on a generation that no constant was fitted to",
       .method =
           "Every other product that NeuSight measured on H100, predicted in the same way as those of the "
           "[other devices](neusight-fp32-products.md). No constant is fitted to it, but two were chosen after a look at it: "
           "128 lanes to a multiprocessor sustain 0.80 of their peak, and batched kernels come in most tile sizes. Groups are "
           "operators.",
       .goal_mean_percent = 15,
       .remarks = "Before these two, linear layers were predicted 21 % and batched products 25 % off."},
      [](const auto&) { return true; }, kind_name));
  found.push_back(vidur("A40", "A40", 12));
  found.push_back(vidur("A100-SXM4-80GB", "A100", 0));
  found.push_back(part_of(
      groups_,
      {.title = "DeepBench products",
       .compared = "matrix products of training with cuBLAS, on three GPUs",
       .method = text("Matrix products of training with cuBLAS, %.0f us of host time added. The set's other devices are not "
                      "in the catalogue.",
                      1e6 * deepbench_host_s),
       .goal_mean_percent = 15,
       .remarks = "The worst have 8 to 128 rows, some of them reduced over 500000: cuBLAS has kernels for vectors and splits "
                  "of the reduction that the model does not."},
      [](const auto& x) { return x.set == "DeepBench"; }, by_device));
  for (const bool eight_bits : {false, true}) found.push_back(engines(eight_bits));
  found.push_back(llmcompass());
  found.push_back(whole_models(held_out_set::chip));
  for (auto& part : generations(grouped(hopper))) found.push_back(std::move(part));
  auto models = whole_models(held_out_set::generation);
  models.title = "Whole models, generations held out";
  models.compared = "inference and training of BERT, GPT and OPT, on generations that no constant was fitted to";
  models.method =
      "[NeuSight's whole models](neusight-whole-models.md), with constants fitted without all chips of the device's "
      "generation.";
  models.goal_mean_percent = 10;
  models.remarks = "";
  found.push_back(std::move(models));
  auto measured = groups_;
  for (auto& g : grouped(hopper)) measured.push_back(std::move(g));
  found.push_back(calibration_part(measured, true, 8));
  found.push_back(calibration_part(measured, false, 6));
  return found;
}

std::vector<validation_part> operator_tables::generations(const std::vector<group>& hopper) {
  auto all = groups_;
  all.insert(all.end(), hopper.begin(), hopper.end());
  const std::string method =
      "The constants are fitted without all chips of the generation that is predicted, so that each line "
      "says what to expect of chips that nobody has measured yet.";
  const auto of = [&](const validation_part& part, const choice& wanted, const name& group_name) {
    return part_of(all, part, wanted, group_name, held_out_set::generation);
  };
  return {of(
              {.title = "fp32 products, generations held out",
               .compared = "linear layers and batched products of NeuSight, products of DeepBench",
               .method = method,
               .goal_mean_percent = 15},
              [](const auto& x) { return is_product(x) && x.op.format == number_format::fp32; }, by_generation),
          of(
              {.title = "fp32 vector operators, generations held out",
               .compared = "elementwise operators, softmax and norms of NeuSight",
               .method = method,
               .goal_mean_percent = 10},
              [](const auto& x) { return !is_product(x) && x.op.format == number_format::fp32; }, by_generation),
          of(
              {.title = "fp16 operators, generations held out",
               .compared = "operators of Vidur, products of DeepBench",
               .method = method + " Without Ampere, what scalar kernels need is fitted to nothing.",
               .goal_mean_percent = 0},
              [](const auto& x) { return x.op.format == number_format::fp16; },
              [](const auto& x) { return by_generation(x) + ", " + x.device; })};
}

validation_part operator_tables::engines(bool eight_bits) {
  const std::string format = eight_bits ? "fp8" : "bf16";
  return part_of(
      groups_,
      {.title = "Engines' linear layers in " + format,
       .compared = std::string("linear layers of inference engines") + (eight_bits ? ", with the rounding of their inputs" : "") +
                   ", chips held out",
       .method = "Linear layers in " + format +
                 " as vLLM and TensorRT-LLM launch them, in CUDA graphs over six weights in turn. The constants are fitted "
                 "without all boards of the chip that is predicted. Not fitted: power laws and shares of the peak are from "
                 "boards' best "
                 "products, Hopper's law from two that disagree by a tenth, taken with H200 and H100 in view; the form of the "
                 "model, what L2 holds and up to how many rows Ada's fp8 kernels are narrow were chosen with these chips in "
                 "view.",
       .goal_mean_percent = eight_bits ? 15.0 : 12.0,
       .remarks = eight_bits
                      ? "Kernels are those of CUTLASS that vLLM chooses by the rows alone. On L40S those for up to 64 rows are "
                        "slower than their tiles say."
                      : "Weights were never set, and most likely zeros, which take less power than others: measured with "
                        "random numbers, large products on an H100 are slower (see [through the "
                        "commands](through-the-commands.md))."},
      [&](const auto& x) { return x.set == "engines" && x.kind == format; }, by_device);
}

// Files say milliseconds (products), 1e9 elements per second (others) or seconds (operators of a block): all fp16, each call with
// a synchronisation.
validation_part operator_tables::llmcompass() {
  constexpr auto f = number_format::fp16;
  struct timed {
    std::string kind, name;
    operator_shape op;
    double seconds;
  };
  std::vector<timed> all;
  const auto table = [&](const std::string& kind) { return csv_lines(data_ + "/llmcompass/" + kind + "_A100.csv"); };
  const auto size = [](const std::string& cell) { return std::int64_t{std::stoll(cell)}; };
  for (const auto& r : table("matmul")) {
    if (r.size() < 4) continue;
    const auto op = gemm(size(r[0]), size(r[1]), size(r[2]), f);
    all.push_back({"products", words(op), op, std::stod(r[3]) * 1e-3});
  }
  for (const std::string kind : {"softmax", "layernorm", "gelu"})
    for (const auto& r : table(kind)) {
      if (r.size() < 2) continue;
      const auto rows = size(r[0]), columns = kind == "gelu" ? 1 : size(r[1]);
      const auto op = kind == "gelu"      ? elementwise(rows, 1, 1, f)
                      : kind == "softmax" ? softmax(rows, columns, f)
                                          : norm(rows, columns, f);
      all.push_back({kind, words(op), op, static_cast<double>(rows * columns) / std::stod(r.back()) * 1e-9});
    }
  std::map<std::string, timed> shortest;
  for (const auto& x : all) {
    const auto at = shortest.try_emplace(x.kind, x).first;
    if (x.seconds < at->second.seconds) at->second = x;
  }
  // A block of GPT-3 on one of four devices, 8 sequences: 2048 tokens each, or one token after 3072.
  for (const bool prefill : {true, false}) {
    const std::int64_t b = 8, s = prefill ? 2048 : 1, context = prefill ? 2048 : 3072, h = 12288, heads = 24, head = 128,
                       tokens = b * s;
    const auto rows = table(prefill ? "transformer" : "transformerAR");
    const operator_shape ops[] = {gemm(tokens, h / 4, h, f),
                                  batched_gemm(b * heads, s, context, head, f),
                                  batched_gemm(b * heads, s, head, context, f),
                                  gemm(tokens, h, h / 4, f),
                                  gemm(tokens, h, h, f),
                                  gemm(tokens, h, h, f),
                                  softmax(b * heads * s, context, f),
                                  norm(tokens, h, f),
                                  norm(tokens, h, f),
                                  elementwise(tokens * h, 1, 1, f)};
    for (std::size_t i = 0; i < std::size(ops); ++i)
      // The first row is three products.
      all.push_back({i < 6    ? "products"
                     : i == 6 ? "softmax"
                     : i < 9  ? "layernorm"
                              : "gelu",
                     words(ops[i]) + (prefill ? " (prefill)" : " (decoding)"), ops[i], std::stod(rows[i][0]) / (i == 0 ? 3 : 1)});
  }

  validation_part part{.title = "LLMCompass fp16 operators",
                       .compared = "operators of PyTorch and of a GPT-3 block, on A100",
                       .unit = "ms",
                       .method =
                           "PyTorch operators on an A100 (SXM4, 80 GB), and those of a GPT-3 block shared by four of them. "
                           "Nothing is fitted to this set, and the constants are fitted without all A100s. Every call was "
                           "synchronised: the shortest row of each operator gives the host time that is added to its others, "
                           "and is left out.",
                       .others = {"roofline"}};
  const std::string device = "A100-SXM4-80GB";
  const auto hardware = make_tile_device(catalogue_device(device));
  const auto& constants = fits_.without_chip_of(device);
  for (const auto& x : all) {
    const auto& least = shortest.at(x.kind);
    if (x.op == least.op && x.seconds == least.seconds) continue;
    const double host = std::max(0.0, least.seconds - predict_operator(hardware, least.op, constants).seconds);
    part.cases.push_back({.set = x.kind,
                          .group = x.kind,
                          .what = x.name,
                          .measured = 1e3 * x.seconds,
                          .predicted = 1e3 * (predict_operator(hardware, x.op, constants).seconds + host),
                          .others = {1e3 * roofline_s(x.op, hardware)}});
  }
  part.remarks =
      "Products reach 94 % of the datasheet's peak here; on the same board Vidur's best reach 85 %. Softmax with 2048 and 4096 "
      "columns is predicted from fp32 rows, which PyTorch treats "
      "differently. Rows of the AMD MI210 are not predicted: the tiles are those of NVIDIA's libraries, and the catalogue does "
      "not have the device. The block's two all-reduces belong to no curve.";
  return part;
}

std::string whole_model_device(const std::string& name) {
  if (name == "Tesla_P4") return "P4";
  if (name == "Tesla_P100-PCIE-16GB") return "P100-PCIe-16GB";
  if (name == "Tesla_V100-PCIE-32GB") return "V100-PCIe-32GB";
  if (name == "Tesla_T4") return "T4";
  if (name == "NVIDIA_A100-PCIE-40GB") return "A100-PCIe-40GB";
  if (name == "NVIDIA_A100-SXM4-40GB") return "A100-SXM4-40GB";
  return name == "NVIDIA_A100_80GB_PCIe" ? "A100-PCIe-80GB" : "";
}

validation_part operator_tables::whole_models(held_out_set without) {
  validation_part part{.title = "NeuSight whole models",
                       .compared = "inference and training of BERT, GPT and OPT on one and four devices",
                       .unit = "ms",
                       .method =
                           "BERT, GPT-2, GPT-3 and OPT in fp32, inference and training, on one device and on four (data, "
                           "tensor and pipeline parallel). A model is the sum of the kernels that an eager framework "
                           "launches for it (`transformer_operators`), each by the tile model with constants fitted without "
                           "the device's chip; all-reduces on four devices go round a ring at 300 GB/s. Nothing is fitted to "
                           "these rows.",
                       .goal_mean_percent = 8,
                       .goal_of_all = true,
                       .others = {"NeuSight", "roofline"}};
  int amd = 0, unknown = 0;
  for (auto& r : csv_rows(data_ + "/neusight_e2e.csv")) {
    whole_model m{};
    const auto device = whole_model_device(r["device"]);
    if (r["device"].starts_with("AMD")) {
      ++amd;
      continue;
    }
    if (device.empty() || !find_model(r["model"], m)) {
      ++unknown;
      continue;
    }
    const bool training = r["mode"] == "train";
    const auto option = r["option"];
    // Four devices: a quarter of the samples each; all of them in four parts; or one stage after the other, which takes what one
    // device takes.
    const auto batch = std::stoll(r["batch"]), sequence = std::stoll(r["seqlen"]);
    const auto kernels =
        kernels_of(m, option == "dp4" ? batch / 4 : batch, sequence, training, option == "fusion", option == "tp4" ? 4 : 1);
    const auto hardware = make_tile_device(catalogue_device(device));
    const double ring = 2 * 3.0 / 4 / 300e9, h = static_cast<double>(m.hidden), layers = static_cast<double>(m.layers);
    const double parameters = layers * 12 * h * h + static_cast<double>(m.vocab) * h;
    const double communication = option == "dp4"   ? 4 * parameters * ring
                                 : option == "tp4" ? 4 * layers * 4 * static_cast<double>(batch * sequence) * h * ring
                                                   : 0;
    const auto& c = constants_for(device, without);
    const double total =
        seconds(hardware, kernels.forward, c) + (training ? seconds(hardware, kernels.backward, c) : 0) + communication;
    const auto value = [&](const char* column) { return r[column].empty() ? 0 : std::stod(r[column]); };
    part.cases.push_back(
        {.set = training ? "training" : "inference",
         .group = device,
         .what = r["model"] + ", " + r["batch"] + " x " + r["seqlen"] + " tokens" + (option.empty() ? "" : ", " + option),
         .measured = value("label_e2e_ms"),
         .predicted = 1e3 * total,
         .others = {value("neusight_e2e_ms"), value("roofline_e2e_ms")}});
  }
  std::stable_sort(part.cases.begin(), part.cases.end(), [](const auto& a, const auto& b) { return a.group < b.group; });
  part.remarks =
      "P4 is slower than its [operators](neusight-fp32-products.md) suggest, and the more samples, the slower: 16 take 2.3 times "
      "as "
      "long as 8, as on a "
      "board that is throttled. NeuSight's program empties the allocator's cache before every iteration, so in training each "
      "kept tensor is allocated anew: A100-PCIe-80GB's small batches are 24 % under." +
      text(" Left out: %d rows of AMD devices, and %d of a mixture of experts (`switchxl4`) whose sizes the table does not give.",
           amd, unknown);
  return part;
}

}  // namespace

std::vector<validation_part> operator_parts(const std::string& data) { return operator_tables(data).parts(); }

}  // namespace validation
