// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/runtime/communicator/clock_offset.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/communicator/shaped_communicator.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/executor.hpp>
#include <hetsched/runtime/executor/rank_program.hpp>
#include <hetsched/runtime/executor/stager.hpp>
#include <hetsched/runtime/executor/thread_executor.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/runtime/layer/any_layer.hpp>
#include <hetsched/runtime/layer/layer.hpp>
#include <hetsched/runtime/layer/layer_stack.hpp>
#include <hetsched/runtime/layer/parameter.hpp>
#include <hetsched/runtime/layer/tensor.hpp>
#include <hetsched/runtime/measure/measured.hpp>
#include <hetsched/runtime/measure/profile_layers.hpp>
#include <hetsched/runtime/measure/profile_links.hpp>
#include <hetsched/runtime/trainer/gradient_exchange.hpp>
#include <hetsched/runtime/trainer/optimizer.hpp>
#include <hetsched/runtime/trainer/trainer.hpp>
#include <hetsched/runtime/trainer/training_layout.hpp>
