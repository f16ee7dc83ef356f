// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/pipeline.hpp>

namespace hetsched::test {

inline std::string text(const std::vector<double>& values) {
  std::ostringstream out;
  out.precision(17);
  out << '{';
  for (std::size_t i = 0; i < values.size(); ++i) out << (i > 0 ? ", " : "") << values[i];
  out << '}';
  return out.str();
}

inline std::string text(const std::vector<int>& values) {
  std::string out = "{";
  for (std::size_t i = 0; i < values.size(); ++i) out += (i > 0 ? ", " : "") + std::to_string(values[i]);
  return out + "}";
}

/// As C++ that builds it again.
inline std::string text(const pipeline& p) {
  std::string more;
  const bool occupied = !p.transfer_occupied_s.empty() || !p.gradient_transfer_occupied_s.empty();
  if (occupied || !p.weight_backward_s.empty() || !p.activation_bytes.empty())
    more = ", " + text(p.weight_backward_s) + ", " + text(p.activation_bytes);
  if (occupied) more += ", " + text(p.transfer_occupied_s) + ", " + text(p.gradient_transfer_occupied_s);
  return "pipeline{" + text(p.forward_s) + ", " + text(p.backward_s) + ", " + text(p.transfer_s) + ", " +
         text(p.gradient_transfer_s) + more + "}";
}

/// One line per lane: F0 F1 B0 ..., I and W for the halves of a backward, + before a joined action. Where a rank has several
/// virtual stages, these come first, as in 2F0, and so does the direction behind the first, as in 1:2F0.
inline std::string text(const schedule& order) {
  static const char* const names[] = {"F",  "B",  "I",  "W",  "R",  "SF", "RF", "SB", "RB", "DF",
                                      "NF", "HF", "DB", "NB", "HB", "AG", "RL", "RS", "RG", "OP"};
  const bool plain = order.directions == 1 && order.stages == order.ranks;
  std::string out;
  for (const auto& l : order.lanes) {
    for (const auto& a : l.actions) {
      if (a.joined) out += "+";
      if (a.direction > 0) out += std::to_string(a.direction) + ":";
      if (!plain) out += std::to_string(a.stage);
      out += names[static_cast<int>(a.kind)];
      if (a.microbatch != no_microbatch) out += std::to_string(a.microbatch);
      out += " ";
    }
    out += "\n";
  }
  return out;
}

/// A schedule of one stage per rank, from the lists of its ranks, kinds and microbatches only.
struct plain_action {
  action_kind kind;
  int microbatch;
};
inline schedule plain_schedule(int microbatches, const std::vector<std::vector<plain_action>>& ranks) {
  std::vector<int> rank_of;
  for (std::size_t r = 0; r < ranks.size(); ++r) rank_of.push_back(static_cast<int>(r));
  auto order = make_schedule(static_cast<int>(ranks.size()), microbatches, rank_of);
  for (std::size_t r = 0; r < ranks.size(); ++r)
    for (const auto& a : ranks[r])
      order.lanes[r].actions.push_back({.kind = a.kind, .stage = static_cast<int>(r), .microbatch = a.microbatch});
  return order;
}

/// Forward and backward time alike on every stage, forward's share of t given; transfers 0.
inline pipeline balanced(int stages, double t, double forward_share = 1.0 / 3) {
  const auto s = static_cast<std::size_t>(stages);
  const double f = t * forward_share;
  return {std::vector<double>(s, f), std::vector<double>(s, t - f), std::vector<double>(s - 1, 0.0), {}};
}

/// Makes the transfers of a pipeline occupy their boundaries for parts of their time, some of them for all of it or none; the
/// gradients' for the same parts or others.
inline void let_transfers_overlap(random_source& random, pipeline& p) {
  const auto parts = [&](const std::vector<double>& times) {
    std::vector<double> occupied;
    for (const double t : times) occupied.push_back(t * std::clamp(random.uniform(-0.1, 1.2), 0.0, 1.0));
    return occupied;
  };
  p.transfer_occupied_s = parts(p.transfer_s);
  if (random.integer(0, 1) == 0)
    p.gradient_transfer_occupied_s = parts(p.gradient_transfer_s.empty() ? p.transfer_s : p.gradient_transfer_s);
}

/// Unbalanced stages; transfers up to 1.5 times the slowest stage, some of them 0; one pipeline in three has gradients that
/// take other times than activations, and one in three transfers, up to twice the slowest stage, that overlap.
inline pipeline random_pipeline(random_source& random, int stages) {
  pipeline p;
  for (int i = 0; i < stages; ++i) {
    p.forward_s.push_back(random.uniform(0.05, 1.0));
    p.backward_s.push_back(random.uniform(0.05, 2.0));
  }
  double slowest = 0;
  for (int i = 0; i < stages; ++i) slowest = std::max(slowest, p.compute_s(i));
  const bool overlap = random.integer(0, 2) == 0;
  const double top = random.uniform(0.0, overlap ? 2.0 : 1.5);
  const auto transfers = [&] {
    std::vector<double> times;
    for (int i = 0; i + 1 < stages; ++i) times.push_back(random.integer(0, 4) == 0 ? 0.0 : random.uniform(0.0, top) * slowest);
    return times;
  };
  p.transfer_s = transfers();
  if (random.integer(0, 2) == 0) p.gradient_transfer_s = transfers();
  if (overlap) let_transfers_overlap(random, p);
  return p;
}

/// Counts between 1 and about 3 per stage left that do not grow downstream.
inline std::vector<int> random_warmups(random_source& random, int stages) {
  std::vector<int> counts(static_cast<std::size_t>(stages));
  int count = random.integer(1, 2);
  for (auto it = counts.rbegin(); it != counts.rend(); ++it) {
    *it = count;
    count += random.integer(0, 3);
  }
  return counts;
}

}  // namespace hetsched::test
