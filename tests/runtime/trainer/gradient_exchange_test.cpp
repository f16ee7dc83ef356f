// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/trainer/gradient_exchange.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/printable.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/runtime/layout/detail/layer_directory.hpp>
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

/// A model, how its layers are cut, and its ties.
struct instance {
  training_layout layout;
  std::vector<std::vector<tensor_shape>> shapes;
  std::vector<parameter_tie> ties;
  group_cuts cuts;
};

struct limits {
  int pipelines = 4, data = 1, context = 1, tensor = 1;
};

std::vector<std::int64_t> rising(random_source& random, std::int64_t first, std::int64_t last, int parts) {
  std::vector<std::int64_t> points{first, last};
  for (int p = 1; p < parts; ++p) points.push_back(random.integer(static_cast<int>(first), static_cast<int>(last)));
  std::sort(points.begin(), points.end());
  return points;
}

instance random_instance(random_source& random, const limits& most) {
  instance i;
  const int layers = random.integer(4, 8);
  std::vector<training_layout> parts;
  for (int p = 0, pipelines = random.integer(1, most.pipelines); p < pipelines; ++p) {
    const int ranks = random.integer(1, 2);
    const char* const name = ranks == 2 && random.integer(0, 1) == 0 ? "chimera" : random.integer(0, 1) == 0 ? "1f1b" : "zb_v";
    parts.push_back(even_layout(layers, schedule_of(name, ranks, 2), 6));
    auto& line = parts.back().pipelines[0];
    for (std::size_t s = 1; s < line.stages.size(); ++s)
      line.stages[s - 1].layers.last = line.stages[s].layers.first =
          random.integer(line.stages[s - 1].layers.first + 1, line.stages[s].layers.last - 1);
    for (int r = 0; r < ranks; ++r)
      line.groups.push_back(
          {.degrees = {random.integer(1, most.data), random.integer(1, most.context), random.integer(1, most.tensor)}});
  }
  i.layout = side_by_side(parts);
  for (int l = 0; l < layers; ++l) {
    auto& own = i.shapes.emplace_back();
    for (int n = random.integer(0, 3); n > 0; --n)
      own.push_back({static_cast<std::size_t>(random.integer(1, 4)), static_cast<std::size_t>(random.integer(1, 5))});
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
  for (std::size_t p = 0; p < i.layout.pipelines.size(); ++p)
    for (int g = 0; g < i.layout.pipelines[p].order.ranks; ++g)
      for (int l = 0; l < layers; ++l)
        for (std::size_t n = 0; n < i.shapes[static_cast<std::size_t>(l)].size(); ++n) {
          auto& cut = i.cuts[{{l, static_cast<int>(n)}, static_cast<int>(p), g}];
          cut.dimension = random.integer(-1, 1);
          cut.partial_over_tensor = cut.dimension < 0 && random.integer(0, 1) == 0;
          if (cut.dimension < 0) continue;
          const auto extent = i.shapes[static_cast<std::size_t>(l)][n][static_cast<std::size_t>(cut.dimension)];
          const auto pieces = rising(random, 0, static_cast<std::int64_t>(extent), random.integer(1, 3));
          for (std::size_t k = 1; k < pieces.size(); ++k)
            cut.points.push_back(rising(random, pieces[k - 1], pieces[k], i.layout.pipelines[p].degrees_of(g).tensor));
        }
  return i;
}

std::string text_of(const instance& i) {
  std::string text;
  for (const auto& p : i.layout.pipelines) {
    text += "pipeline of " + std::to_string(p.order.stages) + " stages x " + std::to_string(p.order.directions) + ":";
    for (int g = 0; g < p.order.ranks; ++g)
      text += " " + std::to_string(p.degrees_of(g).data) + "x" + std::to_string(p.degrees_of(g).context) + "x" +
              std::to_string(p.degrees_of(g).tensor);
    text += "; ";
  }
  for (const auto& [a, b] : i.ties) text += to_text(a) + " tied to " + to_text(b) + "; ";
  return text;
}

/// What a rank of a holder adds, whole: of very different sizes, so that the order in which they are added shows.
tensor term(const instance& i, int step, const parameter_holder& h, int rank) {
  const auto& shape = i.shapes[static_cast<std::size_t>(h.what.layer)][static_cast<std::size_t>(h.what.number)];
  const bool partial = h.cut.dimension < 0 && h.cut.partial_over_tensor;
  int place = rank - h.first_rank;
  if (!partial) place -= place % h.group.tensor;
  std::uint64_t seed = 0;
  for (const int number : {step, h.pipeline, h.what.layer, h.what.number, h.direction, place})
    seed = seed * 64 + static_cast<std::uint64_t>(number);
  random_source random(seed);
  tensor t(shape);
  for (std::size_t k = 0; k < shape[0] * shape[1]; ++k)
    t.data()[k] = static_cast<float>(random.uniform(-1, 1)) * static_cast<float>(1 << random.integer(0, 24));
  return t;
}

/// What a rank holds of a whole parameter.
tensor part_of(const tensor& whole, const parameter_holder& h, int rank) {
  if (h.cut.dimension < 0) return whole;
  const auto t = static_cast<std::size_t>((rank - h.first_rank) % h.group.tensor);
  std::vector<std::size_t> kept;
  for (const auto& p : h.cut.points)
    for (auto k = p[t]; k < p[t + 1]; ++k) kept.push_back(static_cast<std::size_t>(k));
  const bool rows = h.cut.dimension == 0;
  tensor held(rows ? kept.size() : whole.rows(), rows ? whole.columns() : kept.size());
  for (std::size_t r = 0; r < held.rows(); ++r)
    for (std::size_t c = 0; c < held.columns(); ++c) held(r, c) = rows ? whole(kept[r], c) : whole(r, kept[c]);
  return held;
}

/// The documented order, on one device: by pipeline, in each by layer and number, direction, data, context, tensor rank.
tensor serial_sum(const instance& i, const std::set<parameter_id>& all, int step) {
  const auto plus = [](tensor& sum, const tensor& t) {
    if (sum.rows() == 0) return void(sum = t);
    for (std::size_t k = 0; k < t.rows() * t.columns(); ++k) sum.data()[k] += t.data()[k];
  };
  tensor sum;
  for (std::size_t p = 0; p < i.layout.pipelines.size(); ++p) {
    const auto& line = i.layout.pipelines[p];
    tensor share;
    for (const auto& id : all)
      for (int c = 0; c < line.order.directions; ++c) {
        std::size_t stage = 0;
        while (line.stages[stage].layers.last <= id.layer) ++stage;
        const int group = line.order.rank(c, static_cast<int>(stage));
        const parameter_holder h{static_cast<int>(p),
                                 id,
                                 c,
                                 line.first_of_group(group),
                                 line.degrees_of(group),
                                 i.cuts.at({id, static_cast<int>(p), group})};
        const bool partial = h.cut.dimension < 0 && h.cut.partial_over_tensor;
        for (int place = 0; place < h.group.device_count(); place += partial ? 1 : h.group.tensor)
          plus(share, term(i, step, h, h.first_rank + place));
      }
    plus(sum, share);
  }
  return sum;
}

/// Parameters that are one, found by walking the ties until nothing changes.
std::map<parameter_id, std::set<parameter_id>> ties_of(const instance& i) {
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
  return one;
}

/// What a rank holds as one of a holder's.
struct held_tensor {
  parameter_holder holder;
  std::size_t stage = 0;
  tensor value, gradient;
};

std::vector<held_tensor> held_by(const std::vector<model_parameter>& model, const instance& i, int rank) {
  std::vector<held_tensor> held;
  const auto place = i.layout.place_of(rank);
  const auto& line = i.layout.pipelines[static_cast<std::size_t>(place.pipeline)];
  const auto copies = stages_of_rank(line.order, place.group);
  for (const auto& m : model)
    for (const auto& h : m.holders) {
      if (!h.has(rank)) continue;
      std::size_t stage = 0;
      while (copies[stage].direction != h.direction ||
             line.stages[static_cast<std::size_t>(copies[stage].stage)].layers.last <= h.what.layer ||
             line.stages[static_cast<std::size_t>(copies[stage].stage)].layers.first > h.what.layer)
        ++stage;
      held.push_back({h, stage, {}, {}});
      held.back().value = held.back().gradient = part_of(tensor(m.shape), h, rank);
    }
  return held;
}

/// Which parameters are sharded.
enum class sharding { none, every_other, all };

/// All ranks, for some steps, against the serial sum.
void check_exchange(const instance& i, exchange_options options, bool overlaps, sharding which = sharding::none) {
  const auto text = text_of(i);
  CAPTURE(text);
  CAPTURE(which);
  CAPTURE(options.frees_buffers);
  auto model = model_parameters(i.layout, i.shapes, i.ties, i.cuts);
  for (std::size_t m = 0; m < model.size(); ++m)
    model[m].sharded = which == sharding::all || (which == sharding::every_other && m % 2 == 0);
  const auto one = ties_of(i);
  std::set<parameter_id> counted;
  for (const auto& m : model) {
    counted.insert(m.id);
    std::int64_t elements = 0;
    for (const auto& c : m.chunks) elements += element_count(c.part);
    CHECK(elements == static_cast<std::int64_t>(m.shape[0] * m.shape[1]));
  }
  CHECK(counted.size() == model.size());
  for (const auto& [p, all] : one) CHECK(counted.count(*all.begin()) == 1);
  std::map<parameter_id, std::vector<tensor>> sums;
  constexpr int steps = 2;
  for (const auto& [p, all] : one)
    for (int step = 0; step < steps; ++step)
      if (p == *all.begin()) sums[p].push_back(serial_sum(i, all, step));

  hetsched::run_on_threads(channel::connect(i.layout.ranks()), [&](channel& comm) {
    auto held = held_by(model, i, comm.rank());
    gradient_exchange<tensor, channel> exchange(
        model,
        [&](const parameter_holder& h) {
          for (auto& own : held)
            if (own.holder == h) return local_parameter<tensor>{&own.value, &own.gradient, own.stage};
          throw std::logic_error("rank " + std::to_string(comm.rank()) + " is asked for what it does not hold");
        },
        comm, options);
    for (int step = 0; step < steps; ++step) {
      std::size_t stages = 1;
      for (auto& own : held) {
        own.gradient = part_of(term(i, step, own.holder, comm.rank()), own.holder, comm.rank());
        own.value = part_of(tensor(sums.at(*one.at(own.holder.what).begin())[0].shape().front(),
                                   sums.at(*one.at(own.holder.what).begin())[0].shape().back()),
                            own.holder, comm.rank());
        stages = std::max(stages, own.stage + 1);
      }
      if (overlaps) {
        exchange.begin_step(step);
        for (std::size_t s = stages; s-- > 0;) exchange.begin(s);
      }
      exchange.sum(step, in(60));
      if (which != sharding::none) {
        for (std::size_t k = 0; k < exchange.owned_count(); ++k) exchange.owned(k).value = exchange.owned(k).gradient;
        exchange.spread(in(60));
      }
      for (auto& own : held) {
        const auto& m =
            *std::find_if(model.begin(), model.end(), [&](const auto& x) { return x.id == *one.at(own.holder.what).begin(); });
        const bool exchanged = m.chunks.empty() || m.chunks.front().terms.size() > 1;
        const auto expected = part_of(sums.at(m.id)[static_cast<std::size_t>(step)], own.holder, comm.rank());
        if (!((m.sharded && exchanged ? own.value : own.gradient) == expected))
          throw std::logic_error("rank " + std::to_string(comm.rank()) + ", step " + std::to_string(step) + ": " +
                                 to_text(own.holder.what));
      }
    }
  });
}

}  // namespace

TEST_CASE("[threads] sums are the same bits wherever the terms lie") {
  random_source random(1);
  for (int run = 0; run < 150 / sanitizer_share; ++run) {
    CAPTURE(run);
    check_exchange(random_instance(random, {}), {}, run % 2 == 1);
  }
}

TEST_CASE("[threads] pipelines that cut the same layers differently, partial gradients, ties, any buckets") {
  random_source random(2);
  for (int run = 0; run < 150 / sanitizer_share; ++run) {
    CAPTURE(run);
    auto i = random_instance(random, {.pipelines = 3, .data = 3, .context = 2, .tensor = 3});
    exchange_options options{.bucket_bytes = static_cast<std::size_t>(random.integer(1, 200)),
                             .part_bytes = static_cast<std::size_t>(random.integer(1, 40)),
                             .frees_buffers = random.integer(0, 2) == 0};
    const auto which = static_cast<sharding>(random.integer(0, 2));
    if (random.integer(0, 1) == 0)
      for (int l = 1; l < i.layout.layers; ++l)
        if (random.integer(0, 1) == 0) options.waves.push_back(l);
    check_exchange(i, options, run % 3 == 1, which);
  }
}

TEST_CASE("[threads] tensor parallelism of 1, 2, 4 with 1, 2, 3 data ranks") {
  for (const int tensor_ranks : {1, 2, 4})
    for (const int data_ranks : {1, 2, 3})
      for (const auto which : {sharding::none, sharding::every_other, sharding::all}) {
        CAPTURE(tensor_ranks);
        CAPTURE(data_ranks);
        instance i;
        i.layout = even_layout(2, schedule_of("1f1b", 2, 2), 6);
        i.layout.pipelines[0].groups.assign(2, {.degrees = {data_ranks, 1, tensor_ranks}});
        i.shapes = {{{4, 8}, {1, 8}}, {{8, 4}, {1, 4}}};
        for (int g = 0; g < 2; ++g)
          for (int l = 0; l < 2; ++l) {
            std::vector<std::int64_t> points;
            for (int t = 0; t <= tensor_ranks; ++t) points.push_back(8 * t / tensor_ranks);
            i.cuts[{{l, 0}, 0, g}] = {.dimension = 1 - l, .points = {points}};
            i.cuts[{{l, 1}, 0, g}] = {.partial_over_tensor = true};
          }
        check_exchange(i, {.part_bytes = 4, .frees_buffers = which == sharding::all}, false, which);
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
  for (const auto& m : model_parameters(layout, shapes, {}))
    for (std::size_t c = 0; c < m.chunks.size(); ++c)
      owned[static_cast<std::size_t>(m.owners[c])] += static_cast<std::size_t>(element_count(m.chunks[c].part));
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
            [&](const parameter_holder& h) {
              return local_parameter<tensor>{nullptr, &gradients[static_cast<std::size_t>(h.what.number)], 0};
            },
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
          CHECK(text.find("from rank 1 to rank 0, parameter 1, has not come in time") != std::string::npos);
        CHECK((text.find("ended, as rank " + std::to_string(missing) + " had enough") != std::string::npos) == aborts);
      }
    }
}

TEST_CASE("a directory puts cuts together, and names those that are not alike") {
  struct layer {
    std::vector<tensor> all;
    std::vector<parameter_cut> cuts;
    std::vector<tensor_name> names{};
    std::vector<tensor>& parameters() { return all; }
    std::vector<parameter_cut>& parameter_cuts() { return cuts; }
    std::vector<tensor_name>& parameter_names() { return names; }
  };
  auto layout = even_layout(1, schedule_of("1f1b", 1, 1), 2);
  layout.pipelines[0].groups = {{.degrees = {.data = 2, .tensor = 2}}};
  // Two matrices side by side, of 3 and 5 columns; the first rank has 1 and 4 of them.
  const auto held = [](int rank) {
    const std::size_t first = rank % 2 == 0 ? 1 : 2, second = rank % 2 == 0 ? 4 : 1;
    return layer{{tensor(2, first + second), tensor(1, 3)},
                 {{.dimension = 1, .pieces = {first, second}}, {.partial_over_tensor = true}}};
  };
  std::vector<detail::layer_names> own_names;
  std::size_t tellers = 0;
  const auto learn = [&](const std::function<void(int, layer&)>& change) -> std::string {
    std::vector<std::vector<double>> told;
    try {
      for (int r = 0; r < 4; ++r) {
        auto l = held(r);
        change(r, l);
        tellers = 0;
        detail::tell_layer<tensor>(told.emplace_back(), 0, l, true, [](tensor& t, auto&& body) { body(t); });
        tellers = told.size();
      }
      const auto found = detail::learn_directory(layout, told, 0, {});
      CHECK(found.shapes == std::vector<std::vector<tensor_shape>>{{{2, 8}, {1, 3}}});
      CHECK(found.cuts.at({{0, 0}, 0, 0}) == group_cut{.dimension = 1, .points = {{0, 1, 3}, {3, 7, 8}}});
      CHECK(found.cuts.at({{0, 1}, 0, 0}) == group_cut{.partial_over_tensor = true});
      own_names = found.names;
    } catch (const input_error& e) {
      return e.what();
    }
    return "";
  };
  CHECK(learn([](int, layer&) {}).empty());
  const std::string differ = "layer 0 is not made alike on ranks 0 and ", shapes = ": its parameters differ in number or shape",
                    cut = ": its parameters are cut differently";
  CHECK(learn([](int r, layer& l) { r == 3 ? l.all[1] = tensor(1, 4) : tensor(); }) == differ + "3" + shapes);
  CHECK(learn([](int r, layer& l) { r == 1 ? l.all[0] = tensor(3, 3) : tensor(); }) == differ + "1" + shapes);
  CHECK(learn([](int r, layer& l) { r == 2 ? l.cuts[0].pieces = {2, 3} : std::vector<std::size_t>(); }) == differ + "2" + cut);
  CHECK(learn([](int r, layer& l) { l.cuts[1].partial_over_tensor = r < 3; }) == differ + "3" + cut);
  CHECK(learn([](int r, layer& l) { l.all[1].data()[0] = r == 2 ? 1.0f : 0.0f; }) ==
        differ + "2: parameter 1 begins with other values");
  CHECK(learn([](int r, layer& l) { l.all[0].data()[0] = r % 2 == 1 ? 1.0f : 0.0f; }).empty());  // not the same slices
  CHECK(learn([](int, layer& l) { l.cuts[0].pieces = {1, 1}; }) == "parameter 0 of layer 0 is not as large as its pieces");
  CHECK(learn([](int, layer& l) { l.cuts[0].dimension = 2; }) == "parameter 0 of layer 0 has no dimension 2 to cut");
  CHECK(learn([](int, layer& l) { l.cuts.pop_back(); }) == "parameter 1 of layer 0 is not in parameter_cuts()");
  CHECK(learn([](int, layer& l) { l.cuts.push_back({}); }) == "layer 0 has 2 parameters, but parameter_cuts() are 3");

  CHECK(own_names.empty());
  const auto named = [&](int rank, const std::vector<tensor_name>& names) {
    return learn([&](int r, layer& l) {
      l.names = r == rank ? names : std::vector<tensor_name>{{"w", 0}, {"tied", 0}, {"\xc3\xa9", 1}};
    });
  };
  CHECK(named(2, {{"\xc3\xa9", 1}, {"tied", 0}, {"w", 0}, {"w", 0}}).empty());  // whatever their order
  CHECK(own_names == std::vector<detail::layer_names>{{{{"tied", "w"}, {"\xc3\xa9"}}, {}}});
  std::vector<state_slice> slices{
      {0, "parameter.1", "f32", {3}, 0, {}}, {0, "adamw.first_moment.0", "f32", {3}, 0, {}}, {0, "buffer.0", "f32", {3}, 0, {}}};
  detail::name_slices(slices, own_names);
  CHECK(slices[0].own_name == "\xc3\xa9");
  CHECK(slices[0].other_names.empty());
  CHECK(slices[1].own_name == "tied");
  CHECK(slices[1].other_names == std::vector<std::string>{"w"});
  CHECK(slices[2].own_name.empty());
  const std::string other_names = ": its parameters or buffers have other names";
  CHECK(named(2, {{"w", 1}, {"\xc3\xa9", 0}}) == differ + "2" + other_names);
  CHECK(named(2, {{"w", 0}, {"\xc3\xa9", 1}}) == differ + "2" + other_names);
  CHECK(named(3, {}) == differ + "3" + other_names);
  CHECK(named(1, {{"w", 0}}) == "layer 0, parameter_names(): parameter 1 has no name");
  CHECK(named(1, {{"w", 0}, {"w", 1}}) == "layer 0, parameter_names(): \"w\" is the name of 0 and of 1");
  CHECK(named(1, {{"w", 2}}) == "layer 0, parameter_names(): found \"w\" of parameter 2, expected one of 2");
  CHECK(named(1, {{"", 0}}) == "layer 0, parameter_names(): found an empty name of parameter 0");
  const std::string bounds = "\", expected a name in UTF-8 of 1 to 256 bytes without control characters";
  const auto unfit = [&](const std::string& name) { return named(1, {{"w", 0}, {name, 0}, {"\xc3\xa9", 1}}); };
  CHECK(unfit(std::string(257, 'a')) == "layer 0, parameter_names(): found \"" + std::string(64, 'a') + bounds);
  CHECK(tellers == 4);  // all ranks learn of it, as it is told
  CHECK(unfit("a\nb") == "layer 0, parameter_names(): found \"a\\x0ab" + bounds);
  // Of bytes that UTF-8 never has, cut short, too long for what it says, half of a pair of UTF-16, and beyond Unicode.
  for (const std::string name : {"\xff", "\xc3", "\xc3(", "\xe2\x82", "\xc0\xaf", "\xe0\x9f\xbf", "\xed\xa0\x80",
                                 "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\x80"})
    CHECK(unfit(name) == "layer 0, parameter_names(): found \"" + printable(name) + bounds);
  for (const std::string& name : {std::string(256, 'a'), std::string("\xef\xbf\xbd"), std::string("\xed\x9f\xbf"),
                                  std::string("\xf0\x9f\x98\x80"), std::string("\xf4\x8f\xbf\xbf")})
    CHECK(unfit(name) == differ + "1" + other_names);
}

TEST_CASE("4 GB of gradients over 8 ranks are 60 calls of collectives, or more than ten thousand sends in order") {
  auto layout = even_layout(2, schedule_of("1f1b", 1, 1), 8);
  layout.pipelines[0].groups = {{.degrees = {.data = 8}}};
  const std::vector<std::vector<tensor_shape>> shapes{{{20000, 25000}, {7}}, {{25000, 20000}}};
  const auto model = model_parameters(layout, shapes, {});
  for (int rank = 0; rank < 8; ++rank) {
    detail::exchange_cut cut{.most_elements = (4 << 20) / 4, .least_elements = (16 << 10) / 4};
    const auto ordered = detail::plan_exchange(model, 8, rank, cut);
    const auto sends =
        std::count_if(ordered.messages.begin(), ordered.messages.end(), [&](const auto& m) { return m.from == rank; });
    CHECK(sends == 13356);  // as docs/cuda.md says
    CHECK(static_cast<std::size_t>(2 * sends) == ordered.messages.size());
    cut.joint_elements = (64 << 20) / 4;
    std::vector<std::vector<int>> asked;
    cut.joins = [&](const std::vector<int>& ranks) { return asked.push_back(ranks), true; };
    const auto joint = detail::plan_exchange(model, 8, rank, cut);
    CHECK(joint.messages.empty());
    CHECK(joint.parts.size() == 60);
    std::int64_t elements = 0;
    for (const auto& p : joint.parts) {
      CHECK(p.joint == std::vector{0, 1, 2, 3, 4, 5, 6, 7});
      REQUIRE(p.adds.size() == 1);
      CHECK(p.adds[0][0].terms == std::vector{static_cast<std::size_t>(rank)});
      elements += p.elements;
    }
    CHECK(elements == 1000000007);
    CHECK(asked.size() == 3);
    // Shared state stays with eight equal parts of each, unless some are to own more.
    auto shared = model;
    for (auto& m : shared) m.sharded = true;
    const auto scattered = detail::plan_exchange(shared, 8, rank, cut);
    CHECK(scattered.messages.empty());
    REQUIRE(scattered.parts.size() == 60);
    for (std::size_t k = 0; k < 60; ++k) {
      const auto& p = scattered.parts[k];
      const std::int64_t whole = joint.parts[k].elements, each = (whole + 7) / 8;
      CHECK(p.elements == 8 * each);
      CHECK(p.kept_first == std::min(rank * each, whole));
      CHECK(p.kept_last == std::min((rank + 1) * each, whole));
    }
    cut.room = {1, 1, 1, 1, 1, 1, 1, 2};
    CHECK_FALSE(detail::plan_exchange(shared, 8, rank, cut).messages.empty());
    cut.joins = [](const std::vector<int>&) { return false; };
    CHECK(detail::plan_exchange(model, 8, rank, cut).messages.size() == ordered.messages.size());
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
