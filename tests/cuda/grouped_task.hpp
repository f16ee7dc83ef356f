// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/reshard/layout.hpp>
#include <hetsched/runtime/executor/boundary_transfer.hpp>
#include <hetsched/runtime/executor/executor.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>

#include "../runtime/numbered.hpp"
#include "fake_layers.hpp"

namespace hetsched::test {

/// Stages that change elements one by one, each on a group that lays out the tensor in its way.
struct grouped_task {
  schedule order;
  std::vector<layout> layouts;  ///< by stage
  pipeline_groups groups;
  std::uint64_t seed = 1;

  [[nodiscard]] int ranks() const {
    int count = 0;
    for (const int n : groups.devices) count += n;
    return count;
  }
  /// The stage and the place in its group of a rank.
  [[nodiscard]] std::pair<std::size_t, int> place(int rank) const {
    std::size_t s = 0;
    while (rank >= groups.devices[s]) rank -= groups.devices[s++];
    return {s, rank};
  }
  /// A device's part of an input or target of a microbatch.
  [[nodiscard]] matrix<double> part(int rank, int microbatch, bool target) const {
    const auto [s, index] = place(rank);
    const auto whole = layouts[s].whole();
    random_source random(seed * 1000 + static_cast<std::uint64_t>(2 * microbatch + target));
    const auto all =
        random_matrix<double>(random, static_cast<std::size_t>(whole[0].size()), static_cast<std::size_t>(whole[1].size()));
    const auto own = slice_of(layouts[s], index);
    matrix<double> cut(static_cast<std::size_t>(own[0].size()), static_cast<std::size_t>(own[1].size()));
    hetsched::copy_part(all.data(), whole, cut.data(), own, own);
    return cut;
  }
};

inline grouped_task random_task(random_source& random, std::uint64_t seed) {
  grouped_task t{.order = {}, .layouts = {}, .groups = {}, .seed = seed};
  const int stages = random.integer(2, 3), microbatches = random.integer(2, 4);
  std::vector<int> warmups;
  const std::vector<std::int64_t> extents{random.integer(1, 5), random.integer(1, 6)};
  for (int s = 0; s < stages; ++s) {
    warmups.push_back(stages - s);
    t.layouts.push_back(random_layout(random, extents, random_mesh(random, 3)));
    t.groups.devices.push_back(t.layouts.back().device_count());
  }
  for (std::size_t s = 1; s < t.layouts.size(); ++s)
    t.groups.boundaries.push_back(make_boundary_transfer(t.layouts[s - 1], t.layouts[s], random_strategy(random)));
  t.order = one_f_one_b(warmups, microbatches);
  return t;
}

struct outcome_of_group_rank {
  std::vector<double> losses;
  matrix<double> gradient;
  friend bool operator==(const outcome_of_group_rank&, const outcome_of_group_rank&) = default;
};

inline std::vector<outcome_of_group_rank> on_host(const grouped_task& t) {
  using communicator = thread_communicator<matrix<double>>;
  std::vector<outcome_of_group_rank> all(static_cast<std::size_t>(t.ranks()));
  hetsched::run_on_threads(communicator::connect(t.ranks()), [&](communicator& end) {
    std::vector<activation<double>> stage(1);
    std::vector<matrix<double>> inputs, targets;
    for (int m = 0; m < t.order.microbatches; ++m) {
      inputs.push_back(t.part(end.rank(), m, false));
      targets.push_back(t.part(end.rank(), m, true));
    }
    pipeline_executor<matrix<double>, activation<double>, communicator> executor(t.order, std::span(stage), t.groups, end,
                                                                                 {.deadline_s = 20});
    for (int step = 0; step < 2; ++step)
      executor.step(std::span<const matrix<double>>(inputs), std::span<const matrix<double>>(targets), task<double>::loss);
    auto& own = all[static_cast<std::size_t>(end.rank())];
    own.losses.assign(executor.losses().begin(), executor.losses().end());
    own.gradient = stage[0].sum[0];
  });
  return all;
}

/// Every rank on its place; see run_on_fake.
template <class communicator>
std::vector<outcome_of_group_rank> on_fake(const grouped_task& t, fake_devices& devices, std::vector<communicator> ends,
                                           const std::vector<int>& places) {
  std::vector<outcome_of_group_rank> all(places.size());
  hetsched::run_on_threads(std::move(ends), [&](communicator& end) {
    const auto rank = static_cast<std::size_t>(end.rank());
    cuda_backend<cuda_check::api> backend(devices, places[rank], "rank " + std::to_string(rank));
    const auto bound = backend.bind();
    const auto q = backend.compute_queue();
    std::vector<fake_activation> stage;
    stage.emplace_back(q);
    std::vector<fake_tensor> inputs, targets;
    for (int m = 0; m < t.order.microbatches; ++m) {
      inputs.push_back(upload(q, t.part(end.rank(), m, false)));
      targets.push_back(upload(q, t.part(end.rank(), m, true)));
    }
    pipeline_executor<fake_tensor, fake_activation, communicator, no_stager, cuda_backend<cuda_check::api>> executor(
        t.order, std::span(stage), t.groups, end, {.deadline_s = 20}, {}, backend);
    for (int step = 0; step < 2; ++step)
      executor.step(std::span<const fake_tensor>(inputs), std::span<const fake_tensor>(targets), fake_loss);
    all[rank].losses.assign(executor.losses().begin(), executor.losses().end());
    all[rank].gradient = download(q, stage[0].sum[0]);
  });
  return all;
}

}  // namespace hetsched::test
