// SPDX-License-Identifier: Apache-2.0
// Groups of threads here; tests/torch/group.py runs processes over torch's Gloo.
#include <hetsched/torch/process_group.hpp>

// Of c10's logging, which has the names of the test's.
#undef CHECK

#include <doctest/doctest.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "../runtime/communicator/process_planes.hpp"
#include "../runtime/every_schedule.hpp"

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

}  // namespace

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
