// SPDX-License-Identifier: Apache-2.0
// Checkpoints of trainings whose stages are groups: written under some degrees and cuts, loaded under others.
#include <hetsched/io/checkpoint/checkpoint.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include <hetsched/runtime/group/stage_group.hpp>
#include <hetsched/runtime/layer/parameter_cut.hpp>

#include "../../runtime/set_groups.hpp"
#include "../../runtime/training.hpp"
#include "partial_load.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using tensor = matrix<float>;
using channel = thread_communicator<tensor>;
constexpr int layer_count = 4, rows = 4;

/// The whole parameters of every layer: the first is cut unevenly in one dimension or the other, the second by pieces, the third
/// is whole.
const std::vector<tensor_shape> shapes{{5, 6}, {2, 7}, {1, 3}};
const std::vector<std::int64_t> pieces{0, 3, 7};

/// y = x; an element's gradient is a number of its own times the sum of what goes back.
struct cut_layer {
  struct context {};
  cut_layer(int layer, int position, int count) {
    for (std::size_t n = 0; n < shapes.size(); ++n) {
      const auto whole_rows = shapes[n][0], whole_columns = shapes[n][1];
      cuts.emplace_back();
      std::vector<std::size_t> kept;
      const std::size_t d = n == 1 ? 1 : static_cast<std::size_t>(layer % 2);
      if (count > 1 && n < 2) {
        cuts[n].dimension = static_cast<int>(d);
        const auto borders = n == 1 ? pieces : std::vector<std::int64_t>{0, static_cast<std::int64_t>(shapes[n][d])};
        for (std::size_t k = 1; k < borders.size(); ++k) {
          const std::vector<double> shares{1, 2, 1.5};
          const auto points = cut_points(borders[k] - borders[k - 1], std::span(shares).first(static_cast<std::size_t>(count)));
          const auto p = static_cast<std::size_t>(position);
          cuts[n].pieces.push_back(static_cast<std::size_t>(points[p + 1] - points[p]));
          for (auto i = points[p]; i < points[p + 1]; ++i) kept.push_back(static_cast<std::size_t>(borders[k - 1] + i));
        }
      } else {
        for (std::size_t i = 0; i < shapes[n][d]; ++i) kept.push_back(i);
      }
      const std::size_t held_rows = d == 0 ? kept.size() : whole_rows, held_columns = d == 1 ? kept.size() : whole_columns;
      parameter.emplace_back(held_rows, held_columns);
      sum.emplace_back(held_rows, held_columns);
      slope.emplace_back(held_rows, held_columns);
      for (std::size_t r = 0; r < held_rows; ++r)
        for (std::size_t c = 0; c < held_columns; ++c) {
          const auto element = (d == 0 ? kept[r] : r) * whole_columns + (d == 1 ? kept[c] : c);
          random_source random(static_cast<std::uint64_t>(layer) * 100000 + n * 1000 + element);
          parameter[n](r, c) = static_cast<float>(random.uniform(-1, 1));
          slope[n](r, c) = static_cast<float>(random.uniform(-1, 1));
        }
    }
  }
  tensor forward(const tensor& x, context&) { return x; }
  tensor backward(const tensor& dy, context&) {
    float all = 0;
    for (std::size_t k = 0; k < dy.rows() * dy.columns(); ++k) all += dy.data()[k];
    for (std::size_t n = 0; n < sum.size(); ++n)
      for (std::size_t k = 0; k < sum[n].rows() * sum[n].columns(); ++k) sum[n].data()[k] += slope[n].data()[k] * all;
    return dy;
  }
  std::vector<tensor>& parameters() { return parameter; }
  std::vector<tensor>& gradients() { return sum; }
  std::vector<parameter_cut>& parameter_cuts() { return cuts; }

  std::vector<tensor> parameter, sum, slope;
  std::vector<parameter_cut> cuts;
};

struct way {
  const char* name;
  training_layout layout;
  bool shards = false;
};

training_layout grouped(const char* schedule, const std::vector<degrees>& groups, const std::vector<int>& zero = {}) {
  auto t = even_layout(layer_count, schedule_of(schedule, static_cast<int>(groups.size()), 4), rows);
  test::set_groups(t.pipelines[0], &group_layout::degrees, groups);
  if (!zero.empty()) test::set_groups(t.pipelines[0], &group_layout::zero, zero);
  validate(t);
  return t;
}

using state = std::map<std::pair<int, std::string>, std::vector<std::byte>>;

/// Trains some steps after what `from` holds, if anything, and saves.
std::vector<double> run(const way& w, const std::string& from, int steps, const std::string& to) {
  const toy<float> t;
  std::vector<std::vector<double>> norms(static_cast<std::size_t>(w.layout.ranks()));
  hetsched::run_on_threads(channel::connect(w.layout.ranks()), [&](channel& comm) {
    auto trainer = hetsched::make_trainer<tensor>(
        w.layout, [](int l, const stage_group<tensor, channel>& g) { return cut_layer(l, g.place().tensor, g.degrees().tensor); },
        [](int, int n) {
          return tensor_shape{static_cast<std::size_t>(n), toy<float>::width};
        },
        comm, adamw{.learning_rate = 0.01}, {.clip_norm = 0.1, .shard_optimizer = w.shards, .bucket_bytes = 64});
    if (!from.empty()) {
      auto slices = trainer.state();
      const auto found = find_checkpoint(from);
      load_checkpoint(*found.newest, slices);
      trainer.set_committed_step(found.newest->step);
    }
    const auto own = trainer.samples();
    for (int i = 0; i < steps; ++i) {
      std::vector<tensor> inputs, targets;
      for (int m = 0; m < trainer.pipeline().order.microbatches; ++m) {
        const auto [input, target] =
            t.batch(w.layout, trainer.committed_step(), static_cast<std::size_t>(w.layout.pipeline_of(comm.rank())), m);
        for (const auto* whole : {&input, &target}) {
          tensor part(static_cast<std::size_t>(own.size()), whole->columns());
          for (std::size_t r = 0; r < part.rows(); ++r)
            for (std::size_t c = 0; c < part.columns(); ++c) part(r, c) = (*whole)(static_cast<std::size_t>(own.first) + r, c);
          (whole == &input ? inputs : targets).push_back(std::move(part));
        }
      }
      norms[static_cast<std::size_t>(comm.rank())].push_back(
          trainer.step(std::span<const tensor>(inputs), std::span<const tensor>(targets), toy<float>::loss).gradient_norm);
    }
    write_checkpoint_part(to, trainer.committed_step(), comm.rank(), trainer.state(true));
    std::vector<std::vector<double>> all;
    if (comm.gather({}, all, deadline_in(60)) == wait_result::progress && comm.rank() == 0)
      commit_checkpoint(to, trainer.committed_step(), comm.ranks());
  });
  for (const auto& n : norms) CHECK(n == norms[0]);
  return norms[0];
}

/// All tensors of a checkpoint.
state whole(const std::string& folder) {
  const auto from = find_checkpoint(folder);
  REQUIRE(from.newest);
  state found;
  std::vector<state_slice> wanted;
  for (const auto& s : from.newest->slices) {
    auto& bytes = found[{s.layer, s.name}];
    if (!bytes.empty()) continue;
    bytes.resize(static_cast<std::size_t>(detail::element_count(s.shape)) * detail::element_bytes(s.element));
    wanted.push_back({.layer = s.layer, .name = s.name, .element = s.element, .shape = s.shape, .first = 0, .bytes = bytes});
  }
  load_checkpoint(*from.newest, wanted);
  return found;
}

}  // namespace

TEST_CASE("[threads] a checkpoint of twelve layers does not load into eleven") {
  test::check_partial_load([] { return thread_communicator<test::view_tensor>::connect(2); });
}

TEST_CASE("[threads] state that is written under some degrees goes on under others, bit for bit") {
  const auto folder =
      (std::filesystem::temp_directory_path() / ("hetsched_group_checkpoint" + std::to_string(::getpid()))).string();
  std::filesystem::remove_all(folder);
  const auto at = [&](const std::string& name) { return folder + "/" + name; };
  // Two data ranks in each: sums are added in the same order, and all of it must be the same bits.
  std::vector<way> ways{{"data", grouped("1f1b", {{.data = 2}})},
                        {"tensor", grouped("1f1b", {{.data = 2, .tensor = 2}, {.data = 2, .tensor = 3}})},
                        {"sharded", grouped("1f1b", {{.data = 2, .tensor = 3}}), true},
                        {"sharded_data", grouped("interleaved_1f1b", {{.data = 2}, {.data = 2}}), true},
                        {"zero", grouped("1f1b", {{.data = 2, .tensor = 2}, {.data = 2}, {.data = 2}}, {3, 2, 1})}};
  const auto first = run(ways[0], "", 2, at("data"));
  const auto saved = whole(at("data"));
  CHECK(saved.size() == 4 * layer_count * shapes.size());
  const auto second = run(ways[0], at("data"), 2, at("data_later"));
  const auto later = whole(at("data_later"));
  for (const auto& w : ways) {
    CAPTURE(w.name);
    if (w.name != ways[0].name) {
      CHECK(run(w, "", 2, at(w.name)) == first);
      CHECK(whole(at(w.name)) == saved);
    }
    for (const auto& from : ways) {
      if (!std::filesystem::exists(at(from.name))) continue;
      CAPTURE(from.name);
      const auto to = at(std::string(from.name) + "_to_" + w.name);
      CHECK(run(w, at(from.name), 2, to) == second);
      CHECK(whole(to) == later);
    }
  }
  // Other sums, the same state.
  auto two = grouped("chimera", {{.data = 1, .tensor = 2}, {.data = 4, .tensor = 1}});
  two.pipelines.push_back(grouped("1f1b", {{.data = 2, .tensor = 3}}).pipelines[0]);
  two.pipelines[1].first_rank = two.pipelines[0].ranks();
  for (const bool shards : {false, true}) {
    CAPTURE(shards);
    const way pipelines{shards ? "pipelines_sharded" : "pipelines", two, shards};
    (void)run(pipelines, at("data"), 0, at(std::string(pipelines.name) + "_loaded"));
    CHECK(whole(at(std::string(pipelines.name) + "_loaded")) == saved);
    (void)run(pipelines, at("data"), 2, at(pipelines.name));
    (void)run(ways[1], at(pipelines.name), 0, at(std::string(pipelines.name) + "_back"));
    CHECK(whole(at(std::string(pipelines.name) + "_back")) == whole(at(pipelines.name)));
  }
  CHECK(whole(at("pipelines")) == whole(at("pipelines_sharded")));
  std::filesystem::remove_all(folder);
}
