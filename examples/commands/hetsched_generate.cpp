// SPDX-License-Identifier: Apache-2.0
// hetsched-generate: goes on with texts, by the small GPT that hetsched-train trains, on threads or on processes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <hetsched/io.hpp>
#include <hetsched/runtime/inference/inference_pipeline.hpp>
#include <hetsched/runtime/trainer/detail/parameter_state.hpp>

#include <gpt/shapes.hpp>
#include <train/cached_layers.hpp>
#include <train/checkpoint.hpp>
#include <train/layers.hpp>
#include <train/model.hpp>
#include <train/on_hosts.hpp>
#include <train/place.hpp>
#include <train/plan.hpp>

#include "command.hpp"

namespace {

using namespace hetsched;

struct arguments {
  train::model_arguments model;
  train::place_arguments place;
  std::string plan, checkpoint;
  std::vector<std::string> prompts;
  gpt::generate_options text{.bytes = 64, .temperature = 0};
  int in_flight = 8;
  bool json = false;
};

struct job {
  arguments given;
  gpt::config config = {};
  process_place place = {};
  std::vector<int> cut = {};  ///< the first layer of each rank, and the number of layers
  // Told by rank 0.
  std::vector<std::string> texts = {};
  double first_token_s = 0, tokens_per_s = 0;
};

/// Whether the text is printed as it comes.
bool streams(const arguments& given) { return !given.json && given.prompts.size() == 1; }

void say(const std::string& text) { std::cerr << "hetsched-generate: " + text + '\n' << std::flush; }

/// The parameters of layer `number`, as checkpoints have them: tied ones go by the first of them.
template <class Real>
void list_parameters(std::vector<state_slice>& slices, const gpt::config& m, int number, any_layer<gpt::tensor<Real>>& layer) {
  parameter_id id{.layer = number, .number = 0};
  for (gpt::tensor<Real>& p : layer.parameters()) {
    model_parameter known;
    known.id = id;
    for (const auto& tie : gpt::ties(m))
      if (tie.second == id) known.id = tie.first;
    known.shape.assign(p.shape().begin(), p.shape().end());
    const auto count = static_cast<std::int64_t>(p.size());
    slices.push_back(hetsched::detail::state_of(known, "parameter", p, {.length = count}));
    ++id.number;
  }
}

template <class Real>
void generate_on(job& j, train::host_communicator<Real>& comm) {
  using tensor = gpt::tensor<Real>;
  const auto rank = static_cast<std::size_t>(comm.rank());
  const double deadline_s = j.given.place.deadline_s;
  std::vector<gpt::cached_layer<Real>> layers;
  std::vector<state_slice> slices;
  for (int l = j.cut[rank]; l < j.cut[rank + 1]; ++l) {
    layers.emplace_back(train::make_layer<Real>(j.config, l, {}, recomputation::none));
    list_parameters(slices, j.config, l, layers.back().layer());
  }
  if (const auto& folder = j.given.checkpoint; !folder.empty()) {
    const train::training_notes notes{{"model", train::describe(j.config)}, {"precision", j.given.model.precision}};
    const auto found = train::find_newest(comm, folder, notes, deadline_s, say);
    if (!found) throw train::known_to_all("--checkpoint: there is no whole checkpoint in " + folder);
    train::load_on_all(comm, *found, slices, deadline_s, false);
  }
  gpt::cached_stage<Real> stage(std::move(layers));
  const inference_limits options{.most_in_flight = static_cast<std::size_t>(j.given.in_flight), .deadline_s = deadline_s};
  (void)train::gather(comm, {}, deadline_s, "before the first token");
  if (rank > 0) return follow_inference<tensor>(comm, stage, options);

  if (streams(j.given)) std::cout << j.given.prompts.front() << std::flush;
  const double start_s = steady_now_s();
  double first_s = 0, last_s = 0;
  std::size_t tokens = 0;
  auto texts = j.given.prompts;
  inference_queue<tensor> queue(texts.size());
  std::vector<inference_ticket> tickets;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    auto own = j.given.text;
    own.seed += i;
    tickets.push_back(queue.submit(gpt::text_request<Real>(j.config, texts[i], own, [&, i](char c) {
      texts[i] += c;
      if (streams(j.given)) std::cout << c << std::flush;
      last_s = steady_now_s();
      if (tokens++ == 0) first_s = last_s;
    })));
  }
  queue.close();
  lead_inference<tensor>(comm, stage, queue, options);
  for (const auto& t : tickets)
    if (const auto result = t.wait(); result.how != inference_end::finished) throw error(result.why);
  j.first_token_s = first_s - start_s;
  j.tokens_per_s = last_s > first_s ? static_cast<double>(tokens - 1) / (last_s - first_s) : 0;
  j.texts = std::move(texts);
}

/// Fills in the cut, and which rank this process is. Returns whether it has work.
bool find_work(job& j) {
  const int layers = gpt::layer_count(j.config);
  if (j.given.plan.empty()) {
    if (j.place.ranks > layers)
      throw input_error("--ranks: found " + std::to_string(j.place.ranks) + ", but there are " + std::to_string(layers) +
                        " layers");
    for (int r = 0; r <= j.place.ranks; ++r) j.cut.push_back(layers * r / j.place.ranks);
    return true;
  }
  auto file = read_pipelines(j.given.plan);
  const auto wrong = [&](const std::string& what) { throw file_error(j.given.plan, "/pipelines", what); };
  if (file.plan.pipelines.size() != 1)
    wrong("found " + std::to_string(file.plan.pipelines.size()) + " pipelines, expected one, as by --planner placement");
  try {
    if (train::cut_between_blocks(j.config, file.plan) && j.place.rank == 0)
      say(j.given.plan + " cuts inside blocks: its stages begin with whole ones here");
  } catch (const input_error& e) {
    wrong(e.what());
  }
  const auto& stages = file.plan.pipelines.front().stages;
  if (stages.back().layers.last != layers)
    wrong("found " + std::to_string(stages.back().layers.last) + " layers, expected " + std::to_string(layers));
  for (const auto& s : stages) {
    if (s.degrees.device_count() != 1)
      wrong("found a stage of " + std::to_string(s.degrees.device_count()) + " devices, expected one, as by --planner placement");
    j.cut.push_back(s.layers.first);
  }
  j.cut.push_back(layers);
  const bool threads = j.given.place.transport == "threads";
  const int wanted = static_cast<int>(stages.size());
  if (threads && !j.given.place.ranks) j.place.ranks = wanted;
  const auto ranks = train::find_ranks(file, wanted, !threads, j.place);
  if (!ranks.there)
    throw input_error(j.given.plan + " is for other ranks than the " + std::to_string(j.place.ranks) + " that are there");
  return train::enter(j.place, ranks);
}

std::string json_text(const job& j) {
  const nlohmann::ordered_json out{{"texts", j.texts},
                                   {"tokens", j.given.text.bytes},
                                   {"ranks", j.cut.size() - 1},
                                   {"first_token_s", j.first_token_s},
                                   {"tokens_per_s", j.tokens_per_s}};
  return out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

std::string summary(const job& j) {
  std::string text;
  for (const auto& t : j.texts) text += (streams(j.given) ? "" : t) + '\n';
  return text + std::to_string(j.given.text.bytes) + (j.texts.size() > 1 ? " tokens for each" : " tokens") +
         ", ranks: " + std::to_string(j.cut.size() - 1) + "; the first after " + format_seconds(j.first_token_s) + ", then " +
         format_number(j.tokens_per_s) + " tokens/s\n";
}

int generate_command(const arguments& given) {
  job j{.given = given, .config = train::read_config(given.model), .place = train::find_place(given.place)};
  for (const auto& p : given.prompts)
    if (p.empty()) throw input_error("--prompt: expected at least one byte");
  train::tell_alone(given.place, j.place);
  const int launched = j.place.rank;
  if (!find_work(j)) {
    say("rank " + std::to_string(launched) + ": the plan has no work for it");
    train::stay_out(given.place);
    return command::done;
  }
  const auto generate = [&](auto& comm) { generate_on(j, comm); };
  if (given.model.precision == "fp64")
    train::on_hosts<double>(given.place, j.place, generate);
  else
    train::on_hosts<float>(given.place, j.place, generate);
  if (j.place.rank == 0) std::cout << (given.json ? json_text(j) : summary(j));
  return command::done;
}

}  // namespace

int main(int argc, char** argv) {
  command::application app(command::about("hetsched-generate"), "hetsched-generate");
  app.footer("hetsched-generate --checkpoint run --prompt 'Alice was' --ranks 4");
  arguments given;
  app.add_option("--plan", given.plan,
                 "plan.json with one pipeline of single devices; else the layers are cut evenly for --ranks");
  app.add_option("--prompt", given.prompts, "text to go on with; may be repeated")->required()->allow_extra_args(false);
  app.add_option("--tokens", given.text.bytes, "bytes to add")->check(CLI::Range(1, 1'000'000))->capture_default_str();
  app.add_option("--temperature", given.text.temperature, "of the choice; 0: always the likeliest")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app.add_option("--choice-seed", given.text.seed, "of the choice; the next prompt has the next")->capture_default_str();
  app.add_option("--in-flight", given.in_flight, "prompts at once")->check(CLI::Range(1, 10'000))->capture_default_str();
  app.add_option("--checkpoint", given.checkpoint, "folder of hetsched-train; without: the weights that a training begins with");
  train::add_model_options(app, given.model);
  train::add_place_options(app, given.place);
  app.add_flag("--json", given.json, "prints the result as JSON");
  return command::run(
      app, argc, argv, [&] { return generate_command(given); }, command::stdout_use::result);
}
