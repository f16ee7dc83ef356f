// SPDX-License-Identifier: Apache-2.0
// hetsched-plan for inference: stages by the planner placement, and what they do for requests.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <hetsched/evaluate/play_inference.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/io/json/plan_json.hpp>
#include <hetsched/io/json_reader.hpp>
#include <hetsched/io/page/report.hpp>
#include <hetsched/planners/find_inference_plan.hpp>

#include "../command.hpp"
#include "pages.hpp"
#include "search.hpp"

namespace command {

/// What a play says of requests that wait for each other.
template <hetsched::inference_costs Costs>
[[nodiscard]] hetsched::report_figure played_figure(const hetsched::cluster& hardware, const Costs& costs,
                                                    const hetsched::inference_plan& p) {
  using namespace hetsched;
  const auto played = play_inference(hardware, costs, p);
  return {"played", format_number(played.requests_per_s),
          "requests per second if they begin together: first token " + format_seconds(played.first_token_s) + ", token " +
              format_seconds(played.token_s)};
}

/// The headline numbers of a plan for inference.
template <class Costs>
[[nodiscard]] std::vector<hetsched::report_figure> serving_figures(const hetsched::cluster& hardware, const Costs& costs,
                                                                   const hetsched::inference_plan& p) {
  using namespace hetsched;
  auto figures = prediction_figures(*p.predicted);
  if constexpr (inference_costs<Costs>) {
    if (p.in_flight > 1) figures.push_back(played_figure(hardware, costs, p));
  } else {
    // A request is one forward.
    std::erase_if(figures,
                  [](const auto& f) { return f.label == "first token" || f.label == "token" || f.label == "throughput"; });
  }
  const auto devices = device_use(hardware, used_devices(p));
  figures.push_back({"devices", devices.used, devices.idle});
  figures.push_back({"search", search_state(*p.evidence), evidence_text(p)});
  return figures;
}

/// What the figures of a plan for inference rest on: precision, and costs.
template <class Costs>
[[nodiscard]] std::vector<hetsched::report_figure> serving_basis(const hetsched::cluster& hardware, const cost_source& source,
                                                                 const Costs& costs, const hetsched::plan_setting& setting) {
  using namespace hetsched;
  std::vector<report_figure> basis;
  if constexpr (inference_costs<Costs>) {
    std::string bits;
    for (const auto& [what, stored] : {std::pair{"weights", costs.options().weight_bits}, {"cache", costs.options().cache_bits}})
      if (stored > 0) bits += (bits.empty() ? "" : ", ") + std::string(what) + " in " + format_number(stored) + " bits";
    const auto products = costs.options().products;
    if (products)
      bits += std::string(bits.empty() ? "" : ", ") + "products in " + (*products == number_format::fp8 ? "fp8" : "int8");
    const auto lacking = source.precision_text(hardware, products);
    basis.push_back({"precision", setting.precision, bits + (bits.empty() || lacking.empty() ? "" : "; ") + lacking});
  }
  basis.push_back({"costs", setting.costs, source.basis_text(hardware, false)});
  if (auto links = source.links_text(hardware); !links.empty()) basis.push_back({"links", "Gbit/s", std::move(links)});
  return basis;
}

/// The page of a plan for inference: its figures, stages and the requests in flight. `origin`: what the plan was made from.
[[nodiscard]] inline std::string serving_page(const hetsched::cluster& hardware, const hetsched::inference_plan& p,
                                              const std::string& origin, std::vector<hetsched::report_figure> figures,
                                              hetsched::simulation played) {
  using namespace hetsched;
  report page;
  page.title = "Inference plan";
  page.summary = origin + ": " + std::to_string(p.in_flight) + (p.in_flight > 1 ? " batches" : " batch") + " in flight, of " +
                 std::to_string(p.batch_size) + (p.batch_size > 1 ? " requests" : " request") + ", planner " + p.planner + ".";
  page.figures = std::move(figures);
  const auto line = forward_pipeline(p);
  page.sections.push_back(plan_section(line, subcluster_names(hardware), std::move(played.timeline), played.period_s));
  auto& section = page.sections.back();
  section.timeline_heading = "Timeline of the batches in flight";
  if (line.stages.size() > 1) section.tables.push_back(transports_table(hardware, line));
  return to_html(page);
}

/// What is printed of a plan for inference.
[[nodiscard]] inline std::string serving_summary(const hetsched::cluster& hardware, const hetsched::inference_plan& p,
                                                 const std::vector<hetsched::report_figure>& told) {
  using namespace hetsched;
  const auto line = forward_pipeline(p);
  const auto names = subcluster_names(hardware);
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < line.stages.size(); ++i) {
    const auto& s = line.stages[i];
    const auto* const boundary = boundary_behind(line, i);
    rows.push_back({std::to_string(i), layers_text(s.layers), devices_text(s, names), format_seconds(s.cost.forward_s),
                    boundary ? format_seconds(boundary->forward_s) : "-",
                    format_bytes(s.memory_bytes) + " / " + format_bytes(s.memory_capacity_bytes)});
  }
  std::vector<std::vector<std::string>> figures;
  for (const auto& f : told) figures.push_back({f.label, f.value, f.note});
  const auto in_flight = std::to_string(p.in_flight) + " in flight, of " + std::to_string(p.batch_size);
  return format_table({">stage", ">layers", "devices", ">time / batch", ">transfer", ">memory / device"}, rows) + "\n" +
         format_table({"batches", in_flight, ""}, figures);
}

/// The stages that serve best; where a search was ended before it found any, what is soon found.
template <class Costs>
[[nodiscard]] hetsched::outcome<hetsched::inference_plan> search_serving(const plan_arguments& given, const cost_source& source,
                                                                         const Costs& costs, const hetsched::cluster& hardware) {
  using namespace hetsched;
  listen_to_signals();
  progress_line progress;
  serving_request request{.served = given.serving, .objective = given.objective, .in_flight = given.in_flight};
  request.stages = given.options.stages;
  request.use_all_devices = given.use_all_devices;
  request.setting = inference_setting_of(hardware, source.priced(), given.serving);
  request.progress = [&](const search_progress& state) {
    if (progress.due()) progress.show(0, std::to_string(state.steps) + " " + std::string(state.unit));
  };
  request.go_on = [&] { return in_time(given, progress); };
  request.wait_for_first = [] { return !interrupted(); };
  return find_inference_plan(hardware, costs, request);
}

/// hetsched-plan under an objective of inference, with costs of that.
template <class Costs>
[[nodiscard]] int plan_serving(const plan_arguments& given, const cost_source& source, const Costs& costs,
                               const hetsched::cluster& hardware, outputs& files) {
  using namespace hetsched;
  auto found = search_serving(given, source, costs, hardware);
  if (!found) {
    std::string way_out;
    if constexpr (inference_costs<Costs>)
      if (found.why_not().why == refusal::kind::infeasible && costs.options().weight_bits == 0)
        way_out = "; --weight-bits says how many bits quantised weights have";
    std::cerr << "hetsched-plan: no plan: " << found.why_not().reason << way_out << '\n';
    return infeasible;
  }
  files.add(given.out, to_json(*found, hardware));
  auto figures = serving_figures(hardware, costs, *found);
  const auto basis = serving_basis(hardware, source, costs, found->setting);
  figures.insert(figures.end() - 1, basis.begin(), basis.end());
  if (!given.report.empty() || !given.trace.empty()) {
    auto played = simulate(to_pipeline(forward_pipeline(*found)),
                           forward_schedule(static_cast<int>(found->stages.size()), found->in_flight));
    files.add(given.trace, chrome_trace(played.timeline));
    files.add(given.report,
              serving_page(hardware, *found, origin_of(given, source, hardware, false), figures, std::move(played)));
  }
  files.write();
  if (given.json)
    std::cout << hetsched::detail::dump(nlohmann::ordered_json{{"plan", hetsched::detail::document_of(to_json(*found, hardware))},
                                                               {"like_cases", source.like_cases_json(hardware, false)},
                                                               {"files", files.paths()}});
  else
    std::cout << serving_summary(hardware, *found, figures) << files.summary();
  return done;
}

/// hetsched-plan under an objective of inference.
[[nodiscard]] inline int plan_serving(const plan_arguments& given, const cost_source& source, const hetsched::cluster& hardware,
                                      outputs& files) {
  using namespace hetsched;
  if (!given.planner.empty() && given.planner != "placement")
    throw input_error("--objective " + std::string(name_of(given.objective)) + ": only the planner placement plans inference");
  for (const auto& [option, value] :
       {std::pair{"--schedule", &given.schedule}, {"--schedule-csv", &given.schedule_csv}, {"--frontier", &given.frontier}})
    if (!value->empty())
      throw input_error(std::string(option) + " is for training, not for --objective " + std::string(name_of(given.objective)) +
                        "; hetsched-simulate --plan draws plans for inference");
  // Layers by themselves know no tokens.
  if (const auto& model = source.model(); !source.measured() && model && !model->family) {
    if (!given.products.empty() || given.serving.weight_bits > 0 || given.serving.cache_bits > 0)
      throw input_error("--products, --weight-bits and --cache-bits are for transformers; found a file of layers");
    return plan_serving(given, source, source.forwards(hardware, given.serving.batch), hardware, files);
  }
  return plan_serving(given, source, source.serving(hardware, given.serving), hardware, files);
}

}  // namespace command
