// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/io/checkpoint/checkpoint.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/runtime/measure/measured.hpp>
#include <hetsched/runtime/measure/median_timeline.hpp>

#include <gpt/batch.hpp>
#include <gpt_cuda/on_gpus.hpp>
#include <train/cuda.hpp>
#include <train/device.hpp>
#include <train/layers.hpp>
#include <train/losses.hpp>
#include <train/notes.hpp>
#include <train/plan.hpp>
#include <train/rate.hpp>
#include <train/saved_model.hpp>

#include "../command.hpp"

namespace {

gpt_cuda::numbers to_numbers(const gpt::tensor<float>& t) {
  return {t.rows(), t.columns(), std::vector<float>(t.data(), t.data() + t.size())};
}

gpt_cuda::batch to_batch(const gpt::microbatch<float>& b) { return {to_numbers(b.inputs), to_numbers(b.targets)}; }

std::vector<gpt_cuda::numbers> first_weights(const gpt::config& m, int layer) {
  auto made = train::make_layer<float>(m, layer, {}, hetsched::recomputation::none);
  std::vector<gpt_cuda::numbers> found;
  for (gpt::tensor<float>& p : made.parameters()) found.push_back(to_numbers(p));
  return found;
}

/// What ranks on GPUs cannot do yet is refused, not left out.
void require_supported(const train::arguments& given) {
  const auto refuse = [&](bool asked, const char* option) {
    if (asked)
      throw hetsched::input_error(std::string(option) + " is not for --device " + given.device + ": ranks on GPUs do not do it");
  };
  refuse(given.place.transport != "threads", "--transport gloo");
  refuse(given.checkpoint.behind, "--checkpoint-behind");
  refuse(!given.validation.empty(), "--validation");
  refuse(given.accumulate > 1, "--accumulate");
  refuse(given.replan_every > 0, "--replan-every");
  refuse(given.elastic, "--elastic");
  refuse(given.model.precision == "fp64", "--precision fp64");
  refuse(!given.log.empty(), "--log");
  refuse(!given.metrics.empty(), "--metrics");
}

void require_supported(const hetsched::training_layout& layout, const std::string& device) {
  const auto refuse = [&](bool asked, const char* what) {
    if (asked) throw hetsched::input_error("--device " + device + ": a plan with " + what + " is not trained on GPUs");
  };
  refuse(layout.pipelines.size() > 1, "several pipelines");
  const auto& line = layout.pipelines.front();
  refuse(line.order.directions > 1, "a schedule of two directions");
  for (int g = 0; g < line.order.ranks; ++g) {
    refuse(line.group(g).device_count() > 1, "several devices in a stage");
    refuse(!line.recompute.empty() && line.recompute[static_cast<std::size_t>(g)] != hetsched::recomputation::none,
           "recomputation");
  }
}

/// What the optimizer keeps of each parameter, as checkpoints name it.
std::vector<std::string> kept_by(const train::arguments& given) {
  if (given.optimizer == "adamw") return {"adamw.first_moment", "adamw.second_moment"};
  if (given.momentum != 0) return {"sgd.velocity"};
  return {};
}

/// Has the training go on from the newest whole checkpoint, if it is to.
void go_on_from_newest(const train::job& j, const train::training_notes& notes, gpt_cuda::training& t) {
  const auto& how = j.given.checkpoint;
  if (!how.resume) return;
  const auto found = hetsched::find_checkpoint(how.folder);
  for (const auto& text : found.damaged) train::say("skips a damaged checkpoint: " + text);
  if (!found.newest && !how.or_start)
    throw hetsched::input_error("--resume: there is no whole checkpoint in " + how.folder +
                                " to go on from; --resume-or-start begins at step 0 then");
  if (!found.newest) return train::say("there is no checkpoint in " + how.folder + ": begins at step 0");
  for (const auto& text : train::compare_notes(*found.newest, notes)) train::say(text);
  const auto names = kept_by(j.given);
  gpt_cuda::saved_model state(static_cast<std::size_t>(gpt::layer_count(j.config)));
  for (std::size_t l = 0; l < state.size(); ++l)
    for (auto& value : first_weights(j.config, static_cast<int>(l))) {
      std::vector<gpt_cuda::numbers> kept(names.size(), value);
      state[l].push_back({std::move(value), std::move(kept)});
    }
  std::int64_t updates = 0;
  auto slices = train::slices_of(state, names, j.config.tied, updates);
  hetsched::load_checkpoint(*found.newest, slices);
  train::tie(state, j.config.tied);
  t.resumed = std::move(state);
  t.first_step = found.newest->step;
}

}  // namespace

gpt_cuda::shape train::to_shape(const gpt::config& m, const std::string& products) {
  return {.layers = m.layers,
          .hidden = m.hidden,
          .heads = m.heads,
          .kv_heads = m.key_heads(),
          .ffn = m.ffn_width(),
          .sequence = m.sequence,
          .vocab = m.vocab,
          .rms = m.norm == gpt::norm_kind::rms,
          .gated = m.activation == gpt::activation_kind::swiglu,
          .rotary = m.positions == gpt::position_kind::rotary,
          .bias = m.bias,
          .tied = m.tied,
          .half = products == "bf16"};
}

std::vector<gpt_cuda::layer_costs> train::time_on_gpu(const gpt::config& m, const std::string& corpus, const gpu_timing& how) {
  return gpt_cuda::time_on_gpu(how.place,
                               {.model = to_shape(m, how.products),
                                .samples = how.samples,
                                .first_weights = [&](int layer) { return first_weights(m, layer); },
                                .data = to_batch(gpt::draw<float>(corpus, m.sequence, {.seed = m.seed, .samples = how.samples})),
                                .warmup = how.warmup,
                                .repeats = how.repeats,
                                .before = how.before});
}

void train::train_on_gpus(job& j) {
  using namespace hetsched;
  const auto& given = j.given;
  require_supported(given);
  if (!j.plan && !given.place.ranks) j.place.ranks = names_in(given.device);
  const auto places = places_of(given.device, j.place.ranks, gpt_cuda::gpu_count());
  if (!j.plan) {
    if (std::any_of(places.begin(), places.end(), [&](int p) { return (p < 0) != (places[0] < 0); }))
      throw input_error("--device: ranks on GPUs and on the host are no equal ranks to plan for: give a --plan");
    const equal_ranks there{.ranks = j.place.ranks,
                            .microbatches = given.microbatches.value_or(8),
                            .microbatch_size = given.microbatch_size.value_or(1)};
    std::vector<double> forward_s, backward_s;
    for (const auto& l :
         time_on_gpu(j.config, j.corpus, {.place = places[0], .products = given.products, .samples = there.microbatch_size})) {
      forward_s.push_back(l.took.forward.median_s);
      backward_s.push_back(l.took.backward.median_s);
    }
    auto found = plan_for(j.config, there, std::move(forward_s), std::move(backward_s), given.model.element_bytes());
    if (!found)
      throw no_plan("no plan for " + std::to_string(j.place.ranks) + " ranks and " + std::to_string(gpt::layer_count(j.config)) +
                    " layers: " + found.why_not().reason);
    j.plan = *std::move(found);
  }
  auto& told = j.told;
  told.plan = *j.plan;
  told.layout = make_training_layout(j.plan->plan, {.schedule = given.schedule, .chunks = given.chunks});
  require_supported(told.layout, given.device);
  const auto& line = told.layout.pipelines.front();
  const auto rate = rate_of(given);
  command::progress_line progress;
  losses_so_far losses(given.losses);
  command::listen_to_signals();
  gpt_cuda::training t{.model = to_shape(j.config, given.products),
                       .order = line.order,
                       .stages = line.stages,
                       .microbatch_size = line.microbatch_size,
                       .places = places,
                       .first_weights = [&](int layer) { return first_weights(j.config, layer); },
                       .draw =
                           [&](std::int64_t step, int m) {
                             return to_batch(gpt::draw<float>(j.corpus, j.config.sequence,
                                                              {.seed = given.model.seed,
                                                               .step = step,
                                                               .first_sample = m * line.microbatch_size,
                                                               .samples = line.microbatch_size}));
                           },
                       .learning_rate = [&](std::int64_t step) { return rate.at(step); },
                       .graphs = given.graphs,
                       .clip = given.clip,
                       .steps = given.steps,
                       .deadline_s = given.place.deadline_s};
  if (given.optimizer == "sgd")
    t.optimizer = sgd{.momentum = given.momentum, .weight_decay = given.weight_decay};
  else
    t.optimizer = adamw{.weight_decay = given.weight_decay};
  if (!given.trace.empty() || !given.report.empty() || !given.times.empty()) t.timelines = given.trace_steps;
  t.told = [&](std::int64_t step, double loss) {
    losses.add(step, loss);
    progress.show(static_cast<double>(step + 1) / given.steps,
                  "step " + std::to_string(step + 1) + " of " + std::to_string(given.steps) + ", loss " + format_number(loss));
    told.stopped_by = command::interruption;
    return told.stopped_by == 0;
  };
  const auto notes = notes_of(j, told.plan.plan);
  go_on_from_newest(j, notes, t);
  if (t.resumed) told.resumed = t.first_step;
  told.first_step = t.first_step;
  if (const auto& how = given.checkpoint; !how.folder.empty()) {
    t.save_every = how.every;
    t.save = [&](std::int64_t steps, gpt_cuda::saved_model& all) {
      auto updates = steps;
      write_checkpoint_part(how.folder, steps, 0, slices_of(all, kept_by(given), j.config.tied, updates));
      commit_checkpoint(how.folder, steps, 1, notes);
      prune_checkpoints(how.folder, how.keep, steps);
    };
  }
  const auto start = std::chrono::steady_clock::now();
  const auto done = gpt_cuda::train_on_gpus(t);
  told.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  told.losses = done.losses;
  if (!done.measured.empty()) {
    std::vector<timeline> steps;
    for (const auto& parts : done.measured) steps.push_back(merged(parts));
    told.measured.push_back(median_timeline(steps));
    told.times.push_back(action_spreads(steps));
  }
}
