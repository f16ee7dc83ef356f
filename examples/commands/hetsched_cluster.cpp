// SPDX-License-Identifier: Apache-2.0
// hetsched-cluster: a cluster.json of what Slurm, nvidia-smi, NCCL and ibstat say.
#include <algorithm>
#include <charconv>
#include <cstddef>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/App.hpp>
#include <nlohmann/json.hpp>

#include <hetsched/io.hpp>

#include "command.hpp"

namespace {

using namespace hetsched;

struct arguments {
  std::string slurm, hostfile, out;
  std::vector<std::string> gpus, devices, topologies, ibstats, networks;  ///< each "VALUE" or "GROUP=VALUE"
  bool json = false;
};

/// An option's values for a group of hosts: its own, else those for all.
std::vector<std::string> values_for(const std::string& group, const std::vector<std::string>& given) {
  std::vector<std::string> own, all;
  for (const auto& text : given) {
    const auto equals = text.find('=');
    if (equals == std::string::npos)
      all.push_back(text);
    else if (text.substr(0, equals) == group)
      own.push_back(text.substr(equals + 1));
  }
  return own.empty() ? all : own;
}

void check_groups(const char* option, const std::vector<std::string>& given, const std::vector<host_group>& groups) {
  for (const auto& text : given) {
    const auto name = text.substr(0, text.find('='));
    if (name == text || std::any_of(groups.begin(), groups.end(), [&](const auto& g) { return g.name == name; })) continue;
    std::string known;
    for (const auto& g : groups) known += (known.empty() ? "" : ", ") + g.name;
    throw input_error(std::string(option) + ": there are no hosts \"" + name + "\"; known: " + known);
  }
}

template <class Number>
std::optional<Number> number_in(std::string_view text, Number least, Number most) {
  Number n{};
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (problem != std::errc() || end != text.data() + text.size() || !(n >= least && n <= most)) return {};
  return n;
}

/// "400" or "8x400": Gbit/s of each card.
std::vector<double> cards_of(const std::string& text) {
  const auto cross = text.find('x');
  const auto count = cross == std::string::npos ? 1 : number_in(std::string_view(text).substr(0, cross), 1, 64);
  const auto rate = number_in(std::string_view(text).substr(cross == std::string::npos ? 0 : cross + 1), 1e-3, 1e6);
  if (!count || !rate) throw input_error("--network: expected Gbit/s, or CARDSxGBIT as in 8x400, found \"" + text + "\"");
  return std::vector<double>(static_cast<std::size_t>(*count), *rate);
}

/// "NAME" or "NAME:COUNT".
std::vector<std::string> devices_of(const std::string& text, int otherwise) {
  const auto colon = text.rfind(':');
  const auto count =
      colon == std::string::npos ? std::optional(otherwise) : number_in(std::string_view(text).substr(colon + 1), 1, 1024);
  if (!count) throw input_error("--device: expected NAME or NAME:COUNT, found \"" + text + "\"");
  return std::vector<std::string>(static_cast<std::size_t>(*count), text.substr(0, colon));
}

/// What the options say of a group of hosts.
host_facts facts_of(const host_group& group, const arguments& given) {
  const auto one = [&](const char* option, const std::vector<std::string>& all) {
    const auto values = values_for(group.name, all);
    if (values.size() > 1) throw input_error(std::string(option) + ": given twice for hosts " + group.name);
    return values.empty() ? std::string() : values.front();
  };
  host_facts known;
  const auto gpus = one("--gpus", given.gpus), device = one("--device", given.devices),
             topology = one("--topology", given.topologies), ibstat = one("--ibstat", given.ibstats),
             network = one("--network", given.networks);
  if (!gpus.empty() && !device.empty()) throw input_error("--device: --gpus says what hosts " + group.name + " have");
  if (!ibstat.empty() && !network.empty()) throw input_error("--network: --ibstat says what hosts " + group.name + " have");
  if (!topology.empty()) known.topology = parse_topology(read_text(topology), topology);
  if (!gpus.empty()) known.gpus = parse_gpu_list(read_text(gpus), gpus);
  if (!device.empty()) known.gpus = devices_of(device, known.topology ? known.topology->gpus : std::max(group.slots, 1));
  if (!ibstat.empty()) known.nics_gbit = parse_ibstat(read_text(ibstat), ibstat);
  if (!network.empty()) known.nics_gbit = cards_of(network);
  return known;
}

int cluster_command(const arguments& given) {
  command::outputs files;
  files.expect(given.out);
  files.reads(given.hostfile);
  for (const auto* named : {&given.gpus, &given.topologies, &given.ibstats})
    for (const auto& text : *named) files.reads(text.substr(text.find('=') + 1));
  if (!given.slurm.empty() && !given.hostfile.empty()) throw input_error("--from-slurm and --hostfile: expected one of them");
  const auto groups = !given.slurm.empty()      ? parse_host_list(given.slurm)
                      : !given.hostfile.empty() ? parse_hostfile(read_text(given.hostfile), given.hostfile)
                                                : std::vector<host_group>{{.name = "host", .hosts = {"host"}}};
  const std::pair<const char*, const std::vector<std::string>*> by_group[] = {{"--gpus", &given.gpus},
                                                                              {"--device", &given.devices},
                                                                              {"--topology", &given.topologies},
                                                                              {"--ibstat", &given.ibstats},
                                                                              {"--network", &given.networks}};
  for (const auto& [option, values] : by_group) check_groups(option, *values, groups);
  std::vector<host_facts> facts;
  for (const auto& g : groups) facts.push_back(facts_of(g, given));
  const auto found = make_inventory(groups, facts);
  for (const auto& g : found.guesses) std::cerr << "hetsched-cluster: " << g << '\n';
  if (given.out.empty()) {
    std::cout << to_json(found);
    return command::done;
  }
  files.add(given.out, to_json(found));
  files.write();
  if (given.json) {
    std::cout << hetsched::detail::dump(nlohmann::ordered_json{{"files", files.paths()}, {"guesses", found.guesses}});
    return command::done;
  }
  std::vector<std::vector<std::string>> rows;
  const auto rate = [](const hetsched::link& l) { return format_number(l.bandwidth * 8e-9); };
  for (const auto& s : found.hardware.subclusters)
    rows.push_back({s.name, s.device.name, std::to_string(s.nodes), std::to_string(s.devices_per_node),
                    s.devices_per_node > 1 ? rate(s.intra_node) : "-", s.nodes > 1 ? rate(s.inter_node) : "-"});
  std::cout << format_table({"subcluster", "device", ">nodes", ">devices each", ">Gbit/s inside", ">between"}, rows)
            << files.summary();
  return command::done;
}

}  // namespace

int main(int argc, char** argv) {
  command::application app(command::about("hetsched-cluster"), "hetsched-cluster");
  app.footer(
      "hetsched-cluster --from-slurm 'gpu[01-08]' --gpus gpus.txt --topology topo.txt --out c.json\n"
      "hetsched-cluster --hostfile hosts --device A100-SXM4-80GB:8 --network 8x400");
  arguments given;
  app.add_option("--from-slurm", given.slurm, "hosts as Slurm lists them: gpu[01-08],old[1-4]");
  app.add_option("--hostfile", given.hostfile, "hosts as mpirun takes them, one on each line; without either: one host");
  app.add_option(
      "--gpus", given.gpus,
      "what nvidia-smi -L prints on a host: FILE for all hosts, or GROUP=FILE for those of that name; so with all below");
  app.add_option("--device", given.devices, "in its place: NAME or NAME:COUNT, COUNT devices on each host");
  app.add_option("--topology", given.topologies,
                 "what nvidia-smi topo -m prints on a host, or NCCL writes to NCCL_TOPO_DUMP_FILE there");
  app.add_option("--ibstat", given.ibstats, "what ibstat prints on a host");
  app.add_option("--network", given.networks, "in its place: Gbit/s of a host's network card, or of several, as in 8x400");
  app.add_option("--out", given.out, "cluster.json to write; else it is printed");
  app.add_flag("--json", given.json, "prints which file was written and what was guessed as JSON, beside --out");
  return command::run(app, argc, argv, [&] { return cluster_command(given); });
}
