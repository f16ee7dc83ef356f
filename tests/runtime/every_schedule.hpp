// SPDX-License-Identifier: Apache-2.0
// Every schedule over processes, compared with one device.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/pipeline.hpp>

#include "../sanitizer_share.hpp"
#include "dense.hpp"

namespace hetsched::test {

struct schedule_instance {
  std::string name;
  schedule order;
  std::vector<int> layers;
  std::uint64_t seed = 0;
  bool single = false;  ///< precision
};

/// All schedules over so many ranks, precisions and evenness in turn; the same in every process.
inline std::vector<schedule_instance> schedule_instances(int ranks, const std::vector<int>& microbatches) {
  random_source random(static_cast<std::uint64_t>(ranks));
  pipeline p{.forward_s = {}, .backward_s = {}, .transfer_s = {}};
  for (int s = 0; s < ranks; ++s) {
    p.forward_s.push_back(random.uniform(1, 2));
    p.backward_s.push_back(random.uniform(2, 4));
    p.weight_backward_s.push_back(1);
    if (s > 0) p.transfer_s.push_back(random.uniform(0, 3));
  }
  std::vector<schedule_instance> all;
  int number = 0;
  for (const auto name : schedule_names())
    for (const int m : microbatches) {
      if (++number % sanitizer_share != 0) continue;
      schedule_instance one{.name = std::string(name) + ", microbatches " + std::to_string(m), .order = {}, .layers = {}};
      try {
        one.order = build_schedule(name, p, m);
      } catch (const input_error&) {
        continue;  // numbers that the schedule is not made for
      }
      const bool even = random.integer(0, 1) == 0;
      for (int s = 0; s < one.order.stages; ++s) one.layers.push_back(even ? 2 : random.integer(1, 3));
      one.seed = static_cast<std::uint64_t>(number);
      one.single = number / sanitizer_share % 2 == 0;
      all.push_back(std::move(one));
    }
  return all;
}

/// Two steps of this rank; what differs from one device, "" if nothing.
template <class Real, class Communicator>
std::string differences(const schedule_instance& one, Communicator comm) {
  using tensor = matrix<Real>;
  using stage_type = dense_stage<Real>;
  const int rank = comm.rank();
  const task<Real> t(one.seed, one.layers, one.order.microbatches);
  const auto expected = reference(t, one.order);
  const auto copies = stages_of_rank(one.order, rank);
  std::vector<stage_type> stages;
  for (const auto& c : copies) stages.push_back(t.stage(c.stage));
  pipeline_executor<tensor, stage_type, Communicator> executor(one.order, stages, t.boundaries(), std::move(comm),
                                                               {.deadline_s = 60});
  for (int i = 0; i < 2; ++i)
    executor.step(std::span<const tensor>(t.inputs), std::span<const tensor>(t.targets), task<Real>::loss);
  std::string found;
  for (std::size_t i = 0; i < copies.size(); ++i)
    if (copies_of<Real>(stages[i].gradients()) !=
        expected.gradients[static_cast<std::size_t>(copies[i].direction * one.order.stages + copies[i].stage)])
      found += " gradients of stage " + std::to_string(copies[i].stage);
  std::vector<double> losses(expected.losses.size(), 0);  // those of microbatches whose last stage is here
  for (const auto& l : one.order.lanes)
    for (const auto& a : l.actions)
      if (l.rank == rank && a.kind == action_kind::forward && a.stage + 1 == one.order.stages)
        losses[static_cast<std::size_t>(a.microbatch)] = expected.losses[static_cast<std::size_t>(a.microbatch)];
  if (std::vector<double>(executor.losses().begin(), executor.losses().end()) != losses) found += " losses";
  return found;
}

}  // namespace hetsched::test
