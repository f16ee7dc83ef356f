// SPDX-License-Identifier: Apache-2.0
// Started by mpirun on 1 to 4 ranks, which all run all cases alike.
#include <hetsched/mpi/mpi_communicator.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/runtime/communicator/router.hpp>

#include "late_tensor.hpp"
#include "session.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

static_assert(communicator<mpi_communicator<plane_tensor>, plane_tensor>);
static_assert(byte_plane<mpi_communicator<matrix<float>>> && waking_plane<mpi_communicator<matrix<float>>>);
static_assert(asking_plane<mpi_communicator<plane_tensor>>);
static_assert(data_plane<mpi_communicator<late_tensor>, late_tensor> && !waking_plane<mpi_communicator<late_tensor>>);

const auto make = [] { return make_mpi(); };
/// Of messages so short that most tensors take several.
const auto make_short = [] { return make_mpi({.message_bytes = 1000}); };

bool several() { return mpi().ranks() > 1; }

/// A program's handler of errors.
void pass_over(MPI_Comm*, int*, ...) {}

}  // namespace

TEST_CASE("mpi: a channel delivers in the order of its sends, whatever the order of opening and posting") {
  if (several()) check_order(make), check_order(make_short);
}

TEST_CASE("mpi: wait and deadline") {
  if (several()) check_deadline(make), check_deadline(make_short);
}

TEST_CASE("mpi: an abort reaches everybody with the first reason, and lets go of all tensors") {
  if (several()) check_abort(make);
}

TEST_CASE("mpi: stamps and shapes that differ abort on all sides") {
  if (several()) check_mismatch(make);
}

TEST_CASE("mpi: empty tensors travel, too") {
  if (several()) check_empty_tensors(make);
}

TEST_CASE("mpi: gather, while tensors travel") {
  if (several()) check_gather(make), check_gather(make_short);
}

TEST_CASE("mpi: a round of gather that one rank has finished all finish, also if it aborts at once") {
  if (several()) check_finished_round(make, 20);
}

TEST_CASE("mpi: tensors of 32 MiB both ways at once") {
  if (several()) check_long_tensors(make, 3);
}

TEST_CASE("mpi: many small tensors, long ones among them, and a channel behind them") {
  if (several()) check_many_tensors(make, 192), check_many_tensors(make_short, 64);
}

TEST_CASE("mpi: an abort lets go of tensors that are on their way") {
  if (several()) check_abort_on_the_way(make, 20), check_abort_on_the_way([] { return make_mpi({.message_bytes = 1 << 20}); }, 5);
}

TEST_CASE("mpi: ranks that run other schedules notice") {
  if (several()) check_other_schedule(make);
}

TEST_CASE("mpi: a rank that leaves has sent what it had to, and fails those who want more of it") {
  if (several()) check_leaving(make);
}

TEST_CASE("mpi: ranks that are busy answer") {
  if (several()) check_busy_ranks_answer(make);
}

TEST_CASE("mpi: a single rank needs nobody") {
  const auto end = make_mpi({.among = MPI_COMM_SELF});
  CHECK(end->ranks() == 1);
  const std::vector<double> mine{1, 2};
  std::vector<std::vector<double>> all;
  CHECK(end->gather(mine, all, deadline_in(1)) == wait_result::progress);
  CHECK(all == std::vector<std::vector<double>>{mine});
  CHECK(end->wait(deadline_in(0.01), true) == wait_result::deadline);
  end->abort("enough");
  CHECK(end->wait(deadline_in(1), true) == wait_result::aborted);
}

TEST_CASE("mpi: communicators have a handler for errors before and behind a meeting, the program's") {
  const auto handler_of = [](MPI_Comm comm) {
    MPI_Errhandler found = MPI_ERRHANDLER_NULL;
    MPI_Comm_get_errhandler(comm, &found);
    return found;
  };
  (void)mpi();
  CHECK(handler_of(MPI_COMM_WORLD) == MPI_ERRORS_ARE_FATAL);
  (void)make();
  CHECK(handler_of(MPI_COMM_WORLD) == MPI_ERRORS_ARE_FATAL);
  MPI_Errhandler own = MPI_ERRHANDLER_NULL;
  MPI_Comm_create_errhandler(&pass_over, &own);
  MPI_Comm all = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &all);
  MPI_Comm_set_errhandler(all, own);
  (void)make_mpi({.among = all});
  auto found = handler_of(all);
  CHECK(found == own);
  MPI_Errhandler_free(&found);
  MPI_Errhandler_free(&own);
  MPI_Comm_free(&all);
}

TEST_CASE("mpi: ranks of a part of the processes, in another order") {
  const int ranks = mpi().ranks(), rank = mpi().rank();
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank == 0 && ranks > 1 ? MPI_UNDEFINED : 0, -rank, &part);
  if (part == MPI_COMM_NULL) return;
  {
    const auto end = make_mpi({.among = part});
    CHECK(end->rank() == ranks - 1 - rank);
    std::vector<std::vector<double>> all;
    CHECK(end->gather(std::vector<double>{10.0 * rank}, all, deadline_in(20)) == wait_result::progress);
    for (std::size_t p = 0; p < all.size(); ++p) CHECK(all[p][0] == 10.0 * (ranks - 1 - static_cast<int>(p)));
  }
  MPI_Comm_free(&part);
}

TEST_CASE("mpi: a tensor or a part of one at either end of a channel") {
  if (!several()) return;
  const auto end = make();
  const edge e{0, 1, payload::activation, 0, 0};
  const bool sends = end->rank() == 0;
  if (end->rank() < 2) {
    const int channel = end->open(e);
    mpi_communicator<plane_tensor>::operation op;
    for (int way = 0; way < 4; ++way) {
      CAPTURE(way);
      auto t = sends ? filled(1, 8, 10 * way) : filled(1, 8, -100);
      plane_tensor three(1, 3);
      std::copy(t.data() + 2, t.data() + 5, three.data());
      const bool bytes = sends ? way % 2 == 1 : way / 2 == 1;
      const stamp s{.microbatch = way};
      if (sends && bytes) end->post_send_bytes(channel, s, std::as_bytes(std::span(t.data() + 2, 3)), op);
      if (sends && !bytes) end->post_send(channel, s, three, op);
      if (!sends && bytes) end->post_receive_bytes(channel, s, std::as_writable_bytes(std::span(t.data() + 2, 3)), op);
      if (!sends && !bytes) end->post_receive(channel, s, three, op);
      REQUIRE(ends_soon(*end, op));
      if (sends) continue;
      for (std::size_t k = 0; k < 3; ++k)
        CHECK((bytes ? t.data() + 2 : three.data())[k] == 10 * way + 2 + static_cast<double>(k));
      for (const std::size_t k : {0u, 1u, 5u, 6u, 7u}) CHECK(t.data()[k] == -100 + static_cast<double>(k));
    }
  }
  meet(*end);
}

TEST_CASE("mpi: tensors on a device are handed to MPI when others have done with them, where it takes them") {
  if (!several()) return;
  const auto numbers = [](double first) {
    late_tensor t({3});
    for (std::size_t k = 0; k < 3; ++k) t.buffer->numbers[k] = first + static_cast<double>(k);
    return t;
  };
  const edge one{0, 1, payload::activation, 0, 0}, other{0, 1, payload::activation, 0, 1};
  {
    const auto end = make_mpi<late_tensor>({.device_memory = true});
    const bool sends = end->rank() == 0;
    if (end->rank() < 2) {
      const int slow = end->open(one), quick = end->open(other);
      late_tensor late[3] = {numbers(-1), numbers(20), numbers(30)};
      mpi_communicator<late_tensor>::operation ops[3];
      late[0].buffer->is_busy = true;
      const auto post = [&](int channel, int k) {
        const stamp s{.microbatch = k};
        sends ? end->post_send(channel, s, late[k], ops[k]) : end->post_receive(channel, s, late[k], ops[k]);
      };
      post(slow, 0), post(slow, 1), post(quick, 2);
      REQUIRE(ends_soon(*end, ops[2]));
      CHECK(!end->poll(ops[0]));
      CHECK(!end->poll(ops[1]));  // which keeps behind the first
      if (sends)
        for (auto& n : late[0].buffer->numbers) n += 11;
      late[0].buffer->is_busy = false;
      REQUIRE(ends_soon(*end, ops[1]));
      REQUIRE(ends_soon(*end, ops[0]));
      for (int k = 0; k < 3; ++k) CHECK(late[k].buffer->numbers == numbers(10 * (k + 1)).buffer->numbers);
    }
    meet(*end);
    if (end->rank() < 2) {  // behind an abort nobody looks at them
      mpi_communicator<late_tensor>::operation op;
      {
        auto gone = numbers(0);
        gone.buffer->is_busy = true;
        const int channel = end->open(one);
        sends ? end->post_send(channel, {}, gone, op) : end->post_receive(channel, {}, gone, op);
        end->abort("enough");
      }
      CHECK(!end->poll(op));
    }
    CHECK(last_wait(*end) == wait_result::aborted);
  }
  const auto refuses = [&](const mpi_options& options) {
    const auto end = make_mpi<late_tensor>(options);
    if (end->rank() < 2) {
      const int channel = end->open(one);
      mpi_communicator<late_tensor>::operation op;
      auto t = numbers(1);
      const auto post = [&] { end->rank() == 0 ? end->post_send(channel, {}, t, op) : end->post_receive(channel, {}, t, op); };
      CHECK_THROWS_WITH_AS(post(), "this MPI takes no tensor that is on a device: the schedule has to list it as copies",
                           input_error);
      t.buffer->where = memory_space::pinned;
      post();
      REQUIRE(ends_soon(*end, op));
    }
    meet(*end);
  };
  refuses({.device_memory = false});
  if (!mpi().takes_device_memory()) refuses({});
}

TEST_CASE("mpi: beside another plane, a tensor that a device has done with leaves before the deadline") {
  if (!several()) return;
  using plane = mpi_communicator<late_tensor>;
  const auto first = make_mpi<late_tensor>({.device_memory = true}), second = make_mpi<late_tensor>({.device_memory = true});
  const auto by_part = [](const edge& e) { return routed_edge{as_size(e.part), e}; };
  router<plane, decltype(by_part), plane, plane> both(*first, by_part, *first, *second);
  if (both.rank() < 2) {
    const bool sends = both.rank() == 0;
    const int slow = both.open({0, 1, payload::activation, 0, 0}), quick = both.open({0, 1, payload::activation, 0, 0, 1});
    late_tensor tensors[2] = {late_tensor({3}), late_tensor({3})};
    decltype(both)::operation ops[2];
    const auto post = [&](int channel, std::size_t k) {
      sends ? both.post_send(channel, {}, tensors[k], ops[k]) : both.post_receive(channel, {}, tensors[k], ops[k]);
    };
    post(quick, 1);
    REQUIRE(ends_soon(both, ops[1]));
    tensors[0].buffer->is_busy = true;
    post(slow, 0);
    std::thread device([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      tensors[0].buffer->is_busy = false;
    });
    // Until the other end has told, and until the tensor has left or come.
    auto result = wait_result::progress;
    while (!both.poll(ops[0]) && result == wait_result::progress) result = both.wait(deadline_in(10), true);
    CHECK(result == wait_result::progress);
    device.join();
  }
  meet(both);
}

TEST_CASE("mpi: what is thrown in the body of one rank ends all, with its text and rank") {
  std::string text;
  try {
    run_on_mpi<plane_tensor>(mpi(), {}, [&](auto& comm) {
      if (comm.rank() == comm.ranks() - 1) throw std::runtime_error("no more data");
      std::vector<std::vector<double>> all;
      CHECK(comm.gather({}, all, deadline_in(20)) == wait_result::aborted);
      text = comm.failure();
    });
  } catch (const std::runtime_error& e) {
    text = e.what();
  }
  const int last = mpi().ranks() - 1;
  CHECK(text == (mpi().rank() == last ? "no more data" : "rank " + std::to_string(last) + " failed: no more data"));
}

TEST_CASE("mpi: a communicator that an exception destroys ends all others with that") {
  if (!several()) return;
  try {
    const auto end = make();
    if (end->rank() == 1) throw std::runtime_error("no more data");
    CHECK(last_wait(*end) == wait_result::aborted);
    CHECK(end->failure() == "rank 1 was ended by an exception");
  } catch (const std::runtime_error&) {
    CHECK(mpi().rank() == 1);
  }
}

TEST_CASE("mpi: options that cannot be used") {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1} << 31})
    CHECK_THROWS_WITH_AS(make_mpi({.message_bytes = bytes}), doctest::Contains("message_bytes: found "), input_error);
  CHECK(mpi().given_up().empty());  // all others have answered in all these tests
}
