// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/cuda/api.hpp>
#include <hetsched/cuda/backend.hpp>
#include <hetsched/cuda/buffer.hpp>
#include <hetsched/cuda/carried_layer.hpp>
#include <hetsched/cuda/choose_nics.hpp>
#include <hetsched/cuda/devices.hpp>
#include <hetsched/cuda/find_nics.hpp>
#include <hetsched/cuda/graphs.hpp>
#include <hetsched/cuda/hardware.hpp>
#include <hetsched/cuda/ipc_communicator.hpp>
#include <hetsched/cuda/local_axis.hpp>
#include <hetsched/cuda/local_communicator.hpp>
#include <hetsched/cuda/nccl_api.hpp>
#include <hetsched/cuda/nccl_axis.hpp>
#include <hetsched/cuda/nccl_communicator.hpp>
#include <hetsched/cuda/queue.hpp>
#include <hetsched/cuda/runtime.hpp>
#include <hetsched/cuda/stager.hpp>
#include <hetsched/cuda/step_graph.hpp>
#include <hetsched/cuda/tensor.hpp>
