// SPDX-License-Identifier: Apache-2.0
// Groups of threads here; tests/torch/group.py runs processes over torch's Gloo.
#include <hetsched/torch/ordered_group.hpp>
#include <hetsched/torch/process_group.hpp>

// Of c10's logging, which has the names of the test's.
#undef CHECK

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "../runtime/communicator/process_planes.hpp"
#include "../runtime/every_schedule.hpp"
#include "../runtime/packed_layers.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using plane = torch_group_communicator<plane_tensor>;
static_assert(communicator<plane, plane_tensor> && asking_plane<plane>);
static_assert(byte_plane<plane> && waking_plane<plane>);

/// Messages between threads.
struct post_office {
  std::mutex guard;
  std::condition_variable arrived;
  std::map<std::tuple<int, int, int>, std::deque<at::Tensor>> boxes;  ///< by sender, receiver and tag
  std::vector<bool> gone = std::vector<bool>(8);
};

/// A receive, or a send, which is done at once. One of Gloo's tells nothing before it is waited for; of others it is asked.
struct letter : c10d::Work {
  letter(post_office& office, bool gloo, std::tuple<int, int, int> box, at::Tensor into)
      : office_(office), gloo_(gloo), box_(box), into_(std::move(into)) {}
  bool isCompleted() override {
    const std::lock_guard hold(office_.guard);
    return !gloo_ && take();
  }
  bool wait(std::chrono::milliseconds) override {
    std::unique_lock hold(office_.guard);
    office_.arrived.wait(hold, [&] { return take() || aborted_ || office_.gone[static_cast<std::size_t>(std::get<0>(box_))]; });
    if (!done_ && !aborted_) throw std::runtime_error("closed by peer");
    return done_;
  }
  void abort() override {
    const std::lock_guard hold(office_.guard);
    aborted_ = true;
    office_.arrived.notify_all();
  }

 private:
  bool take() {
    if (done_ || !into_.defined()) return done_ = true;
    auto& box = office_.boxes[box_];
    if (box.empty()) return false;
    into_.copy_(box.front());
    box.pop_front();
    return done_ = true;
  }
  post_office& office_;
  bool gloo_, done_ = false, aborted_ = false;
  std::tuple<int, int, int> box_;
  at::Tensor into_;
};

struct thread_group : c10d::Backend {
  thread_group(std::shared_ptr<post_office> office, std::string kind, int rank, int ranks)
      : Backend(rank, ranks), office_(std::move(office)), kind_(std::move(kind)) {}
  const std::string getBackendName() const override { return kind_; }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& message, int to, int tag) override {
    const std::lock_guard hold(office_->guard);
    office_->boxes[{getRank(), to, tag}].push_back(message.at(0).clone());
    office_->arrived.notify_all();
    return c10::make_intrusive<letter>(*office_, kind_ == "gloo", std::tuple(getRank(), to, tag), at::Tensor());
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& message, int from, int tag) override {
    return c10::make_intrusive<letter>(*office_, kind_ == "gloo", std::tuple(from, getRank(), tag), message.at(0));
  }

 private:
  std::shared_ptr<post_office> office_;
  std::string kind_;
};

/// Calls body(make) on so many threads, in a group whose works are waited for, and in one whose works are asked.
template <class Tensor = plane_tensor, class Body>
void on_groups(int ranks, Body&& body) {
  for (const std::string kind : {"gloo", "asked"}) {
    CAPTURE(kind);
    const auto office = std::make_shared<post_office>();
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r)
      threads.emplace_back([&, r] {
        const auto group = c10::make_intrusive<thread_group>(office, kind, r, ranks);
        int tag = 0;
        body([&] {
          return std::make_unique<torch_group_communicator<Tensor>>(c10::intrusive_ptr<c10d::Backend>(group),
                                                                    torch_group_options{.tag = tag++});
        });
      });
    for (auto& t : threads) t.join();
  }
}

/// Sends and receives as NCCL carries them out: without tags, each rank's one after the other in the order of its calls, a send
/// when it meets its receive. What does not fit hangs. The first call of a pair blocks until the other one calls, too.
struct strict_office {
  struct call {
    bool sends;
    int peer;
    at::Tensor message;
    bool done = false;
  };
  explicit strict_office(int ranks) : calls(static_cast<std::size_t>(ranks)) {}
  void work() {
    for (bool moved = true; std::exchange(moved, false);)
      for (std::size_t r = 0; r < calls.size(); ++r) {
        if (calls[r].empty()) continue;
        auto& from = *calls[r].front();
        auto& theirs = calls[static_cast<std::size_t>(from.peer)];
        if (!from.sends || theirs.empty()) continue;
        auto& to = *theirs.front();
        if (to.sends || to.peer != static_cast<int>(r) || to.message.numel() != from.message.numel()) continue;
        to.message.copy_(from.message);
        from.done = to.done = moved = true;
        calls[r].pop_front();
        theirs.pop_front();
      }
  }
  std::mutex guard;
  std::condition_variable arrived;
  std::map<std::pair<int, int>, std::set<int>> met;      ///< of a pair who has called
  std::vector<std::deque<std::shared_ptr<call>>> calls;  ///< by rank
  int aborts = 0;
};
struct strict_work : c10d::Work {
  strict_work(strict_office& office, std::shared_ptr<strict_office::call> own) : office_(office), own_(std::move(own)) {}
  bool isCompleted() override {
    const std::lock_guard hold(office_.guard);
    office_.work();
    return own_->done;
  }
  bool wait(std::chrono::milliseconds) override { return true; }

 private:
  strict_office& office_;
  std::shared_ptr<strict_office::call> own_;
};
struct strict_group : c10d::Backend {
  strict_group(std::shared_ptr<strict_office> office, int rank, int ranks) : Backend(rank, ranks), office_(std::move(office)) {}
  const std::string getBackendName() const override { return "nccl"; }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& message, int to, int) override { return add(true, to, message); }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& message, int from, int) override {
    return add(false, from, message);
  }
  void abort() override {
    const std::lock_guard hold(office_->guard);
    ++office_->aborts;
    office_->arrived.notify_all();
  }

 private:
  c10::intrusive_ptr<c10d::Work> add(bool sends, int peer, const std::vector<at::Tensor>& message) {
    std::unique_lock hold(office_->guard);
    auto& met = office_->met[std::minmax(getRank(), peer)];
    met.insert(getRank());
    office_->arrived.notify_all();
    office_->arrived.wait(hold, [&] { return met.size() == 2 || office_->aborts > 0; });
    auto made = std::make_shared<strict_office::call>(strict_office::call{sends, peer, message.at(0)});
    office_->calls[static_cast<std::size_t>(getRank())].push_back(made);
    return c10::make_intrusive<strict_work>(*office_, std::move(made));
  }
  std::shared_ptr<strict_office> office_;
};

using by_order = torch_ordered_communicator<plane_tensor, plane>;
static_assert(communicator<by_order, plane_tensor> && ordered_plane<by_order>);

/// Calls body(comm, office) on so many threads.
template <class Body>
void in_order(int ranks, Body&& body) {
  const auto office = std::make_shared<post_office>();
  const auto strict = std::make_shared<strict_office>(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      body(by_order(c10::make_intrusive<strict_group>(strict, r, ranks), c10::Device(c10::DeviceType::CPU),
                    plane(c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<thread_group>(office, "asked", r, ranks)))),
           *strict);
    });
  for (auto& t : threads) t.join();
}

}  // namespace

TEST_CASE("torch group: over one that keeps order, as NCCL, every schedule gives the bits of one device") {
  for (const int ranks : {2, 4})
    in_order(ranks, [&](const by_order& comm, strict_office&) {
      int run = 0;
      for (const auto& one : schedule_instances(ranks, {3, 8})) {
        CAPTURE(one.name);
        CHECK(differences<double>(one, comm.another()) == "");
        ++run;
      }
      CHECK(run > 5);
    });
}

TEST_CASE("torch group: over one that keeps order, gradients of data ranks are summed with the bits of threads") {
  const three_parts net{};
  auto layout = even_layout(net.layers, schedule_of("1f1b", 2, 4), 4);
  layout.pipelines[0].groups.assign(2, {.degrees = {.data = 2}});
  const auto train = [&](auto comm) {
    auto trainer = make_trainer<matrix<double>>(
        layout, [&](int l) { return net.make(l); }, &three_parts::shape_after, std::move(comm), sgd{.learning_rate = 0.05});
    const auto own = trainer.samples();
    const auto part = [&](const matrix<double>& all) {
      matrix<double> some(static_cast<std::size_t>(own.size()), all.columns());
      const auto before = static_cast<std::size_t>(own.first) * all.columns();
      for (std::size_t k = 0; k < some.rows() * some.columns(); ++k) some.data()[k] = all.data()[before + k];
      return some;
    };
    std::vector<double> losses;
    for (int step = 0; step < 3; ++step) {
      std::vector<matrix<double>> inputs, targets;
      for (int m = 0; m < layout.pipelines[0].order.microbatches; ++m) {
        const auto [input, target] = toy<double>{}.batch(layout, step, 0, m);
        inputs.push_back(part(input));
        targets.push_back(part(target));
      }
      losses.push_back(trainer.step(inputs, targets, toy<double>::loss).loss);
    }
    return losses;
  };
  std::vector<double> expected;
  using threads = thread_communicator<matrix<double>>;
  run_on_threads(threads::connect(4), [&](threads& comm) {
    const auto losses = train(comm);
    if (comm.rank() == 0) expected = losses;
  });
  REQUIRE(expected.size() == 3);
  in_order(4, [&](const by_order& comm, strict_office&) { CHECK(train(comm) == expected); });
}

TEST_CASE("torch group: over one that keeps order, posts may have another, and what was not planned ends all") {
  in_order(2, [](by_order comm, strict_office& strict) {
    const bool sends = comm.rank() == 0;
    const int one = comm.open({0, 1, payload::activation, 0, 0}), other = comm.open({0, 1, payload::activation, 0, 1});
    const auto planned = [&](int channel, int microbatch) {
      return planned_operation{.channel = channel, .sends = sends, .what = {.microbatch = microbatch}, .bytes = 48};
    };
    comm.set_plan({{planned(one, 0)}, {planned(other, 1)}});
    plane_tensor tensors[2] = {filled(2, 3, sends ? 1 : -1), filled(2, 3, sends ? 10 : -1)};
    by_order::operation ops[2];
    const auto post = [&](int channel, int k, int microbatch) {
      const stamp s{.microbatch = microbatch};
      sends ? comm.post_send(channel, s, tensors[k], ops[k]) : comm.post_receive(channel, s, tensors[k], ops[k]);
    };
    post(other, 1, 1);
    CHECK(comm.wait(deadline_in(0.01), true) == wait_result::deadline);
    post(one, 0, 0);
    REQUIRE(ends_soon(comm, ops[0]));
    REQUIRE(ends_soon(comm, ops[1]));
    CHECK(tensors[0] == filled(2, 3, 1));
    CHECK(tensors[1] == filled(2, 3, 10));
    meet(comm);
    if (sends) post(one, 0, 7);
    CHECK(last_wait(comm) == wait_result::aborted);
    CHECK(comm.failure().find("planned is") != std::string::npos);
    if (sends) CHECK(!comm.poll(ops[0]));
    const std::lock_guard hold(strict.guard);
    CHECK(strict.aborts > 0);  // so that the device lets go, too
  });
  // Plans that do not fit each other hang nowhere.
  in_order(2, [](by_order comm, strict_office&) {
    const int channel = comm.open({0, 1, payload::activation, 0, 0});
    const planned_operation own{.channel = channel, .sends = comm.rank() == 0, .what = {}, .bytes = comm.rank() == 0 ? 48U : 40U};
    CHECK_THROWS_WITH_AS(comm.set_plan({{own}}), doctest::Contains("have planned different transfers"), input_error);
  });
}

TEST_CASE("torch group: over one that connects a pair by its first message, a wait returns at its deadline") {
  std::atomic<bool> waited{false};
  in_order(2, [&](by_order comm, strict_office& strict) {
    const int channel = comm.open({0, 1, payload::activation, 0, 0});
    const bool sends = comm.rank() == 0;
    comm.set_plan({{planned_operation{.channel = channel, .sends = sends, .what = {}, .bytes = 48}}});
    auto t = filled(2, 3, sends ? 1 : -1);
    by_order::operation op;
    if (sends) {
      comm.post_send(channel, {}, t, op);
      CHECK(comm.wait(deadline_in(0.01), true) == wait_result::deadline);
      waited = true;
    } else {
      for (const auto until = deadline_in(10); !waited && std::chrono::steady_clock::now() < until;) std::this_thread::yield();
      CHECK(waited);
      comm.post_receive(channel, {}, t, op);
    }
    REQUIRE(ends_soon(comm, op));
    CHECK(t == filled(2, 3, 1));
    if (sends) return;
    // Behind an abort that lets go of nothing, messages keep their memory.
    comm.post_receive(channel, {}, t, op);
    comm.abort("enough");
    const std::lock_guard hold(strict.guard);
    REQUIRE(strict.calls[1].size() == 1);
    CHECK(strict.calls[1].front()->message.use_count() > 1);
  });
}

TEST_CASE("torch group: what every communicator between processes does") {
  on_groups(3, [](const auto& make) {
    check_order(make);
    check_deadline(make);
    check_abort(make);
    check_mismatch(make);
    check_empty_tensors(make);
    check_gather(make);
    check_finished_round(make, 20);
    check_other_schedule(make);
    check_leaving(make);
    check_busy_ranks_answer(make);
  });
}

TEST_CASE("torch group: long tensors, many, and aborts on their way") {
  on_groups(2, [](const auto& make) {
    check_long_tensors(make, 2);
    check_many_tensors(make, 96);
    check_abort_on_the_way(make, 10);
  });
}

TEST_CASE("torch group: every schedule gives the bits of one device") {
  on_groups<matrix<double>>(3, [](const auto& make) {
    const auto comm = make();
    for (const auto& one : schedule_instances(3, {3, 8})) CHECK(differences<double>(one, *comm) == "");
  });
}

TEST_CASE("torch group: a rank whose connections close is told at once, with what torch says") {
  const auto office = std::make_shared<post_office>();
  const auto end = [&](int rank) {
    return plane(c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<thread_group>(office, "gloo", rank, 2)));
  };
  std::thread other([&] {
    auto one = end(1);
    {
      const std::lock_guard hold(office->guard);
      office->gone[0] = office->gone[1] = true;
      office->arrived.notify_all();
    }
    CHECK(last_wait(one) == wait_result::aborted);
  });
  auto zero = end(0);
  CHECK(last_wait(zero) == wait_result::aborted);
  CHECK(zero.failure() == "rank 1 was lost: closed by peer");
  other.join();
}

TEST_CASE("torch group: one rank needs nobody, and what is no group for it is refused") {
  const auto office = std::make_shared<post_office>();
  const auto make = [&](const std::string& kind, int ranks, const torch_group_options& options) {
    return plane(c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<thread_group>(office, kind, 0, ranks)), options);
  };
  auto alone = make("gloo", 1, {});
  std::vector<std::vector<double>> all;
  CHECK(alone.gather(std::vector<double>{1, 2}, all, deadline_in(1)) == wait_result::progress);
  CHECK(all == std::vector<std::vector<double>>{{1, 2}});
  CHECK(alone.wait(deadline_in(0.01), true) == wait_result::deadline);
  CHECK_THROWS_WITH_AS(plane(c10::intrusive_ptr<c10d::Backend>()), "the process group is null", input_error);
  CHECK_THROWS_WITH_AS(plane(c10::intrusive_ptr<c10d::ProcessGroup>()), "the process group is null", input_error);
  CHECK_THROWS_WITH_AS(make("gloo", 1, {.tag = -1}), "tag: found -1, expected 0 or more", input_error);
  CHECK_THROWS_WITH_AS(make("nccl", 2, {}), doctest::Contains("give torch's group for the cpu"), input_error);
  CHECK_THROWS_WITH_AS(make("gloo", 2, {.connect_deadline_s = 0.05}),
                       "rank 0 cannot meet the others: rank 1 has not answered in time", error);
}
