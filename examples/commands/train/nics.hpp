// SPDX-License-Identifier: Apache-2.0
// What processes tell NCCL before it starts: network cards, and channels.
#pragma once

#include <stdlib.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/cuda/choose_nics.hpp>
#include <hetsched/cuda/find_nics.hpp>
#include <hetsched/cuda/hardware.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/plan/nccl_channels.hpp>

#include <train/host_number.hpp>
#include <train/place.hpp>

namespace train {

/// A rank on a GPU, or on the host: without multiprocessors.
struct nccl_rank {
  hetsched::nic_user where;
  int multiprocessors = 0;
};

/// Whether a variable of NCCL's is set, in the environment or in a file that NCCL reads for those that are not.
[[nodiscard]] inline bool is_set_for_nccl(const std::string& name) {
  if (std::getenv(name.c_str())) return true;
  const char *const own = std::getenv("NCCL_CONF_FILE"), *const home = std::getenv("HOME");
  for (const auto& file :
       {std::string("/etc/nccl.conf"), own ? std::string(own) : std::string(home ? home : "") + "/.nccl.conf"}) {
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);)
      if (line.starts_with(name + "=")) return true;
  }
  return false;
}
/// Whether a user has chosen NCCL's network cards.
[[nodiscard]] inline bool has_chosen_nics() {
  return std::any_of(std::begin(hetsched::nccl_nic_variables), std::end(hetsched::nccl_nic_variables), is_set_for_nccl);
}
/// Sets what is not set yet. Requires: NCCL has not been called, and no other thread looks at the environment.
inline void set_for_nccl(const std::vector<std::pair<std::string, std::string>>& variables) {
  for (const auto& [name, value] : variables)
    if (!is_set_for_nccl(name)) (void)::setenv(name.c_str(), value.c_str(), 1);
}

/// A rank of this process. `place`: a GPU, or -1. Throws: cuda_error.
template <class Api>
[[nodiscard]] nccl_rank find_nccl_rank(const hetsched::cuda_devices<Api>& devices, int place) {
  nccl_rank own;
  own.where.host = nccl_host_number();
  if (place < 0) return own;
  hetsched::cuda_properties found;
  hetsched::detail::require_cuda(devices.api(), devices.api().properties(place, found), "cudaGetDeviceProperties",
                                 "the choice of network cards", place);
  own.multiprocessors = found.multiprocessors;
  own.where.gpu = hetsched::find_pci_place("/sys/bus/pci/devices/" + found.pci);
  own.where.nics = hetsched::find_nics();
  own.where.is_set = has_chosen_nics();
  return own;
}

namespace detail {

/// Numbers and texts that a rank tells, one behind the other.
class told_values {
 public:
  std::vector<double> numbers;
  void put(double x) { numbers.push_back(x); }
  void put(const std::string& text) {
    put(static_cast<double>(text.size()));
    numbers.insert(numbers.end(), text.begin(), text.end());
  }
  void put(const hetsched::pci_place& place) {
    put(place.node);
    put(static_cast<double>(place.path.size()));
    for (const auto& part : place.path) put(part);
  }
  double number() { return numbers.at(next_++); }
  std::string text() {
    std::string found(static_cast<std::size_t>(number()), ' ');
    for (char& c : found) c = static_cast<char>(number());
    return found;
  }
  hetsched::pci_place place() {
    hetsched::pci_place found;
    found.node = static_cast<int>(number());
    found.path.resize(static_cast<std::size_t>(number()));
    for (auto& part : found.path) part = text();
    return found;
  }

 private:
  std::size_t next_ = 0;
};

[[nodiscard]] inline std::vector<double> to_numbers(const nccl_rank& r) {
  told_values all;
  all.put(r.multiprocessors);
  all.put(r.where.host);
  all.put(r.where.is_set);
  all.put(r.where.gpu);
  all.put(static_cast<double>(r.where.nics.size()));
  for (const auto& n : r.where.nics) {
    all.put(n.name);
    all.put(n.port);
    all.put(n.bandwidth);
    all.put(n.link_layer);
    all.put(n.place);
  }
  return all.numbers;
}
[[nodiscard]] inline nccl_rank nccl_rank_of(std::vector<double> numbers) {
  told_values all;
  all.numbers = std::move(numbers);
  nccl_rank r;
  r.multiprocessors = static_cast<int>(all.number());
  r.where.host = all.number();
  r.where.is_set = all.number() != 0;
  r.where.gpu = all.place();
  r.where.nics.resize(static_cast<std::size_t>(all.number()));
  for (auto& n : r.where.nics) {
    n.name = all.text();
    n.port = static_cast<int>(all.number());
    n.bandwidth = all.number();
    n.link_layer = all.text();
    n.place = all.place();
  }
  return r;
}

}  // namespace detail

struct nccl_setting {
  std::vector<std::pair<std::string, std::string>> variables;  ///< of this process, before NCCL starts
  int channels = 0;                                            ///< of transfers, on all ranks
  std::vector<std::string> told;                               ///< lines, of all ranks
};

/// All ranks call it. `joined`: pairs between which tensors or gradients pass; those with a rank on the host go over no NCCL.
/// `interface`: of the hosts' network, which NCCL then meets by; empty: NCCL's choice. Throws: as gather.
[[nodiscard]] inline nccl_setting choose_nccl(control comm, const nccl_rank& mine, std::vector<std::pair<int, int>> joined,
                                              const std::string& interface, double deadline_s) {
  std::vector<hetsched::nic_user> users;
  std::vector<char> on_gpu;
  int fewest = std::numeric_limits<int>::max();
  for (const auto& told : gather(comm, detail::to_numbers(mine), deadline_s, "comparing network cards")) {
    const auto rank = detail::nccl_rank_of(told);
    users.push_back(rank.where);
    on_gpu.push_back(rank.multiprocessors > 0);
    if (rank.multiprocessors > 0) fewest = std::min(fewest, rank.multiprocessors);
  }
  const auto is_on_gpu = [&](int rank) { return on_gpu[static_cast<std::size_t>(rank)] != 0; };
  std::erase_if(joined, [&](const auto& pair) { return !is_on_gpu(pair.first) || !is_on_gpu(pair.second); });
  const auto chosen = hetsched::choose_nics(users, joined);
  nccl_setting found;
  found.variables = hetsched::nccl_environment(chosen[static_cast<std::size_t>(comm.rank())]);
  if (!interface.empty()) found.variables.emplace_back("NCCL_SOCKET_IFNAME", "=" + interface);
  found.channels = hetsched::nccl_channels(fewest);
  if (joined.empty()) return found;
  found.told.push_back("NCCL: " + hetsched::nccl_channels_text(fewest));
  std::vector<std::pair<std::string, std::string>> lines;  // what is taken, and by which ranks
  for (std::size_t r = 0; r < chosen.size(); ++r) {
    if (!is_on_gpu(static_cast<int>(r))) continue;
    std::string text;
    for (const auto& n : chosen[r].nics)
      text += (text.empty() ? "" : ", ") + n.name + ":" + std::to_string(n.port) +
              (n.bandwidth > 0 ? " (" + hetsched::format_number(8e-9 * n.bandwidth) + " Gbit/s)" : "");
    text = (text.empty() ? "no network cards chosen: " : text + ", ") + chosen[r].reason;
    const auto same = std::find_if(lines.begin(), lines.end(), [&](const auto& l) { return l.first == text; });
    if (same == lines.end())
      lines.emplace_back(text, std::to_string(r));
    else
      same->second += ", " + std::to_string(r);
  }
  for (const auto& [text, ranks] : lines) found.told.push_back("NCCL: rank " + ranks + ": " + text);
  return found;
}

}  // namespace train
