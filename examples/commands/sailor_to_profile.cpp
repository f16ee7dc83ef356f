// SPDX-License-Identifier: Apache-2.0
// sailor-to-profile: turns measured layer times, Sailor's own profile.json or rows of a CSV, into a profile.json of replicas.
// Memory and boundaries come from the model.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
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
  std::vector<std::string> measured, gpus;
  std::string measured_model, model, out;
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

  std::vector<row> rows(std::string_view text) {
    if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
    constexpr std::string_view heading = "model,gpu,mbs,tp,first_layer,num_identical_layers,fwd_s,bwd_s,update_s";
    std::vector<row> found;
    std::string_view rest = text;
    for (line_ = 1; !rest.empty(); ++line_) {
      const auto end = std::min(rest.find('\n'), rest.size());
      auto line = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      if (line.ends_with('\r')) line.remove_suffix(1);
      const auto cells = hetsched::detail::csv_cells(line);
      if (line_ == 1 && cells != hetsched::detail::csv_cells(heading))
        fail("expected the heading " + std::string(heading) + ", or a profile.json of Sailor's");
      if (line_ == 1 || line.empty()) continue;
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
    const auto value = number<double>(cell);  // dataframes write 4.0
    if (value != std::floor(value) || value < least || value > max_layers)
      fail("found " + std::string(cell) + ", expected a count from " + std::to_string(least));
    return static_cast<int>(value);
  }

  std::string path_;
  int line_ = 0;
};

/// Rows of the file that Sailor writes for one model on one GPU: by microbatch size, tensor degree and layer the seconds of
/// forward, backward and update.
[[nodiscard]] std::vector<row> sailor_rows(std::string_view text, const std::string& path, const std::string& model,
                                           const std::string& gpu) {
  const hetsched::detail::json_document document(text, path);
  const auto key_of = [](const std::string& key, const hetsched::detail::json_value& value, int least, const char* what) {
    int number = -1;
    const auto [end, wrong] = std::from_chars(key.data(), key.data() + key.size(), number);
    if (wrong != std::errc{} || end != key.data() + key.size() || number < least || number > max_layers)
      value.fail(std::string("expected ") + what + " as key");
    return number;
  };
  std::map<std::tuple<int, int, int>, row> sorted;  // numbers as texts are in another order
  document.value().members([&](const std::string& size_key, const hetsched::detail::json_value& degrees) {
    const int size = key_of(size_key, degrees, 1, "a microbatch size");
    degrees.object().members([&](const std::string& tensor_key, const hetsched::detail::json_value& layers) {
      const int tensor = key_of(tensor_key, layers, 1, "a tensor degree");
      layers.object().members([&](const std::string& layer_key, const hetsched::detail::json_value& times) {
        const int layer = key_of(layer_key, times, 0, "a layer");
        times.sized(3, "forward, backward and update");
        const auto seconds = [&](std::size_t i) { return times[i].number(0, 1e6); };
        if (!sorted
                 .try_emplace({size, tensor, layer}, row{model, gpu, size, tensor, layer, 1, seconds(0), seconds(1), seconds(2)})
                 .second)
          times.fail("the layer is there twice");
      });
    });
  });
  std::vector<row> rows;
  for (const auto& [key, value] : sorted) rows.push_back(value);
  return rows;
}

/// The rows of all files. A profile.json of Sailor's lies in a folder of the GPU's name, or there is one GPU.
[[nodiscard]] std::vector<row> measured_rows(const arguments& given, const std::map<std::string, std::string>& device_of) {
  std::vector<row> all;
  for (const auto& path : given.measured) {
    const auto text = read_text(path);
    const auto first = text.find_first_not_of(" \t\r\n");
    std::vector<row> rows;
    if (first != std::string::npos && text[first] == '{') {
      const auto folder = std::filesystem::path(path).parent_path().filename().string();
      const auto named = device_of.find(folder);
      if (named == device_of.end() && device_of.size() != 1)
        throw input_error(path + ": which GPU was it measured on? No --gpu names its folder, " + (folder.empty() ? "." : folder) +
                          "; give a single --gpu, or put the file in a folder with the GPU's name, as Sailor does");
      rows = sailor_rows(text, path, given.measured_model, named == device_of.end() ? device_of.begin()->first : folder);
    } else {
      if (given.measured_model.empty()) throw input_error(path + " is a CSV, whose rows are chosen by --measured-model");
      rows = csv_reader(path).rows(text);
    }
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

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
  std::string files;
  for (const auto& path : given.measured) files += (files.empty() ? "" : ", ") + path;
  for (const auto& r : measured_rows(given, device_of)) {
    if (r.model != given.measured_model || !device_of.contains(r.gpu) ||
        (given.microbatch_size > 0 && r.microbatch_size != given.microbatch_size))
      continue;
    auto& entry = rows[{device_of[r.gpu], r.tensor, r.microbatch_size}];
    entry.device = device_of[r.gpu];
    entry.tensor = r.tensor;
    entry.microbatch_size = r.microbatch_size;
    if (static_cast<int>(entry.forward_s.size()) != r.first_layer)
      throw input_error(files + ": " + text_of(entry) + ": layer " + std::to_string(entry.forward_s.size()) + " is missing");
    entry.forward_s.insert(entry.forward_s.end(), static_cast<std::size_t>(r.count), r.forward_s);
    entry.backward_s.insert(entry.backward_s.end(), static_cast<std::size_t>(r.count), r.backward_s);
    entry.update_s.insert(entry.update_s.end(), static_cast<std::size_t>(r.count), r.update_s);
  }
  if (rows.empty())
    throw input_error(files + ": no rows of " + given.measured_model +
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

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(command::about("sailor-to-profile"), "sailor-to-profile");
  app.footer(
      "sailor-to-profile --csv OPT-350/A100-40/profile.json --csv OPT-350/V100-16/profile.json \\\n"
      "    --model model.json --gpu A100-40=A100-SXM4-40GB --gpu V100-16=V100-SXM2-16GB \\\n"
      "    --out profile.json\n"
      "sailor-to-profile --csv measured.csv --measured-model GPT-Neo-2.7 --model model.json \\\n"
      "    --gpu V100-16=V100-SXM2-16GB --out profile.json");
  arguments given;
  app.add_option("--csv", given.measured,
                 "Sailor's profile.json of a GPU, which its folder names, or rows "
                 "model,gpu,mbs,tp,first_layer,num_identical_layers,fwd_s,bwd_s,update_s; may be repeated")
      ->required();
  app.add_option("--measured-model", given.measured_model,
                 "the model's name in the CSV; Sailor's profile.json is of one model and needs no name");
  app.add_option("--model", given.model, "model.json: the same model, with as many blocks")->required();
  app.add_option("--gpu", given.gpus,
                 "GPU=DEVICE: a name in the CSV, or of the folder of a profile.json, and the device that it is; may be repeated")
      ->required();
  app.add_option("--microbatch-size", given.microbatch_size, "which rows to take (all)")->check(CLI::Range(1, 1'000'000));
  app.add_option("--out", given.out, "profile.json to write")->required();
  bool json = false;
  app.add_flag("--json", json, "prints which files were written as JSON");
  return command::run(app, argc, argv, [&] {
    command::outputs files;
    files.expect(given.out);
    files.reads(given.model);
    for (const auto& path : given.measured) files.reads(path);
    files.add(given.out, to_json(convert(given)));
    files.write();
    std::cout << (json ? hetsched::detail::dump(nlohmann::ordered_json{{"files", files.paths()}}) : files.summary());
    return command::done;
  });
}
