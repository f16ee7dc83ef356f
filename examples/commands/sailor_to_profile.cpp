// SPDX-License-Identifier: Apache-2.0
// sailor-to-profile: turns measured layer times, Sailor's own profile.json or rows of a CSV, into a profile.json of replicas.
// Memory and boundaries come from the model.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <hetsched/io/json/profile_json.hpp>
#include <hetsched/io/json_reader.hpp>
#include <hetsched/io/operators_csv.hpp>

#include "profiles/layer_times.hpp"

namespace {

using namespace hetsched;

struct arguments : command::profile_conversion {
  std::string measured_model;
};

/// One line of the CSV: equal neighbours are one line.
struct row {
  std::string model;
  command::layer_times times;
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
                       .times = {.gpu = std::string(cells[1]),
                                 .microbatch_size = count(cells[2], 1),
                                 .tensor = count(cells[3], 1),
                                 .first_layer = count(cells[4], 0),
                                 .count = count(cells[5], 1),
                                 .forward_s = number<double>(cells[6]),
                                 .backward_s = number<double>(cells[7]),
                                 .update_s = number<double>(cells[8])}});
      const auto& times = found.back().times;
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
                 .try_emplace({size, tensor, layer},
                              row{model, {gpu, size, tensor, layer, 1, seconds(0), seconds(1), seconds(2)}})
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

replica_profile convert(const arguments& given) {
  const auto model = given.read_model();
  std::vector<command::layer_times> times;
  for (const auto& r : measured_rows(given, given.devices()))
    if (r.model == given.measured_model) times.push_back(r.times);
  return profile_of(model, given, times, given.measured_model.empty() ? "" : " of " + given.measured_model);
}

}  // namespace

int main(int argc, char** argv) {
  command::application app(command::about("sailor-to-profile"), "sailor-to-profile");
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
  add_conversion_options(
      app, given,
      "GPU=DEVICE: a name in the CSV, or of the folder of a profile.json, and the device that it is; may be repeated");
  return command::run_conversion(app, argc, argv, given, [&] { return convert(given); });
}
