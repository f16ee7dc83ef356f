// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include <hetsched/core/checksum.hpp>
#include <hetsched/cost/models/replica_profile.hpp>
#include <hetsched/runtime/group/stage_group.hpp>
#include <hetsched/runtime/measure/profile_links.hpp>

#include <gpt/shapes.hpp>
#include <train/layers.hpp>
#include <train/measure.hpp>
#include <train/model.hpp>
#include <train/on_hosts.hpp>
#ifdef HETSCHED_WITH_GLOO
#include <hetsched/gloo/mesh.hpp>
#endif
#ifdef HETSCHED_WITH_MPI
#include <train/mpi.hpp>
#endif

namespace train {

namespace {

/// What comes next, told by rank 0.
void say(measuring& m, control comm, const std::string& what) {
  if (comm.rank() == 0) m.before(what);
}

/// Ranks of one host, by the numbers of all ranks' hosts, unless each is to be a group.
std::vector<rank_group> groups_of(const std::vector<std::vector<double>>& hosts, bool each_rank) {
  std::vector<rank_group> groups;
  for (int r = 0; r < static_cast<int>(hosts.size()); ++r) {
    const bool next = r == 0 || each_rank || hosts[static_cast<std::size_t>(r)] != hosts[static_cast<std::size_t>(r) - 1];
    if (next) groups.push_back({r, r});
    groups.back().last = r;
  }
  return groups;
}

/// Ranks that follow each other compute together, all such groups at the same time. Of tensor degree number `t`; of degree 1 a
/// group of nobody.
template <class Real>
hetsched::stage_group<gpt::tensor<Real>, host_communicator<Real>> ranks_together(const measuring& m,
                                                                                 host_communicator<Real>& comm,
                                                                                 const std::vector<rank_group>& groups,
                                                                                 std::size_t t) {
  const int tensors = m.how.tensors[t];
  if (tensors < 2) return {};
  for (const auto& g : groups)
    if (g.size() % tensors != 0)
      throw known_to_all("--tensor: " + g.name() + " cannot be cut into groups of " + std::to_string(tensors));
  const auto own = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return comm.rank() <= g.last; });
  std::vector<int> members(static_cast<std::size_t>(tensors));
  std::iota(members.begin(), members.end(), comm.rank() - (comm.rank() - own->first) % tensors);
  return {comm,
          members,
          {.data = 1, .context = 1, .tensor = tensors},
          {.stage = static_cast<int>(t), .deadline_s = m.given.deadline_s}};
}

/// This rank's times and bytes, layer by layer, of each tensor degree with all microbatch sizes.
template <class Real>
std::vector<double> time_layers(measuring& m, host_communicator<Real>& comm, const std::vector<rank_group>& groups) {
  std::vector<double> mine;
  for (std::size_t t = 0; t < m.how.tensors.size(); ++t) {
    const int tensors = m.how.tensors[t];
    const auto together = ranks_together(m, comm, groups, t);
    for (const int size : m.how.microbatch_sizes) {
      const auto say_layer = [&](int layer) {
        say(m, comm,
            layer_name(m.config, layer) + ", microbatch size " + std::to_string(size) +
                (tensors > 1 ? ", tensor degree " + std::to_string(tensors) : ""));
        // Layer by layer: a rank that hangs is told from one whose layers take long.
        (void)gather(comm, {}, m.given.deadline_s, "timing layers");
      };
      const hetsched::profile_options how{.warmup = m.how.warmup, .repeats = m.how.repeats, .before_layer = say_layer};
      for (const auto& l : profile_model<Real>(m.config, m.corpus, size, how, together.tensor()))
        mine.insert(mine.end(), {l.forward.median_s, l.forward.spread_s, l.backward.median_s, l.backward.spread_s,
                                 static_cast<double>(l.parameter_bytes), static_cast<double>(l.output_bytes)});
    }
  }
  return mine;
}

/// Back from time_layers's numbers.
std::vector<std::vector<hetsched::layer_profile>> layers_of(std::span<const double> n, std::size_t layers) {
  std::vector<std::vector<hetsched::layer_profile>> by_size;
  for (std::size_t i = 0; i + 6 <= n.size(); i += 6) {
    if (by_size.empty() || by_size.back().size() == layers) by_size.emplace_back();
    by_size.back().push_back({.forward = {n[i], n[i + 1]},
                              .backward = {n[i + 2], n[i + 3]},
                              .parameter_bytes = static_cast<hetsched::bytes_t>(n[i + 4]),
                              .output_bytes = static_cast<hetsched::bytes_t>(n[i + 5])});
  }
  return by_size;
}

/// Within each group of several ranks, and between any two.
template <class Real>
std::vector<measurements::measured_link> time_links(measuring& m, host_communicator<Real>& comm,
                                                    const std::vector<rank_group>& groups) {
  const auto boundary = static_cast<std::size_t>(m.how.microbatch_sizes.back()) * static_cast<std::size_t>(m.config.sequence) *
                        static_cast<std::size_t>(m.config.hidden);
  hetsched::link_options sizes{.elements = {64, 4096, boundary, 4 * boundary}, .deadline_s = m.given.deadline_s};
  std::sort(sizes.elements.begin(), sizes.elements.end());
  sizes.elements.erase(std::unique(sizes.elements.begin(), sizes.elements.end()), sizes.elements.end());
  std::vector<measurements::measured_link> links;
  int call = 0;
  const auto time_link = [&](std::size_t a, std::size_t b, int from, int to) {
    say(m, comm, "link from rank " + std::to_string(from) + " to rank " + std::to_string(to));
    links.push_back(
        {static_cast<int>(a), static_cast<int>(b), hetsched::profile_link<gpt::tensor<Real>>(comm, from, to, call++, sizes)});
  };
  for (std::size_t a = 0; a < groups.size(); ++a) {
    const auto& g = groups[a];
    if (g.size() > 1) time_link(a, a, g.first, g.first + 1);
    for (std::size_t b = a + 1; b < groups.size(); ++b) time_link(a, b, g.first, groups[b].first);
  }
  return links;
}

/// All ranks call it. They time layers at the same time, as they would work at the same time; host: a number that tells hosts
/// apart.
template <class Real>
void measure_rank(measuring& m, host_communicator<Real>& comm, double host) {
  const auto hosts = gather(comm, {host}, m.given.deadline_s, "at the start");
  measurements found;
  found.groups = groups_of(hosts, m.how.each_rank);
  const auto shared = static_cast<double>(std::count(hosts.begin(), hosts.end(), hosts[static_cast<std::size_t>(comm.rank())]));
  std::vector<double> mine{matrix_flops<Real>(), static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
                                                     static_cast<double>(::sysconf(_SC_PAGESIZE)) / shared};
  const auto times = time_layers(m, comm, found.groups);
  mine.insert(mine.end(), times.begin(), times.end());
  for (const auto& told : gather(comm, mine, m.given.deadline_s, "timing layers")) {
    found.flops.push_back(told[0]);
    found.memory_bytes.push_back(told[1]);
    found.layers.push_back(layers_of(std::span(told).subspan(2), static_cast<std::size_t>(gpt::layer_count(m.config))));
  }
  found.links = time_links(m, comm, found.groups);
  if (comm.rank() == 0) m.found = std::move(found);
}

}  // namespace

void measure_on_hosts(measuring& m) {
  double host = 0;  // of processes, a number that tells hosts apart
  std::string name;
#ifdef HETSCHED_WITH_GLOO
  if (m.given.transport == "gloo") name = hetsched::detail::host_identity();
#endif
#ifdef HETSCHED_WITH_MPI
  if (m.given.transport == "mpi") name = host_of_mpi();
#endif
  if (!name.empty()) host = static_cast<double>(hetsched::crc64(std::as_bytes(std::span(name))) >> 11);
  if (m.wide)
    on_hosts<double>(m.given, m.place, [&](auto& comm) { measure_rank<double>(m, comm, host); });
  else
    on_hosts<float>(m.given, m.place, [&](auto& comm) { measure_rank<float>(m, comm, host); });
}

namespace {

/// FLOP/s of the layer that comes closest to its device's peak, by subcluster. 0: none has products.
double best_rate(const std::string& subcluster, const hetsched::replica_profile& costs, const hetsched::layer_chain& chain) {
  double best = 0;
  for (const auto& row : costs.rows) {
    if (row.subcluster != subcluster) continue;
    for (std::size_t l = 0; l < std::min(row.forward_s.size(), chain.layers.size()); ++l) {
      const auto& layer = chain.layers[l];
      const double flops = row.microbatch_size * (layer.forward_flops + layer.backward_flops) / row.tensor;
      if (const double took_s = row.forward_s[l] + row.backward_s[l]; took_s > 0) best = std::max(best, flops / took_s);
    }
  }
  return best;
}

}  // namespace

hetsched::cluster to_cluster(const measurements& m, const hetsched::replica_profile& costs, const gpt::config& config) {
  using namespace hetsched;
  const auto chain = make_chain(gpt::to_transformer(config, 4), granularity::block);
  cluster result;
  for (const auto& g : m.groups) {
    const auto r = static_cast<std::size_t>(g.first);
    device host{.name = "host-" + g.name(),
                .memory_bytes = static_cast<bytes_t>(m.memory_bytes[r]),
                .memory_bandwidth = 1e10};  // not measured: profiles do not need it
    // The product by itself may have been timed while others worked: a peak below what layers reach is none.
    host.peak_flops[static_cast<std::size_t>(precision::fp32)] = std::max(m.flops[r], best_rate(g.name(), costs, chain));
    if (!m.gpus.empty()) host = m.gpus[r];
    result.subclusters.push_back({.name = g.name(),
                                  .device = host,
                                  .nodes = 1,
                                  .devices_per_node = g.size(),
                                  .intra_node = {.latency_s = 0, .bandwidth = gbit_per_s(1e9)},
                                  .inter_node = {.latency_s = 0, .bandwidth = gbit_per_s(1e9)}});
  }
  // By the mean of the cards' rates: for clusters of several such nodes, of which one was here.
  double rates = 0;
  int known = 0;
  for (const auto& n : m.nics) {
    rates += n.bandwidth;
    known += n.bandwidth > 0;
  }
  for (auto& s : result.subclusters)
    if (rates > 0) {
      s.nics = known;
      s.inter_node.bandwidth = rates / known;
      if (m.nics.size() == 1) s.inter_node_path.nic = m.nics.front().name;
    }
  for (const auto& l : m.links) {
    const auto fitted = fit_link(l.samples);
    if (l.from == l.to)
      result.subclusters[static_cast<std::size_t>(l.from)].intra_node = fitted;
    else
      result.links.push_back({.a = l.from, .b = l.to, .link = fitted});
  }
  return result;
}

hetsched::replica_profile to_profile(const measurements& m, const gpt::config& config, const measure_arguments& how,
                                     int element_bytes) {
  using namespace hetsched;
  replica_profile result;
  const auto chain = make_chain(gpt::to_transformer(config, element_bytes), granularity::block);
  const auto layers = static_cast<std::size_t>(gpt::layer_count(config));
  for (std::size_t l = 0; l < layers; ++l)
    result.layers.push_back(
        {layer_name(config, static_cast<int>(l)), m.layers[0][0][l].output_bytes * how.tensors[0] / how.microbatch_sizes[0]});
  for (std::size_t l = 0; l < std::min(layers, chain.layers.size()); ++l)
    if (const auto& of = chain.layers[l]; of.shared_parameters > 0)
      result.layers[l].copy_of = copied_part{.layer = of.owner, .fraction = shared_fraction(of)};
  const std::size_t sizes = how.microbatch_sizes.size();
  for (const auto& g : m.groups)
    for (std::size_t i = 0; i < how.tensors.size() * sizes; ++i) {
      replica_row row{
          .subcluster = g.name(), .tensor = how.tensors[i / sizes], .microbatch_size = how.microbatch_sizes[i % sizes]};
      for (std::size_t l = 0; l < layers; ++l) {
        double forward_s = 0, backward_s = 0;
        for (int r = g.first; r <= g.last; ++r) {
          const auto& measured = m.layers[static_cast<std::size_t>(r)][i][l];
          forward_s += measured.forward.median_s / g.size();
          backward_s += measured.backward.median_s / g.size();
        }
        const auto parameters = m.layers[0][i][l].parameter_bytes;
        row.forward_s.push_back(forward_s);
        row.backward_s.push_back(backward_s);
        row.weight_bytes.push_back(4 * parameters + (m.half.empty() ? 0 : m.half[l]));
        row.gradient_bytes.push_back(parameters);
        if (!m.activation.empty())
          row.activation_bytes.push_back(m.activation[static_cast<std::size_t>(g.first)][i][l]);
        else
          row.activation_bytes.push_back(
              l < chain.layers.size() ? ceil_div(row.microbatch_size * chain.layers[l].activation_bytes, row.tensor) : 0);
      }
      result.rows.push_back(std::move(row));
    }
  return result;
}

}  // namespace train
