// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/model/families.hpp>
#include <hetsched/model/layer.hpp>
#include <hetsched/model/transformer.hpp>
