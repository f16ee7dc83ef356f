// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/reshard/gradient_chunks.hpp>
#include <hetsched/reshard/layout.hpp>
#include <hetsched/reshard/price.hpp>
#include <hetsched/reshard/slice.hpp>
#include <hetsched/reshard/strategies.hpp>
#include <hetsched/reshard/strategy.hpp>
#include <hetsched/reshard/strided_runs.hpp>
#include <hetsched/reshard/transfer_plan.hpp>
