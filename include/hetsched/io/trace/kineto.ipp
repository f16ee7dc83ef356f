// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/io/json/pipeline_json.hpp>
#include <hetsched/io/json_reader.hpp>
#include <hetsched/io/trace/kineto.hpp>
#include <hetsched/io/trace/read_trace.hpp>
#include <hetsched/schedule/action_text.hpp>
#include <hetsched/schedule/detail/transfer_ends.hpp>
#include <hetsched/schedule/text.hpp>

namespace hetsched::detail {

inline constexpr std::string_view kineto_mark = "PP:";

/// The action of a mark such as PP:2F0; none for other events and for marks around several actions.
[[nodiscard]] inline std::optional<action> marked_action(std::string_view name) {
  if (!name.starts_with(kineto_mark)) return std::nullopt;
  name.remove_prefix(kineto_mark.size());
  const auto number = [&](int& value) {
    const auto [end, wrong] = std::from_chars(name.data(), name.data() + name.size(), value);
    if (wrong != std::errc{}) return false;
    name.remove_prefix(as_size(end - name.data()));
    return true;
  };
  action a;
  int stage = 0, microbatch = no_microbatch;
  if (!number(stage) || stage < 0 || stage >= max_stages) return std::nullopt;
  const auto kind_text = name.substr(0, std::min(name.find_first_of("0123456789"), name.size()));
  name.remove_prefix(kind_text.size());
  if (!name.empty() && (!number(microbatch) || !name.empty() || microbatch < 0 || microbatch >= max_microbatches))
    return std::nullopt;
  const auto* const kind = std::find(std::begin(kind_names), std::end(kind_names), kind_text);
  if (kind == std::end(kind_names)) return std::nullopt;
  a.kind = static_cast<action_kind>(kind - std::begin(kind_names));
  if (takes_microbatch(a.kind) != (microbatch != no_microbatch)) return std::nullopt;
  a.stage = stage;
  a.microbatch = microbatch;
  return a;
}

/// What one rank's trace tells.
struct kineto_rank {
  struct marked {
    action what;
    std::int64_t start_ns = 0, end_ns = 0;  ///< since `base_ns`
  };
  std::string file;
  std::optional<int> rank{};
  std::int64_t base_ns = 0;
  std::vector<marked> on_host{}, on_gpu{};  ///< of the last iteration

  [[nodiscard]] const std::vector<marked>& events() const { return on_gpu.empty() ? on_host : on_gpu; }
};

/// Keeps the last of what is marked several times, which must be equally often.
inline void keep_last_iteration(std::vector<kineto_rank::marked>& all, const std::string& file) {
  const auto key = [](const kineto_rank::marked& m) { return std::tuple(m.what.kind, m.what.stage, m.what.microbatch); };
  std::sort(all.begin(), all.end(),
            [&](const auto& a, const auto& b) { return key(a) != key(b) ? key(a) < key(b) : a.start_ns < b.start_ns; });
  std::vector<kineto_rank::marked> last;
  std::ptrdiff_t times = 0;
  for (auto i = all.begin(); i != all.end();) {
    const auto next = std::find_if(i, all.end(), [&](const auto& m) { return key(m) != key(*i); });
    if (times == 0) times = next - i;
    if (next - i != times)
      throw file_error(file, "/traceEvents",
                       to_text(all.front().what) + " is there " + std::to_string(times) + " times and " + to_text(i->what) + ' ' +
                           std::to_string(next - i) + " times, expected whole iterations");
    last.push_back(*std::prev(next));
    i = next;
  }
  all = std::move(last);
}

[[nodiscard]] inline kineto_rank read_kineto_rank(const named_text& file) {
  const json_document document(file.text, file.name);
  const auto top = document.value().object();
  kineto_rank read{.file = file.name};
  if (const auto info = top.find("distributedInfo"); info && info->object().has("rank"))
    read.rank = info->at("rank").count(0, max_stages - 1);
  if (const auto base = top.find("baseTimeNanoseconds")) read.base_ns = base->integer(0, 4'000'000'000'000'000'000);
  const auto events = top.at("traceEvents");
  for (std::size_t i = 0; i < events.size(); ++i) {
    const auto event = events[i].object();
    const auto name = event.find("name"), category = event.find("cat"), phase = event.find("ph");
    if (!name || !category || !phase || !name->is_text() || !category->is_text() || phase->text() != "X") continue;
    const bool gpu = category->text() == "gpu_user_annotation";
    if (!gpu && category->text() != "user_annotation") continue;
    const auto what = marked_action(name->text());
    if (!what || is_mark(what->kind)) continue;
    // Hosts count from their boot or from 1970: whole nanoseconds keep what a double of seconds would not.
    const auto ns = [](double us) { return static_cast<std::int64_t>(std::floor(us * 1e3 + 0.5)); };
    const auto start = ns(event.at("ts").number(-1e12, 2e15));
    (gpu ? read.on_gpu : read.on_host).push_back({*what, start, start + ns(event.at("dur").number(0, 2e15))});
  }
  if (read.events().empty())
    events.fail("no event is an action of a pipeline: torch.profiler's marks of torch.distributed.pipelining, as in PP:2F0, or " +
                std::string("complete events (ph X) with a stage and a replica in their args"));
  keep_last_iteration(read.on_host, file.name);
  keep_last_iteration(read.on_gpu, file.name);
  return read;
}

/// Whether a text is one that torch.profiler writes rather than chrome_trace().
[[nodiscard]] inline bool looks_like_kineto(std::string_view text) {
  return text.find("\"PP:") != text.npos || text.find("\"user_annotation\"") != text.npos || text.find("\"cpu_op\"") != text.npos;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE timeline parse_kineto_traces(const std::vector<named_text>& files) {
  if (files.empty()) throw input_error("expected a trace of each rank, found none");
  std::vector<detail::kineto_rank> ranks;
  for (const auto& file : files) ranks.push_back(detail::read_kineto_rank(file));
  std::stable_sort(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  for (std::size_t r = 1; r < ranks.size(); ++r)
    if (ranks[r].rank && ranks[r].rank == ranks[r - 1].rank)
      throw input_error(ranks[r].file + ": is of rank " + std::to_string(*ranks[r].rank) + ", as " + ranks[r - 1].file + " is");

  timeline t{.ranks = static_cast<int>(ranks.size()), .microbatches = 1, .actions = {}};
  std::map<int, int> rank_of;  // by stage
  std::int64_t begin_ns = std::numeric_limits<std::int64_t>::max();
  for (std::size_t r = 0; r < ranks.size(); ++r)
    for (const auto& m : ranks[r].events()) {
      begin_ns = std::min(begin_ns, ranks[r].base_ns + m.start_ns);
      if (!is_compute(m.what.kind)) continue;
      const auto [owner, is_new] = rank_of.try_emplace(m.what.stage, static_cast<int>(r));
      if (!is_new && owner->second != static_cast<int>(r))
        throw input_error(ranks[r].file + ": computes stage " + std::to_string(m.what.stage) + ", as " +
                          ranks[as_size(owner->second)].file + " does: expected the ranks of one pipeline");
    }
  for (std::size_t r = 0; r < ranks.size(); ++r)
    for (const auto& m : ranks[r].events()) {
      timed_action a{.what = m.what, .rank = static_cast<int>(r)};
      if (is_transfer(m.what.kind)) {
        // A receive is the end of another rank's send; a host's mark is of handing over.
        const auto peer = rank_of.find(m.what.stage + (moves_gradient(m.what.kind) ? -1 : 1));
        if (detail::is_receive(m.what.kind) || ranks[r].on_gpu.empty() || peer == rank_of.end() || peer->second == a.rank)
          continue;
        a.peer = peer->second;
      }
      const auto seconds = [&](std::int64_t ns) { return static_cast<double>(ranks[r].base_ns + ns - begin_ns) / 1e9; };
      a.start_s = seconds(m.start_ns);
      a.end_s = seconds(m.end_ns);
      t.microbatches = std::max(t.microbatches, a.what.microbatch + 1);
      t.actions.push_back(a);
    }
  std::stable_sort(t.actions.begin(), t.actions.end(), [](const timed_action& a, const timed_action& b) {
    if (a.rank != b.rank) return a.rank < b.rank;
    if (is_transfer(a.what.kind) != is_transfer(b.what.kind)) return is_transfer(b.what.kind);
    return a.start_s < b.start_s;
  });
  return t;
}

HETSCHED_INLINE timeline read_measured_traces(const std::vector<std::string>& paths) {
  std::vector<named_text> files;
  for (const auto& path : paths) files.push_back({path, read_text(path)});
  if (files.size() == 1 && !detail::looks_like_kineto(files.front().text)) return parse_trace(files.front().text, paths.front());
  return parse_kineto_traces(files);
}

}  // namespace hetsched
