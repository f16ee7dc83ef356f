// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/device_group.hpp>
#include <hetsched/cluster/submesh.hpp>

namespace hetsched {

/// Devices for the stages of pipelines, of these shapes by pipeline, none twice. Every stage lies on whole nodes, or on
/// consecutive devices of one node; neighbours in a pipeline share a node where they would if its stages of a subcluster lay side
/// by side from the last one on, as far as that leaves room for all. Requires: shapes as submeshes() lists them; those of each
/// subcluster have no more devices than it.
[[nodiscard]] std::vector<std::vector<device_group>> pack_devices(const cluster& hardware,
                                                                  const std::vector<std::vector<submesh>>& lines);

/// The same for one pipeline.
[[nodiscard]] std::vector<device_group> pack_devices(const cluster& hardware, const std::vector<submesh>& shapes);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/search/pack_devices.ipp>
#endif
