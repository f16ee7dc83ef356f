// SPDX-License-Identifier: Apache-2.0
// hetsched-reshard: the ways to move a tensor between two stages, and what each takes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <hetsched/core/units.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/io/json/cluster_json.hpp>
#include <hetsched/io/page/transfer_svg.hpp>
#include <hetsched/reshard.hpp>

#include "command.hpp"
#include "device_spec.hpp"
#include "names.hpp"

namespace {

using namespace hetsched;

struct arguments {
  std::string cluster, from, to, shape, dtype, strategy, svg;
  int outer = 0;
  bool replicated = false, json = false;
};

struct side {
  device_group group;
  hetsched::degrees degrees;
};

/// SUBCLUSTER:FIRST:NODESxDEVICES:DATA,CONTEXT,TENSOR.
side parse_side(const cluster& c, const std::string& option, std::string_view text) {
  const auto at = text.rfind(':');
  if (std::count(text.begin(), text.end(), ':') < 3)
    throw input_error(option + ": found \"" + std::string(text) +
                      "\", expected SUBCLUSTER:FIRST:NODESxDEVICES:DATA,CONTEXT,TENSOR, as in a100:0:1x8:2,1,4");
  const auto group = command::parse_group(c, option, text.substr(0, at));
  return {group, command::parse_degrees(option, text.substr(at + 1), group.mesh.device_count())};
}

/// Throws input_error if both sides have a device.
void check_apart(const cluster& c, const device_group& from, const device_group& to) {
  const int shared = std::max(from.first_device, to.first_device);
  if (from.mesh.subcluster != to.mesh.subcluster || shared >= from.first_device + from.mesh.device_count() ||
      shared >= to.first_device + to.mesh.device_count())
    return;
  const auto& s = subcluster_of(c, to.mesh);
  throw input_error("--to: device " + std::to_string(shared) + " of " + s.name + " is one of --from too");
}

constexpr std::int64_t most_messages = 1 << 22, most_lines = 100'000;

/// The most messages that a strategy makes, about.
std::int64_t messages_between(const side& from, const side& to, bool replicated) {
  const auto overlaps = [](std::int64_t a, std::int64_t b) { return a + b - std::gcd(a, b); };
  const auto rest = [&](const side& s) { return std::int64_t{s.degrees.context} * (replicated ? 1 : s.degrees.tensor); };
  // Rings: of each group of replicas, every one gets a part in every round.
  const std::int64_t copies = replicated ? to.degrees.tensor : 1, rings = to.group.mesh.device_count() * copies;
  return std::max(overlaps(from.degrees.data, to.degrees.data) * overlaps(rest(from), rest(to)) * copies, rings);
}

double bytes_of(const std::string& dtype) {
  struct type {
    std::string_view name;
    double bytes;
  };
  static constexpr type types[] = {{"fp64", 8}, {"fp32", 4}, {"tf32", 4}, {"int32", 4},
                                   {"fp16", 2}, {"bf16", 2}, {"fp8", 1},  {"int8", 1}};
  std::vector<std::string_view> names;
  for (const auto& t : types) {
    if (t.name == dtype) return t.bytes;
    names.push_back(t.name);
  }
  command::unknown_name("--dtype", dtype, names);
}

/// Throws: input_error where that makes too many messages, or --outer does not divide them.
void check_parts(const arguments& given, const side& from, const side& to) {
  const auto messages = messages_between(from, to, given.replicated);
  const auto limit = [&](const char* option, std::int64_t most) {
    if (messages > most)
      throw input_error(option + std::string(": up to ") + std::to_string(messages) + " messages, expected " +
                        std::to_string(most) + " at most");
  };
  limit("--from, --to", most_messages);
  if (!given.svg.empty()) limit("--svg", most_lines);
  if (given.outer > 0 && (from.degrees.data % given.outer != 0 || to.degrees.data % given.outer != 0))
    throw input_error("--outer: " + std::to_string(given.outer) + " does not divide both data degrees, " +
                      std::to_string(from.degrees.data) + " and " + std::to_string(to.degrees.data));
}

/// None: no name was given.
std::optional<reshard_strategy> strategy_of(const std::string& name) {
  if (name.empty()) return std::nullopt;
  if (const auto found = find_reshard_strategy(name)) return found;
  std::vector<std::string_view> names;
  for (const auto s : all_reshard_strategies) names.push_back(name_of(s));
  command::unknown_name("--strategy", name, names);
}

std::string json_text(const std::vector<reshard_choice>& all, const reshard_choice& best) {
  auto strategies = nlohmann::ordered_json::array();
  for (const auto& r : all)
    strategies.push_back({{"name", name_of(r.strategy)},
                          {"seconds", r.price.seconds},
                          {"occupied_s", r.price.occupied_s},
                          {"messages", r.price.messages},
                          {"cross_bytes", r.price.cross_bytes},
                          {"peak_extra_bytes", r.price.peak_extra_bytes},
                          {"chunks", r.plan.chunks}});
  return hetsched::detail::dump(
      nlohmann::ordered_json{{"strategies", std::move(strategies)}, {"chosen", name_of(best.strategy)}});
}

/// `best`: one of them.
std::string table(const std::vector<reshard_choice>& all, const reshard_choice& best, bytes_t memory) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& r : all)
    rows.push_back({std::string(name_of(r.strategy)), format_seconds(r.price.seconds), std::to_string(r.price.messages),
                    format_bytes(r.price.cross_bytes), format_bytes(r.price.peak_extra_bytes), std::to_string(r.plan.chunks),
                    &r == &best                         ? "chosen"
                    : r.price.peak_extra_bytes > memory ? "does not fit"
                                                        : ""});
  return format_table({"strategy", ">takes", ">messages", ">crosses", ">extra per device", ">chunks", ""}, rows);
}

int reshard_command(const arguments& given) {
  command::outputs files;
  files.expect(given.svg);
  files.reads(given.cluster);
  const auto c = read_cluster(given.cluster);
  const auto from = parse_side(c, "--from", given.from), to = parse_side(c, "--to", given.to);
  const auto shape = command::numbers_of(given.shape, ',', 3, 1, "--shape");
  const double element_bytes = bytes_of(given.dtype);
  if (static_cast<double>(shape[0]) * static_cast<double>(shape[1]) * static_cast<double>(shape[2]) > 1e18)
    throw input_error("--shape: found " + given.shape + ", expected 1e18 elements at most");
  check_apart(c, from.group, to.group);
  check_parts(given, from, to);
  const auto wanted = strategy_of(given.strategy);

  const auto layout_of = [&](const degrees& d) { return boundary_layout(d, shape[0], shape[1], shape[2], !given.replicated); };
  const auto &here = subcluster_of(c, from.group.mesh), &there = subcluster_of(c, to.group.mesh);
  const auto devices = devices_of(c, {from.group, to.group});
  if (!c.between(devices.front(), devices.back())) {
    std::cerr << "hetsched-reshard: no link joins " << here.name << " and " << there.name << '\n';
    return command::infeasible;
  }
  const auto memory = std::min(here.device.memory_bytes, there.device.memory_bytes);
  const int outer = given.outer > 0 ? given.outer : std::gcd(from.degrees.data, to.degrees.data);
  choice_options options{.outer = outer, .memory_bytes = memory};
  command::progress_line progress;
  std::vector<reshard_choice> all;
  for (const auto& strategy : all_reshard_strategies) {
    const auto done = static_cast<double>(all.size()) / static_cast<double>(all_reshard_strategies.size());
    progress.show(done, "prices " + std::string(name_of(strategy)));
    options.strategies = {&strategy, 1};
    all.push_back(
        std::move(price_strategies(c, devices, layout_of(from.degrees), layout_of(to.degrees), element_bytes, options).front()));
    if (given.svg.empty()) all.back().plan = {.chunks = all.back().plan.chunks};  // only a picture needs the messages
  }
  const auto& best = cheapest(all, memory);
  const auto& shown = wanted ? *std::find_if(all.begin(), all.end(), [&](const auto& r) { return r.strategy == *wanted; }) : best;
  const auto title =
      std::string(name_of(shown.strategy)) + ": " + given.from + " to " + given.to + ", " + format_seconds(shown.price.seconds);
  if (!given.svg.empty())
    files.add(given.svg, transfer_svg(shown.plan, c, devices, {.title = title, .element_bytes = element_bytes}));
  files.write();
  std::cout << (given.json ? json_text(all, best) : table(all, best, memory) + files.summary());
  return command::done;
}

}  // namespace

int main(int argc, char** argv) {
  command::application app(command::about("hetsched-reshard"), "hetsched-reshard");
  app.footer(
      "hetsched-reshard --cluster cluster.json --from a100:0:1x8:2,1,4 --to v100:0:1x8:8,1,1 \\\n"
      "    --shape 8,2048,4096 --dtype fp16");
  arguments given;
  app.add_option("--cluster", given.cluster, "cluster.json")->required();
  app.add_option("--from", given.from, "SUBCLUSTER:FIRST:NODESxDEVICES:DATA,CONTEXT,TENSOR of the sending stage")->required();
  app.add_option("--to", given.to, "the same of the receiving stage")->required();
  app.add_option("--shape", given.shape, "BATCH,SEQUENCE,HIDDEN of the whole tensor")->required();
  app.add_option("--dtype", given.dtype, "of an element: fp16, bf16, fp32 ...")->required();
  app.add_option("--outer", given.outer, "data parts that no stage of the pipeline mixes (what divides both data degrees)")
      ->check(CLI::Range(1, 1'000'000));
  app.add_flag("--replicated", given.replicated, "tensor ranks hold the same; else each has its part of the sequence");
  app.add_option("--svg", given.svg, "picture of who sends what to whom, to write");
  app.add_option("--strategy", given.strategy, "to draw (the chosen one)")->needs("--svg");
  app.add_flag("--json", given.json, "prints the result as JSON");
  return command::run(app, argc, argv, [&] { return reshard_command(given); });
}
