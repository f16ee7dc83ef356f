// SPDX-License-Identifier: Apache-2.0
// What CUDA itself does: the rules that the fake is held to, and what calls cost. Nothing of the library but its list of calls.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <hetsched/cuda/find_nics.hpp>
#include <hetsched/cuda/runtime.hpp>

#include "../cuda/rules.hpp"
#include "rows.hpp"

namespace {

using rows::number;
using rows::row;
using clock_type = std::chrono::steady_clock;

double seconds_since(clock_type::time_point begin) { return std::chrono::duration<double>(clock_type::now() - begin).count(); }

__global__ void nothing() {}
__global__ void spin(long long clocks) {
  for (const auto begin = clock64(); clock64() - begin < clocks;) {
  }
}
__global__ void wait_for(const volatile int* flag) {
  while (*flag == 0) {
  }
}

void gpus() {
  int count = 0, driver = 0, runtime = 0;
  if (const auto code = cudaGetDeviceCount(&count); code != cudaSuccess)
    throw std::runtime_error(std::string("there is no GPU to use: ") + cudaGetErrorString(code));
  cudaDriverGetVersion(&driver), cudaRuntimeGetVersion(&runtime);
  std::printf("driver of CUDA %d.%d, runtime %d.%d\n", driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
  for (int d = 0; d < count; ++d) {
    cudaDeviceProp all{};
    cudaGetDeviceProperties(&all, d);
    std::printf("GPU %d: %s, sm_%d%d, %.1f GiB, %d multiprocessors\n", d, all.name, all.major, all.minor,
                static_cast<double>(all.totalGlobalMem) / (1 << 30), all.multiProcessorCount);
  }
}

void rules() {
  for (const auto& r : hetsched::test::try_cuda_rules(hetsched::cuda_runtime()))
    row(r.call + ", " + r.state, r.found == r.wanted,
        std::to_string(r.found) + (r.found == r.wanted ? "" : ", not " + std::to_string(r.wanted)));
}

void pending_errors() {
  const auto pending = [] { return std::to_string(cudaPeekAtLastError()); };
  cudaStream_t s{};
  cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
  void* memory = nullptr;
  cudaMalloc(&memory, 1 << 20);
  (void)cudaGetLastError();
  cudaEvent_t e{};
  cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
  int* flag = nullptr;
  cudaHostAlloc(&flag, sizeof(int), cudaHostAllocMapped);
  *flag = 0;
  wait_for<<<1, 1, 0, s>>>(flag);
  cudaEventRecord(e, s);
  const int query = cudaEventQuery(e);
  row("a query that finds work going on", query == 600, "stays as an error: " + pending());
  *static_cast<volatile int*>(flag) = 1;
  cudaStreamSynchronize(s);
  (void)cudaGetLastError();
  nothing<<<1, 1 << 20, 0, s>>>();
  const std::string first = pending(), second = pending();
  const int next = cudaMemsetAsync(memory, 0, 16, s);
  row("a launch with too many threads", first != "0",
      "error " + first + ", again " + second + ", next call " + std::to_string(next));
  const std::string told = std::to_string(cudaGetLastError());
  row("cudaGetLastError", pending() == "0", told + ", then " + pending());
  cudaGraph_t g{};
  cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed);
  (void)cudaStreamSynchronize(s);
  const std::string in_capture = pending();
  (void)cudaStreamEndCapture(s, &g);
  row("a capture that fails", true, "stays as an error: " + in_capture + ", behind its end " + pending());
  (void)cudaGetLastError();
  (void)hetsched::test::try_cuda_rules(hetsched::cuda_runtime());
  row("behind the calls of the library that failed", pending() == "0", pending());
  cudaFree(memory);
}

// The driver's call, without a link to the driver.
int context_of(int device) {
  using call = int (*)(int, unsigned*, int*);
  void* found = nullptr;
  cudaDriverEntryPointQueryResult how{};
  if (cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &found, 12000, cudaEnableDefault, &how) != cudaSuccess ||
      !found)
    return -1;
  unsigned flags = 0;
  int active = -1;
  return reinterpret_cast<call>(found)(device, &flags, &active) == 0 ? active : -1;
}
void contexts() {
  int count = 0;
  const auto begin = clock_type::now();
  cudaGetDeviceCount(&count);
  row("cudaGetDeviceCount", true,
      number("%.2f s,", seconds_since(begin)) + " contexts on device 0: " + std::to_string(context_of(0)));
  int device = 0;
  cudaGetDevice(&device);
  row("cudaGetDevice", true, "contexts: " + std::to_string(context_of(0)));
  cudaDeviceProp all{};
  cudaGetDeviceProperties(&all, 0);
  row("cudaGetDeviceProperties", true, "contexts: " + std::to_string(context_of(0)));
  cudaMemPool_t pool{};
  cudaMemPoolProps how{};
  how.allocType = cudaMemAllocationTypePinned;
  how.location.type = cudaMemLocationTypeDevice;
  const auto at_pool = clock_type::now();
  cudaMemPoolCreate(&pool, &how);
  row("cudaMemPoolCreate", true, number("%.2f s,", seconds_since(at_pool)) + " contexts: " + std::to_string(context_of(0)));
  const auto at_set = clock_type::now();
  cudaSetDevice(0);
  row("cudaSetDevice", true, number("%.2f s,", seconds_since(at_set)) + " contexts: " + std::to_string(context_of(0)));
}

// How many calls a stream takes that does nothing, before a call waits.
struct depth {
  long calls = 0;
  bool waits = false;
};
template <class Call>
depth depth_of(Call&& call) {
  int* flag = nullptr;
  cudaHostAlloc(&flag, sizeof(int), cudaHostAllocMapped);
  *flag = 0;
  cudaStream_t s{};
  cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
  wait_for<<<1, 1, 0, s>>>(flag);
  std::atomic<long> calls{0};
  std::atomic<bool> ends{false};
  std::thread caller([&] {
    cudaSetDevice(0);
    for (long i = 0; i < 200'000 && !ends; ++i) call(s, i), ++calls;
    ends = true;
  });
  depth found;
  for (long before = -1; !ends; before = calls) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    if (calls == before) {
      found = {before, true};
      break;
    }
  }
  if (!found.waits) found.calls = calls;
  ends = true;
  *static_cast<volatile int*>(flag) = 1;
  caller.join();
  cudaStreamSynchronize(s);
  cudaStreamDestroy(s);
  cudaFreeHost(flag);
  return found;
}
// What waits where the launch queue of one stream is full: calls on this stream, and calls on others beside it.
void full_stream() {
  constexpr int others = 40;
  constexpr int depth = 1021;
  std::vector<cudaStream_t> all(others + 1);
  for (auto& s : all) cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
  std::vector<cudaEvent_t> events(4);
  for (auto& e : events) cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
  for (auto& s : all) nothing<<<1, 1, 0, s>>>(), cudaEventRecord(events[1], s);
  cudaDeviceSynchronize();
  int* flag = nullptr;
  cudaHostAlloc(&flag, sizeof(int), cudaHostAllocMapped);
  *flag = 0;
  wait_for<<<1, 1, 0, all[0]>>>(flag);
  for (int i = 0; i < depth; ++i) nothing<<<1, 1, 0, all[0]>>>();
  // The calls of interest, each by a thread of its own: none may be able to end.
  const auto waits = [&](auto call) {
    auto done = std::make_shared<std::atomic<bool>>(false);
    std::thread([=] {
      cudaSetDevice(0);
      call();
      *done = true;
    }).detach();
    for (int k = 0; k < 20 && !*done; ++k) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return !*done;
  };
  const auto tell = [](const char* what, bool held) {
    row(std::string("a full stream: ") + what, true, held ? "waits" : "returns");
  };
  tell("cudaEventRecord", waits([=] { cudaEventRecord(events[0], all[0]); }));
  tell("cudaEventQuery", waits([=] { cudaEventQuery(events[0]); }));
  tell("cudaStreamWaitEvent", waits([=] { cudaStreamWaitEvent(all[0], events[1], 0); }));
  tell("cudaMallocAsync", waits([=] {
         void* made = nullptr;
         cudaMallocAsync(&made, 4096, all[0]);
       }));
  int held = 0, first = -1;
  for (int k = 1; k <= others; ++k) {
    const auto s = all[k];
    if (waits([=] { nothing<<<1, 1, 0, s>>>(); })) ++held, first = first < 0 ? k : first;
  }
  row("a full stream: kernels on " + std::to_string(others) + " others", true,
      std::to_string(held) + " wait" + (first < 0 ? "" : ", the first on stream " + std::to_string(first)));
  tell("a kernel on it", waits([=] { nothing<<<1, 1, 0, all[0]>>>(); }));
  tell("cudaEventRecord while that waits", waits([=] { cudaEventRecord(events[2], all[0]); }));
  tell("a kernel on another while that waits", waits([=] { nothing<<<1, 1, 0, all[others]>>>(); }));
  tell("cudaEventRecord on another while that waits", waits([=] { cudaEventRecord(events[3], all[others]); }));
  *static_cast<volatile int*>(flag) = 1;
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  cudaDeviceSynchronize();
}
void queue_depth() {
  cudaSetDevice(0);
  const auto tell = [](const char* what, const depth& d) {
    row(what, true, d.waits ? "waits behind " + std::to_string(d.calls) : "took " + std::to_string(d.calls) + " without a wait");
  };
  std::vector<cudaEvent_t> events(4096);
  for (auto& e : events) cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
  void *a = nullptr, *b = nullptr;
  cudaMalloc(&a, 1 << 20), cudaMalloc(&b, 1 << 20);
  cudaStream_t other{};
  cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
  tell("kernels", depth_of([](cudaStream_t s, long) { nothing<<<1, 1, 0, s>>>(); }));
  tell("records of events", depth_of([&](cudaStream_t s, long i) { cudaEventRecord(events[i % 4096], s); }));
  tell("copies within the device", depth_of([&](cudaStream_t s, long) { cudaMemcpyAsync(b, a, 4096, cudaMemcpyDefault, s); }));
  tell("memsets", depth_of([&](cudaStream_t s, long) { cudaMemsetAsync(a, 0, 4096, s); }));
  tell("kernels with an event behind every 12th", depth_of([&](cudaStream_t s, long i) {
         if (i % 13 == 12)
           cudaEventRecord(events[i % 4096], s);
         else
           nothing<<<1, 1, 0, s>>>();
       }));
  // Streams that wait for an event of one that stands still.
  tell("kernels of a second stream that waits for the first", depth_of([&](cudaStream_t s, long i) {
         if (i == 0) cudaEventRecord(events[0], s), cudaStreamWaitEvent(other, events[0], 0);
         nothing<<<1, 1, 0, other>>>();
       }));
  cudaStreamSynchronize(other);
  full_stream();
}

template <class Call>
double us_per_call(int calls, Call&& call) {
  std::vector<double> all;
  for (int repeat = 0; repeat < 7; ++repeat) {
    cudaDeviceSynchronize();
    const auto begin = clock_type::now();
    for (int i = 0; i < calls; ++i) call(i);
    all.push_back(1e6 * seconds_since(begin) / calls);
  }
  std::nth_element(all.begin(), all.begin() + 3, all.end());
  return all[3];
}
void call_times() {
  cudaSetDevice(0);
  cudaStream_t s{}, t{};
  cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
  cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking);
  std::vector<cudaEvent_t> events(256);
  for (auto& e : events) cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
  void *a = nullptr, *b = nullptr, *pinned = nullptr;
  cudaMalloc(&a, 1 << 20), cudaMalloc(&b, 1 << 20);
  cudaHostAlloc(&pinned, 1 << 20, cudaHostAllocPortable);
  const auto tell = [](const char* what, double us) { row(what, true, number("%.2f us of the host", us)); };
  tell("a kernel of nothing", us_per_call(256, [&](int) { nothing<<<1, 1, 0, s>>>(); }));
  tell("cudaEventRecord", us_per_call(256, [&](int i) { cudaEventRecord(events[i], s); }));
  tell("cudaEventQuery", us_per_call(256, [&](int i) { cudaEventQuery(events[i]); }));
  tell("cudaStreamWaitEvent", us_per_call(256, [&](int i) { cudaStreamWaitEvent(t, events[i], 0); }));
  tell("cudaSetDevice to the same", us_per_call(256, [&](int) { cudaSetDevice(0); }));
  tell("cudaGetDevice", us_per_call(256, [&](int) {
         int d;
         cudaGetDevice(&d);
       }));
  tell("cudaMemsetAsync, 4 KiB", us_per_call(256, [&](int) { cudaMemsetAsync(a, 0, 4096, s); }));
  tell("cudaMemcpyAsync within, 4 KiB", us_per_call(256, [&](int) { cudaMemcpyAsync(b, a, 4096, cudaMemcpyDefault, s); }));
  tell("cudaMemcpyAsync to pinned memory, 4 KiB",
       us_per_call(256, [&](int) { cudaMemcpyAsync(pinned, a, 4096, cudaMemcpyDefault, s); }));
  hetsched::cuda_runtime api;
  cudaMemPool_t pool{};
  (void)api.create_pool(0, pool);
  tell("cudaMallocFromPoolAsync and cudaFreeAsync, 1 MiB", us_per_call(256, [&](int) {
         void* p = nullptr;
         (void)api.allocate(p, 1 << 20, pool, s);
         (void)api.free(p, s);
       }));
  for (const int kernels : {10, 100}) {
    cudaGraph_t g{};
    cudaGraphExec_t launched{};
    cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed);
    for (int k = 0; k < kernels; ++k) nothing<<<1, 1, 0, s>>>();
    cudaStreamEndCapture(s, &g);
    cudaGraphInstantiate(&launched, g, 0);
    tell(("a graph of " + std::to_string(kernels) + " kernels").c_str(),
         us_per_call(32, [&](int) { cudaGraphLaunch(launched, s); }));
    cudaStreamSynchronize(s);
    const auto begin = clock_type::now();
    for (int i = 0; i < 100; ++i) cudaGraphLaunch(launched, s);
    cudaStreamSynchronize(s);
    const double graphed = seconds_since(begin) / 100 / kernels;
    const auto again = clock_type::now();
    for (int i = 0; i < 100 * kernels; ++i) nothing<<<1, 1, 0, s>>>();
    cudaStreamSynchronize(s);
    row("... from kernel to kernel on the device", true,
        number("%.2f us in a graph,", 1e6 * graphed) +
            number(" %.2f us by launches", 1e6 * seconds_since(again) / 100 / kernels));
  }
}

void pool_reuse() {
  hetsched::cuda_runtime api;
  cudaMemPool_t pool{};
  cudaStream_t s{}, t{};
  (void)api.set_device(0);
  (void)api.create_pool(0, pool);
  (void)api.create_stream(s);
  (void)api.create_stream(t);
  constexpr std::size_t bytes = std::size_t{256} << 20;
  const auto reserved = [&] {
    std::uint64_t now = 0;
    cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &now);
    return number("%.0f MiB reserved", static_cast<double>(now) / (1 << 20));
  };
  void *first = nullptr, *again = nullptr, *other = nullptr, *behind = nullptr;
  const auto begin = clock_type::now();
  (void)api.allocate(first, bytes, pool, s);
  (void)api.synchronize(s);
  row("the first 256 MiB of a pool", first != nullptr, number("%.2f ms, ", 1e3 * seconds_since(begin)) + reserved());
  (void)api.free(first, s);
  (void)api.allocate(again, bytes, pool, s);
  row("freed and taken again on one stream", again == first, reserved());
  int* flag = nullptr;
  cudaHostAlloc(&flag, sizeof(int), cudaHostAllocMapped);
  *flag = 0;
  wait_for<<<1, 1, 0, s>>>(flag);
  (void)api.free(again, s);
  (void)api.allocate(other, bytes, pool, t);
  row("freed behind work, taken on another stream", other != first, reserved());
  cudaEvent_t e{};
  (void)api.create_event(e);
  (void)api.record(e, s);
  (void)api.wait(t, e);
  (void)api.allocate(behind, bytes, pool, t);
  row("the same behind an event", true, std::string(behind == first ? "the same memory, " : "other memory, ") + reserved());
  *static_cast<volatile int*>(flag) = 1;
  (void)api.synchronize(s);
  (void)api.synchronize(t);
}

// What the one process of two_processes() writes to the other.
struct shared_names {
  hetsched::cuda_runtime::memory_handle memory;
  hetsched::cuda_runtime::event_handle event;
};
constexpr std::size_t shared_bytes = std::size_t{64} << 20;
constexpr int shared_value = 7;

// The owner, of a program of its own: by standard input and output.
void owner() {
  if (!std::getenv("RULES_OWNER")) return;
  const hetsched::cuda_runtime api;
  void* memory = nullptr;
  cudaStream_t s{};
  cudaEvent_t e{};
  shared_names names{};
  const bool made = api.allocate_shared(memory, shared_bytes) == 0 && api.create_stream(s) == 0 &&
                    api.create_shared_event(e) == 0 && cudaMemsetAsync(memory, shared_value, shared_bytes, s) == 0 &&
                    api.record(e, s) == 0 && api.export_memory(memory, names.memory) == 0 &&
                    api.export_event(e, names.event) == 0;
  char over = 0;
  if (made && write(1, &names, sizeof names) == sizeof names) (void)!read(0, &over, 1);
  std::exit(0);
}
void two_processes() {
  int down[2] = {}, up[2] = {};
  if (pipe(down) != 0 || pipe(up) != 0) throw std::runtime_error("no pipe");
  const pid_t other = fork();
  if (other == 0) {
    dup2(down[0], 0), dup2(up[1], 1);
    for (const int end : {down[0], down[1], up[0], up[1]}) close(end);
    setenv("RULES_OWNER", "1", 1);
    execl("/proc/self/exe", "rules", "owner", static_cast<char*>(nullptr));
    _exit(1);
  }
  close(down[0]), close(up[1]);
  shared_names names{};
  const bool told = read(up[0], &names, sizeof names) == sizeof names;
  row("memory and an event of another process are named", told, "");
  if (told) {
    const hetsched::cuda_runtime api;
    void *memory = nullptr, *own = nullptr;
    cudaStream_t s{};
    cudaEvent_t e{};
    (void)api.create_stream(s);
    (void)cudaMalloc(&own, shared_bytes);
    const int opens = api.open_memory(memory, names.memory), opens_event = api.open_event(e, names.event);
    row("they are opened", opens == 0 && opens_event == 0, std::to_string(opens) + ", " + std::to_string(opens_event));
    if (opens == 0 && opens_event == 0) {
      const int waits = api.wait(s, e), copies = api.copy(own, memory, shared_bytes, s), ends = api.synchronize(s);
      std::vector<char> found(shared_bytes);
      (void)cudaMemcpy(found.data(), own, shared_bytes, cudaMemcpyDefault);
      row("copied behind the event",
          waits == 0 && copies == 0 && ends == 0 &&
              std::count(found.begin(), found.end(), shared_value) == static_cast<std::ptrdiff_t>(shared_bytes),
          "");
      constexpr int times = 20;
      const auto begin = clock_type::now();
      for (int k = 0; k < times; ++k) (void)api.copy(own, memory, shared_bytes, s);
      (void)api.synchronize(s);
      row("copies from another process", true, number("%.1f GB/s", times * shared_bytes / seconds_since(begin) / 1e9));
    }
    const int closes = opens == 0 ? api.close_memory(memory) : 0, ends = opens_event == 0 ? api.destroy_event(e) : 0;
    row("they are closed", closes == 0 && ends == 0, "");
    (void)cudaFree(own);
  }
  close(down[1]), close(up[0]);
  int status = 0;
  (void)waitpid(other, &status, 0);
}

/// A short kernel behind one of many blocks on another stream, of its priority and of the greatest: when it ends, of the long
/// one's time.
void urgent_streams() {
  const hetsched::cuda_runtime api;
  cudaStream_t busy{}, plain{}, urgent{};
  (void)api.create_stream(busy);
  (void)api.create_stream(plain);
  row("a stream of the greatest priority is made", api.create_urgent_stream(urgent) == 0, "");
  cudaDeviceProp all{};
  cudaGetDeviceProperties(&all, 0);
  const auto share = [&](cudaStream_t other) {
    cudaEvent_t begin{}, short_end{}, long_end{};
    for (auto* e : {&begin, &short_end, &long_end}) (void)api.create_timed_event(*e);
    (void)api.record(begin, busy);
    // Eight times what fits at once: its blocks come and go, so that others can come between them.
    spin<<<8 * 2 * all.multiProcessorCount, all.maxThreadsPerMultiProcessor / 2, 0, busy>>>(1'000'000);
    nothing<<<1, 1, 0, other>>>();
    (void)api.record(short_end, other);
    (void)api.record(long_end, busy);
    (void)api.synchronize(busy);
    (void)api.synchronize(other);
    double first = 0, whole = 1;
    (void)api.elapsed(first, begin, short_end);
    (void)api.elapsed(whole, begin, long_end);
    for (auto e : {begin, short_end, long_end}) (void)api.destroy_event(e);
    return first / whole;
  };
  (void)share(plain), (void)share(urgent);
  const double of_plain = share(plain), of_urgent = share(urgent);
  row("a kernel behind one of many blocks ends after, of its time", true, number("%.2f", of_plain));
  row("the same of the greatest priority", of_urgent < 0.5, number("%.2f", of_urgent));
  for (auto s : {busy, plain, urgent}) (void)api.destroy_stream(s);
}

/// What the choice of network cards goes by.
void network_cards() {
  const hetsched::cuda_runtime api;
  int count = 0;
  (void)api.device_count(count);
  const auto ports = hetsched::find_nics();
  for (int d = 0; d < count; ++d) {
    hetsched::cuda_properties found;
    const int code = api.properties(d, found);
    const auto place = hetsched::find_pci_place("/sys/bus/pci/devices/" + found.pci);
    row("place of GPU " + std::to_string(d) + ", " + found.pci, code == 0 && !place.path.empty(),
        (place.path.empty() ? "unknown" : place.path.front()) + ", node " + std::to_string(place.node));
    for (const auto& p : ports)
      row("nearness of " + p.name + ":" + std::to_string(p.port) + ", " + p.link_layer, true,
          std::to_string(hetsched::nearness(p.place, place)) + number(", %.0f Gbit/s", 8e-9 * p.bandwidth));
  }
}

}  // namespace

int main(int argc, char** argv) {
  return rows::main(argc, argv,
                    {{"gpus", gpus},
                     {"contexts", contexts},
                     {"rules", rules},
                     {"pending_errors", pending_errors},
                     {"queue_depth", queue_depth},
                     {"call_times", call_times},
                     {"pool_reuse", pool_reuse},
                     {"urgent_streams", urgent_streams},
                     {"network_cards", network_cards},
                     {"two_processes", two_processes},
                     {"owner", owner}});
}
