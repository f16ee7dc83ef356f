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
  auto ends = connect_ends(3);
  // Rank 0 sends over two channels to rank 1, and over one to rank 2.
  const edge one{0, 1, payload::activation, 0, 0}, two{0, 1, payload::gradient, 1, 7}, three{0, 2, payload::activation, 0, 0};
  const int out_one = ends[0]->open(one), out_three = ends[0]->open(three), out_two = ends[0]->open(two);
  const int in_two = ends[1]->open(two), in_one = ends[1]->open(one), in_three = ends[2]->open(three);
  std::vector<tensor> sent, taken(9, tensor(2, 3));
  std::vector<channel::operation> sends(9), receives(9);
  for (int i = 0; i < 9; ++i) sent.push_back(filled(2, 3, 100 * i));
  const auto out_of = [&](std::size_t k) { return k % 3 == 0 ? out_one : k % 3 == 1 ? out_two : out_three; };
  const auto stamp_of = [](std::size_t k) { return stamp{.step = 4, .microbatch = static_cast<int>(k / 3)}; };
  const auto receive = [&](std::size_t k) {
    auto& end = *ends[k % 3 == 2 ? 2 : 1];
    end.post_receive(k % 3 == 0 ? in_one : k % 3 == 1 ? in_two : in_three, stamp_of(k), taken[k], receives[k]);
  };
  for (std::size_t k : {0u, 1u, 3u, 4u, 7u}) receive(k);
  for (std::size_t k = 0; k < 9; ++k) ends[0]->post_send(out_of(k), stamp_of(k), sent[k], sends[k]);
  for (std::size_t k : {2u, 5u, 6u}) receive(k);
  for (std::size_t k = 0; k < 8; ++k) {
    CAPTURE(k);
    CHECK(ends_soon(*ends[k % 3 == 2 ? 2 : 1], receives[k]));
    CHECK(taken[k] == filled(2, 3, 100.0 * static_cast<double>(k)));
    CHECK(ends_soon(*ends[0], sends[k]));
    CHECK(receives[k].end_s > 0);
  }
  CHECK(ends_soon(*ends[0], sends[8]));  // it is small: it waits at the other end
  CHECK(ends[2]->failure().empty());
  receive(8);
  CHECK(ends_soon(*ends[2], receives[8]));
  CHECK(taken[8] == filled(2, 3, 800));
}

TEST_CASE("[threads] gloo: wait and deadline") {
  auto ends = connect_ends(2);
  const edge e{0, 1, payload::activation, 0, 0};
  const int out = ends[0]->open(e), in_channel = ends[1]->open(e);
  tensor sent = filled(64, 64, 1), taken(64, 64);  // long enough to wait for its receive
  channel::operation send, receive;
  CHECK(ends[1]->wait(in(0.02), true) == wait_result::deadline);
  ends[0]->post_send(out, {}, sent, send);
  CHECK(ends[0]->wait(in(0.02), true) == wait_result::deadline);
  CHECK_FALSE(ends[0]->poll(send));
  ends[1]->post_receive(in_channel, {}, taken, receive);
  CHECK(ends[1]->wait(in(20), false) == wait_result::progress);
  CHECK(ends[1]->poll(receive));
  CHECK(ends[0]->wait(in(20), true) == wait_result::progress);
  CHECK(ends[0]->poll(send));
  CHECK(ends[0]->wait(in(0.02), true) == wait_result::deadline);
}

TEST_CASE("[threads] gloo: an abort reaches everybody with the first reason, and lets go of all tensors") {
  auto ends = connect_ends(3);
  const edge e{0, 1, payload::activation, 0, 0}, back{1, 0, payload::gradient, 0, 1};
  auto sent = std::make_unique<tensor>(filled(1, 4, 1)), taken = std::make_unique<tensor>(1, 4);
  auto send = std::make_unique<channel::operation>(), receive = std::make_unique<channel::operation>();
  const int out = ends[0]->open(e), in_back = ends[0]->open(back);
  ends[0]->post_send(out, {}, *sent, *send);
  ends[0]->post_receive(in_back, {}, *taken, *receive);
  ends[0]->abort("enough");
  sent.reset(), taken.reset(), send.reset(), receive.reset();
  for (auto& end : ends) {
    CHECK(end->wait(in(20), true) == wait_result::aborted);
    CHECK(end->failure() == "enough");
    end->abort("and more");
    CHECK(end->failure() == "enough");
  }
  std::vector<std::vector<double>> all;
  CHECK(ends[2]->gather({}, all, in(20)) == wait_result::aborted);
  tensor late(1, 4);
  channel::operation never;
  ends[0]->post_send(out, {}, late, never);
  CHECK_FALSE(ends[0]->poll(never));
}

TEST_CASE("[threads] gloo: stamps and shapes that differ abort on both sides") {
  const stamp expected{.step = 3, .microbatch = 1, .what = payload::gradient, .direction = 0, .stage = 2};
  const edge e{1, 0, payload::gradient, 0, 2};
  int instance = 0;
  const auto run = [&](const stamp& other, std::size_t rows, std::size_t columns) {
    CAPTURE(++instance);
    auto ends = connect_ends(2);
    const int out = ends[1]->open(e), in_channel = ends[0]->open(e);
    tensor sent(rows, columns), taken(4, 6);
    channel::operation send, receive;
    ends[0]->post_receive(in_channel, expected, taken, receive);
    ends[1]->post_send(out, other, sent, send);
    std::string text;
    for (auto& end : ends) {
      auto result = end->wait(in(20), true);
      if (result == wait_result::progress) result = end->wait(in(20), true);  // a small tensor leaves before it is looked at
      CHECK(result == wait_result::aborted);
      CHECK((text.empty() || text == end->failure()));
      text = end->failure();
    }
    ends[0]->abort("");
    ends[1]->abort("");
    CHECK_FALSE(ends[0]->poll(receive));
    return text;
  };
  const std::string from_to = "gradient of stage 2 from rank 1 to rank 0";
  auto other = expected;
  other.microbatch = 2;
  CHECK(run(other, 4, 6) == from_to +
                                ": sent is step 3, microbatch 2, gradient of stage 2, expected is step 3, microbatch 1, "
                                "gradient of stage 2");
  other = expected;
  other.step = 4;
  CHECK(contains(run(other, 4, 6), "sent is step 4"));
  // Longer ones, shorter ones, and of the same size.
  CHECK(contains(run(expected, 4, 7), from_to + ", step 3, microbatch 1, gradient of stage 2: sent are 28 elements (224 bytes), "
                                                "expected 24 (192 bytes)"));
  CHECK(contains(run(expected, 1000, 1000), "sent are 1000000 elements"));
  CHECK(contains(run(expected, 4, 5), "sent are 20 elements"));
  CHECK(contains(run(expected, 0, 0), "sent are 0 elements"));
  CHECK(contains(run(expected, 6, 4), "or of another shape"));
}

TEST_CASE("[threads] gloo: empty tensors travel, too") {
  auto ends = connect_ends(2);
  const edge e{0, 1, payload::activation, 0, 0};
  const int out = ends[0]->open(e), in_channel = ends[1]->open(e);
  std::vector<tensor> sent(3, tensor(0, 5)), taken(3, tensor(0, 5));
  std::vector<channel::operation> sends(3), receives(3);
  for (std::size_t k = 0; k < 3; ++k)
    ends[1]->post_receive(in_channel, {.microbatch = static_cast<int>(k)}, taken[k], receives[k]);
  for (std::size_t k = 0; k < 3; ++k) ends[0]->post_send(out, {.microbatch = static_cast<int>(k)}, sent[k], sends[k]);
  for (std::size_t k = 0; k < 3; ++k) {
    CHECK(ends_soon(*ends[1], receives[k]));
    CHECK(ends_soon(*ends[0], sends[k]));
  }
}

TEST_CASE("[threads] gloo: gather, while tensors travel") {
  constexpr int ranks = 4, rounds = 20;
  auto ends = connect_ends(ranks);
  const auto numbers = [](int rank, int round) {
    // From none to more than fit in a frame.
    std::vector<double> mine(static_cast<std::size_t>(round % 3 == 0 ? 0 : round % 3 == 1 ? rank + 1 : 300 * rank));
    for (std::size_t k = 0; k < mine.size(); ++k) mine[k] = 1000 * rank + round + 0.001 * static_cast<double>(k);
    return mine;
  };
  rethrow_first(on_ranks(ranks, [&](int r) {
    auto& end = *ends[static_cast<std::size_t>(r)];
    const int next = (r + 1) % ranks, before = (r + ranks - 1) % ranks;
    const int out = end.open({r, next, payload::activation, 0, r}),
              in_channel = end.open({before, r, payload::activation, 0, before});
    std::vector<tensor> sent, taken;
    std::vector<channel::operation> sends(rounds), receives(rounds);
    for (int i = 0; i < rounds; ++i) {
      sent.push_back(filled(3, 50, r));
      taken.emplace_back(3, 50);
    }
    for (int i = 0; i < rounds; ++i) {
      const auto k = static_cast<std::size_t>(i);
      end.post_receive(in_channel, {.microbatch = i}, taken[k], receives[k]);
      end.post_send(out, {.microbatch = i}, sent[k], sends[k]);
      std::vector<std::vector<double>> all;
      CHECK(end.gather(numbers(r, i), all, in(20)) == wait_result::progress);
      REQUIRE(all.size() == ranks);
      for (int p = 0; p < ranks; ++p) CHECK(all[static_cast<std::size_t>(p)] == numbers(p, i));
    }
    for (int i = 0; i < rounds; ++i) {
      const auto k = static_cast<std::size_t>(i);
      CHECK(ends_soon(end, receives[k]));
      CHECK(ends_soon(end, sends[k]));
      CHECK(taken[k] == filled(3, 50, before));
    }
  }));
  std::vector<std::vector<double>> all;
  CHECK(ends[0]->gather({}, all, in(0.05)) == wait_result::deadline);
  CHECK(ends[0]->failure() == "ranks 1, 2, 3 have not answered in time");
}

TEST_CASE("[threads] gloo: a frame that says something wrong ends the run with its sender's rank") {
  using detail::append, detail::frame_header, detail::frame_kind, detail::gathered_numbers, detail::longest_frame,
      detail::tensor_note, detail::tensor_header;
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
       with(with(of(frame_kind::numbers, sizeof(gathered_numbers) + 8), gathered_numbers{.round = 1, .all = 0}), 1.0)},
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
  for (int instance = 0; instance < 20 / sanitizer_share; ++instance) {
    CAPTURE(instance);
    auto ends = connect_ends(3);
    std::vector<wait_result> first(3), second(3);
    rethrow_first(on_ranks(3, [&](int r) {
      const auto k = static_cast<std::size_t>(r);
      std::vector<std::vector<double>> all;
      first[k] = ends[k]->gather(std::vector<double>(500, r), all, in(20));
      if (r == instance % 3) ends[k]->abort("at once");
      second[k] = ends[k]->gather({}, all, in(20));
    }));
    for (std::size_t k = 0; k < 3; ++k) {
      CHECK(first[k] == wait_result::progress);
      CHECK(second[k] == wait_result::aborted);
    }
  }
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
  auto ends = connect_ends(2);
  rethrow_first(on_ranks(2, [&](int r) {
    auto& end = *ends[static_cast<std::size_t>(r)];
    const int out = end.open({r, 1 - r, payload::activation, 0, r}),
              in_channel = end.open({1 - r, r, payload::activation, 0, 1 - r});
    const std::size_t count = 4 / sanitizer_share + 1;
    std::vector<tensor> sent, taken;
    std::vector<channel::operation> sends(count), receives(count);
    for (std::size_t k = 0; k < count; ++k) {
      sent.push_back(filled(1024, 4096, static_cast<double>(r) + 10 * static_cast<double>(k)));
      taken.emplace_back(1024, 4096);
    }
    // Nobody receives before everything has been posted for sending.
    for (std::size_t k = 0; k < count; ++k) end.post_send(out, {.microbatch = static_cast<int>(k)}, sent[k], sends[k]);
    std::vector<std::vector<double>> all;
    CHECK(end.gather({}, all, in(20)) == wait_result::progress);
    for (std::size_t k = 0; k < count; ++k) {
      end.post_receive(in_channel, {.microbatch = static_cast<int>(k)}, taken[k], receives[k]);
      CHECK(ends_soon(end, receives[k]));
      CHECK(taken[k] == filled(1024, 4096, static_cast<double>(1 - r) + 10 * static_cast<double>(k)));
      CHECK(ends_soon(end, sends[k]));
    }
  }));
}

TEST_CASE("[threads] gloo: more small tensors than may go unasked, long ones among them, and a channel behind them") {
  // Nobody receives from the first channel before all has been sent; the second one must not wait for that.
  random_source random(7);
  for (int instance = 0; instance < 5; ++instance) {
    CAPTURE(instance);
    auto ends = connect_ends(2);
    const edge first{0, 1, payload::activation, 0, 0}, second{0, 1, payload::gradient, 0, 1};
    const int out = ends[0]->open(first), other_out = ends[0]->open(second);
    const int in_first = ends[1]->open(first), in_second = ends[1]->open(second);
    constexpr std::size_t count = 3 * detail::most_unasked;
    std::vector<std::size_t> rows;
    std::vector<tensor> sent, taken;
    std::vector<channel::operation> sends(count), receives(count);
    for (std::size_t k = 0; k < count; ++k) {
      rows.push_back(random.integer(0, 9) == 0 ? 700 : static_cast<std::size_t>(random.integer(0, 8)));
      sent.push_back(filled(rows[k], 4, 100 * static_cast<double>(k)));
      taken.emplace_back(rows[k], 4);
    }
    const std::size_t ahead = instance == 0 ? 0 : static_cast<std::size_t>(random.integer(0, count));
    const auto receive = [&](std::size_t k) {
      ends[1]->post_receive(in_first, {.microbatch = static_cast<int>(k)}, taken[k], receives[k]);
    };
    for (std::size_t k = 0; k < ahead; ++k) receive(k);
    for (std::size_t k = 0; k < count; ++k) ends[0]->post_send(out, {.microbatch = static_cast<int>(k)}, sent[k], sends[k]);
    tensor one = filled(2, 2, 5), there(2, 2);
    channel::operation send, got;
    ends[0]->post_send(other_out, {}, one, send);
    ends[1]->post_receive(in_second, {}, there, got);
    CHECK(ends_soon(*ends[1], got));
    CHECK(there == one);
    for (std::size_t k = ahead; k < count; ++k) receive(k);
    for (std::size_t k = 0; k < count; ++k) {
      CAPTURE(k);
      REQUIRE(ends_soon(*ends[1], receives[k]));
      CHECK(taken[k] == filled(rows[k], 4, 100 * static_cast<double>(k)));
      REQUIRE(ends_soon(*ends[0], sends[k]));
    }
  }
}

TEST_CASE("[threads] gloo: an abort lets go of tensors that are on their way") {
  random_source random(3);
  for (int instance = 0; instance < 20 / sanitizer_share; ++instance) {
    CAPTURE(instance);
    const double after_s = random.uniform(0, 0.01);
    const int first = random.integer(0, 1);
    auto ends = connect_ends(2);
    const edge e{0, 1, payload::activation, 0, 0};
    const int out = ends[0]->open(e), in_channel = ends[1]->open(e);
    auto sent = std::make_unique<tensor>(filled(1024, 1024, 1)), taken = std::make_unique<tensor>(1024, 1024);
    auto send = std::make_unique<channel::operation>(), receive = std::make_unique<channel::operation>();
    ends[1]->post_receive(in_channel, {}, *taken, *receive);
    ends[0]->post_send(out, {}, *sent, *send);
    std::this_thread::sleep_for(std::chrono::duration<double>(after_s));
    for (const int r : {first, 1 - first}) {
      ends[static_cast<std::size_t>(r)]->abort("enough");
      // What is written to now would be seen by AddressSanitizer.
      if (r == 0)
        sent.reset(), send.reset();
      else
        taken.reset(), receive.reset();
    }
    CHECK(ends[0]->failure() == "enough");
    CHECK(ends[1]->failure() == "enough");
  }
}

TEST_CASE("[threads] gloo: ranks that run other schedules notice") {
  const auto order = build_schedule("gpipe", pipeline{.forward_s = {1, 1}, .backward_s = {1, 1}, .transfer_s = {0.1}}, 3);
  auto reversed = order;
  for (auto& l : reversed.lanes)
    for (auto& a : l.actions) a.microbatch = 2 - a.microbatch;
  const task<double> t(1, {1, 1}, 3);
  auto ends = connect_ends(2);
  const auto failures = on_ranks(2, [&](int r) {
    std::vector<dense_stage<double>> stages;
    stages.push_back(t.stage(r));
    pipeline_executor<tensor, dense_stage<double>, channel> executor(r == 0 ? order : reversed, stages, t.boundaries(),
                                                                     *ends[static_cast<std::size_t>(r)], {.deadline_s = 20});
    executor.step(std::span<const tensor>(t.inputs), std::span<const tensor>(t.targets), task<double>::loss);
  });
  for (const auto& f : failures)
    CHECK(contains(text_of(f), "sent is step 0, microbatch 0, activation of stage 0, expected is step 0, microbatch 2"));
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
