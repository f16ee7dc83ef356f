// SPDX-License-Identifier: Apache-2.0
// What all ranks of a training agree on before they train.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/io/json/plan_json.hpp>
#include <hetsched/runtime/layout/plan_layout.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/schedule/passes.hpp>

#include <gpt/model.hpp>
#include <train/agree.hpp>
#include <train/boundaries.hpp>
#include <train/host_number.hpp>
#include <train/notes.hpp>
#include <train/plan.hpp>
#include <train/training.hpp>

namespace train {

/// The plan for these ranks: rank 0 times the layers, all ranks then plan alike.
template <class Rank, class Communicator>
hetsched::plan_file make_plan(const job& j, Communicator& comm, const Rank& here, bool half_boundaries) {
  const equal_ranks there{.ranks = comm.ranks(),
                          .microbatches = j.given.microbatches.value_or(8),
                          .microbatch_size = j.given.microbatch_size.value_or(1)};
  std::vector<double> mine;
  const double deadline_s = j.given.place.deadline_s;
  work_together(comm, deadline_s, "timing layers", [&](const auto& alive) {
    if (comm.rank() == 0) mine = here.time_layers(j, there.microbatch_size, half_boundaries, alive);
  });
  const auto times = gather(comm, mine, deadline_s, "timing layers").front();
  const auto layers = times.begin() + gpt::layer_count(j.config);
  auto found = plan_for(j.config, there, {times.begin(), layers}, {layers, times.end()},
                        half_boundaries ? 2 : j.given.model.element_bytes());
  if (!found)
    throw no_plan("no plan for " + std::to_string(comm.ranks()) + " ranks and " + std::to_string(gpt::layer_count(j.config)) +
                  " layers: " + found.why_not().reason);
  return *std::move(found);
}

/// Stages of ZeRO stage 3 that could gather nothing, as others hold it, too, run as at stage 2. Returns whether there are some,
/// or a tied embedding's.
[[nodiscard]] inline bool keep_shared_whole(hetsched::training_layout& layout, bool tied) {
  bool some = false;
  for (auto& line : layout.pipelines)
    for (std::size_t g = 0; g < line.groups.size(); ++g) {
      const auto is_at = [&](int stage) { return static_cast<std::size_t>(line.order.rank(0, stage)) == g; };
      if (line.groups[g].zero < 3) continue;
      const bool gathers = layout.pipelines.size() == 1 && line.order.directions == 1;
      if (!gathers) line.groups[g].zero = 2;
      some = some || !gathers || (tied && (is_at(0) || is_at(line.order.stages - 1)));
    }
  return some;
}

/// Where all ranks compute.
struct rank_devices {
  std::vector<char> on_gpu;  ///< by rank
  std::vector<double> host;  ///< by rank, its number; 0 without --cuda-ipc
  int can_halve = 0;         ///< ranks that can hand on bf16 numbers

  [[nodiscard]] std::ptrdiff_t on_gpus() const { return std::count(on_gpu.begin(), on_gpu.end(), char{1}); }
  [[nodiscard]] bool all_on_gpus() const { return on_gpus() == std::ssize(on_gpu); }
};

/// All ranks call it.
template <class Rank>
[[nodiscard]] rank_devices find_devices(control comm, const Rank& here, const arguments& given) {
  rank_devices found;
  for (const auto& told :
       gather(comm, {here.on_gpu() ? 1.0 : 0.0, given.cuda_ipc ? host_number() : 0.0, Rank::can_halve_boundaries ? 1.0 : 0.0},
              given.place.deadline_s, "comparing devices")) {
    found.on_gpu.push_back(told[0] != 0);
    found.host.push_back(told[1]);
    found.can_halve += told[2] != 0 ? 1 : 0;
  }
  return found;
}

/// Whether what lies between layers is of bf16 numbers. `speaks`: says so, or why not, where the plan wants them.
[[nodiscard]] inline bool halves_boundaries(const job& j, const rank_devices& devices, bool speaks) {
  const bool wants_halves = wants_half_boundaries(j), is_odd = j.config.hidden % 2 != 0;
  const bool halves = wants_halves && devices.can_halve == std::ssize(devices.on_gpu) && !is_odd;
  if (speaks && wants_halves && !j.given.boundaries && devices.can_halve > 0)
    say(halves ? "what lies between layers is of bf16 numbers, as the plan says: --boundaries fp32 keeps all bits"
               : std::string("what lies between layers is of fp32 numbers, not of bf16 as the plan says: ") +
                     (is_odd ? "--hidden is odd" : "processes with --device cpu know no other"));
  return halves;
}

/// Whether no tensor goes by way of the hosts. Between processes what is on a GPU does, unless it goes over NCCL, or, within a
/// host, by CUDA IPC.
[[nodiscard]] inline bool is_direct(const rank_devices& devices, const arguments& given) {
  return devices.on_gpus() == 0 || given.place.transport == "threads" || (given.nccl && devices.all_on_gpus());
}

/// An order of a pipeline with its transfers as they go between these devices.
[[nodiscard]] inline hetsched::schedule as_run(const hetsched::schedule& order, const hetsched::pipeline_layout& line,
                                               const rank_devices& devices, const arguments& given) {
  if (is_direct(devices, given)) return order;
  return hetsched::by_way_of_hosts(order, [&](int from, int to) {
    const auto first = static_cast<std::size_t>(line.first_of_group(from)),
               second = static_cast<std::size_t>(line.first_of_group(to));
    const bool a = devices.on_gpu[first] != 0, b = devices.on_gpu[second] != 0;
    return (a || b) && !(a && b && (given.nccl || (given.cuda_ipc && devices.host[first] == devices.host[second])));
  });
}

/// What all ranks are to do, the same on each of them.
struct common_work {
  rank_devices devices;
  bool half_boundaries = false;  ///< what lies between layers is of bf16 numbers
  hetsched::plan_file plan;
  hetsched::training_layout layout;        ///< with orders as they are run
  std::vector<hetsched::schedule> orders;  ///< by pipeline, as planned
  training_notes notes;
};

/// All ranks call it. Throws: known_to_all for options that differ, or that these ranks cannot follow; what make_plan throws.
template <class Rank, class Communicator>
[[nodiscard]] common_work agree_on_work(const job& j, Communicator& comm, const Rank& here) {
  const auto& given = j.given;
  const bool speaks = comm.rank() == 0;
  agree_on(comm, shared_options(given), given.place.deadline_s);
  common_work work;
  work.devices = find_devices(comm, here, given);
  if (!j.plan && work.devices.on_gpus() > 0 && !work.devices.all_on_gpus())
    throw known_to_all("--device: ranks on GPUs and on the host are no equal ranks to plan for: give a --plan");
  work.half_boundaries = halves_boundaries(j, work.devices, speaks);
  work.plan = j.plan ? *j.plan : make_plan(j, comm, here, work.half_boundaries);
  work.layout = hetsched::make_training_layout(work.plan.plan, {.schedule = given.schedule, .chunks = given.chunks});
  if (keep_shared_whole(work.layout, !gpt::ties(j.config).empty()) && speaks)
    say("in stages of ZeRO stage 3 weights that others hold, too (other pipelines or directions, a tied embedding), stay whole, "
        "and take more memory than planned");
  here.require_supported(j.config, work.layout, is_direct(work.devices, given));
  for (auto& line : work.layout.pipelines) {
    work.orders.push_back(line.order);
    line.order = as_run(work.orders.back(), line, work.devices, given);
  }
  work.notes = notes_of(j, work.plan.plan);
  agree_on(comm, work.notes, given.place.deadline_s);
  return work;
}

}  // namespace train
