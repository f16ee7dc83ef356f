// SPDX-License-Identifier: Apache-2.0
#pragma once

// Models by their layers and operators. Not in here, since they more than double what this takes to compile:
// <hetsched/model/graph_operators.hpp> (any model as a graph of operators, cut into layers) and
// <hetsched/model/symbolic_operators.hpp> (a tracer that makes such a graph).

#include <hetsched/model/families.hpp>
#include <hetsched/model/layer.hpp>
#include <hetsched/model/layer_operators.hpp>
#include <hetsched/model/operator.hpp>
#include <hetsched/model/transformer.hpp>
#include <hetsched/model/transformer_operators.hpp>
