// SPDX-License-Identifier: Apache-2.0
#include "memory_tables.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <sstream>

#include <hetsched/cost/memory/training_memory.hpp>
#include <hetsched/cost/models/training_stack.hpp>
#include <hetsched/model/families.hpp>
#include <nlohmann/json.hpp>

#include "csv.hpp"
#include "statistics.hpp"
#include "text.hpp"

namespace validation {

namespace {

using namespace hetsched;

struct process {
  std::string nodes, model, plan;
  layer_chain chain{};
  std::vector<int> stages{};
  degrees shape{};
  stage_memory_options options{};
  double bytes = 0;
};

// What is fitted: the overheads, and what the optimizer step keeps for each parameter.
struct constants {
  memory_overheads overheads = fitted_overheads;
  int step_bytes = 0;
};

// The largest need of any stage under 1F1B.
double predict(const process& p, const constants& fitted) {
  double most = 0;
  layer_range layers{0, 0};
  auto options = p.options;
  options.overheads = fitted.overheads;
  options.state.optimizer_bytes += fitted.step_bytes;
  const int count = static_cast<int>(p.stages.size());
  for (int i = 0; i < count; ++i) {
    layers = {layers.last, layers.last + p.stages[static_cast<std::size_t>(i)]};
    options.in_flight = count - i;
    most = std::max(most, static_cast<double>(stage_memory(p.chain, layers, p.shape, options).total()));
  }
  return most;
}

// Least squares of the relative error over a grid, coarse enough that the constants are round numbers; then the least margin, in
// tenths of a percent, with which no fitted row is more than 2 % under the truth.
constants fit(const std::vector<const process*>& rows) {
  constants best;
  double least = 1e300;
  for (int runtime = 0; runtime <= 45; ++runtime)
    for (int step = 0; step <= 24; step += 4)
      for (int fragments = 0; fragments <= 10; fragments += 2) {
        const constants o{{.runtime_bytes = runtime * bytes_t{100'000'000}, .fragmentation = fragments / 100.0}, step};
        double sum = 0;
        for (const auto* p : rows) {
          const double e = predict(*p, o) / p->bytes - 1;
          sum += e * e;
        }
        if (sum < least) least = sum, best = o;
      }
  double lowest = 1e300;
  for (const auto* p : rows) lowest = std::min(lowest, predict(*p, best) / p->bytes);
  best.overheads.margin = std::max(0.0, std::ceil(1000 * (0.98 / lowest - 1)) / 1000);
  return best;
}

// One plan holds less than half of what the activations of its microbatches take: its degrees cannot be as noted.
bool is_odd(const std::string& site, const std::string& plan) { return site == "mit" && plan == "plan_config_N2_D1"; }

std::vector<process> read_sailor(const std::string& data) {
  std::vector<process> found;
  for (auto& r : csv_rows(data + "/sailor_e2e.csv")) {
    if (is_odd(r["site"], r["config"])) continue;
    process p{.nodes = r["site"] == "mit" ? "RTX nodes" : "GH200 nodes", .model = r["model"], .plan = r["config"]};
    int layers = 0;
    std::stringstream stages(r["layers_per_stage"]);
    for (std::string n; std::getline(stages, n, '-');) layers += p.stages.emplace_back(std::stoi(n));
    // The row of GPT-Neo with 26 layers is a plan of OPT, whose count that is.
    if (layers == 26) p.model = "OPT-350";
    const bool opt = p.model == "OPT-350";
    p.chain = make_chain(opt ? gpt({.layers = 24, .hidden = 1024, .heads = 16, .vocab = 50304, .sequence = 2048})
                             : gpt({.layers = 32, .hidden = 2560, .heads = 20, .vocab = 50304, .sequence = 2048}));
    p.shape = {.data = std::stoi(r["dp"]), .context = 1, .tensor = std::stoi(r["tp"])};
    p.options = {.samples = std::stoi(r["mbs"]), .style = {.sequence_parallel = false, .attention_scale = opt ? 1.0 : 1.4}};
    p.bytes = std::stod(r["max_mem_bytes"]);
    found.push_back(std::move(p));
  }
  return found;
}

template <class Keep>
std::vector<const process*> those(const std::vector<process>& all, Keep keep) {
  std::vector<const process*> rows;
  for (const auto& p : all)
    if (keep(p)) rows.push_back(&p);
  return rows;
}

// "mean +7.0 %, lowest -1.8 %" with constants fitted without what `same` calls alike.
template <class Same>
std::string with_held_out(const std::vector<process>& all, Same same) {
  std::vector<double> errors;
  for (const auto& held : all) {
    const auto rest = those(all, [&](const auto& p) { return !same(p, held); });
    errors.push_back(predict(held, fit(rest)) / held.bytes - 1);
  }
  const auto s = summarise(errors);
  return text("mean %+.1f %%, lowest %+.1f %%", s.bias, s.lowest);
}

// What ran must fit: of the plans of Megatron-LM's papers, whole blocks spread over the stages, those that would not.
std::string plans_over_80_gb(const std::string& data) {
  int plans = 0;
  std::string over;
  for (auto& r : csv_rows(data + "/megatron_tables.csv")) {
    if (r["mbs"].empty()) continue;
    const int layers = std::stoi(r["layers"]), stages = std::stoi(r["pp"]);
    const bool selective = r["mode"].find("seqpar") != std::string::npos;
    process p{.nodes = r["table"], .model = r["model"], .plan = r["mode"]};
    p.chain = make_chain(gpt({.layers = layers,
                              .hidden = std::stoi(r["hidden"]),
                              .heads = std::stoi(r["heads"]),
                              .vocab = std::stoi(r["vocab"]),
                              .sequence = std::stoi(r["seq"])}));
    p.stages.assign(static_cast<std::size_t>(stages), layers / stages);
    ++p.stages.front();
    ++p.stages.back();
    p.shape = {.data = std::stoi(r["dp"]), .context = 1, .tensor = std::stoi(r["tp"])};
    const bool sharded = r["table"].find("ZeRO3") != std::string::npos;
    const auto stack = *find_training_stack(sharded ? "deepspeed" : "megatron");
    p.options = {.samples = std::stoi(r["mbs"]),
                 .recompute = selective ? recomputation::selective : recomputation::full,
                 .zero = sharded ? 3 : 0,
                 .style = stack.activations,
                 .state = stack.fp16};
    p.options.style.sequence_parallel = selective;
    ++plans;
    if (const double bytes = predict(p, {stack.overheads}); bytes > 80e9)
      over += text("%s%s under ZeRO 3 with %s samples on each of %d devices (%.0f GB)", over.empty() ? "" : ", ",
                   r["model"].c_str(), r["mbs"].c_str(), p.shape.data, bytes / 1e9);
  }
  return text(
             "Of the %d plans of Megatron-LM's papers that state a microbatch size and ran on boards of 80 GB the model has, "
             "with the stacks `megatron` and `deepspeed`, all fit but ",
             plans) +
         (over.empty() ? "none" : over) + ".";
}

validation_part sailor(const std::string& data) {
  const auto all = read_sailor(data);
  const auto shipped = fit(those(all, [](const auto&) { return true; }));
  const int step_bytes = find_training_stack("deepspeed")->fp16.optimizer_bytes - training_memory{}.optimizer_bytes;
  if (shipped.overheads != fitted_overheads || shipped.step_bytes != step_bytes)
    std::fprintf(stderr,
                 "fitted_overheads differ from the fit: runtime_bytes %lld, step_bytes %d, fragmentation %.2f, margin %.3f\n",
                 static_cast<long long>(shipped.overheads.runtime_bytes), shipped.step_bytes, shipped.overheads.fragmentation,
                 shipped.overheads.margin);

  validation_part part{.title = "Sailor peak memory",
                       .compared = "peak memory of training processes, by the driver",
                       .unit = "GB",
                       .method =
                           "The peak that the driver counted for any process that trained OPT-350M or GPT-Neo-2.7B under "
                           "1F1B, beside the largest stage by `stage_memory`. Its four overheads (runtime, bytes per parameter "
                           "of the optimizer step, fragments, margin) are fitted to nodes of the other kind: least squares, "
                           "then the least margin with which no fitted row is more than 2 % under. Errors are meant to be "
                           "positive: a plan that does not fit is worse than one that wastes a little.",
                       .goal_mean_percent = 10,
                       .goal_of_all = true,
                       .goal_under_percent = 2};
  for (const auto& p : all) {
    const auto other = fit(those(all, [&](const auto& q) { return q.nodes != p.nodes; }));
    part.cases.push_back({.set = p.model,
                          .group = p.nodes,
                          .what = text("%s, %zu stages, data %d, tensor %d, %d samples", p.plan.c_str(), p.stages.size(),
                                       p.shape.data, p.shape.tensor, static_cast<int>(p.options.samples)),
                          .measured = p.bytes / 1e9,
                          .predicted = predict(p, other) / 1e9});
  }
  std::vector<double> in_sample;
  for (const auto& p : all) in_sample.push_back(predict(p, shipped) / p.bytes - 1);
  const auto s = summarise(in_sample);
  part.remarks = text("Fitted to all rows the model is %+.1f %% over on average and %+.1f %% at the lowest; ", s.bias, s.lowest) +
                 "with each row held out by itself " + with_held_out(all, [](const auto& a, const auto& b) { return &a == &b; }) +
                 "; with each model held out " +
                 with_held_out(all, [](const auto& a, const auto& b) { return a.model == b.model; }) +
                 ". With single rows held out the 2 % do not hold: the row that falls short is the one on RTX nodes without "
                 "a pipeline, which takes about 1 GB more than the other plans on these nodes let one expect, and nothing in "
                 "the table tells why. Tried and dropped: every stage's outputs kept until backward, buffers for each "
                 "neighbour in the pipeline, and constants of least mean error under the bound in place of least squares. "
                 "The last comes closer to the rows it is fitted to, and all are worse on those held out.\n\nLeft out: `mit` "
                 "`plan_config_N2_D1`. With its two tensor-parallel devices the activations in flight alone take 10.3 GB, "
                 "the row says 4.1 GB.\n\n" +
                 plans_over_80_gb(data);
  return part;
}

// MiB that one block more, or one sample, takes on each of 8 devices: Llama-2-7B, bf16, ZeRO 3 over the data-parallel devices.
validation_part galvatron(const std::string& data) {
  std::ifstream file(data + "/galvatron/memory_profiling_bf16_llama2-7b_all.json");
  if (!file) throw input_error("cannot read the memory profile of " + data + "/galvatron");
  const auto profile = nlohmann::ordered_json::parse(file);
  const auto chain = make_chain(llama({.layers = 4, .hidden = 4096, .heads = 32, .sequence = 2048}));
  validation_part part{.title = "Galvatron memory of a block",
                       .compared = "what one more block or sample takes in PyTorch's allocator",
                       .unit = "MiB",
                       .method =
                           "Differences of what PyTorch had allocated with one and with two blocks of Llama-2-7B in bf16 on "
                           "8 A100s: parameters, gradients and optimizer under ZeRO 3 and tensor parallelism, and "
                           "activations of one sample. Predicted are those parts of `stage_memory` with its margin, without "
                           "what a whole process holds besides. The activations of one device give `activation_scale` (the "
                           "kernels are not fused); the others follow from it.",
                       .goal_mean_percent = 10,
                       .goal_of_all = true,
                       .goal_under_percent = 2};
  const double margin = 1 + fitted_overheads.margin;
  const memory_overheads none{};
  const auto block = [&](const degrees& d, const stage_memory_options& o) { return stage_memory(chain, {1, 2}, d, o); };
  for (const auto& [name, rows] : profile.items()) {
    int stages = 0, tensor = 0, replicas = 0;
    if (std::sscanf(name.c_str(), "%d_%d_%d", &stages, &tensor, &replicas) != 3 || stages != 1) continue;
    const auto grown = [&, &rows = rows](const char* what) {
      const auto of = [&](int layers) {
        return rows.at(text("layernum[%d]_bsz8_seq2048_rank0_%s", layers, what)).template get<double>();
      };
      return of(2) - of(1);
    };
    const auto use = block({.data = replicas, .tensor = tensor}, {.zero = 3, .overheads = none});
    part.cases.push_back(
        {.set = "Galvatron",
         .group = "state of a block",
         .what = text("%s: tensor %d, data %d", name.c_str(), tensor, replicas),
         .measured = grown("ms"),
         .predicted = static_cast<double>(use.weights + use.gradients + use.optimizer) * margin / static_cast<double>(mib)});
  }
  const auto& kept = profile.at("layertype_0_sp").at("2048").at("tp_activation_per_bsz_dict");
  const auto activations = [&](int tensor, recomputation mode, double scale) {
    const auto use = block({.tensor = tensor}, {.recompute = mode, .style = {.activation_scale = scale}, .overheads = none});
    return static_cast<double>(use.activations) / static_cast<double>(mib);
  };
  const double scale = kept.at("1").get<double>() / activations(1, recomputation::selective, 1);
  for (const int tensor : {2, 4, 8})
    part.cases.push_back({.set = "Galvatron",
                          .group = "activations of a block",
                          .what = text("tensor %d", tensor),
                          .measured = kept.at(std::to_string(tensor)).get<double>(),
                          .predicted = activations(tensor, recomputation::selective, scale) * margin});
  part.cases.push_back({.set = "Galvatron",
                        .group = "activations of a block",
                        .what = "full recomputation",
                        .measured = kept.at("checkpoint").get<double>(),
                        .predicted = activations(1, recomputation::full, scale) * margin});
  part.remarks =
      "Under full recomputation Galvatron keeps two tensors of the size of a block's input where Korthikanti's formula, and "
      "ours, has one. That the formulas for parameters and activations are Korthikanti's exactly is a test "
      "([training_memory_test.cpp](../../tests/cost/memory/training_memory_test.cpp)).";
  return part;
}

}  // namespace

std::vector<validation_part> memory_parts(const std::string& data) { return {sailor(data), galvatron(data)}; }

}  // namespace validation
