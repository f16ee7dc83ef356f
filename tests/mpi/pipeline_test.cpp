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

#include <hetsched/schedule/builders/one_f_one_b.hpp>

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

// For faults.sh, which looks how these end: the session ends all ranks.
TEST_CASE("mpi: a rank that does not come" * doctest::skip()) {
  if (mpi().rank() == 0)
    std::this_thread::sleep_for(std::chrono::seconds(20));
  else
    CHECK_THROWS_WITH_AS(make_mpi({.connect_deadline_s = 0.5}), doctest::Contains("ranks have come within 0.5"), error);
}

// For faults.sh, which kills or stops one of the ranks.
TEST_CASE("mpi: steps without end" * doctest::skip()) {
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
  CHECK(why == "");
}
