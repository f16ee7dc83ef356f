// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>

#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>

#include <train/host.hpp>
#include <train/on_hosts.hpp>
#ifdef HETSCHED_WITH_GLOO
#include <train/processes.hpp>
#endif
#ifdef HETSCHED_WITH_MPI
#include <train/mpi.hpp>
#endif

namespace train {

template <class Real>
void on_hosts(const place_arguments& given, const hetsched::process_place& place,
              const std::function<void(host_communicator<Real>&)>& body) {
  using tensor = gpt::tensor<Real>;
  if (given.transport == "threads")
    return hetsched::run_on_threads(hetsched::thread_communicator<tensor>::connect(place.ranks), [&](const auto& threads) {
      host_communicator<Real> comm(threads);
      body(comm);
    });
#ifdef HETSCHED_WITH_MPI
  if (given.transport == "mpi")
    return on_mpi<tensor>(given, place, [&](const auto& network) {
      host_communicator<Real> comm(network);
      body(comm);
    });
#endif
#ifdef HETSCHED_WITH_GLOO
  on_gloo<tensor>(given, place, [&](const auto& network) {
    host_communicator<Real> comm(network);
    body(comm);
  });
#endif
}

template void on_hosts<float>(const place_arguments&, const hetsched::process_place&,
                              const std::function<void(host_communicator<float>&)>&);
template void on_hosts<double>(const place_arguments&, const hetsched::process_place&,
                               const std::function<void(host_communicator<double>&)>&);

void tell_failure([[maybe_unused]] const place_arguments& given, [[maybe_unused]] const std::string& why) {
#ifdef HETSCHED_WITH_MPI
  if (given.transport == "mpi") {
    try {
      tell_failure_by_mpi(given, why);
    } catch (const hetsched::error&) {  // the reason is the one that is told
    }
    return;
  }
#endif
#ifdef HETSCHED_WITH_GLOO
  if (given.transport != "gloo") return;
  try {
    hetsched::tell_failure(find_place(given), options_of(given), why);
  } catch (const hetsched::rank_out_of_range& wrong) {
    hetsched::tell_failure(wrong.place, options_of(given), why);
  } catch (const hetsched::error&) {  // it has no place that others wait for
  }
#endif
}

void stay_out([[maybe_unused]] const place_arguments& given) {
#ifdef HETSCHED_WITH_MPI
  if (given.transport == "mpi") (void)mpi_workers(given, -1);
#endif
}

namespace {

template <class Real>
void train_on_hosts_as(job& j) {
  if (j.given.place.transport == "threads") {
    job::result told;
    on_hosts<Real>(j.given.place, j.place, [&](auto& comm) {
      job::result result;
      train_on_host(j, comm, result);
      if (comm.rank() == 0) told = std::move(result);
    });
    j.told = std::move(told);
    return;
  }
#ifdef HETSCHED_WITH_MPI
  if (j.given.place.transport == "mpi")
    return on_hosts<Real>(j.given.place, j.place, [&](auto& comm) { train_on_host(j, comm, j.told); });
#endif
#ifdef HETSCHED_WITH_GLOO
  train_on_processes<gpt::tensor<Real>>(j, [&](const auto& network, const hetsched::process_place&) {
    host_communicator<Real> comm(network);
    train_on_host(j, comm, j.told);
  });
#endif
}

}  // namespace

void train_on_hosts(job& j) { j.given.model.precision == "fp64" ? train_on_hosts_as<double>(j) : train_on_hosts_as<float>(j); }

}  // namespace train
