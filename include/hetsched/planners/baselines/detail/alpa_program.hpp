// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/baselines/baselines_test.cpp.

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/baselines/detail/baseline_judge.hpp>
#include <hetsched/planners/baselines/detail/device_line.hpp>

namespace hetsched::detail {

/// Alpa's program over intervals of layers and submeshes: for each longest stage tried, the least sum of stages, from the last
/// one on, where a stage holds as many microbatches as there are stages from it to the end.
class alpa_program {
 public:
  explicit alpa_program(baseline_judge& judge)
      : judge_(judge),
        devices_(judge.hardware().device_count()),
        layers_(cluster_layers(judge)),
        clusters_(static_cast<int>(layers_.size()) - 1),
        most_stages_(std::min(devices_, clusters_)) {
    std::vector<int> order(judge.hardware().subclusters.size());
    std::iota(order.begin(), order.end(), 0);
    const device_line line(judge.hardware(), order);
    starts_.resize(as_size(devices_));
    std::set<int> counts;
    for (const auto& p : judge.placed().placements) counts.insert(p.devices);
    for (int d = 0; d < devices_; ++d)
      for (const int count : counts)
        if (const auto group = line.group(d, count))
          if (const int mesh = mesh_number(group->mesh); mesh >= 0) at(starts_, d).push_back({*group, mesh});
    take_costs();
  }

  [[nodiscard]] outcome<plan> run() {
    std::vector<double> times;
    for (const auto& c : costs_)
      if (c.placement >= 0) times.push_back(c.seconds);
    std::sort(times.begin(), times.end());
    constexpr double step = 1.01;  // times that are nearer to each other count as one
    std::vector<way> ways;
    double least = infinity, last = -1;
    for (std::size_t n = 0; n < times.size() && judge_.go_on(); ++n) {
      if (n + 1 < times.size() && times[n] <= last * step) continue;
      last = times[n] * step;
      const double rest_s = (judge_.asked().microbatches - 1) * times[n];
      if (rest_s >= least) break;
      auto found = solve(last);
      found.sum_s += rest_s;
      if (found.sum_s >= infinity) continue;
      least = std::min(least, found.sum_s);
      ways.push_back(std::move(found));
    }
    std::stable_sort(ways.begin(), ways.end(), [](const auto& a, const auto& b) { return a.sum_s < b.sum_s; });
    for (auto& w : ways) {
      if (judge_.found() || !judge_.go_on()) break;
      pipeline_plan line{.microbatches = judge_.asked().microbatches, .stages = std::move(w.stages)};
      judge_.consider({std::move(line)});
    }
    return judge_.result();
  }

 private:
  struct start {
    device_group group;
    int mesh = 0;
  };
  struct stage_choice {
    double seconds = infinity;  // on the slowest subcluster
    int placement = -1;         // on this one
  };
  struct way {
    double sum_s = infinity;
    std::vector<stage_plan> stages = {};
  };
  struct state {
    double sum_s = infinity;
    int last = 0;                  // cluster behind the first stage
    const start* first = nullptr;  // its devices
  };

  // Where clusters of layers begin and end: up to 32, of about equal time.
  [[nodiscard]] static std::vector<int> cluster_layers(const baseline_judge& judge) {
    constexpr int most = 32;
    const int layers = judge.placed().layers;
    std::vector<int> ends{0};
    if (layers <= most) {
      for (int l = 1; l <= layers; ++l) ends.push_back(l);
      return ends;
    }
    const double all = judge.table().time(0, 0, layers);
    for (int l = 1; l < layers; ++l)
      if (judge.table().time(0, 0, l) >= all * static_cast<double>(ends.size()) / most) ends.push_back(l);
    ends.push_back(layers);
    return ends;
  }

  [[nodiscard]] int mesh_number(const submesh& mesh) {
    const auto known = std::find(meshes_.begin(), meshes_.end(), mesh);
    if (known != meshes_.end()) return static_cast<int>(known - meshes_.begin());
    if (judge_.placements_on(mesh).empty()) return -1;
    meshes_.push_back(mesh);
    return static_cast<int>(meshes_.size()) - 1;
  }

  [[nodiscard]] stage_choice& cost(int mesh, int first, int last, int stages) {
    return costs_[as_size(((mesh * clusters_ + first) * clusters_ + last - 1) * most_stages_ + stages - 1)];
  }

  // Of each submesh and interval the fastest placement that holds it; its time is that of the slowest subcluster.
  void take_costs() {
    costs_.resize(meshes_.size() * as_size(clusters_) * as_size(clusters_) * as_size(most_stages_));
    const int microbatches = judge_.asked().microbatches;
    for (int first = 0; first < clusters_; ++first)
      for (int last = first + 1; last <= clusters_; ++last) {
        if (!judge_.go_on()) return;
        const layer_range range{at(layers_, first), at(layers_, last)};
        for (int stages = 1; stages <= most_stages_; ++stages) {
          std::map<std::pair<int, int>, double> slowest;  // by shape
          for (int mesh = 0; mesh < static_cast<int>(meshes_.size()); ++mesh) {
            auto& best = cost(mesh, first, last, stages);
            for (const int p : judge_.placements_on(at(meshes_, mesh))) {
              const double seconds = judge_.table().time(p, range.first, range.last);
              if (seconds < best.seconds && judge_.fits(p, range, std::min(stages, microbatches))) best = {seconds, p};
            }
            auto& of_shape = slowest[{at(meshes_, mesh).nodes, at(meshes_, mesh).devices_per_node}];
            if (best.placement >= 0) of_shape = std::max(of_shape, best.seconds);
          }
          for (int mesh = 0; mesh < static_cast<int>(meshes_.size()); ++mesh)
            if (auto& best = cost(mesh, first, last, stages); best.placement >= 0)
              best.seconds = slowest[{at(meshes_, mesh).nodes, at(meshes_, mesh).devices_per_node}];
        }
      }
  }

  // The least sum of stages that take at most so long each.
  [[nodiscard]] way solve(double longest_s) {
    const auto cell = [&](int stages, int first, int device) {
      return (as_size(stages) * as_size(clusters_ + 1) + as_size(first)) * as_size(devices_ + 1) + as_size(device);
    };
    std::vector<state> states(cell(most_stages_, clusters_, devices_) + 1);
    states[cell(0, clusters_, devices_)].sum_s = 0;
    for (int stages = 1; stages <= most_stages_; ++stages)
      for (int first = 0; first <= clusters_ - stages; ++first)
        for (int d = 0; d <= devices_ - stages; ++d) {
          auto& here = states[cell(stages, first, d)];
          for (const auto& s : at(starts_, d)) {
            const int behind = d + s.group.mesh.device_count();
            for (int last = first + 1; last <= clusters_ - (stages - 1); ++last) {
              const auto& next = states[cell(stages - 1, last, behind)];
              if (!(next.sum_s < infinity)) continue;
              const double seconds = cost(s.mesh, first, last, stages).seconds;
              if (seconds <= longest_s && seconds + next.sum_s < here.sum_s) here = {seconds + next.sum_s, last, &s};
            }
          }
        }
    int best = 1;
    for (int stages = 2; stages <= most_stages_; ++stages)
      if (states[cell(stages, 0, 0)].sum_s < states[cell(best, 0, 0)].sum_s) best = stages;
    way found{.sum_s = states[cell(best, 0, 0)].sum_s};
    if (!(found.sum_s < infinity)) return found;
    for (int stages = best, first = 0, d = 0; stages > 0; --stages) {
      const auto& here = states[cell(stages, first, d)];
      const int p = cost(here.first->mesh, first, here.last, stages).placement;
      found.stages.push_back(judge_.stage(p, here.first->group, {at(layers_, first), at(layers_, here.last)}));
      d += here.first->group.mesh.device_count();
      first = here.last;
    }
    return found;
  }

  baseline_judge& judge_;
  int devices_;
  std::vector<int> layers_;
  int clusters_, most_stages_;
  std::vector<std::vector<start>> starts_;  // groups that begin at each device of the line
  std::vector<submesh> meshes_;
  std::vector<stage_choice> costs_;  // [mesh][first cluster, last cluster][stages from here on]
};

}  // namespace hetsched::detail
