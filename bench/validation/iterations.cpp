// SPDX-License-Identifier: Apache-2.0
// Predicts the training iterations of Megatron-LM's papers.
#include "iterations.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cost/models/tile_cost.hpp>
#include <hetsched/cost/network/collective.hpp>
#include <hetsched/model/families.hpp>
#include <hetsched/schedule/builders/interleaved.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

#include "csv.hpp"
#include "statistics.hpp"
#include "text.hpp"

using namespace hetsched;

namespace validation {
namespace {

// NVLink3 of a DGX A100: latency and bandwidth of a step of NCCL's ring as Vidur measured them (all-reduces of 8 GPUs, 32 to 64
// MB). One port of 200 Gbit/s per GPU, nine tenths of it for data.
constexpr link nvlink{10.6e-6, 223e9};
constexpr link port{5e-6, 0.9 * 25e9};
constexpr int node_size = 8;

// What a trainer's code does beside the layers' arithmetic and collectives.
struct trainer {
  double accumulate_bytes = 6;  // moved per parameter and microbatch to add up gradients; fp16: read twice, written once
  double update_bytes = 62;     // per parameter and iteration, see the method below
  double gradient_bytes = 2;
  bool hides_reductions = false;  // backward's tensor-parallel collectives behind products (Megatron-LM since 2022)
  int exchanges = 2;              // that a stage waits for per microbatch and chunk
  bool splits_transfers = true;   // each tensor-parallel rank sends its share to the next stage
};

// Fully sharded data parallelism.
struct sharding {
  bool gathers_for_recomputation = false;  // and again for the backward that follows
  bool hides_reduction = true;             // of gradients, behind backward
  double reduced_bytes = 2;                // per parameter
  int rails = node_size;                   // ports of a node that a collective uses at once
  double port_share = 1;                   // of what a port is taken to give
  double exposed = 0;                      // of the shorter of computing and gathering, what the longer does not hide
};

struct training_run {
  std::string group, what;
  std::string device = "A100-SXM4-80GB";
  hetsched::precision precision = hetsched::precision::fp16;
  transformer model;
  kernel_style style;
  recomputation recompute = recomputation::full;
  int tensor = 1, pipeline = 1, data = 1, microbatch = 1, microbatches = 1, chunks = 1;
  trainer code;
  sharding shards;
  bool sharded = false;
  double measured_s = 0;
};

using cost_model = tile_cost_model<transformer_operators>;

// The library's costs of one run. Layers are cut finer than blocks, so that each tensor-parallel collective has its own latency.
class run_costs {
 public:
  run_costs(const training_run& run, double efficiency)
      : run_(run), device_(catalogue_device(run.device)), model_(make_model(run, device_, efficiency)) {}

  // Blocks [first, last), with the embedding before the first of all and the head after the last of all.
  [[nodiscard]] stage_cost blocks(int first, int last) const {
    const auto at = [](int block) { return block == 0 ? 0 : 1 + 3 * block; };
    return model_.stage({at(first), last == run_.model.layers ? model_.layer_count() : at(last)}, where_);
  }
  [[nodiscard]] stage_cost ends() const {
    auto cost = model_.layer(0, where_);
    return cost += model_.layer(model_.layer_count() - 1, where_);
  }
  // Of one tensor-parallel rank.
  [[nodiscard]] double parameters(int first, int last) const {
    const double h = run_.model.hidden;
    const bool end = first == 0 || last == run_.model.layers;
    return ((last - first) * 12.0 * h * h + (end ? static_cast<double>(run_.model.vocab) * h : 0)) / run_.tensor;
  }
  [[nodiscard]] double moved_s(double bytes) const { return bytes / (tile_constants{}.memory_share * device_.memory_bandwidth); }
  // On one activation of a microbatch, within a tensor-parallel group.
  [[nodiscard]] double tensor_s(collective kind) const {
    const double bytes = 2.0 * run_.microbatch * run_.model.sequence * run_.model.hidden;
    return collective_s(kind, collective_algorithm::ring, rank_group<>{1, run_.tensor, nvlink, port}, bytes);
  }
  // What a stage waits for in each direction of a microbatch.
  [[nodiscard]] double exchange_s() const {
    if (run_.pipeline == 1) return 0;
    const double whole_s =
        model_.transfer(model_.layer_count() - 2, where_, where_).forward_s;  // over all ports of a node at once
    return run_.code.splits_transfers ? whole_s + tensor_s(collective::all_gather) : run_.tensor * whole_s;
  }

 private:
  static cost_model make_model(const training_run& r, const hetsched::device& d, double efficiency) {
    tile_cost_options options;
    options.microbatch_size = r.microbatch;
    options.precision = r.precision;
    options.recompute = {r.recompute};
    options.efficiency = {{d.name, {efficiency, efficiency, efficiency, efficiency}}};
    options.max_data = 1;
    subcluster nodes{.name = "nodes", .device = d, .nodes = 2, .devices_per_node = node_size, .intra_node = nvlink};
    nodes.inter_node = {port.latency_s, node_size * port.bandwidth};
    auto style = r.style;
    style.format = format_of(r.precision);
    return cost_model({.subclusters = {nodes}}, transformer_operators(r.model, style, granularity::sublayer), options);
  }

  const training_run& run_;
  hetsched::device device_;
  cost_model model_;
  placement where_{{0, 1, run_.tensor}, {1, 1, run_.tensor}, run_.recompute};
};

// Seconds of an iteration under pipeline, tensor and data parallelism.
double pipelined_s(const training_run& r, double efficiency) {
  const run_costs costs(r, efficiency);
  const double exchange_s = r.chunks * r.code.exchanges / 2.0 * costs.exchange_s();
  // Of a block's two all-reduces in backward, with sequence parallelism one all-gather of each pair of collectives stays.
  const double hidden_s = !r.code.hides_reductions    ? 0
                          : r.style.sequence_parallel ? costs.tensor_s(collective::all_reduce)
                                                      : 2 * costs.tensor_s(collective::all_reduce);
  pipeline stages;
  double most_parameters = 0;
  for (int i = 0; i < r.pipeline; ++i) {
    const int first = i * r.model.layers / r.pipeline, last = (i + 1) * r.model.layers / r.pipeline;
    const auto cost = costs.blocks(first, last);
    const double parameters = costs.parameters(first, last);
    most_parameters = std::max(most_parameters, parameters);
    stages.forward_s.push_back(cost.forward_s + exchange_s);
    stages.backward_s.push_back(cost.backward_s - (last - first) * hidden_s +
                                costs.moved_s(parameters * r.code.accumulate_bytes) + exchange_s);
  }
  stages.transfer_s.assign(stages.forward_s.size() - 1, 0);
  const double played_s =
      simulate(stages, interleaved_1f1b(r.pipeline, r.chunks, r.microbatches), {.timeline = false}).makespan_s;
  // A node's ports serve its tensor-parallel ranks' rings at once.
  const int per_node = std::min(r.data, node_size / r.tensor);
  const rank_group<> replicas{r.data / per_node, per_node, nvlink, {port.latency_s, port.bandwidth * node_size / r.tensor}};
  return played_s +
         collective_s(collective::all_reduce, collective_algorithm::ring, replicas, most_parameters * r.code.gradient_bytes) +
         costs.moved_s(most_parameters * r.code.update_bytes);
}

// Seconds of an iteration under fully sharded data parallelism: each block's weights are gathered while the block before it
// computes.
double sharded_s(const training_run& r, double efficiency) {
  const run_costs costs(r, efficiency);
  const rank_group<> all{
      r.data / node_size, node_size, nvlink, {port.latency_s, r.shards.rails * r.shards.port_share * port.bandwidth}};
  const auto ring_s = [&](collective kind, double bytes) {
    return collective_s(kind, collective_algorithm::ring, all, bytes * costs.parameters(1, 2));
  };
  const double gather_s = ring_s(collective::all_gather, 2),
               reduce_s = ring_s(collective::reduce_scatter, r.shards.reduced_bytes);
  const auto block = costs.blocks(1, 2);
  const auto both_s = [&](double compute_s, double network_s) {
    return std::max(compute_s, network_s) + r.shards.exposed * std::min(compute_s, network_s);
  };
  double block_s = both_s(block.forward_s, gather_s);
  const double hidden_s = r.shards.hides_reduction ? reduce_s : 0;
  if (r.shards.gathers_for_recomputation)
    block_s += both_s(block.forward_s, gather_s) + both_s(block.backward_s - block.forward_s, gather_s + hidden_s);
  else
    block_s += both_s(block.backward_s, gather_s + hidden_s);
  block_s += reduce_s - hidden_s;
  return r.microbatches * (r.model.layers * block_s + costs.ends().total_s()) +
         costs.moved_s(costs.parameters(0, r.model.layers) / r.data * r.code.update_bytes);
}

double iteration_s(const training_run& r, double efficiency) {
  return r.sharded ? sharded_s(r, efficiency) : pipelined_s(r, efficiency);
}

// FLOPs as the tables count them, all layers computed twice forward (Narayanan et al. 2021, eq. 3).
double counted_flops(const transformer& m, double samples) {
  const double s = m.sequence, h = m.hidden, l = m.layers, v = static_cast<double>(m.vocab);
  return 96 * samples * s * l * h * h * (1 + s / (6 * h) + v / (16 * l * h));
}

// Of SC'21 Table 1, microbatch size and chunks per stage: Megatron-LM's examples/sc21/run_table_1.sh.
std::pair<int, int> published(const std::string& model) {
  static const std::map<std::string, std::pair<int, int>> known{
      {"GPT-1.7B", {16, 1}}, {"GPT-3.6B", {16, 1}},  {"GPT-7.5B", {16, 1}},  {"GPT-18.4B", {8, 1}},  {"GPT-39.1B", {4, 1}},
      {"GPT-76.1B", {2, 3}}, {"GPT-145.6B", {2, 2}}, {"GPT-310.1B", {1, 2}}, {"GPT-529.6B", {1, 3}}, {"GPT-1008B", {1, 1}}};
  const auto found = known.find(model);
  if (found == known.end()) throw input_error("no microbatch size is published for " + model);
  return found->second;
}

std::vector<training_run> megatron_runs(const std::string& path) {
  static const std::map<std::string, std::string> groups{{"SC21_T1", "SC'21 Table 1"},
                                                         {"SC21_T2_PTDP", "SC'21 Table 2, PTD-P"},
                                                         {"SC21_T2_ZeRO3", "SC'21 Table 2, ZeRO-3"},
                                                         {"Korth_T5", "Korthikanti Table 5"},
                                                         {"MTNLG", "MT-NLG"}};
  std::vector<training_run> runs;
  for (const auto& row : csv_rows(path)) {
    const auto number = [&](const char* name, int otherwise = 1) {
      return row.at(name).empty() ? otherwise : std::stoi(row.at(name));
    };
    const std::string& table = row.at("table");
    training_run r;
    r.group = groups.at(table);
    r.model = gpt({.layers = number("layers"),
                   .hidden = number("hidden"),
                   .heads = number("heads"),
                   .vocab = number("vocab"),
                   .sequence = number("seq")});
    r.tensor = number("tp");
    r.pipeline = number("pp");
    r.data = number("dp");
    r.microbatch = number("mbs", table == "MTNLG" ? 2 : 1);
    r.chunks = number("interleave");
    if (table == "SC21_T1") std::tie(r.microbatch, r.chunks) = published(row.at("model"));
    const int batch = number("batch");
    r.microbatches = batch / r.data / r.microbatch;
    if (row.at("mode") != "full_recompute") {
      r.style.sequence_parallel = true;
      r.recompute = recomputation::selective;
    }
    if (table == "Korth_T5") r.code = {.accumulate_bytes = 0, .hides_reductions = true};
    if (table == "MTNLG") r.code = {.accumulate_bytes = 10, .gradient_bytes = 4, .exchanges = 4, .splits_transfers = false};
    r.sharded = table == "SC21_T2_ZeRO3";
    if (r.sharded) r.shards = {.gathers_for_recomputation = true, .hides_reduction = false, .rails = 1};
    const double measured = std::stod(row.at("measured"));
    r.measured_s = row.at("unit") == "s_per_iter" ? measured : counted_flops(r.model, batch) / number("gpus") / (measured * 1e12);
    r.what = row.at("model") + text(" on %d GPUs, t %d, p %d, d %d, microbatches %d x %d", number("gpus"), r.tensor, r.pipeline,
                                    r.data, r.microbatches, r.microbatch);
    if (r.chunks > 1) r.what += text(", %d chunks", r.chunks);
    if (r.style.sequence_parallel) r.what += ", sequence parallel, selective";
    runs.push_back(r);
  }
  return runs;
}

// Of the runs, by efficiency: what fitting asks for again and again.
struct efficiency_scan {
  static constexpr int first = 80, last = 120;  // in hundredths
  std::vector<std::vector<double>> error;       // of each efficiency and run

  explicit efficiency_scan(const std::vector<training_run>& runs) {
    for (int e = first; e <= last; ++e) {
      auto& row = error.emplace_back();
      for (const auto& r : runs) row.push_back(std::abs(iteration_s(r, e / 100.0) / r.measured_s - 1));
    }
  }
  // The efficiency of least mean error over the runs that are let in.
  [[nodiscard]] double best(const std::function<bool(std::size_t)>& let_in) const {
    double least = 1e300, at = 1;
    for (std::size_t e = 0; e < error.size(); ++e) {
      double sum = 0;
      for (std::size_t i = 0; i < error[e].size(); ++i) sum += let_in(i) ? error[e][i] : 0;
      if (sum < least) least = sum, at = (first + static_cast<double>(e)) / 100.0;
    }
    return at;
  }
};

prediction_case make_case(const training_run& r, double efficiency) {
  return {.set = "iterations",
          .group = r.group,
          .what = r.what,
          .measured = r.measured_s,
          .predicted = iteration_s(r, efficiency),
          .held_out = r.group != "MT-NLG"};  // whose microbatch size was read off these rows
}

// Errors of runs that were changed, in words.
template <class Change>
std::string errors(const std::vector<training_run>& runs, double efficiency, Change change) {
  std::vector<double> all;
  for (auto r : runs)
    if (change(r)) all.push_back(iteration_s(r, efficiency) / r.measured_s - 1);
  const auto s = summarise(all);
  return text("mean %.1f %%, from %+.1f to %+.1f %%", s.mean, s.lowest, s.highest);
}

// What a port gives, up to its line rate, and what of the shorter of computing and gathering is not hidden, with the least mean
// error on some runs.
sharding fitted_overlap(const std::vector<training_run>& runs, double efficiency) {
  sharding best = runs.front().shards;
  double least = 1e300;
  for (int share = 12; share <= 20; ++share)
    for (int exposed = 0; exposed <= 20; ++exposed) {
      double sum = 0;
      auto now = best;
      now.port_share = 25e9 / port.bandwidth * share / 20;
      now.exposed = exposed / 40.0;
      for (auto r : runs) {
        r.shards = now;
        sum += std::abs(iteration_s(r, efficiency) / r.measured_s - 1);
      }
      if (sum < least - 1e-9) least = sum, best = now;
    }
  return best;
}

}  // namespace

std::vector<validation_part> megatron_iterations(const std::string& folder) {
  auto runs = megatron_runs(folder + "/megatron_tables.csv");
  const auto middle = std::stable_partition(runs.begin(), runs.end(), [](const auto& r) { return !r.sharded; });
  const std::vector<training_run> zero3(middle, runs.end());
  runs.erase(middle, runs.end());

  const efficiency_scan scan(runs);
  const double joint = scan.best([](std::size_t) { return true; });
  std::map<std::string, double> without;  // efficiency fitted without a table
  for (const auto& r : runs) {
    if (without.contains(r.group)) continue;
    without[r.group] = scan.best([&](std::size_t i) { return runs[i].group != r.group; });
  }

  validation_part megatron{.title = "Megatron-LM iterations",
                           .compared = "iterations of GPT from 1.7 billion to a trillion parameters on A100",
                           .unit = "s",
                           .goal_mean_percent = 4,
                           .goal_max_percent = 9};
  validation_part sharded{.title = "ZeRO-3 iterations",
                          .compared = "iterations of GPT-175B and 530B under ZeRO-3 on A100",
                          .unit = "s",
                          .goal_mean_percent = 5,
                          .goal_max_percent = 10};
  for (const auto& r : runs) megatron.cases.push_back(make_case(r, without[r.group]));
  // Of each ZeRO-3 run, by the other runs, and by those of the other model alone.
  double least_port = 1e300, most_port = 0, least_exposed = 1e300, most_exposed = 0;
  std::vector<double> other_model;
  for (const auto& r : zero3) {
    const auto predicted_by = [&](auto is_other) {
      std::vector<training_run> others;
      std::copy_if(zero3.begin(), zero3.end(), std::back_inserter(others), is_other);
      auto run = r;
      run.shards = fitted_overlap(others, joint);
      return run;
    };
    const auto run = predicted_by([&](const auto& o) { return o.what != r.what; });
    sharded.cases.push_back(make_case(run, joint));
    least_port = std::min(least_port, run.shards.port_share * port.bandwidth);
    most_port = std::max(most_port, run.shards.port_share * port.bandwidth);
    least_exposed = std::min(least_exposed, run.shards.exposed);
    most_exposed = std::max(most_exposed, run.shards.exposed);
    other_model.push_back(
        iteration_s(predicted_by([&](const auto& o) { return o.model.hidden != r.model.hidden; }), joint) / r.measured_s - 1);
  }

  megatron.method =
      "Stage times from `tile_cost_model` (kernels of Megatron-LM on A100-SXM4-80GB, rings over NVLink as Vidur measured them: "
      "10.6 us a step, "
      "223 GB/s; 22.5 GB/s of each 200 Gbit/s port), played by `simulate` under `interleaved_1f1b`; then the ring of gradients "
      "and the "
      "update. From the trainer's code: a stage waits for its exchanges with its neighbours (each rank sends its share, which "
      "NVLink gathers); "
      "adding a microbatch's gradient moves 6 bytes per parameter; an iteration's update moves 62 (copy to fp32 6, unscale 8, "
      "norm 4, clip 8, "
      "Adam 28, copy back 6, zero 2). Microbatch sizes and chunks of SC'21 Table 1 are those of Megatron-LM's "
      "`examples/sc21/run_table_1.sh`; "
      "Megatron-LM of 2022 "
      "(Korthikanti) adds gradients inside the products and hides backward's collectives behind them. MT-NLG ran on DeepSpeed's "
      "pipeline: "
      "fp32 gradients (10 bytes), whole tensors sent, four exchanges one after another. One number is fitted: the efficiency of "
      "all operators "
      "against the tile model, without the table that is predicted.";
  megatron.remarks = "* Efficiency fitted to all tables: " + text("%.2f", joint) + ", which gives " +
                     errors(runs, joint, [](training_run&) { return true; }) +
                     ". Not fitted at all (1): " + errors(runs, 1, [](training_run&) { return true; }) + ". Without a table:";
  for (const auto& [group, efficiency] : without) megatron.remarks += text(" %s %.2f;", group.c_str(), efficiency);
  megatron.remarks.back() = '.';
  megatron.remarks +=
      "\n* Whether SC'21 Table 2 is interleaved is not published. As 1 chunk (taken, since its throughputs at three "
      "data-parallel sizes go as "
      "microbatches + stages - 1): " +
      errors(runs, joint, [](training_run& r) { return r.group == "SC'21 Table 2, PTD-P"; }) +
      "; with 2 and 3 chunks, as Table 1 has at these sizes: " +
      errors(runs, joint,
             [](training_run& r) {
               r.chunks = r.pipeline == 35 ? 3 : 2;
               return r.group == "SC'21 Table 2, PTD-P";
             }) +
      ".\n* MT-NLG's microbatch size is not published. The three iteration times are in the ratio of microbatches + stages - 1 "
      "within 1.1 % "
      "for microbatches of 2 samples and within 4.4 % for 1, whatever the model, so 2 is assumed, and these rows do not count as "
      "held out; with 1: " +
      errors(runs, without["MT-NLG"],
             [](training_run& r) {
               r.microbatches *= r.microbatch;
               r.microbatch = 1;
               return r.group == "MT-NLG";
             }) +
      "; with 2 under Megatron-LM's own pipeline: " +
      errors(runs, without["MT-NLG"],
             [](training_run& r) {
               r.code = {.accumulate_bytes = 10, .gradient_bytes = 4};
               return r.group == "MT-NLG";
             }) +
      ".\n* The table prints throughputs of SC'21 as whole TFLOP/s: up to 0.4 % of the error is rounding.\n"
      "* GPT-76.1B is the only row with three chunks. Its bubble is half of GPT-39.1B's, its products are larger, and yet it "
      "gained only 2 TFLOP/s; "
      "what changing between chunks costs besides the exchanges is not in the model.\n"
      "* GPT-1.7B and 3.6B (few devices share a layer, 16 samples) spend nearly half of their time in kernels bound by memory; "
      "those are a little "
      "too fast in the model.\n"
      "* 1T under Korthikanti: in the model the last of 64 stages has 6 % more to do, the logits, and sets the pace; the "
      "published times are near "
      "those of equal stages.\n";

  sharded.method =
      "The costs of [Megatron-LM's iterations](megatron-lm-iterations.md), with the efficiency fitted to those tables. A block's "
      "weights are gathered "
      "by one ring "
      "through all GPUs, over one port per node, in forward, in the recomputation and in backward, each while another block "
      "computes; its "
      "gradients are reduced in a ring after its backward. Two numbers are fitted to the other rows: what a port "
      "gives, up to its line rate of 25 GB/s, and what share of the shorter of computing and gathering the longer does not "
      "hide.";
  const auto variant = [&](auto change) {
    return errors(zero3, joint, [&](training_run& r) {
      change(r.shards);
      return true;
    });
  };
  sharded.remarks =
      text("* Fitted: %.1f to %.1f GB/s of a port, %.0f to %.0f %% not hidden. By the rows of the other model alone: ",
           1e-9 * least_port, 1e-9 * most_port, 100 * least_exposed, 100 * most_exposed) +
      text("mean %.1f %%, from %+.1f to %+.1f %%. ", summarise(other_model).mean, summarise(other_model).lowest,
           summarise(other_model).highest) +
      "With neither (22.5 GB/s, all of the shorter hidden): " + variant([](sharding&) {}) +
      ".\n* Nothing of DeepSpeed's settings is published; that a ring uses one of eight ports is the reading under which both "
      "models' "
      "communication-bound rows (2 and 1 samples) agree. Under perfect overlap, with eight ports: " +
      variant([](sharding& s) { s.rails = node_size; }) +
      "; with gradients reduced behind backward: " + variant([](sharding& s) { s.hides_reduction = true; }) +
      "; with one gather for recomputation and backward: " + variant([](sharding& s) { s.gathers_for_recomputation = false; }) +
      ".\n";

  return {megatron, sharded};
}

}  // namespace validation
