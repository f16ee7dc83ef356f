// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include <hetsched/cuda/api.hpp>
#include <hetsched/cuda/graphs.hpp>
#include <hetsched/cuda/hardware.hpp>

#include "fake_machine.hpp"

namespace hetsched::test {

/// The cuda_api of a fake machine.
struct fake_cuda {
  using stream = fake_machine::stream_state*;
  using event = fake_machine::event_state*;
  using pool = fake_machine::pool_state*;
  using graph = std::shared_ptr<fake_machine::graph_state>*;
  fake_machine* machine = nullptr;

  [[nodiscard]] int device_count(int& count) const { return machine->device_count(count); }
  [[nodiscard]] int get_device(int& d) const { return machine->get_device(d); }
  [[nodiscard]] int set_device(int d) const { return machine->set_device(d); }
  [[nodiscard]] int has_context(int d, bool& has) const { return machine->has_context(d, has); }
  [[nodiscard]] int create_stream(stream& s) const { return machine->create_stream(s); }
  [[nodiscard]] int destroy_stream(stream s) const { return machine->destroy_stream(s); }
  [[nodiscard]] int create_event(event& e) const { return machine->create_event(e); }
  [[nodiscard]] int create_timed_event(event& e) const { return machine->create_timed_event(e); }
  [[nodiscard]] int elapsed(double& s, event from, event to) const { return machine->elapsed(s, from, to); }
  void begin_range(const char* name) const { machine->begin_range(name); }
  void end_range() const { machine->end_range(); }
  [[nodiscard]] int destroy_event(event e) const { return machine->destroy_event(e); }
  [[nodiscard]] int record(event e, stream s) const { return machine->record(e, s); }
  [[nodiscard]] int wait(stream s, event e) const { return machine->wait(s, e); }
  [[nodiscard]] int query(event e) const { return machine->query(e); }
  [[nodiscard]] int begin_capture(stream s) const { return machine->begin_capture(s); }
  [[nodiscard]] int end_capture(stream s, graph& made) const { return machine->end_capture(s, made); }
  [[nodiscard]] int launch(graph g, stream s) const { return machine->launch(g, s); }
  [[nodiscard]] int destroy_graph(graph g) const { return machine->destroy_graph(g); }
  /// Two GPUs of each kind; those of a kind reach each other.
  [[nodiscard]] int properties(int d, cuda_properties& found) const {
    int count = 0;
    if (const int code = machine->device_count(count); code != 0) return code;
    if (d < 0 || d >= count) return 101;
    found = {.name = "fake kind " + std::to_string(d / 2),
             .memory_bytes = std::size_t{16} << 30,
             .l2_bytes = std::size_t{4} << 20,
             .multiprocessors = 10 + d / 2,
             .clock_hz = 1e9};
    return 0;
  }
  [[nodiscard]] static int peer(cuda_peer& found, int from, int to) {
    found = {.direct = from / 2 == to / 2, .rank = from / 2 == to / 2 ? 0 : 1};
    return 0;
  }
  [[nodiscard]] int synchronize(stream s) const { return machine->synchronize(s); }
  [[nodiscard]] int create_pool(int d, pool& p) const { return machine->create_pool(d, p); }
  [[nodiscard]] int destroy_pool(pool p) const { return machine->destroy_pool(p); }
  [[nodiscard]] int allocate(void*& made, std::size_t bytes, pool p, stream s) const {
    return machine->allocate(made, bytes, p, s);
  }
  [[nodiscard]] int free(void* p, stream s) const { return machine->free(p, s); }
  [[nodiscard]] int allocate_pinned(void*& made, std::size_t bytes) const { return machine->allocate_pinned(made, bytes); }
  [[nodiscard]] int free_pinned(void* p) const { return machine->free_pinned(p); }
  [[nodiscard]] int copy(void* to, const void* from, std::size_t bytes, stream s) const {
    return machine->copy_rows(to, bytes, from, bytes, bytes, 1, s);
  }
  [[nodiscard]] int copy_peer(void* to, int to_device, const void* from, int from_device, std::size_t bytes, stream s) const {
    return machine->copy_peer(to, to_device, from, from_device, bytes, s);
  }
  void host_access(const void* p, std::size_t bytes, bool writes) const { machine->host_access(p, bytes, writes); }
  void taken_again(const void*) const { machine->threads_meet(); }
  [[nodiscard]] int copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t bytes,
                              std::size_t rows, stream s) const {
    return machine->copy_rows(to, to_pitch, from, from_pitch, bytes, rows, s);
  }
  [[nodiscard]] int set_zero(void* p, std::size_t bytes, stream s) const { return machine->set_zero(p, bytes, s); }
  [[nodiscard]] int share_pool(pool p, int d, int peer, bool& shared) const { return machine->share_pool(p, d, peer, shared); }
  [[nodiscard]] static std::string error_text(int code) {
    return code == 35 ? "the driver is too old" : code == 2 ? "out of memory" : "an error of the fake";
  }
};

static_assert(cuda_api<fake_cuda> && cuda_graph_api<fake_cuda>);

}  // namespace hetsched::test
