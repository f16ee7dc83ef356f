// SPDX-License-Identifier: Apache-2.0
#include "mpi_main.cpp"

#ifndef HETSCHED_COMPILED
#error "whoever links hetsched::compiled declares only"
#endif
