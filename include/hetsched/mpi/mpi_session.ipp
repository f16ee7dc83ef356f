// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/mpi/mpi_session.hpp>

namespace hetsched {

namespace detail {

/// Of GPUs of any vendor. Requires: MPI has been initialised.
[[nodiscard]] inline bool mpi_takes_device_memory() {
#if defined(MPIX_GPU_SUPPORT_CUDA) && defined(MPIX_GPU_SUPPORT_HIP)
  int cuda = 0, hip = 0;
  MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &cuda);
  MPIX_GPU_query_support(MPIX_GPU_SUPPORT_HIP, &hip);
  return cuda != 0 || hip != 0;
#else
  bool takes = false;
#ifdef OMPI_HAVE_MPI_EXT_CUDA
  takes = MPIX_Query_cuda_support() == 1;
#endif
#ifdef OMPI_HAVE_MPI_EXT_ROCM
  takes = takes || MPIX_Query_rocm_support() == 1;
#endif
  return takes;
#endif
}

}  // namespace detail

HETSCHED_INLINE mpi_session::mpi_session(std::function<void(const std::string&)> say) : say_(std::move(say)) {
  int there = 0, gone = 0, level = 0;
  MPI_Initialized(&there);
  MPI_Finalized(&gone);
  if (gone) throw input_error("MPI has been finalised, and cannot be used again in this process");
  if (there) {
    MPI_Query_thread(&level);
  } else {
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
    owns_ = true;
  }
  if (level < MPI_THREAD_SERIALIZED) {
    if (owns_) MPI_Finalize();
    throw input_error(
        std::string("MPI lets only one thread call it") +
        (there ? ": initialise it by MPI_Init_thread with MPI_THREAD_MULTIPLE" : "; another build of it may let several"));
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
  takes_device_memory_ = detail::mpi_takes_device_memory();
}

HETSCHED_INLINE mpi_session::~mpi_session() {
  int gone = 0;
  MPI_Finalized(&gone);
  if (!owns_ || gone) return;
  if (!given_up_.empty()) end_all(given_up_);
  MPI_Finalize();
}

HETSCHED_INLINE std::string mpi_session::given_up() const {
  const std::lock_guard hold(guard_);
  return given_up_;
}

HETSCHED_INLINE void mpi_session::give_up(const std::string& why) {
  if (given_up_.empty()) given_up_ = why;
}

HETSCHED_INLINE void mpi_session::end_all(const std::string& why) const {
  const std::string text = "rank " + std::to_string(rank_) + " ends all ranks by MPI_Abort: " + why;
  if (say_)
    say_(text);
  else
    std::fprintf(stderr, "%s\n", text.c_str());
  std::fflush(nullptr);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // starters may drop what they have not read by then
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();
}

}  // namespace hetsched
