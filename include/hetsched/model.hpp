// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/model/families.hpp>
#include <hetsched/model/layer.hpp>
#include <hetsched/model/layer_operators.hpp>
#include <hetsched/model/operator.hpp>
#include <hetsched/model/transformer.hpp>
#include <hetsched/model/transformer_operators.hpp>
