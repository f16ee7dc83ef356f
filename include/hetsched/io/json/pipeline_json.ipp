// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <nlohmann/json.hpp>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/io/json/pipeline_json.hpp>

namespace hetsched {

HETSCHED_INLINE pipeline_file parse_pipeline(std::string_view text, std::string_view file_name) {
  const detail::json_document document(text, file_name);
  const auto top = document.format(
      "pipeline", {"microbatches", "forward_s", "backward_s", "transfer_s", "gradient_transfer_s", "transfer_occupied_s",
                   "gradient_transfer_occupied_s", "weight_backward_s", "activation_bytes"});
  pipeline_file result;
  result.microbatches = top.at("microbatches").count(1, detail::max_microbatches);
  const auto forward = top.at("forward_s");
  const auto stages = forward.size();
  if (stages == 0) forward.expected("at least one stage");
  if (stages > as_size(detail::max_stages)) forward.expected("at most " + std::to_string(detail::max_stages) + " stages");
  const auto per_stage = [&](const detail::json_value& array) { return detail::read_seconds(array.sized(stages, "stage")); };
  const auto per_boundary = [&](const detail::json_value& array) {
    return detail::read_seconds(array.sized(stages - 1, "boundary between stages"));
  };
  result.times.forward_s = per_stage(forward);
  result.times.backward_s = per_stage(top.at("backward_s"));
  result.times.transfer_s = per_boundary(top.at("transfer_s"));
  if (const auto gradient = top.find("gradient_transfer_s")) result.times.gradient_transfer_s = per_boundary(*gradient);
  const auto at_most = [](const detail::json_value& parts, const std::vector<double>& part, const std::vector<double>& whole,
                          const char* wanted) {
    for (std::size_t i = 0; i < part.size(); ++i)
      if (part[i] > whole[i]) parts[i].expected(wanted);
  };
  auto& times = result.times;
  if (const auto occupied = top.find("transfer_occupied_s")) {
    times.transfer_occupied_s = per_boundary(*occupied);
    at_most(*occupied, times.transfer_occupied_s, times.transfer_s, "at most the boundary's transfer_s");
  }
  if (const auto occupied = top.find("gradient_transfer_occupied_s")) {
    times.gradient_transfer_occupied_s = per_boundary(*occupied);
    at_most(*occupied, times.gradient_transfer_occupied_s,
            times.gradient_transfer_s.empty() ? times.transfer_s : times.gradient_transfer_s,
            "at most what the gradient takes over the boundary");
  }
  if (const auto weight = top.find("weight_backward_s")) {
    times.weight_backward_s = per_stage(*weight);
    at_most(*weight, times.weight_backward_s, times.backward_s, "at most the stage's backward_s");
  }
  if (const auto activation = top.find("activation_bytes"))
    result.times.activation_bytes =
        activation->sized(stages, "stage").list([](const auto& value) { return static_cast<double>(value.bytes()); });
  return result;
}

HETSCHED_INLINE std::string to_json(const pipeline_file& file) {
  nlohmann::ordered_json out{{"format", "hetsched/pipeline"}, {"version", 1}};
  out["microbatches"] = file.microbatches;
  out["forward_s"] = file.times.forward_s;
  out["backward_s"] = file.times.backward_s;
  out["transfer_s"] = file.times.transfer_s;
  if (!file.times.gradient_transfer_s.empty()) out["gradient_transfer_s"] = file.times.gradient_transfer_s;
  if (!file.times.transfer_occupied_s.empty()) out["transfer_occupied_s"] = file.times.transfer_occupied_s;
  if (!file.times.gradient_transfer_occupied_s.empty())
    out["gradient_transfer_occupied_s"] = file.times.gradient_transfer_occupied_s;
  if (!file.times.weight_backward_s.empty()) out["weight_backward_s"] = file.times.weight_backward_s;
  for (const double bytes : file.times.activation_bytes) out["activation_bytes"].push_back(static_cast<bytes_t>(bytes + 0.5));
  return detail::dump(out);
}

}  // namespace hetsched
