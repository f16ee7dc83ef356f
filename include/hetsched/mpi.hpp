// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/mpi/mpi_communicator.hpp>
#include <hetsched/mpi/mpi_session.hpp>
#include <hetsched/mpi/run_on_mpi.hpp>
