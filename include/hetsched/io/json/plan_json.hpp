// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/io/json/cluster_json.hpp>
#include <hetsched/io/json/pipeline_json.hpp>
#include <hetsched/io/json_reader.hpp>
#include <hetsched/plan/inference_plan.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched {

/// Contents of a plan.json. The subclusters of its stages' devices count in `subclusters`.
struct plan_file {
  hetsched::plan plan;
  std::vector<std::string> subclusters;
  std::vector<int> device_counts = {};  ///< of the subclusters; empty: not told
  friend bool operator==(const plan_file&, const plan_file&) = default;
};

/// The same of a plan for inference.
struct inference_plan_file {
  inference_plan plan;
  std::vector<std::string> subclusters;
  std::vector<int> device_counts = {};
  friend bool operator==(const inference_plan_file&, const inference_plan_file&) = default;
};

/// A plan.json is of either kind, by its objective.
using any_plan_file = std::variant<plan_file, inference_plan_file>;

/// Reads a plan.json of version 1 or 2 from its text. Of a plan of several pipelines, actions in files of their own lie in the
/// folder of `file_name`. Throws file_error. O(size).
[[nodiscard]] any_plan_file parse_any_plan(std::string_view text, std::string_view file_name);

/// The same for a plan of training. Throws file_error also for one of inference.
[[nodiscard]] plan_file parse_plan(std::string_view text, std::string_view file_name);

/// Reads a plan.json of either kind. Throws file_error.
[[nodiscard]] inline any_plan_file read_any_plan(const std::string& path) { return parse_any_plan(read_text(path), path); }

/// Reads a plan.json of training. Throws file_error, also for one of inference.
[[nodiscard]] inline plan_file read_plan(const std::string& path) { return parse_plan(read_text(path), path); }

/// Reads what plays, cuts and draws pipelines needs of a plan.json of either kind: of one for inference its forward_pipeline, and
/// the objective, by which evaluate and objective_of refuse it. Throws file_error.
[[nodiscard]] plan_file read_pipelines(const std::string& path);

/// The plan of a file with its subclusters counted as in a cluster. Throws file_error, naming the stage, where a subcluster or a
/// device is not there, and where two stages share a device. `cluster_name`: of the cluster, for messages.
[[nodiscard]] plan plan_on(plan_file file, const cluster& hardware, const std::string& path,
                           const std::string& cluster_name = "the cluster");

/// The numbers of a plan's devices in the order of its ranks: stage by stage, pipeline after pipeline, counted through all
/// subclusters; empty where the file does not tell how many devices the subclusters have. Throws input_error for a device that
/// its subcluster does not have.
[[nodiscard]] std::vector<int> device_numbers(const plan_file& file);

/// Text of a plan.json, version 2, that parse_plan takes back equal. Work of the evidence is read in the order of its names.
/// Requires: `subclusters` holds the names that the plan's devices count; `device_counts`: of each, or empty.
[[nodiscard]] std::string to_json(const plan& p, const std::vector<std::string>& subclusters,
                                  const std::vector<int>& device_counts = {});

/// The same of a plan for inference: its requests in flight are the microbatches of a pipeline there.
[[nodiscard]] std::string to_json(const inference_plan& p, const std::vector<std::string>& subclusters,
                                  const std::vector<int>& device_counts = {});

/// The same of a plan on a cluster.
[[nodiscard]] std::string to_json(const plan& p, const cluster& hardware);
[[nodiscard]] std::string to_json(const inference_plan& p, const cluster& hardware);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/json/plan_json.ipp>
#endif
