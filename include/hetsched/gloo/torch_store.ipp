// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/gloo/torch_store.hpp>

namespace hetsched {

HETSCHED_INLINE torch_store::torch_store(const std::string& host, int port) : at_{host, std::to_string(port)} {
  auto address = detail::find_address(at_.host, at_.port);
  server_ = detail::unique_socket(socket(address.bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const auto until = clock::now() + answer_within;
  int problem = server_ && connect(server_.number(), address.data(), address.size) == 0 ? 0 : errno;
  if (problem == EINPROGRESS) {
    ready(POLLOUT, until);
    socklen_t size = sizeof problem;
    getsockopt(server_.number(), SOL_SOCKET, SO_ERROR, &problem, &size);
  }
  if (problem != 0) {
    const auto here = detail::numbers_of(address.data(), address.size).host;
    const bool own = here.starts_with("127.") || here == "::1";
    fail(std::strerror(problem) +
         (own && here != at_.host ? ", and " + at_.host + " is " + here + " on this host" : std::string()));
  }
  request hello(query::validate);
  hello.number(std::uint32_t{0x3C85F7CE});
  write(hello, until);
  write(request(query::count), until);
  if (read<std::int64_t>(until) < 0) fail("the answers are not those of such a store");
}

HETSCHED_INLINE void torch_store::set(const std::string& name, const std::vector<char>& value) {
  const auto until = clock::now() + answer_within;
  request ask(query::compare_set);
  ask.text('/' + name);
  ask.text({});
  ask.text({value.data(), value.size()});
  write(ask, until);
  if (read_text(until) != value) throw error("\"" + name + "\" is there with another value");
  own_.push_back(name);
}

HETSCHED_INLINE bool torch_store::check(const std::vector<std::string>& names) {
  const auto until = clock::now() + answer_within;
  request ask(query::check);
  ask.number(std::uint64_t{names.size()});
  for (const auto& name : names) ask.text('/' + name);
  write(ask, until);
  const auto missing = read<std::uint8_t>(until);
  if (missing > 1) fail("the answers are not those of such a store");
  return missing == 0;
}

HETSCHED_INLINE void torch_store::wait(const std::vector<std::string>& names, const std::chrono::milliseconds& at_most) {
  using namespace std::chrono_literals;
  const auto until = clock::now() + at_most;
  for (auto pause = 1ms; !check(names); pause = std::min<std::chrono::milliseconds>(2 * pause, 100ms)) {
    const auto left = until - clock::now();
    if (left <= 0s) throw error("PyTorch's store at " + at_.text() + ": nobody has set \"" + names.front() + "\" in time");
    std::this_thread::sleep_for(std::min<clock::duration>(pause, left));
  }
}

HETSCHED_INLINE void torch_store::ready(short events, clock::time_point until) {
  if (!server_) fail("not connected any more");
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - clock::now()).count();
    pollfd one{.fd = server_.number(), .events = events, .revents = 0};
    const int found = poll(&one, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000)));
    if (found > 0) return;
    if (found < 0 && errno != EINTR) fail(std::strerror(errno));
    if (found == 0 && clock::now() >= until) fail("no answer in time");
  }
}

HETSCHED_INLINE void torch_store::write(const request& ask, clock::time_point until) {
  for (std::string_view left = ask.bytes; !left.empty();) {
    ready(POLLOUT, until);
    const auto sent = send(server_.number(), left.data(), left.size(), MSG_NOSIGNAL);
    if (sent > 0)
      left.remove_prefix(as_size(sent));
    else if (errno != EAGAIN && errno != EINTR)
      fail(std::strerror(errno));
  }
}

HETSCHED_INLINE void torch_store::read(char* to, std::size_t size, clock::time_point until) {
  while (size > 0) {
    ready(POLLIN, until);
    const auto came = recv(server_.number(), to, size, 0);
    if (came == 0) fail("it has ended the connection");
    if (came < 0 && errno != EAGAIN && errno != EINTR) fail(std::strerror(errno));
    if (came < 0) continue;
    to += came;
    size -= as_size(came);
  }
}

}  // namespace hetsched
