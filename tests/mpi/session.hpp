// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <hetsched/mpi.hpp>

#include "../runtime/communicator/process_planes.hpp"

namespace hetsched::test {

/// Of this process, until it ends.
inline mpi_session& mpi() {
  static mpi_session one;
  return one;
}

template <class Tensor = plane_tensor>
std::unique_ptr<mpi_communicator<Tensor>> make_mpi(const mpi_options& options = {}) {
  return std::make_unique<mpi_communicator<Tensor>>(mpi(), options);
}

}  // namespace hetsched::test
