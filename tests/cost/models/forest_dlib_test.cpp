// SPDX-License-Identifier: Apache-2.0
// dlib's forest (Boost licence) as the oracle; built with HETSCHED_DLIB. Compiled by itself, since dlib's headers take seconds.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <dlib/random_forest.h>

#include <hetsched/core/random.hpp>
#include <hetsched/cost/models/forest.hpp>

using namespace hetsched;

namespace {

using extractor = dlib::dense_feature_extractor;

struct rows {
  std::vector<double> features{}, targets{};
  std::vector<extractor::sample_type> for_dlib{};
};

// Smooth in some features, a step in one, nothing in others, some noise.
rows draw(int count, int width, double noise, random_source& random) {
  rows r;
  for (int i = 0; i < count; ++i) {
    extractor::sample_type x(width);
    for (int f = 0; f < width; ++f) {
      x(f) = random.uniform();
      r.features.push_back(x(f));
    }
    r.targets.push_back(std::sin(3 * x(0)) + 2 * (x(1) - 0.5) * (x(2) - 0.5) + (x(3) > 0.4 ? 0.5 : 0) +
                        noise * random.uniform(-1, 1));
    r.for_dlib.push_back(x);
  }
  return r;
}

}  // namespace

TEST_CASE("a forest predicts as well as dlib's, and both say about the same") {
  for (const auto& [width, noise] : {std::pair{6, 0.05}, std::pair{6, 0.5}, std::pair{12, 0.05}}) {
    random_source random(31);
    const auto shown = draw(600, width, noise, random), hidden = draw(400, width, noise, random);
    double ours = 0, theirs = 0, apart = 0;
    // One forest's error varies by a tenth with its seed.
    for (const int seed : {1, 2, 3, 4, 5, 6}) {
      dlib::random_forest_regression_trainer<extractor> trainer;
      trainer.set_num_trees(100);
      trainer.set_min_samples_per_leaf(5);
      trainer.set_feature_subsampling_fraction(1.0 / 3);
      trainer.set_seed(std::to_string(seed));
      const auto oracle = trainer.train(shown.for_dlib, shown.targets);
      // dlib splits any node of more than 5 rows, so its leaves hold half as many on average.
      const auto forest = random_forest::train(shown.features, width, shown.targets,
                                               {.least_leaf_rows = 3, .seed = static_cast<std::uint64_t>(seed)});
      for (std::size_t i = 0; i < hidden.targets.size(); ++i) {
        const auto w = static_cast<std::size_t>(width);
        const double mine = forest.predict(std::span(hidden.features).subspan(i * w, w)), other = oracle(hidden.for_dlib[i]);
        ours += std::pow(mine - hidden.targets[i], 2);
        theirs += std::pow(other - hidden.targets[i], 2);
        apart += std::pow(mine - other, 2);
      }
    }
    CAPTURE(width);
    CAPTURE(noise);
    CAPTURE(theirs);
    CAPTURE(apart);
    CHECK(ours < 1.06 * theirs);
    CHECK(theirs < 1.06 * ours);
    CHECK(apart < 0.1 * theirs);
  }
}
