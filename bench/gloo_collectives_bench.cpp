// SPDX-License-Identifier: Apache-2.0
// All-gather and broadcast between local processes: those of axis_group over gloo_communicator beside Gloo's own.
// Build by hand: g++ -std=c++20 -O2 -Iinclude bench/gloo_collectives_bench.cpp -lgloo -pthread; run with the number of processes.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gloo/allgather.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <hetsched/gloo.hpp>
#include <hetsched/runtime/group/axis_group.hpp>

namespace {

struct tensor {
  using value_type = float;
  tensor() = default;
  explicit tensor(const hetsched::tensor_shape& s) : numbers(s.at(0)) {}
  [[nodiscard]] std::array<std::size_t, 1> shape() const { return {numbers.size()}; }
  float* data() { return numbers.data(); }
  [[nodiscard]] const float* data() const { return numbers.data(); }
  std::vector<float> numbers;
};

/// The median and the least of some runs, in microseconds; all ranks begin each together.
template <class Meet, class Body>
std::pair<double, double> time_of(int runs, Meet meet, Body body) {
  std::vector<double> times;
  for (int i = 0; i < runs + 2; ++i) {
    meet();
    const double start_s = hetsched::steady_now_s();
    body();
    if (i > 1) times.push_back((hetsched::steady_now_s() - start_s) * 1e6);
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front()};
}

void run_rank(int rank, int ranks, const std::string& folder) {
  using channel = hetsched::gloo_communicator<tensor>;
  channel comm({.rank = rank, .ranks = ranks, .launcher = {}, .master = {}, .run = {}},
               {.rendezvous = "file:" + folder + "/ours"});
  std::vector<int> all_ranks(static_cast<std::size_t>(ranks));
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  const hetsched::axis_group<tensor, channel> axis(comm, all_ranks);

  auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
  gloo::rendezvous::FileStore store(folder + "/theirs");
  auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
  context->connectFullMesh(store, device);
  std::uint32_t tag = 0;
  const auto meet = [&] {
    gloo::BarrierOptions options(context);
    options.setTag(++tag);
    gloo::barrier(options);
  };

  for (const std::size_t bytes : {std::size_t{1} << 10, std::size_t{1} << 16, std::size_t{1} << 20, std::size_t{1} << 24}) {
    const std::size_t n = bytes / sizeof(float), each = n / static_cast<std::size_t>(ranks);
    std::vector<float> values(n, 1.0F), mine(each, static_cast<float>(rank));
    const int runs = bytes > (1 << 20) ? 15 : 60;
    const auto gather = time_of(runs, meet, [&] { axis.all_gather(mine, values); });
    const auto own_gather = time_of(runs, meet, [&] {
      gloo::AllgatherOptions options(context);
      options.setInput(mine.data(), each);
      options.setOutput(values.data(), n);
      options.setTag(++tag);
      gloo::allgather(options);
    });
    const auto broadcast = time_of(runs, meet, [&] { axis.broadcast(values, 0); });
    const auto own_broadcast = time_of(runs, meet, [&] {
      gloo::BroadcastOptions options(context);
      options.setOutput(values.data(), n);
      options.setRoot(0);
      options.setTag(++tag);
      gloo::broadcast(options);
    });
    // The last rank: the root of a broadcast may be gone before others have it.
    if (rank + 1 == ranks)
      std::printf(
          "%9zu bytes, us (median, least): all_gather %.0f %.0f, Gloo's %.0f %.0f; broadcast %.0f %.0f, Gloo's %.0f %.0f\n",
          bytes, gather.first, gather.second, own_gather.first, own_gather.second, broadcast.first, broadcast.second,
          own_broadcast.first, own_broadcast.second);
  }
  meet();
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  std::string folder = (std::filesystem::temp_directory_path() / "gloo-collectives-XXXXXX").string();
  if (!mkdtemp(folder.data())) return 1;
  for (const char* name : {"ours", "theirs"}) std::filesystem::create_directory(folder + "/" + name);
  for (int r = 0; r < ranks; ++r)
    if (fork() == 0) {
      run_rank(r, ranks, folder);
      std::fflush(stdout);
      std::_Exit(0);
    }
  int failed = 0, status = 0;
  while (wait(&status) > 0) failed += status != 0;
  std::filesystem::remove_all(folder);
  return failed;
}
