// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A strict device: the CUDA backend, layers and trainers run on GPUs that are threads, without a GPU or the CUDA toolkit, and
/// what CUDA would let pass or fail at only now and then is reported: races, memory that is not there, calls on another device,
/// what must not be captured.

#include <hetsched/cuda_check/api.hpp>
#include <hetsched/cuda_check/launch.hpp>
#include <hetsched/cuda_check/machine.hpp>
