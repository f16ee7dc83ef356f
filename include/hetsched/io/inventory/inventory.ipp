// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/printable.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/io/inventory/inventory.hpp>
#include <hetsched/io/json/cluster_json.hpp>
#include <hetsched/io/json/device_json.hpp>
#include <hetsched/io/json_reader.hpp>

namespace hetsched::detail {

inline constexpr std::size_t max_hosts = 20'000;

// The lines of a text, without what terminals are told (ESC [ ... m), carriage returns and blanks at their ends.
[[nodiscard]] inline std::vector<std::string> plain_lines(std::string_view text) {
  std::vector<std::string> lines(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') {
      lines.emplace_back();
    } else if (text[i] == '\x1b') {
      while (i + 1 < text.size() && text[i] != 'm' && text[i + 1] != '\n') ++i;
    } else if (text[i] != '\r') {
      lines.back() += text[i];
    }
  }
  for (auto& l : lines) {
    l.erase(0, std::min(l.size(), l.find_first_not_of(" \t")));
    l.erase(l.find_last_not_of(" \t") + 1);
  }
  return lines;
}

[[nodiscard]] inline std::vector<std::string> words(std::string_view line) {
  std::vector<std::string> all;
  for (std::size_t at = 0; (at = line.find_first_not_of(" \t", at)) != std::string_view::npos;) {
    const auto end = std::min(line.size(), line.find_first_of(" \t", at));
    all.emplace_back(line.substr(at, end - at));
    at = end;
  }
  return all;
}

template <class Number>
[[nodiscard]] std::optional<Number> number_of(std::string_view text) {
  Number n{};
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (problem != std::errc() || end != text.data() + text.size()) return {};
  return n;
}

// The number that a text begins with: "16.0 GT/s PCIe".
[[nodiscard]] inline double leading_number(std::string_view text) {
  double n = 0;
  std::from_chars(text.data(), text.data() + text.size(), n);
  return n;
}

/// A name that resolvers take, or an address.
[[nodiscard]] inline bool is_host_name(std::string_view host) {
  return !host.empty() && std::isalnum(static_cast<unsigned char>(host.front())) &&
         std::all_of(host.begin(), host.end(),
                     [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.'; });
}

[[nodiscard]] inline bool is_ipv6(std::string_view host) {
  return std::count(host.begin(), host.end(), ':') >= 2 && host.find_first_not_of("0123456789abcdefABCDEF:.") == host.npos;
}

[[nodiscard]] inline std::string group_name(std::string_view host) {
  if (is_ipv6(host)) {  // those that differ behind the last colon
    const auto end = host.find_last_not_of(':', host.rfind(':'));
    return std::string(end == host.npos ? "::" : host.substr(0, end + 1));
  }
  auto name = host.substr(0, host.find('.'));
  while (!name.empty() && std::isdigit(static_cast<unsigned char>(name.back()))) name.remove_suffix(1);
  while (!name.empty() && (name.back() == '-' || name.back() == '_')) name.remove_suffix(1);
  return std::string(name.empty() ? host.substr(0, host.find('.')) : name);
}

// "slots = 4" as "slots=4".
[[nodiscard]] inline std::string without_blanks_at_equals(std::string_view line) {
  std::string text;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const auto blank = [](char c) { return c == ' ' || c == '\t'; };
    const auto next = blank(line[i]) ? line.find_first_not_of(" \t", i) : i;
    if (blank(line[i]) && ((next != line.npos && line[next] == '=') || text.ends_with('='))) continue;
    text += line[i];
  }
  return text;
}

// Of "gpu01:8", "[fe80::1]:8", "fe80::1" or "gpu01"; no slots are "0".
[[nodiscard]] inline std::pair<std::string, std::string> host_and_slots(const std::string& cell) {
  const bool closed = cell.front() == '[' && cell.find(']') != cell.npos;
  const bool address = !closed && std::count(cell.begin(), cell.end(), ':') >= 2;
  const auto colon = address ? cell.npos : cell.find(':', closed ? cell.find(']') : 0);
  auto host = cell.substr(0, colon);
  if (closed && host.back() == ']' && is_ipv6(host.substr(1, host.size() - 2))) host = host.substr(1, host.size() - 2);
  return {std::move(host), colon == cell.npos ? "0" : cell.substr(colon + 1)};
}

inline void add_host(std::vector<host_group>& groups, const std::string& host, int slots = 0) {
  const auto name = group_name(host);
  auto found = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.name == name; });
  if (found == groups.end()) found = groups.insert(found, {.name = name, .slots = slots});
  if (found->slots != slots)
    throw input_error("host " + host + " has " + std::to_string(slots) + " slots, and " + found->hosts.front() +
                      ", which is alike, " + std::to_string(found->slots));
  if (std::find(found->hosts.begin(), found->hosts.end(), host) != found->hosts.end())
    throw input_error("host " + host + " is listed twice");
  found->hosts.push_back(host);
}

// "gpu[01-08,12]-a" is gpu01-a, ..., gpu12-a.
inline void expand_hosts(std::vector<std::string>& hosts, const std::string& before, std::string_view rest) {
  const auto fail = [&](const std::string& what) {
    throw input_error("host list: \"" + before + std::string(rest) + "\": " + what);
  };
  const auto open = rest.find_first_of("[]");
  if (open == std::string_view::npos) {
    if (hosts.size() >= max_hosts) fail("more than " + std::to_string(max_hosts) + " hosts");
    return hosts.push_back(before + std::string(rest));
  }
  const auto close = rest.find(']', open);
  if (rest[open] == ']' || close == std::string_view::npos) fail("brackets do not match");
  const auto head = before + std::string(rest.substr(0, open)), tail = std::string(rest.substr(close + 1));
  auto numbers = rest.substr(open + 1, close - open - 1);
  while (true) {
    const auto comma = std::min(numbers.size(), numbers.find(','));
    const auto range = numbers.substr(0, comma);
    const auto dash = range.find('-');
    const auto first_text = range.substr(0, dash),
               last_text = dash == std::string_view::npos ? first_text : range.substr(dash + 1);
    const auto first = number_of<int>(first_text), last = number_of<int>(last_text);
    if (!first || !last || *first < 0 || *last < *first || *last - *first >= static_cast<int>(max_hosts))
      fail("expected ranges of numbers in brackets, as in [01-08,12]");
    for (int n = *first; n <= *last; ++n) {
      auto digits = std::to_string(n);
      if (digits.size() < first_text.size()) digits.insert(0, first_text.size() - digits.size(), '0');
      expand_hosts(hosts, head + digits, tail);
    }
    if (comma == numbers.size()) return;
    numbers.remove_prefix(comma + 1);
  }
}

// The matrix of `nvidia-smi topo -m`.
[[nodiscard]] inline host_topology topology_of_matrix(const std::vector<std::string>& lines, std::string_view file) {
  const auto fail = [&](const std::string& what) { throw file_error(std::string(file), {}, what); };
  const auto is_named = [](const std::string& word, std::string_view kind) {
    return word.starts_with(kind) && word.size() > kind.size() && number_of<int>(std::string_view(word).substr(kind.size()));
  };
  const auto is_card = [&](const std::string& word) { return is_named(word, "NIC") || word.starts_with("mlx"); };
  std::vector<std::string> head;
  std::map<std::string, std::map<std::string, std::string>> joined;  // GPU by GPU
  host_topology found;
  for (const auto& line : lines) {
    const auto cells = words(line);
    if (cells.empty()) continue;
    if (head.empty()) {
      if (!is_named(cells[0], "GPU")) continue;
      head = cells;
      found.nics_gbit.assign(as_size(std::count_if(head.begin(), head.end(), is_card)), 0);
    } else if (is_named(cells[0], "GPU")) {
      for (std::size_t c = 0; c + 1 < cells.size() && c < head.size() && (is_named(head[c], "GPU") || is_card(head[c])); ++c)
        if (is_named(head[c], "GPU")) joined[cells[0]][head[c]] = cells[c + 1];
    }
  }
  found.gpus = static_cast<int>(std::count_if(head.begin(), head.end(), [&](const auto& w) { return is_named(w, "GPU"); }));
  if (found.gpus == 0) fail("expected the matrix of nvidia-smi topo -m, or NCCL's topology as XML");
  if (static_cast<int>(joined.size()) != found.gpus)
    fail("expected rows of " + std::to_string(found.gpus) + " GPUs, found " + std::to_string(joined.size()));
  std::set<std::string> reached{joined.begin()->first};
  int fewest = 0, most = 0, pairs = 0, all_of_one = 0;
  for (const auto& [gpu, row] : joined) {
    if (static_cast<int>(row.size()) != found.gpus)
      fail(gpu + ": expected a cell for each of " + std::to_string(found.gpus) + " GPUs");
    int links = 0;
    for (const auto& [other, how] : row) {
      if (other == gpu || !how.starts_with("NV")) continue;
      const auto count = number_of<int>(std::string_view(how).substr(2));
      if (!count || *count < 1) fail(gpu + ": " + how + " is no number of NVLinks");
      links += *count;
      fewest = fewest == 0 ? *count : std::min(fewest, *count);
      most = std::max(most, *count);
      ++pairs;
    }
    all_of_one = all_of_one == 0 || links == 0 ? links : std::min(all_of_one, links);
  }
  for (std::size_t known = 0; known != reached.size();) {  // what NVLinks reach from the first GPU
    known = reached.size();
    for (const auto& [gpu, row] : joined)
      if (reached.contains(gpu))
        for (const auto& [other, how] : row)
          if (other != gpu && how.starts_with("NV")) reached.insert(other);
  }
  found.in_pairs = pairs > 0 && static_cast<int>(reached.size()) < found.gpus;
  if (pairs == 0 || found.in_pairs) return found;
  // To a switch each pair has all links of a GPU; without one each has its own. No chip has more than 18.
  constexpr int most_links = 18;
  const bool switched = fewest == most && pairs == found.gpus * (found.gpus - 1) && fewest * (found.gpus - 1) > most_links;
  found.nvlinks = switched ? fewest : all_of_one;
  return found;
}

// NCCL's topology: elements with attributes, of which some are looked at.
[[nodiscard]] inline host_topology topology_of_xml(std::string_view text, std::string_view file) {
  host_topology found;
  int links = -1;  // of the GPU with the fewest
  int own = 0;     // of the one that is read
  double pcie = 0;
  const auto attribute = [](std::string_view element, std::string_view name) -> std::string_view {
    const auto key = " " + std::string(name) + "=\"";
    const auto at = element.find(key);
    if (at == std::string_view::npos) return {};
    const auto begin = at + key.size();
    return element.substr(begin, element.find('"', begin) - begin);
  };
  for (std::size_t at = 0; (at = text.find('<', at)) != std::string_view::npos;) {
    const auto end = std::min(text.size(), text.find('>', at));
    const auto element = text.substr(at + 1, end - at - 1);
    at = end;
    const auto name = element.substr(0, element.find_first_of(" \t\n/"));
    if (name == "pci") {
      pcie = leading_number(attribute(element, "link_speed")) * leading_number(attribute(element, "link_width"));
    } else if (name == "gpu") {
      ++found.gpus;
      own = 0;
      if (element.ends_with('/')) links = 0;
      if (pcie > 0) found.pcie_gbit_per_s = found.pcie_gbit_per_s > 0 ? std::min(found.pcie_gbit_per_s, pcie) : pcie;
    } else if (name == "nvlink") {
      own += static_cast<int>(leading_number(attribute(element, "count")));
    } else if (element.starts_with("/gpu")) {
      links = links < 0 ? own : std::min(links, own);
    } else if (name == "net" && attribute(element, "name") != "lo") {
      found.nics_gbit.push_back(leading_number(attribute(element, "speed")) / 1000);
    }
  }
  if (found.gpus == 0) throw file_error(std::string(file), {}, "expected a topology of NCCL with at least one gpu");
  found.nvlinks = std::max(links, 0);
  // Of 128b/130b; NCCL says the raw rate.
  found.pcie_gbit_per_s = found.pcie_gbit_per_s * 128 / 130;
  return found;
}

// Nominal figures by the maker's name of a chip's generation, per direction: of an NVLink, and of 16 lanes of PCIe.
struct generation_links {
  std::string_view generation;
  double nvlink_gbit, pcie_gbit;
};
inline constexpr std::array<generation_links, 7> links_by_generation{{{"Pascal", 160, 126},
                                                                      {"Volta", 200, 126},
                                                                      {"Turing", 200, 126},
                                                                      {"Ampere", 200, 252},
                                                                      {"Ada", 200, 252},
                                                                      {"Hopper", 200, 504},
                                                                      {"Blackwell", 400, 504}}};
[[nodiscard]] inline generation_links links_of(const device& d) {
  for (const auto& l : links_by_generation)
    if (d.generation.starts_with(l.generation)) {
      auto own = l;
      if (d.memory_type == "GDDR6X") own.nvlink_gbit = 112.5;  // bridges of the RTX 3090
      return own;
    }
  return {"", 200, 126};
}

struct link_guess {
  hetsched::link link{};
  int count = 1;
  std::string text{};  ///< empty: known
};

[[nodiscard]] inline link_guess link_in_node(const device& d, const host_facts& known) {
  const auto nominal = links_of(d);
  link_guess guess{.link = {.latency_s = 9e-6}};
  const auto& t = known.topology;
  if (t && t->nvlinks > 0) {
    guess.link.bandwidth = gbit_per_s(t->nvlinks * nominal.nvlink_gbit);
  } else {
    const bool told = t && t->pcie_gbit_per_s > 0;
    guess.link.bandwidth = gbit_per_s(told ? t->pcie_gbit_per_s : nominal.pcie_gbit);
    if (!told) guess.text = "16 lanes of PCIe of its generation";
    if (!t) guess.text += "; nothing says what joins its devices (--topology)";
    if (t && t->in_pairs)
      guess.text += "; pairs have NVLink, which stages of two would use if each pair were a subcluster's node of its own";
  }
  guess.link.kind = usual_link_kind(d, guess.link.bandwidth);
  return guess;
}

[[nodiscard]] inline link_guess link_between_nodes(const host_facts& known) {
  auto rates = known.nics_gbit;
  if (rates.empty() && known.topology) rates = known.topology->nics_gbit;
  link_guess guess{.link = {.latency_s = 1e-5}, .count = std::max(1, static_cast<int>(rates.size()))};
  const double slowest = rates.empty() ? 0 : *std::min_element(rates.begin(), rates.end());
  guess.link.bandwidth = gbit_per_s(slowest > 0 ? slowest : rates.empty() ? 10 : 100);
  if (slowest > 0) return guess;
  if (rates.empty()) guess.link.latency_s = 5e-5;
  guess.text = (rates.empty() ? "Ethernet of 10 Gbit/s; nothing says what joins its nodes"
                              : std::to_string(rates.size()) + " network cards of 100 Gbit/s each; nothing says their rates") +
               std::string(" (--ibstat, --network)");
  return guess;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE std::vector<host_group> parse_host_list(std::string_view text) {
  std::vector<std::string> hosts;
  int depth = 0;
  std::size_t begin = 0;
  const auto item = [&](std::size_t end) {
    const auto all = detail::words(text.substr(begin, end - begin));
    if (all.size() > 1) throw input_error("host list: blanks between hosts: expected commas");
    if (!all.empty()) detail::expand_hosts(hosts, {}, all.front());
    begin = end + 1;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    depth += text[i] == '[' ? 1 : text[i] == ']' ? -1 : 0;
    if (text[i] == ',' && depth == 0) item(i);
  }
  item(text.size());
  if (hosts.empty()) throw input_error("host list: expected hosts, as in gpu[01-08],old1");
  std::vector<host_group> groups;
  for (const auto& h : hosts) detail::add_host(groups, h);
  return groups;
}

HETSCHED_INLINE std::vector<host_group> parse_hostfile(std::string_view text, std::string_view file) {
  std::vector<host_group> groups;
  std::size_t number = 0;
  for (const auto& line : detail::plain_lines(text)) {
    ++number;
    const auto cells = detail::words(detail::without_blanks_at_equals(std::string_view(line).substr(0, line.find('#'))));
    if (cells.empty()) continue;
    try {
      auto [host, slots] = detail::host_and_slots(cells[0]);
      for (std::size_t i = 1; i < cells.size(); ++i) {
        if (cells[i].starts_with("slots=")) slots = cells[i].substr(6);
        if (cells[i].find('=') == std::string::npos)
          throw input_error("found \"" + detail::excerpt(printable(cells[i])) + "\" behind a host, expected slots=N");
      }
      if (!detail::is_host_name(host) && !detail::is_ipv6(host))
        throw input_error("\"" + detail::excerpt(printable(host)) + "\" is no name of a host, expected letters, digits, - _ .");
      const auto count = detail::number_of<int>(slots);
      if (!count || *count < 0) throw input_error("\"" + printable(slots) + "\" is no number of slots");
      detail::add_host(groups, host, *count);
    } catch (const file_error&) {
      throw;
    } catch (const input_error& wrong) {
      throw file_error(std::string(file), {}, "line " + std::to_string(number) + ": " + wrong.what());
    }
  }
  if (groups.empty()) throw file_error(std::string(file), {}, "expected hosts, one on each line");
  return groups;
}

HETSCHED_INLINE std::vector<std::string> parse_gpu_list(std::string_view text, std::string_view file) {
  std::vector<std::string> names;
  for (const auto& line : detail::plain_lines(text)) {
    if (line.starts_with("MIG ")) throw file_error(std::string(file), {}, "GPUs in slices (MIG) cannot be planned for: " + line);
    const auto colon = line.find(": ");
    if (!line.starts_with("GPU ") || colon == std::string::npos) continue;
    const auto end = std::min(line.size(), line.find(" (UUID", colon));
    names.push_back(line.substr(colon + 2, end - colon - 2));
  }
  if (names.empty())
    throw file_error(std::string(file), {}, "expected lines as nvidia-smi -L prints them: \"GPU 0: NVIDIA A100 ...\"");
  return names;
}

HETSCHED_INLINE host_topology parse_topology(std::string_view text, std::string_view file) {
  const auto begin = text.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (begin != std::string_view::npos && text[begin] == '<') return detail::topology_of_xml(text, file);
  return detail::topology_of_matrix(detail::plain_lines(text), file);
}

HETSCHED_INLINE std::vector<double> parse_ibstat(std::string_view text, std::string_view file) {
  std::vector<double> rates;
  bool active = false;
  for (const auto& line : detail::plain_lines(text)) {
    if (line.starts_with("State:")) active = line.ends_with("Active");
    if (!line.starts_with("Rate:") || !active) continue;
    const double rate = detail::leading_number(line.substr(std::min(line.size(), line.find_first_not_of(" \t", 5))));
    if (rate > 0) rates.push_back(rate);
  }
  if (rates.empty()) throw file_error(std::string(file), {}, "expected active ports with their rates, as ibstat prints them");
  return rates;
}

HETSCHED_INLINE inventory make_inventory(const std::vector<host_group>& groups, const std::vector<host_facts>& facts) {
  if (groups.size() != facts.size())
    throw input_error("there are facts of " + std::to_string(facts.size()) + " groups of hosts, expected " +
                      std::to_string(groups.size()));
  inventory found;
  std::vector<std::size_t> group_of;
  const auto guess = [&](const std::string& place, const std::string& text) {
    if (!text.empty()) found.guesses.push_back(place + ": guessed, " + text);
  };
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& known = facts[g];
    if (known.gpus.empty())
      throw input_error("hosts " + groups[g].name + ": nothing says what their devices are (--gpus, --device)");
    if (const auto& t = known.topology; t && t->gpus != static_cast<int>(known.gpus.size()))
      throw input_error("hosts " + groups[g].name + ": " + std::to_string(known.gpus.size()) + " devices, and a topology of " +
                        std::to_string(t->gpus));
    if (groups[g].slots > 0 && groups[g].slots != static_cast<int>(known.gpus.size()))
      throw input_error("hosts " + groups[g].name + ": " + std::to_string(known.gpus.size()) + " devices, and " +
                        std::to_string(groups[g].slots) + " slots");
    std::vector<std::string> kinds;
    for (const auto& name : known.gpus)
      if (std::find(kinds.begin(), kinds.end(), name) == kinds.end()) kinds.push_back(name);
    for (const auto& name : kinds) {
      const auto device = find_device(name);
      if (!device)
        throw input_error("hosts " + groups[g].name + ": " + detail::unknown_device_text(name, detail::catalogue_names()));
      const auto place = "/subclusters/" + std::to_string(found.hardware.subclusters.size());
      const auto in_node = detail::link_in_node(*device, known), between = detail::link_between_nodes(known);
      subcluster s{.name = groups[g].name + (kinds.size() > 1 ? "-" + device->name : ""),
                   .device = *device,
                   .nodes = static_cast<int>(groups[g].hosts.size()),
                   .devices_per_node = static_cast<int>(std::count(known.gpus.begin(), known.gpus.end(), name)),
                   .intra_node = in_node.link,
                   .inter_node = between.link,
                   .nics = between.count};
      if (s.devices_per_node > 1) guess(place + "/intra_node", in_node.text);
      if (s.nodes > 1) guess(place + "/inter_node", between.text);
      found.hardware.subclusters.push_back(std::move(s));
      group_of.push_back(g);
    }
  }
  auto& all = found.hardware;
  for (std::size_t a = 0; a < all.subclusters.size(); ++a)
    for (std::size_t b = a + 1; b < all.subclusters.size(); ++b) {
      const bool same_host = group_of[a] == group_of[b];
      const auto ends = [&](const subcluster& s) { return same_host ? s.intra_node : s.inter_node; };
      const auto one = ends(all.subclusters[a]), other = ends(all.subclusters[b]);
      const auto place = "/links/" + std::to_string(all.links.size());
      all.links.push_back({.a = static_cast<int>(a),
                           .b = static_cast<int>(b),
                           .link = {.latency_s = std::max(one.latency_s, other.latency_s),
                                    .bandwidth = std::min(one.bandwidth, other.bandwidth)}});
      guess(place, same_host ? "what joins devices of one kind in the node" : "the slower network of the two");
    }
  return found;
}

HETSCHED_INLINE std::string to_json(const inventory& found) {
  nlohmann::ordered_json out = detail::document_of(to_json(found.hardware));
  out.erase("devices");  // the catalogue has them
  if (found.hardware.links.empty()) out.erase("links");
  for (std::size_t k = 0; k < found.hardware.subclusters.size(); ++k) {
    const auto& s = found.hardware.subclusters[k];
    if (s.devices_per_node == 1) out["subclusters"][k].erase("intra_node");
    if (s.nodes > 1) continue;
    out["subclusters"][k].erase("inter_node");
    out["subclusters"][k].erase("nics");
  }
  if (!found.guesses.empty()) out["notes"] = found.guesses;
  return detail::dump(out);
}

}  // namespace hetsched
