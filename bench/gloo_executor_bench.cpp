// SPDX-License-Identifier: Apache-2.0
// What an action costs between processes: 1F1B of 64 microbatches over gloo_communicator on 127.0.0.1, with layers that do
// nothing. Per action of a rank (computations, sends and receives): time, processor time of its process; per tensor that it sends
// or receives: context switches, and calls of operator new. Medians over 5 times 100 steps, of the slowest rank.
//   g++ -std=c++20 -O2 -DNDEBUG -I include bench/gloo_executor_bench.cpp -o gloo_executor_bench -lgloo -lhiredis -pthread
//   ./gloo_executor_bench [ranks [numbers per tensor]]
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>
#include <span>
#include <string>
#include <vector>

#include <hetsched/gloo.hpp>
#include <hetsched/runtime/executor/executor.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/passes.hpp>

namespace {

std::atomic<long> allocations{0};

}  // namespace

// g++ takes them apart when they are inline.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* const p = std::malloc(std::max<std::size_t>(bytes, 1))) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace {

using namespace hetsched;

constexpr int microbatches = 64, steps = 100, repeats = 5;

struct tensor {
  using value_type = double;
  tensor() = default;
  explicit tensor(const tensor_shape& s) : tensor(s[0]) {}
  explicit tensor(std::size_t numbers) : values(numbers) {}
  [[nodiscard]] std::array<std::size_t, 1> shape() const { return {values.size()}; }
  double* data() { return values.data(); }
  [[nodiscard]] const double* data() const { return values.data(); }
  std::vector<double> values;
};

struct empty_layer {
  struct context {};
  tensor forward(const tensor&, context&) { return spare(); }
  tensor backward(const tensor&, context&) { return spare(); }
  std::array<tensor, 0>& parameters() { return none; }
  std::array<tensor, 0>& gradients() { return none; }
  [[nodiscard]] tensor spare() const { return tensor(numbers); }
  std::size_t numbers = 1;
  std::array<tensor, 0> none;
};

struct counters {
  double wall_s = steady_now_s(), processor_s = 0, switches = 0, news = static_cast<double>(allocations.load());
  counters() {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    const auto s = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
    processor_s = s(used.ru_utime) + s(used.ru_stime);
    switches = static_cast<double>(used.ru_nvcsw + used.ru_nivcsw);
  }
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void run(int rank, int ranks, std::size_t numbers, const std::string& folder) {
  gloo_communicator<tensor> comm({.rank = rank, .ranks = ranks, .launcher = {}, .master = {}, .run = {}},
                                 {.rendezvous = "file:" + folder, .store = {}, .run = "bench", .interface = {}, .address = {}});
  std::vector<int> counts;
  for (int s = 0; s < ranks; ++s) counts.push_back(ranks - s);
  const auto order = one_f_one_b(counts, microbatches);
  double actions = 0, tensors = 0;
  for (const auto& l : add_transfers(order).lanes)
    if (l.rank == rank)
      for (const auto& a : l.actions) ++actions, tensors += is_transfer(a.kind);
  std::vector<empty_layer> stages(1);
  stages[0].numbers = numbers;
  const std::vector<tensor> inputs(microbatches, tensor(numbers));
  const std::vector<int> targets(microbatches);
  const std::vector<tensor_shape> boundaries(static_cast<std::size_t>(ranks) - 1, tensor_shape{numbers});
  pipeline_executor<tensor, empty_layer, gloo_communicator<tensor>> executor(order, stages, boundaries, comm);
  std::array<std::vector<double>, 4> found;
  std::vector<std::vector<double>> all;
  for (int k = -1; k < repeats; ++k) {
    (void)comm.gather({}, all, deadline_in(60));
    const counters before;
    for (int i = 0; i < steps; ++i)
      executor.step(std::span<const tensor>(inputs), std::span<const int>(targets), [&](const tensor& y, int) {
        return loss_value<tensor>{y.values[0], stages[0].spare()};
      });
    const counters after;
    if (k < 0) continue;
    found[0].push_back(1e6 * (after.wall_s - before.wall_s) / (steps * actions));
    found[1].push_back(1e6 * (after.processor_s - before.processor_s) / (steps * actions));
    found[2].push_back((after.switches - before.switches) / (steps * tensors));
    // The layers make a tensor per computation, and the loss one per microbatch.
    const double own = (actions - tensors + (rank + 1 == ranks ? microbatches : 0)) * steps;
    found[3].push_back((after.news - before.news - own) / (steps * tensors));
  }
  std::vector<double> mine;
  for (const auto& f : found) mine.push_back(median(f));
  if (comm.gather(mine, all, deadline_in(60)) != wait_result::progress) throw error(comm.failure());
  if (rank != 0) return;
  std::array<double, 4> most{};
  for (const auto& theirs : all)
    for (std::size_t i = 0; i < 4; ++i) most[i] = std::max(most[i], theirs[i]);
  std::printf("| %d | %zu | %.1f | %.1f | %.2f | %.2f |\n", ranks, numbers * sizeof(double), most[0], most[1], most[2], most[3]);
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const auto numbers = static_cast<std::size_t>(argc > 2 ? std::atol(argv[2]) : 1);
  char folder[] = "/tmp/gloo_executor_bench.XXXXXX";
  if (ranks < 2 || !mkdtemp(folder)) return 2;
  for (int r = 0; r < ranks; ++r)
    if (fork() == 0) {
      try {
        run(r, ranks, numbers, folder);
        return 0;
      } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
      }
    }
  int failed = 0;
  for (int status = 0; wait(&status) > 0;) failed |= status;
  std::filesystem::remove_all(folder);
  return failed != 0;
}
