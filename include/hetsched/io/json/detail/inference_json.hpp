// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/io/json/plan_json_test.cpp.

#include <utility>

#include <nlohmann/json.hpp>

#include <hetsched/io/json_reader.hpp>
#include <hetsched/plan/inference_plan.hpp>

namespace hetsched::detail {

inline constexpr std::pair<const char*, double inference_prediction::*> inference_figures[] = {
    {"latency_s", &inference_prediction::latency_s},
    {"first_token_s", &inference_prediction::first_token_s},
    {"token_s", &inference_prediction::token_s},
    {"requests_per_s", &inference_prediction::requests_per_s},
    {"tokens_per_s", &inference_prediction::tokens_per_s}};

/// What plan.json says under `predicted` of a plan for inference.
[[nodiscard]] inline inference_prediction read_inference(const json_value& value, double largest) {
  value.object({"latency_s", "first_token_s", "token_s", "requests_per_s", "tokens_per_s"});
  inference_prediction served;
  for (const auto& [key, figure] : inference_figures) served.*figure = value.at(key).number(0, largest);
  return served;
}

[[nodiscard]] inline nlohmann::ordered_json to_json(const inference_prediction& served) {
  nlohmann::ordered_json item;
  for (const auto& [key, figure] : inference_figures) item[key] = served.*figure;
  return item;
}

}  // namespace hetsched::detail
