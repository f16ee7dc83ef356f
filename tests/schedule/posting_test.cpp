// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/posting.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/check/check.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>
#include <hetsched/schedule/text.hpp>

using namespace hetsched;
using enum action_kind;

namespace {

// Two ranks, six microbatches, as torch 2.15 lowers its own classes: _dump_csv(..., format="compute_comms").
constexpr const char* torch_classes[] = {"Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"};

std::string text_of(const std::string& torch_class) {
  std::ifstream in(HETSCHED_SOURCE_DIR "/tests/schedule/torch/" + torch_class + ".csv");
  std::ostringstream text;
  text << in.rdbuf();
  REQUIRE(!text.str().empty());
  return text.str();
}

/// When a comms CSV ends, from its text alone: each rank goes through its cells; a transfer begins where its send is listed, or
/// where both ends are, behind those before it on the same way.
class played_text {
 public:
  played_text(const std::string& text, const schedule& order, const workload& costs, bool rendezvous)
      : order_(order), costs_(costs), rendezvous_(rendezvous) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      auto& events = rows_.emplace_back();
      std::istringstream cells(line);
      for (std::string cell; std::getline(cells, cell, ',');) {
        auto& event = events.emplace_back();
        std::istringstream parts(cell.front() == '(' ? cell.substr(1, cell.find(')') - 1) : cell);
        for (std::string part; std::getline(parts, part, ';');) event.push_back(part);
      }
    }
    clock_.resize(rows_.size());
    work_end_.resize(rows_.size());
    std::vector<std::size_t> at(rows_.size(), 0);
    // Whoever is the first that can go on does; times only grow, so which one it is does not matter.
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t r = 0; r < rows_.size(); ++r)
        while (at[r] < rows_[r].size() && step(r, rows_[r][at[r]])) ++at[r], moved = true;
    }
    for (std::size_t r = 0; r < rows_.size(); ++r) REQUIRE(at[r] == rows_[r].size());
    for (const double end : work_end_) makespan_s = std::max(makespan_s, end);
  }
  double makespan_s = 0;

 private:
  struct transfer {
    double sent = -1, received = -1, arrival = -1;
  };
  struct cell_parts {
    int stage;
    std::string name, microbatch;
    explicit cell_parts(const std::string& cell) {
      std::size_t end = 0;
      stage = std::stoi(cell, &end);
      std::size_t digits = cell.size();
      while (digits > end && std::isdigit(static_cast<unsigned char>(cell[digits - 1]))) --digits;
      name = cell.substr(end, digits - end), microbatch = cell.substr(digits);
    }
  };
  /// One cell; computations that share it begin together, and end together after the time of all.
  bool step(std::size_t rank, const std::vector<std::string>& event) {
    double& now = clock_[rank];
    double start = now, seconds = 0;
    bool works = false;
    for (const auto& cell : event) {
      const cell_parts is(cell);
      const auto tensor = [&](bool gradient, int to) -> transfer& {
        return transfers_[(gradient ? "g" : "a") + std::to_string(to) + "." + is.microbatch];
      };
      const bool gradient = is.name.ends_with("_B");
      if (is.name.starts_with("SEND_") || is.name.starts_with("RECV_")) {
        const bool send = is.name[0] == 'S';
        auto& t = tensor(gradient, send ? is.stage + (gradient ? -1 : 1) : is.stage);
        (send ? t.sent : t.received) = now;
        if (send) ways_[{rank, 1 - rank}].push_back({gradient, is.stage, &t});
        settle();
        return true;
      }
      if (is.name.starts_with("WAIT_SEND_")) {
        const auto& t = tensor(gradient, is.stage + (gradient ? -1 : 1));
        if (t.arrival < 0) return false;
        now = std::max(now, t.arrival);
        return true;
      }
      const bool f = is.name == "F", b = is.name == "B" || is.name == "I";
      if (f || b) {
        if (const auto t = transfers_.find((b ? "g" : "a") + std::to_string(is.stage) + "." + is.microbatch);
            t != transfers_.end()) {
          if (t->second.arrival < 0) return false;
          start = std::max(start, t->second.arrival);
        } else if (crosses(is.stage + (f ? -1 : 1), rank)) {
          return false;  // it has not been sent or posted yet
        }
      }
      const auto& w = costs_.at(0, is.stage);
      seconds += f                ? w.forward_s
                 : is.name == "B" ? w.backward_s
                 : is.name == "I" ? w.backward_s - w.weight_backward_s
                 : is.name == "W" ? w.weight_backward_s
                                  : 0;
      works = works || f || b || is.name == "W";
    }
    if (!works) return true;
    now = work_end_[rank] = start + seconds;
    return true;
  }
  [[nodiscard]] bool crosses(int stage, std::size_t rank) const {
    return stage >= 0 && stage < order_.stages && order_.rank(0, stage) != static_cast<int>(rank);
  }
  /// Tensors of a way travel one after the other, in the order of their sends.
  void settle() {
    for (auto& [way, queue] : ways_)
      for (std::size_t& k = next_[way]; k < queue.size(); ++k) {
        auto& [gradient, stage, t] = queue[k];
        if (rendezvous_ && t->received < 0) break;
        const auto& over = gradient ? costs_.gradient(0, stage - 1) : costs_.activation(0, stage);
        const double start = std::max({t->sent, rendezvous_ ? t->received : 0.0, free_[way]});
        free_[way] = start + over.network.occupied_s;
        t->arrival = free_[way] + over.network.latency_s;
      }
  }
  struct sent_tensor {
    bool gradient;
    int stage;
    transfer* t;
  };
  const schedule& order_;  ///< for its stage map
  const workload& costs_;
  bool rendezvous_;
  std::vector<std::vector<std::vector<std::string>>> rows_;
  std::vector<double> clock_, work_end_;
  std::map<std::string, transfer> transfers_;
  std::map<std::pair<std::size_t, std::size_t>, std::vector<sent_tensor>> ways_;
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> next_;
  std::map<std::pair<std::size_t, std::size_t>, double> free_;
};

schedule computations_of(schedule order) {
  order.lanes.resize(static_cast<std::size_t>(order.ranks));
  for (auto& l : order.lanes) std::erase_if(l.actions, [](const action& a) { return !is_compute(a.kind); });
  return order;
}

std::string error_of(const schedule& order) {
  try {
    (void)torch_order(order);
  } catch (const input_error& e) {
    return e.what();
  }
  return "no error";
}

const pipeline two_ranks{
    .forward_s = {0.010, 0.013}, .backward_s = {0.020, 0.027}, .transfer_s = {0.004}, .weight_backward_s = {0.009, 0.013}};

}  // namespace

TEST_CASE("torch's schedules with communication are read, checked, and written back to the letter") {
  for (const std::string name : torch_classes) {
    CAPTURE(name);
    const auto text = text_of(name);
    const auto order = parse_schedule_csv(text);
    CHECK(order.ranks == 2);
    CHECK(order.microbatches == 6);
    CHECK(check(order, {.semantics = {send_semantics::buffered}}).empty());
    CHECK(to_csv(torch_order(order)) == text);
    CHECK(parse_schedule_csv(to_csv(order)) == order);  // in our form, with posts and lanes
  }
}

TEST_CASE("torch's schedules are timed as an interpreter of their text times them") {
  random_source random(41);
  for (const std::string name : torch_classes) {
    CAPTURE(name);
    const auto text = text_of(name);
    const auto order = parse_schedule_csv(text);
    for (int k = 0; k < 20; ++k) {
      pipeline p = two_ranks;
      for (auto* list : {&p.forward_s, &p.backward_s, &p.transfer_s})
        for (double& s : *list) s *= random.uniform(0.2, 3);
      for (std::size_t i = 0; i < 2; ++i) p.weight_backward_s[i] = p.backward_s[i] * random.uniform(0.2, 0.8);
      const auto costs = make_workload(p, order);
      for (const auto semantics : {send_semantics::buffered, send_semantics::rendezvous}) {
        CAPTURE(static_cast<int>(semantics));
        const bool rendezvous = semantics == send_semantics::rendezvous;
        if (rendezvous && !check(order, {.semantics = {semantics}}).empty()) continue;
        const double expected = played_text(text, order, costs, rendezvous).makespan_s;
        CHECK(simulate(costs, order, {.semantics = semantics}).makespan_s == doctest::Approx(expected).epsilon(1e-12));
      }
    }
  }
}

TEST_CASE("receives that are posted early hold up nobody") {
  // The same transfers, but each waited for where it is listed, take far longer.
  auto text = text_of("Interleaved1F1B");
  const auto order = parse_schedule_csv(text);
  const double alone = simulate(two_ranks, computations_of(order)).makespan_s, posted = simulate(two_ranks, order).makespan_s;
  CHECK(posted == doctest::Approx(alone).epsilon(1e-12));
  auto blocking = torch_order(order);
  blocking = without_marks(blocking);
  CHECK(simulate(two_ranks, blocking).makespan_s > 1.5 * posted);
}

TEST_CASE("what is written for torch is sound and runs as the schedule does") {
  for (const auto name : schedule_names()) {
    CAPTURE(name);
    const pipeline p{.forward_s = {0.010, 0.014, 0.012, 0.008},
                     .backward_s = {0.020, 0.026, 0.024, 0.018},
                     .transfer_s = {0.001, 0.012, 0.001},
                     .weight_backward_s = {0.010, 0.013, 0.012, 0.009}};
    const auto order = build_schedule(name, p, 8);
    if (order.directions > 1) {
      CHECK(error_of(order) == "torch has no words for stages of 2 directions");
      continue;
    }
    const auto with_waits = torch_order(order);
    const auto text = to_csv(with_waits);
    for (const char* unknown : {"POST", ":", "GROUP", "RECV_F0WAIT"}) CHECK(text.find(unknown) == std::string::npos);
    const auto read = parse_schedule_csv(text);
    CHECK(check(read).empty());
    CHECK(computations_of(read) == computations_of(order));
    CHECK(to_csv(torch_order(read)) == text);
    // Every send has a wait, every stage a reduction with a wait.
    std::map<action_kind, int> counts;
    for (const auto& l : with_waits.lanes)
      for (const auto& a : l.actions) ++counts[a.kind];
    CHECK(counts[wait_send_activation] == counts[send_activation]);
    CHECK(counts[wait_send_gradient] == counts[send_gradient]);
    CHECK(counts[reduce_gradients] == order.stages);
    CHECK(counts[wait_reduction] == order.stages);
  }
}

TEST_CASE("groups become transfers one after the other; what torch lacks is refused by name") {
  const auto grouped = parse_schedule_csv(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,(1SEND_B0;1RECV_F1)GROUP,1F1,1B1,1SEND_B1\n");
  CHECK(to_csv(torch_order(grouped)) ==
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0WAIT_SEND_F0,0RECV_B1,0B1,0WAIT_SEND_F1,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n"
        "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,1WAIT_SEND_B0,1WAIT_SEND_B1\n");
  const auto order = build_schedule("1f1b", two_ranks, 2);
  CHECK(error_of(split_streams(add_transfers(order))) ==
        "torch has no words for rank 0 0SEND_F0 in a lane of its own (send) that nothing posts");
  CHECK(error_of(stage_transfers(add_transfers(order), [](int, int) { return true; })) ==
        "torch has no words for rank 0 0D2H_F0");
  CHECK(error_of(parse_schedule_csv("0F0,0R0,0B0,0OPTIMIZER\n")) == "torch has no words for rank 0 0R0");
}

TEST_CASE("waits: for receives too, and for what is not listed") {
  const auto early = parse_schedule_csv(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0B1,0WAIT_SEND_F0,0WAIT_SEND_F1\n"
      "1RECV_F0,1RECV_F1,1WAIT_RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1WAIT_SEND_B0,1WAIT_SEND_B1\n");
  CHECK(check(early).empty());
  const pipeline p{.forward_s = {1, 1}, .backward_s = {2, 2}, .transfer_s = {0.5}};
  // Both activations have come at 2.5; then rank 1 works for 6, the last gradient takes 0.5 and its backward 2.
  CHECK(simulate(p, early).makespan_s == doctest::Approx(2.5 + 6 + 0.5 + 2));
  CHECK(simulate(p, without_marks(early)).makespan_s == doctest::Approx(1.5 + 6 + 0.5 + 2));
  const auto nothing = parse_schedule_csv("0F0,0SEND_F0,0WAIT_SEND_B0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
  const auto findings = check(nothing);
  REQUIRE(findings.size() == 1);
  CHECK(findings.front() == "rank 0 0WAIT_SEND_B0 is listed, but not 0SEND_B0");
  // A wait before its send: the send is not posted before the wait has ended.
  const auto stuck = check(parse_schedule_csv("0F0,0WAIT_SEND_F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"));
  REQUIRE(!stuck.empty());
  CHECK(stuck.front() ==
        "deadlock (buffered): rank 0 0WAIT_SEND_F0 waits for rank 0 0SEND_F0, which waits for rank 0 "
        "0POST_SEND_F0, behind rank 0 0WAIT_SEND_F0");
}
