// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include <hetsched/gloo.hpp>

#include <train/place.hpp>

namespace train {

[[nodiscard]] inline hetsched::gloo_options options_of(const place_arguments& given) {
  return {.rendezvous = given.store,
          .store = {},
          .run = given.run,
          .interface = given.interface,
          .address = given.address,
          .connect_deadline_s = given.connect_deadline_s,
          .secret = read_secret(given.secret_file),
          .say = [](const std::string& text) { std::cerr << "hetsched-train: " + text + '\n'; }};
}

inline void tell_strangers(int rank, const std::vector<hetsched::stranger>& strangers) {
  if (strangers.empty()) return;
  std::cerr << "rank " + std::to_string(rank) + " turned away " + hetsched::to_text(strangers) + '\n' << std::flush;
}

enum class gpu_way { hosts, nccl, ipc };

/// Ranks over NCCL or CUDA IPC tell each other more than others do, so all or none are to be. Throws: known_to_all; as gather.
inline void agree_on_way(control comm, gpu_way way, double deadline_s) {
  const auto told = gather(comm, {static_cast<double>(way)}, deadline_s, "comparing --nccl and --cuda-ipc");
  for (std::size_t r = 1; r < told.size(); ++r)
    if (told[r] != told[0]) {
      const bool nccl = told[0][0] == 1 || told[r][0] == 1;
      const auto text = [&](std::size_t rank) {
        return std::string(told[rank][0] == (nccl ? 1 : 2) ? "given" : "not given") + " on rank " + std::to_string(rank);
      };
      throw known_to_all((nccl ? "--nccl: " : "--cuda-ipc: ") + text(0) + ", " + text(r));
    }
}

/// Calls body(Communicator&) for this process's rank, and sees to it that what fails here fails everywhere.
template <class Tensor, class Body>
void on_gloo(const place_arguments& given, const hetsched::process_place& place, Body&& body) {
  std::exception_ptr known;
  hetsched::run_on_processes<Tensor>(place, options_of(given), [&](auto& comm) {
    tell_strangers(comm.rank(), comm.strangers());
    try {
      body(comm);
    } catch (const known_to_all&) {
      known = std::current_exception();
    }
  });
  if (known) std::rethrow_exception(known);
}

}  // namespace train
