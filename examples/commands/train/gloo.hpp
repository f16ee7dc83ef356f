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

/// Ranks over NCCL tell each other more than others do, so all or none are to be. Throws: known_to_all; as gather.
inline void agree_on_nccl(control comm, bool nccl, double deadline_s) {
  const auto told = gather(comm, {nccl ? 1.0 : 0.0}, deadline_s, "comparing --nccl");
  for (std::size_t r = 1; r < told.size(); ++r)
    if (told[r] != told[0]) {
      const auto text = [&](std::size_t rank) { return std::string(told[rank][0] != 0 ? "given" : "not given"); };
      throw known_to_all("--nccl: " + text(0) + " on rank 0, " + text(r) + " on rank " + std::to_string(r));
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
