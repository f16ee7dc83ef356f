// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include <hetsched/gloo/gloo_communicator.hpp>

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

/// Whether an operation ends soon.
inline bool ends_soon(gloo_end& end, gloo_end::operation& op) {
  const auto until = deadline_in(20);
  while (!end.poll(op))
    if (end.wait(until, true) != wait_result::progress) return end.poll(op);
  return true;
}

inline gloo_tensor filled(std::size_t rows, std::size_t columns, double first) {
  gloo_tensor t(rows, columns);
  for (std::size_t k = 0; k < rows * columns; ++k) t.data()[k] = first + static_cast<double>(k);
  return t;
}

}  // namespace hetsched::test
