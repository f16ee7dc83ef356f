// SPDX-License-Identifier: Apache-2.0
// Valid documents of every kind, and ways to break them.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/io.hpp>

namespace documents {

inline const std::string cluster = R"({
  "format": "hetsched/cluster", "version": 1,
  "devices": { "MyGPU": { "peak_tflops": {"fp16": 125.0, "fp32": 15.7}, "memory_gib": 32, "memory_bandwidth_gb_per_s": 900,
                          "multiprocessors": 80, "l2_mib": 6, "clock_mhz": 1530 } },
  "subclusters": [
    { "name": "v100e", "device": "MyGPU", "nodes": 4, "devices_per_node": 8,
      "intra_node": {"gbit_per_s": 1200, "latency_us": 5}, "inter_node": {"gbit_per_s": 200, "latency_us": 10} },
    { "name": "a100", "device": "A100-SXM4-40GB", "nodes": 2, "devices_per_node": 4,
      "intra_node": {"gbit_per_s": 2400, "latency_us": 3}, "inter_node": {"gbit_per_s": 100, "latency_us": 7} } ],
  "links": [ { "between": ["v100e", "a100"], "gbit_per_s": 5, "latency_us": 100 } ] })";

inline const std::string model = R"({
  "format": "hetsched/model", "version": 1,
  "transformer": { "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn_hidden": 256, "vocab": 1000, "sequence": 128,
                   "dtype": "bf16", "experts": 4, "experts_per_token": 2, "moe_every": 2 } })";

inline const std::string profile = R"({
  "format": "hetsched/profile", "version": 1,
  "layers": [ {"name": "embed", "boundary_bytes": 16777216}, {"name": "head", "boundary_bytes": 0} ],
  "costs": [
    { "subcluster": "v100e", "nodes": 1, "devices": 2, "forward_s": [0.1, 0.25], "backward_s": [0.2, 0.4],
      "weight_bytes": [1000, 2000], "activation_bytes": [10, 20] },
    { "device": "T4", "nodes": 2, "devices": 4, "degrees": {"data": 2, "context": 1, "tensor": 4}, "forward_s": [0.1, 0.2],
      "backward_s": [0.2, 0.4], "weight_bytes": [1000, 2000], "activation_bytes": [10, 20] } ] })";

inline const std::string profile_2 = R"({
  "format": "hetsched/profile", "version": 2,
  "layers": [ {"name": "embed", "boundary_bytes_per_sample": 4194304}, {"name": "head", "boundary_bytes_per_sample": 0} ],
  "costs": [
    { "subcluster": "v100e", "nodes": 2, "tensor": 4, "context": 2, "microbatch_size": 4, "forward_s": [0.1, 0.25],
      "backward_s": [0.2, 0.4], "weight_bytes": [1000, 2000], "activation_bytes": [10, 20], "gradient_bytes": [200, 400],
      "update_s": [0.01, 0.02] },
    { "device": "T4", "tensor": 1, "context": 1, "microbatch_size": 1, "forward_s": [0.1, 0.2], "backward_s": [0.2, 0.4],
      "weight_bytes": [1000, 2000], "activation_bytes": [10, 20] },
    { "device": "T4", "microbatch_size": 8, "forward_s": [0.3, 0.6], "backward_s": [0.6, 1.2],
      "weight_bytes": [1000, 2000], "activation_bytes": [80, 160] } ] })";

inline const std::string plan = R"({
  "format": "hetsched/plan", "version": 2, "planner": "interop_dp", "objective": "iteration",
  "subclusters": [ {"name": "v100e", "devices": 32}, {"name": "a100", "devices": 8} ],
  "setting": { "costs": "analytic", "granularity": "block", "sequence": 1024, "precision": "fp16", "attention": "flash" },
  "pipelines": [
    { "microbatches": 64, "microbatch_size": 1,
      "stages": [
        { "layers": [0, 39], "devices": [ {"subcluster": "v100e", "first_device": 0, "nodes": 1, "devices_per_node": 4},
                                          {"subcluster": "v100e", "first_device": 8, "devices_per_node": 4} ],
          "degrees": {"data": 2, "context": 1, "tensor": 4}, "shares": {"data": [0.25, 0.75]}, "recompute": "full", "zero": 1,
          "warmup": 3, "forward_s": 0.1, "backward_s": 0.2, "weight_backward_s": 0.05, "update_s": 0.01, "weight_bytes": 600,
          "gradient_bytes": 100, "optimizer_bytes": 300, "activation_bytes": 50, "temporary_bytes": 20,
          "overheads": {"runtime_bytes": 100, "buffer_bytes": 30, "fragmentation": 0.5, "margin": 0.25},
          "memory_bytes": 1000, "memory_capacity_bytes": 2000 },
        { "layers": [40, 40], "devices": [ {"subcluster": "a100", "first_device": 2, "nodes": 1, "devices_per_node": 1} ],
          "degrees": {"tensor": 1}, "warmup": 1, "forward_s": 0.1, "backward_s": 0.2, "memory_bytes": 1000,
          "memory_capacity_bytes": 2000 } ],
      "boundaries": [ {"bytes": 4096, "forward_s": 0.05, "backward_s": 0.06, "forward_occupied_s": 0.025, "backward_occupied_s": 0.03125, "reshard": "direct", "extra_bytes": 7} ],
      "schedule": {"name": "h1f1b"} },
    { "microbatches": 2, "microbatch_size": 3,
      "stages": [ { "layers": [0, 40], "devices": [ {"subcluster": "a100", "first_device": 4, "devices_per_node": 4} ],
                    "degrees": {"data": 4} } ],
      "schedule": {"name": "mine", "actions": "0F0,0B0,0F1,0B1\n"} } ],
  "gradient_sync": [ {"layers": [0, 39], "pipelines": [0, 1], "bytes": 80, "seconds": 0.5} ],
  "predicted": { "iteration_s": 20.5, "lower_bound_s": 20, "samples_per_s": 3.1, "mfu": 0.4, "load_balance": 0.9, "period_s": 0.3 },
  "evidence": { "objective_value": 20.25, "objective_bound": 20, "complete": false, "work": {"evaluations": 12, "labels": 3456} } })";

/// What planners wrote before.
inline const std::string plan_1 = R"({
  "format": "hetsched/plan", "version": 1, "planner": "interop_dp", "microbatches": 64,
  "pipelines": [ { "microbatches": 64, "microbatch_size": 1,
    "stages": [
      { "layers": [0, 39], "subcluster": "v100e", "first_device": 0, "nodes": 1, "devices_per_node": 8,
        "degrees": {"data": 2, "context": 1, "tensor": 4}, "warmup": 3, "forward_s": 0.1, "backward_s": 0.2, "transfer_s": 0.05,
        "memory_bytes": 1000, "memory_capacity_bytes": 2000 },
      { "layers": [40, 40], "subcluster": "a100", "first_device": 2, "nodes": 1, "devices_per_node": 1,
        "degrees": {"data": 1, "context": 1, "tensor": 1}, "warmup": 1, "forward_s": 0.1, "backward_s": 0.2, "transfer_s": 0,
        "memory_bytes": 1000, "memory_capacity_bytes": 2000 } ] } ],
  "schedule": "h1f1b",
  "predicted": { "iteration_s": 20.5, "lower_bound_s": 20, "samples_per_s": 3.1, "mfu": 0.4, "load_balance": 0.9, "period_s": 0.3 } })";

inline const std::string pipeline = R"({
  "format": "hetsched/pipeline", "version": 1, "microbatches": 128, "forward_s": [1, 1.5], "backward_s": [2, 2.5], "transfer_s": [0.25],
  "gradient_transfer_s": [0.5], "transfer_occupied_s": [0.125], "gradient_transfer_occupied_s": [0.375], "weight_backward_s": [1, 1], "activation_bytes": [100, 200] })";

struct kind {
  const char* name;
  const std::string& text;
  std::function<void(std::string_view)> parse;
  int version = 1;
  int latest = 1;
};

inline const std::vector<kind>& kinds() {
  static const std::vector<kind> all{
      {"cluster", cluster, [](std::string_view text) { (void)hetsched::parse_cluster(text, "x.json"); }},
      {"model", model, [](std::string_view text) { (void)hetsched::parse_model(text, "x.json"); }},
      {"profile", profile, [](std::string_view text) { (void)hetsched::parse_profile_file(text, "x.json"); }, 1, 2},
      {"profile", profile_2, [](std::string_view text) { (void)hetsched::parse_profile_file(text, "x.json"); }, 2, 2},
      {"plan", plan, [](std::string_view text) { (void)hetsched::parse_plan(text, "x.json"); }, 2, 2},
      {"plan", plan_1, [](std::string_view text) { (void)hetsched::parse_plan(text, "x.json"); }, 1, 2},
      {"pipeline", pipeline, [](std::string_view text) { (void)hetsched::parse_pipeline(text, "x.json"); }},
  };
  return all;
}

/// `text` with one piece of it replaced. The piece must occur.
inline std::string with(std::string text, std::string_view piece, std::string_view replacement) {
  const auto at = text.find(piece);
  REQUIRE_MESSAGE(at != std::string::npos, "no such piece: " << piece);
  return text.replace(at, piece.size(), replacement);
}

/// The error that a text causes names the file and this place, and says `part`.
inline void refuses(const kind& k, const std::string& text, const std::string& pointer, const std::string& part) {
  CAPTURE(k.name);
  CAPTURE(text);
  bool refused = false;
  try {
    k.parse(text);
  } catch (const hetsched::file_error& wrong) {
    refused = true;
    const std::string what = wrong.what();
    CHECK(wrong.pointer() == pointer);
    CHECK(what.starts_with("x.json: "));
    CHECK(what.find(pointer) != std::string::npos);
    CHECK_MESSAGE(what.find(part) != std::string::npos, what);
  }
  CHECK(refused);
}

}  // namespace documents
