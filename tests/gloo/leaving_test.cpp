// SPDX-License-Identifier: Apache-2.0
// What others see of a rank that leaves.
#include <hetsched/gloo/gloo_communicator.hpp>

#include <doctest/doctest.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <latch>
#include <string>
#include <thread>
#include <utility>
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

/// A rank with one neighbour, by hand.
struct scripted_rank {
  detail::gloo_mesh mesh;
  std::size_t neighbour = static_cast<std::size_t>(detail::neighbours_of(mesh.rank, mesh.ranks).front());

  /// Meets the other ranks and takes part in the first gather.
  scripted_rank(const process_place& place, const gloo_options& options) : mesh(detail::connect_mesh(place, options)) {
    const detail::gathered_numbers nothing{.round = 1, .all = 0, .from = static_cast<std::uint64_t>(place.rank)};
    say(detail::frame_kind::numbers, nothing);
  }
  [[nodiscard]] int socket_of(detail::line_of line) const { return mesh.lines[neighbour][line].number(); }
  void tell(detail::line_of line, const std::vector<char>& what) const {
    REQUIRE(::send(socket_of(line), what.data(), what.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(what.size()));
  }
  template <class Part>
  void say(detail::frame_kind kind, const Part& part) const {
    std::vector<char> out;
    detail::append_frame(out, kind, 0, &part, 1);
    tell(detail::control_line, out);
  }
  /// Waits for a frame of a kind, and returns its body.
  [[nodiscard]] std::vector<char> wait_for(detail::frame_kind kind) const {
    const int control = socket_of(detail::control_line);
    for (;;) {
      detail::frame_header header;
      pollfd one{.fd = control, .events = POLLIN, .revents = 0};
      REQUIRE(poll(&one, 1, 20000) == 1);
      REQUIRE(recv(control, &header, sizeof header, MSG_WAITALL) == sizeof header);
      std::vector<char> body(header.bytes);
      if (!body.empty()) REQUIRE(recv(control, body.data(), body.size(), MSG_WAITALL) == static_cast<ssize_t>(body.size()));
      if (header.kind == kind) return body;
    }
  }
  /// Waits until a receive has been posted.
  [[nodiscard]] detail::tensor_note wait_for_receive() const {
    return detail::read_part<detail::tensor_note>(wait_for(detail::frame_kind::receive_posted).data());
  }
};

/// `real` gets the other ranks, each on a thread; `scripted` is the last one.
template <class Real, class Scripted>
void on_threads(const Real& real, const Scripted& scripted, int ranks = 2) {
  gloo_options options;
  options.store = make_process_store();
  const auto place = [=](int r) { return process_place{.rank = r, .ranks = ranks, .launcher = {}, .master = {}, .run = {}}; };
  rethrow_first(on_ranks(ranks, [&](int r) {
    if (r + 1 < ranks) {
      gloo_end end(place(r), options);
      real(end);
    } else {
      scripted_rank by_hand(place(r), options);
      scripted(by_hand);
    }
  }));
}

}  // namespace

TEST_CASE("[threads] gloo: a rank that leaves has sent what it had to, and fails those who want more of it") {
  on_ends(3, [](const auto& make) { check_leaving(make); });
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

TEST_CASE("[threads] gloo: a rank that leaves while it is being connected by need is missed by nobody") {
  constexpr int ranks = 20, callers = 3;
  auto ends = connect_ends(ranks);
  rethrow_first(on_ranks(ranks, [&](int r) {
    auto& end = ends[static_cast<std::size_t>(r)];
    if (r < ranks - callers) {
      CHECK(end->wait(deadline_in(0.7), true) == wait_result::deadline);
      CHECK(end->failure() == "");
      return;
    }
    for (int other = 5; other < ranks - callers; ++other) {
      (void)end->open({r, other, payload::activation, 0, 0});
      std::this_thread::sleep_for(std::chrono::microseconds(100 * (r + callers - ranks)));
    }
    end.reset();
  }));
}

TEST_CASE("[threads] gloo: where ranks are a tree, one amid it that has left is not asked for, nor is who is behind it") {
  auto ends = connect_ends(22);
  ends[1].reset();
  for (const std::size_t asker : {0, 2, 5, 21}) {
    CAPTURE(asker);
    CHECK(ends[asker]->ask() == wait_result::deadline);
    CHECK(ends[asker]->failure() == "");
  }
}

TEST_CASE("[threads] gloo: where ranks are a tree, one amid it that takes no part is missed alone") {
  constexpr int ranks = 22;
  gloo_options options;
  options.store = make_process_store();
  const auto place = [](int r) { return process_place{.rank = r, .ranks = ranks, .launcher = {}, .master = {}, .run = {}}; };
  std::latch over(1);
  rethrow_first(on_ranks(ranks, [&](int r) {
    if (r == 5) {
      const auto mesh = detail::connect_mesh(place(r), options);
      over.wait();
    } else if (r == 2) {
      {
        detail::channel_engine end(detail::connect_mesh(place(r), options));
        CHECK_THROWS_WITH_AS(end.meet_all(deadline_in(1.5)),
                             "rank 2: not all ranks have been connected: rank 5 has not answered for a second", error);
      }
      over.count_down();
    } else {
      CHECK_THROWS_AS(gloo_end(place(r), options), error);  // rank 2 has told, or rank 5 has ended
    }
  }));
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

TEST_CASE("[threads] gloo: who is to be connected by need and does not answer in time fails the sender") {
  constexpr int ranks = 17;
  gloo_options options;
  options.store = make_process_store();
  const auto place = [](int r) { return process_place{.rank = r, .ranks = ranks, .launcher = {}, .master = {}, .run = {}}; };
  std::latch left(1);
  rethrow_first(on_ranks(ranks, [&](int r) {
    if (r + 1 < ranks) {
      {
        gloo_end end(place(r), options);
        if (r != 7) (void)end.wait(deadline_in(20), true);
      }
      if (r == 7) left.count_down();
      return;
    }
    auto mesh = detail::connect_mesh(place(r), options);
    mesh.connect_deadline_s = 0.2;
    detail::channel_engine end(std::move(mesh));
    end.meet_all(deadline_in(20));
    left.wait();
    detail::gloo_transfer send;
    double number = 1;
    send.data = reinterpret_cast<char*>(&number);
    send.header.note = {.bytes = sizeof number, .elements = 1};
    end.post(end.open({r, 7, payload::activation, 0, 0}), send, {});
    CHECK(end.wait(deadline_in(20), true) == wait_result::aborted);
    CHECK(contains(end.failure(), "rank 16: rank 7 cannot be reached at "));
    CHECK(!send.ended);
  }));
}

TEST_CASE("[threads] gloo: a small tensor for a rank whose tensors could still come, but whose frames have ended") {
  on_threads(
      [&](gloo_end& end) {
        const int out = end.open({0, 1, payload::activation, 0, 0});
        CHECK(end.wait(deadline_in(0.2), true) == wait_result::deadline);  // until it knows
        auto sent = filled(1, 1, 1);
        gloo_end::operation send;
        end.post_send(out, {}, sent, send);
        CHECK(gives_up(end));
        CHECK(contains(end.failure(), "rank 1 has left"));
        CHECK(!end.poll(send));
      },
      [&](scripted_rank& self) {
        self.say(detail::frame_kind::leaving, std::uint64_t{0});
        std::this_thread::sleep_for(std::chrono::milliseconds(100));  // or what is unread when it goes may end what is under way
        self.mesh.lines[0][detail::control_line] = {};
        pollfd tensors{.fd = self.socket_of(detail::data_line), .events = POLLIN, .revents = 0};
        (void)poll(&tensors, 1, 10000);  // until the other rank goes
      });
}

TEST_CASE("[threads] gloo: a rank that leaves amid a tensor fails the one that it was for") {
  constexpr std::uint64_t bytes = 1 << 20;
  gloo_tensor taken(1, bytes / sizeof(double));
  on_threads(
      [&](gloo_end& end) {
        gloo_end::operation receive;
        end.post_receive(end.open({1, 0, payload::activation, 0, 0}), {}, taken, receive);
        CHECK(gives_up(end));
        CHECK(contains(end.failure(), "rank 1 has left"));
        CHECK(!end.poll(receive));
      },
      // No end leaves like this but one that has waited for seconds.
      [&](scripted_rank& self) {
        detail::tensor_header first;
        first.note = self.wait_for_receive();
        std::vector<char> out;
        detail::append(out, &first, 1);
        out.resize(out.size() + bytes / 2);
        self.tell(detail::data_line, out);
        self.say(detail::frame_kind::leaving, std::uint64_t{1});
        std::this_thread::sleep_for(std::chrono::milliseconds(100));  // or what is unread when it goes may end what is under way
      });
}

TEST_CASE("[threads] gloo: where ranks are a tree, a neighbour sends on at once the answers that come at once") {
  constexpr int ranks = 17;
  constexpr std::uint32_t questions = 200;
  on_threads(
      [&](gloo_end& end) {
        CHECK(end.wait(deadline_in(20), true) == wait_result::aborted);
        CHECK(end.failure() == "enough");
      },
      [&](scripted_rank& self) {
        const auto segments = [&] {
          struct {
            tcp_info known;  // of 2.6; what is behind it is of 4.6
            std::uint64_t rates[2], bytes[2];
            std::uint32_t segments_out, segments_in, not_sent, least_time, data_segments_in;
          } info{};
          socklen_t size = sizeof info;
          REQUIRE(getsockopt(self.socket_of(detail::control_line), IPPROTO_TCP, TCP_INFO, &info, &size) == 0);
          return info.data_segments_in;
        };
        for (int r = 1; r < ranks; ++r) (void)self.wait_for(detail::frame_kind::numbers);
        const auto before = segments();
        std::vector<char> out;
        for (std::uint32_t number = 1; number <= questions; ++number) {
          const detail::inquiry question{.number = number, .asker = ranks - 1};
          detail::append_frame(out, detail::frame_kind::ask, 0, &question, 1);
        }
        self.tell(detail::control_line, out);
        for (std::uint32_t i = 0; i < (ranks - 1) * questions; ++i) (void)self.wait_for(detail::frame_kind::answer);
        CHECK(segments() - before < 50);  // some hundred, where they go one by one
        out.clear();
        detail::append_frame(out, detail::frame_kind::abort, 0, "enough", 6);
        self.tell(detail::control_line, out);
        (void)self.wait_for(detail::frame_kind::leaving);  // or what is unread when it goes may end what is under way
      },
      ranks);
}
