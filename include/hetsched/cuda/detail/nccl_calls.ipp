// SPDX-License-Identifier: Apache-2.0
#pragma once
// Behind NCCL's header or RCCL's, which declare the same calls for the streams of different runtimes.

#include <cstddef>
#include <cstring>
#include <string>

#include <hetsched/core/index.hpp>
#include <hetsched/cuda/nccl_api.hpp>

namespace hetsched::detail {

/// The calls of an nccl_api. `Stream`: of the runtime of the header.
template <class Stream>
struct nccl_calls {
  using stream = Stream;
  using communicator = ncclComm_t;

  static int unique_id(nccl_id& id) {
    static_assert(sizeof(ncclUniqueId) == sizeof(nccl_id));
    ncclUniqueId made;
    const int code = ncclGetUniqueId(&made);
    std::memcpy(id.data(), &made, sizeof(made));
    return code;
  }
  static int connect(communicator& made, int ranks, const nccl_id& id, int rank, const nccl_link& link) {
    ncclUniqueId known;
    std::memcpy(&known, id.data(), sizeof(known));
    auto how = config_of(link);
    return ncclCommInitRankConfig(&made, ranks, known, rank, &how);
  }
  static int split(communicator parent, int colour, int key, communicator& made, const nccl_link& link) {
    auto how = config_of(link);
    return ncclCommSplit(parent, colour < 0 ? NCCL_SPLIT_NOCOLOR : colour, key, &made, &how);
  }
  static int state(communicator c, int& state) {
    ncclResult_t found = ncclSuccess;
    const int code = ncclCommGetAsyncError(c, &found);
    state = found;
    return code;
  }
  static int send(const void* from, std::size_t bytes, int peer, communicator c, stream s) {
    return ncclSend(from, bytes, ncclUint8, peer, c, s);
  }
  static int receive(void* to, std::size_t bytes, int peer, communicator c, stream s) {
    return ncclRecv(to, bytes, ncclUint8, peer, c, s);
  }
  static int all_reduce(const void* from, void* to, std::size_t elements, nccl_type t, communicator c, stream s) {
    return ncclAllReduce(from, to, elements, type_of(t), ncclSum, c, s);
  }
  static int all_gather(const void* from, void* to, std::size_t elements, nccl_type t, communicator c, stream s) {
    return ncclAllGather(from, to, elements, type_of(t), c, s);
  }
  static int reduce_scatter(const void* from, void* to, std::size_t elements, nccl_type t, communicator c, stream s) {
    return ncclReduceScatter(from, to, elements, type_of(t), ncclSum, c, s);
  }
  static int broadcast(const void* from, void* to, std::size_t elements, nccl_type t, int root, communicator c, stream s) {
    return ncclBroadcast(from, to, elements, type_of(t), root, c, s);
  }
  static int reduce(const void* from, void* to, std::size_t elements, nccl_type t, int root, communicator c, stream s) {
    return ncclReduce(from, to, elements, type_of(t), ncclSum, root, c, s);
  }
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
  static int keep(communicator c, void* memory, std::size_t bytes, void*& handle) {
    return ncclCommRegister(c, memory, bytes, &handle);
  }
  static int let_go(communicator c, void* handle) { return ncclCommDeregister(c, handle); }
#endif
  static int begin_group() { return ncclGroupStart(); }
  static int end_group() { return ncclGroupEnd(); }
  static int finish(communicator c) { return ncclCommFinalize(c); }
  static int destroy(communicator c) { return ncclCommDestroy(c); }
  static int abort(communicator c) { return ncclCommAbort(c); }
  static std::string error_text(int code) { return ncclGetErrorString(static_cast<ncclResult_t>(code)); }
  /// Of this process, for a communicator that was never made.
  static std::string last_error(communicator c) { return ncclGetLastError(c); }

 private:
  static ncclConfig_t config_of(const nccl_link& link) {
    ncclConfig_t how = NCCL_CONFIG_INITIALIZER;
    how.blocking = 0;
    how.splitShare = 1;
    if (!link.network.empty()) how.netName = link.network.c_str();
    if (link.least_channels > 0) how.minCTAs = link.least_channels;
    if (link.most_channels > 0) how.maxCTAs = link.most_channels;
    return how;
  }
  static ncclDataType_t type_of(nccl_type t) {
    constexpr ncclDataType_t types[] = {ncclInt8,    ncclUint8,    ncclInt32,   ncclInt64,
                                        ncclFloat16, ncclBfloat16, ncclFloat32, ncclFloat64};
    return at(types, t);
  }
};

}  // namespace hetsched::detail
