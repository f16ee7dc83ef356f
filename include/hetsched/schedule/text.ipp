// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/schedule/action_text.hpp>
#include <hetsched/schedule/posting.hpp>
#include <hetsched/schedule/text.hpp>

namespace hetsched::detail {

/// The shape that lists show: a stage lies where it is computed.
/// Complexity: O(actions): a stage that is not computed is a problem, so stages cannot outnumber actions.
[[nodiscard]] inline schedule_shape shape_of(const std::vector<lane>& lanes) {
  schedule_shape shape;
  std::size_t actions = 0;
  for (const auto& l : lanes)
    for (const auto& a : l.actions) {
      if (a.stage < 0 || a.direction < 0 || a.microbatch < no_microbatch || a.microbatch == std::numeric_limits<int>::max() ||
          a.stage == std::numeric_limits<int>::max()) {
        shape.problem = "the schedule lists " + to_text(a);
        return shape;
      }
      shape.stages = std::max(shape.stages, a.stage + 1);
      shape.directions = std::max(shape.directions, a.direction + 1);
      shape.microbatches = std::max(shape.microbatches, a.microbatch + 1);
      ++actions;
    }
  const auto stages = as_size(shape.stages);
  if (stages == 0 || stages * as_size(shape.directions) > actions) {
    shape.problem = "the rows list " + std::to_string(actions) + " actions, too few for " + std::to_string(stages) +
                    " stages of " + std::to_string(shape.directions) + " directions";
    return shape;
  }
  if (as_size(shape.microbatches) > actions) {
    shape.problem = "the rows list " + std::to_string(actions) + " actions, too few for " + std::to_string(shape.microbatches) +
                    " microbatches";
    return shape;
  }
  shape.rank_of.assign(stages * as_size(shape.directions), -1);
  for (const auto& l : lanes)
    for (const auto& a : l.actions) {
      if (!is_compute(a.kind)) continue;
      int& rank = shape.rank_of[as_size(a.direction) * stages + as_size(a.stage)];
      if (rank < 0) rank = l.rank;
      if (rank != l.rank) {
        shape.problem = "ranks " + std::to_string(rank) + " and " + std::to_string(l.rank) + " both compute stage " +
                        std::to_string(a.stage) + " of direction " + std::to_string(a.direction);
        return shape;
      }
    }
  for (std::size_t i = 0; i < shape.rank_of.size(); ++i)
    if (shape.rank_of[i] < 0) {
      shape.problem = "no row computes stage " + std::to_string(i % stages) +
                      (i < stages ? "" : " of direction " + std::to_string(i / stages));
      break;
    }
  return shape;
}

/// Reads the CSV cell by cell.
class schedule_reader {
 public:
  explicit schedule_reader(std::string_view text) : text_(text) {}

  [[nodiscard]] schedule read() {
    if (text_.empty()) throw input_error("a schedule needs at least one row, found an empty text");
    bool header = false;
    while (!text_.empty()) {
      const auto end = text_.find('\n');
      auto line = text_.substr(0, end);
      text_.remove_prefix(end == std::string_view::npos ? text_.size() : end + 1);
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      ++row_;
      if (row_ == 1 && !line.empty() && line.front() == '#') {
        header = true;
        read_header(line.substr(1));
      } else {
        read_lane(line);
      }
    }
    if (order_.ranks == 0) throw input_error("a schedule needs a row per rank, found none");
    for (const auto& at : peers_)
      if (at.rank >= order_.ranks || at.peer >= order_.ranks)
        fail(at.row, 1, at.label,
             "a lane of ranks below " + std::to_string(order_.ranks) + ", the number of rows without a label");
    if (header) {
      for (const int r : order_.rank_of)
        if (r >= order_.ranks)
          throw input_error("row 1: the placement names rank " + std::to_string(r) + ", but the rows are those of " +
                            std::to_string(order_.ranks) + " ranks");
    } else {
      auto shape = shape_of(order_.lanes);
      if (!shape.problem.empty())
        throw input_error("cannot tell the map of the stages on ranks: " + shape.problem +
                          " (a first row #microbatches:M,replicas:C,placement:R;R;... states it)");
      order_.stages = shape.stages;
      order_.directions = shape.directions;
      order_.microbatches = shape.microbatches;
      order_.rank_of = std::move(shape.rank_of);
    }
    return waits_in_compute_lanes(order_) ? unchecked::post_transfers(order_) : std::move(order_);
  }

 private:
  struct labelled {
    int row, rank, peer;
    std::string label;
  };

  [[noreturn]] static void fail(int row, int column, std::string_view found, const std::string& expected) {
    std::string shown(found.substr(0, 40));
    if (found.size() > 40) shown += "...";
    throw input_error("row " + std::to_string(row) + ", column " + std::to_string(column) + ": found \"" + shown +
                      "\", expected " + expected);
  }
  [[noreturn]] void fail(std::string_view found, const std::string& expected) const { fail(row_, column_, found, expected); }

  static std::string_view trimmed(std::string_view s) {
    while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
    while (!s.empty() && (s.back() == ' ' || s.back() == '\t')) s.remove_suffix(1);
    return s;
  }

  /// Takes what stands before the separator, and the separator.
  static std::string_view take(std::string_view& rest, char separator) {
    const auto end = rest.find(separator);
    const auto part = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    return part;
  }

  /// Takes the digits at the front of `rest`; -1 if there are none, or no number below 2^31 - 1 in its plain form.
  static int take_number(std::string_view& rest) {
    std::size_t digits = 0;
    long long value = 0;
    while (digits < rest.size() && rest[digits] >= '0' && rest[digits] <= '9') {
      if (digits < 11) value = 10 * value + (rest[digits] - '0');
      ++digits;
    }
    if (digits == 0 || digits > 10 || (digits > 1 && rest.front() == '0') || value >= std::numeric_limits<int>::max()) return -1;
    rest.remove_prefix(digits);
    return static_cast<int>(value);
  }

  /// All of `whole` as a number below `limit`.
  [[nodiscard]] int number(std::string_view cell, std::string_view whole, int limit, const char* name) const {
    const int value = take_number(whole);
    if (value < 0 || value >= limit || !whole.empty())
      fail(cell, std::string(name) + " from 0 to " + std::to_string(limit - 1) + " in plain digits");
    return value;
  }

  void read_header(std::string_view line) {
    column_ = 0;
    const auto value = [&](std::string_view name) {
      ++column_;
      auto cell = take(line, ',');
      if (cell.substr(0, name.size()) != name || cell.substr(name.size(), 1) != ":")
        fail(cell, std::string(name) + ":... as part of #microbatches:M,replicas:C,placement:R;R;...");
      return cell.substr(name.size() + 1);
    };
    const auto microbatches = value("microbatches");
    order_.microbatches = number(microbatches, microbatches, 1 << 24, "a number of microbatches");
    const auto directions = value("replicas");
    order_.directions = number(directions, directions, 1 << 15, "a number of directions");
    if (order_.directions == 0) fail(directions, "at least one direction");
    auto ranks = value("placement");
    if (!line.empty()) fail(line, "nothing after the placement");
    const auto whole = ranks;
    while (!ranks.empty()) {
      const auto part = take(ranks, ';');
      order_.rank_of.push_back(number(part, part, 1 << 24, "a rank"));
    }
    if (order_.rank_of.size() % as_size(order_.directions) != 0)
      fail(whole, "as many ranks for each of " + std::to_string(order_.directions) + " directions");
    order_.stages = static_cast<int>(order_.rank_of.size()) / order_.directions;
    stated_ = true;
  }

  void read_lane(std::string_view line) {
    lane l{.rank = order_.ranks, .stream = stream::compute, .peer = -1, .actions = {}};
    column_ = 0;
    bool first = true;
    while (first || !line.empty()) {
      ++column_;
      const auto cell = trimmed(take(line, ','));
      if (first && cell.find(':') != std::string_view::npos)
        read_label(cell, l);
      else if (!cell.empty())
        read_cell(cell, l.actions);
      first = false;
    }
    if (l.stream == stream::compute && l.peer == -1 && l.rank == order_.ranks) {
      if (order_.lanes.size() != as_size(order_.ranks))
        fail(row_, 1, "a row without a label", "the rows of ranks before those of their other lanes");
      ++order_.ranks;
    }
    order_.lanes.push_back(std::move(l));
  }

  /// rank:stream or rank:stream:peer.
  void read_label(std::string_view cell, lane& l) {
    auto rest = cell;
    l.rank = number(cell, take(rest, ':'), 1 << 24, "the rank of a lane");
    const bool has_peer = rest.find(':') != std::string_view::npos;
    const auto name = take(rest, ':');
    const auto found = std::find(std::begin(stream_names) + 1, std::end(stream_names), name);
    if (found == std::end(stream_names))
      fail(cell, "a lane such as 0:send:1, 0:receive:1, 0:d2h, 0:network:1, 0:h2d or 0:collective");
    l.stream = static_cast<stream>(found - std::begin(stream_names));
    if (has_peer) l.peer = number(cell, rest, 1 << 24, "the rank at the other end of a lane");
    peers_.push_back({row_, l.rank, l.peer, std::string(cell)});
  }

  void read_cell(std::string_view cell, std::vector<action>& out) {
    if (cell.front() != '(') {
      out.push_back(read_action(cell, cell));
      return;
    }
    const auto close = cell.find(')');
    const auto name = close == std::string_view::npos ? std::string_view{} : cell.substr(close + 1);
    if (name != "OVERLAP_F_B" && name != "GROUP")
      fail(cell, "a single action, (action;action)OVERLAP_F_B or (transfer;transfer)GROUP");
    auto rest = cell.substr(1, close - 1);
    const auto first = out.size();
    bool transfers = true;
    while (!rest.empty()) {
      out.push_back(read_action(cell, trimmed(take(rest, ';'))));
      out.back().joined = out.size() > first + 1;
      transfers = transfers && is_transfer(out.back().kind);
    }
    if (out.size() < first + 2) fail(cell, "at least two actions between the parentheses");
    if (transfers != (name == "GROUP")) fail(cell, "GROUP after transfers, and OVERLAP_F_B after anything else");
  }

  [[nodiscard]] action read_action(std::string_view cell, std::string_view text) const {
    auto rest = text;
    action a;
    a.stage = take_number(rest);
    std::size_t length = 0;
    for (int k = 0; k < action_kinds; ++k) {
      const auto name = kind_names[k];
      if (name.size() <= length || rest.substr(0, name.size()) != name) continue;
      length = name.size();
      a.kind = static_cast<action_kind>(k);
    }
    if (a.stage < 0 || length == 0)
      fail(cell, "[stage][kind][microbatch] such as 2F0, 1SEND_F3 or 0UNSHARD, numbers in plain digits and below 2147483647");
    rest.remove_prefix(length);
    const bool bare = rest.empty() || rest.front() == 'r';
    a.microbatch = bare ? no_microbatch : take_number(rest);
    if (takes_microbatch(a.kind) == bare || (!bare && a.microbatch < 0))
      fail(cell, !takes_microbatch(a.kind) ? "no microbatch after " + std::string(at(kind_names, a.kind))
                                           : "a microbatch after " + std::string(at(kind_names, a.kind)));
    if (!rest.empty()) {
      const bool marked = rest.front() == 'r';
      rest.remove_prefix(1);
      const int direction = marked ? take_number(rest) : -1;
      if (direction < 1 || direction > std::numeric_limits<std::int16_t>::max() || !rest.empty())
        fail(cell, "the end of the action, or a direction above 0 such as r1");
      a.direction = static_cast<std::int16_t>(direction);
    }
    if (stated_ && (a.stage >= order_.stages || a.direction >= order_.directions || a.microbatch >= order_.microbatches))
      fail(cell, "an action of the " + std::to_string(order_.stages) + " stages, " + std::to_string(order_.directions) +
                     " directions and " + std::to_string(order_.microbatches) + " microbatches that row 1 states");
    return a;
  }

  std::string_view text_;
  schedule order_;
  std::vector<labelled> peers_;
  int row_ = 0, column_ = 0;
  bool stated_ = false;
};

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE std::string to_csv(const schedule& order) {
  for (const auto& l : order.lanes)
    for (const auto& a : l.actions) detail::expect_kind(a.kind);
  detail::expect_count(order.ranks, "the number of ranks", 0);
  std::string out;
  const auto shape = detail::shape_of(order.lanes);
  if (!shape.problem.empty() || shape.stages != order.stages || shape.directions != order.directions ||
      shape.microbatches != order.microbatches || shape.rank_of != order.rank_of) {
    out +=
        "#microbatches:" + std::to_string(order.microbatches) + ",replicas:" + std::to_string(order.directions) + ",placement:";
    for (std::size_t i = 0; i < order.rank_of.size(); ++i) out += (i > 0 ? ";" : "") + std::to_string(order.rank_of[i]);
    out += '\n';
  }
  for (std::size_t i = 0; i < order.lanes.size(); ++i) {
    const auto& l = order.lanes[i];
    const bool unlabelled = i < as_size(order.ranks);
    if (unlabelled ? l.stream != stream::compute || l.rank != static_cast<int>(i) || l.peer != -1
                   : l.stream == stream::compute || l.rank < 0 || l.peer < -1)
      throw input_error("lane " + std::to_string(i) +
                        " is not where the text of a schedule has it: the compute lane of each rank" +
                        " in order, then other streams");
    if (!unlabelled) {
      out += std::to_string(l.rank) + ":" + std::string(at(detail::stream_names, l.stream));
      if (l.peer >= 0) out += ":" + std::to_string(l.peer);
      if (!l.actions.empty()) out += ',';
    }
    for (std::size_t k = 0; k < l.actions.size();) {
      std::size_t end = k + 1;
      bool transfers = is_transfer(l.actions[k].kind);
      while (end < l.actions.size() && l.actions[end].joined) transfers = is_transfer(l.actions[end++].kind) && transfers;
      if (k > 0) out += ',';
      if (end > k + 1) out += '(';
      for (std::size_t j = k; j < end; ++j) {
        const auto& a = l.actions[j];
        if ((j == 0 && a.joined) || a.stage < 0 || a.direction < 0 ||
            takes_microbatch(a.kind) == (a.microbatch == no_microbatch) || a.microbatch < no_microbatch)
          throw input_error("rank " + std::to_string(l.rank) + " lists an action that has no text: " + to_text(a));
        if (j > k) out += ';';
        out += to_text(a);
      }
      if (end > k + 1) out += transfers ? ")GROUP" : ")OVERLAP_F_B";
      k = end;
    }
    out += '\n';
  }
  return out;
}

HETSCHED_INLINE schedule parse_schedule_csv(std::string_view text) { return detail::schedule_reader(text).read(); }

}  // namespace hetsched
