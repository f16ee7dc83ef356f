// SPDX-License-Identifier: Apache-2.0
// Times a model's layers and the links between ranks, as profile.json and cluster.json tell them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cost/models/replica_profile.hpp>
#include <hetsched/cuda/find_nics.hpp>
#include <hetsched/runtime/measure/profile_layers.hpp>
#include <hetsched/runtime/measure/profile_links.hpp>

#include <gpt/config.hpp>
#include <train/place.hpp>

namespace train {

struct measure_arguments {
  std::vector<int> microbatch_sizes{1};  ///< ascending
  std::vector<int> tensors{1};           ///< tensor degrees, ascending
  int warmup = 3, repeats = 15;
  bool each_rank = false;
};

/// Equal ranks, one after the other, that share a host.
struct rank_group {
  int first = 0, last = 0;
  [[nodiscard]] int size() const { return last - first + 1; }
  [[nodiscard]] std::string name() const { return "ranks-" + std::to_string(first) + "-" + std::to_string(last); }
};

/// What was measured, the same on every rank.
struct measurements {
  std::vector<rank_group> groups;
  std::vector<std::vector<std::vector<hetsched::layer_profile>>> layers;  ///< by rank; of every degree all sizes
  std::vector<double> flops;                                              ///< by rank: of a matrix product
  std::vector<double> memory_bytes;                                       ///< by rank: its share of its host's
  struct measured_link {
    int from = 0, to = 0;  ///< groups
    std::vector<hetsched::link_sample> samples;
  };
  std::vector<measured_link> links;
  // Of GPUs only; else formulas say what layers take.
  std::vector<hetsched::nic> nics;                                      ///< beside them
  std::vector<hetsched::device> gpus;                                   ///< by rank
  std::vector<std::vector<std::vector<hetsched::bytes_t>>> activation;  ///< by rank and size: of the layers, of a microbatch
  std::vector<hetsched::bytes_t> half;                                  ///< of the layers: copies of parameters for products
};

/// What hetsched-profile measures on the ranks of this process.
struct measuring {
  gpt::config config;
  bool wide = false;  ///< fp64
  std::string corpus;
  place_arguments given;
  hetsched::process_place place;
  measure_arguments how;
  std::function<void(std::string)> before;        ///< told on rank 0 what comes next
  measurements found;                             ///< rank 0's
  std::string device = "cpu", products = "bf16";  ///< where ranks compute
  bool half_boundaries = false;                   ///< on GPUs: bf16 numbers between layers
};
void measure_on_hosts(measuring& m);
void measure_on_gpus(measuring& m);

/// One row per group, tensor degree and microbatch size: the mean of its ranks' medians. Memory: parameters, gradients and
/// AdamW's two moments; activations by the library's formulas.
[[nodiscard]] hetsched::replica_profile to_profile(const measurements& m, const gpt::config& config, const measure_arguments& how,
                                                   int element_bytes);

/// The ranks as a cluster: a subcluster of one node per group, a device per rank. costs: to_profile of the same; no layer in it
/// is faster than its host's peak.
[[nodiscard]] hetsched::cluster to_cluster(const measurements& m, const hetsched::replica_profile& costs,
                                           const gpt::config& config);

}  // namespace train
