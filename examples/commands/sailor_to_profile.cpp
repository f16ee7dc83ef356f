// SPDX-License-Identifier: Apache-2.0
// sailor-to-profile: turns measured layer times into a profile.json of replicas. Memory and boundaries come from the model.
#include <algorithm>
#include <charconv>
#include <iostream>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <nlohmann/json.hpp>

#include <hetsched/cost/memory/memory.hpp>
#include <hetsched/io.hpp>

#include "command.hpp"

namespace {

using namespace hetsched;

struct arguments {
  std::string csv, measured_model, model, out;
  std::vector<std::string> gpus;
  int microbatch_size = 0;  ///< 0: all
};

/// One line of the CSV: equal neighbours are one line.
struct row {
  std::string model, gpu;
  int microbatch_size = 0, tensor = 0, first_layer = 0, count = 0;
  double forward_s = 0, backward_s = 0, update_s = 0;
};

class csv_reader {
 public:
  explicit csv_reader(std::string path) : path_(std::move(path)) {}

  std::vector<row> rows() {
    const auto text = read_text(path_);
    constexpr std::string_view heading = "model,gpu,mbs,tp,first_layer,num_identical_layers,fwd_s,bwd_s,update_s";
    std::vector<row> found;
    std::string_view rest = text;
    for (line_ = 1; !rest.empty(); ++line_) {
      const auto end = std::min(rest.find('\n'), rest.size());
      auto line = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line_ == 1 && line != heading) fail("expected the heading " + std::string(heading));
      if (line_ == 1 || line.empty()) continue;
      std::vector<std::string_view> cells;
      for (std::size_t begin = 0; begin <= line.size();) {
        const auto comma = std::min(line.find(',', begin), line.size());
        cells.push_back(line.substr(begin, comma - begin));
        begin = comma + 1;
      }
      if (cells.size() != 9) fail("found " + std::to_string(cells.size()) + " cells, expected 9");
      found.push_back({.model = std::string(cells[0]),
                       .gpu = std::string(cells[1]),
                       .microbatch_size = count(cells[2], 1),
                       .tensor = count(cells[3], 1),
                       .first_layer = count(cells[4], 0),
                       .count = count(cells[5], 1),
                       .forward_s = number<double>(cells[6]),
                       .backward_s = number<double>(cells[7]),
                       .update_s = number<double>(cells[8])});
      const auto& times = found.back();
      if (!(times.forward_s >= 0 && times.backward_s >= 0 && times.update_s >= 0 &&
            times.forward_s + times.backward_s + times.update_s < 1e6))
        fail("expected times from 0 to 1e6 seconds");
    }
    return found;
  }

 private:
  [[noreturn]] void fail(const std::string& complaint) const {
    throw input_error(path_ + ": line " + std::to_string(line_) + ": " + complaint);
  }

  template <class T>
  [[nodiscard]] T number(std::string_view cell) const {
    T value{};
    const auto [end, wrong] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
    if (wrong != std::errc{} || end != cell.data() + cell.size()) fail("found " + std::string(cell) + ", expected a number");
    return value;
  }

  [[nodiscard]] int count(std::string_view cell, int least) const {
    const int value = number<int>(cell);
    if (value < least || value > max_layers)
      fail("found " + std::string(cell) + ", expected a count from " + std::to_string(least));
    return value;
  }

  std::string path_;
  int line_ = 0;
};

/// One row per GPU, tensor degree and microbatch size, with the memory of the model's layers.
replica_profile convert(const arguments& given) {
  const auto model = read_model(given.model, {.cut = granularity::block});
  training_memory memory;
  if (model.chain.parameter_bytes == 4) memory = {.weight_bytes = 4, .gradient_bytes = 4, .optimizer_bytes = 8};
  const auto layers = model.chain.layers.size();

  std::map<std::string, std::string> device_of;
  for (const auto& pair : given.gpus) {
    const auto equals = pair.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == pair.size())
      throw input_error("--gpu: found " + pair + ", expected GPU=DEVICE, a name in the CSV and a device of the cluster");
    const auto device = pair.substr(equals + 1);
    for (const auto& [gpu, other] : device_of)
      if (other == device)
        throw input_error("--gpu: " + device + " is named for two GPUs, " + gpu + " and " + pair.substr(0, equals));
    device_of[pair.substr(0, equals)] = device;
  }

  std::map<std::tuple<std::string, int, int>, replica_row> rows;  // by device, tensor degree and size
  const auto text_of = [&](const replica_row& r) {
    return r.device + " with tensor degree " + std::to_string(r.tensor) + " at microbatch size " +
           std::to_string(r.microbatch_size);
  };
  for (const auto& r : csv_reader(given.csv).rows()) {
    if (r.model != given.measured_model || !device_of.contains(r.gpu) ||
        (given.microbatch_size > 0 && r.microbatch_size != given.microbatch_size))
      continue;
    auto& entry = rows[{device_of[r.gpu], r.tensor, r.microbatch_size}];
    entry.device = device_of[r.gpu];
    entry.tensor = r.tensor;
    entry.microbatch_size = r.microbatch_size;
    if (static_cast<int>(entry.forward_s.size()) != r.first_layer)
      throw input_error(given.csv + ": " + text_of(entry) + ": layer " + std::to_string(entry.forward_s.size()) + " is missing");
    entry.forward_s.insert(entry.forward_s.end(), static_cast<std::size_t>(r.count), r.forward_s);
    entry.backward_s.insert(entry.backward_s.end(), static_cast<std::size_t>(r.count), r.backward_s);
    entry.update_s.insert(entry.update_s.end(), static_cast<std::size_t>(r.count), r.update_s);
  }
  if (rows.empty())
    throw input_error(given.csv + ": no rows of " + given.measured_model +
                      (given.microbatch_size > 0 ? " at microbatch size " + std::to_string(given.microbatch_size) : "") +
                      " on these devices");

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
      throw input_error(given.csv + ": " + std::to_string(entry.forward_s.size()) + " layers on " + text_of(entry) + ", but " +
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

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(command::about("sailor-to-profile"), "sailor-to-profile");
  app.footer(
      "sailor-to-profile --csv measured.csv --measured-model GPT-Neo-2.7 --model model.json \\\n"
      "    --gpu V100-16=V100-SXM2-16GB --out profile.json");
  arguments given;
  app.add_option("--csv", given.csv, "rows model,gpu,mbs,tp,first_layer,num_identical_layers,fwd_s,bwd_s,update_s")->required();
  app.add_option("--measured-model", given.measured_model, "the model's name in the CSV")->required();
  app.add_option("--model", given.model, "model.json: the same model, with as many blocks")->required();
  app.add_option("--gpu", given.gpus, "GPU=DEVICE: a name in the CSV and the device that it is; may be repeated")->required();
  app.add_option("--microbatch-size", given.microbatch_size, "which rows to take (all)")->check(CLI::Range(1, 1'000'000));
  app.add_option("--out", given.out, "profile.json to write")->required();
  bool json = false;
  app.add_flag("--json", json, "prints which files were written as JSON");
  return command::run(app, argc, argv, [&] {
    command::outputs files;
    files.expect(given.out);
    for (const auto& path : {given.csv, given.model}) files.reads(path);
    files.add(given.out, to_json(convert(given)));
    files.write();
    std::cout << (json ? hetsched::detail::dump(nlohmann::ordered_json{{"files", files.paths()}}) : files.summary());
    return command::done;
  });
}
