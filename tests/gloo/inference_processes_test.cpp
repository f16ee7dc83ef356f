// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/inference/inference_pipeline.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/gloo/gloo_communicator.hpp>

#include "../runtime/inference/counted_layer.hpp"
#include "../sanitizer_share.hpp"
#include "processes.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using channel = gloo_communicator<row_tensor>;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Two layers a rank. The first rank has `requests` of so many steps; it says how many have ended in each way, and whether all
/// that finished have the right results. Others say that they have returned.
std::string serve(int rank, int ranks, const std::string& folder, int requests, int steps, double deadline_s,
                  const std::function<void(const std::string&)>& say) {
  gloo_options options;
  options.rendezvous = "file:" + folder;
  channel comm({.rank = rank, .ranks = ranks, .launcher = {}, .master = {}, .run = {}}, options);
  const auto count = std::make_shared<state_count>();
  auto stage = counted_stage(2 * rank, 2 * rank + 2, count);
  const inference_limits how{.most_in_flight = 16, .deadline_s = deadline_s};
  if (rank > 0) {
    say("begins");
    follow_inference<row_tensor>(comm, stage, how);
    return "returned, holds " + std::to_string(count->now);
  }
  inference_queue<row_tensor> queue(static_cast<std::size_t>(requests));
  std::vector<std::shared_ptr<std::vector<std::uint64_t>>> got;
  std::vector<inference_ticket> tickets;
  for (int k = 0; k < requests; ++k) {
    got.push_back(std::make_shared<std::vector<std::uint64_t>>());
    auto r = counted_request(2000 + static_cast<std::uint64_t>(k), steps, got.back(), k % 10 == 4 ? 1 : -1, 2 * ranks - 1);
    if (k % 10 == 5) r.deadline_s = 0;
    if (k == 0)
      r.next = [next = std::move(r.next), told = false, &say](row_tensor y) mutable {
        if (!told) say("begins");
        told = true;
        return next(std::move(y));
      };
    tickets.push_back(queue.submit(std::move(r)));
  }
  queue.close();
  std::string last = "returned";
  try {
    lead_inference<row_tensor>(comm, stage, queue, how);
  } catch (const communication_error& e) {
    last = e.what();
  }
  int ended[5] = {}, right = 0;
  for (int k = 0; k < requests; ++k) {
    const auto i = static_cast<std::size_t>(k);
    const auto result = tickets[i].wait_for(0);
    if (!result) return "a request is pending";
    ++ended[static_cast<std::size_t>(result->how)];
    if (result->how == inference_end::finished)
      right += *got[i] == counted_reference(2 * ranks, 2000 + static_cast<std::uint64_t>(k), steps);
  }
  return last + " | finished " + std::to_string(ended[0]) + ", right " + std::to_string(right) + ", cancelled " +
         std::to_string(ended[1]) + ", expired " + std::to_string(ended[2]) + ", failed " + std::to_string(ended[3]) + ", lost " +
         std::to_string(ended[4]);
}

}  // namespace

TEST_CASE("gloo processes: requests through two to four ranks have the results of one; failed and late ones end by themselves") {
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    const scratch_folder folder;
    process_group processes(ranks, [&](int rank, const auto& say) { return serve(rank, ranks, folder.path, 40, 6, 30, say); });
    for (int r = 0; r < ranks; ++r) {
      CAPTURE(r);
      REQUIRE(processes.hear(r) == "begins");
      CHECK(processes.hear(r) ==
            (r > 0 ? "returned, holds 0" : "returned | finished 32, right 32, cancelled 0, expired 4, failed 4, lost 0"));
    }
  }
}

TEST_CASE("gloo processes: kill -9 or a stop of a rank ends every pending request with an error within the deadline") {
  random_source random(5);
  for (int instance = 0; instance < 4 / sanitizer_share; ++instance) {
    CAPTURE(instance);
    const bool stops = instance == 1;
    const int ranks = random.integer(2, 4), victim = random.integer(1, ranks - 1);
    const double after_s = random.uniform(0, 0.1), deadline_s = stops ? 1 : 30;
    CAPTURE(ranks);
    CAPTURE(victim);
    const scratch_folder folder;
    process_group processes(
        ranks, [&](int rank, const auto& say) { return serve(rank, ranks, folder.path, 40, 1'000'000'000, deadline_s, say); });
    for (int r = 0; r < ranks; ++r) REQUIRE(processes.hear(r) == "begins");
    std::this_thread::sleep_for(std::chrono::duration<double>(after_s));
    const double since_s = steady_now_s();
    stops ? processes.stop(victim) : processes.kill(victim);
    const auto last = processes.hear(0);
    CAPTURE(last);
    CHECK(contains(last, "rank " + std::to_string(victim) + (stops ? " has not answered" : " was lost")));
    // Some may have failed or expired before.
    CHECK(contains(last, " | finished 0, right 0, cancelled 0, "));
    CHECK(!contains(last, ", lost 0"));
    CHECK(steady_now_s() - since_s < (stops ? 10 : 15));
    for (int r = 1; r < ranks; ++r) {
      if (r == victim) continue;
      CAPTURE(r);
      CHECK(contains(processes.hear(r), "threw: rank " + std::to_string(r)));
    }
  }
}
