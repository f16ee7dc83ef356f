// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cuda/runtime_test.cpp.

#include <concepts>
#include <cstddef>
#include <optional>
#include <string>

#include <hetsched/core/error.hpp>

namespace hetsched {

/// The calls of the CUDA runtime that this library makes; cuda_runtime makes them, and a fake can stand in for it. A handle:
/// copies mean the same runtime. All but error_text return CUDA's error code, 0 for none, and do what the call of the name in
/// brackets does. That runtimes of other vendors have calls like these is enough: see hip_runtime. Codes that mean anything are
/// 600, not ready, of query and elapsed, and those of means_no_gpu.
///   device_count(int&)                                        [cudaGetDeviceCount]
///   get_device(int&), set_device(int)                         [cudaGetDevice, cudaSetDevice]
///   has_context(int device, bool&)                            whether anyone in the process has used it; makes no context
///                                                             [cuDevicePrimaryCtxGetState]
///   create_stream(stream&), destroy_stream(stream)            of the current device, not blocked by the default one
///   create_event(event&), destroy_event(event)                of the current device, without times
///   create_timed_event(event&)                                with times [cudaEventCreate]
///   record(event, stream), wait(stream, event)                [cudaEventRecord, cudaStreamWaitEvent]
///   elapsed(double& seconds, event, event)                    from the one to the other [cudaEventElapsedTime]
///   query(event), synchronize(stream)                         [cudaEventQuery, cudaStreamSynchronize]
///   create_pool(int device, pool&), destroy_pool(pool)        that keeps what is freed [cudaMemPoolCreate]
///   allocate(void*&, bytes, pool, stream), free(void*, stream)[cudaMallocFromPoolAsync, cudaFreeAsync]
///   allocate_pinned(void*&, bytes), free_pinned(void*)        for all devices [cudaHostAlloc, cudaFreeHost]
///   copy(to, from, bytes, stream)                             within a device, or between one and pinned memory; the stream's
///                                                             device is current [cudaMemcpyAsync]
///   copy_peer(to, int to_device, from, int from_device, bytes, stream)
///                                                             whether or not they reach each other's memory
///                                                             [cudaMemcpyPeerAsync]
///   copy_rows(to, to_pitch, from, from_pitch, bytes, rows, stream)
///                                                             as copy [cudaMemcpy2DAsync]
///   set_zero(void*, bytes, stream)                            [cudaMemsetAsync]
///   share_pool(pool, int device, int peer, bool& shared)      a device's with a peer; where there is no way it is not shared,
///                                                             and the code is 0 [cudaMemPoolSetAccess]
///   begin_range(const char*), end_range()                     for profilers; without a code [nvtxRangePush, nvtxRangePop]
///   error_text(code) -> std::string
/// Optional: host_access(const void*, bytes, bool writes), told when the host itself reads or writes pinned memory;
/// taken_again(const void*), told when a thread takes pinned memory that another one may have given back;
/// call_name(const char*) -> std::string, what errors call a call, by CUDA's name for it.
/// Not checked: any of that.
template <class A>
concept cuda_api = std::copyable<A> &&
    requires(const A& a, typename A::stream s, typename A::stream& new_stream, typename A::event e, typename A::event& new_event,
             typename A::pool p, typename A::pool& new_pool, void* to, void*& made, const void* from, std::size_t n, int device,
             int& count, bool& whether, double& seconds, const char* name) {
  { a.device_count(count) } -> std::same_as<int>;
  { a.get_device(count) } -> std::same_as<int>;
  { a.set_device(device) } -> std::same_as<int>;
  { a.has_context(device, whether) } -> std::same_as<int>;
  { a.create_stream(new_stream) } -> std::same_as<int>;
  { a.destroy_stream(s) } -> std::same_as<int>;
  { a.create_event(new_event) } -> std::same_as<int>;
  { a.destroy_event(e) } -> std::same_as<int>;
  { a.create_timed_event(new_event) } -> std::same_as<int>;
  { a.record(e, s) } -> std::same_as<int>;
  { a.elapsed(seconds, e, e) } -> std::same_as<int>;
  { a.wait(s, e) } -> std::same_as<int>;
  { a.query(e) } -> std::same_as<int>;
  { a.synchronize(s) } -> std::same_as<int>;
  { a.create_pool(device, new_pool) } -> std::same_as<int>;
  { a.destroy_pool(p) } -> std::same_as<int>;
  { a.allocate(made, n, p, s) } -> std::same_as<int>;
  { a.free(to, s) } -> std::same_as<int>;
  { a.allocate_pinned(made, n) } -> std::same_as<int>;
  { a.free_pinned(to) } -> std::same_as<int>;
  { a.copy(to, from, n, s) } -> std::same_as<int>;
  { a.copy_peer(to, device, from, device, n, s) } -> std::same_as<int>;
  { a.copy_rows(to, n, from, n, n, n, s) } -> std::same_as<int>;
  { a.set_zero(to, n, s) } -> std::same_as<int>;
  { a.share_pool(p, device, device, whether) } -> std::same_as<int>;
  a.begin_range(name);
  a.end_range();
  { a.error_text(device) } -> std::convertible_to<std::string>;
};

/// A cuda_api whose streams can go first, as those of transfers are to that other ranks wait for.
///   create_urgent_stream(stream&)         as create_stream, but its kernels begin before those of others that have not begun
///                                         [cudaDeviceGetStreamPriorityRange, cudaStreamCreateWithPriority]
/// Not checked: any of that.
template <class A>
concept cuda_priority_api = cuda_api<A> && requires(const A& a, typename A::stream& made) {
  { a.create_urgent_stream(made) } -> std::same_as<int>;
};

/// Whether an error code means that there is no GPU to use: a stub library, no driver or too old a one, no device.
[[nodiscard]] constexpr bool means_no_gpu(int code) { return code == 34 || code == 35 || code == 100; }

/// A call of CUDA, or of another vendor's runtime, that failed.
class cuda_error : public error {
 public:
  /// `name`: of the call, as its vendor has it; `place`: what it was made for; `on`: the device, -1 for none.
  cuda_error(const std::string& name, const std::string& place, int on, int number, const std::string& text)
      : error(means_no_gpu(number) ? "there is no GPU to use: " + name + ": " + text + " (" + std::to_string(number) + ")"
                                   : name + " failed for " + place + (on < 0 ? "" : " on device " + std::to_string(on)) + ": " +
                                         text + " (" + std::to_string(number) + ")"),
        call(name),
        device(on),
        code(number) {}
  std::string call;
  int device;
  int code;
};

namespace detail {

inline constexpr int cuda_not_ready = 600;

/// What a call failed for.
template <cuda_api Api>
[[nodiscard]] cuda_error failure_of(const Api& api, const char* call, const std::string& place, int device, int code,
                                    const std::string& text) {
  if constexpr (requires { api.call_name(call); })
    return {api.call_name(call), place, device, code, text};
  else
    return {call, place, device, code, text};
}
/// Throws: cuda_error unless the code is 0.
template <cuda_api Api>
void require_cuda(const Api& api, int code, const char* call, const std::string& place, int device) {
  if (code != 0) throw failure_of(api, call, place, device, code, api.error_text(code));
}

}  // namespace detail

/// While it lives, a device is the calling thread's current one; then the one is that was before, unless nobody in the process
/// has used that one: to make it current would make a context on it, some hundred MiB of a GPU that others may use.
template <cuda_api Api>
class [[nodiscard]] cuda_device_scope {
 public:
  /// Changes nothing.
  cuda_device_scope() = default;
  /// `place`: what it is for, in errors.
  /// Throws: cuda_error.
  cuda_device_scope(const Api& api, int device, const std::string& place) : api_(api) {
    int before = -1;
    detail::require_cuda(api, api.get_device(before), "cudaGetDevice", place, device);
    if (before == device) return;
    detail::require_cuda(api, api.set_device(device), "cudaSetDevice", place, device);
    before_ = before;
  }
  cuda_device_scope(const cuda_device_scope&) = delete;
  cuda_device_scope& operator=(const cuda_device_scope&) = delete;
  ~cuda_device_scope() {
    bool used = false;
    if (before_ >= 0 && api_->has_context(before_, used) == 0 && used) (void)api_->set_device(before_);
  }

 private:
  std::optional<Api> api_;
  int before_ = -1;  ///< -1: nothing to be changed back
};

}  // namespace hetsched
