// SPDX-License-Identifier: Apache-2.0
// Stands in for RCCL's header in tests: declares what hetsched calls as that of RCCL 2.21.5 does, for streams of the strict
// device, and a fake world does it. Like RCCL it refuses what is wrong in a configuration: calls that block, and no share of
// resources.
#pragma once

#include <climits>
#include <cstddef>
#include <cstring>

#include "../../../cuda/fake_nccl.hpp"

namespace hetsched::test {

/// The one that the calls below are of; set before the first.
inline fake_nccl_world* rccl_world = nullptr;

}  // namespace hetsched::test

#define NCCL_VERSION(X, Y, Z) ((X)*10000 + (Y)*100 + (Z))
#define NCCL_VERSION_CODE NCCL_VERSION(2, 21, 5)
#define NCCL_SPLIT_NOCOLOR -1

using hipStream_t = hetsched::test::fake_nccl::stream;
using ncclComm_t = hetsched::test::fake_nccl::communicator;

struct ncclUniqueId {
  char internal[128];
};
enum ncclResult_t { ncclSuccess = 0, ncclInvalidArgument = 4, ncclInProgress = 7 };
struct ncclConfig_t {
  int blocking, minCTAs, maxCTAs;
  const char* netName;
  int splitShare;
};
#define NCCL_CONFIG_INITIALIZER \
  { INT_MIN, INT_MIN, INT_MIN, nullptr, INT_MIN }
enum ncclRedOp_t { ncclSum = 0 };
enum ncclDataType_t {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt64 = 4,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9
};

namespace hetsched::test {

[[nodiscard]] inline fake_nccl rccl() { return {rccl_world}; }
[[nodiscard]] inline ncclResult_t answer(int code) { return static_cast<ncclResult_t>(code); }
[[nodiscard]] inline nccl_link link_of(const ncclConfig_t& how) {
  return {.network = how.netName ? how.netName : "",
          .least_channels = how.minCTAs == INT_MIN ? 0 : how.minCTAs,
          .most_channels = how.maxCTAs == INT_MIN ? 0 : how.maxCTAs};
}
[[nodiscard]] inline bool is_right(const ncclConfig_t& how) { return how.blocking == 0 && how.splitShare == 1; }
/// As the fake knows it, which adds floats and doubles.
[[nodiscard]] inline nccl_type type_of(ncclDataType_t t) {
  return t == ncclFloat64 ? nccl_type::f64 : t == ncclFloat32 ? nccl_type::f32 : nccl_type::i8;
}

}  // namespace hetsched::test

inline ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  hetsched::nccl_id made{};
  const int code = hetsched::test::rccl().unique_id(made);
  std::memcpy(id->internal, made.data(), made.size());
  return hetsched::test::answer(code);
}
inline ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int ranks, ncclUniqueId id, int rank, ncclConfig_t* how) {
  if (!hetsched::test::is_right(*how)) return ncclInvalidArgument;
  hetsched::nccl_id known{};
  std::memcpy(known.data(), id.internal, known.size());
  return hetsched::test::answer(hetsched::test::rccl().connect(*made, ranks, known, rank, hetsched::test::link_of(*how)));
}
inline ncclResult_t ncclCommSplit(ncclComm_t c, int colour, int key, ncclComm_t* made, ncclConfig_t* how) {
  if (!hetsched::test::is_right(*how)) return ncclInvalidArgument;
  return hetsched::test::answer(hetsched::test::rccl().split(c, colour, key, *made, hetsched::test::link_of(*how)));
}
inline ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t* found) {
  int state = 0;
  const int code = hetsched::test::rccl().state(c, state);
  *found = hetsched::test::answer(state);
  return hetsched::test::answer(code);
}
inline ncclResult_t ncclSend(const void* from, std::size_t n, ncclDataType_t t, int peer, ncclComm_t c, hipStream_t s) {
  return t == ncclUint8 ? hetsched::test::answer(hetsched::test::rccl().send(from, n, peer, c, s)) : ncclInvalidArgument;
}
inline ncclResult_t ncclRecv(void* to, std::size_t n, ncclDataType_t t, int peer, ncclComm_t c, hipStream_t s) {
  return t == ncclUint8 ? hetsched::test::answer(hetsched::test::rccl().receive(to, n, peer, c, s)) : ncclInvalidArgument;
}
inline ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t n, ncclDataType_t t, ncclRedOp_t, ncclComm_t c,
                                  hipStream_t s) {
  return hetsched::test::answer(hetsched::test::rccl().all_reduce(from, to, n, hetsched::test::type_of(t), c, s));
}
inline ncclResult_t ncclAllGather(const void* from, void* to, std::size_t n, ncclDataType_t t, ncclComm_t c, hipStream_t s) {
  return hetsched::test::answer(hetsched::test::rccl().all_gather(from, to, n, hetsched::test::type_of(t), c, s));
}
inline ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t n, ncclDataType_t t, ncclRedOp_t, ncclComm_t c,
                                      hipStream_t s) {
  return hetsched::test::answer(hetsched::test::rccl().reduce_scatter(from, to, n, hetsched::test::type_of(t), c, s));
}
inline ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t n, ncclDataType_t t, int root, ncclComm_t c,
                                  hipStream_t s) {
  return hetsched::test::answer(hetsched::test::rccl().broadcast(from, to, n, hetsched::test::type_of(t), root, c, s));
}
inline ncclResult_t ncclReduce(const void* from, void* to, std::size_t n, ncclDataType_t t, ncclRedOp_t, int root, ncclComm_t c,
                               hipStream_t s) {
  return hetsched::test::answer(hetsched::test::rccl().reduce(from, to, n, hetsched::test::type_of(t), root, c, s));
}
inline ncclResult_t ncclCommRegister(ncclComm_t c, void* memory, std::size_t bytes, void** handle) {
  return hetsched::test::answer(hetsched::test::rccl().keep(c, memory, bytes, *handle));
}
inline ncclResult_t ncclCommDeregister(ncclComm_t c, void* handle) {
  return hetsched::test::answer(hetsched::test::rccl().let_go(c, handle));
}
inline ncclResult_t ncclGroupStart() { return hetsched::test::answer(hetsched::test::rccl().begin_group()); }
inline ncclResult_t ncclGroupEnd() { return hetsched::test::answer(hetsched::test::rccl().end_group()); }
inline ncclResult_t ncclCommFinalize(ncclComm_t c) { return hetsched::test::answer(hetsched::test::rccl().finish(c)); }
inline ncclResult_t ncclCommDestroy(ncclComm_t c) { return hetsched::test::answer(hetsched::test::rccl().destroy(c)); }
inline ncclResult_t ncclCommAbort(ncclComm_t c) { return hetsched::test::answer(hetsched::test::rccl().abort(c)); }
inline const char* ncclGetErrorString(ncclResult_t code) { return code == ncclSuccess ? "no error" : "an error of the stub"; }
inline const char* ncclGetLastError(ncclComm_t) { return ""; }
