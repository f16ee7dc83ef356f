// SPDX-License-Identifier: Apache-2.0
// NCCL itself by the calls that the library makes of it: one rank, and two ranks as processes, which share a GPU where there is
// but one. Tells hosts apart by NCCL_HOSTID, so that NCCL takes two ranks on one GPU for ranks of two hosts.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime.h>

#include <hetsched/cuda/nccl.hpp>
#include <hetsched/cuda/runtime.hpp>

#include "rows.hpp"

namespace {

using nccl = hetsched::nccl_runtime;
using rows::number;
using rows::row;
using clock_type = std::chrono::steady_clock;

double seconds_since(clock_type::time_point begin) { return std::chrono::duration<double>(clock_type::now() - begin).count(); }

void require(int code, const char* call) {
  if (code != 0 && code != hetsched::detail::nccl_in_progress)
    throw std::runtime_error(std::string(call) + ": " + nccl::error_text(code) + " " + nccl::last_error(nullptr));
}
/// Waits for calls that do not block.
void settle(ncclComm_t c, const char* call, double most_s = 30) {
  for (const auto begin = clock_type::now();;) {
    int state = 0;
    require(nccl::state(c, state), call);
    require(state, call);
    if (state == 0) return;
    if (seconds_since(begin) > most_s)
      throw std::runtime_error(std::string(call) + " takes more than " + number("%.0f s", most_s));
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}
double used_mib() {
  std::size_t left = 0, all = 0;
  cudaMemGetInfo(&left, &all);
  return static_cast<double>(all - left) / (1 << 20);
}

struct rank_of {
  int rank, ranks;
  hetsched::nccl_id id;
  bool tells;  ///< prints
  void tell(const std::string& what, bool good, const std::string& figure) const {
    if (tells) row(what, good, figure);
    if (!tells && !good) ++rows::failed;
  }
};

void life(const rank_of& r) {
  cudaSetDevice(0);
  cudaStream_t s{};
  cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
  constexpr std::size_t bytes = std::size_t{64} << 20;
  float *mine = nullptr, *other = nullptr;
  cudaMalloc(&mine, bytes), cudaMalloc(&other, bytes);
  cudaMemset(mine, 0, bytes);
  cudaDeviceSynchronize();
  const std::string ranks = std::to_string(r.ranks) + (r.ranks == 1 ? " rank" : " ranks");

  const double before = used_mib();
  auto begin = clock_type::now();
  ncclComm_t c{};
  require(nccl::connect(c, r.ranks, r.id, r.rank, {}), "ncclCommInitRankConfig");
  settle(c, "ncclCommInitRankConfig");
  r.tell(ranks + ": connected", true,
         number("%.2f s, ", seconds_since(begin)) + number("%.0f MiB of the GPU", used_mib() - before));

  const auto timed = [&](const std::string& what, int times, auto&& enqueue) {
    const double memory = used_mib();
    for (int i = -1; i < times; ++i) {  // the first connects
      if (i == 0) begin = clock_type::now();
      enqueue();
      settle(c, what.c_str());  // a call that does not block may be made only then
      if (i == -1) cudaStreamSynchronize(s);
    }
    cudaStreamSynchronize(s);
    const double each = seconds_since(begin) / times;
    r.tell(ranks + ": " + what, true,
           number("%.3f ms", 1e3 * each) +
               (used_mib() > memory + 1 ? number(", %.0f MiB more of the GPU", used_mib() - memory) : ""));
  };
  timed("sum of 64 MiB", 10,
        [&] { require(nccl::all_reduce(mine, mine, bytes / sizeof(float), hetsched::nccl_type::f32, c, s), "ncclAllReduce"); });
  timed("sum of 4 KiB", 100,
        [&] { require(nccl::all_reduce(mine, mine, 1024, hetsched::nccl_type::f32, c, s), "ncclAllReduce"); });
  if (r.ranks > 1) {
    const auto exchange = [&](std::size_t size) {
      return [&, size] {
        require(nccl::begin_group(), "ncclGroupStart");
        require(nccl::send(mine, size, 1 - r.rank, c, s), "ncclSend");
        require(nccl::receive(other, size, 1 - r.rank, c, s), "ncclRecv");
        require(nccl::end_group(), "ncclGroupEnd");
      };
    };
    timed("64 MiB both ways", 10, exchange(bytes));
    timed("4 KiB both ways", 100, exchange(4096));
  }
  begin = clock_type::now();
  require(nccl::finish(c), "ncclCommFinalize");
  settle(c, "ncclCommFinalize");
  require(nccl::destroy(c), "ncclCommDestroy");
  r.tell(ranks + ": ended", true, number("%.2f s", seconds_since(begin)));
}

void stuck(const rank_of& r) {
  cudaSetDevice(0);
  cudaStream_t s{};
  cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
  void* memory = nullptr;
  cudaMalloc(&memory, 1 << 20);
  ncclComm_t c{};
  require(nccl::connect(c, r.ranks, r.id, r.rank, {}), "ncclCommInitRankConfig");
  settle(c, "ncclCommInitRankConfig");
  if (r.rank == 0) {  // what nobody sends
    require(nccl::receive(memory, 1 << 20, 1, c, s), "ncclRecv");
    int state = 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    (void)nccl::state(c, state);
    row("a receive that nobody sends", true, "state " + std::to_string(state) + ", stream " + std::to_string(cudaStreamQuery(s)));
    const auto begin = clock_type::now();
    const int code = nccl::abort(c);
    const int end = cudaStreamSynchronize(s);
    row("... is aborted", code == 0 && seconds_since(begin) < 10,
        number("%.2f s", seconds_since(begin)) + ", code " + std::to_string(code) + ", stream " + std::to_string(end));
  } else {
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    (void)nccl::abort(c);
  }
}

/// All ranks' part, those of ranks but 0 in processes of their own; nothing of CUDA has been called by then.
void on_ranks(int ranks, void (*part)(const rank_of&)) {
  hetsched::nccl_id id{};
  int way[2];
  if (pipe(way) != 0) throw std::runtime_error("no pipe");
  int rank = 0;
  std::vector<pid_t> children;
  for (int r = 1; r < ranks && rank == 0; ++r) {
    const auto child = fork();
    if (child == 0)
      rank = r;
    else
      children.push_back(child);
  }
  if (rank > 0) prctl(PR_SET_PDEATHSIG, SIGKILL);  // it does not outlive a parent that is stopped
  setenv("NCCL_HOSTID", ("hetsched-" + std::to_string(rank)).c_str(), 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  const auto size = static_cast<ssize_t>(id.size());
  if (rank == 0) {
    require(nccl::unique_id(id), "ncclGetUniqueId");
    for (int r = 1; r < ranks; ++r)
      if (write(way[1], id.data(), id.size()) != size) throw std::runtime_error("no pipe");
    part({0, ranks, id, true});
    for (std::size_t r = 0; r < children.size(); ++r) {
      int status = 0;
      waitpid(children[r], &status, 0);
      if (status != 0) row("rank " + std::to_string(r + 1), false, "status " + std::to_string(status));
    }
  } else {
    try {
      if (read(way[0], id.data(), id.size()) != size) throw std::runtime_error("no pipe");
      part({rank, ranks, id, false});
    } catch (const std::exception& e) {
      std::printf("rank %d: %s\n", rank, e.what());
      std::fflush(stdout);
      _exit(1);
    }
    _exit(rows::failed > 0);
  }
}
void require_cuda(cudaError_t code, const char* call) {
  if (code != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(code));
}
/// A connected rank with room for what it sends, numbers that are its own plus one, and receives.
struct connected_rank {
  ncclComm_t comm{};
  cudaStream_t stream{};
  std::size_t numbers = 0;
  float *mine = nullptr, *other = nullptr;

  connected_rank(const rank_of& r, std::size_t bytes, const hetsched::nccl_link& link) {
    numbers = bytes / sizeof(float);
    require_cuda(cudaSetDevice(0), "cudaSetDevice");
    require_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    require_cuda(cudaMalloc(&mine, bytes), "cudaMalloc");
    require_cuda(cudaMalloc(&other, bytes), "cudaMalloc");
    const std::vector<float> own(numbers, static_cast<float>(r.rank + 1));
    require_cuda(cudaMemcpy(mine, own.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    require_cuda(cudaMemset(other, 0, bytes), "cudaMemset");
    require_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    require(nccl::connect(comm, r.ranks, r.id, r.rank, link), "ncclCommInitRankConfig");
    settle(comm, "ncclCommInitRankConfig");
  }
  template <class Body>
  void group(Body&& body) {
    require(nccl::begin_group(), "ncclGroupStart");
    body();
    require(nccl::end_group(), "ncclGroupEnd");
    settle(comm, "ncclGroupEnd");
  }
  void send(int peer, std::size_t bytes) { require(nccl::send(mine, bytes, peer, comm, stream), "ncclSend"); }
  void receive(int peer, std::size_t bytes) { require(nccl::receive(other, bytes, peer, comm, stream), "ncclRecv"); }
  /// Whether the first `bytes` at a place are that number, all of them.
  bool holds(const float* place, std::size_t bytes, float number) const {
    std::vector<float> there(bytes / sizeof(float));
    require_cuda(cudaMemcpy(there.data(), place, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return std::all_of(there.begin(), there.end(), [&](float x) { return x == number; });
  }
  void synchronize() const { require_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize"); }
  /// Seconds of each, behind one that connects.
  template <class Body>
  double timed(int times, Body&& body) {
    body();
    synchronize();
    const auto begin = clock_type::now();
    for (int i = 0; i < times; ++i) body();
    synchronize();
    return seconds_since(begin) / times;
  }
  void end() {
    require(nccl::finish(comm), "ncclCommFinalize");
    settle(comm, "ncclCommFinalize");
    require(nccl::destroy(comm), "ncclCommDestroy");
  }
};

/// What channels cost and bring: Most of them at most, 0 for NCCL's choice.
template <int Most>
void channels(const rank_of& r) {
  constexpr std::size_t bytes = std::size_t{64} << 20;
  const auto begin = clock_type::now();
  connected_rank own(r, bytes, {.network = {}, .least_channels = 0, .most_channels = Most});
  const double connected_s = seconds_since(begin), before = used_mib();
  const auto exchange = [&] {
    own.group([&] {
      own.send(1 - r.rank, bytes);
      own.receive(1 - r.rank, bytes);
    });
  };
  const double each_s = own.timed(10, exchange);
  const auto name = Most == 0 ? std::string("NCCL's channels") : std::to_string(Most) + " channels at most";
  r.tell("2 ranks, " + name, own.holds(own.other, bytes, static_cast<float>(2 - r.rank)),
         number("%.2f s to connect, ", connected_s) + number("%.0f MiB more for transfers, ", used_mib() - before) +
             number("64 MiB both ways in %.3f ms", 1e3 * each_s));
  own.end();
}

/// The middle one of three receives and sends on: one after the other, and in one group.
void relay(const rank_of& r) {
  constexpr std::size_t bytes = std::size_t{16} << 20;
  connected_rank own(r, bytes, {.network = {}, .least_channels = 0, .most_channels = 4});
  double each_s[2] = {};
  for (const bool together : {false, true}) {
    require_cuda(cudaMemset(own.other, 0, bytes), "cudaMemset");
    require_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    each_s[together] = own.timed(20, [&] {
      const auto receives = [&] { own.receive(0, bytes); };
      const auto sends = [&] { own.send(2, bytes); };
      if (r.rank == 0) own.group([&] { own.send(1, bytes); });
      if (r.rank == 2) own.group([&] { own.receive(1, bytes); });
      if (r.rank != 1) return;
      if (together) return own.group([&] { receives(), sends(); });
      own.group(receives);
      own.group(sends);
    });
  }
  const bool came = r.rank == 0 || own.holds(own.other, bytes, static_cast<float>(r.rank));
  r.tell("3 ranks, 16 MiB from one and 16 MiB to another", came,
         number("%.3f ms one after the other, ", 1e3 * each_s[0]) + number("%.3f ms in one group", 1e3 * each_s[1]));
  own.end();
}

/// Gradients of 256 MiB: by NCCL's sums of 64 MiB, and by sends of 4 MiB both ways, without the additions.
void buckets(const rank_of& r) {
  constexpr std::size_t all = std::size_t{256} << 20, large = std::size_t{64} << 20, small = std::size_t{4} << 20;
  connected_rank own(r, large, {});
  const double joint_s = own.timed(2, [&] {
    for (std::size_t k = 0; k < all / large; ++k) {
      require(nccl::all_reduce(own.mine, own.mine, large / sizeof(float), hetsched::nccl_type::f32, own.comm, own.stream),
              "ncclAllReduce");
      settle(own.comm, "ncclAllReduce");
    }
  });
  const double ordered_s = own.timed(2, [&] {
    for (std::size_t k = 0; k < all / small; ++k)
      own.group([&] {
        own.send(1 - r.rank, small);
        own.receive(1 - r.rank, small);
      });
  });
  // Of 1 and 2; each of the other 11 sums in this place doubles it.
  const bool summed = own.holds(own.mine, large, 3 * 2048) && own.holds(own.other, small, 3 * 2048);
  r.tell("2 ranks, sums of 256 MiB", summed,
         number("%.1f ms in buckets of 64 MiB, ", 1e3 * joint_s) +
             number("%.1f ms as terms of 4 MiB, without additions", 1e3 * ordered_s));
  own.end();
}

/// Transfers in a CUDA graph, which is updated; and a communicator that is split off.
void captured(const rank_of& r) {
  constexpr std::size_t bytes = std::size_t{16} << 20;
  connected_rank own(r, bytes, {.network = {}, .least_channels = 0, .most_channels = 4});
  const hetsched::cuda_runtime cuda;
  const auto exchange = [&](std::size_t size) {
    own.group([&] {
      own.send(1 - r.rank, size);
      own.receive(1 - r.rank, size);
    });
  };
  const double plain_s = own.timed(10, [&] { exchange(bytes); });
  const auto expect = [](int code, const char* call) { require_cuda(static_cast<cudaError_t>(code), call); };
  hetsched::cuda_runtime::graph graph{};
  expect(cuda.begin_capture(own.stream), "cudaStreamBeginCapture");
  exchange(bytes);
  expect(cuda.end_capture(own.stream, graph), "cudaStreamEndCapture");
  require_cuda(cudaMemsetAsync(own.other, 0, bytes, own.stream), "cudaMemsetAsync");
  const double graph_s = own.timed(10, [&] { expect(cuda.launch(graph, own.stream), "cudaGraphLaunch"); });
  const auto number_of_other = static_cast<float>(2 - r.rank);
  bool came = own.holds(own.other, bytes, number_of_other);
  bool updated = false;
  expect(cuda.begin_capture(own.stream), "cudaStreamBeginCapture");
  exchange(bytes / 2);
  expect(cuda.end_update(own.stream, graph, updated), "cudaGraphExecUpdate");
  require_cuda(cudaMemsetAsync(own.other, 0, bytes, own.stream), "cudaMemsetAsync");
  expect(cuda.launch(graph, own.stream), "cudaGraphLaunch");
  own.synchronize();
  came = came && own.holds(own.other, bytes / 2, number_of_other) && own.holds(own.other + own.numbers / 2, bytes / 2, 0);
  expect(cuda.destroy_graph(graph), "cudaGraphExecDestroy");
  r.tell("2 ranks, 16 MiB both ways in a CUDA graph", came,
         number("%.3f ms, ", 1e3 * graph_s) + number("%.3f ms without; ", 1e3 * plain_s) +
             (updated ? "updated" : "made again for another size"));

  const auto begin = clock_type::now();
  ncclComm_t part{};
  require(nccl::split(own.comm, 0, r.ranks - 1 - r.rank, part, {}), "ncclCommSplit");
  settle(own.comm, "ncclCommSplit");
  settle(part, "ncclCommSplit");
  const double split_s = seconds_since(begin);
  require(nccl::all_reduce(own.mine, own.mine, own.numbers, hetsched::nccl_type::f32, part, own.stream), "ncclAllReduce");
  settle(part, "ncclAllReduce");
  own.synchronize();
  r.tell("2 ranks, a communicator that is split off", own.holds(own.mine, bytes, 3), number("%.2f s", split_s));
  require(nccl::finish(part), "ncclCommFinalize");
  settle(part, "ncclCommFinalize");
  require(nccl::destroy(part), "ncclCommDestroy");
  own.end();
}

void one_rank() {
  int version = 0;
  ncclGetVersion(&version);
  row("NCCL", true, std::to_string(version));
  hetsched::nccl_id id{};
  const auto begin = clock_type::now();
  require(nccl::unique_id(id), "ncclGetUniqueId");
  row("ncclGetUniqueId", true, number("%.2f s", seconds_since(begin)));
  life({0, 1, id, true});
}

}  // namespace

int main(int argc, char** argv) {
  return rows::main(argc, argv,
                    {{"one_rank", one_rank},
                     {"two_ranks", [] { on_ranks(2, life); }},
                     {"stuck", [] { on_ranks(2, stuck); }},
                     {"channels", [] { on_ranks(2, channels<0>); }},
                     {"channels_4", [] { on_ranks(2, channels<4>); }},
                     {"channels_2", [] { on_ranks(2, channels<2>); }},
                     {"relay", [] { on_ranks(3, relay); }},
                     {"buckets", [] { on_ranks(2, buckets); }},
                     {"captured", [] { on_ranks(2, captured); }}});
}
