// SPDX-License-Identifier: Apache-2.0
// What has to hold over every store in which ranks meet. Ranks are threads.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/gloo/elastic.hpp>
#include <hetsched/gloo/gloo_communicator.hpp>

#include "../runtime/dense.hpp"

namespace hetsched::test {

/// Each of two ranks of three waits for the third, which fails, or whose number is none of a rank.
inline void check_failures_are_told(const std::string& where, const std::string& run) {
  for (const int failing : {2, 7}) {
    CAPTURE(failing);
    gloo_options options;
    options.rendezvous = where;
    options.run = run + std::to_string(failing);
    std::vector<std::string> told(2);
    const auto start = std::chrono::steady_clock::now();
    {
      std::vector<std::jthread> ranks;
      for (int r = 0; r < 2; ++r)
        ranks.emplace_back([&, r] {
          process_place place;
          place.rank = r;
          place.ranks = 3;
          try {
            const gloo_communicator<matrix<float>> comm(place, options);
          } catch (const error& e) {
            told[static_cast<std::size_t>(r)] = e.what();
          }
        });
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      process_place place;
      place.rank = failing;
      place.ranks = 3;
      tell_failure(place, options, "no text");
    }
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(15));  // the deadline is 30
    for (const auto& text : told)
      CHECK(text == "rank " + std::to_string(failing) + " cannot come to run \"" + options.run + "\": no text");
  }
}

/// Three ranks lose the first one, go on, and take in another.
inline void check_ranks_come_and_go(const std::string& where, const std::string& run) {
  using channel = gloo_communicator<matrix<float>>;
  std::vector<std::string> told(4);
  std::atomic<int> gone_on = 0;
  const auto rank = [&](int number, bool joins) {
    auto& said = told[static_cast<std::size_t>(number)];
    gloo_options options;
    options.rendezvous = where;
    options.run = run;
    process_place place;
    place.rank = number;
    place.ranks = 3;
    try {
      int rounds = 0;
      run_elastically<matrix<float>>(
          place, options, {.joins = joins, .settle_s = 1.5, .say = {}}, [&](channel& comm, const elastic_place& here) {
            said += std::to_string(here.generation) + ": " + std::to_string(here.place.rank) + " of " +
                    std::to_string(here.place.ranks) + "; ";
            gone_on += here.generation == 1;
            for (const auto until = deadline_in(30); std::chrono::steady_clock::now() < until;) {
              std::vector<std::vector<double>> all;
              const double lets_in = here.place.rank == 0 && here.somebody_waits() ? 1 : 0;
              if (comm.gather(std::vector<double>{lets_in}, all, deadline_in(20)) != wait_result::progress)
                throw communication_error(comm.failure(), {}, no_microbatch, {});
              if (here.generation == 0 && number == 0 && ++rounds == 3) throw std::runtime_error("is lost");
              if (all[0][0] != 0) return false;
              if (here.generation == 2 && ++rounds == 3) return true;
              std::this_thread::sleep_for(std::chrono::milliseconds(5));
            }
            return true;  // nobody has come
          });
      said += "done";
    } catch (const std::exception& e) {
      said += e.what();
    }
  };
  {
    std::vector<std::jthread> ranks;
    for (int r = 0; r < 3; ++r) ranks.emplace_back([&, r] { rank(r, false); });
    for (const auto until = deadline_in(30); gone_on < 2 && std::chrono::steady_clock::now() < until;)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    rank(3, true);
  }
  CHECK(told[0] == "0: 0 of 3; is lost");
  CHECK(told[1] == "0: 1 of 3; 1: 0 of 2; 2: 0 of 3; done");
  CHECK(told[2] == "0: 2 of 3; 1: 1 of 2; 2: 1 of 3; done");
  CHECK(told[3] == "2: 2 of 3; done");
  CHECK_THROWS_AS((void)detail::find_roster(where, run), input_error);  // though the lost one has told of it there
}

}  // namespace hetsched::test
