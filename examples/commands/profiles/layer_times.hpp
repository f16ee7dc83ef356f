// SPDX-License-Identifier: Apache-2.0
// What others measured of a model's layers, as a profile.json of replicas. Memory and boundaries come from the model.
#pragma once

#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <hetsched/cost/memory/memory.hpp>
#include <hetsched/io/json/model_json.hpp>
#include <hetsched/io/json/profile_json.hpp>
#include <hetsched/io/json_reader.hpp>

#include "../command.hpp"

namespace command {

/// What one device of a tensor-parallel replica took for a microbatch, on `count` equal layers.
struct layer_times {
  std::string gpu;  ///< as the measurement calls it
  int microbatch_size = 0, tensor = 0, first_layer = 0, count = 0;
  double forward_s = 0, backward_s = 0;
  double update_s = 0;  ///< 0: not measured
};

/// What all converters are told.
struct profile_conversion {
  std::vector<std::string> measured, gpus;
  std::string model, out;
  int microbatch_size = 0;  ///< 0: all
  int sequence = 0;         ///< 0: the model's
  bool json = false;

  [[nodiscard]] std::string files() const {
    std::string all;
    for (const auto& path : measured) all += (all.empty() ? "" : ", ") + path;
    return all;
  }
  /// The devices by the names that measurements give them.
  [[nodiscard]] std::map<std::string, std::string> devices() const {
    std::map<std::string, std::string> device_of;
    for (const auto& pair : gpus) {
      const auto equals = pair.find('=');
      if (equals == std::string::npos || equals == 0 || equals + 1 == pair.size())
        throw hetsched::input_error("--gpu: found " + pair +
                                    ", expected GPU=DEVICE, a name in the measurements and a device of the cluster");
      const auto device = pair.substr(equals + 1);
      for (const auto& [gpu, other] : device_of)
        if (other == device)
          throw hetsched::input_error("--gpu: " + device + " is named for two GPUs, " + gpu + " and " + pair.substr(0, equals));
      device_of[pair.substr(0, equals)] = device;
    }
    return device_of;
  }
  [[nodiscard]] hetsched::model_file read_model() const {
    return hetsched::read_model(model, {.cut = hetsched::granularity::block, .sequence = sequence});
  }
};

/// Options behind those for the measured files.
inline void add_conversion_options(CLI::App& app, profile_conversion& given, const std::string& gpu) {
  app.add_option("--model", given.model, "model.json: the same model, with as many blocks")->required();
  app.add_option("--gpu", given.gpus, gpu)->required();
  app.add_option("--sequence", given.sequence, "tokens per sample, where the model has room for more than were measured")
      ->check(CLI::Range(1, 1 << 24));
  app.add_option("--microbatch-size", given.microbatch_size, "which times to take (all)")->check(CLI::Range(1, 1'000'000));
  app.add_option("--out", given.out, "profile.json to write")->required();
  app.add_flag("--json", given.json, "prints which files were written as JSON");
}

/// A row per device, tensor degree and microbatch size, with the memory of the model's layers. Times of other GPUs and sizes are
/// passed over; `whose` is what they are of, for the message that none is left.
[[nodiscard]] inline hetsched::replica_profile profile_of(const hetsched::model_file& model, const profile_conversion& given,
                                                          const std::vector<layer_times>& times, const std::string& whose) {
  using namespace hetsched;
  training_memory memory;
  if (model.chain.parameter_bytes == 4) memory = {.weight_bytes = 4, .gradient_bytes = 4, .optimizer_bytes = 8};
  const auto layers = model.chain.layers.size();
  const auto files = given.files();
  auto device_of = given.devices();

  std::map<std::tuple<std::string, int, int>, replica_row> rows;  // by device, tensor degree and size
  const auto text_of = [&](const replica_row& r) {
    return r.device + " with tensor degree " + std::to_string(r.tensor) + " at microbatch size " +
           std::to_string(r.microbatch_size);
  };
  std::map<std::string, int> others;
  for (const auto& t : times) {
    if (!device_of.contains(t.gpu)) ++others[t.gpu];
    if (!device_of.contains(t.gpu) || (given.microbatch_size > 0 && t.microbatch_size != given.microbatch_size)) continue;
    auto& entry = rows[{device_of[t.gpu], t.tensor, t.microbatch_size}];
    entry.device = device_of[t.gpu];
    entry.tensor = t.tensor;
    entry.microbatch_size = t.microbatch_size;
    if (static_cast<int>(entry.forward_s.size()) != t.first_layer)
      throw input_error(files + ": " + text_of(entry) + ": layer " + std::to_string(entry.forward_s.size()) + " is missing");
    entry.forward_s.insert(entry.forward_s.end(), static_cast<std::size_t>(t.count), t.forward_s);
    entry.backward_s.insert(entry.backward_s.end(), static_cast<std::size_t>(t.count), t.backward_s);
    entry.update_s.insert(entry.update_s.end(), static_cast<std::size_t>(t.count), t.update_s);
  }
  if (rows.empty())
    throw input_error(files + ": no rows" + whose +
                      (given.microbatch_size > 0 ? " at microbatch size " + std::to_string(given.microbatch_size) : "") +
                      " on these devices");

  for (const auto& [gpu, device] : device_of)
    if (std::none_of(rows.begin(), rows.end(), [&, name = device](const auto& r) { return r.second.device == name; }))
      std::cerr << "--gpu: nothing in " << files << " was measured on " << gpu << ": " << device << " has no row\n";

  for (const auto& [gpu, count] : others)
    std::cerr << files << ": " << count << " rows of " << gpu << " are left out: no --gpu names it\n";

  replica_profile result;
  for (const auto& l : model.chain.layers) result.layers.push_back({l.name, l.boundary_bytes});
  // Updates of 0 were not measured; a device tells them for all its sizes or for none.
  std::map<std::pair<std::string, int>, bool> has_updates;
  for (const auto& [key, entry] : rows) {
    const bool some = std::any_of(entry.update_s.begin(), entry.update_s.end(), [](double s) { return s > 0; });
    const auto [known, is_new] = has_updates.try_emplace({entry.device, entry.tensor}, some);
    known->second = known->second && some;
  }
  for (auto& [key, entry] : rows) {
    if (entry.forward_s.size() != layers)
      throw input_error(files + ": " + std::to_string(entry.forward_s.size()) + " layers on " + text_of(entry) + ", but " +
                        given.model + " has " + std::to_string(layers) + " (embedding, blocks, head)");
    const degrees split{.data = 1, .context = 1, .tensor = entry.tensor};
    for (std::size_t l = 0; l < layers; ++l) {
      const auto& layer = model.chain.layers[l];
      const auto parameters = checked_add(layer.parameters, layer.shared_parameters);
      entry.weight_bytes.push_back(state_bytes(parameters, split, 0, memory));
      entry.gradient_bytes.push_back(parameter_share(parameters, memory.gradient_bytes, split, 0, 2));
      entry.activation_bytes.push_back(
          activation_bytes(model.chain, static_cast<int>(l), recomputation::none, split, entry.microbatch_size));
    }
    if (!has_updates[{entry.device, entry.tensor}]) entry.update_s.clear();
    result.rows.push_back(std::move(entry));
  }
  return result;
}

/// Runs a converter: writes what `convert` makes.
[[nodiscard]] inline int run_conversion(CLI::App& app, int argc, char** argv, const profile_conversion& given,
                                        const std::function<hetsched::replica_profile()>& convert) {
  return run(app, argc, argv, [&] {
    outputs files;
    files.expect(given.out);
    files.reads(given.model);
    for (const auto& path : given.measured) files.reads(path);
    files.add(given.out, to_json(convert()));
    files.write();
    std::cout << (given.json ? hetsched::detail::dump(nlohmann::ordered_json{{"files", files.paths()}}) : files.summary());
    return done;
  });
}

}  // namespace command
