// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/cuda/local_communicator.hpp>
#include <hetsched/cuda/runtime.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/runtime/layout/plan_layout.hpp>

#include <gpt/shapes.hpp>
#include <gpt_cuda/on_gpus.hpp>
#include <train/cuda.hpp>
#include <train/device.hpp>
#include <train/gpu_rank.hpp>
#ifdef HETSCHED_WITH_GLOO
#include <train/over_ipc.hpp>
#include <train/processes.hpp>
#endif
#ifdef HETSCHED_WITH_NCCL
#include <hetsched/cuda/nccl.hpp>

#include <train/nics.hpp>
#include <train/over_nccl.hpp>
#endif

namespace {

using api = hetsched::cuda_runtime;
using devices = hetsched::cuda_devices<api>;

void train_in_this_process(train::job& j, devices& all) {
  if (!j.plan && !j.given.place.ranks) j.place.ranks = train::names_in(j.given.device);
  const auto places = train::places_of(j.given.device, j.place.ranks, all.count());
  train::job::result told;
  hetsched::run_on_threads(hetsched::cuda_local_communicator<gpt_cuda::tensor<api>, api>::connect(all, places), [&](auto& comm) {
    const int r = comm.rank();
    train::job::result result;
    const train::gpu_rank<api> here(all, places[static_cast<std::size_t>(r)], r, j.given);
    train::train_rank(j, comm, here, result);
    if (r == 0) told = std::move(result);
  });
  j.told = std::move(told);
}

#ifdef HETSCHED_WITH_NCCL
/// Between which pairs of ranks tensors and gradients pass: all, where the plan is still to be made.
std::vector<std::pair<int, int>> joined_ranks_of(const train::job& j) {
  if (j.plan) {
    std::vector<std::pair<int, int>> tied;
    for (const auto& tie : gpt::ties(j.config)) tied.emplace_back(tie.first.layer, tie.second.layer);
    return hetsched::joined_ranks(
        hetsched::make_training_layout(j.plan->plan, {.schedule = j.given.schedule, .chunks = j.given.chunks}), tied);
  }
  std::vector<std::pair<int, int>> all;
  for (int a = 0; a < j.place.ranks; ++a)
    for (int b = a + 1; b < j.place.ranks; ++b) all.emplace_back(a, b);
  return all;
}
#endif

}  // namespace

std::vector<gpt_cuda::layer_costs> train::time_on_gpu(const gpt::config& m, const std::string& corpus, int place,
                                                      const gpu_timing& how) {
  devices all;
  return gpt_cuda::operations<api>::time_layers(all, place, timing_of(m, corpus, how));
}

int train::gpu_count() { return devices().count(); }

void train::train_on_gpus(job& j) {
  if (j.given.model.precision == "fp64")
    throw hetsched::input_error("--precision fp64 is not for --device " + j.given.device +
                                ": GPUs compute in fp32 and bf16 here");
  devices all;
  if (j.given.place.transport == "threads") return train_in_this_process(j, all);
#ifdef HETSCHED_WITH_GLOO
  using tensor = gpt_cuda::tensor<api>;
  using rank = gpu_rank<api, hetsched::cuda_stager<tensor, api>>;
  if (j.given.elastic && names_in(j.given.device) > 1)
    throw hetsched::input_error("--elastic: " + j.given.device +
                                " names devices of ranks, which change their numbers when one is lost");
  const int local = j.place.local_rank;  // stays, whatever number the rank gets
  const auto place = [&, local](const hetsched::process_place& here) {
    if (j.given.device == "cuda") return local % all.count();
    return place_of(j.given.device, here.ranks, here.rank, all.count());
  };
  const auto make_rank = [&](const hetsched::process_place& here) { return rank(all, place(here), here.rank, j.given); };
  if (j.given.cuda_ipc) {
    if (j.given.elastic) throw hetsched::input_error("--elastic: CUDA IPC does not go on where a rank is lost");
    return on_gloo<tensor>(j.given.place, j.place, [&](auto& network) {
      agree_on_way(network, gpu_way::ipc, j.given.place.deadline_s);
      over_ipc<tensor>(all, place(j.place), network, j.given.place.deadline_s,
                       [&](auto& comm) { train_rank(j, comm, make_rank(j.place), j.told); });
    });
  }
  if (!j.given.nccl)
    return train_on_processes<tensor>(
        j, [&](auto& comm, const hetsched::process_place& here) { train_rank(j, comm, make_rank(here), j.told); });
#ifdef HETSCHED_WITH_NCCL
  if (j.given.elastic) throw hetsched::input_error("--elastic: NCCL does not go on where a rank is lost");
  on_gloo<tensor>(j.given.place, j.place, [&](auto& network) {
    agree_on_way(network, gpu_way::nccl, j.given.place.deadline_s);
    const double deadline_s = j.given.place.deadline_s;
    const auto setting =
        choose_nccl(network, find_nccl_rank(all, place(j.place)), joined_ranks_of(j), j.given.place.interface, deadline_s);
    set_for_nccl(setting.variables);
    if (j.place.rank == 0)
      for (const auto& line : setting.told) say(line);
    over_nccl<tensor>(all, place(j.place), hetsched::nccl_runtime(), network,
                      {.deadline_s = deadline_s, .channels = setting.channels},
                      [&](auto& comm) { train_rank(j, comm, make_rank(j.place), j.told); });
  });
#endif
#endif
}
