// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <vector>

#include "../interop_dp/brute_force.hpp"
#include "../interop_dp/random_instance.hpp"

namespace hetsched::test {

/// How long one pipeline takes: as it is played, or by its latency and periods.
enum class measure { played, periods };

/// The least iterations of single pipelines, by the devices that they use, for 1 to M microbatches; and of sets of pipelines that
/// share nothing, on so many devices or less.
class brute_sets {
 public:
  template <class Costs>
  brute_sets(const cluster& hardware, const Costs& costs, const brute_force_options& options, measure how)
      : microbatches_(static_cast<std::size_t>(options.microbatches)) {
    for (const auto& s : hardware.subclusters) devices_.push_back(s.device_count());
    all_plans<Costs> plans(hardware, costs, options);
    plans.each([](const bare_plan&) { return true; },
               [&](const bare_plan& p) {
                 auto used = devices_;
                 for (std::size_t k = 0; k < used.size(); ++k) used[k] -= plans.left()[k];
                 auto& cells = alone_[used];
                 cells.resize(microbatches_ + 1, never);
                 for (int m = 1; m <= options.microbatches; ++m) {
                   auto& least = cells[static_cast<std::size_t>(m)];
                   const double slowest = *std::max_element(p.compute.begin(), p.compute.end());
                   if (std::max(p.latency(), m * slowest) * (1 - 1e-9) >= least) continue;
                   const auto period = least_period_of(options.rule, p, m, options.epsilon);
                   if (!period) continue;
                   least = std::min(least, how == measure::played ? iteration_of(options.rule, p, *period, m, options.epsilon)
                                                                  : p.latency() + (m - 1) * *period + p.end());
                 }
               });
  }

  /// The least iteration of any set on so many devices; infinity if there is none.
  [[nodiscard]] double least(const std::vector<int>& devices) { return of(devices)[microbatches_]; }

 private:
  // By microbatches. A set is a pipeline and a set on the devices that it leaves.
  const std::vector<double>& of(const std::vector<int>& devices) {
    if (const auto known = sets_.find(devices); known != sets_.end()) return known->second;
    std::vector<double> best(microbatches_ + 1, never);
    best[0] = 0;
    for (const auto& [used, cells] : alone_) {
      auto rest = devices;
      bool fits = true;
      for (std::size_t k = 0; k < rest.size(); ++k) fits = (rest[k] -= used[k]) >= 0 && fits;
      if (!fits) continue;
      const auto others = of(rest);
      for (std::size_t all = 1; all <= microbatches_; ++all)
        for (std::size_t own = 1; own <= all; ++own) best[all] = std::min(best[all], std::max(cells[own], others[all - own]));
    }
    return sets_.emplace(devices, std::move(best)).first->second;
  }

  std::size_t microbatches_;
  std::vector<int> devices_;
  std::map<std::vector<int>, std::vector<double>> alone_, sets_;
};

}  // namespace hetsched::test
