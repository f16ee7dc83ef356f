// SPDX-License-Identifier: Apache-2.0
// hetsched-import-onnx: an ONNX model's operators as the layers of a model.json.
#include <charconv>
#include <fstream>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <hetsched/io/format.hpp>
#include <hetsched/io/json/model_json.hpp>
#include <hetsched/model/graph_layers.hpp>

#include "../command.hpp"
#include "import.hpp"

namespace {

using namespace hetsched;

struct arguments {
  std::string model, out, operators, dtype = "fp16";
  std::vector<std::string> samples;
  graph_layer_options cut;
  bool json = false;
};

// NAME=1,128: what stands before the last '=' is the name.
void read_sample(const std::string& text, onnx_import::options& options) {
  const auto fail = [&] {
    throw input_error("--sample: found " + text + ", expected NAME=SIZE,SIZE,... with sizes of at least 1");
  };
  const auto equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0) fail();
  std::vector<std::int64_t> sizes;
  for (auto begin = equals + 1; begin <= text.size();) {
    const auto comma = std::min(text.find(',', begin), text.size());
    std::int64_t size = 0;
    const auto [end, wrong] = std::from_chars(text.data() + begin, text.data() + comma, size);
    if (wrong != std::errc{} || end != text.data() + comma || size < 1) fail();
    sizes.push_back(size);
    begin = comma + 1;
  }
  if (!options.samples.emplace(text.substr(0, equals), sizes).second) fail();
}

int import(const arguments& given) {
  command::outputs files;
  files.expect(given.out);
  files.expect(given.operators);
  files.reads(given.model);
  onnx_import::options options{.format = given.dtype == "bf16" ? number_format::bf16 : number_format::fp16};
  for (const auto& sample : given.samples) read_sample(sample, options);
  std::ifstream file(given.model == "-" ? "/dev/stdin" : given.model, std::ios::binary);
  if (!file) throw input_error(given.model + ": cannot be opened");
  const auto model = [&] {
    try {
      return onnx_import::import_model(file, options);
    } catch (const input_error& wrong) {
      throw input_error(given.model + ": " + wrong.what());
    }
  }();
  for (const auto& warning : model.warnings) std::cerr << "hetsched-import-onnx: " << given.model << ": " << warning << '\n';
  const auto layers = make_layers(model.graph, given.cut);
  files.add(given.out, to_model_json(layers.chain));
  if (!given.operators.empty()) files.add(given.operators, onnx_import::operators_csv(model.graph));
  double forward = 0;
  for (const auto& l : layers.chain.layers) forward += l.forward_flops;
  files.write();
  if (given.json) {
    std::cout << hetsched::detail::dump(nlohmann::ordered_json{{"operators", model.graph.size()},
                                                               {"parameters", parameter_count(layers.chain)},
                                                               {"forward_flops", forward},
                                                               {"layers", layers.chain.size()},
                                                               {"files", files.paths()}});
    return command::done;
  }
  std::cout << model.graph.size() << " operators, " << parameter_count(layers.chain) << " parameters, "
            << format_number(forward / 1e9) << " GFLOP forward per sample\n"
            << layers.chain.size() << " layers\n"
            << files.summary();
  return command::done;
}

}  // namespace

int main(int argc, char** argv) {
  command::application app(command::about("hetsched-import-onnx"), "hetsched-import-onnx");
  app.footer("hetsched-import-onnx model.onnx --out model.json");
  arguments given;
  app.add_option("model", given.model, "the ONNX file; files with its weights need not be there")->required();
  app.add_option("--out", given.out, "model.json to write")->required();
  app.add_option("--sample", given.samples, "NAME=1,SIZE,...: sizes of the input NAME for one sample; may be repeated");
  app.add_option("--layers", given.cut.layers, "about so many layers; 0 leaves repeated modules whole")
      ->check(CLI::Range(0, 100'000))
      ->capture_default_str();
  app.add_option("--products", given.cut.products, "matrix products that a repeated module has at least")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--tolerance", given.cut.tolerance, "by which a layer's FLOPs may exceed an equal share")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--dtype", given.dtype, "how operators are stored and multiplied")
      ->check(CLI::IsMember({"fp16", "bf16"}))
      ->capture_default_str();
  app.add_option("--operators", given.operators, "CSV to write: the operators of forward, for hetsched-predict");
  app.add_flag("--json", given.json, "prints the result as JSON");
  return command::run(app, argc, argv, [&] { return import(given); });
}
