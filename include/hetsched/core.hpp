// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/checksum.hpp>
#include <hetsched/core/contract.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/layer_range.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/core/state_slice.hpp>
#include <hetsched/core/units.hpp>
