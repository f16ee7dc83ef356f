// SPDX-License-Identifier: Apache-2.0
// Predicts the training iterations and layers of Sailor, and Galvatron's layers.
#include "sailor.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cost/network/collective.hpp>
#include <hetsched/cost/operators/tile.hpp>
#include <hetsched/model/families.hpp>
#include <hetsched/model/transformer_operators.hpp>
#include <hetsched/schedule/passes.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

#include "csv.hpp"
#include "statistics.hpp"

using namespace hetsched;

namespace validation {
namespace {

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (const char c : text)
    if (c == at)
      parts.emplace_back();
    else
      parts.back() += c;
  return parts;
}

struct layer_seconds {
  double forward = 0, backward = 0;
};

// What was measured of a model on a device with a microbatch size and a tensor-parallel size, layer by layer.
using layer_key = std::tuple<std::string, std::string, int, int>;
using layer_table = std::map<layer_key, std::vector<layer_seconds>>;

layer_table read_layers(const std::string& folder) {
  layer_table table;
  for (auto& r : csv_rows(folder + "/sailor_layers.csv")) {
    auto& layers = table[{r["model"], r["gpu"], std::stoi(r["mbs"]), std::stoi(r["tp"])}];
    layers.resize(static_cast<std::size_t>(std::stoi(r["first_layer"])));
    layers.insert(layers.end(), static_cast<std::size_t>(std::stoi(r["num_identical_layers"])),
                  {std::stod(r["fwd_s"]), std::stod(r["bwd_s"])});
  }
  return table;
}

// A layer takes no less for more samples: what is slower than the same with a larger microbatch was disturbed, by launches that
// the measuring waited for.
void make_monotone(layer_table& table) {
  for (auto& [key, layers] : table)
    for (const auto& [other, larger] : table) {
      const auto& [model, gpu, mbs, tp] = key;
      if (std::get<0>(other) != model || std::get<1>(other) != gpu || std::get<2>(other) < mbs || std::get<3>(other) != tp ||
          larger.size() != layers.size())
        continue;
      for (std::size_t i = 0; i < layers.size(); ++i) {
        layers[i].forward = std::min(layers[i].forward, larger[i].forward);
        layers[i].backward = std::min(layers[i].backward, larger[i].backward);
      }
    }
}

struct gpu_facts {
  std::string device;
  double node_bandwidth;  // bytes/s of a direction between the devices of a tensor-parallel group
};

// NVLink as many links as the board has. GeForce boards have no peer-to-peer over PCIe 3.0 x16: what they exchange goes through
// host memory, in and out; two RTX 3090 have a bridge.
gpu_facts facts(const std::string& gpu, int tp = 1) {
  const double by_host = 15.75e9 / 2;
  if (gpu == "A100-40") return {"A100-SXM4-40GB", 300e9};
  if (gpu == "A100-80") return {"A100-SXM4-80GB", 300e9};
  if (gpu == "GH-96") return {"GH200-96GB", 450e9};
  if (gpu == "V100-16") return {"V100-SXM2-16GB", 150e9};
  if (gpu == "RTX-3090") return {"RTX3090", tp == 2 ? 56e9 : by_host};
  if (gpu == "RTX-2080") return {"RTX2080Ti", by_host};
  if (gpu == "Titan-RTX") return {"TITAN-RTX", by_host};
  throw input_error("no device is known as " + gpu);
}

transformer sailor_model(const std::string& name) {
  if (name == "OPT-350") return gpt({.layers = 24, .hidden = 1024, .heads = 16, .vocab = 50304, .sequence = 2048});
  if (name == "OPT-30") return gpt({.layers = 48, .hidden = 7168, .heads = 56, .vocab = 50304, .sequence = 2048});
  if (name == "GPT-Neo-2.7") return gpt({.layers = 32, .hidden = 2560, .heads = 20, .vocab = 50304, .sequence = 2048});
  if (name == "LLAMA-3-8")
    return llama(
        {.layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .ffn_hidden = 14336, .vocab = 50304, .sequence = 8192});
  throw input_error("no model is known as " + name);
}

bool ends_with_norm(const std::string& model) { return model == "GPT-Neo-2.7"; }

// Everything is in 32 bits; products run as tf32 where the device has it, but for the models that PyTorch's defaults ran.
number_format format_of_products(const std::string& model, const std::string& gpu) {
  const auto d = catalogue_device(facts(gpu).device);
  const bool defaults = gpu == "A100-40" && (model == "OPT-30" || model == "LLAMA-3-8");
  return d.flops(precision::tf32) > d.flops(precision::fp32) && !defaults ? number_format::tf32 : number_format::fp32;
}

double seconds(const std::vector<operator_use>& uses, const tile_device& d) {
  double sum = 0;
  for (const auto& u : uses) sum += u.times * predict_operator(d, u.op).seconds;
  return sum;
}

// Megatron's layers in 32 bits, where its fused softmax does not apply: scores are scaled in their product and masked in place.
kernel_style sailor_style(const std::string& model, const std::string& gpu) {
  return {.format = format_of_products(model, gpu),
          .fusion = elementwise_fusion::none,
          .library = {.joint_projections = true, .scores = {{1, 1, 1, 1}}}};
}

// Megatron's loss over the logits: largest, differences, exponentials, their sum, shares; and back one scaling of the shares.
void add_loss(layer_operators& head, std::int64_t logits) {
  constexpr auto f = number_format::fp32;
  for (const int written : {0, 1, 1, 0, 1}) head.forward.push_back({elementwise(logits, 1, written, f)});
  head.backward.push_back({elementwise(logits, 1, 1, f)});
}

// The kernels of a layer. GPT-Neo ends with a norm, its loss is over its width; the others with a norm, words and a loss.
layer_operators kernels(const std::string& model, const std::string& gpu, int mbs, int tp, int index) {
  const auto m = sailor_model(model);
  auto style = sailor_style(model, gpu);
  const layer_share share{.samples = mbs, .context = 1, .tensor = tp};
  if (index <= m.layers) return transformer_operators(m, style).operators(index, share);
  const std::int64_t tokens = std::int64_t{mbs} * m.sequence;
  layer_operators head;
  if (ends_with_norm(model)) {
    const auto op = norm(tokens, m.hidden, number_format::fp32);
    head.forward.push_back({op});
    head.backward = {{op}, {elementwise(tokens * m.hidden, 2, 0, number_format::fp32)}};
    add_loss(head, tokens * m.hidden);
  } else {
    style.training = false;
    head = transformer_operators(m, style).operators(m.layers + 1, share);
    add_loss(head, tokens * ceil_div(m.vocab, tp));
  }
  return head;
}

// A layer by the tile model, with the all-reduces of tensor parallelism: after attention and after the MLP, both ways; of what
// was looked up; of the gradients that the head's words send back.
layer_seconds tile_layer(const std::string& model, const std::string& gpu, int mbs, int tp, int index) {
  const auto m = sailor_model(model);
  const auto uses = kernels(model, gpu, mbs, tp, index);
  const auto f = facts(gpu, tp);
  const auto d = make_tile_device(catalogue_device(f.device));
  const rank_group<> group{.nodes = 1, .per_node = tp, .inside = {0, f.node_bandwidth}};
  const double reduce =
      collective_s(collective::all_reduce, collective_algorithm::ring, group, 4.0 * mbs * m.sequence * m.hidden);
  const bool block = index > 0 && index <= m.layers;
  const int ahead = block ? 2 : index == 0, back = block ? 2 : index > 0 && !ends_with_norm(model);
  return {seconds(uses.forward, d) + ahead * reduce, seconds(uses.backward, d) + back * reduce};
}

// A plan of Sailor's, as it ran.
struct sailor_plan {
  std::string site, model, name;
  int data = 1, tensor = 1, mbs = 1, microbatches = 1;
  std::vector<int> layers{};                     // of each stage
  std::vector<std::vector<std::string>> gpus{};  // of each stage: of each of its replicas
  double iteration_s = 0, reduce_s = 0;          // measured

  [[nodiscard]] int stages() const { return static_cast<int>(layers.size()); }
};

std::vector<sailor_plan> read_plans(const std::string& folder) {
  std::vector<sailor_plan> plans;
  for (auto& r : csv_rows(folder + "/sailor_e2e.csv")) {
    sailor_plan p{.site = r["site"], .model = r["model"] == "GPT-NEO" ? "GPT-Neo-2.7" : r["model"], .name = r["config"]};
    p.data = std::stoi(r["dp"]);
    p.tensor = std::stoi(r["tp"]);
    p.mbs = std::stoi(r["mbs"]);
    p.microbatches = std::stoi(r["gbs"]) / p.data / p.mbs;
    p.iteration_s = std::stod(r["real_iter_s"]);
    p.reduce_s = std::stod(r["reduce_grads_s"]);
    int count = 0;
    for (const auto& n : split(r["layers_per_stage"], '-')) count += p.layers.emplace_back(std::stoi(n));
    // Its layers are those of OPT.
    if (p.model == "GPT-Neo-2.7" && count == 26) p.model = "OPT-350";
    for (const auto& stage : split(r["stage_gpus"], ';')) {
      auto& of_stage = p.gpus.emplace_back();
      for (const auto& gpu : split(stage, '|')) of_stage.push_back(split(gpu, ':').front());
    }
    plans.push_back(std::move(p));
  }
  return plans;
}

// GPT-Neo was not measured on GH200: what the table has there are the rows of OPT. Its layers on A100, by the ratio of what the
// tile model says for both devices, and by how much that ratio is off for OPT, which was measured on both.
void add_missing(layer_table& table) {
  const std::string model = "GPT-Neo-2.7", other = "OPT-350", gpu = "GH-96", from = "A100-40";
  std::erase_if(table, [&](const auto& entry) { return std::get<0>(entry.first) == model && std::get<1>(entry.first) == gpu; });
  const layer_table measured = table;
  for (const auto& [key, layers] : measured) {
    const auto [of, on, mbs, tp] = key;
    const auto near = measured.find({other, gpu, mbs, tp}), far = measured.find({other, from, mbs, tp});
    if (of != model || on != from || near == measured.end() || far == measured.end()) continue;
    const auto transferred = [&](double layer_seconds::*way, int index, int index_of_other) {
      const auto tile = [&](const std::string& m, const std::string& g, int l) { return tile_layer(m, g, mbs, tp, l).*way; };
      const auto i = static_cast<std::size_t>(index), j = static_cast<std::size_t>(index_of_other);
      const double off =
          near->second[j].*way / tile(other, gpu, index_of_other) / (far->second[j].*way / tile(other, from, index_of_other));
      return layers[i].*way * tile(model, gpu, index) / tile(model, from, index) * off;
    };
    auto& found = table[{model, gpu, mbs, tp}];
    const int last = static_cast<int>(layers.size()) - 1;
    for (int i = 0; i <= last; ++i) {
      const int like = i == 0 ? 0 : 2;  // a first layer is like a first layer, all others like a block
      found.push_back({transferred(&layer_seconds::forward, i, like), transferred(&layer_seconds::backward, i, like)});
    }
  }
}

// Parameters of some layers. OPT has its word table at both ends.
double parameters(const sailor_plan& p, int first, int last) {
  const auto m = sailor_model(p.model);
  const double h = m.hidden, words = static_cast<double>(m.vocab) * h;
  double sum = 0;
  for (int l = first; l < last; ++l)
    sum += l == 0                    ? words + m.sequence * h
           : l <= m.layers           ? 12 * h * h + 13 * h
           : ends_with_norm(p.model) ? 2 * h
                                     : words + 2 * h;
  return sum;
}

// Bytes of each stage's gradients on one device, in 32 bits.
std::vector<double> gradient_bytes(const sailor_plan& p) {
  std::vector<double> bytes;
  int first = 0;
  for (const int n : p.layers) {
    bytes.push_back(4 * parameters(p, first, first + n) / p.tensor);
    first += n;
  }
  return bytes;
}

double reduction_s(double bandwidth, int replicas, double bytes) {
  const rank_group<> group{.nodes = replicas, .per_node = 1, .across = {0, bandwidth}};
  return collective_s(collective::all_reduce, collective_algorithm::ring, group, bytes);
}

// Devices of a stage that share a port to the network: all of a node at the site that has not one for each.
int port_sharers(const sailor_plan& p) { return p.site == "mit" ? p.tensor : 1; }

// Bytes/s of a port, from the gradient reductions that the other plans of the site report: their median.
double port_bandwidth(const std::vector<sailor_plan>& plans, const sailor_plan& held_out) {
  std::vector<double> found;
  for (const auto& p : plans) {
    if (&p == &held_out || p.site != held_out.site || p.data == 1 || p.reduce_s == p.iteration_s) continue;
    const auto bytes = gradient_bytes(p);
    found.push_back(reduction_s(1, p.data, *std::max_element(bytes.begin(), bytes.end())) * port_sharers(p) / p.reduce_s);
  }
  std::sort(found.begin(), found.end());
  const auto n = found.size();
  return (found[(n - 1) / 2] + found[n / 2]) / 2;
}

// Who waits for a transfer between stages.
enum class waiting { both_ends, receiver, nobody };

// Every pipeline runs 1F1B, then all wait for each other, reduce gradients and update.
double predict(const sailor_plan& p, const layer_table& table, double bandwidth, waiting who) {
  const auto m = sailor_model(p.model);
  const double of_device = bandwidth / port_sharers(p);
  const double transfer_s = 4.0 * p.mbs * m.sequence * m.hidden / p.tensor / of_device;
  const auto stages = static_cast<std::size_t>(p.stages());
  std::vector<int> warmups;
  for (int i = 0; i < p.stages(); ++i) warmups.push_back(p.stages() - i);
  auto order = one_f_one_b(warmups, p.microbatches);
  if (who != waiting::nobody) order = add_transfers(order);  // unlisted, they overlap with what both ends compute
  const simulate_options options{.semantics = who == waiting::both_ends ? send_semantics::rendezvous : send_semantics::buffered,
                                 .timeline = false};
  double slowest = 0;
  for (int replica = 0; replica < p.data; ++replica) {
    pipeline line{.forward_s = {}, .backward_s = {}, .transfer_s = std::vector<double>(stages - 1, transfer_s)};
    int first = 0;
    for (std::size_t i = 0; i < stages; ++i) {
      const auto& layers = table.at({p.model, p.gpus[i][static_cast<std::size_t>(replica)], p.mbs, p.tensor});
      layer_seconds sum;
      for (int l = first; l < first + p.layers[i]; ++l) {
        sum.forward += layers.at(static_cast<std::size_t>(l)).forward;
        sum.backward += layers.at(static_cast<std::size_t>(l)).backward;
      }
      line.forward_s.push_back(sum.forward);
      line.backward_s.push_back(sum.backward);
      first += p.layers[i];
    }
    slowest = std::max(slowest, simulate(line, order, options).makespan_s);
  }
  double end = 0;
  const auto gradients = gradient_bytes(p);
  for (std::size_t i = 0; i < stages; ++i) {
    double memory_bandwidth = 1e300;
    for (const auto& gpu : p.gpus[i])
      memory_bandwidth = std::min(memory_bandwidth, catalogue_device(facts(gpu).device).memory_bandwidth);
    const double update_s = 7 * gradients[i] / memory_bandwidth;  // Adam reads four numbers of each parameter and writes three
    end = std::max(end, reduction_s(of_device, p.data, gradients[i]) + update_s);
  }
  return slowest + end;
}

std::string percent(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", x);
  return text;
}

// "mean 1.0 %, at most 2.0 %, rank correlation 0.990 over 17 rows" of the cases to keep.
template <class Keep>
std::string figures(const std::vector<prediction_case>& cases, Keep keep) {
  std::vector<const prediction_case*> kept;
  std::vector<double> errors;
  for (const auto& c : cases)
    if (keep(c)) {
      kept.push_back(&c);
      errors.push_back(relative_error(c));
    }
  const auto s = summarise(errors);
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", rank_correlation(kept));
  return "mean " + percent(s.mean) + ", at most " + percent(s.max) + ", rank correlation " + text + " over " +
         std::to_string(s.rows) + " rows";
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

validation_part sailor_iterations(const std::string& folder) {
  validation_part part{.title = "Sailor: whole iterations on GH200 and mixed RTX nodes",
                       .compared = "iterations from layers that were measured alone",
                       .unit = "s"};
  part.method =
      "Layers that were measured alone, by device, microbatch and tensor-parallel size, are summed to stages and played as 1F1B "
      "with transfers that both ends wait for, as those of the engine do (DeepSpeed's, in 32 bits); then gradients are reduced "
      "and weights updated. The only constant is the bandwidth of a site's network ports: the median of what the gradient "
      "reductions of the site's other plans report. No iteration time was used. A layer counts for no more than the same layer "
      "with a larger microbatch. Layers of GPT-Neo on GH200 come from those on A100, by the ratio of what the tile model says "
      "for "
      "the two devices, and how far that ratio is off for OPT.";
  part.goal_mean_percent = 12;
  part.goal_of_all = true;
  part.goal_rank = 0.95;
  part.others = {"Senders do not wait", "Transfers overlap with all", "Layers as measured"};
  const auto plans = read_plans(folder);
  auto table = read_layers(folder), as_measured = table;
  make_monotone(table);
  add_missing(table);
  add_missing(as_measured);
  const std::string rtx = "RTX nodes";
  const auto cases = [&](const layer_table& layers, waiting who) {
    std::vector<prediction_case> found;
    for (const auto& p : plans)
      found.push_back({.set = "Sailor iterations",
                       .group = p.site == "mit" ? rtx : "GH200 nodes",
                       .what = p.model + " " + p.name + ": " + std::to_string(p.stages()) + " stages, data " +
                               std::to_string(p.data) + ", tensor " + std::to_string(p.tensor) + ", " +
                               std::to_string(p.microbatches) + " x " + std::to_string(p.mbs) + " samples",
                       .measured = p.iteration_s,
                       .predicted = predict(p, layers, port_bandwidth(plans, p), who),
                       .held_out = true});
    return found;
  };
  part.cases = cases(table, waiting::both_ends);
  const auto receiver = cases(table, waiting::receiver), nobody = cases(table, waiting::nobody),
             disturbed = cases(as_measured, waiting::both_ends);
  for (std::size_t i = 0; i < plans.size(); ++i)
    part.cases[i].others = {receiver[i].predicted, nobody[i].predicted, disturbed[i].predicted};
  const auto any = [](const prediction_case&) { return true; };
  const auto on_rtx = [&](const prediction_case& c) { return c.group == rtx; };
  const auto error = [&](const std::vector<prediction_case>& of, const char* name) {
    for (const auto& c : of)
      if (c.group == rtx && contains(c.what, name)) return percent(100 * relative_error(c));
    return std::string();
  };
  const auto consistent = [&](const prediction_case& c) {
    return !contains(c.what, on_rtx(c) ? "N2_D1" : "OPT-350 plan_config_N4_D4");
  };
  part.remarks =
      "* All rows: " + figures(part.cases, any) +
      "; none is left out. GH200 nodes: " + figures(part.cases, [&](const auto& c) { return !on_rtx(c); }) +
      ". RTX nodes: " + figures(part.cases, on_rtx) +
      ".\n"
      "* Without two rows that contradict themselves elsewhere: " +
      figures(part.cases, consistent) +
      ". `mit plan_config_N2_D1` reports less than half of the memory that its activations take; `clariden plan_config_N4_D4` is "
      "listed as GPT-Neo with the 26 layers of OPT, as whose plan it is predicted, and a reduction as long as its iteration.\n"
      "* If senders do not wait for receivers: " +
      figures(receiver, any) + "; if transfers overlap with all computation: " + figures(nobody, any) +
      ". `mit plan_config_N4_D1` and `N6_D3` are predicted too slow, perhaps since with a tensor-parallel size of 8 a device "
      "sends 2 MB, "
      "which NCCL's buffers hold: without waiting senders the first is off by " +
      error(receiver, "N4_D1") + ". But `N2_D1`, which sends 8 MB at a time, is then off by " + error(receiver, "N2_D1") +
      ", and `N6_D3` by " + error(receiver, "N6_D3") + " until all its transfers overlap (" + error(nobody, "N6_D3") +
      "). No single rule does better than the one taken.\n"
      "* With layers exactly as measured: " +
      figures(disturbed, any) +
      ". Layers of one sample on GH200 were measured slower (forward by 58 %) than layers of two: they wait for the host that "
      "launches their kernels, more so when each is timed alone. In a run launches go ahead of the device, so these plans are "
      "still predicted too slow.\n"
      "* Four stages with eight samples on GH200 are predicted 11 % too fast: what is missing is about as long as the transfers "
      "themselves. The engine cuts tensors before and joins them after a transfer and waits for each, which is not priced.\n"
      "* The table's GPT-Neo on GH200 equals OPT-350 on GH200 in all 21 shapes to the last digit and has OPT's 26 layers, so it "
      "was not measured and is not used.\n";
  return part;
}

validation_part sailor_layers(const std::string& folder) {
  validation_part part{.title = "Sailor: layers in training on seven GPUs",
                       .compared = "forward and backward of single layers, from datasheets",
                       .unit = "ms"};
  part.method =
      "Forward and backward of blocks, embeddings and heads, by the tile model from shapes and datasheets, with constants that "
      "were fitted to other tables (kernels of V100 and A100 among them); no time of this table was used. Everything is in 32 "
      "bits, products as tf32 where the device has it. All-reduces of tensor parallelism run at the speed of the datasheet's "
      "links; between GeForce boards at half of PCIe, by way of host memory.";
  for (const auto& [key, layers] : read_layers(folder)) {
    const auto& [model, gpu, mbs, tp] = key;
    if (model == "GPT-Neo-2.7" && gpu == "GH-96") continue;
    const int last = static_cast<int>(layers.size()) - 1;
    for (const auto& [index, name] : {std::pair{0, "embedding"}, {2, "block"}, {last, "head"}}) {
      const auto predicted = tile_layer(model, gpu, mbs, tp, index);
      const auto& measured = layers[static_cast<std::size_t>(index)];
      for (const bool ahead : {true, false}) {
        if (index == 0 && !ahead) continue;
        part.cases.push_back({.set = name,
                              .group = gpu,
                              .what = model + " " + name + (ahead ? " forward, " : " backward, ") + std::to_string(mbs) +
                                      " samples, tensor " + std::to_string(tp),
                              .measured = 1e3 * (ahead ? measured.forward : measured.backward),
                              .predicted = 1e3 * (ahead ? predicted.forward : predicted.backward),
                              .held_out = gpu != "V100-16" && !gpu.starts_with("A100")});
      }
    }
  }
  const auto all = [&](auto keep) { return figures(part.cases, keep); };
  for (const char* name : {"block", "head", "embedding"})
    part.remarks += std::string("* Of each ") + name + ": " + all([&](const auto& c) { return c.set == name; }) + ".\n";
  part.remarks +=
      "* Blocks without tensor parallelism: " +
      all([](const auto& c) { return c.set == "block" && c.what.ends_with("tensor 1"); }) +
      "; of OPT-30 on V100, where products are all: " +
      all([](const auto& c) { return c.group == "V100-16" && c.set == "block" && c.what.starts_with("OPT-30"); }) +
      ".\n"
      "* RTX 3090 in groups of eight: from what a layer takes longer than alone, a device moves 1.4 to 1.9 GB/s, a quarter of "
      "what is assumed by way of host memory. No datasheet says so; groups of two have a bridge.\n"
      "* Backward of OPT-30, where products are all, takes twice the forward in fp32 and up to three times in tf32, likely for "
      "its transposed operands. The tile model prices a product whichever operand is transposed.\n"
      "* Small layers on fast devices wait for the host: on GH200 a block takes at least 1.2 ms forward, however small. A "
      "datasheet does not know the host. An embedding only looks up: nearly all of its time is the host, and what prepares the "
      "indices.\n"
      "* What the table does not say follows from the rates: OPT-30 and Llama on A100-40 stay below the fp32 peak, while "
      "GPT-Neo "
      "and OPT-350 there exceed it and must be tf32; Llama fits sequences of 8192 and a vocabulary of about 50,000 only. Left "
      "out: Llama's last norm, a layer of its own, and backward of embeddings, timed as 1 to 3 us.\n"
      "* GPT-Neo on GH200 is left out: its rows equal those of OPT-350 to the last digit.\n";
  return part;
}

validation_part galvatron_layers(const std::string& folder) {
  validation_part part{.title = "Galvatron: forward of Llama-2 7B on A100",
                       .compared = "a layer, and embedding with head, from the datasheet",
                       .unit = "ms"};
  part.method = "A layer, and embedding with head, in bf16 with flash attention on one device, from shapes and the datasheet.";
  std::map<std::string, double> times;
  for (const auto& cells : csv_lines(folder + "/galvatron/computation_profiling_bf16_llama2-7b_all.json")) {
    const auto colon = cells.front().find(':');
    if (colon == std::string::npos) continue;
    times[cells.front().substr(0, colon)] = std::stod(cells.front().substr(colon + 1));
  }
  const auto m = llama({.layers = 32, .hidden = 4096, .heads = 32, .ffn_hidden = 11008, .vocab = 32000, .sequence = 2048});
  const transformer_operators operators(m, {.format = number_format::bf16, .attention = attention_kernels::flash});
  const auto d = make_tile_device(catalogue_device("A100-SXM4-80GB"));
  for (int samples = 1; samples <= 12; ++samples) {
    const std::string end = "_bsz" + std::to_string(samples) + "_seq2048";
    const layer_share share{.samples = samples};
    const auto forward = [&](int index) { return 1e3 * seconds(operators.operators(index, share).forward, d); };
    // The table has times per layer and sample.
    const auto add = [&](const char* name, const std::string& row, double predicted) {
      const auto found = times.find(row);
      if (found == times.end()) throw input_error("Galvatron's times lack " + row);
      part.cases.push_back({.set = name,
                            .group = "A100",
                            .what = std::string(name) + ", " + std::to_string(samples) + " samples",
                            .measured = found->second * samples,
                            .predicted = predicted,
                            .held_out = false});
    };
    add("layer", "layertype_0" + end, forward(1));
    add("embedding and head", "layertype_other" + end, forward(0) + forward(m.layers + 1));
  }
  part.remarks =
      "* Layers: " + figures(part.cases, [](const auto& c) { return c.set == "layer"; }) +
      "; embedding and head: " + figures(part.cases, [](const auto& c) { return c.set != "layer"; }) +
      ".\n"
      "* The second table (`seqlen2048`) has one row, 24.5 ms for two layers and one sample, where the first has 15.1 ms for the "
      "same: it is left out.\n";
  return part;
}

}  // namespace validation
