// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/schedule/text_test.cpp.

#include <string>
#include <string_view>

#include <hetsched/schedule/action.hpp>

namespace hetsched {

namespace detail {

/// By kind: the names of torch.distributed.pipelining, and names in the same manner for the kinds that it lacks.
inline constexpr std::string_view kind_names[action_kinds] = {"F",
                                                              "B",
                                                              "I",
                                                              "W",
                                                              "R",
                                                              "SEND_F",
                                                              "RECV_F",
                                                              "SEND_B",
                                                              "RECV_B",
                                                              "D2H_F",
                                                              "NET_F",
                                                              "H2D_F",
                                                              "D2H_B",
                                                              "NET_B",
                                                              "H2D_B",
                                                              "UNSHARD",
                                                              "RESHARD",
                                                              "REDUCE_SCATTER",
                                                              "REDUCE_GRAD",
                                                              "OPTIMIZER",
                                                              "POST_SEND_F",
                                                              "POST_RECV_F",
                                                              "POST_SEND_B",
                                                              "POST_RECV_B",
                                                              "POST_REDUCE_GRAD",
                                                              "WAIT_SEND_F",
                                                              "WAIT_RECV_F",
                                                              "WAIT_SEND_B",
                                                              "WAIT_RECV_B",
                                                              "WAIT_REDUCE_GRAD"};

inline constexpr std::string_view stream_names[] = {"compute", "send", "receive", "d2h", "network", "h2d", "collective"};

}  // namespace detail

/// The action as a cell of the CSV: 2F0, 1SEND_F3, 0UNSHARD; of another direction than the first, 2F0r1.
[[nodiscard]] std::string to_text(const action& a);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/action_text.ipp>
#endif
