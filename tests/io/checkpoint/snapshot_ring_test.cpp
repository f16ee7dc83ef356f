// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include <doctest/doctest.h>

#include <hetsched/core/random.hpp>
#include <hetsched/io/checkpoint/snapshot_ring.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>

#include "../../runtime/dense.hpp"

using namespace hetsched;

namespace {

using channel = thread_communicator<test::matrix<double>>;

/// A tensor of so many doubles, shared out over ranks in runs.
std::vector<state_slice> share(std::vector<double>& all, int rank, int ranks) {
  const std::size_t n = all.size(), first = n * static_cast<std::size_t>(rank) / static_cast<std::size_t>(ranks),
                    last = n * static_cast<std::size_t>(rank + 1) / static_cast<std::size_t>(ranks);
  if (first == last) return {};
  return {{.layer = 0,
           .name = "parameter.0",
           .element = "f64",
           .shape = {n},
           .first = first,
           .bytes = std::as_writable_bytes(std::span(all).subspan(first, last - first))}};
}

std::vector<double> values_of(std::int64_t step) {
  std::vector<double> all(37);
  for (std::size_t k = 0; k < all.size(); ++k) all[k] = 100.0 * static_cast<double>(step) + static_cast<double>(k);
  return all;
}

using ring_list = std::vector<std::unique_ptr<snapshot_ring>>;
std::unique_ptr<snapshot_ring> make_ring() {
  static int number = 0;
  return std::make_unique<snapshot_ring>("/dev/shm/hetsched_ring" + std::to_string(::getpid()) + '.' + std::to_string(number++));
}

/// body(comm, ring) for each ring, on a thread each.
template <class Body>
void on_rings(ring_list& rings, const Body& body) {
  const int ranks = static_cast<int>(rings.size());
  auto ends = channel::connect(ranks);
  std::vector<std::exception_ptr> failures(rings.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < rings.size(); ++r)
      threads.emplace_back([&, r] {
        try {
          body(ends[r], *rings[r]);
        } catch (...) {
          failures[r] = std::current_exception();
          ends[r].abort("failed");
        }
      });
  }
  for (const auto& f : failures)
    if (f) std::rethrow_exception(f);
}

void keep(ring_list& rings, std::int64_t step) {
  on_rings(rings, [&](channel& comm, snapshot_ring& ring) {
    auto all = values_of(step);
    ring.keep(comm, step, share(all, comm.rank(), comm.ranks()), 20, {{"what", "a test"}});
  });
}

/// The step that all find, with its values on each of them; -1: none.
std::int64_t found(ring_list& rings) {
  std::vector<std::int64_t> steps(rings.size(), -1);
  on_rings(rings, [&](channel& comm, snapshot_ring& ring) {
    const auto last = ring.find(comm, 20);
    if (!last) return;
    steps[static_cast<std::size_t>(comm.rank())] = last->step;
    std::vector<double> all(37);
    auto slices = share(all, 0, 1);
    load_checkpoint(*last, slices);
    if (all != values_of(last->step)) throw error("other values");
    if (last->info.at("what") != "a test") throw error("other notes");
  });
  for (const auto s : steps) CHECK(s == steps[0]);
  return steps[0];
}

}  // namespace

TEST_CASE("[threads] snapshots in memory outlive ranks that are not neighbours, and reach those that come") {
  random_source random(4);
  for (int instance = 0; instance < 12; ++instance) {
    const int ranks = random.integer(1, 6);
    CAPTURE(instance);
    CAPTURE(ranks);
    ring_list rings;
    for (int r = 0; r < ranks; ++r) rings.push_back(make_ring());
    CHECK(found(rings) == -1);
    keep(rings, 3);
    keep(rings, 5);
    CHECK(found(rings) == 5);
    keep(rings, 8);
    // Each rank's part is with itself and the next one.
    std::vector<bool> lost(static_cast<std::size_t>(ranks));
    for (std::size_t r = 0; r < lost.size(); ++r) lost[r] = random.integer(0, 2) == 0;
    lost[static_cast<std::size_t>(random.integer(0, ranks - 1))] = false;
    bool whole = true;
    for (std::size_t r = 0; r < lost.size(); ++r) whole = whole && !(lost[r] && lost[(r + 1) % lost.size()]);
    ring_list left;
    for (std::size_t r = 0; r < lost.size(); ++r)
      if (!lost[r]) left.push_back(std::move(rings[r]));
    if (random.integer(0, 1) == 0) left.push_back(make_ring());  // one that comes
    CHECK(found(left) == (whole ? 8 : -1));
    // Again, with another one, before the next snapshot; and it goes on.
    left.push_back(make_ring());
    CHECK(found(left) == (whole ? 8 : -1));
    keep(left, 9);
    left.erase(left.begin());
    CHECK(found(left) == 9);
  }
}

TEST_CASE("[threads] snapshots in memory: the one before counts until all have the next") {
  ring_list rings;
  for (int r = 0; r < 3; ++r) rings.push_back(make_ring());
  keep(rings, 1);
  // Rank 2 fails before it takes part.
  try {
    on_rings(rings, [&](channel& comm, snapshot_ring& ring) {
      if (comm.rank() == 2) throw error("lost");
      auto all = values_of(2);
      ring.keep(comm, 2, share(all, comm.rank(), comm.ranks()), 20, {{"what", "a test"}});
    });
    FAIL("nobody has noticed");
  } catch (const error&) {
  }
  rings.pop_back();
  CHECK(found(rings) == 1);
}

TEST_CASE("[threads] snapshots in memory: where one rank cannot write, all are told, and keep the one before") {
  ring_list rings;
  for (int r = 0; r < 3; ++r) rings.push_back(make_ring());
  keep(rings, 4);
  // What rank 1 would write, or is sent, has no folder.
  const auto folder = std::filesystem::path("/dev/shm") / ("hetsched_ring" + std::to_string(::getpid()) + ".blocked");
  std::filesystem::remove_all(folder);
  rings[1] = std::make_unique<snapshot_ring>(folder.string());
  std::filesystem::remove_all(folder);
  std::ofstream(folder) << "a file";
  std::vector<std::string> told(3);
  on_rings(rings, [&](channel& comm, snapshot_ring& ring) {
    auto all = values_of(5);
    try {
      ring.keep(comm, 5, share(all, comm.rank(), comm.ranks()), 20);
    } catch (const agreed_error& e) {
      told[static_cast<std::size_t>(comm.rank())] = e.what();
    }
  });
  for (const auto& text : told) {
    CHECK(text.starts_with("no snapshot of step 5, as rank 1 cannot write: "));
    CHECK(text == told[0]);
  }
  CHECK(rings[0]->step() == 4);
  CHECK(rings[2]->step() == 4);
  std::filesystem::remove_all(folder);
}

TEST_CASE("snapshots in memory that a process has left behind are removed by the next one; those of others stay") {
  namespace fs = std::filesystem;
  const std::string alike = "/dev/shm/hetsched_left" + std::to_string(::getpid()) + '-';
  fs::create_directories(alike + "dead/step-000001.writing");
  {
    const snapshot_ring lives(alike + "lives");
    const snapshot_ring next(alike + "next");
    CHECK_FALSE(fs::exists(alike + "dead"));
    CHECK(fs::exists(alike + "lives"));
    CHECK(fs::exists(alike + "next"));
  }
  CHECK_FALSE(fs::exists(alike + "lives"));
}
