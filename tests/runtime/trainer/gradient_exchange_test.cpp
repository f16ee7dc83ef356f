// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/trainer/gradient_exchange.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/schedule/builders/named.hpp>

#include "../../sanitizer_share.hpp"
#include "../training.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using tensor = matrix<float>;
using channel = thread_communicator<tensor>;

deadline_time in(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
}

/// A model, its cuts and its ties.
struct instance {
  training_layout layout;
  std::vector<std::vector<tensor_shape>> shapes;
  std::vector<parameter_tie> ties;
};

instance random_instance(random_source& random) {
  instance i;
  const int layers = random.integer(4, 8);
  std::vector<training_layout> parts;
  for (int p = 0, pipelines = random.integer(1, 4); p < pipelines; ++p) {
    const int ranks = random.integer(1, 2);
    const char* const name = ranks == 2 && random.integer(0, 1) == 0 ? "chimera" : random.integer(0, 1) == 0 ? "1f1b" : "zb_v";
    parts.push_back(even_layout(layers, schedule_of(name, ranks, 2)));
    auto& stages = parts.back().pipelines[0].stages;
    for (std::size_t s = 1; s < stages.size(); ++s)
      stages[s - 1].last = stages[s].first = random.integer(stages[s - 1].first + 1, stages[s].last - 1);
  }
  i.layout = side_by_side(parts);
  for (int l = 0; l < layers; ++l) {
    auto& own = i.shapes.emplace_back();
    for (int n = random.integer(0, 3); n > 0; --n)
      own.push_back({static_cast<std::size_t>(random.integer(1, 2)), static_cast<std::size_t>(random.integer(1, 3))});
  }
  for (int tries = random.integer(0, 20); tries > 0; --tries) {
    const auto any = [&] {
      const int l = random.integer(0, layers - 1);
      return parameter_id{l, random.integer(0, std::max(0, static_cast<int>(i.shapes[static_cast<std::size_t>(l)].size()) - 1))};
    };
    const auto shape = [&](const parameter_id& p) {
      const auto& own = i.shapes[static_cast<std::size_t>(p.layer)];
      return own.empty() ? tensor_shape{} : own[static_cast<std::size_t>(p.number)];
    };
    const parameter_tie t{any(), any()};
    if (!shape(t.first).empty() && shape(t.first) == shape(t.second)) i.ties.push_back(t);
  }
  return i;
}

/// Of very different sizes, so that the order in which they are added shows.
tensor term(const instance& i, int step, int pipeline, const parameter_id& p) {
  const auto& shape = i.shapes[static_cast<std::size_t>(p.layer)][static_cast<std::size_t>(p.number)];
  random_source random(static_cast<std::uint64_t>(((step * 64 + pipeline) * 64 + p.layer) * 64 + p.number));
  tensor t(shape);
  for (std::size_t k = 0; k < shape[0] * shape[1]; ++k)
    t.data()[k] = static_cast<float>(random.uniform(-1, 1)) * static_cast<float>(1 << random.integer(0, 24));
  return t;
}

}  // namespace

TEST_CASE("[threads] sums are the same bits wherever the terms lie") {
  random_source random(1);
  for (int run = 0; run < 300 / sanitizer_share; ++run) {
    const auto i = random_instance(random);
    CAPTURE(run);
    CAPTURE(i.layout.ranks());
    const auto model = model_parameters(i.layout, i.shapes, i.ties);
    // Parameters that are one, found by walking the ties until nothing changes.
    std::map<parameter_id, std::set<parameter_id>> one;
    for (int l = 0; l < i.layout.layers; ++l)
      for (std::size_t n = 0; n < i.shapes[static_cast<std::size_t>(l)].size(); ++n) {
        const parameter_id p{l, static_cast<int>(n)};
        std::set<parameter_id> all{p};
        for (std::size_t before = 0; before != all.size();) {
          before = all.size();
          for (const auto& [a, b] : i.ties)
            if (all.count(a) + all.count(b) > 0) all.insert({a, b});
        }
        one.emplace(p, std::move(all));
      }
    std::set<parameter_id> counted;
    for (const auto& m : model) counted.insert(m.id);
    CHECK(counted.size() == model.size());
    for (const auto& [p, all] : one) CHECK(counted.count(*all.begin()) == 1);

    hetsched::run_on_threads(channel::connect(i.layout.ranks()), [&](channel& comm) {
      const int pipeline = i.layout.pipeline_of(comm.rank());
      std::vector<std::pair<parameter_id, tensor>> held;
      for (const int l : detail::layers_of_rank(i.layout, comm.rank()))
        for (std::size_t n = 0; n < i.shapes[static_cast<std::size_t>(l)].size(); ++n)
          held.push_back({{l, static_cast<int>(n)}, tensor(i.shapes[static_cast<std::size_t>(l)][n])});
      gradient_exchange<tensor, channel> exchange(
          model,
          [&](const gradient_term& t) {
            std::vector<tensor*> found;
            for (auto& [p, g] : held)
              if (p == t.what && pipeline == t.pipeline) found.push_back(&g);
            return found;
          },
          comm);
      for (int step = 0; step < 3; ++step) {
        for (auto& [p, g] : held) g = term(i, step, pipeline, p);
        exchange.sum(step, in(60));
        for (const auto& [p, g] : held) {
          tensor expected;
          for (int other = 0; other < static_cast<int>(i.layout.pipelines.size()); ++other)
            for (const auto& same : one.at(p)) {
              const auto t = term(i, step, other, same);
              if (expected.rows() == 0)
                expected = t;
              else
                for (std::size_t k = 0; k < t.rows() * t.columns(); ++k) expected.data()[k] += t.data()[k];
            }
          if (!(g == expected)) throw std::logic_error("rank " + std::to_string(comm.rank()) + ": " + to_text(p));
        }
      }
    });
  }
}

TEST_CASE("owners share the elements evenly") {
  const auto part = even_layout(12, schedule_of("1f1b", 1, 1));
  const auto layout = side_by_side({part, part, part});
  random_source random(2);
  std::vector<std::vector<tensor_shape>> shapes;
  std::size_t all = 0, largest = 0;
  for (int l = 0; l < 12; ++l) {
    shapes.push_back({{static_cast<std::size_t>(random.integer(1, 50))}, {static_cast<std::size_t>(random.integer(1, 50))}});
    for (const auto& s : shapes.back()) {
      all += s[0];
      largest = std::max(largest, s[0]);
    }
  }
  std::vector<std::size_t> owned(3, 0);
  for (const auto& m : model_parameters(layout, shapes, {})) owned[static_cast<std::size_t>(m.owner)] += m.shape[0];
  CHECK(owned[0] + owned[1] + owned[2] == all);
  CHECK(*std::max_element(owned.begin(), owned.end()) - *std::min_element(owned.begin(), owned.end()) <= largest);
}

TEST_CASE("[threads] an exchange that cannot end says what it waits for") {
  const auto part = even_layout(2, schedule_of("1f1b", 1, 1));
  const std::vector<std::vector<tensor_shape>> shapes{{}, {{1, 1}, {2, 2}}};
  for (const int pipelines : {2, 3})
    for (const bool aborts : {false, true}) {
      CAPTURE(pipelines);
      CAPTURE(aborts);
      const auto layout = side_by_side(std::vector<training_layout>(static_cast<std::size_t>(pipelines), part));
      const auto model = model_parameters(layout, shapes, {});
      auto ends = channel::connect(pipelines);
      const int missing = pipelines - 1;
      std::vector<std::string> texts(static_cast<std::size_t>(pipelines));
      rethrow_first(on_ranks(pipelines, [&](int r) {
        auto comm = ends[static_cast<std::size_t>(r)];
        if (r == missing) {
          if (aborts) comm.abort("rank " + std::to_string(r) + " had enough");
          return;
        }
        std::vector<tensor> gradients{tensor(1, 1), tensor(2, 2)};
        gradient_exchange<tensor, channel> exchange(
            model,
            [&](const gradient_term& t) { return std::vector<tensor*>{&gradients[static_cast<std::size_t>(t.what.number)]}; },
            comm);
        try {
          exchange.sum(7, in(aborts ? 60 : 0.05));
        } catch (const communication_error& e) {
          texts[static_cast<std::size_t>(r)] = e.what();
          CHECK((e.where.from == r || e.where.to == r));
          CHECK(e.where.what == payload::layer_gradient);
          CHECK(e.where.stage == 1);
          CHECK(e.microbatch == no_microbatch);
        }
      }));
      for (int r = 0; r < missing; ++r) {
        const auto& text = texts[static_cast<std::size_t>(r)];
        CAPTURE(text);
        CHECK(text.starts_with("rank " + std::to_string(r) + ", step 7: the sum of gradients of layer 1 "));
        CHECK((text.find("parameter 0, ") != std::string::npos || text.find("parameter 1, ") != std::string::npos));
        if (pipelines == 2 && !aborts)
          CHECK(text.find("from rank 1 to rank 0, parameter 0, has not come in time") != std::string::npos);
        CHECK((text.find("ended, as rank " + std::to_string(missing) + " had enough") != std::string::npos) == aborts);
      }
    }
}

TEST_CASE("ties of what is not there or not alike") {
  const auto layout = even_layout(2, schedule_of("1f1b", 1, 1));
  const std::vector<std::vector<tensor_shape>> shapes{{{2, 2}}, {{2, 2}, {3}}};
  CHECK(model_parameters(layout, shapes, {{{0, 0}, {1, 0}}}).size() == 2);
  CHECK_THROWS_AS((void)model_parameters(layout, shapes, {{{0, 0}, {1, 1}}}), input_error);
  CHECK_THROWS_AS((void)model_parameters(layout, shapes, {{{0, 0}, {1, 2}}}), input_error);
  CHECK_THROWS_AS((void)model_parameters(layout, shapes, {{{-1, 0}, {1, 0}}}), input_error);
  CHECK_THROWS_AS((void)model_parameters(layout, shapes, {{{0, 0}, {2, 0}}}), input_error);
}
