// SPDX-License-Identifier: Apache-2.0
// Random schedules that the checker finds nothing wrong with run to their end, with the bits of one device.
#include <hetsched/runtime/executor/executor.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/executor/stager.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/check/check.hpp>
#include <hetsched/schedule/text.hpp>

#include "../sanitizer_share.hpp"
#include "../schedule/random_schedule.hpp"
#include "dense.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using tensor = matrix<double>;
using channel = thread_communicator<tensor>;

template <class Stager>
void check_run(const task<double>& t, const schedule& order, send_semantics semantics) {
  CAPTURE(semantics == send_semantics::rendezvous);
  const auto done = run_over<Stager>(channel::connect(order.ranks), t, order, {.deadline_s = 20, .semantics = semantics}, 2);
  CHECK(done == reference(t, order));
}

/// Passes tensors on; its forwards take their time.
struct slow_layer {
  struct context {};
  double seconds = 0;
  std::vector<tensor> none = {};
  tensor forward(const tensor& x, context&) const {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    return x;
  }
  tensor backward(const tensor& dy, context&) const { return dy; }
  std::vector<tensor>& parameters() { return none; }
  std::vector<tensor>& gradients() { return none; }
};

struct run_setting {
  int ranks = 2;       ///< of the communicator
  int first_rank = 0;  ///< of a pipeline of two
  int microbatches = 2;
  double seconds = 0;  ///< of a forward
  double deadline_s = 20;
};

/// What becomes of a step: "" if it ends.
std::string one_step(const run_setting& how) {
  const auto order = one_f_one_b({2, 1}, how.microbatches);
  const std::vector<tensor> inputs(static_cast<std::size_t>(how.microbatches), tensor(1, 1));
  const std::vector<tensor_shape> boundaries{{1, 1}};
  try {
    run_on_threads(channel::connect(how.ranks), [&](channel& end) {
      std::vector<slow_layer> stage{{.seconds = how.seconds}};
      pipeline_executor<tensor, slow_layer, channel> rank(order, std::span(stage), boundaries, end,
                                                          {.deadline_s = how.deadline_s, .first_rank = how.first_rank});
      rank.step(std::span(inputs), std::span(inputs), [](const tensor& y, const tensor&) { return loss_value<tensor>{1, y}; });
    });
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("[threads] random sound schedules run as on one device") {
  int sound = 0, rendezvous = 0;
  for (int instance = 0; instance < 2000 / sanitizer_share; ++instance) {
    CAPTURE(instance);
    random_source random(static_cast<std::uint64_t>(instance) + 1);
    const auto order = random_schedule(random, {.swaps = instance % 2 == 0});
    check_options how;
    how.semantics = {send_semantics::buffered};
    if (!check(order, how).empty()) continue;
    const std::string text = to_csv(order);
    CAPTURE(text);
    std::vector<int> layers;
    for (int s = 0; s < order.stages; ++s) layers.push_back(random.integer(1, 2));
    const task<double> t(instance, layers, order.microbatches);
    ++sound;
    check_run<no_stager>(t, order, send_semantics::buffered);
    check_run<thread_stager<tensor>>(t, order, send_semantics::buffered);
    how.semantics = {send_semantics::rendezvous};
    if (!check(order, how).empty()) continue;
    ++rendezvous;
    check_run<no_stager>(t, order, send_semantics::rendezvous);
  }
  CHECK(sound > 600 / sanitizer_share);
  CHECK(rendezvous > 300 / sanitizer_share);
}

TEST_CASE("a deadline counts from the last progress, and may be for ever") {
  // Ten forwards of 0.2 s: longer than the deadline, but nobody waits so long.
  CHECK(one_step({.microbatches = 10, .seconds = 0.2, .deadline_s = 1.6}) == "");
  for (const double seconds : {1e9, 1e300, std::numeric_limits<double>::infinity()}) {
    CAPTURE(seconds);
    CHECK(one_step({.seconds = 0.01, .deadline_s = seconds}) == "");
  }
}

TEST_CASE("ranks that the communicator does not have are refused") {
  for (const auto& how :
       {run_setting{.ranks = 1}, run_setting{.ranks = 2, .first_rank = 1}, run_setting{.ranks = 2, .first_rank = -1}}) {
    const auto text = one_step(how);
    CAPTURE(text);
    CHECK(text.find("of a communicator of") != std::string::npos);
  }
}
