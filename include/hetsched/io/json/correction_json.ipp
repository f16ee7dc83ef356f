// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include <hetsched/core/compiled.hpp>
#include <hetsched/io/json/correction_json.hpp>

namespace hetsched {

HETSCHED_INLINE correction_file parse_correction(std::string_view text, std::string_view file_name) {
  const detail::json_document document(text, file_name);
  const auto top = document.format("correction", {"measured", "forest"});
  correction_file result;
  result.measured = top.at("measured").list([](const detail::json_value& of) {
    of.object({"device", "operators"});
    return correction_file::measured_device{of.at("device").name(), of.at("operators").count(1, 1 << 30)};
  });
  if (result.measured.empty()) top.at("measured").expected("at least one device");
  const auto forest = top.at("forest");
  try {
    result.correction = operator_correction::read(forest.text());
  } catch (const file_error&) {
    throw;
  } catch (const input_error& wrong) {
    forest.fail(wrong.what());
  }
  return result;
}

HETSCHED_INLINE std::string to_json(const correction_file& c) {
  nlohmann::ordered_json out{{"format", "hetsched/correction"}, {"version", 1}, {"measured", nlohmann::ordered_json::array()}};
  for (const auto& of : c.measured) out["measured"].push_back({{"device", of.name}, {"operators", of.operators}});
  out["forest"] = c.correction.text();
  return detail::dump(out);
}

}  // namespace hetsched
