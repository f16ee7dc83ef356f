// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/communicator/router.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/runtime/communicator/shaped_communicator.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/group/axis_group.hpp>
#include <hetsched/schedule/builders/named.hpp>

#include "../dense.hpp"
#include "../group/groups.hpp"
#include "../small_layer.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using tensor = matrix<double>;
using threads = thread_communicator<tensor>;
using route = std::function<routed_edge(const edge&)>;
using plain_threads = plain_communicator<threads>;
using two = router<threads, route, threads, threads>;

// The least that planes have.
struct numbers_only {
  [[nodiscard]] int rank() const { return 0; }
  [[nodiscard]] int ranks() const { return 1; }
  void abort(const std::string&) {}
  [[nodiscard]] std::string failure() const { return {}; }
  [[nodiscard]] wait_result gather(std::span<const double>, std::vector<std::vector<double>>&, deadline_time) {
    return wait_result::progress;
  }
};
struct tensors_only {
  struct operation {
    double end_s = 0;
  };
  [[nodiscard]] int rank() const { return 0; }
  [[nodiscard]] int ranks() const { return 1; }
  [[nodiscard]] int open(const edge&) { return 0; }
  void post_send(int, const stamp&, tensor&, operation&) {}
  void post_receive(int, const stamp&, tensor&, operation&) {}
  [[nodiscard]] bool poll(operation&) { return true; }
  [[nodiscard]] wait_result wait(deadline_time, bool) { return wait_result::progress; }
  void abort(const std::string&) {}
  [[nodiscard]] std::string failure() const { return {}; }
};
struct without_wait : tensors_only {
  void wait() = delete;
};
struct of_no_operation : tensors_only {
  struct operation {};
};

static_assert(control_plane<numbers_only> && data_plane<tensors_only, tensor>);
static_assert(!data_plane<numbers_only, tensor> && !control_plane<tensors_only>);
static_assert(!communicator<numbers_only, tensor> && !communicator<tensors_only, tensor>);
static_assert(communicator<router<numbers_only, route, tensors_only>, tensor>);
static_assert(communicator<threads, tensor> && control_plane<threads> && waking_plane<threads> && !waking_plane<tensors_only>);
static_assert(!data_plane<without_wait, tensor> && !data_plane<of_no_operation, tensor> && !data_plane<threads, small_tensor>);
static_assert(communicator<two, tensor>);
static_assert(communicator<router<two, route, two, threads>, tensor>);  // a router is a plane, too
static_assert(waking_plane<shaped_communicator<threads>> && !waking_plane<shaped_communicator<plain_threads>>);

/// Activations over the first plane, all else over the second.
routed_edge by_payload(const edge& e) { return {e.what == payload::activation ? 0U : 1U, e}; }

template <class Control, class First, class Second>
auto routed(const std::vector<Control>& controls, const std::vector<First>& first, const std::vector<Second>& second,
            const route& to = by_payload) {
  std::vector<router<Control, route, First, Second>> ends;
  for (std::size_t r = 0; r < controls.size(); ++r) ends.emplace_back(controls[r], to, first[r], second[r]);
  return ends;
}

std::vector<shaped_communicator<threads>> shaped_ends(int ranks) {
  std::vector<shaped_communicator<threads>> ends;
  for (auto& e : threads::connect(ranks)) ends.emplace_back(e, [](int, int) { return hetsched::link{2e-4, 1e9}; });
  return ends;
}

}  // namespace

TEST_CASE("[threads] router: over any two planes, the bits of one") {
  constexpr int ranks = 3;
  const task<double> t(5, {1, 2, 1}, 6);
  for (const auto& order : {gpipe(ranks, 6), zb_h1(ranks, 6)})
    for (const auto semantics : {send_semantics::buffered, send_semantics::rendezvous}) {
      const executor_options options{.deadline_s = 20, .semantics = semantics};
      const auto one = run_on_threads(t, order, options, 2);
      const auto controls = threads::connect(ranks);
      CHECK(run_over(routed(controls, threads::connect(ranks), threads::connect(ranks)), t, order, options, 2) == one);
      CHECK(run_over(routed(controls, shaped_ends(ranks), controls), t, order, options, 2) == one);
      // Planes that cannot be waited for together, and a plane that nothing takes.
      CHECK(run_over(routed(controls, plain(threads::connect(ranks)), controls), t, order, options, 2) == one);
      CHECK(run_over(routed(controls, threads::connect(ranks), plain(controls),
                            [](const edge& e) {
                              return routed_edge{1, e};
                            }),
                     t, order, options, 2) == one);
    }
}

TEST_CASE("[threads] router: ranks of a plane may have numbers of their own") {
  // Ranks 1 and 2 are 0 and 1 of a plane that rank 0 has no part in: its own is another one.
  const auto controls = threads::connect(3);
  const auto pair = threads::connect(2), other = threads::connect(1);
  const std::vector<threads> local{other[0], pair[0], pair[1]};
  auto ends = routed(controls, local, controls, [](const edge& e) {
    if (e.from == 0 || e.to == 0) return routed_edge{1, e};
    auto inside = e;
    inside.from -= 1;
    inside.to -= 1;
    return routed_edge{0, inside};
  });
  run_on_threads(ends, [](auto& comm) {
    CHECK(comm.ranks() == 3);
    axis_group<tensor, std::remove_reference_t<decltype(comm)>> axis(comm, {2, 0, 1}, {.deadline_s = 20});
    for (int k = 0; k < 50; ++k) {
      std::vector<double> values(5, comm.rank() + k);
      axis.all_reduce(values);
      if (values != std::vector<double>(5, 3 + 3 * k)) throw error("a wrong sum");
    }
  });
}

TEST_CASE("[threads] router: what ends one plane ends all") {
  const auto controls = threads::connect(2), first = threads::connect(2), second = threads::connect(2);
  auto ends = routed(controls, first, second);
  const edge forth{0, 1, payload::activation, 0, 0}, back{1, 0, payload::gradient, 0, 1};
  tensor a(2, 2), b(2, 2), c(2, 2);
  two::operation send, receive, receive_back;
  const int out = ends[0].open(forth), home = ends[0].open(back), in = ends[1].open(forth);
  SUBCASE("a stamp that does not fit") {
    std::jthread other([&] {
      ends[1].post_receive(in, {.microbatch = 1}, b, receive);
      (void)ends[1].wait(deadline_in(20), true);
    });
    ends[0].post_receive(home, {}, c, receive_back);
    ends[0].post_send(out, {.microbatch = 2}, a, send);
    while (ends[0].wait(deadline_in(20), false) == wait_result::progress) {
    }
  }
  SUBCASE("an abort") {
    std::jthread other([&] { ends[1].abort("enough"); });
    ends[0].post_receive(home, {}, c, receive_back);
    CHECK(ends[0].wait(deadline_in(20), false) == wait_result::aborted);
    CHECK(ends[0].failure() == "enough");
  }
  for (auto& e : ends) CHECK_FALSE(e.failure().empty());
  for (const auto& plane : {controls, first, second}) CHECK_FALSE(plane[0].failure().empty());
  std::vector<std::vector<double>> all;
  CHECK(ends[1].gather({}, all, deadline_in(20)) == wait_result::aborted);
}

TEST_CASE("[threads] router: deadlines, and routes that lead nowhere") {
  const auto controls = threads::connect(2);
  auto ends = routed(controls, controls, threads::connect(2), [](const edge& e) {
    return routed_edge{static_cast<std::size_t>(e.stage), e};
  });
  CHECK_THROWS_WITH_AS((void)ends[0].open({0, 1, payload::activation, 0, 2}),
                       "the route of the activation of stage 2 from rank 0 to rank 1 is plane 2 of 2", input_error);
  const auto begin_s = steady_now_s();
  CHECK(ends[0].wait(deadline_in(0.01), true) == wait_result::deadline);
  (void)ends[0].open({0, 1, payload::activation, 0, 0});
  CHECK(ends[0].wait(deadline_in(0.01), true) == wait_result::deadline);
  (void)ends[0].open({0, 1, payload::activation, 0, 1});
  CHECK(ends[0].wait(deadline_in(0.01), true) == wait_result::deadline);
  CHECK(steady_now_s() - begin_s >= 0.03 - 1e-6);
}
