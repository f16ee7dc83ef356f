// SPDX-License-Identifier: Apache-2.0
// Writes docs/accuracy/links-in-a-node.md: what collectives inside a node take by the constants of link kinds, fitted without the
// link that is judged, and the constants that all links together give, which are those of cost/network/link_efficiency.hpp.
// Usage: hetsched_links SOURCE [--check]     --check: status 1 if the page is another.

#include <cmath>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/units.hpp>
#include <hetsched/cost/network/link_efficiency.hpp>

#include "cases.hpp"
#include "csv.hpp"
#include "statistics.hpp"
#include "text.hpp"

namespace {

using namespace hetsched;
using namespace validation;

struct measured_collective {
  std::string source, device;
  link over;
  collective kind;
  int ranks;
  double bytes, seconds;

  [[nodiscard]] std::string group() const {
    return device + ", " + std::string(name_of(over.kind)) + text(" of %.0f Gbit/s, ", over.bandwidth * 8 / 1e9) + source;
  }
};

collective collective_of(const std::string& name) {
  for (const auto& [known, kind] : {std::pair{"all_reduce", collective::all_reduce},
                                    {"all_gather", collective::all_gather},
                                    {"reduce_scatter", collective::reduce_scatter},
                                    {"all_to_all", collective::all_to_all}})
    if (name == known) return kind;
  throw input_error("no collective is called " + name);
}

std::vector<measured_collective> read(const std::string& path) {
  std::vector<measured_collective> all;
  for (auto& r : csv_rows(path)) {
    const auto kind = find_link_kind(r["kind"]);
    if (!kind) throw input_error("no link is called " + r["kind"]);
    all.push_back({r["source"],
                   r["device"],
                   {std::stod(r["latency_us"]) * 1e-6, gbit_per_s(std::stod(r["gbit_per_s"])), *kind},
                   collective_of(r["op"]),
                   std::stoi(r["ranks"]),
                   std::stod(r["bytes"]),
                   std::stod(r["measured_us"]) * 1e-6});
  }
  return all;
}

double predicted_s(const measured_collective& m, const link_efficiency& e) {
  return nccl_collective_s(m.kind, m.ranks, m.bytes, m.over, e);
}

using rows = std::vector<const measured_collective*>;
using constants = std::map<link_kind, link_efficiency>;

// What is searched for, and of which kinds: constants of a kind alone are its shares.
struct knob {
  std::vector<link_kind> kinds;
  std::vector<double link_efficiency::*> values;
};

// Mean error by factor, as a logarithm.
double error_of(const rows& measured, const constants& all) {
  double sum = 0;
  for (const auto* m : measured) sum += std::abs(std::log(predicted_s(*m, all.at(m->over.kind)) / m->seconds));
  return sum / static_cast<double>(measured.size());
}

// One constant after the other, by ever smaller factors, until none helps.
constants fit(const rows& measured, constants all, const std::vector<knob>& knobs) {
  double best = error_of(measured, all);
  for (double factor = 1.25; factor > 1.002;) {
    bool better = false;
    for (const auto& k : knobs)
      for (const double by : {factor, 1 / factor}) {
        auto tried = all;
        for (const auto kind : k.kinds)
          for (const auto value : k.values) tried[kind].*value *= by;
        const double error = error_of(measured, tried);
        if (error >= best - 1e-9) continue;
        best = error;
        all = std::move(tried);
        better = true;
      }
    if (!better) factor = std::sqrt(factor);
  }
  return all;
}

constexpr link_kind nvlinks[] = {link_kind::nvlink, link_kind::nvlink_sharp};
constexpr link_kind pcies[] = {link_kind::pcie_p2p, link_kind::pcie};

bool is_nvlink(const measured_collective& m) {
  return m.over.kind == link_kind::nvlink || m.over.kind == link_kind::nvlink_sharp;
}

// Galvatron timed a framework's calls, of which the smallest take 50 to 110 us: no constant is fitted to them.
bool is_for_fits(const measured_collective& m) { return m.source != "Galvatron"; }

// All constants from NVLink, which is measured best; of PCIe then its shares.
constants fit_all(const rows& measured) {
  constants all;
  const std::vector<link_kind> every{nvlinks[0], nvlinks[1], pcies[0], pcies[1]};
  for (const auto kind : every)
    all[kind] = {.pair_share = 0.7, .share = 0.7, .step = 0.1, .own_part = 0.3, .fill = 4, .switch_fill = 10, .slowdown = 4};
  all[link_kind::nvlink_sharp].switch_share = 0.5;
  rows by_nvlink, by_pcie;
  for (const auto* m : measured)
    if (is_for_fits(*m)) (is_nvlink(*m) ? by_nvlink : by_pcie).push_back(m);
  using e = link_efficiency;
  all = fit(by_nvlink, all,
            {{{nvlinks[0], nvlinks[1]}, {&e::pair_share, &e::share}},
             {{link_kind::nvlink_sharp}, {&e::switch_share}},
             {every, {&e::step}},
             {every, {&e::own_part}},
             {every, {&e::fill}},
             {every, {&e::switch_fill}},
             {every, {&e::slowdown}}});
  return fit(by_pcie, all,
             {{{link_kind::pcie_p2p}, {&e::pair_share, &e::share}},
              {{link_kind::pcie}, {&e::pair_share}},
              {{link_kind::pcie}, {&e::share}}});
}

// A ring of messages at the datasheet's bandwidth.
double nominal_s(const measured_collective& m) {
  return collective_s(m.kind, collective_algorithm::ring, rank_group<>{.per_node = m.ranks, .inside = m.over}, m.bytes);
}

error_summary errors(const rows& measured, const std::function<double(const measured_collective&)>& predict) {
  std::vector<double> all;
  for (const auto* m : measured) all.push_back(predict(*m) / m->seconds - 1);
  return summarise(all);
}

std::string row(const std::string& name, const rows& measured, const constants& held_out) {
  const auto nominal = errors(measured, nominal_s);
  const auto told = errors(measured, [](const auto& m) { return predicted_s(m, efficiency_of(m.over.kind)); });
  const auto guessed = errors(measured, [](auto m) {
    m.over.latency_s = 5e-6;
    return predicted_s(m, efficiency_of(m.over.kind));
  });
  const auto held = errors(measured, [&](const auto& m) { return predicted_s(m, held_out.at(m.over.kind)); });
  return "| " + name +
         text(" | %zu | %.1f %% | %+.1f %% | %.1f %% | %.1f %% |", measured.size(), nominal.mean, nominal.bias, guessed.mean,
              told.mean) +
         text(" %.1f %% | %+.1f %% | %+.1f %% | %+.1f %% |\n", held.mean, held.bias, held.lowest, held.highest);
}

std::string constants_table(const constants& fitted) {
  std::string out =
      "| kind | share, two ranks | share, more | share by switches | step | own part | fill | fill by switches | slowdown |\n"
      "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n";
  for (const auto& [kind, e] : fitted)
    out += "| `" + std::string(name_of(kind)) +
           text("` | %.3f | %.3f | %.3f | %.3f | %.3f | %.2f | %.2f | %.2f |\n", e.pair_share, e.share, e.switch_share, e.step,
                e.own_part, e.fill, e.switch_fill, e.slowdown);
  return out;
}

// Links that are one: same medium and generation.
std::string link_of(const measured_collective& m) {
  return std::string(is_nvlink(m) ? "NVLink" : "PCIe") + text(" of %.0f Gbit/s", m.over.bandwidth * 8 / 1e9);
}

constexpr const char* heading =
    "# Links in a node\n\n"
    "What NCCL's collectives inside a node take, from 1 MB up, by the formula and the constants of "
    "[`link_efficiency`](../../include/hetsched/cost/network/link_efficiency.hpp), through the function that plans are priced by "
    "(`nccl_collective_s`). Clusters say a datasheet's bandwidth and the time of the smallest collective of two ranks, here that "
    "measured with 512 bytes (9 us on A100, 5.3 on H100, 8.8 on B200; 10 where none was measured). *Datasheet alone* is a ring "
    "of messages at the full bandwidth. *All fitted*: with the library's constants; *5 us*: with that latency in place of the "
    "measured one. *Held out*: with constants that were fitted to the other links, one of a datasheet's bandwidth at a time. The "
    "program `bench/validation/links.cpp` writes this page from `tests/data/nccl_in_a_node.csv`, and a test compares them.\n\n";

constexpr const char* remarks =
    "* Seconds of a collective: `latency (1 + step (steps - 1)) + t + f t / (t + f / (slowdown - 1))`, where `t` is what "
    "crosses a rank's link over the share of the bandwidth, `f` is `fill` latencies, and each rank's own part counts as `own "
    "part` of one "
    "that it sends. An all-reduce takes the switches (NVLS) where that is faster. All constants but the shares are those of "
    "NVLink for every link.\n"
    "* Most errors of NVLink are where NCCL changes its protocol, between 4 and 16 MB. Galvatron timed a framework's calls, of "
    "which the smallest take 50 to 110 us: nothing is fitted to them, and they are judged all the same.\n"
    "* PCIe without peer access is a matter of the machine: among four and eight L40S NCCL got 17 and 6 % of the link, among RTX "
    "PRO 6000 42 and 38 %, among P100 and M40 (NCCL 2.0, 2017) 39 %. One constant cannot be right for all. Measure such "
    "machines, and give what they reach as the link's bandwidth, with `\"kind\": \"measured\"`.\n"
    "* Measured by aiconfigurator (NCCL 2.27 and 2.29), Vidur, Galvatron and DeepBench; tests/data/README.md has the "
    "licences.\n\n[All parts](../accuracy.md).\n";

std::string verdict(const std::vector<double>& errors) {
  const double mean = summarise(errors).mean;
  return text("Goal: NVLink, held out, off by at most 15 %% on average: %.1f %%, ", mean) +
         (mean <= 15 ? "reached.\n\n" : "**missed**.\n\n");
}

std::string page_of(const std::vector<measured_collective>& measured) {
  rows all;
  std::map<std::string, rows> links;
  for (const auto& m : measured) {
    all.push_back(&m);
    links[link_of(m)].push_back(&m);
  }
  std::string table =
      "| link | rows | datasheet alone, mean | bias | all fitted, 5 us, mean | all fitted, mean | held out, mean | bias | lowest "
      "| highest |\n"
      "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n";
  std::vector<double> of_nvlink;
  for (const auto& [name, own] : links) {
    rows others;
    for (const auto* m : all)
      if (link_of(*m) != name) others.push_back(m);
    const auto held_out = fit_all(others);
    table += row("**" + name + "**", own, held_out);
    std::map<std::string, rows> groups;
    for (const auto* m : own) {
      groups[m->group()].push_back(m);
      if (is_nvlink(*m)) of_nvlink.push_back(predicted_s(*m, held_out.at(m->over.kind)) / m->seconds - 1);
    }
    for (const auto& [group, of] : groups) table += row(group, of, held_out);
  }
  return heading + verdict(of_nvlink) + table + "\nThe constants that all rows together give:\n\n" +
         constants_table(fit_all(all)) + "\n" + remarks;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const std::string source = argv[1], path = source + "/docs/accuracy/links-in-a-node.md";
  const auto page = page_of(read(source + "/tests/data/nccl_in_a_node.csv"));
  if (argc > 2) {
    std::ifstream file(path);
    if (std::string(std::istreambuf_iterator<char>(file), {}) == page) return 0;
    std::cerr << path << " is not what bench/validation/links.cpp writes\n";
    return 1;
  }
  std::ofstream(path) << page;
}
