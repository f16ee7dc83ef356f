// SPDX-License-Identifier: Apache-2.0
// metis-to-profile: turns the profiles that Metis reads (DeviceType.GPU_tpN_bsN.json) into a profile.json of replicas.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <vector>

#include <hetsched/io/json/profile_json.hpp>
#include <hetsched/io/json_reader.hpp>

#include "profiles/layer_times.hpp"

namespace {

using namespace hetsched;

/// What the name of a file says of it.
struct measured_at {
  std::string gpu;
  int tensor = 0, microbatch_size = 0;
};

[[nodiscard]] measured_at measured_at_of(const std::string& path) {
  const auto name = std::filesystem::path(path).filename().string();
  const std::string_view text = name;
  constexpr std::string_view front = "DeviceType.", back = ".json";
  const auto tp = text.rfind("_tp"), bs = text.rfind("_bs");
  const auto number = [](std::string_view digits) {
    int value = 0;
    const auto [end, wrong] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return wrong == std::errc{} && end == digits.data() + digits.size() ? value : 0;
  };
  measured_at at;
  if (text.starts_with(front) && text.ends_with(back) && tp != text.npos && bs != text.npos && tp > front.size() && tp < bs)
    at = {.gpu = std::string(text.substr(front.size(), tp - front.size())),
          .tensor = number(text.substr(tp + 3, bs - tp - 3)),
          .microbatch_size = number(text.substr(bs + 3, text.size() - back.size() - bs - 3))};
  if (at.tensor < 1 || at.microbatch_size < 1 || at.tensor > max_replica_devices || at.microbatch_size > 1'000'000)
    throw input_error(path + ": expected a name as Metis has it, DeviceType.GPU_tpN_bsN.json: GPU, tensor degree, batch size");
  return at;
}

/// The times of one file. What forward and backward of all layers took beyond each layer's is the loss, which Metis gives to the
/// last stage; an update is shared out by parameters, as it is bound by memory.
void add_times(std::vector<command::layer_times>& all, const std::string& path) {
  const auto at = measured_at_of(path);
  const hetsched::detail::json_document document(read_text(path), path);
  const auto top = document.value().object();
  const auto times = top.at("execution_time").object();
  const auto layers = times.at("layer_compute_total_ms");
  constexpr double most_ms = 1e9;
  auto ms = layers.list([](const auto& value) { return value.number(0, most_ms); });
  if (ms.size() < 2) layers.expected("a number for each layer: embedding, blocks, head");
  const auto bytes_of = top.at("model").at("parameters").at("parameters_per_layer_bytes");
  const auto bytes = bytes_of.sized(ms.size(), "layer").list([](const auto& value) { return value.number(); });
  double sum_ms = 0, sum_bytes = 0;
  for (const double m : ms) sum_ms += m;
  for (const double b : bytes) sum_bytes += b;
  if (const auto whole = times.find("forward_backward_time_ms")) ms.back() += std::max(0.0, whole->number(0, most_ms) - sum_ms);
  const auto update = times.find("optimizer_time_ms");
  const double update_s = update && sum_bytes > 0 ? update->number(0, most_ms) / 1e3 : 0;
  for (std::size_t l = 0; l < ms.size(); ++l)
    all.push_back({.gpu = at.gpu,
                   .microbatch_size = at.microbatch_size,
                   .tensor = at.tensor,
                   .first_layer = static_cast<int>(l),
                   .count = 1,
                   .forward_s = ms[l] / 1e3 / 3,
                   .backward_s = ms[l] / 1e3 * 2 / 3,
                   .update_s = update_s > 0 ? update_s * bytes[l] / sum_bytes : 0});
}

replica_profile convert(const command::profile_conversion& given) {
  const auto device_of = given.devices();
  std::vector<command::layer_times> times;
  std::map<std::tuple<std::string, int, int>, std::string> known;
  for (const auto& path : given.measured) {
    const auto at = measured_at_of(path);
    if (!device_of.contains(at.gpu))
      throw input_error(path + ": no --gpu says which device " + at.gpu + " is, as in --gpu " + at.gpu + "=A100-SXM4-40GB");
    const auto [other, is_new] = known.try_emplace({at.gpu, at.tensor, at.microbatch_size}, path);
    if (!is_new) throw input_error(path + ": measures what " + other->second + " measures");
    add_times(times, path);
  }
  return profile_of(given.read_model(), given, times, "");
}

}  // namespace

int main(int argc, char** argv) {
  command::application app(command::about("metis-to-profile"), "metis-to-profile");
  app.footer(
      "metis-to-profile --measured DeviceType.A100_tp1_bs1.json DeviceType.A100_tp2_bs1.json \\\n"
      "    --model model.json --gpu A100=A100-SXM4-40GB --out profile.json");
  command::profile_conversion given;
  app.add_option("--measured", given.measured, "Metis's files DeviceType.GPU_tpN_bsN.json, as many as there are")->required();
  add_conversion_options(app, given, "GPU=DEVICE: a name in the files' names, and the device that it is; may be repeated");
  return command::run_conversion(app, argc, argv, given, [&] { return convert(given); });
}
