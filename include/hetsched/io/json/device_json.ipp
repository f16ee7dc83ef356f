// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <tuple>

#include <nlohmann/json.hpp>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/io/json/device_json.hpp>

namespace hetsched::detail {

inline constexpr std::string_view precision_names[precision_count] = {"fp32", "tf32", "fp16", "bf16"};

// A factor of a calibration: a device is not hundreds of times off its datasheet.
struct calibration_key {
  const char* name;
  double device_calibration::*factor;
};

inline constexpr calibration_key calibration_keys[] = {{"lane_rate", &device_calibration::lane_rate},
                                                       {"matrix_rate", &device_calibration::matrix_rate},
                                                       {"memory_bandwidth", &device_calibration::memory_bandwidth},
                                                       {"l2_bandwidth", &device_calibration::l2_bandwidth}};

[[nodiscard]] inline calibration_residual read_residual(const json_value& value) {
  value.object({"kernel", "at", "weight"});
  calibration_residual r{.kernel = value.at("kernel").count(0), .weight = value.at("weight").number(-1e6, 1e6)};
  const auto at = value.at("at").sized(r.at.size(), "coordinate");
  for (std::size_t i = 0; i < r.at.size(); ++i) r.at[i] = at[i].number(-1e3, 1e3);
  return r;
}

[[nodiscard]] inline device_calibration read_calibration(const json_value& value) {
  value.object({calibration_keys[0].name, calibration_keys[1].name, calibration_keys[2].name, calibration_keys[3].name,
                "launch_us", "residuals"});
  device_calibration result;
  for (const auto& key : calibration_keys)
    if (const auto factor = value.find(key.name)) result.*key.factor = factor->number(0.01, 100);
  if (const auto launch = value.find("launch_us")) result.launch_s = seconds_from_us(launch->number(0, 1e9));
  if (const auto residuals = value.find("residuals")) result.residuals = residuals->list(read_residual);
  return result;
}

HETSCHED_INLINE std::vector<std::string_view> catalogue_names() {
  std::vector<std::string_view> names;
  for (const auto& d : device_catalogue()) names.push_back(d.name);
  return names;
}

/// The length of the longest text within both.
[[nodiscard]] inline std::size_t common_length(std::string_view a, std::string_view b) {
  std::size_t longest = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t n = longest + 1; i + n <= a.size() && b.find(a.substr(i, n)) != b.npos; ++n) longest = n;
  return longest;
}

HETSCHED_INLINE std::string unknown_device_text(std::string_view name, const std::vector<std::string_view>& known) {
  const auto wanted = plain_device_name(name.substr(0, 64));
  std::vector<std::string> plain;
  for (const auto one : known) plain.push_back(plain_device_name(one));
  std::vector<std::string_view> guesses, shown;
  for (const auto like : names_like(wanted, {plain.begin(), plain.end()}))
    for (std::size_t i = 0; i < known.size(); ++i)
      if (plain[i] == like) guesses.push_back(known[i]);
  if (guesses.empty()) {
    std::size_t most = 0;
    for (const auto& one : plain) most = std::max(most, common_length(wanted, one));
    for (std::size_t i = 0; i < known.size() && guesses.size() < 3; ++i)
      if (common_length(wanted, plain[i]) == most) guesses.push_back(known[i]);
  }
  std::string text = "there is no device \"" + excerpt(std::string(name)) + "\"; did you mean ";
  for (const auto guess : guesses) {
    if (std::find(shown.begin(), shown.end(), guess) != shown.end()) continue;
    text += (shown.empty() ? "\"" : " or \"") + std::string(guess) + '"';
    shown.push_back(guess);
  }
  text += "? Known: ";
  for (std::size_t i = 0; i < known.size(); ++i) text += (i ? ", " : "") + std::string(known[i]);
  return text;
}

HETSCHED_INLINE std::pair<double, std::array<double, 3>> read_speeds(const json_value& value) {
  if (value.kind() != json_kind::object) return {value.number(0.01, 100), {1, 1, 1}};
  value.object({operator_class_names[0], operator_class_names[1], operator_class_names[2]});
  std::array<double, 3> speeds{1, 1, 1};
  for (std::size_t k = 0; k < speeds.size(); ++k)
    if (const auto own = value.find(operator_class_names[k])) speeds[k] = own->number(0.01, 100);
  return {1, speeds};
}

HETSCHED_INLINE nlohmann::ordered_json write_speeds(double speed, const std::array<double, 3>& of_class) {
  if (of_class == std::array<double, 3>{1, 1, 1}) return speed;
  nlohmann::ordered_json own;
  for (std::size_t k = 0; k < of_class.size(); ++k) own[std::string(operator_class_names[k])] = speed * of_class[k];
  return own;
}

HETSCHED_INLINE device read_device(const std::string& name, const json_value& value, const std::optional<device>& of_name) {
  value.object({"format", "version", "name", "like", "peak_tflops", "memory_gib", "memory_bandwidth_gb_per_s", "multiprocessors",
                "l2_mib", "clock_mhz", "price_per_hour", "board_watts", "generation", "memory_type", "lanes_per_multiprocessor",
                "calibration", "speed", "measured"});
  if (value.has("measured") && value.has("speed")) value.at("speed").fail("is what \"measured\" beside it is to say");
  auto known = of_name;
  if (const auto like = value.find("like")) {
    known = find_device(like->text());
    if (!known) like->fail(unknown_device_text(like->text(), catalogue_names()));
  }
  device result = known ? device(*known) : device{};
  result.name = name;
  const auto wanted = [&](const char* key) { return known ? value.find(key) : std::optional(value.at(key)); };
  if (const auto peaks = wanted("peak_tflops")) {
    peaks->object({precision_names[0], precision_names[1], precision_names[2], precision_names[3], "fp8", "int8"});
    for (std::size_t p = 0; p < precision_count; ++p)
      if (const auto peak = peaks->find(precision_names[p])) result.peak_flops[p] = peak->positive(1e6) * 1e12;
    if (const auto peak = peaks->find("fp8")) result.fp8_flops = peak->positive(1e6) * 1e12;
    if (const auto peak = peaks->find("int8")) result.int8_flops = peak->positive(1e6) * 1e12;
    if (result.flops(precision::fp16) <= 0 && result.flops(precision::bf16) <= 0)
      peaks->expected("a peak for fp32, fp16 or bf16");
  }
  if (const auto memory = wanted("memory_gib")) result.memory_bytes = bytes_of(memory->positive(1e6), gib);
  if (const auto bandwidth = wanted("memory_bandwidth_gb_per_s")) result.memory_bandwidth = bandwidth->positive(1e9) * 1e9;
  if (const auto count = value.find("multiprocessors")) result.multiprocessors = count->count(0);
  if (const auto cache = value.find("l2_mib")) result.l2_bytes = bytes_of(cache->number(0, 1e6), mib);
  if (const auto clock = value.find("clock_mhz")) result.clock_hz = clock->number(0, 1e6) * 1e6;
  if (const auto price = value.find("price_per_hour")) result.price_per_hour = price->number(0, 1e9);
  if (const auto watts = value.find("board_watts")) result.board_watts = watts->positive(1e6);
  if (const auto generation = value.find("generation")) result.generation = generation->name();
  if (const auto memory = value.find("memory_type")) result.memory_type = memory->name();
  if (const auto lanes = value.find("lanes_per_multiprocessor")) result.lanes_per_multiprocessor = lanes->count(0);
  if (const auto calibration = value.find("calibration")) result.calibration = read_calibration(*calibration);
  if (const auto speed = value.find("speed")) std::tie(result.speed, result.class_speeds) = read_speeds(*speed);
  return result;
}

HETSCHED_INLINE nlohmann::ordered_json write_device(const device& d) {
  const auto scaled = [](double value, double unit) { return preimage(value, value / unit, [&](double x) { return x * unit; }); };
  nlohmann::ordered_json out;
  auto& peaks = out["peak_tflops"] = nlohmann::ordered_json::object();
  for (std::size_t p = 0; p < precision_count; ++p)
    if (d.peak_flops[p] > 0) peaks[std::string(precision_names[p])] = scaled(d.peak_flops[p], 1e12);
  if (d.fp8_flops > 0) peaks["fp8"] = scaled(d.fp8_flops, 1e12);
  if (d.int8_flops > 0) peaks["int8"] = scaled(d.int8_flops, 1e12);
  out["memory_gib"] = static_cast<double>(d.memory_bytes) / static_cast<double>(gib);
  out["memory_bandwidth_gb_per_s"] = scaled(d.memory_bandwidth, 1e9);
  out["multiprocessors"] = d.multiprocessors;
  out["l2_mib"] = static_cast<double>(d.l2_bytes) / static_cast<double>(mib);
  out["clock_mhz"] = scaled(d.clock_hz, 1e6);
  if (d.price_per_hour) out["price_per_hour"] = *d.price_per_hour;
  if (d.board_watts > 0) out["board_watts"] = d.board_watts;
  if (!d.generation.empty()) out["generation"] = d.generation;
  if (!d.memory_type.empty()) out["memory_type"] = d.memory_type;
  if (d.lanes_per_multiprocessor > 0) out["lanes_per_multiprocessor"] = d.lanes_per_multiprocessor;
  if (d.is_anchored()) out["speed"] = write_speeds(d.speed, d.class_speeds);
  if (d.calibration != device_calibration{}) {
    auto& calibration = out["calibration"];
    for (const auto& key : calibration_keys) calibration[key.name] = d.calibration.*key.factor;
    calibration["launch_us"] = preimage(d.calibration.launch_s, d.calibration.launch_s * 1e6, seconds_from_us);
    for (const auto& r : d.calibration.residuals)
      calibration["residuals"].push_back({{"kernel", r.kernel}, {"at", r.at}, {"weight", r.weight}});
  }
  return out;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE std::string to_json(const device& d) {
  nlohmann::ordered_json out{{"format", "hetsched/device"}, {"version", 1}};
  out.update(detail::write_device(d));
  return detail::dump(out);
}

}  // namespace hetsched
