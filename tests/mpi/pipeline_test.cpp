// SPDX-License-Identifier: Apache-2.0
#include <hetsched/mpi/run_on_mpi.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include <hetsched/runtime/communicator/router.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/passes.hpp>

#include "../cuda/fake_layers.hpp"
#include "../cuda/fake_nccl.hpp"
#include "../cuda/nccl_ranks.hpp"
#include "../runtime/every_schedule.hpp"
#include "../runtime/numbered.hpp"
#include "../runtime/packed_layers.hpp"
#include "beside_gloo.hpp"
#include "session.hpp"

using namespace hetsched;
using namespace hetsched::test;

#ifdef HETSCHED_TEST_GLOO

TEST_CASE("mpi: beside Gloo, edge by edge, the bits of one device") {
  mpi_and_gloo both;
  {
    const auto by_mpi = both.router_by_mpi<matrix<double>>();
    const auto by_gloo = both.router_by_gloo<matrix<double>>();
    int run = 0;
    for (const auto& one : schedule_instances(mpi().ranks(), {8})) {
      CAPTURE(one.name);
      CHECK(differences<double>(one, by_mpi) == "");
      CHECK(differences<double>(one, by_gloo) == "");
      ++run;
    }
    CHECK(run > 5);
  }
  // Whole trainings, of which ranks gather what they have.
  const three_parts net{};
  const auto layout = even_layout(net.layers, schedule_of("1f1b", mpi().ranks(), 6), 4);
  const auto alone = net.alone(layout, 3, 0.05).losses;
  auto by_mpi = both.router_by_mpi<matrix<double>>();
  CHECK(net.train(layout, 3, 0.05, by_mpi) == alone);
  auto by_gloo = both.router_by_gloo<matrix<double>>();
  CHECK(net.train(layout, 3, 0.05, by_gloo) == alone);
}

TEST_CASE("mpi: beside Gloo, what every communicator between processes does") {
  if (mpi().ranks() < 2) return;
  mpi_and_gloo both;
  const auto check = [](const auto& make) {
    check_order(make);
    check_abort(make);
    check_mismatch(make);
    check_gather(make);
  };
  check([&] {
    auto one = both.router_by_mpi<plane_tensor>();
    return std::make_unique<decltype(one)>(std::move(one));
  });
  check([&] {
    auto one = both.router_by_gloo<plane_tensor>();
    return std::make_unique<decltype(one)>(std::move(one));
  });
}

#endif

TEST_CASE("mpi: every schedule gives the bits of one device") {
  const auto singles = make_mpi<matrix<float>>();
  const auto doubles = make_mpi<matrix<double>>();
  int run = 0;
  for (const auto& one : schedule_instances(mpi().ranks(), {1, 2, 3, 5, 8, 16})) {
    CAPTURE(one.name);
    CHECK((one.single ? differences<float>(one, *singles) : differences<double>(one, *doubles)) == "");
    ++run;
  }
  CHECK(run > 20);
}

TEST_CASE("mpi: three tensors of three types between stages have the losses of layers that hand them on themselves") {
  const three_parts net{};
  const auto layout = even_layout(net.layers, schedule_of("1f1b", mpi().ranks(), 6), 4);
  const auto comm = make_mpi<matrix<double>>();
  CHECK(net.train(layout, 3, 0.05, *comm) == net.alone(layout, 3, 0.05).losses);
}

TEST_CASE("mpi: slices of every strategy between stages of three ranks and one") {
  if (mpi().ranks() != 4) return;
  const layout three{.mesh = {3}, .dimensions = {{.extent = 6, .axes = {0}, .points = {0, 1, 3, 6}}, {.extent = 4}}};
  const layout one{.mesh = {1}, .dimensions = {{.extent = 6}, {.extent = 4}}};
  for (const auto how : all_reshard_strategies) {
    CAPTURE(name_of(how));
    const auto comm = make_mpi<box_tensor>();
    const numbered_pipeline pipeline{
        .order = one_f_one_b({2, 1}, 4),
        .groups = {.devices = {3, 1}, .boundaries = {make_boundary_transfer(three, one, how, {.chunks = 2})}},
        .options = {.deadline_s = 20},
        .meets = false};
    CHECK_NOTHROW(run_device(*comm, pipeline, 2, nullptr));
  }
}

TEST_CASE("mpi: devices by way of the hosts, alone and beside NCCL that agrees over MPI, have the bits of one device") {
  const int ranks = mpi().ranks();
  if (ranks < 2) return;
  using hosts = mpi_communicator<fake_tensor>;
  using devices_only = nccl_communicator<fake_tensor, cuda_check::api, fake_nccl, hosts>;
  const auto by_hosts = [](const edge& e) { return routed_edge{1, e}; };
  const std::vector<double> equal(static_cast<std::size_t>(ranks), 1);
  for (const auto name : {"gpipe", "1f1b", "zb_h1"})
    for (const bool beside_nccl : {false, true}) {
      CAPTURE(name);
      CAPTURE(beside_nccl);
      const auto order = by_way_of_hosts(build_schedule(name,
                                                        {.forward_s = equal,
                                                         .backward_s = equal,
                                                         .transfer_s = std::vector<double>(equal.size() - 1, 0.1),
                                                         .weight_backward_s = equal},
                                                        6),
                                         [](int, int) { return true; });
      const task<double> t(3, std::vector<int>(equal.size(), 1), order.microbatches);
      outcome_of_step<double> found;
      found.gradients.resize(order.rank_of.size());
      // Each process has a device of its own.
      cuda_check::machine machine({.seed = 5, .lazy = true});
      {
        fake_devices devices(cuda_check::api{&machine});
        const auto network = make_mpi<fake_tensor>();
        const executor_options options{.deadline_s = 20, .staging_chunk_bytes = 24};
        if (beside_nccl) {
          fake_nccl_world world(machine);
          router<hosts, decltype(by_hosts), devices_only, hosts> both(
              *network, by_hosts, devices_only(devices, 0, *network, fake_nccl{&world}), *network);
          run_rank<true>(devices, both, 0, t, order, options, 2, found.losses, found);
        } else {
          run_rank<true>(devices, *network, 0, t, order, options, 2, found.losses, found);
        }
      }
      const auto expected = reference(t, order);
      for (std::size_t stage = 0; stage < found.gradients.size(); ++stage)
        CHECK(found.gradients[stage] ==
              (static_cast<int>(stage) == mpi().rank() ? expected.gradients[stage] : std::vector<matrix<double>>()));
      if (mpi().rank() + 1 == ranks) CHECK(found.losses == expected.losses);
      for (const auto& r : machine.reports()) FAIL_CHECK(r);
    }
}

// For faults.sh, which looks how these end: the session ends all ranks.
TEST_CASE("mpi: a rank that does not come" * doctest::skip()) {
  if (mpi().rank() == 0)
    std::this_thread::sleep_for(std::chrono::seconds(20));
  else
    CHECK_THROWS_WITH_AS(make_mpi({.connect_deadline_s = 0.5}), doctest::Contains("ranks have come within 0.5"), error);
}

namespace {

// Until one of the ranks is killed or stopped; tells what the others were told.
std::string steps_without_end() {
  const int ranks = mpi().ranks();
  const std::vector<double> forward(static_cast<std::size_t>(ranks), 1);
  const auto order = build_schedule(
      "1f1b", {.forward_s = forward, .backward_s = forward, .transfer_s = std::vector<double>(forward.size() - 1, 0.1)}, 8);
  const task<double> t(1, std::vector<int>(forward.size(), 1), order.microbatches);
  std::string why;
  try {
    run_on_mpi<plane_tensor>(mpi(), {}, [&](auto& comm) {
      std::vector<dense_stage<double>> own;
      own.push_back(t.stage(comm.rank()));
      pipeline_executor<plane_tensor, dense_stage<double>, mpi_communicator<plane_tensor>> executor(order, own, t.boundaries(),
                                                                                                    comm, {.deadline_s = 3});
      for (int step = 0;; ++step) {
        executor.step(std::span<const plane_tensor>(t.inputs), std::span<const plane_tensor>(t.targets), task<double>::loss);
        if (step == 0) std::printf("rank %d is process %d\n", comm.rank(), static_cast<int>(getpid())), std::fflush(stdout);
      }
    });
  } catch (const communication_error& e) {
    why = e.what();
  }
  std::printf("rank %d was told: %s\n", mpi().rank(), why.c_str());
  std::fflush(stdout);
  return why;
}

}  // namespace

// For faults.sh, which kills or stops one of the ranks.
TEST_CASE("mpi: steps without end" * doctest::skip()) { CHECK(steps_without_end() == ""); }

#ifdef HETSCHED_MPI_ULFM
// For faults.sh, which kills one of the ranks: the others leave, meet again without it, and finalise MPI.
TEST_CASE("mpi: on without a rank" * doctest::skip()) {
  const auto why = steps_without_end();
  CHECK(why.find("rank 1 was lost") != std::string::npos);
  CHECK(mpi().given_up() == "");
  MPI_Comm left = MPI_COMM_NULL;
  REQUIRE(MPIX_Comm_shrink(MPI_COMM_WORLD, &left) == MPI_SUCCESS);
  {
    const auto comm = make_mpi({.among = left});
    CHECK(comm->ranks() == mpi().ranks() - 1);
    check_gather([&] { return make_mpi({.among = left}); });
  }
  MPI_Comm_free(&left);
  std::printf("rank %d goes on\n", mpi().rank());
  std::fflush(stdout);
}
#endif
