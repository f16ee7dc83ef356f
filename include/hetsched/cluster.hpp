// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/degrees.hpp>
#include <hetsched/cluster/device.hpp>
#include <hetsched/cluster/device_group.hpp>
#include <hetsched/cluster/link_index.hpp>
#include <hetsched/cluster/link_kind.hpp>
#include <hetsched/cluster/placement.hpp>
#include <hetsched/cluster/submesh.hpp>
#include <hetsched/cluster/validate.hpp>
