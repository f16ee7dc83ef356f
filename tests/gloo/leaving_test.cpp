// SPDX-License-Identifier: Apache-2.0
// What others see of a rank that leaves.
#include <hetsched/gloo/gloo_communicator.hpp>

#include <doctest/doctest.h>

#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "../sanitizer_share.hpp"
#include "ends.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Whether a rank gives up at once.
bool gives_up(gloo_end& end) {
  const auto until = deadline_in(5);
  auto found = wait_result::progress;
  while (found == wait_result::progress) found = end.wait(until, true);
  return found == wait_result::aborted;
}

}  // namespace

TEST_CASE("[threads] gloo: a rank that leaves has sent what it had to, and fails those who wait for more") {
  auto ends = connect_ends(3);
  const edge e{0, 1, payload::activation, 0, 0};
  const int out = ends[0]->open(e), in_channel = ends[1]->open(e);
  gloo_tensor sent = filled(512, 512, 1), taken(512, 512), more(1, 1);
  gloo_end::operation send, receive, never;
  ends[1]->post_receive(in_channel, {}, taken, receive);
  ends[0]->post_send(out, {}, sent, send);
  CHECK(ends_soon(*ends[0], send));
  ends[0].reset();
  CHECK(ends_soon(*ends[1], receive));
  CHECK(taken == sent);
  CHECK(ends[1]->failure().empty());
  CHECK(ends[2]->failure().empty());
  ends[1]->post_receive(in_channel, {.microbatch = 1}, more, never);
  while (ends[1]->wait(deadline_in(20), true) == wait_result::progress) {
  }
  CHECK(contains(ends[1]->failure(), "rank 0 has left"));
  CHECK(ends[2]->wait(deadline_in(20), true) == wait_result::aborted);
  CHECK(ends[2]->failure() == ends[1]->failure());
}

TEST_CASE("[threads] gloo: a gather that somebody has left") {
  auto ends = connect_ends(2);
  ends[1].reset();
  std::vector<std::vector<double>> all;
  CHECK(ends[0]->gather({}, all, deadline_in(20)) == wait_result::aborted);
  CHECK(ends[0]->failure() == "rank 1 has left");
}

TEST_CASE("[threads] gloo: a rank that has its gather and leaves has brought all of its own") {
  for (int instance = 0; instance < 10 / sanitizer_share; ++instance) {
    auto ends = connect_ends(2);
    rethrow_first(on_ranks(2, [&](int r) {
      auto& end = ends[static_cast<std::size_t>(r)];
      const std::vector<double> mine(r == 0 ? 20000 : 1, 1 + r);  // many more frames than the other rank takes at once
      std::vector<std::vector<double>> all;
      REQUIRE(end->gather(mine, all, deadline_in(20)) == wait_result::progress);
      if (r == 1) CHECK(all[0] == std::vector<double>(20000, 1));
      end.reset();
    }));
  }
}

TEST_CASE("[threads] gloo: what is sent to a rank that has left fails the sender") {
  for (const std::size_t columns : {std::size_t{1}, std::size_t{1} << 16}) {
    CAPTURE(columns);
    auto ends = connect_ends(2);
    const int out = ends[0]->open({0, 1, payload::activation, 0, 0});
    ends[1].reset();
    CHECK(ends[0]->wait(deadline_in(0.2), true) == wait_result::deadline);  // until it knows
    CHECK(ends[0]->failure().empty());
    auto sent = filled(1, columns, 1);
    gloo_end::operation send;
    ends[0]->post_send(out, {}, sent, send);
    CHECK(gives_up(*ends[0]));
    CHECK(contains(ends[0]->failure(), "rank 1 has left"));
    CHECK(!ends[0]->poll(send));
  }
}

TEST_CASE("[threads] gloo: a rank that leaves amid a tensor fails the one that it was for") {
  gloo_options options;
  options.store = make_process_store();
  const auto place = [](int r) { return process_place{.rank = r, .ranks = 2, .launcher = {}, .master = {}, .run = {}}; };
  constexpr std::uint64_t bytes = 1 << 20;
  gloo_tensor taken(1, bytes / sizeof(double));
  rethrow_first(on_ranks(2, [&](int r) {
    if (r == 0) {
      gloo_end end(place(0), options);
      gloo_end::operation receive;
      end.post_receive(end.open({1, 0, payload::activation, 0, 0}), {}, taken, receive);
      CHECK(gives_up(end));
      CHECK(contains(end.failure(), "rank 1 has left"));
      CHECK(!end.poll(receive));
      return;
    }
    // By hand, as no end leaves like this but one that has waited for seconds: it takes part in the first gather, sends the
    // beginning of a tensor once it has been asked for, says that it leaves, and goes.
    using namespace detail;
    const auto mesh = connect_mesh(place(1), options);
    const int control = mesh.lines[0][control_line].number(), data = mesh.lines[0][data_line].number();
    const auto tell = [](int to, const std::vector<char>& what) {
      REQUIRE(::send(to, what.data(), what.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(what.size()));
    };
    std::vector<char> out;
    const gathered_numbers nothing{.round = 1, .all = 0};
    append_frame(out, frame_kind::numbers, 0, &nothing, 1);
    tell(control, out);
    tensor_header first;
    for (bool is_asked = false; !is_asked;) {
      frame_header header;
      pollfd one{.fd = control, .events = POLLIN, .revents = 0};
      REQUIRE(poll(&one, 1, 5000) == 1);
      REQUIRE(recv(control, &header, sizeof header, MSG_WAITALL) == sizeof header);
      std::vector<char> body(header.bytes);
      if (!body.empty()) REQUIRE(recv(control, body.data(), body.size(), MSG_WAITALL) == static_cast<ssize_t>(body.size()));
      is_asked = header.kind == frame_kind::receive_posted;
      if (is_asked) first.note = read_part<tensor_note>(body.data());
    }
    out.clear();
    append(out, &first, 1);
    out.resize(out.size() + bytes / 2);
    tell(data, out);
    out.clear();
    const std::uint64_t due = 1;
    append_frame(out, frame_kind::leaving, 0, &due, 1);
    tell(control, out);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // or what is unread when it goes may end what is under way
  }));
}
