// SPDX-License-Identifier: Apache-2.0
// sailor-to-profile: turns measured layer times into a profile.json. Memory and boundaries come from the model.
#include <charconv>
#include <iostream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/cost/memory.hpp>
#include <hetsched/io.hpp>

#include "command.hpp"

namespace {

using namespace hetsched;

struct arguments {
  std::string csv, measured_model, model, out;
  std::vector<std::string> gpus;
  int microbatch_size = 1;
};

/// One line of the CSV: equal neighbours are one line.
struct row {
  std::string model, gpu;
  int microbatch_size = 0, tensor = 0, first_layer = 0, count = 0;
  double forward_s = 0, backward_s = 0;
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
                       .backward_s = number<double>(cells[7])});
      if (!(found.back().forward_s >= 0 && found.back().backward_s >= 0 &&
            found.back().forward_s + found.back().backward_s < 1e6))
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

profile convert(const arguments& given) {
  const auto model = read_model(given.model, {.cut = granularity::block});
  training_memory memory;
  if (model.chain.parameter_bytes == 4) memory = {.weight_bytes = 4, .gradient_bytes = 4, .optimizer_bytes = 8};
  const auto layers = model.chain.layers.size();

  std::map<std::string, std::string> device_of;
  for (const auto& pair : given.gpus) {
    const auto equals = pair.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == pair.size())
      throw input_error("--gpu: found " + pair + ", expected GPU=DEVICE, a name in the CSV and a device of the cluster");
    device_of[pair.substr(0, equals)] = pair.substr(equals + 1);
  }

  profile result;
  for (const auto& l : model.chain.layers)
    result.layers.push_back({l.name, checked_mul(l.boundary_bytes, given.microbatch_size)});
  std::map<std::pair<std::string, int>, std::size_t> entry_of;
  for (const auto& r : csv_reader(given.csv).rows()) {
    if (r.model != given.measured_model || r.microbatch_size != given.microbatch_size || !device_of.contains(r.gpu)) continue;
    const auto [place, is_new] = entry_of.try_emplace({r.gpu, r.tensor}, result.entries.size());
    if (is_new) {
      profile_entry entry;
      entry.device = device_of[r.gpu];
      entry.devices = r.tensor;
      entry.degrees = degrees{.data = 1, .context = 1, .tensor = r.tensor};
      for (std::size_t l = 0; l < layers; ++l) {
        const auto& layer = model.chain.layers[l];
        entry.weight_bytes.push_back(
            state_bytes(checked_add(layer.parameters, layer.shared_parameters), *entry.degrees, 0, memory));
        entry.activation_bytes.push_back(
            activation_bytes(model.chain, static_cast<int>(l), recomputation::none, *entry.degrees, given.microbatch_size));
      }
      result.entries.push_back(std::move(entry));
    }
    auto& entry = result.entries[place->second];
    if (static_cast<int>(entry.forward_s.size()) != r.first_layer)
      throw input_error(given.csv + ": " + r.gpu + " with tensor degree " + std::to_string(r.tensor) + ": layer " +
                        std::to_string(entry.forward_s.size()) + " is missing");
    entry.forward_s.insert(entry.forward_s.end(), static_cast<std::size_t>(r.count), r.forward_s);
    entry.backward_s.insert(entry.backward_s.end(), static_cast<std::size_t>(r.count), r.backward_s);
  }
  if (result.entries.empty())
    throw input_error(given.csv + ": no rows of " + given.measured_model + " at microbatch size " +
                      std::to_string(given.microbatch_size) + " on these devices");
  for (const auto& entry : result.entries)
    if (entry.forward_s.size() != layers)
      throw input_error(given.csv + ": " + std::to_string(entry.forward_s.size()) + " layers on " + entry.device + ", but " +
                        given.model + " has " + std::to_string(layers) + " (embedding, blocks, head)");
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Turns measured layer times (CSV) into a profile.json; memory and boundaries come from the model.",
               "sailor-to-profile");
  arguments given;
  app.add_option("--csv", given.csv, "rows model,gpu,mbs,tp,first_layer,num_identical_layers,fwd_s,bwd_s,update_s")->required();
  app.add_option("--measured-model", given.measured_model, "the model's name in the CSV")->required();
  app.add_option("--model", given.model, "model.json: the same model, with as many blocks")->required();
  app.add_option("--gpu", given.gpus, "GPU=DEVICE: a name in the CSV and the device that it is; may be repeated")->required();
  app.add_option("--microbatch-size", given.microbatch_size, "which rows to take")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--out", given.out, "profile.json to write")->required();
  return command::run(app, argc, argv, [&] {
    command::outputs files;
    files.expect(given.out);
    for (const auto& path : {given.csv, given.model}) files.reads(path);
    files.add(given.out, to_json(convert(given)));
    files.write();
    std::cout << files.summary();
    return command::done;
  });
}
