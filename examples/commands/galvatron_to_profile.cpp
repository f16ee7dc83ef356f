// SPDX-License-Identifier: Apache-2.0
// galvatron-to-profile: turns the times that Galvatron's profiler writes (computation_profiling_*.json) into a profile.json of
// replicas.
#include <charconv>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <hetsched/io/json/profile_json.hpp>
#include <hetsched/io/json_reader.hpp>

#include "profiles/layer_times.hpp"

namespace {

using namespace hetsched;

/// Milliseconds of forward for one sample: of a block, and of all that is no block.
struct forward_ms {
  std::optional<double> block, other;
};

/// `layertype_0_bsz8_seq2048` of a name's parts.
struct key_parts {
  std::string_view layer;
  int batch = 0, sequence = 0;
};

[[nodiscard]] std::optional<key_parts> parts_of(std::string_view key) {
  const auto bsz = key.find("_bsz"), seq = key.find("_seq");
  if (bsz == key.npos || seq == key.npos || seq < bsz) return std::nullopt;
  key_parts parts{.layer = key.substr(0, bsz)};
  constexpr int most = 1'000'000;  // that a profile may have
  const auto number = [](std::string_view digits, int& value) {
    const auto [end, wrong] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return wrong == std::errc{} && end == digits.data() + digits.size() && value > 0 && value <= most;
  };
  if (!number(key.substr(bsz + 4, seq - bsz - 4), parts.batch) || !number(key.substr(seq + 4), parts.sequence))
    return std::nullopt;
  return parts;
}

/// By batch size, for samples of that many tokens.
[[nodiscard]] std::map<int, forward_ms> times_of(const std::string& path, int sequence) {
  const hetsched::detail::json_document document(read_text(path), path);
  std::map<int, forward_ms> found;
  std::set<int> others;
  document.value().object().members([&](const std::string& key, const hetsched::detail::json_value& value) {
    const auto parts = parts_of(key);
    if (!parts) value.fail("expected a key as in layertype_0_bsz8_seq2048");
    if (parts->layer.starts_with("layernum")) return;  // of several blocks together, of which the others are made
    if (parts->layer != "layertype_0" && parts->layer != "layertype_other")
      value.fail("expected layertype_0 or layertype_other: blocks of several kinds are not taken");
    if (parts->sequence != sequence) {
      others.insert(parts->sequence);
      return;
    }
    auto& ms = found[parts->batch];
    (parts->layer == "layertype_0" ? ms.block : ms.other) = value.number(0, 1e9);
  });
  std::string lengths;
  for (const int other : others) lengths += (lengths.empty() ? "" : ", ") + std::to_string(other);
  if (found.empty())
    throw input_error(path + ": no times of layertype_0 for samples of " + std::to_string(sequence) + " tokens" +
                      (lengths.empty() ? "; Galvatron's profiler writes them when it processes what it measured"
                                       : ", only of " + lengths + ": --sequence takes one"));
  for (const auto& [batch, ms] : found)
    if (!ms.block || !ms.other)
      throw input_error(path + ": /layertype_" + (ms.block ? "other" : "0") + "_bsz" + std::to_string(batch) + "_seq" +
                        std::to_string(sequence) + " is missing");
  if (!lengths.empty())
    std::cerr << path << ": times of samples of " << lengths << " tokens are left out, the model's have " << sequence << '\n';
  return found;
}

replica_profile convert(const command::profile_conversion& given) {
  const auto device_of = given.devices();
  if (device_of.size() != given.measured.size())
    throw input_error(
        "--gpu: expected one for each --measured, in their order, as the files do not tell where they were measured");
  const auto model = given.read_model();
  if (!model.family) throw input_error(given.model + ": expected a transformer, whose blocks are alike");
  const int blocks = static_cast<int>(model.chain.layers.size()) - 2;
  std::vector<command::layer_times> times;
  for (std::size_t i = 0; i < given.measured.size(); ++i) {
    const auto gpu = given.gpus[i].substr(0, given.gpus[i].find('='));
    for (const auto& [batch, ms] : times_of(given.measured[i], model.family->sequence)) {
      // Of what is no block, the embedding is a look-up beside the product of the head.
      const auto add = [&, size = batch](int first, int count, double forward_s) {
        times.push_back({.gpu = gpu,
                         .microbatch_size = size,
                         .tensor = 1,
                         .first_layer = first,
                         .count = count,
                         .forward_s = forward_s,
                         .backward_s = 2 * forward_s});
      };
      add(0, 1, 0);
      add(1, blocks, *ms.block * batch / 1e3);
      add(1 + blocks, 1, *ms.other * batch / 1e3);
    }
  }
  return profile_of(model, given, times, "");
}

}  // namespace

int main(int argc, char** argv) {
  command::application app(command::about("galvatron-to-profile"), "galvatron-to-profile");
  app.footer(
      "galvatron-to-profile --measured computation_profiling_bf16_llama2-7b_all.json \\\n"
      "    --model config.json --sequence 2048 --gpu A100=A100-SXM4-40GB --out profile.json");
  command::profile_conversion given;
  app.add_option("--measured", given.measured, "Galvatron's computation_profiling_*.json; with several, a --gpu for each")
      ->required();
  add_conversion_options(app, given, "GPU=DEVICE: any name for where a file was measured, and the device that it is; one a file");
  return command::run_conversion(app, argc, argv, given, [&] { return convert(given); });
}
