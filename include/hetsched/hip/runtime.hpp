// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

// HIP's headers are those of one of two platforms, as a macro says; the other one is CUDA again.
#ifndef __HIP_PLATFORM_AMD__
#define __HIP_PLATFORM_AMD__
#endif
#include <hip/hip_runtime_api.h>

#include <hetsched/core/index.hpp>
#include <hetsched/cuda/api.hpp>
#include <hetsched/cuda/graphs.hpp>
#include <hetsched/cuda/hardware.hpp>
#include <hetsched/hip/call_name.hpp>

namespace hetsched {

/// HIP's runtime for AMD's GPUs, 5.2 or later, as a cuda_api. It has been compiled and linked, and asked on machines without a
/// GPU; no GPU has run it yet. Ranges for profilers are not told: they are another library's, roctx. A code that a call returns
/// does not stay behind as the thread's last error, for which the next launch of a kernel would be blamed.
struct hip_runtime {
  using stream = hipStream_t;
  using event = hipEvent_t;
  using pool = hipMemPool_t;
  using graph = hipGraphExec_t;

  static int device_count(int& count) { return told(hipGetDeviceCount(&count)); }
  static int get_device(int& device) { return told(hipGetDevice(&device)); }
  static int has_context(int device, bool& has) {
    unsigned flags = 0;
    int active = 0;
    const int code = told(hipDevicePrimaryCtxGetState(device, &flags, &active));
    has = active != 0;
    return code;
  }
  static int set_device(int device) { return told(hipSetDevice(device)); }
  static int create_stream(stream& s) { return told(hipStreamCreateWithFlags(&s, hipStreamNonBlocking)); }
  static int create_urgent_stream(stream& s) {
    int least = 0, most = 0;
    if (const int code = told(hipDeviceGetStreamPriorityRange(&least, &most)); code != 0) return code;
    return told(hipStreamCreateWithPriority(&s, hipStreamNonBlocking, most));
  }
  static int destroy_stream(stream s) { return told(hipStreamDestroy(s)); }
  static int create_event(event& e) { return told(hipEventCreateWithFlags(&e, hipEventDisableTiming)); }
  static int create_timed_event(event& e) { return told(hipEventCreate(&e)); }
  static int destroy_event(event e) { return told(hipEventDestroy(e)); }
  static int record(event e, stream s) { return told(hipEventRecord(e, s)); }
  static int elapsed(double& seconds, event from, event to) {
    float ms = 0;
    const int code = told(hipEventElapsedTime(&ms, from, to));
    seconds = 1e-3 * static_cast<double>(ms);
    return code;
  }
  static int wait(stream s, event e) { return told(hipStreamWaitEvent(s, e, 0)); }
  static int query(event e) { return told(hipEventQuery(e)); }
  static int synchronize(stream s) { return told(hipStreamSynchronize(s)); }
  static int create_pool(int device, pool& p) {
    hipMemPoolProps how{};
    how.allocType = hipMemAllocationTypePinned;
    how.location.type = hipMemLocationTypeDevice;
    how.location.id = device;
    if (const int code = told(hipMemPoolCreate(&p, &how)); code != 0) return code;
    auto kept = std::numeric_limits<std::uint64_t>::max();
    const int code = told(hipMemPoolSetAttribute(p, hipMemPoolAttrReleaseThreshold, &kept));
    if (code != 0) (void)hipMemPoolDestroy(p);
    return code;
  }
  static int destroy_pool(pool p) { return told(hipMemPoolDestroy(p)); }
  static int allocate(void*& made, std::size_t bytes, pool p, stream s) {
    return told(hipMallocFromPoolAsync(&made, bytes, p, s));
  }
  static int free(void* memory, stream s) { return told(hipFreeAsync(memory, s)); }
  static int allocate_pinned(void*& made, std::size_t bytes) { return told(hipHostMalloc(&made, bytes, hipHostMallocPortable)); }
  static int free_pinned(void* memory) { return told(hipHostFree(memory)); }
  static int copy(void* to, const void* from, std::size_t bytes, stream s) {
    return told(hipMemcpyAsync(to, from, bytes, hipMemcpyDefault, s));
  }
  static int copy_peer(void* to, int to_device, const void* from, int from_device, std::size_t bytes, stream s) {
    return told(hipMemcpyPeerAsync(to, to_device, from, from_device, bytes, s));
  }
  static int copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t bytes,
                       std::size_t rows, stream s) {
    return told(hipMemcpy2DAsync(to, to_pitch, from, from_pitch, bytes, rows, hipMemcpyDefault, s));
  }
  static int set_zero(void* to, std::size_t bytes, stream s) { return told(hipMemsetAsync(to, 0, bytes, s)); }
  static int share_pool(pool p, int device, int peer, bool& shared) {
    shared = false;
    int possible = 0;
    if (const int code = told(hipDeviceCanAccessPeer(&possible, peer, device)); code != 0 || possible == 0) return code;
    hipMemAccessDesc how{};
    how.location.type = hipMemLocationTypeDevice;
    how.location.id = peer;
    how.flags = hipMemAccessFlagsProtReadWrite;
    const int code = told(hipMemPoolSetAccess(p, &how, 1));
    shared = code == 0;
    return code;
  }
  /// Relaxed: other calls of the thread, such as those that allocate elsewhere, are nothing that this queue's capture depends on.
  static int begin_capture(stream s) { return told(hipStreamBeginCapture(s, hipStreamCaptureModeRelaxed)); }
  static int end_capture(stream s, graph& made) {
    hipGraph_t found{};
    if (const int code = told(hipStreamEndCapture(s, &found)); code != 0) return code;
    const int code = told(hipGraphInstantiate(&made, found, nullptr, nullptr, 0));
    (void)hipGraphDestroy(found);
    return code;
  }
  static int end_update(stream s, graph& g, bool& updated) {
    updated = false;
    hipGraph_t found{};
    if (const int code = told(hipStreamEndCapture(s, &found)); code != 0) return code;
    hipGraphNode_t odd{};
    hipGraphExecUpdateResult why{};
    int code = told(hipGraphExecUpdate(g, found, &odd, &why));
    updated = code == 0 && why == hipGraphExecUpdateSuccess;
    if (code == hipErrorGraphExecUpdateFailure || (code == 0 && !updated)) {
      graph made{};
      code = told(hipGraphInstantiate(&made, found, nullptr, nullptr, 0));
      if (code == 0) (void)hipGraphExecDestroy(std::exchange(g, made));
    }
    (void)hipGraphDestroy(found);
    return code;
  }
  static int launch(graph g, stream s) { return told(hipGraphLaunch(g, s)); }
  static int destroy_graph(graph g) { return told(hipGraphExecDestroy(g)); }
  static int properties(int device, cuda_properties& found) {
    hipDeviceProp_t all{};
    if (const int code = told(hipGetDeviceProperties(&all, device)); code != 0) return code;
    found = {.name = all.name,
             .memory_bytes = all.totalGlobalMem,
             .l2_bytes = as_size(all.l2CacheSize),
             .multiprocessors = all.multiProcessorCount,
             .clock_hz = 1e3 * all.clockRate,
             .major = all.major,
             .minor = all.minor,
             .pci = pci_name(all.pciDomainID, all.pciBusID, all.pciDeviceID)};
    return 0;
  }
  static int peer(cuda_peer& found, int from, int to) {
    int direct = 0;
    if (const int code = told(hipDeviceCanAccessPeer(&direct, from, to)); code != 0) return code;
    found.direct = direct != 0;
    return told(hipDeviceGetP2PAttribute(&found.rank, hipDevP2PAttrPerformanceRank, from, to));
  }
  static void begin_range(const char*) {}
  static void end_range() {}
  static std::string error_text(int code) { return hipGetErrorString(static_cast<hipError_t>(code)); }
  static std::string call_name(const char* name) { return hip_call_name(name); }

 private:
  static int told(hipError_t code) {
    if (code != hipSuccess && code != hipErrorNotReady) (void)hipGetLastError();
    return code;
  }
};

static_assert(cuda_api<hip_runtime> && cuda_graph_api<hip_runtime> && cuda_query_api<hip_runtime> &&
              cuda_priority_api<hip_runtime>);
static_assert(hipErrorNotReady == detail::cuda_not_ready && means_no_gpu(hipErrorNoDevice) &&
              means_no_gpu(hipErrorInsufficientDriver));

}  // namespace hetsched
