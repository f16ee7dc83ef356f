// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/gloo/detail/socket_watch.hpp>

namespace hetsched::detail {

HETSCHED_INLINE reading read_some(int socket, char* to, std::size_t room, std::size_t& got, std::string& why) {
  const auto n = ::recv(socket, to, room, MSG_DONTWAIT);
  got = as_size(std::max<ssize_t>(n, 0));
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return reading::some;
  if (n <= 0) why = n == 0 ? "its connection has been closed" : std::strerror(errno);
  return n <= 0 ? reading::ended : got == room ? reading::full : reading::some;
}

}  // namespace hetsched::detail
