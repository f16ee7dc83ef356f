// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include <hetsched/core/index.hpp>
#include <hetsched/cuda/api.hpp>
#include <hetsched/cuda/graphs.hpp>
#include <hetsched/cuda/hardware.hpp>
#include <hetsched/cuda/ipc_communicator.hpp>

namespace hetsched {

/// The CUDA runtime itself, as a cuda_api. A code that a call returns does not stay behind as the thread's last error, for which
/// the next launch of a kernel would be blamed.
struct cuda_runtime {
  using stream = cudaStream_t;
  using event = cudaEvent_t;
  using pool = cudaMemPool_t;
  using graph = cudaGraphExec_t;
  using memory_handle = cudaIpcMemHandle_t;
  using event_handle = cudaIpcEventHandle_t;

  static int device_count(int& count) { return told(cudaGetDeviceCount(&count)); }
  static int get_device(int& device) { return told(cudaGetDevice(&device)); }
  static int has_context(int device, bool& has) {
    using call = int (*)(int, unsigned*, int*);  // of the driver, which a program is not linked with
    static const auto ask = [] {
      void* found = nullptr;
      cudaDriverEntryPointQueryResult how{};
      const int code =
          told(cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &found, 12000, cudaEnableDefault, &how));
      return code == 0 ? reinterpret_cast<call>(found) : nullptr;
    }();
    unsigned flags = 0;
    int active = 0;
    const int code = ask ? ask(device, &flags, &active) : 0;
    has = !ask || active != 0;
    return code;
  }
  static int set_device(int device) { return told(cudaSetDevice(device)); }
  static int create_stream(stream& s) { return told(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking)); }
  static int create_urgent_stream(stream& s) {
    int least = 0, most = 0;
    if (const int code = told(cudaDeviceGetStreamPriorityRange(&least, &most)); code != 0) return code;
    return told(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, most));
  }
  static int destroy_stream(stream s) { return told(cudaStreamDestroy(s)); }
  static int create_event(event& e) { return told(cudaEventCreateWithFlags(&e, cudaEventDisableTiming)); }
  static int create_timed_event(event& e) { return told(cudaEventCreate(&e)); }
  static int destroy_event(event e) { return told(cudaEventDestroy(e)); }
  static int record(event e, stream s) { return told(cudaEventRecord(e, s)); }
  static int elapsed(double& seconds, event from, event to) {
    float ms = 0;
    const int code = told(cudaEventElapsedTime(&ms, from, to));
    seconds = 1e-3 * static_cast<double>(ms);
    return code;
  }
  static int wait(stream s, event e) { return told(cudaStreamWaitEvent(s, e, 0)); }
  static int query(event e) { return told(cudaEventQuery(e)); }
  static int synchronize(stream s) { return told(cudaStreamSynchronize(s)); }
  static int create_pool(int device, pool& p) {
    cudaMemPoolProps how{};
    how.allocType = cudaMemAllocationTypePinned;
    how.location.type = cudaMemLocationTypeDevice;
    how.location.id = device;
    if (const int code = told(cudaMemPoolCreate(&p, &how)); code != 0) return code;
    auto kept = std::numeric_limits<std::uint64_t>::max();
    const int code = told(cudaMemPoolSetAttribute(p, cudaMemPoolAttrReleaseThreshold, &kept));
    if (code != 0) (void)cudaMemPoolDestroy(p);
    return code;
  }
  static int destroy_pool(pool p) { return told(cudaMemPoolDestroy(p)); }
  static int allocate(void*& made, std::size_t bytes, pool p, stream s) {
    return told(cudaMallocFromPoolAsync(&made, bytes, p, s));
  }
  static int free(void* memory, stream s) { return told(cudaFreeAsync(memory, s)); }
  static int allocate_pinned(void*& made, std::size_t bytes) { return told(cudaHostAlloc(&made, bytes, cudaHostAllocPortable)); }
  static int free_pinned(void* memory) { return told(cudaFreeHost(memory)); }
  static int copy(void* to, const void* from, std::size_t bytes, stream s) {
    return told(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s));
  }
  /// From and to memory of pools, cudaMemcpyAsync between devices is not safe: it depends on the current device.
  /// Source: CUDA C++ Programming Guide, Stream Ordered Memory Allocator, cudaMemcpyAsync Current Context/Device Sensitivity.
  static int copy_peer(void* to, int to_device, const void* from, int from_device, std::size_t bytes, stream s) {
    return told(cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, s));
  }
  static int copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t bytes,
                       std::size_t rows, stream s) {
    return told(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, bytes, rows, cudaMemcpyDefault, s));
  }
  static int set_zero(void* to, std::size_t bytes, stream s) { return told(cudaMemsetAsync(to, 0, bytes, s)); }
  /// Pools do not follow cudaDeviceEnablePeerAccess. Without access, copy_peer goes by way of the host.
  static int share_pool(pool p, int device, int peer, bool& shared) {
    shared = false;
    int possible = 0;
    if (const int code = told(cudaDeviceCanAccessPeer(&possible, peer, device)); code != 0 || possible == 0) return code;
    cudaMemAccessDesc how{};
    how.location.type = cudaMemLocationTypeDevice;
    how.location.id = peer;
    how.flags = cudaMemAccessFlagsProtReadWrite;
    const int code = told(cudaMemPoolSetAccess(p, &how, 1));
    shared = code == 0;
    return code;
  }
  /// Relaxed: other calls of the thread, such as those that allocate elsewhere, are nothing that this queue's capture depends on.
  static int begin_capture(stream s) { return told(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed)); }
  static int end_capture(stream s, graph& made) {
    cudaGraph_t found{};
    if (const int code = told(cudaStreamEndCapture(s, &found)); code != 0) return code;
    const int code = told(cudaGraphInstantiate(&made, found, 0));
    (void)cudaGraphDestroy(found);
    return code;
  }
  static int end_update(stream s, graph& g, bool& updated) {
    updated = false;
    cudaGraph_t found{};
    if (const int code = told(cudaStreamEndCapture(s, &found)); code != 0) return code;
    cudaGraphExecUpdateResultInfo why{};
    int code = told(cudaGraphExecUpdate(g, found, &why));
    updated = code == 0;
    if (code == cudaErrorGraphExecUpdateFailure) {
      graph made{};
      code = told(cudaGraphInstantiate(&made, found, 0));
      if (code == 0) (void)cudaGraphExecDestroy(std::exchange(g, made));
    }
    (void)cudaGraphDestroy(found);
    return code;
  }
  static int launch(graph g, stream s) { return told(cudaGraphLaunch(g, s)); }
  static int destroy_graph(graph g) { return told(cudaGraphExecDestroy(g)); }
  /// Whole pages of the device: what is opened elsewhere shares them with nothing else.
  static int allocate_shared(void*& made, std::size_t bytes) {
    constexpr std::size_t page = std::size_t{2} << 20;
    return told(cudaMalloc(&made, (bytes + page - 1) / page * page));
  }
  static int free_shared(void* memory) { return told(cudaFree(memory)); }
  static int export_memory(void* memory, memory_handle& made) { return told(cudaIpcGetMemHandle(&made, memory)); }
  static int open_memory(void*& made, memory_handle from) {
    return told(cudaIpcOpenMemHandle(&made, from, cudaIpcMemLazyEnablePeerAccess));
  }
  static int close_memory(void* memory) { return told(cudaIpcCloseMemHandle(memory)); }
  static int create_shared_event(event& e) {
    return told(cudaEventCreateWithFlags(&e, cudaEventDisableTiming | cudaEventInterprocess));
  }
  static int export_event(event e, event_handle& made) { return told(cudaIpcGetEventHandle(&made, e)); }
  static int open_event(event& made, event_handle from) { return told(cudaIpcOpenEventHandle(&made, from)); }
  static int properties(int device, cuda_properties& found) {
    cudaDeviceProp all{};
    if (const int code = told(cudaGetDeviceProperties(&all, device)); code != 0) return code;
    int khz = 0;
    if (const int code = told(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, device)); code != 0) return code;
    found = {.name = all.name,
             .memory_bytes = all.totalGlobalMem,
             .l2_bytes = as_size(all.l2CacheSize),
             .multiprocessors = all.multiProcessorCount,
             .clock_hz = 1e3 * khz,
             .major = all.major,
             .minor = all.minor,
             .pci = pci_name(all.pciDomainID, all.pciBusID, all.pciDeviceID)};
    return 0;
  }
  static int peer(cuda_peer& found, int from, int to) {
    int direct = 0;
    if (const int code = told(cudaDeviceCanAccessPeer(&direct, from, to)); code != 0) return code;
    found.direct = direct != 0;
    return told(cudaDeviceGetP2PAttribute(&found.rank, cudaDevP2PAttrPerformanceRank, from, to));
  }
  static void begin_range(const char* name) { nvtxRangePushA(name); }
  static void end_range() { nvtxRangePop(); }
  static std::string error_text(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }

 private:
  static int told(int code) {
    if (code != 0 && code != cudaErrorNotReady) (void)cudaGetLastError();
    return code;
  }
};

static_assert(cuda_api<cuda_runtime> && cuda_graph_api<cuda_runtime> && cuda_query_api<cuda_runtime> &&
              cuda_ipc_api<cuda_runtime> && cuda_priority_api<cuda_runtime>);

}  // namespace hetsched
