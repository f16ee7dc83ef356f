// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cuda/machine_test.cpp.

#include <cstddef>
#include <memory>
#include <string>

#include <hetsched/cuda/api.hpp>
#include <hetsched/cuda/graphs.hpp>
#include <hetsched/cuda/hardware.hpp>
#include <hetsched/cuda/ipc_communicator.hpp>

#include <hetsched/cuda_check/machine.hpp>

namespace hetsched::cuda_check {

/// Whose runtime a machine stands in for: what errors call its calls.
struct nvidia {
  static std::string call_name(const char* name) { return name; }
};

/// The cuda_api of a machine, for cuda_devices<api> and all that takes it. Those of two vendors are two types, as their runtimes
/// are, whose devices have nothing in common.
/// Vendor: has call_name as a cuda_api may; see nvidia.
template <class Vendor>
struct api_of {
  using stream = machine::stream_state*;
  using event = machine::event_state*;
  using pool = machine::pool_state*;
  using graph = std::shared_ptr<machine::graph_state>*;
  using memory_handle = machine::memory_handle;
  using event_handle = machine::event_handle;
  machine* gpus = nullptr;
  int process = 0;  ///< which one calls: handles of memory and events are opened by others than have made them

  [[nodiscard]] int device_count(int& count) const { return gpus->device_count(count); }
  [[nodiscard]] int get_device(int& d) const { return gpus->get_device(d); }
  [[nodiscard]] int set_device(int d) const { return gpus->set_device(d); }
  [[nodiscard]] int has_context(int d, bool& has) const { return gpus->has_context(d, has); }
  [[nodiscard]] int create_stream(stream& s) const { return gpus->create_stream(s); }
  [[nodiscard]] int create_urgent_stream(stream& s) const { return gpus->create_stream(s, true); }
  [[nodiscard]] int destroy_stream(stream s) const { return gpus->destroy_stream(s); }
  [[nodiscard]] int create_event(event& e) const { return gpus->create_event(e); }
  [[nodiscard]] int create_timed_event(event& e) const { return gpus->create_timed_event(e); }
  [[nodiscard]] int elapsed(double& s, event from, event to) const { return gpus->elapsed(s, from, to); }
  void begin_range(const char* name) const { gpus->begin_range(name); }
  void end_range() const { gpus->end_range(); }
  [[nodiscard]] int destroy_event(event e) const { return gpus->destroy_event(e); }
  [[nodiscard]] int record(event e, stream s) const { return gpus->record(e, s); }
  [[nodiscard]] int wait(stream s, event e) const { return gpus->wait(s, e); }
  [[nodiscard]] int query(event e) const { return gpus->query(e); }
  [[nodiscard]] int begin_capture(stream s) const { return gpus->begin_capture(s); }
  [[nodiscard]] int end_capture(stream s, graph& made) const { return gpus->end_capture(s, made); }
  [[nodiscard]] int end_update(stream s, graph& g, bool& updated) const { return gpus->end_update(s, g, updated); }
  [[nodiscard]] int launch(graph g, stream s) const { return gpus->launch(g, s); }
  [[nodiscard]] int destroy_graph(graph g) const { return gpus->destroy_graph(g); }
  [[nodiscard]] int allocate_shared(void*& made, std::size_t bytes) const { return gpus->allocate_shared(made, bytes, process); }
  [[nodiscard]] int free_shared(void* p) const { return gpus->free_shared(p); }
  [[nodiscard]] int export_memory(void* p, memory_handle& made) const { return gpus->export_memory(p, made); }
  [[nodiscard]] int open_memory(void*& made, memory_handle from) const { return gpus->open_memory(made, from, process); }
  [[nodiscard]] int close_memory(void* p) const { return gpus->close_memory(p, process); }
  [[nodiscard]] int create_shared_event(event& e) const { return gpus->create_shared_event(e, process); }
  [[nodiscard]] int export_event(event e, event_handle& made) const { return gpus->export_event(e, made); }
  [[nodiscard]] int open_event(event& made, event_handle from) const { return gpus->open_event(made, from, process); }
  /// Two GPUs of each kind; those of a kind reach each other.
  [[nodiscard]] int properties(int d, cuda_properties& found) const {
    int count = 0;
    if (const int code = gpus->device_count(count); code != 0) return code;
    if (d < 0 || d >= count) return 101;
    found = {.name = "strict device of kind " + std::to_string(d / 2),
             .memory_bytes = std::size_t{16} << 30,
             .l2_bytes = std::size_t{4} << 20,
             .multiprocessors = 10 + d / 2,
             .clock_hz = 1e9,
             .pci = pci_name(0, 0x10 + d, 0)};
    return 0;
  }
  [[nodiscard]] static int peer(cuda_peer& found, int from, int to) {
    found = {.direct = from / 2 == to / 2, .rank = from / 2 == to / 2 ? 0 : 1};
    return 0;
  }
  [[nodiscard]] int synchronize(stream s) const { return gpus->synchronize(s); }
  [[nodiscard]] int create_pool(int d, pool& p) const { return gpus->create_pool(d, p); }
  [[nodiscard]] int destroy_pool(pool p) const { return gpus->destroy_pool(p); }
  [[nodiscard]] int allocate(void*& made, std::size_t bytes, pool p, stream s) const { return gpus->allocate(made, bytes, p, s); }
  [[nodiscard]] int free(void* p, stream s) const { return gpus->free(p, s); }
  [[nodiscard]] int allocate_pinned(void*& made, std::size_t bytes) const { return gpus->allocate_pinned(made, bytes); }
  [[nodiscard]] int free_pinned(void* p) const { return gpus->free_pinned(p); }
  [[nodiscard]] int copy(void* to, const void* from, std::size_t bytes, stream s) const {
    return gpus->copy_rows(to, bytes, from, bytes, bytes, 1, s);
  }
  [[nodiscard]] int copy_peer(void* to, int to_device, const void* from, int from_device, std::size_t bytes, stream s) const {
    return gpus->copy_peer(to, to_device, from, from_device, bytes, s);
  }
  void host_access(const void* p, std::size_t bytes, bool writes) const { gpus->host_access(p, bytes, writes); }
  void taken_again(const void*) const { gpus->threads_meet(); }
  [[nodiscard]] int copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t bytes,
                              std::size_t rows, stream s) const {
    return gpus->copy_rows(to, to_pitch, from, from_pitch, bytes, rows, s);
  }
  [[nodiscard]] int set_zero(void* p, std::size_t bytes, stream s) const { return gpus->set_zero(p, bytes, s); }
  [[nodiscard]] int share_pool(pool p, int d, int peer, bool& shared) const { return gpus->share_pool(p, d, peer, shared); }
  [[nodiscard]] static std::string error_text(int code) {
    return code == 35 ? "the driver is too old" : code == 2 ? "out of memory" : "an error of the strict device";
  }
  [[nodiscard]] static std::string call_name(const char* name) { return Vendor::call_name(name); }
};

using api = api_of<nvidia>;

static_assert(cuda_api<api> && cuda_graph_api<api> && cuda_ipc_api<api>);

}  // namespace hetsched::cuda_check
