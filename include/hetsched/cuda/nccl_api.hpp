// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cuda/nccl_communicator_test.cpp.

#include <array>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>

#include <hetsched/core/error.hpp>

namespace hetsched {

/// By which way NCCL connects ranks.
struct nccl_link {
  std::string network;     ///< the name of the network module, as ncclConfig_t::netName; empty: NCCL's choice
  int least_channels = 0;  ///< CTAs of a transfer; 0: NCCL's choice
  int most_channels = 0;
  friend auto operator<=>(const nccl_link&, const nccl_link&) = default;
  friend bool operator==(const nccl_link& a, const nccl_link& b) {  // nvcc 13 leaves out the implicit one
    return a.network == b.network && a.least_channels == b.least_channels && a.most_channels == b.most_channels;
  }
};

/// What collectives add up. The type of an Element: nccl_type_of<Element>, which knows the ones below by their C++ types, and may
/// be specialised; nccl.hpp does so for the 16-bit types of CUDA.
enum class nccl_type : std::uint8_t { i8, u8, i32, i64, f16, bf16, f32, f64 };
template <class Element>
inline constexpr nccl_type nccl_type_of = [] {
  static_assert(sizeof(Element) == 0, "NCCL has no such elements, or nccl_type_of does not know them");
  return nccl_type::u8;
}();
template <>
inline constexpr nccl_type nccl_type_of<std::int8_t> = nccl_type::i8;
template <>
inline constexpr nccl_type nccl_type_of<std::uint8_t> = nccl_type::u8;
template <>
inline constexpr nccl_type nccl_type_of<std::int32_t> = nccl_type::i32;
template <>
inline constexpr nccl_type nccl_type_of<std::int64_t> = nccl_type::i64;
template <>
inline constexpr nccl_type nccl_type_of<float> = nccl_type::f32;
template <>
inline constexpr nccl_type nccl_type_of<double> = nccl_type::f64;

/// The calls of NCCL that this library makes; nccl_runtime makes them, and a fake can stand in for it. A handle. All but the
/// texts return NCCL's error code, 0 for none, 7 for what is not finished, and do what the call of the name in brackets does.
///   stream                    type: as that of the cuda_api that it goes with
///   communicator              type: a handle
///   unique_id(nccl_id&)       [ncclGetUniqueId]
///   connect(communicator&, int ranks, const nccl_id&, int rank, const nccl_link&)
///                             does not block [ncclCommInitRankConfig]
///   split(communicator parent, int colour, int key, communicator& made, const nccl_link&)
///                             all ranks of the parent call it, as often and in the same order, with nothing under way; ranks of
///                             one colour, by their keys, get one that shares the parent's resources; with colour -1 none is
///                             made. Does not block: `made` is null, stays in place, and is written when the parent's state
///                             is no longer in progress, or, by what is still under way, until the parent has been aborted;
///                             then the state of what is made tells the end [ncclCommSplit]
///   state(communicator, int&) what has become of earlier calls [ncclCommGetAsyncError]
///   send(const void*, bytes, peer, communicator, stream), receive(void*, ...)
///                             [ncclSend, ncclRecv]
///   all_reduce(const void* from, void* to, elements, nccl_type, communicator, stream)
///                             the sum; `from` may be `to` [ncclAllReduce]
///   all_gather(...), reduce_scatter(...)
///                             as all_reduce; elements: of one rank [ncclAllGather, ncclReduceScatter]
///   broadcast(const void* from, void* to, elements, nccl_type, root, communicator, stream)
///                             [ncclBroadcast]
///   reduce(const void* from, void* to, elements, nccl_type, root, communicator, stream)
///                             the sum, at the root; elsewhere `to` is null [ncclReduce]
///   begin_group(), end_group()[ncclGroupStart, ncclGroupEnd]
///   finish(communicator), destroy(communicator), abort(communicator)
///                             [ncclCommFinalize, ncclCommDestroy, ncclCommAbort]
///   error_text(code), last_error(communicator) -> std::string
/// Not checked: any of that.
using nccl_id = std::array<unsigned char, 128>;

template <class A>
concept nccl_api = std::copyable<A> &&
    requires(const A& a, typename A::communicator c, typename A::communicator& made, typename A::stream s, nccl_id& id,
             const nccl_id& known, const nccl_link& link, const void* from, void* to, std::size_t bytes, int n, int& state,
             nccl_type type) {
  { a.unique_id(id) } -> std::same_as<int>;
  { a.connect(made, n, known, n, link) } -> std::same_as<int>;
  { a.split(c, n, n, made, link) } -> std::same_as<int>;
  { a.state(c, state) } -> std::same_as<int>;
  { a.send(from, bytes, n, c, s) } -> std::same_as<int>;
  { a.receive(to, bytes, n, c, s) } -> std::same_as<int>;
  { a.all_reduce(from, to, bytes, type, c, s) } -> std::same_as<int>;
  { a.all_gather(from, to, bytes, type, c, s) } -> std::same_as<int>;
  { a.reduce_scatter(from, to, bytes, type, c, s) } -> std::same_as<int>;
  { a.broadcast(from, to, bytes, type, n, c, s) } -> std::same_as<int>;
  { a.reduce(from, to, bytes, type, n, c, s) } -> std::same_as<int>;
  { a.begin_group() } -> std::same_as<int>;
  { a.end_group() } -> std::same_as<int>;
  { a.finish(c) } -> std::same_as<int>;
  { a.destroy(c) } -> std::same_as<int>;
  { a.abort(c) } -> std::same_as<int>;
  { a.error_text(n) } -> std::convertible_to<std::string>;
  { a.last_error(c) } -> std::convertible_to<std::string>;
};

/// An nccl_api that is told of memory which transfers use again and again, so that it need not copy through buffers of its own.
///   keep(communicator, void*, bytes, void*& handle)
///                             until let_go the memory is there, and does not move [ncclCommRegister]
///   let_go(communicator, void* handle)
///                             before the communicator is finished, with nothing under way [ncclCommDeregister]
/// Not checked: any of that.
template <class A>
concept nccl_register_api = nccl_api<A> &&
    requires(const A& a, typename A::communicator c, void* memory, std::size_t bytes, void*& handle) {
  { a.keep(c, memory, bytes, handle) } -> std::same_as<int>;
  { a.let_go(c, memory) } -> std::same_as<int>;
};

/// A call of NCCL that failed, or what it has begun.
class nccl_error : public error {
 public:
  /// `place`: what it was made for; `text`: what NCCL says.
  nccl_error(const std::string& name, const std::string& place, int number, const std::string& text)
      : error(name + " failed for " + place + ": " + text + " (" + std::to_string(number) + ")"), call(name), code(number) {}
  std::string call;
  int code;
};

namespace detail {

inline constexpr int nccl_in_progress = 7;

}  // namespace detail
}  // namespace hetsched
