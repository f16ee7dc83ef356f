// SPDX-License-Identifier: Apache-2.0
#pragma once

// What plans are worth.

#include <hetsched/evaluate/breakdown.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/evaluate/sends.hpp>
