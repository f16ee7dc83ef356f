// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <hetsched/gloo/gloo_communicator.hpp>

#include "../runtime/communicator/process_planes.hpp"
#include "../runtime/dense.hpp"
#include "../runtime/group/groups.hpp"

namespace hetsched::test {

using gloo_tensor = matrix<double>;
using gloo_end = gloo_communicator<gloo_tensor>;

/// Ends of `ranks` ranks, all in this process. They are destroyed one after the other.
template <class Tensor = gloo_tensor>
std::vector<std::optional<gloo_communicator<Tensor>>> connect_ends(int ranks) {
  std::vector<std::optional<gloo_communicator<Tensor>>> ends(static_cast<std::size_t>(ranks));
  const auto store = make_process_store();
  rethrow_first(on_ranks(ranks, [&](int r) {
    gloo_options options;
    options.store = store;
    ends[static_cast<std::size_t>(r)].emplace(process_place{.rank = r, .ranks = ranks, .launcher = {}, .master = {}, .run = {}},
                                              options);
  }));
  return ends;
}

/// Calls body(make) on a thread for each of `ranks` ranks; see process_planes.hpp.
template <class Body>
void on_ends(int ranks, const Body& body) {
  const auto store = make_process_store();
  rethrow_first(on_ranks(ranks, [&](int r) {
    int number = 0;
    body([&] {
      gloo_options options;
      options.store = store;
      options.run = "run-" + std::to_string(number++);
      return std::make_unique<gloo_end>(process_place{.rank = r, .ranks = ranks, .launcher = {}, .master = {}, .run = {}},
                                        options);
    });
  }));
}

}  // namespace hetsched::test
