// SPDX-License-Identifier: Apache-2.0
// hetsched-profile: times a small GPT's layers and the links between ranks, for hetsched-plan; or operators, for
// hetsched-calibrate.
#include <algorithm>
#include <cstddef>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <hetsched/io/format.hpp>
#include <hetsched/io/json/cluster_json.hpp>
#include <hetsched/io/json/profile_json.hpp>

#include <train/boundaries.hpp>
#include <train/cuda.hpp>
#include <train/device.hpp>
#include <train/measure.hpp>
#include <train/model.hpp>
#include <train/operators.hpp>

#include "command.hpp"
#include "skipped_rows.hpp"

namespace {

using namespace hetsched;

struct arguments {
  train::model_arguments model;
  train::place_arguments place;
  train::measure_arguments how;
  std::string text, profile, cluster, model_out, operators, operators_out, device = "cpu", products = "bf16";
  std::optional<std::string> boundaries;
  bool strict = false, json = false;
};

std::string times_cell(const measured_time& t) { return format_seconds(t.median_s) + " (" + format_seconds(t.spread_s) + ")"; }

std::string tables(const train::measuring& m, const replica_profile& costs) {
  std::string text;
  const auto& sizes = m.how.microbatch_sizes;
  const auto& tensors = m.how.tensors;
  for (const auto& group : m.found.groups)
    for (std::size_t i = 0; i < tensors.size() * sizes.size(); ++i) {
      const int tensor = tensors[i / sizes.size()], size = sizes[i % sizes.size()];
      const auto& layers = m.found.layers[static_cast<std::size_t>(group.first)][i];
      std::vector<std::vector<std::string>> rows;
      for (std::size_t l = 0; l < layers.size(); ++l) {
        if (l > 0 && train::layer_kind(m.config, static_cast<int>(l)) == train::layer_kind(m.config, static_cast<int>(l) - 1)) {
          rows.back()[0] = costs.layers[1].name + " to " + costs.layers[l].name;  // equal, and measured together
          continue;
        }
        rows.push_back({costs.layers[l].name, times_cell(layers[l].forward), times_cell(layers[l].backward),
                        format_bytes(layers[l].parameter_bytes), format_bytes(layers[l].output_bytes)});
      }
      const auto title = group.name() + (tensor > 1 ? ", tensor " + std::to_string(tensor) : "") +
                         (sizes.size() > 1 ? ", microbatches of " + std::to_string(size) : "");
      text += format_table({title, ">forward (spread)", ">backward (spread)", ">parameters", ">output"}, rows) + '\n';
    }
  std::vector<std::vector<std::string>> rows;
  std::string doubts;
  for (const auto& l : m.found.links) {
    const auto fitted = fit_link(l.samples);
    const double off = largest_residual(fitted, l.samples);
    const auto& from = m.found.groups[static_cast<std::size_t>(l.from)];
    const auto& to = m.found.groups[static_cast<std::size_t>(l.to)];
    rows.push_back({l.from == l.to ? "within " + from.name() : from.name() + " - " + to.name(), format_seconds(fitted.latency_s),
                    fitted.bandwidth >= 1e12 ? "unlimited" : format_number(fitted.bandwidth * 8e-9) + " Gbit/s",
                    format_bytes(l.samples.back().bytes) + " in " + times_cell(l.samples.back().took)});
    if (off > poor_link_fit)
      doubts += rows.back()[0] + ": no latency and bandwidth fit all sizes, one of which is off by " + format_percent(off) +
                "; the largest message counts most\n";
  }
  if (!rows.empty()) text += format_table({"link", ">latency", ">bandwidth", ">largest message (spread)"}, rows) + doubts + '\n';
  return text;
}

/// Of GPUs, and of the network cards beside them.
std::string hardware_table(const train::measuring& m) {
  if (m.found.gpus.empty()) return {};
  std::vector<std::vector<std::string>> rows;
  for (const auto& group : m.found.groups) {
    const auto& d = m.found.gpus[static_cast<std::size_t>(group.first)];
    const auto rate = [&](precision p) { return format_number(d.peak_flops[static_cast<std::size_t>(p)] * 1e-12) + " TFLOP/s"; };
    rows.push_back({group.name(), d.name, format_bytes(d.memory_bytes), format_number(d.memory_bandwidth * 1e-9) + " GB/s",
                    rate(precision::fp32), rate(precision::bf16)});
  }
  auto text = format_table({"GPUs", "are", ">memory", ">copies within", ">fp32 products", ">bf16 products"}, rows) + '\n';
  rows.clear();
  for (const auto& n : m.found.nics)
    rows.push_back(
        {n.name, std::to_string(n.port), n.bandwidth > 0 ? format_number(n.bandwidth * 8e-9) + " Gbit/s" : "not known"});
  if (!rows.empty()) text += format_table({"network card", ">port", ">its rate, not measured"}, rows) + '\n';
  return text;
}

/// Times operators by themselves, those of a table or the usual ones.
int time_operators(const arguments& given) {
  train::require_device(given.device);
  const bool on_gpu = given.device != "cpu";
  if (on_gpu && train::names_in(given.device) != 1) throw input_error("--device: operators are timed on one device");
  command::outputs files;
  files.expect(given.operators_out);
  files.reads(given.operators);
  command::skipped_rows skipped("hetsched-profile", given.strict);
  operators_file asked;
  asked.rows = train::usual_operators(on_gpu);
  if (!given.operators.empty()) asked = parse_operators(read_text(given.operators), given.operators, skipped);
  int place = -1;
#ifdef HETSCHED_WITH_CUDA
  if (on_gpu) place = train::places_of(given.device, 1, train::gpu_count()).front();
#endif
  command::progress_line progress;
  std::vector<operator_row> rows;
  std::vector<measured_time> took;
  for (std::size_t i = 0; i < asked.rows.size(); ++i) {
    const auto& row = asked.rows[i];
    progress.show(static_cast<double>(i) / static_cast<double>(asked.rows.size()), "measures " + std::string(row.name));
    try {
      took.push_back(on_gpu ? train::time_on_gpu(row, place, given.how.warmup, given.how.repeats)
                            : train::time_on_host(row, given.how.warmup, given.how.repeats));
      rows.push_back(row);
    } catch (const input_error& wrong) {
      if (given.operators.empty()) throw;
      skipped(file_error(given.operators, {}, "line " + std::to_string(asked.line_numbers[i]) + ": " + wrong.what()));
    }
  }
  skipped.sum_up(rows.size(), given.operators);
  if (rows.empty()) throw file_error(given.operators, {}, "expected operators, found none");
  std::vector<double> measured_ms;
  for (const auto& t : took) measured_ms.push_back(t.median_s * 1e3);
  files.add(given.operators_out, measured_csv(rows, measured_ms));
  files.write();
  std::vector<std::vector<std::string>> cells;
  auto out = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& [name, s, format] = rows[i];
    const std::string dtype(hetsched::detail::format_names[static_cast<std::size_t>(format)]);
    std::string sizes;
    for (const auto size : {s.batch, s.m, s.n, s.k}) sizes += (sizes.empty() ? "" : " ") + std::to_string(size);
    cells.push_back({std::string(name), sizes, dtype, times_cell(took[i])});
    out.push_back({{"op", name},
                   {"batch", s.batch},
                   {"m", s.m},
                   {"n", s.n},
                   {"k", s.k},
                   {"dtype", dtype},
                   {"measured_ms", measured_ms[i]},
                   {"spread_ms", took[i].spread_s * 1e3}});
  }
  if (given.json)
    std::cout << hetsched::detail::dump(
        nlohmann::ordered_json{{"operators", std::move(out)}, {"skipped", skipped.count()}, {"files", files.paths()}});
  else
    std::cout << format_table({"operator", ">batch m n k", "dtype", ">takes (spread)"}, cells) << files.summary();
  return command::done;
}

/// Throws: input_error for options that were given and say nothing of operators.
void require_operators_options(const CLI::App& app) {
  constexpr std::string_view of_operators[] = {"--operators", "--out-operators", "--device", "--warmup",
                                               "--repeats",   "--strict",        "--json"};
  for (const auto* option : app.get_options())
    if (option->count() > 0 &&
        std::find(std::begin(of_operators), std::end(of_operators), option->get_name()) == std::end(of_operators))
      throw input_error("layers and operators are timed by calls of their own: " + option->get_name() +
                        " goes without --operators and --out-operators");
}

int profile_command(arguments given, const CLI::App& app) {
  if (!given.operators.empty() || !given.operators_out.empty()) {
    require_operators_options(app);
    return time_operators(given);
  }
  for (auto* list : {&given.how.microbatch_sizes, &given.how.tensors}) {
    std::sort(list->begin(), list->end());
    list->erase(std::unique(list->begin(), list->end()), list->end());
  }
  train::require_device(given.device);
  command::outputs files;
  for (const auto& path : {given.profile, given.cluster, given.model_out}) files.expect(path);
  for (const auto& path : {given.model.file, given.text}) files.reads(path);
  command::progress_line progress;
  train::measuring m{.config = train::read_config(given.model),
                     .wide = given.model.precision == "fp64",
                     .corpus = train::read_corpus(given.text),
                     .given = given.place,
                     .place = train::find_place(given.place),
                     .how = given.how,
                     .before = [&](const std::string& what) { progress.show(0, "measures " + what); },
                     .found = {},
                     .device = given.device,
                     .products = given.products,
                     .half_boundaries = given.boundaries == "bf16"};
  train::require_boundaries(given.boundaries, given.device, given.model, m.config);
  train::tell_alone(m.given, m.place);
  for (const int degree : given.how.tensors) gpt::validate(m.config, degree);
#ifdef HETSCHED_WITH_CUDA
  if (given.device != "cpu") train::measure_on_gpus(m);
#endif
  if (given.device == "cpu") train::measure_on_hosts(m);
  if (m.place.rank != 0) return command::done;
  const auto costs = train::to_profile(m.found, m.config, m.how, given.model.element_bytes());
  const auto hardware = train::to_cluster(m.found, costs, m.config);
  (void)replica_cost_model(hardware, costs);  // what planners would refuse
  files.add(given.profile, to_json(costs));
  files.add(given.cluster, to_json(hardware));
  files.add(given.model_out, train::to_model_json(m.config));
  files.write();
  if (given.json)
    std::cout << hetsched::detail::dump(nlohmann::ordered_json{{"profile", hetsched::detail::document_of(to_json(costs))},
                                                               {"cluster", hetsched::detail::document_of(to_json(hardware))},
                                                               {"files", files.paths()}});
  else
    std::cout << tables(m, costs) << hardware_table(m) << files.summary();
  return command::done;
}

}  // namespace

int main(int argc, char** argv) {
  command::application app(command::about("hetsched-profile"), "hetsched-profile");
  app.footer("hetsched-profile --microbatch-size 1,2,4 --out-profile profile.json --out-cluster cluster.json");
  arguments given;
  train::add_model_options(app, given.model);
  app.add_option("--text", given.text, "what the layers are timed with (the text that comes with the example)");
  app.add_option("--microbatch-size", given.how.microbatch_sizes,
                 "samples of a microbatch (1); several, as 1,2,4 or one by one, are measured one after the other")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--tensor", given.how.tensors,
                 "ranks that share each layer (1); several, as 1,2, are measured one after the other")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 1024));
  app.add_option("--warmup", given.how.warmup, "microbatches that do not count")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app.add_option("--repeats", given.how.repeats, "microbatches that do, through up to four of equal layers")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_flag("--each-rank", given.how.each_rank, "every rank is a subcluster of its own; else those of a host are one");
  train::add_place_options(app, given.place);
  app.add_option("--device", given.device, "cpu, cuda (a rank for each GPU, or --ranks) or GPUs as cuda:0,cuda:2")
      ->capture_default_str();
  app.add_option("--products", given.products, "on GPUs: numbers of matrix products")
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->capture_default_str();
  app.add_option("--boundaries", given.boundaries,
                 "on GPUs: numbers of activations and their gradients between layers, bf16 or fp32 (fp32)")
      ->check(CLI::IsMember({"bf16", "fp32"}));
  app.add_option("--out-profile", given.profile, "profile.json to write");
  app.add_option("--out-cluster", given.cluster, "cluster.json to write");
  app.add_option("--out-model", given.model_out, "model.json to write");
  app.add_option("--operators", given.operators, "CSV with the columns op,batch,m,n,k,dtype: times these instead of layers");
  app.add_option("--out-operators", given.operators_out,
                 "CSV to write, with measured_ms, for hetsched-calibrate; without --operators, of some usual ones");
  app.add_flag("--strict", given.strict,
               "a row of --operators in which something is wrong is an error; else it is left out, and told");
  app.add_flag("--json", given.json, "prints what was measured as JSON");
  return command::run(app, argc, argv, [&] { return profile_command(given, app); });
}
