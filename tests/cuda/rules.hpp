// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <hetsched/cuda/api.hpp>
#include <hetsched/cuda/graphs.hpp>
#include <hetsched/cuda/ipc_communicator.hpp>

namespace hetsched::test {

/// What a call answers in a state of its stream, by CUDA's manual; the same table is tried on the fake and on a GPU.
struct cuda_rule {
  std::string call, state;
  int wanted = 0;  ///< CUDA's error code
  int found = 0;
};

/// Tries all rules that one GPU can show, each on streams of its own.
/// Source: CUDA Runtime API, Stream Management and Graph Management; CUDA C++ Programming Guide, CUDA Graphs, Prohibited and
/// Unhandled Operations, and Stream Ordered Memory Allocator.
template <cuda_graph_api Api>
[[nodiscard]] std::vector<cuda_rule> try_cuda_rules(const Api& api) {
  constexpr std::size_t bytes = std::size_t{1} << 20;
  constexpr int ok = 0, invalid_value = 1, other_process = 201, invalid_handle = 400, illegal_state = 401, not_ready = 600,
                unsupported = 900, invalidated = 901, unjoined = 904, isolation = 905, captured_event = 907, update_failure = 910;
  std::vector<cuda_rule> found;
  const auto tell = [&](const char* call, const char* state, int wanted, int code) {
    found.push_back({call, state, wanted, code});
  };
  typename Api::pool pool{};
  void *a = nullptr, *b = nullptr, *pinned = nullptr;
  typename Api::stream first{}, second{};
  typename Api::event event{}, other{};
  (void)api.set_device(0);
  (void)api.create_pool(0, pool);
  (void)api.create_stream(first);
  (void)api.create_stream(second);
  (void)api.create_event(event);
  (void)api.create_event(other);
  (void)api.allocate_pinned(pinned, bytes);
  (void)api.allocate(a, bytes, pool, first);
  (void)api.allocate(b, bytes, pool, first);
  (void)api.set_zero(a, bytes, first);
  (void)api.set_zero(b, bytes, first);
  (void)api.synchronize(first);

  if constexpr (cuda_priority_api<Api>) {
    typename Api::stream urgent{};
    tell("cudaStreamCreateWithPriority", "of the greatest priority that there is", ok, api.create_urgent_stream(urgent));
    tell("cudaMemsetAsync", "on such a stream", ok, api.set_zero(a, bytes, urgent));
    (void)api.synchronize(urgent);
    (void)api.destroy_stream(urgent);
  }
  tell("cudaEventQuery", "never recorded", ok, api.query(other));
  double seconds = 0;
  tell("cudaEventElapsedTime", "events without times", invalid_handle, api.elapsed(seconds, event, other));

  // A capture of `first`, in which body() answers with the code of interest; the code of its end.
  const auto captured = [&](const std::function<int()>& body, int& end) {
    typename Api::graph made{};
    (void)api.begin_capture(first);
    const int code = body();
    end = api.end_capture(first, made);
    if (end == ok) (void)api.destroy_graph(made);
    return code;
  };
  const auto rule = [&](const char* call, const char* state, int wanted, int wanted_end, const std::function<int()>& body) {
    int end = 0;
    tell(call, state, wanted, captured(body, end));
    tell("cudaStreamEndCapture", (std::string("behind that: ") + call).c_str(), wanted_end, end);
  };
  rule("cudaMemcpyAsync", "capturing", ok, ok, [&] { return api.copy(b, a, bytes, first); });
  rule("cudaMemcpyAsync", "capturing, to pinned memory", ok, ok, [&] { return api.copy(pinned, a, bytes, first); });
  rule("cudaMemcpy2DAsync", "capturing", ok, ok, [&] { return api.copy_rows(b, 64, a, 128, 64, 16, first); });
  rule("cudaMemsetAsync", "capturing", ok, ok, [&] { return api.set_zero(a, bytes, first); });
  rule("cudaMemcpyPeerAsync", "capturing", unsupported, invalidated, [&] { return api.copy_peer(b, 0, a, 0, bytes, first); });
  rule("cudaStreamSynchronize", "capturing", unsupported, invalidated, [&] { return api.synchronize(first); });
  rule("cudaStreamBeginCapture", "capturing", illegal_state, ok, [&] { return api.begin_capture(first); });
  rule("cudaEventQuery", "recorded in a capture", captured_event, invalidated, [&] {
    (void)api.record(event, first);
    return api.query(event);
  });
  rule("cudaStreamWaitEvent", "capturing, for what was recorded outside", isolation, invalidated, [&] {
    (void)api.record(other, second);
    return api.wait(first, other);
  });
  rule("cudaStreamWaitEvent", "of another stream, for what is captured", ok, ok, [&] {
    (void)api.record(event, first);
    return api.wait(second, event);
  });
  rule("cudaMemsetAsync", "of a stream that has joined and does not come back", ok, unjoined, [&] {
    (void)api.record(event, first);
    (void)api.wait(second, event);
    return api.set_zero(b, bytes, second);
  });
  rule("cudaStreamWaitEvent", "back from a stream that has joined", ok, ok, [&] {
    (void)api.record(event, first);
    (void)api.wait(second, event);
    (void)api.set_zero(b, bytes, second);
    (void)api.record(other, second);
    return api.wait(first, other);
  });
  rule("cudaHostAlloc", "capturing, relaxed", ok, ok, [&] {
    void* made = nullptr;
    const int code = api.allocate_pinned(made, bytes);
    if (code == ok) (void)api.free_pinned(made);
    return code;
  });
  rule("cudaMallocFromPoolAsync", "another stream than the captured one", ok, ok, [&] {
    void* made = nullptr;
    const int code = api.allocate(made, bytes, pool, second);
    if (code == ok) (void)api.free(made, second);
    return code;
  });
  rule("cudaFreeAsync", "capturing, of memory from before", invalid_value, ok, [&] {
    void* made = nullptr;
    (void)api.allocate(made, bytes, pool, second);
    (void)api.synchronize(second);
    const int code = api.free(made, first);
    if (code != ok) (void)api.free(made, second);
    return code;
  });
  // A graph of a memset and a copy is to become that of body(): by an update or, where that is refused, anew.
  const auto update = [&](const char* state, int wanted, const std::function<void()>& body) {
    typename Api::graph made{};
    (void)api.begin_capture(first);
    (void)api.set_zero(a, bytes, first);
    (void)api.copy(b, a, bytes, first);
    (void)api.end_capture(first, made);
    (void)api.launch(made, first);
    (void)api.begin_capture(first);
    body();
    bool updated = false;
    const int code = api.end_update(first, made, updated);
    tell("cudaGraphExecUpdate", state, wanted, code != ok ? code : updated ? ok : update_failure);
    tell("cudaGraphLaunch", (std::string("behind an update: ") + state).c_str(), ok, api.launch(made, first));
    (void)api.synchronize(first);
    (void)api.destroy_graph(made);
  };
  update("other memory of the device", ok, [&] {
    (void)api.set_zero(b, bytes, first);
    (void)api.copy(a, b, bytes, first);
  });
  update("fewer nodes", update_failure, [&] { (void)api.set_zero(a, bytes, first); });
  update("nodes of other kinds", update_failure, [&] {
    (void)api.copy(b, a, bytes, first);
    (void)api.set_zero(a, bytes, first);
  });
  update("a copy that goes to the host instead", update_failure, [&] {
    (void)api.set_zero(a, bytes, first);
    (void)api.copy(pinned, a, bytes, first);
  });
  update("nodes that wait for each other no more", update_failure, [&] {
    (void)api.record(event, first);
    (void)api.wait(second, event);
    (void)api.set_zero(a, bytes, first);
    (void)api.copy(b, pinned, bytes, second);
    (void)api.record(other, second);
    (void)api.wait(first, other);
  });

  // Behind all of these, a stream works as ever.
  (void)api.synchronize(second);
  tell("cudaMemsetAsync", "behind captures that failed", ok, api.set_zero(a, bytes, first));
  tell("cudaStreamSynchronize", "behind captures that failed", ok, api.synchronize(first));

  if constexpr (cuda_ipc_api<Api>) {
    void *shared = nullptr, *opened = nullptr;
    typename Api::memory_handle memory{};
    typename Api::event_handle name{};
    typename Api::event own{}, again{};
    (void)api.allocate_shared(shared, bytes);
    (void)api.create_shared_event(own);
    tell("cudaIpcGetMemHandle", "of memory of a pool", invalid_value, api.export_memory(a, memory));
    tell("cudaIpcGetMemHandle", "of cudaMalloc's", ok, api.export_memory(shared, memory));
    tell("cudaIpcOpenMemHandle", "in the process that has made it", other_process, api.open_memory(opened, memory));
    tell("cudaIpcGetEventHandle", "of an event for one process", invalid_handle, api.export_event(event, name));
    tell("cudaIpcGetEventHandle", "of one for several", ok, api.export_event(own, name));
    tell("cudaIpcOpenEventHandle", "in the process that has made it", other_process, api.open_event(again, name));
    (void)api.destroy_event(own);
    (void)api.free_shared(shared);
  }

  void* large = nullptr;
  constexpr std::size_t much = std::size_t{1} << 32;
  if (api.allocate(large, much, pool, first) == ok) {
    (void)api.synchronize(first);
    for (int i = 0; i < 8; ++i) (void)api.set_zero(large, much, first);
    (void)api.record(event, first);
    tell("cudaEventQuery", "while work goes on", not_ready, api.query(event));
    tell("cudaMemsetAsync", "behind a query that found work going on", ok, api.set_zero(a, bytes, second));
    tell("cudaStreamSynchronize", "behind it", ok, api.synchronize(second));
    (void)api.synchronize(first);
    (void)api.free(large, first);
  }

  (void)api.free(a, first);
  (void)api.free(b, first);
  (void)api.synchronize(first);
  (void)api.free_pinned(pinned);
  (void)api.destroy_event(event);
  (void)api.destroy_event(other);
  (void)api.destroy_stream(first);
  (void)api.destroy_stream(second);
  (void)api.destroy_pool(pool);
  return found;
}

}  // namespace hetsched::test
