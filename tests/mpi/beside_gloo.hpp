// SPDX-License-Identifier: Apache-2.0
#pragma once
#ifdef HETSCHED_TEST_GLOO

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <hetsched/gloo/gloo_communicator.hpp>
#include <hetsched/runtime/communicator/router.hpp>

#include "session.hpp"

namespace hetsched::test {

/// Between neighbours over MPI and over Gloo in turn, so that ranks have edges over both; gradients the other way round.
struct in_turn {
  [[nodiscard]] routed_edge operator()(const edge& e) const {
    return {static_cast<std::size_t>((std::min(e.from, e.to) + (e.what == payload::gradient ? 1 : 0)) % 2), e};
  }
};

/// Routers of this process's MPI and Gloo, which meet in a folder of theirs.
class mpi_and_gloo {
 public:
  mpi_and_gloo() {
    const auto name = (std::filesystem::temp_directory_path() / "hetsched_routed_XXXXXX").string();
    std::copy(name.begin(), name.end(), folder_.begin());
    if (mpi().rank() == 0) REQUIRE(::mkdtemp(folder_.data()));
    MPI_Bcast(folder_.data(), static_cast<int>(folder_.size()), MPI_CHAR, 0, MPI_COMM_WORLD);
  }
  ~mpi_and_gloo() {
    MPI_Barrier(MPI_COMM_WORLD);
    if (mpi().rank() == 0) std::filesystem::remove_all(folder_.data());
  }
  mpi_and_gloo(const mpi_and_gloo&) = delete;
  mpi_and_gloo& operator=(const mpi_and_gloo&) = delete;

  template <class Tensor>
  [[nodiscard]] gloo_communicator<Tensor> gloo() {
    gloo_options options;
    options.rendezvous = std::string("file:") + folder_.data();
    options.run = "run-" + std::to_string(runs_++);
    return gloo_communicator<Tensor>(
        process_place{.rank = mpi().rank(), .ranks = mpi().ranks(), .launcher = {}, .master = {}, .run = {}}, options);
  }
  /// MPI agrees and aborts.
  template <class Tensor>
  [[nodiscard]] auto router_by_mpi() {
    const auto by_mpi = *make_mpi<Tensor>();
    return router<mpi_communicator<Tensor>, in_turn, mpi_communicator<Tensor>, gloo_communicator<Tensor>>(by_mpi, {}, by_mpi,
                                                                                                          gloo<Tensor>());
  }
  /// Gloo does.
  template <class Tensor>
  [[nodiscard]] auto router_by_gloo() {
    const auto by_gloo = gloo<Tensor>();
    return router<gloo_communicator<Tensor>, in_turn, gloo_communicator<Tensor>, mpi_communicator<Tensor>>(by_gloo, {}, by_gloo,
                                                                                                           *make_mpi<Tensor>());
  }

 private:
  std::array<char, 256> folder_{};
  int runs_ = 0;
};

}  // namespace hetsched::test

#endif
