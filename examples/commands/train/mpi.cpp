// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <mutex>
#include <string>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/mpi/mpi_communicator.hpp>

#include <gpt/tensor.hpp>
#include <train/mpi.hpp>

namespace train {

namespace {

void say_on_errors(const std::string& text) { std::cerr << "hetsched-train: " + text + '\n' << std::flush; }

using any_tensor = gpt::tensor<float>;

}  // namespace

hetsched::mpi_session& mpi() {
  static hetsched::mpi_session one(say_on_errors);
  return one;
}

hetsched::mpi_options mpi_options_of(const place_arguments& given, MPI_Comm among) {
  return {.among = among, .connect_deadline_s = given.connect_deadline_s, .say = say_on_errors};
}

hetsched::process_place place_of_mpi() {
  hetsched::process_place place;
  try {
    place = hetsched::place_from_environment();
  } catch (const hetsched::input_error&) {  // MPI knows better
  }
  const auto& session = mpi();
  if (place.ranks > 1 && place.ranks != session.ranks())
    throw hetsched::input_error("--transport mpi: " + place.launcher + " started " + std::to_string(place.ranks) +
                                " processes, but MPI finds " + std::to_string(session.ranks()) +
                                ": start with the mpirun of the MPI that this program is built with, or srun --mpi=pmix or pmi2");
  if (!place.launcher.empty()) place.alone.clear();  // MPI knows that there is one
  if (session.ranks() == 1) return place;
  place.rank = session.rank();
  place.ranks = session.ranks();
  if (place.launcher.empty()) {
    place.launcher = "MPI";
    place.local_rank = place.rank;
  }
  return place;
}

mpi_workers::mpi_workers(const place_arguments& given, int rank) {
  const int count = mpi().ranks();
  std::vector<int> launched(static_cast<std::size_t>(count), -1);  // of each rank that works
  {
    hetsched::mpi_communicator<any_tensor> all(mpi(), mpi_options_of(given, MPI_COMM_WORLD));
    const auto told = gather(all, {static_cast<double>(rank)}, given.connect_deadline_s, "agreeing on who works");
    std::size_t workers = 0;
    for (int p = 0; p < count; ++p) {
      const int works_as = static_cast<int>(told[static_cast<std::size_t>(p)][0]);
      if (works_as < 0) continue;
      ++workers;
      if (works_as < count) launched[static_cast<std::size_t>(works_as)] = p;
    }
    launched.resize(workers);
    for (std::size_t r = 0; r < workers; ++r)
      if (launched[r] < 0)
        throw known_to_all("--plan: no process has the work of rank " + std::to_string(r) + ": they have read unlike plans");
  }
  if (rank < 0) return;
  const std::lock_guard hold(mpi().guard());
  MPI_Group world = MPI_GROUP_NULL, group = MPI_GROUP_NULL;
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_incl(world, static_cast<int>(launched.size()), launched.data(), &group);
  MPI_Comm_create_group(MPI_COMM_WORLD, group, 0, &among_);
  MPI_Group_free(&group);
  MPI_Group_free(&world);
}

mpi_workers::~mpi_workers() {
  if (among_ == MPI_COMM_NULL || !mpi().given_up().empty()) return;
  const std::lock_guard hold(mpi().guard());
  MPI_Comm_free(&among_);
}

void tell_failure_by_mpi(const place_arguments& given, const std::string& why) {
  if (mpi().ranks() < 2) return;
  hetsched::mpi_communicator<any_tensor> all(mpi(), mpi_options_of(given, MPI_COMM_WORLD));
  all.abort("rank " + std::to_string(mpi().rank()) + " cannot come: " + why);
}

std::string host_of_mpi() {
  char name[MPI_MAX_PROCESSOR_NAME] = {};
  int length = 0;
  const std::lock_guard hold(mpi().guard());
  MPI_Get_processor_name(name, &length);
  return name;
}

}  // namespace train
