// SPDX-License-Identifier: Apache-2.0
// What every communicator between processes does, over a process group of Python's: group.py builds this module and calls it.
#include <torch/csrc/utils/pybind.h>

#include <hetsched/torch/process_group.hpp>

#undef CHECK
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "../runtime/communicator/process_planes.hpp"
#include "../runtime/every_schedule.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

c10::intrusive_ptr<c10d::ProcessGroup> world;
int tag = 100;

template <class Tensor = plane_tensor>
auto make_end() {
  return std::make_unique<torch_group_communicator<Tensor>>(world, torch_group_options{.tag = tag++});
}
const auto make = [] { return make_end(); };

TEST_CASE("order, deadlines, gathers and mismatches") {
  check_order(make);
  check_deadline(make);
  check_empty_tensors(make);
  check_gather(make);
  check_mismatch(make);
  check_other_schedule(make);
  check_leaving(make);
  check_busy_ranks_answer(make);
}

TEST_CASE("aborts") {
  check_abort(make);
  check_finished_round(make, 10);
  check_abort_on_the_way(make, 10);
}

TEST_CASE("long tensors and many") {
  check_long_tensors(make, 2);
  check_many_tensors(make, 96);
}

TEST_CASE("every schedule gives the bits of one device") {
  const auto comm = make_end<matrix<double>>();
  for (const auto& one : schedule_instances(comm->ranks(), {3, 8})) CHECK(differences<double>(one, *comm) == "");
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def(
      "run",
      [](const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
        world = group;
        doctest::Context context;
        context.setOption("no-colors", true);
        const bool failed = context.run() != 0;
        world.reset();
        return !failed;
      },
      pybind11::call_guard<pybind11::gil_scoped_release>());
}
