// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/cuda/local_communicator.hpp>
#include <hetsched/cuda/runtime.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>

#include <gpt_cuda/on_gpus.hpp>
#include <train/cuda.hpp>
#include <train/device.hpp>
#include <train/gpu_rank.hpp>
#ifdef HETSCHED_WITH_GLOO
#include <train/processes.hpp>
#endif

namespace {

using api = hetsched::cuda_runtime;
using devices = hetsched::cuda_devices<api>;

void train_in_this_process(train::job& j, devices& all) {
  if (!j.plan && !j.given.place.ranks) j.place.ranks = train::names_in(j.given.device);
  const auto places = train::places_of(j.given.device, j.place.ranks, all.count());
  const auto on_host = [&](int p) { return (p < 0) != (places[0] < 0); };
  if (!j.plan && std::any_of(places.begin(), places.end(), on_host))
    throw hetsched::input_error("--device: ranks on GPUs and on the host are no equal ranks to plan for: give a --plan");
  if (j.given.graphs && std::find(places.begin(), places.end(), -1) != places.end())
    throw hetsched::input_error("--graphs: ranks on the host have no CUDA graphs");
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
  using rank = gpu_rank<api, hetsched::cuda_stager<gpt_cuda::tensor<api>, api>>;
  train_on_processes<rank>(j, [&](const hetsched::process_place& here) {
    return rank(all, place_of(j.given.device, here.ranks, here.rank, all.count()), here.rank, j.given);
  });
#endif
}
