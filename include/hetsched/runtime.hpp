// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/runtime/any_layer.hpp>
#include <hetsched/runtime/communicator.hpp>
#include <hetsched/runtime/executor.hpp>
#include <hetsched/runtime/layer.hpp>
#include <hetsched/runtime/layer_stack.hpp>
#include <hetsched/runtime/rank_program.hpp>
#include <hetsched/runtime/tensor.hpp>
#include <hetsched/runtime/thread_communicator.hpp>
#include <hetsched/runtime/thread_executor.hpp>
