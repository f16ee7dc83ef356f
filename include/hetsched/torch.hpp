// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/torch/layer.hpp>
#include <hetsched/torch/loss.hpp>
#include <hetsched/torch/named_module.hpp>
#include <hetsched/torch/optimizer.hpp>
#include <hetsched/torch/tensor.hpp>
