// SPDX-License-Identifier: Apache-2.0
// hetsched-train: trains a small GPT as a plan says, on threads or on processes that Gloo or MPI connects.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <hetsched/io.hpp>
#include <hetsched/runtime/layout/plan_layout.hpp>
#include <hetsched/schedule.hpp>
#include <hetsched/views/plan.hpp>

#include <gpt/shapes.hpp>
#include <train/boundaries.hpp>
#include <train/device.hpp>
#include <train/losses.hpp>
#include <train/measured.hpp>
#include <train/on_hosts.hpp>
#include <train/plan.hpp>
#include <train/side_output.hpp>
#include <train/training.hpp>

#include "command.hpp"

namespace {

using namespace hetsched;

std::string losses_csv(const train::job::result& r) {
  std::string text = train::losses_head + r.earlier_losses;
  for (std::size_t i = 0; i < r.losses.size(); ++i)
    text += train::losses_row(r.first_step + static_cast<std::int64_t>(i), r.losses[i]);
  return text;
}

double tokens_per_s(const train::job& j) {
  const double tokens = static_cast<double>(sample_count(j.told.plan.plan)) * j.given.accumulate * j.config.sequence;
  return j.told.seconds > 0 ? tokens * static_cast<double>(j.told.losses.size()) / j.told.seconds : 0;
}

std::string report_page(const train::job& j) {
  const auto& r = j.told;
  const auto& p = r.plan.plan;
  report page;
  page.title = "Measured training step";
  page.summary =
      (j.given.trace_steps > 1 ? "Medians of " + std::to_string(j.given.trace_steps) + " steps up to step " : "Step ") +
      std::to_string(r.first_step + static_cast<std::int64_t>(r.losses.size()) - 1) + " of a GPT of " +
      train::describe(j.config) + ": " + train::batch_text(p, j.given.accumulate) + " microbatches, schedule " +
      p.pipelines.front().schedule.name + ".";
  double measured_s = 0;
  for (const auto& t : r.measured)
    for (const auto& a : t.actions) measured_s = std::max(measured_s, a.end_s);
  page.figures = {{"iteration", format_seconds(measured_s), "measured, without exchange and update"},
                  {"predicted", format_seconds(p.predicted.iteration_s),
                   "by the plan, exchange and update among it; hetsched-compare-timeline tells what the rest is due to"},
                  {"loss", format_number(r.losses.back()), "mean over the step's microbatches"},
                  {"throughput", format_number(tokens_per_s(j)), "tokens per second, over all steps"}};
  for (std::size_t i = 0; i < p.pipelines.size(); ++i) {
    auto section = plan_section(p.pipelines[i], r.plan.subclusters, r.measured[i], p.predicted.period_s);
    section.heading = p.pipelines.size() > 1 ? "Pipeline " + std::to_string(i) + ": stages as planned, measured timeline"
                                             : "Stages as planned, measured timeline";
    section.picture.span_s = measured_s;  // pictures of several pipelines compare
    page.sections.push_back(std::move(section));
  }
  return to_html(page);
}

std::string json_text(const train::job& j) {
  const auto& r = j.told;
  nlohmann::ordered_json out{
      {"first_step", r.first_step},
      {"steps", r.losses.size()},
      {"first_loss", r.losses.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(r.losses.front())},
      {"last_loss", r.losses.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(r.losses.back())},
      {"seconds", r.seconds},
      {"tokens_per_s", tokens_per_s(j)},
      {"ranks", r.layout.ranks()},
      {"schedule", r.plan.plan.pipelines.front().schedule.name}};
  for (const auto& [step, loss] : r.validations) out["validation"].push_back({{"step", step}, {"loss", loss}});
  auto& pipelines = out["pipelines"] = nlohmann::ordered_json::array();
  for (const auto& line : r.layout.pipelines) {
    auto stages = nlohmann::ordered_json::array();
    for (const auto& s : line.stages) stages.push_back({s.layers.first, s.layers.last - 1});
    pipelines.push_back({{"microbatches", line.order.microbatches}, {"microbatch_size", line.microbatch_size}});
    pipelines.back()["stages"] = std::move(stages);
    auto& groups = pipelines.back()["degrees"] = nlohmann::ordered_json::array();
    for (int g = 0; g < line.order.ranks; ++g) {
      const auto& d = line.degrees_of(g);
      groups.push_back({{"data", d.data}, {"context", d.context}, {"tensor", d.tensor}});
      if (d.expert > 1) groups.back()["expert"] = d.expert;
    }
  }
  return hetsched::detail::dump(out);
}

std::string summary(const train::job& j) {
  const auto& r = j.told;
  std::vector<std::vector<std::string>> rows;
  for (std::size_t p = 0; p < r.layout.pipelines.size(); ++p) {
    const auto& line = r.layout.pipelines[p];
    for (int s = 0; s < line.order.stages; ++s) {
      const auto range = line.stages[static_cast<std::size_t>(s)].layers;
      const int group = line.order.rank(0, s), first = line.first_of_group(group),
                devices = line.degrees_of(group).device_count();
      rows.push_back({std::to_string(first) + (devices > 1 ? "-" + std::to_string(first + devices - 1) : ""), std::to_string(s),
                      train::layer_name(j.config, range.first) +
                          (range.size() > 1 ? " to " + train::layer_name(j.config, range.last - 1) : "")});
    }
  }
  std::string text = format_table({">rank", ">stage", "layers"}, rows);
  if (r.losses.empty()) return text + "nothing to do: step " + std::to_string(r.first_step) + " has been done\n";
  return text + std::to_string(r.losses.size()) + " steps from " + std::to_string(r.first_step) + " in " +
         format_seconds(r.seconds) + " (" + format_number(tokens_per_s(j)) + " tokens/s): loss " +
         format_number(r.losses.front()) + " to " + format_number(r.losses.back()) +
         (r.validations.empty() ? "" : ", validation " + format_number(r.validations.back().second)) + '\n';
}

/// What a dry run found, by rank, beside what the plan foretold.
std::string dry_run_summary(const train::job& j) {
  const auto& r = j.told;
  std::vector<std::vector<std::string>> rows;
  double longest_s = 0;
  for (std::size_t rank = 0; rank < r.dry_run.size(); ++rank) {
    const auto& found = r.dry_run[rank];
    const auto place = r.layout.place_of(static_cast<int>(rank));
    const auto& stages = r.plan.plan.pipelines[static_cast<std::size_t>(place.pipeline)].stages;
    const auto group = static_cast<std::size_t>(place.group);
    const bool planned = group < stages.size() && stages[group].memory_bytes > 0;
    longest_s = std::max(longest_s, found.times.span_s);
    rows.push_back({std::to_string(rank), format_seconds(found.times.computing_s),
                    format_bytes(static_cast<bytes_t>(found.held_bytes)),
                    planned ? format_bytes(stages[group].memory_bytes) : "-"});
  }
  const double planned_s = r.plan.plan.predicted.iteration_s;
  return format_table({">rank", ">computing", ">holds", ">planned"}, rows) + "dry run: " + std::to_string(rows.size()) +
         (rows.size() == 1 ? " rank" : " ranks") + " met, forwards and backwards of one batch took " + format_seconds(longest_s) +
         " the second time" + (planned_s > 0 ? ", the plan says " + format_seconds(planned_s) + " for an iteration" : "") +
         "; nothing was updated, and no file written\n";
}

nlohmann::ordered_json dry_run_json(const train::job::result& r) {
  auto ranks = nlohmann::ordered_json::array();
  for (const auto& found : r.dry_run)
    ranks.push_back({{"span_s", found.times.span_s}, {"computing_s", found.times.computing_s}, {"held_bytes", found.held_bytes}});
  return ranks;
}

/// The plan of a file, as far as it fits the model and the options; the ranks are looked at where they are known.
plan_file read_plan_for(const train::arguments& given, const gpt::config& config, bool speaks) {
  auto file = read_plan(given.plan);
  try {
    if (train::cut_between_blocks(config, file.plan) && speaks)
      train::say(given.plan + " cuts inside blocks: its stages begin with whole ones here, as by --granularity block");
  } catch (const input_error& wrong) {
    throw file_error(given.plan, "/pipelines", wrong.what());
  }
  for (std::size_t p = 0; p < file.plan.pipelines.size(); ++p) {
    const auto& line = file.plan.pipelines[p];
    const auto here = "/pipelines/" + std::to_string(p);
    if (const int layers = line.stages.back().layers.last; layers != gpt::layer_count(config))
      throw file_error(given.plan, here + "/stages",
                       "found " + std::to_string(layers) + " layers, expected " + std::to_string(gpt::layer_count(config)) +
                           ": embedding, " + std::to_string(config.layers) + " blocks, head");
    if (given.microbatch_size && line.microbatch_size != *given.microbatch_size)
      throw file_error(given.plan, here + "/microbatch_size",
                       "found " + std::to_string(line.microbatch_size) + ", but --microbatch-size is " +
                           std::to_string(*given.microbatch_size));
  }
  if (const int microbatches = microbatch_count(file.plan); given.microbatches && microbatches != *given.microbatches)
    throw file_error(
        given.plan, "/pipelines",
        "found " + std::to_string(microbatches) + " microbatches, but --microbatches is " + std::to_string(*given.microbatches));
  return file;
}

/// Makes the folder of checkpoints and takes it for this training, until what it returns ends; the ranks of an elastic training
/// take it by generation. A dry run leaves the folder as it was.
std::optional<checkpoint_lock> take_folder(const train::arguments& given) {
  const auto& folder = given.checkpoint.folder;
  std::error_code wrong;
  const bool is_new = std::filesystem::create_directories(folder, wrong);
  if (wrong) throw input_error(folder + ": cannot be made: " + wrong.message());
  check_writable(folder + "/step");
  if (!given.checkpoint.resume)
    for (const auto& f : hetsched::detail::list_steps(folder))
      if (f.suffix.empty() || f.suffix == hetsched::detail::replaced_suffix)
        throw input_error(folder + " holds " + f.name + ": --resume goes on from it, another folder begins anew");
  std::optional<checkpoint_lock> lock(std::in_place, folder);
  if (given.elastic || given.dry_run) lock.reset();
  if (given.dry_run && is_new) std::filesystem::remove(folder, wrong);
  return lock;
}

/// Throws: input_error for options of devices and of the optimizer that cannot be, or not together.
void check_options(const train::arguments& given) {
  train::require_device(given.device, given.nccl);
  if (given.sums_in_order && !given.nccl) throw input_error("--sums-in-order needs --nccl: else gradients are added in order");
  if (given.nccl && given.place.transport != "gloo") throw input_error("--nccl is for processes: it needs --transport gloo");
  if (given.cuda_ipc && given.place.transport != "gloo")
    throw input_error("--cuda-ipc is for processes: it needs --transport gloo");
  if (given.cuda_ipc && given.device == "cpu") throw input_error("--cuda-ipc needs --device cuda");
  if (given.cuda_ipc && given.nccl) throw input_error("--cuda-ipc and --nccl: NCCL joins the GPUs of a host, too");
  if (given.device != "cpu" && given.place.transport == "mpi")
    throw input_error("--device " + given.device + ": GPUs of processes need --transport gloo, found mpi");
  if (given.graphs && given.device == "cpu") throw input_error("--graphs needs --device cuda");
  if (given.checkpoint.folder.empty() && given.checkpoint.resume) throw input_error("--resume needs --checkpoint");
  const auto names = schedule_names();
  if (!given.schedule.empty() && given.schedule != auto_schedule_name &&
      std::find(names.begin(), names.end(), given.schedule) == names.end())
    throw input_error("--schedule: there is no schedule \"" + given.schedule + "\"");
  const std::pair<const char*, double> rates[] = {{"--lr", given.learning_rate},
                                                  {"--momentum", given.momentum},
                                                  {"--weight-decay", given.weight_decay},
                                                  {"--clip", given.clip}};
  for (const auto& [name, value] : rates)
    if (!std::isfinite(value)) throw input_error(std::string(name) + ": expected a finite number");
}

/// The model and the texts; ranks and plan are yet to be found. Throws: input_error for texts that are too short, and for options
/// that lack others.
train::job read_job(const train::arguments& given) {
  train::job j{.given = given,
               .config = train::read_config(given.model),
               .corpus = train::read_corpus(given.text),
               .validation = given.validation.empty() ? "" : read_text(given.validation),
               .place = {},
               .plan = {},
               .told = {}};
  train::require_boundaries(given.boundaries, given.device, given.model, j.config);
  const auto check_length = [&](const char* option, const std::string& text) {
    if (text.size() <= static_cast<std::size_t>(j.config.sequence))
      throw input_error(std::string(option) + ": " + std::to_string(text.size()) + " bytes are too few for samples of " +
                        std::to_string(j.config.sequence));
  };
  check_length("--text", j.corpus);
  if (!given.validation.empty()) check_length("--validation", j.validation);
  if (given.validation.empty() && given.validate_every > 0) throw input_error("--validate-every needs --validation");
  const bool has_state = !given.checkpoint.folder.empty() || given.snapshot_every > 0;
  if ((given.elastic || given.join) && (given.place.transport != "gloo" || !has_state))
    throw input_error(std::string(given.join ? "--join" : "--elastic") +
                      " needs --transport gloo, and --checkpoint or --snapshot-every to go on from");
  if (given.replan_layers && given.replan_every == 0) throw input_error("--replan-layers needs --replan-every");
  if (given.snapshot_every > 0 && !given.elastic) throw input_error("--snapshot-every needs --elastic");
  if (given.dry_run && given.join) throw input_error("--dry-run: a process that joins a training has nothing to try alone");
  return j;
}

/// This process among the ranks of the job's plan. Where these are not there, the plan is forgotten by what resumes, and refused
/// by others. False: the plan has no work for this process.
bool enter_plan(train::job& j) {
  const auto& given = j.given;
  const int wanted = make_training_layout(j.plan->plan, {.schedule = given.schedule, .chunks = given.chunks}).ranks();
  if (given.place.transport == "threads" && !given.place.ranks) j.place.ranks = wanted;
  const auto ranks = train::find_ranks(*j.plan, wanted, given.place.transport != "threads", j.place);
  const bool named = !ranks.launched.empty();
  const std::string elsewhere = ": it is for ranks that are not there, or uses one twice";
  if (!ranks.there && given.checkpoint.resume) {
    if (j.place.rank == 0)
      train::say(
          given.plan +
          (named ? elsewhere : " is for " + std::to_string(wanted) + " ranks, there are " + std::to_string(j.place.ranks)) +
          ": plans anew");
    train::forget_plan(j);
  } else if (!ranks.there && named) {
    throw input_error(given.plan + elsewhere);
  } else if (!ranks.there && given.place.transport == "threads") {
    throw input_error("--ranks: found " + std::to_string(j.place.ranks) + ", but " + given.plan + " is for " +
                      std::to_string(wanted));
  } else if (const int launched = j.place.rank; !train::enter(j.place, ranks)) {
    train::say("rank " + std::to_string(launched) + ": the plan has no work for it");
    return false;
  }
  return true;
}

/// Writes the files of a training that has ended, and prints what came out. Throws: error for a file that cannot be written,
/// unless the training itself failed.
void tell_result(const train::job& j, command::outputs& files) {
  const auto& given = j.given;
  const auto& told = j.told;
  files.add(given.losses, losses_csv(told));
  files.add(given.out_plan, to_json(told.plan.plan, told.plan.subclusters, told.plan.device_counts));
  if (!told.measured.empty()) {
    if (!given.trace.empty()) files.add(given.trace, chrome_trace(side_by_side(told.measured)));
    if (!given.report.empty()) files.add(given.report, report_page(j));
    if (!given.times.empty()) files.add(given.times, train::times_csv(told.times));
  }
  std::string unwritten;
  try {
    files.write();
  } catch (const error& e) {
    unwritten = e.what();
  }
  std::cout << (given.json ? json_text(j) : summary(j) + files.summary());
  if (told.stopped_by != 0)
    train::say("stopped by signal " + std::to_string(told.stopped_by) + " after step " +
               std::to_string(told.first_step + static_cast<std::int64_t>(told.losses.size())));
  if (!unwritten.empty() && told.failure.empty()) throw error(unwritten);  // a fault by now, whatever it would have been before
  if (!unwritten.empty()) train::say(unwritten);
}

/// `meets` becomes true when this process goes to meet the others.
int train_as_told(const train::arguments& given, bool& meets) {
  command::outputs files;
  for (const auto& path :
       {given.trace, given.report, given.losses, given.out_plan, given.log, given.metrics, given.times, given.status})
    files.expect(path);
  for (const auto& path : {given.plan, given.model.file, given.text, given.validation}) files.reads(path);
  check_options(given);
  auto j = read_job(given);
  j.place = train::find_place(given.place);
  if (!given.join) train::tell_alone(given.place, j.place);
  if (given.join) j.place.rank = 1;  // until it is taken in
  if (!given.plan.empty()) j.plan = read_plan_for(given, j.config, j.place.rank == 0);
  if (!given.plan.empty() && !given.join && !enter_plan(j)) {
    meets = true;
    train::stay_out(given.place);
    return command::done;
  }
  const bool must_be_there = given.checkpoint.resume && !given.checkpoint.or_start;
  const bool takes_folder = !given.checkpoint.folder.empty() && j.place.rank == 0 &&
                            (!must_be_there || std::filesystem::exists(given.checkpoint.folder));
  const auto lock = takes_folder ? take_folder(given) : std::nullopt;
  meets = true;
  try {
#ifdef HETSCHED_WITH_CUDA
    if (given.device != "cpu") train::train_on_gpus(j);
#endif
    if (given.device == "cpu") train::train_on_hosts(j);
  } catch (const train::no_plan& why) {
    train::say(why.what());
    return command::infeasible;
  }
  const auto& told = j.told;
  if (j.place.rank == 0 && given.dry_run)
    std::cout << (given.json ? hetsched::detail::dump({{"dry_run", dry_run_json(told)}}) : dry_run_summary(j));
  else if (j.place.rank == 0)
    tell_result(j, files);
  if (!told.failure.empty())
    train::say(told.failure + "; stopped after step " +
               std::to_string(told.first_step + static_cast<std::int64_t>(told.losses.size())));
  return told.stopped_by != 0 || !told.failure.empty() ? command::fault : command::done;
}

int train_command(const train::arguments& given) {
  bool meets = given.join;
  try {
    return train_as_told(given, meets);
  } catch (const std::exception& e) {
    if (!meets) train::tell_failure(given.place, e.what());
    throw;
  }
}

/// What is trained, and on what.
void add_work_options(CLI::App& app, train::arguments& given) {
  app.add_option("--plan", given.plan, "plan.json to run; else the layers are timed, and cut for --ranks equal ranks");
  app.add_option("--schedule", given.schedule, "in place of the plan's: auto, or a name that hetsched-simulate takes");
  app.add_option("--chunks", given.chunks, "stages per rank of interleaved and looped schedules")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  train::add_model_options(app, given.model);
  app.add_option("--text", given.text, "what to train on (the text that comes with the example)");
  app.add_option("--validation", given.validation, "a text that is not trained on, for losses at the end");
  app.add_option("--validate-every", given.validate_every, "steps between these, too; 0: at the end only")
      ->check(CLI::Range(0, 1'000'000'000))
      ->capture_default_str();
  app.add_option("--validation-batches", given.validation_batches, "of as many samples as a step has")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--microbatches", given.microbatches, "per step (8, or as planned)")->check(CLI::Range(1, 1'000'000));
  app.add_option("--microbatch-size", given.microbatch_size, "samples (1, or as planned)")->check(CLI::Range(1, 1'000'000));
  app.add_option("--accumulate", given.accumulate, "batches of the plan's microbatches whose gradients make a step")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--steps", given.steps, "of the whole training")->check(CLI::Range(0, 1'000'000'000))->capture_default_str();
}

void add_optimizer_options(CLI::App& app, train::arguments& given) {
  app.add_option("--optimizer", given.optimizer, "sgd or adamw")->check(CLI::IsMember({"sgd", "adamw"}))->capture_default_str();
  app.add_option("--lr", given.learning_rate, "learning rate, at its peak")->check(CLI::Range(0.0, 1e6))->capture_default_str();
  app.add_option("--lr-warmup", given.warmup, "steps in which the learning rate rises to its peak")
      ->check(CLI::Range(0, 1'000'000'000))
      ->capture_default_str();
  app.add_option("--lr-decay", given.decay, "of the learning rate behind the warm-up, down to the last step")
      ->check(CLI::IsMember({"constant", "linear", "cosine"}))
      ->capture_default_str();
  app.add_option("--lr-floor", given.rate_floor, "share of the peak that linear and cosine come to")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--momentum", given.momentum, "of sgd")->check(CLI::Range(0.0, 1.0))->capture_default_str();
  app.add_option("--weight-decay", given.weight_decay, "per unit of learning rate")
      ->check(CLI::Range(0.0, 1e3))
      ->capture_default_str();
  app.add_option("--clip", given.clip, "longest gradient, over all parameters; 0: none")
      ->check(CLI::Range(0.0, 1e30))
      ->capture_default_str();
}

void add_checkpoint_options(CLI::App& app, train::arguments& given) {
  app.add_option("--checkpoint", given.checkpoint.folder, "folder for checkpoints, which all ranks see");
  app.add_option("--every", given.checkpoint.every, "steps between checkpoints; 0: one at the end")
      ->check(CLI::Range(0, 1'000'000'000))
      ->capture_default_str();
  app.add_option("--keep", given.checkpoint.keep, "checkpoints that are kept")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_flag("--checkpoint-behind", given.checkpoint.behind,
               "writes them while the training goes on, from a copy of its state");
  app.add_flag("--resume", given.checkpoint.resume, "goes on from the newest whole checkpoint, on any number of ranks");
  app.add_flag_callback(
      "--resume-or-start", [&given] { given.checkpoint.resume = given.checkpoint.or_start = true; },
      "the same, but begins at step 0 if there is none");
}

void add_device_options(CLI::App& app, train::arguments& given) {
  app.add_option("--device", given.device,
                 "where ranks compute: cpu, cuda (GPUs in turn) or cuda:N, for all or, with commas between, for each of them")
      ->capture_default_str();
  app.add_option("--products", given.products, "on GPUs: numbers of matrix products; their sums, and all else, are fp32")
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->capture_default_str();
  app.add_option("--boundaries", given.boundaries,
                 "on GPUs: numbers of activations and their gradients between layers, bf16 or fp32 (as the plan says, or fp32)")
      ->check(CLI::IsMember({"bf16", "fp32"}));
  app.add_flag("--graphs", given.graphs,
               "on GPUs: stages' work is captured in CUDA graphs, and launched as such from the third time on");
  app.add_flag("--nccl", given.nccl, "on GPUs of several processes: tensors go over NCCL, not by way of the hosts");
  app.add_flag("--cuda-ipc", given.cuda_ipc, "between GPUs of processes of a host: activations by CUDA IPC, without NCCL");
  app.add_flag("--sums-in-order", given.sums_in_order, "with --nccl: gradients are added in the order of hosts, to the last bit");
}

/// What changes while it trains: orders, cuts and ranks.
void add_change_options(CLI::App& app, train::arguments& given) {
  app.add_option("--replan-every", given.replan_every,
                 "steps after which the order of work is solved again, for what they took; 0: never")
      ->check(CLI::Range(0, 1'000'000'000))
      ->capture_default_str();
  app.add_option("--replan-gain", given.replan_gain, "share of the iteration by which another order has to be shorter")
      ->check(CLI::Range(-1.0, 1.0))
      ->capture_default_str();
  app.add_flag("--replan-layers", given.replan_layers,
               "with --replan-every: layers move between stages, too, for what they took on each rank");
  app.add_flag("--elastic", given.elastic,
               "gloo: if ranks are lost, the others go on from the last checkpoint, in the same processes");
  app.add_option("--snapshot-every", given.snapshot_every,
                 "steps after which an --elastic training is kept in memory, each part by two ranks; 0: never")
      ->check(CLI::Range(0, 1'000'000'000))
      ->capture_default_str();
  app.add_option("--settle", given.settle_s, "seconds that ranks wait for each other to go on")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_flag_callback(
      "--join", [&given] { given.elastic = given.join = true; }, "joins an --elastic training at the end of a step");
}

void add_output_options(CLI::App& app, train::arguments& given) {
  app.add_option("--trace", given.trace, "Chrome trace of the last step to write (for ui.perfetto.dev)");
  app.add_option("--report", given.report, "HTML report of the last step to write");
  app.add_option("--times", given.times, "CSV of what actions took, by kind and stage, to write: median and spread");
  app.add_option("--trace-steps", given.trace_steps, "how many last steps these three tell of, by medians")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  app.add_option("--losses", given.losses, "CSV of steps and losses to write");
  app.add_option("--log", given.log, "JSON lines to write, one behind each step");
  app.add_option("--metrics", given.metrics, "Prometheus text to write, after each step anew");
  app.add_option("--status", given.status, "HTML page to look at while it trains, written every few seconds anew");
  app.add_option("--out-plan", given.out_plan, "the plan that was run to write");
}

}  // namespace

int main(int argc, char** argv) {
  const train::side_errors never_wait;
  command::application app(command::about("hetsched-train"), "hetsched-train");
  app.footer(
      "hetsched-train --ranks 4 --steps 50\n"
      "hetsched-train --plan plan.json --checkpoint checkpoints --every 10");
  train::arguments given;
  add_work_options(app, given);
  add_optimizer_options(app, given);
  add_checkpoint_options(app, given);
  train::add_place_options(app, given.place);
  add_device_options(app, given);
  add_change_options(app, given);
  add_output_options(app, given);
  app.add_flag("--dry-run", given.dry_run,
               "all ranks meet, options and files are checked, one batch goes forward and back; nothing is updated or written");
  app.add_flag("--json", given.json, "prints the result as JSON");
  return command::run(app, argc, argv, [&] { return train_command(given); });
}
