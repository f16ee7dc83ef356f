// SPDX-License-Identifier: Apache-2.0
#include <hetsched/gloo/gloo_communicator.hpp>

#include <doctest/doctest.h>

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/pipeline.hpp>

#include "../runtime/dense.hpp"
#include "../runtime/group/groups.hpp"
#include "../sanitizer_share.hpp"
#include "ends.hpp"
#include "processes.hpp"

using namespace hetsched;
using namespace hetsched::test;

// Gloo is not built for ThreadSanitizer, which so misses its atomics; what is between our own lines is still reported. It leaks
// where it throws.
#if defined(__SANITIZE_THREAD__)
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() { return "race:libgloo.so\n"; }
#elif defined(__SANITIZE_ADDRESS__)
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libgloo.so\nleak:libhiredis.so\n"; }
#endif

namespace {

using tensor = gloo_tensor;
using channel = gloo_end;
static_assert(communicator<channel, tensor>);
static_assert(communicator<gloo_communicator<matrix<float>>, matrix<float>>);

deadline_time in(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
}

std::string text_of(const std::exception_ptr& failure) {
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const std::exception& e) {
    return e.what();
  }
  return {};
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("[threads] gloo: a channel delivers in the order of its sends, whatever the order of opening and posting") {
  on_ends(3, [](const auto& make) { check_order(make); });
}

TEST_CASE("[threads] gloo: a small tensor waits at the other end") {
  auto ends = connect_ends(2);
  const edge e{0, 1, payload::activation, 0, 0};
  const int out = ends[0]->open(e), in_channel = ends[1]->open(e);
  tensor sent = filled(2, 3, 1), taken(2, 3);
  channel::operation send, receive;
  ends[0]->post_send(out, {}, sent, send);
  CHECK(ends_soon(*ends[0], send));
  CHECK(ends[1]->failure().empty());
  ends[1]->post_receive(in_channel, {}, taken, receive);
  CHECK(ends_soon(*ends[1], receive));
  CHECK(taken == sent);
}

TEST_CASE("[threads] gloo: wait and deadline") {
  on_ends(2, [](const auto& make) { check_deadline(make); });
}

TEST_CASE("[threads] gloo: an abort reaches everybody with the first reason, and lets go of all tensors") {
  on_ends(3, [](const auto& make) { check_abort(make); });
}

TEST_CASE("[threads] gloo: stamps and shapes that differ abort on both sides") {
  on_ends(2, [](const auto& make) { check_mismatch(make); });
}

TEST_CASE("[threads] gloo: empty tensors travel, too") {
  on_ends(2, [](const auto& make) { check_empty_tensors(make); });
}

TEST_CASE("[threads] gloo: gather, while tensors travel") {
  on_ends(4, [](const auto& make) { check_gather(make); });
}

TEST_CASE("[threads] gloo: a frame that says something wrong ends the run with its sender's rank") {
  using detail::append, detail::frame_header, detail::frame_kind, detail::gathered_numbers, detail::inquiry,
      detail::longest_frame, detail::tensor_note, detail::tensor_header;
  struct crafted {
    const char* fault;
    std::vector<char> bytes;
    detail::line_of line = detail::control_line;
  };
  const auto tensor_of = [](const tensor_note& note, std::uint64_t acknowledged = 0) {
    const tensor_header header{note, acknowledged};
    std::vector<char> bytes;
    append(bytes, &header, 1);
    return bytes;
  };
  std::vector<char> flood;
  for (std::uint64_t number = 0; number <= detail::most_unasked; ++number) {
    const auto one = tensor_of({.number = number, .unasked = 1});
    append(flood, one.data(), one.size());
  }
  const auto of = [](frame_kind kind, std::uint32_t bytes, std::uint64_t acknowledged = 0) {
    const frame_header header{kind, bytes, acknowledged};
    std::vector<char> frame;
    append(frame, &header, 1);
    return frame;
  };
  const auto with = [](std::vector<char> frame, const auto& part) {
    append(frame, &part, 1);
    return frame;
  };
  const auto posted = static_cast<std::uint32_t>(sizeof(tensor_note)), long_text = static_cast<std::uint32_t>(longest_frame);
  const std::vector<crafted> all{
      {"is of an unknown kind", of(static_cast<frame_kind>(77), 0)},
      {"has a wrong length", of(frame_kind::abort, 0xffffffffu)},
      {"has a wrong length", of(frame_kind::abort, long_text)},
      {"has a wrong length", of(frame_kind::numbers, 8)},
      {"has a wrong length", of(frame_kind::numbers, sizeof(gathered_numbers) + 3)},
      {"has a wrong length", of(frame_kind::numbers, long_text)},
      {"has a wrong length", of(frame_kind::receive_posted, 8)},
      {"has a wrong length", of(frame_kind::leaving, 0)},
      {"has a wrong length", of(frame_kind::released, 1)},
      {"asks for something unknown", with(of(frame_kind::receive_posted, posted), tensor_note{.edge_what = 9})},
      {"asks for something unknown", with(of(frame_kind::receive_posted, posted), tensor_note{.stamp_what = 5})},
      {"acknowledges what was not sent", of(frame_kind::acknowledge, 0, 1000)},
      {"brings more numbers than it said",
       with(with(of(frame_kind::numbers, sizeof(gathered_numbers) + 8), gathered_numbers{.round = 1, .all = 0, .from = 1}), 1.0)},
      {"brings numbers of a rank that is not there",
       with(of(frame_kind::numbers, sizeof(gathered_numbers)), gathered_numbers{.round = 1, .all = 0, .from = 2})},
      {"asks for a rank that is not there", with(of(frame_kind::ask, sizeof(inquiry)), inquiry{.number = 1, .asker = 0})},
      {"answers for a rank that is not there",
       with(of(frame_kind::answer, sizeof(inquiry)), inquiry{.number = 1, .asker = 9, .answerer = 1})},
      {"asks for something unknown", with(of(frame_kind::announced, posted), tensor_note{.edge_what = 9})},
      {"is of an unknown kind", tensor_of({.stamp_what = 5}), detail::data_line},
      {"is not the next one", tensor_of({.number = 1, .unasked = 1}), detail::data_line},
      {"is too long to come unasked", tensor_of({.bytes = detail::small_tensor + 1, .unasked = 1}), detail::data_line},
      {"has not been asked for", tensor_of({.bytes = 8}), detail::data_line},
      {"acknowledges what was not sent", tensor_of({.unasked = 1}, 1), detail::data_line},
      {"is more than may come unasked", flood, detail::data_line},
  };
  for (const auto& c : all) {
    CAPTURE(c.fault);
    CAPTURE(static_cast<unsigned>(detail::read_part<frame_header>(c.bytes.data()).kind));
    gloo_options options;
    options.store = make_process_store();
    const auto place = [](int r) { return process_place{.rank = r, .ranks = 2, .launcher = {}, .master = {}, .run = {}}; };
    const auto failures = on_ranks(2, [&](int r) {
      if (r == 0) {
        const channel end(place(0), options);
        return;
      }
      const auto mesh = detail::connect_mesh(place(1), options);
      auto bytes = c.bytes;
      bytes.resize(std::max(bytes.size(), longest_frame));
      const int out = mesh.lines[0][c.line].number(), in_socket = mesh.lines[0][detail::control_line].number();
      REQUIRE(::send(out, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
      // Until it is told.
      for (const auto until = in(20); std::chrono::steady_clock::now() < until;) {
        frame_header header;
        pollfd one{.fd = in_socket, .events = POLLIN, .revents = 0};
        if (poll(&one, 1, 1000) != 1) continue;
        if (recv(in_socket, &header, sizeof header, MSG_WAITALL) != sizeof header || header.kind == frame_kind::abort) return;
        std::vector<char> rest(header.bytes);
        if (!rest.empty()) (void)!recv(in_socket, rest.data(), rest.size(), MSG_WAITALL);
      }
    });
    CHECK(contains(text_of(failures[0]),
                   std::string(c.line == detail::control_line ? "a frame" : "a tensor") + " from rank 1 " + c.fault));
    CHECK(text_of(failures[1]).empty());
  }
}

TEST_CASE("[threads] gloo: a round of gather that one rank has finished all finish, also if it aborts at once") {
  on_ends(3, [](const auto& make) { check_finished_round(make, 20 / sanitizer_share); });
}

TEST_CASE("gloo: who is connected from the start: few, and a way from each to each") {
  CHECK(detail::neighbours_of(1, 3) == std::vector<int>{0, 2});
  CHECK(detail::neighbours_of(0, 1024) == std::vector<int>{1, 2, 3, 4});
  CHECK(detail::neighbours_of(2, 1024) == std::vector<int>{0, 9, 10, 11, 12});
  for (const int ranks : {2, 16, 17, 256, 1024}) {
    CAPTURE(ranks);
    std::vector<std::vector<int>> neighbours;
    for (int r = 0; r < ranks; ++r) {
      neighbours.push_back(detail::neighbours_of(r, ranks));
      if (ranks > detail::most_in_mesh) CHECK(neighbours.back().size() <= detail::children_per_rank + 1);
    }
    int most = 0;
    bool goes = true;
    for (int from = 0; from < ranks; from += 1 + ranks / 32)
      for (int to = 0; to < ranks; ++to) {
        int at = from, steps = 0;
        for (; at != to && steps < 20; ++steps) {
          const int next = detail::next_to(at, to, ranks);
          const auto& known = neighbours[static_cast<std::size_t>(at)];
          goes = goes && std::find(known.begin(), known.end(), next) != known.end();
          at = next;
        }
        goes = goes && at == to;
        most = std::max(most, steps);
      }
    CHECK(goes);
    CHECK(most <= (ranks > 256 ? 10 : ranks > 16 ? 8 : 1));
  }
}

TEST_CASE("[threads] gloo: ranks that are connected by need keep what those do that are all connected") {
  on_ends(20, [](const auto& make) {
    check_order(make);
    check_gather(make);
    check_finished_round(make, 2);
    check_abort(make);
    check_mismatch(make);
  });
}

TEST_CASE("[threads] gloo: a single rank needs nobody") {
  gloo_options options;
  channel end(process_place{}, options);
  const std::vector<double> mine{1, 2};
  std::vector<std::vector<double>> all;
  CHECK(end.gather(mine, all, in(1)) == wait_result::progress);
  CHECK(all == std::vector<std::vector<double>>{mine});
  CHECK(end.wait(in(0.01), true) == wait_result::deadline);
  end.abort("enough");
  CHECK(end.wait(in(1), true) == wait_result::aborted);
}

TEST_CASE("[threads] gloo: tensors of 32 MiB both ways at once") {
  on_ends(2, [](const auto& make) { check_long_tensors(make, 4 / sanitizer_share + 1); });
}

TEST_CASE("[threads] gloo: more small tensors than may go unasked, long ones among them, and a channel behind them") {
  on_ends(2, [](const auto& make) { check_many_tensors(make, 3 * detail::most_unasked); });
}

TEST_CASE("[threads] gloo: an abort lets go of tensors that are on their way") {
  on_ends(2, [](const auto& make) { check_abort_on_the_way(make, 20 / sanitizer_share); });
}

TEST_CASE("[threads] gloo: ranks that run other schedules notice") {
  on_ends(2, [](const auto& make) { check_other_schedule(make); });
}

TEST_CASE("[threads] gloo: meeting") {
  const scratch_folder folder;
  const auto meet = [&](int rank, int ranks, const std::string& run, double deadline_s, std::optional<channel>& end) {
    gloo_options options;
    options.rendezvous = "file:" + folder.path + "/store";
    options.run = run;
    options.connect_deadline_s = deadline_s;
    end.emplace(process_place{.rank = rank, .ranks = ranks, .launcher = {}, .master = {}, .run = {}}, options);
  };
  const auto all_meet = [&](int ranks, const std::string& run) {
    std::vector<std::optional<channel>> ends(static_cast<std::size_t>(ranks));
    return on_ranks(ranks, [&](int r) { meet(r, ranks, run, 20, ends[static_cast<std::size_t>(r)]); });
  };
  SUBCASE("a name serves again") {
    for (int i = 0; i < 3; ++i)
      for (const auto& f : all_meet(3, "job/7 @1")) CHECK(text_of(f).empty());
  }
  SUBCASE("a rank that does not come is named") {
    const auto failures = on_ranks(2, [&](int r) {
      std::optional<channel> end;
      meet(r == 0 ? 0 : 2, 3, "alone", 0.3, end);
    });
    for (const auto& f : failures) CHECK(contains(text_of(f), "rank 1 has not come to run \"alone\" in the rendezvous file:"));
    // What is left of it passes for no new run and is in nobody's way.
    for (const auto& f : all_meet(3, "another")) CHECK(text_of(f).empty());
    for (const auto& f : all_meet(3, "alone")) CHECK(text_of(f).empty());
  }
  SUBCASE("numbers of ranks that differ") {
    const auto failures = on_ranks(2, [&](int r) {
      std::optional<channel> end;
      meet(r, 2 + r, "differ", 0.5, end);
    });
    CHECK(text_of(failures[0]) == "rank 1 is one of 3 ranks, rank 0 one of 2");
  }
  SUBCASE("what cannot be used") {
    const auto with = [&](gloo_options options) {
      options.store = make_process_store();
      std::vector<std::optional<channel>> ends(2);
      options.connect_deadline_s = 2;
      return text_of(on_ranks(2, [&](int r) {
        ends[static_cast<std::size_t>(r)].emplace(process_place{.rank = r, .ranks = 2, .launcher = {}, .master = {}, .run = {}},
                                                  options);
      })[0]);
    };
    gloo_options options;
    options.interface = "none0";
    CHECK(contains(with(options), "interface none0 cannot be used"));
    options.interface.clear();
    options.address = "192.0.2.1";
    CHECK(contains(with(options), "address 192.0.2.1 cannot be used"));
    options.address.clear();
    options.interface = "lo";
    CHECK(with(options).empty());
    CHECK_THROWS_AS(channel(process_place{.rank = 2, .ranks = 2, .launcher = {}, .master = {}, .run = {}}, {}), input_error);
    CHECK_THROWS_AS(channel(process_place{.rank = 0, .ranks = 2, .launcher = {}, .master = {}, .run = {}}, {}), input_error);
  }
}

TEST_CASE("[threads] gloo: a tensor or a part of one at either end of a channel") {
  auto ends = connect_ends(2);
  check_byte_plane<tensor>(*ends[0], *ends[1]);
}
