// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/runtime/any_layer.hpp>
#include <hetsched/runtime/clock_offset.hpp>
#include <hetsched/runtime/communicator.hpp>
#include <hetsched/runtime/executor.hpp>
#include <hetsched/runtime/gradient_exchange.hpp>
#include <hetsched/runtime/layer.hpp>
#include <hetsched/runtime/layer_stack.hpp>
#include <hetsched/runtime/measured.hpp>
#include <hetsched/runtime/optimizer.hpp>
#include <hetsched/runtime/parameter.hpp>
#include <hetsched/runtime/profile_layers.hpp>
#include <hetsched/runtime/profile_links.hpp>
#include <hetsched/runtime/rank_program.hpp>
#include <hetsched/runtime/shaped_communicator.hpp>
#include <hetsched/runtime/stager.hpp>
#include <hetsched/runtime/tensor.hpp>
#include <hetsched/runtime/thread_communicator.hpp>
#include <hetsched/runtime/thread_executor.hpp>
#include <hetsched/runtime/thread_ranks.hpp>
#include <hetsched/runtime/trainer.hpp>
#include <hetsched/runtime/training_layout.hpp>
