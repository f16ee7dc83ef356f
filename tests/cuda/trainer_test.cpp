// SPDX-License-Identifier: Apache-2.0
// Trainings on fake GPUs, on GPUs and hosts, and by way of the hosts' network, against the same on hosts.
#include <hetsched/runtime/trainer/trainer.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/cuda/carried_layer.hpp>
#include <hetsched/cuda/graphs.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/schedule/passes.hpp>
#include <hetsched/schedule/text.hpp>

#include "../runtime/training.hpp"
#include "../sanitizer_share.hpp"
#include "fake_layers.hpp"
#include "host_transport.hpp"
#include "mixed_ranks.hpp"
#include "tensor_of.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using any_fake = any_layer<fake_tensor, fake_queue>;
using real_toy = toy<double>;

any_fake layer_on(const fake_queue& q, const real_toy& t, int layer) {
  auto like = t.make(layer);
  if (const auto* const found = like.get<linear<double>>()) return fake_linear(*found, q);
  return fake_activation(q);
}

/// sgd, in kernels.
struct sgd_on_queue {
  sgd own;
  [[nodiscard]] static std::string_view name() { return sgd::name(); }
  [[nodiscard]] auto state_names() const { return own.state_names(); }
  [[nodiscard]] auto settings() const { return own.settings(); }
  void update(fake_tensor& p, fake_tensor& g, std::span<fake_tensor> state, const parameter_id&, std::int64_t,
              const fake_queue& q) const {
    auto& v = state[0];
    work_on(q, {&g.buffer()}, {&p.buffer(), &v.buffer()}, [&] {
      kernel(q, "an update", {&g}, {&p, &v},
             [o = own, g = std::as_const(g).data(), p = p.data(), v = v.data(), n = p.size()](const auto& view) {
               for (std::size_t i = 0; i < n; ++i) {
                 const double slope = view.read(g)[i] + o.weight_decay * view.read(p)[i];
                 view.write(v)[i] = o.momentum * view.read(v)[i] + slope;
                 view.write(p)[i] -= o.learning_rate * view.read(v)[i];
               }
             });
    });
  }
};

/// As toy::loss.
fake_tensor toy_loss(const fake_tensor& output, const fake_tensor& target, const fake_queue& q, double& value) {
  auto gradient = fake_loss(output, target, q, value);
  auto body = [g = gradient.data(), n = gradient.size(), rows = static_cast<double>(output.rows()), &value](const auto& view) {
    for (std::size_t k = 0; k < n; ++k) view.write(g)[k] /= rows;
    *view.write(&value) /= rows;
  };
  cuda_check::launch(q, "loss", {{gradient.data(), gradient.size() * sizeof(double), true}, {&value, sizeof(double), true}},
                     std::move(body));
  return gradient;
}

matrix<double> rows_of(const matrix<double>& all, interval rows) {
  matrix<double> part(static_cast<std::size_t>(rows.size()), all.columns());
  std::copy_n(all.data() + static_cast<std::size_t>(rows.first) * all.columns(), part.rows() * part.columns(), part.data());
  return part;
}

/// Whole tensors of 8-byte elements by layer and name, and which elements are known.
using saved_state = std::map<std::pair<int, std::string>, std::map<std::size_t, std::uint64_t>>;

/// each(element of the whole tensor, its bytes) for all of a slice.
template <class Each>
void for_each_element_of(const state_slice& s, Each&& each) {
  const std::size_t count = s.bytes.size() / 8;
  const std::size_t length = s.held_apart > 0 ? count - (s.rows - 1) * s.held_apart : count / s.rows;
  const std::size_t held_apart = s.held_apart > 0 ? s.held_apart : length;
  for (std::size_t row = 0; row < s.rows; ++row)
    for (std::size_t i = 0; i < length; ++i) each(s.first + row * s.apart + i, s.bytes.data() + 8 * (row * held_apart + i));
}

struct found {
  std::vector<double> losses, norms, evaluations;
  saved_state state;
  friend bool operator==(const found&, const found&) = default;
};

struct how {
  int steps = 3, batches = 1;  ///< batches of a step
  double clip = 0.5;
  sgd optimizer{.learning_rate = 0.1, .momentum = 0.5, .weight_decay = 0.01};
  const saved_state* begin_with = nullptr;
  std::int64_t first_step = 0;
  bool sums_in_order = true;  ///< else of NCCL
  std::size_t joint_bytes = 200;
};

/// One rank's training, with tensors by `put`.
template <class Trainer, class Put, class Loss>
void train_rank(Trainer& trainer, const real_toy& t, const how& h, int rank, Put&& put, Loss&& loss, found& own) {
  using tensor = std::remove_cvref_t<decltype(put(std::declval<matrix<double>>()))>;
  if (h.begin_with) {
    for (const auto& s : trainer.state())
      for_each_element_of(s, [&](std::size_t k, std::byte* to) {
        std::memcpy(to, &h.begin_with->at({s.layer, s.name}).at(k), sizeof(std::uint64_t));
      });
    trainer.state_loaded();
    trainer.set_committed_step(h.first_step);
  }
  const auto p = static_cast<std::size_t>(trainer.layout().pipeline_of(rank));
  const auto draw = [&](std::int64_t step) {
    std::pair<std::vector<tensor>, std::vector<tensor>> all;
    for (int m = 0; m < trainer.pipeline().order.microbatches; ++m) {
      const auto [input, target] = t.batch(trainer.layout(), step, p, m);
      all.first.push_back(put(rows_of(input, trainer.samples())));
      all.second.push_back(put(rows_of(target, trainer.samples())));
    }
    return all;
  };
  const auto spans = [](const auto& b) { return std::pair(std::span<const tensor>(b.first), std::span<const tensor>(b.second)); };
  for (std::int64_t step = h.first_step; step < h.first_step + h.steps; ++step) {
    for (int b = 1; b < h.batches; ++b) {
      const auto more = draw(1000 * b + step);
      trainer.accumulate(spans(more).first, spans(more).second, loss);
    }
    const auto batch = draw(step);
    const auto report = trainer.step(spans(batch).first, spans(batch).second, loss);
    own.losses.push_back(report.loss);
    own.norms.push_back(report.gradient_norm);
  }
  const auto other = draw(77);
  own.evaluations.push_back(trainer.evaluate(spans(other).first, spans(other).second, loss));
  for (const auto& s : trainer.state(true))
    for_each_element_of(s, [&](std::size_t k, const std::byte* from) {
      std::memcpy(&own.state[{s.layer, s.name}][k], from, sizeof(std::uint64_t));
    });
}

found merge(const std::vector<found>& ranks) {
  auto all = ranks.front();
  for (const auto& r : ranks) {
    CHECK(r.losses == all.losses);
    CHECK(r.norms == all.norms);
    CHECK(r.evaluations == all.evaluations);
    for (const auto& [key, elements] : r.state) all.state[key].insert(elements.begin(), elements.end());
  }
  return all;
}

trainer_options options_for(const real_toy& t, const how& h) {
  return {.deadline_s = 20,
          .clip_norm = h.clip,
          .ties = t.ties,
          .bucket_bytes = 64,
          .joint_bytes = h.joint_bytes,
          .sums_in_order = h.sums_in_order};
}
tensor_shape shape_after(int, int rows) { return {static_cast<std::size_t>(rows), real_toy::width}; }

found on_hosts(const real_toy& t, const training_layout& layout, const how& h) {
  std::vector<found> all(static_cast<std::size_t>(layout.ranks()));
  hetsched::run_on_threads(thread_communicator<matrix<double>>::connect(layout.ranks()), [&](auto& comm) {
    auto trainer = hetsched::make_trainer<matrix<double>>(
        layout, [&](int l) { return t.make(l); }, shape_after, comm, h.optimizer, options_for(t, h));
    train_rank(
        trainer, t, h, comm.rank(), [](matrix<double> m) { return m; }, real_toy::loss,
        all[static_cast<std::size_t>(comm.rank())]);
  });
  return merge(all);
}

/// Backend: cuda_backend or one that captures; staged: by way of the hosts.
template <class Backend, bool Staged, class Communicator>
found on_fake(fake_devices& devices, std::vector<Communicator> ends, const std::vector<int>& places, const real_toy& t,
              const training_layout& layout, const how& h) {
  using stager = std::conditional_t<Staged, cuda_stager<fake_tensor, cuda_check::api>, no_stager>;
  std::vector<found> all(places.size());
  hetsched::run_on_threads(std::move(ends), [&](Communicator& comm) {
    const auto r = static_cast<std::size_t>(comm.rank());
    const auto name = "rank " + std::to_string(r);
    Backend own(devices, places[r], name);
    const auto bound = own.bind();
    const auto q = own.compute_queue();
    const auto copies = [&] {
      if constexpr (Staged)
        return stager(devices, places[r], name);
      else
        return no_stager();
    };
    auto trainer = hetsched::make_trainer<fake_tensor>(
        layout, [&](int l) { return layer_on(q, t, l); }, shape_after, comm, sgd_on_queue{h.optimizer}, options_for(t, h), own,
        copies());
    train_rank(
        trainer, t, h, comm.rank(), [&](const matrix<double>& m) { return upload(q, m); }, toy_loss, all[r]);
    q.finish();
  });
  return merge(all);
}
template <class Backend = cuda_backend<cuda_check::api>>
found on_fake(cuda_check::machine& machine, const std::vector<int>& places, const real_toy& t, const training_layout& layout,
              const how& h) {
  fake_devices devices(cuda_check::api{&machine}, {.records = 256});
  return on_fake<Backend, false>(devices, cuda_local_communicator<fake_tensor, cuda_check::api>::connect(devices, places), places,
                                 t, layout, h);
}

/// By way of the hosts: tensors of stages in chunks, gradients through pinned memory.
found on_network(cuda_check::machine& machine, const real_toy& t, const training_layout& layout, const how& h) {
  const int ranks = layout.ranks();
  std::vector<int> places;
  for (int r = 0; r < ranks; ++r) places.push_back(r);
  fake_devices devices(cuda_check::api{&machine}, {.records = 256});
  std::vector<host_transport> ends;
  for (auto& end : thread_communicator<matrix<double>>::connect(ranks))
    ends.emplace_back(
        shaped_communicator(
            std::move(end),
            [](int, int) { return hetsched::link{.latency_s = 0, .bandwidth = std::numeric_limits<double>::infinity()}; }),
        machine);
  auto staged = layout;
  for (auto& line : staged.pipelines) line.order = by_way_of_hosts(line.order, [](int, int) { return true; });
  return on_fake<cuda_backend<cuda_check::api>, true>(devices, std::move(ends), places, t, staged, h);
}

training_layout layout_of(const real_toy& t, std::string_view name, int ranks, int microbatches, std::vector<int> data = {},
                          int zero = 0) {
  auto layout = even_layout(t.layers, schedule_of(name, ranks, microbatches), 6);
  auto& line = layout.pipelines[0];
  for (const int d : data) line.groups.push_back({.degrees = {.data = d}, .zero = zero});
  validate(layout);
  return layout;
}

struct training_case {
  real_toy model;
  training_layout layout;
  how run;
};
std::vector<training_case> cases() {
  const real_toy t{.layers = 12}, tied{.layers = 12, .ties = {{{0, 0}, {10, 0}}}};
  std::vector<training_case> all;
  for (const auto* name : {"1f1b", "gpipe", "zb_v", "interleaved_1f1b", "chimera"})
    all.push_back({t, layout_of(t, name, 2, 4), {}});
  all.push_back({tied, layout_of(tied, "1f1b", 3, 4), {.batches = 2}});
  all.push_back({t, layout_of(t, "1f1b", 2, 4, {2, 3}), {}});
  all.push_back({t, layout_of(t, "1f1b", 2, 2, {2, 2}, 1), {}});
  all.push_back({t, layout_of(t, "1f1b", 2, 2, {3, 1}, 2), {.batches = 2}});
  all.push_back({tied, layout_of(tied, "zb_v", 2, 2, {2, 3}, 3), {.batches = 2}});
  all.push_back({tied, side_by_side({layout_of(tied, "1f1b", 2, 4), layout_of(tied, "gpipe", 3, 2)}), {}});
  auto recomputed = layout_of(t, "zb_v", 2, 4);
  recomputed.pipelines[0].groups.assign(2, {.recompute = recomputation::full});
  all.push_back({t, recomputed, {}});
  if (sanitizer_share == 1) return all;
  std::vector<training_case> some;
  for (std::size_t i = 0; i < all.size(); i += 3) some.push_back(all[i]);
  return some;
}

void expect_clean(cuda_check::machine& machine) {
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
  for (const auto& l : machine.leaks()) FAIL_CHECK(l);
}

}  // namespace

TEST_CASE("[threads] trainings on fake GPUs, and on GPUs and hosts, have the bits of hosts, and no races") {
  std::uint64_t seed = 1;
  for (const auto& c : cases()) {
    const auto text = to_csv(c.layout.pipelines[0].order);
    CAPTURE(text);
    CAPTURE(c.layout.ranks());
    const auto wanted = on_hosts(c.model, c.layout, c.run);
    CHECK(wanted.losses.size() == 3);
    std::vector<int> own, one, mixed;
    for (int r = 0; r < c.layout.ranks(); ++r) own.push_back(r), one.push_back(0), mixed.push_back(r % 3 - 1);
    for (const auto& places : {own, one, mixed}) {
      CAPTURE(places[0]);
      cuda_check::machine machine({.seed = ++seed, .devices = 8, .lazy = seed % 3 == 0, .in_order = seed % 2 == 0});
      CHECK(on_fake(machine, places, c.model, c.layout, c.run) == wanted);
      expect_clean(machine);
      if (sanitizer_share > 1) break;
    }
  }
}

TEST_CASE("[threads] trainings on fake GPUs whose hosts share a network have the bits of hosts, and no races") {
  std::uint64_t seed = 100;
  for (const auto& c : cases()) {
    const auto& line = c.layout.pipelines[0];
    if (line.ranks() > line.order.ranks) continue;  // slices of groups are not copied by way of hosts
    const auto text = to_csv(line.order);
    CAPTURE(text);
    cuda_check::machine machine({.seed = ++seed, .devices = 8, .lazy = seed % 3 == 0, .in_order = seed % 2 == 0});
    CHECK(on_network(machine, c.model, c.layout, c.run) == on_hosts(c.model, c.layout, c.run));
    expect_clean(machine);
  }
}

TEST_CASE("[threads] trainings over NCCL have the bits of hosts, also where the streams of a device work in order") {
  std::uint64_t seed = 300;
  for (const auto& c : cases()) {
    const auto text = to_csv(c.layout.pipelines[0].order);
    CAPTURE(text);
    CAPTURE(c.layout.ranks());
    cuda_check::machine machine(
        {.seed = ++seed, .devices = 8, .lazy = seed % 3 == 0, .in_order = seed % 2 == 0, .launch_queue = 32});
    fake_nccl_world world(machine);
    {
      fake_devices devices(cuda_check::api{&machine}, {.records = 64});
      const int ranks = c.layout.ranks();
      CHECK(on_fake<cuda_backend<cuda_check::api>, false>(devices, connect_nccl(devices, world, ranks), numbered_places(ranks),
                                                          c.model, c.layout, c.run) == on_hosts(c.model, c.layout, c.run));
    }
    expect_clean(machine);
  }
}

namespace {

/// Of all ranks.
struct nccl_traffic {
  std::size_t calls = 0;  ///< sends, receives and collectives
  std::size_t scatters = 0, gathers = 0, registered = 0;
  double bytes = 0;
  std::map<std::string, std::size_t> first_bytes;  ///< of each kind of collective
};
found on_nccl(cuda_check::machine& machine, const training_case& c, nccl_traffic* told = nullptr) {
  fake_nccl_world world(machine);
  const int ranks = c.layout.ranks();
  found result;
  {
    fake_devices devices(cuda_check::api{&machine}, {.records = 64});
    result = on_fake<cuda_backend<cuda_check::api>, false>(devices, connect_nccl(devices, world, ranks, {.registers = true}),
                                                           numbered_places(ranks), c.model, c.layout, c.run);
  }
  CHECK(world.calls("ncclCommDeregister") == world.calls("ncclCommRegister"));
  if (told) {
    told->registered = world.calls("ncclCommRegister");
    told->bytes = world.sent_bytes();
    told->first_bytes = world.first_bytes(ranks);
    for (const auto* name :
         {"ncclSend", "ncclRecv", "ncclAllReduce", "ncclReduceScatter", "ncclAllGather", "ncclBroadcast", "ncclReduce"})
      told->calls += world.calls(name);
    told->gathers = world.calls("ncclAllGather");
    told->scatters = world.calls("ncclReduceScatter");
  }
  expect_clean(machine);
  return result;
}

/// Sums of the same terms in other orders differ by roundings.
void expect_close(const found& a, const found& b) {
  const auto close = [](double x, double y) { return std::abs(x - y) <= 1e-9 * (std::abs(x) + std::abs(y)) + 1e-12; };
  REQUIRE(a.losses.size() == b.losses.size());
  for (std::size_t k = 0; k < a.losses.size(); ++k) CHECK(close(a.losses[k], b.losses[k]));
  for (std::size_t k = 0; k < a.norms.size(); ++k) CHECK(close(a.norms[k], b.norms[k]));
  REQUIRE(a.state.size() == b.state.size());
  for (const auto& [name, elements] : a.state)
    for (const auto& [k, bits] : elements) {
      const auto other = b.state.at(name).at(k);
      double x = 0, y = 0;
      std::memcpy(&x, &bits, sizeof x), std::memcpy(&y, &other, sizeof y);
      CHECK(close(x, y));
    }
}

}  // namespace

TEST_CASE("[threads] trainings on memory and streams from outside have the bits of hosts and make none of their own") {
  const real_toy t{.layers = 4};
  const training_case c{t, layout_of(t, "1f1b", 2, 2, {1, 2}), {.steps = 2}};
  const auto wanted = on_hosts(c.model, c.layout, c.run);
  const auto places = numbered_places(c.layout.ranks());
  for (const bool over_nccl : {false, true}) {
    CAPTURE(over_nccl);
    cuda_check::machine machine({.seed = 800, .devices = 8, .lazy = over_nccl});
    fake_nccl_world world(machine);
    {
      outside brought(machine);
      {
        fake_devices devices(cuda_check::api{&machine}, {.records = 64}, brought.adopted());
        using backend = cuda_backend<cuda_check::api>;
        using local = cuda_local_communicator<fake_tensor, cuda_check::api>;
        const auto run = [&](auto ends) {
          return on_fake<backend, false>(devices, std::move(ends), places, c.model, c.layout, c.run);
        };
        // What a training leaves behind serves the next one.
        for (int training = 0; training < 2; ++training)
          CHECK((over_nccl ? run(connect_nccl(devices, world, c.layout.ranks())) : run(local::connect(devices, places))) ==
                wanted);
        // All work is on streams from outside, as there are no others.
        int streams = 0;
        for (int d = 0; d < 8; ++d) streams += machine.streams_of(d);
        CHECK(streams == brought.streams());
        CHECK(machine.calls("cudaMallocFromPoolAsync") == static_cast<std::size_t>(brought.slabs()));
        CHECK(machine.calls("cudaMemPoolCreate") == static_cast<std::size_t>(brought.slabs()));
        CHECK(machine.calls("cudaStreamDestroy") == 0);
        CHECK(brought.slabs() == c.layout.ranks());
        std::size_t allocations = 0;
        for (int d = 0; d < 8; ++d) allocations += devices.memory(d).allocations;
        CHECK(allocations > static_cast<std::size_t>(brought.blocks()));
      }
      CHECK(brought.blocks_out() == 0);
    }
    expect_clean(machine);
  }
}

TEST_CASE("[threads] trainings whose gradients NCCL sums are those of hosts up to rounding, also where streams work in order") {
  std::uint64_t seed = 500;
  auto all = cases();
  // Shared state of unlike shares between some ranks, which goes by sends, and of equal ones with others of them.
  const real_toy t{.layers = 12};
  auto unlike = side_by_side({layout_of(t, "1f1b", 1, 2, {2}, 1), layout_of(t, "1f1b", 2, 2, {2, 2}, 1)});
  unlike.pipelines[1].groups[0].state_shares = {0.75, 0.25};
  all.push_back({t, unlike, {}});
  for (auto c : all) {
    const auto text = to_csv(c.layout.pipelines[0].order);
    CAPTURE(text);
    CAPTURE(c.layout.ranks());
    c.run.sums_in_order = false;
    cuda_check::machine machine(
        {.seed = ++seed, .devices = 8, .lazy = seed % 3 == 0, .in_order = seed % 2 == 0, .launch_queue = 32});
    expect_close(on_nccl(machine, c), on_hosts(c.model, c.layout, c.run));
  }
}

TEST_CASE("[threads] gradients as of 4 GB in buckets as of 64 MiB take a call of NCCL for each bucket, on each of 8 ranks" *
          doctest::skip(sanitizer_share > 1)) {
  const real_toy t{.layers = 10};
  std::size_t bytes = 0;
  for (int l = 0; l < t.layers; ++l) {
    auto layer = t.make(l);
    for (const matrix<double>& g : layer.gradients()) bytes += sizeof(double) * g.rows() * g.columns();
  }
  // With shared state one to scatter sums, and one to gather what owners have made of them: each half of an all-reduce. Larger
  // buckets there, as the test takes its time by calls. With shared parameters sums are scattered, too, and a layer's parameters
  // are gathered by one call for each use.
  for (const int zero : {0, 1, 3}) {
    CAPTURE(zero);
    training_case c{t, even_layout(t.layers, schedule_of("1f1b", 1, 1), 8), {.sums_in_order = false}};
    c.layout.pipelines[0].groups.push_back({.degrees = {.data = 8}, .zero = zero});
    c.run.joint_bytes = static_cast<std::size_t>(std::ceil(static_cast<double>(bytes) * (64 << 20) / 4e9 / sizeof(double))) *
                        sizeof(double) * (zero == 0 ? 1 : 10);
    const std::size_t buckets = (bytes + c.run.joint_bytes - 1) / c.run.joint_bytes, calls_each = zero == 1 ? 2 : 1;
    std::array<nccl_traffic, 2> of{};
    for (const int steps : {1, 2}) {
      c.run.steps = steps;
      cuda_check::machine machine({.seed = 600, .devices = 8, .most_turns_late = 0});
      (void)on_nccl(machine, c, &of.at(static_cast<std::size_t>(steps - 1)));
    }
    const std::size_t calls = of[1].calls - of[0].calls, scatters = of[1].scatters - of[0].scatters;
    CHECK(calls <= 8 * calls_each * 100);
    CHECK((of[1].registered > 0) == (zero < 3));  // whose buffers are freed in each step
    if (zero == 3) {
      const auto layers = static_cast<std::size_t>(t.layers);
      CHECK(of[1].gathers - of[0].gathers == 8 * 2 * layers);  // for forwards and for backwards
      CHECK(scatters <= 8 * (buckets + layers));
      CHECK(calls == scatters + 8 * 2 * layers);
      continue;
    }
    CHECK(calls == 8 * calls_each * buckets);
    const double sent = (of[1].bytes - of[0].bytes) / 8, whole = 2 * 7.0 / 8 * static_cast<double>(bytes);
    // What connects sums as much as a bucket, in doubles and parts of one size.
    const std::size_t elements = c.run.joint_bytes / sizeof(double), part = zero == 0 ? elements / 8 : (elements + 7) / 8;
    CHECK(of[1].first_bytes.size() == (zero == 0 ? 1 : 3));
    for (const auto& [name, first] : of[1].first_bytes) CHECK(first == std::max<std::size_t>(part, 1) * 8 * sizeof(double));
    // A bucket may have up to 7 elements more, for parts of one size.
    CHECK(sent >= whole - 1e-3);
    CHECK(sent <= whole + (zero == 0 ? 1e-3 : static_cast<double>(buckets) * 2 * 7.0 / 8 * 7 * sizeof(double)));
  }
}

TEST_CASE("[threads] trainings over NCCL between some ranks and the hosts' network between others have the bits of hosts") {
  std::uint64_t seed = 400;
  for (const auto& c : cases()) {
    const auto& line = c.layout.pipelines[0];
    if (line.ranks() > line.order.ranks) continue;  // slices of groups are not copied by way of hosts
    const auto text = to_csv(line.order);
    CAPTURE(text);
    CAPTURE(c.layout.ranks());
    // Two clusters of devices and, in one case of two, a host: ranks 0 and 1, and all others.
    auto places = numbered_places(c.layout.ranks());
    if (seed % 2 == 0) places.back() = -1;
    const auto direct = [&](int a, int b) {
      return (a < 2) == (b < 2) && places[static_cast<std::size_t>(a)] >= 0 && places[static_cast<std::size_t>(b)] >= 0;
    };
    auto layout = c.layout;
    for (auto& one : layout.pipelines)
      one.order =
          by_way_of_hosts(one.order, [&](int from, int to) { return !direct(one.first_rank + from, one.first_rank + to); });
    cuda_check::machine machine({.seed = ++seed, .devices = 8, .in_order = seed % 3 == 0, .launch_queue = 32});
    fake_nccl_world world(machine);
    {
      fake_devices devices(cuda_check::api{&machine}, {.records = 64});
      auto ends = connect_mixed(devices, world, places, [&](const edge& e) { return direct(e.from, e.to); });
      CHECK(on_fake<cuda_backend<cuda_check::api>, true>(devices, std::move(ends), places, c.model, layout, c.run) ==
            on_hosts(c.model, c.layout, c.run));
    }
    expect_clean(machine);
  }
}

TEST_CASE("[threads] a step that is skipped leaves parameters as they are, and the next one goes on, also over NCCL") {
  const real_toy t{.layers = 4};
  auto layout = layout_of(t, "1f1b", 2, 2, {2, 1}, 1);
  const how three{.steps = 3};
  for (const bool over_nccl : {false, true}) {
    CAPTURE(over_nccl);
    cuda_check::machine machine({.seed = 7, .devices = 3});
    fake_nccl_world world(machine);
    {
      fake_devices devices(cuda_check::api{&machine}, {.records = 64});
      const auto places = numbered_places(3);
      const auto run = [&](auto ends, const how& h, double bad_target) {
        using communicator = typename decltype(ends)::value_type;
        std::vector<found> all(3);
        std::vector<int> skipped(3, 0);
        hetsched::run_on_threads(std::move(ends), [&](communicator& comm) {
          const auto r = static_cast<std::size_t>(comm.rank());
          const cuda_backend<cuda_check::api> own(devices, places[r], "rank " + std::to_string(r));
          const auto bound = own.bind();
          const auto q = own.compute_queue();
          auto trainer = hetsched::make_trainer<fake_tensor>(
              layout, [&](int l) { return layer_on(q, t, l); }, shape_after, comm, sgd_on_queue{h.optimizer}, options_for(t, h),
              own);
          if (bad_target != 0) {
            std::vector<fake_tensor> inputs, targets;
            for (int m = 0; m < 2; ++m) {
              auto [input, target] = t.batch(layout, 9, 0, m);
              target(0, 0) = bad_target;
              inputs.push_back(upload(q, rows_of(input, trainer.samples())));
              targets.push_back(upload(q, rows_of(target, trainer.samples())));
            }
            skipped[r] =
                !trainer.step(std::span<const fake_tensor>(inputs), std::span<const fake_tensor>(targets), toy_loss).updated;
            trainer.set_committed_step(0);
          }
          train_rank(
              trainer, t, h, comm.rank(), [&](const matrix<double>& m) { return upload(q, m); }, toy_loss, all[r]);
          q.finish();
        });
        if (bad_target != 0) CHECK(skipped == std::vector<int>{1, 1, 1});
        return merge(all);
      };
      const auto with = [&](const how& h, double bad) {
        if (over_nccl) return run(connect_nccl(devices, world, 3), h, bad);
        return run(cuda_local_communicator<fake_tensor, cuda_check::api>::connect(devices, places), h, bad);
      };
      CHECK(with(three, std::numeric_limits<double>::infinity()) == with(three, 0));
    }
    expect_clean(machine);
  }
}

namespace {

/// A layer that is told of each of its uses.
struct told_layer {
  using context = any_fake::context;
  any_fake own;
  std::function<void(const fake_queue&)> used;
  [[nodiscard]] context make_context() { return own.make_context(); }
  [[nodiscard]] fake_tensor forward(const fake_tensor& x, context& c, const fake_queue& q) {
    used(q);
    return own.forward(x, c, q);
  }
  [[nodiscard]] fake_tensor backward(const fake_tensor& dy, context& c, const fake_queue& q) {
    used(q);
    return own.backward(dy, c, q);
  }
  [[nodiscard]] auto parameters() { return own.parameters(); }
  [[nodiscard]] auto gradients() { return own.gradients(); }
};

}  // namespace

TEST_CASE("[threads] parameters of the next layer are gathered over NCCL while a layer's kernels run, and not before") {
  // In each use a kernel lets the next gather take place, and ends when that has been done.
  const real_toy t{.layers = 4};
  const how three{.steps = 3};
  const auto layout = layout_of(t, "1f1b", 1, 1, {2}, 3), whole = layout_of(t, "1f1b", 1, 1, {2});
  const std::size_t uses = 8;  // of a step
  cuda_check::machine machine({.seed = 17});
  fake_nccl_world world(machine);
  {
    fake_devices devices(cuda_check::api{&machine}, {.records = 256});
    std::vector<found> all(2);
    hetsched::run_on_threads(connect_nccl(devices, world, 2), [&](nccl_ranks& comm) {
      const int device = comm.rank();
      cuda_backend<cuda_check::api> own(devices, device, "rank " + std::to_string(device));
      const auto bound = own.bind();
      const auto q = own.compute_queue();
      std::size_t use = 0, before = 0, late = 0;
      const auto used = [&](const fake_queue& on) {
        const bool last = use++ % uses == uses - 1;
        const auto wanted = before + use + 1;
        if (use > three.steps * uses) return;  // the evaluation
        (void)machine.launch_until(on.stream(), "a use", {},
                                   [&, wanted, last, until_s = steady_now_s() + 15, begun = false](bool& moved) mutable {
                                     if (!std::exchange(begun, true)) moved = true, ++world.allowed[device];
                                     if (last || world.ended[device] >= wanted) return true;
                                     const bool is_late = steady_now_s() > until_s;
                                     late += is_late;
                                     return is_late;
                                   });
        if (use == three.steps * uses) on.finish(), machine.locked([&] { world.allowed.erase(device); });
      };
      auto trainer = hetsched::make_trainer<fake_tensor>(
          layout,
          [&](int l) {
            return told_layer{layer_on(q, t, l), used};
          },
          shape_after, comm, sgd_on_queue{three.optimizer}, options_for(t, three), own);
      machine.locked([&] {
        before = world.ended[device];
        world.allowed[device] = 1;
      });
      train_rank(
          trainer, t, three, device, [&](const matrix<double>& m) { return upload(q, m); }, toy_loss,
          all[static_cast<std::size_t>(device)]);
      q.finish();
      CHECK(late == 0);
    });
    CHECK(merge(all) == on_hosts(t, whole, three));
  }
  expect_clean(machine);
}

TEST_CASE("[threads] stages that are captured as CUDA graphs train with the bits of hosts; not from ZeRO stage 2 on") {
  std::uint64_t seed = 200;
  for (const auto& c : cases()) {
    std::vector<int> places;
    for (int r = 0; r < c.layout.ranks(); ++r) places.push_back(r);
    cuda_check::machine machine({.seed = ++seed, .devices = 8, .in_order = seed % 2 == 0});
    const auto text = to_csv(c.layout.pipelines[0].order);
    CAPTURE(text);
    if (c.layout.pipelines[0].group(0).zero >= 2) {
      CHECK_THROWS_WITH_AS((void)on_fake<cuda_graph_backend<cuda_check::api>>(machine, places, c.model, c.layout, c.run),
                           "from ZeRO stage 2 on gradients are freed in between, so that stages cannot be captured", input_error);
      continue;
    }
    CHECK(on_fake<cuda_graph_backend<cuda_check::api>>(machine, places, c.model, c.layout, c.run) ==
          on_hosts(c.model, c.layout, c.run));
    expect_clean(machine);
  }
}

TEST_CASE("[threads] a training goes on from the state of another on GPUs, hosts, and in another layout, with the same bits") {
  const real_toy t{.layers = 12, .ties = {{{0, 0}, {10, 0}}}};
  const auto four = layout_of(t, "1f1b", 2, 4), sharded = layout_of(t, "1f1b", 2, 4, {1, 1}, 1),
             alone = layout_of(t, "1f1b", 1, 4);
  const how all{.steps = 5}, first{.steps = 2};
  const auto wanted = on_hosts(t, four, all);
  const auto expect = [&](const found& rest) {
    CHECK(rest.losses == std::vector<double>(wanted.losses.begin() + 2, wanted.losses.end()));
    CHECK(rest.evaluations == wanted.evaluations);
    CHECK(rest.state == wanted.state);
  };
  cuda_check::machine machine({.seed = 31});
  const auto begun = on_fake(machine, {0, 1}, t, four, first);
  const how rest{.steps = 3, .begin_with = &begun.state, .first_step = 2};
  expect(on_hosts(t, four, rest));
  expect(on_fake(machine, {1}, t, alone, rest));
  expect(on_fake(machine, {-1, 1}, t, sharded, rest));
  const auto begun_on_hosts = on_hosts(t, alone, first);
  expect(on_fake(machine, {0, -1}, t, four, {.steps = 3, .begin_with = &begun_on_hosts.state, .first_step = 2}));
  expect_clean(machine);
}

TEST_CASE("[threads] ranks whose layers on GPUs begin with other values are named") {
  const real_toy t{.layers = 4}, other{.layers = 4, .seed = 2};
  const auto layout = side_by_side({layout_of(t, "1f1b", 1, 2), layout_of(t, "1f1b", 1, 2)});
  cuda_check::machine machine({.seed = 5});
  fake_devices devices(cuda_check::api{&machine}, {.records = 64});
  const auto ends = cuda_local_communicator<fake_tensor, cuda_check::api>::connect(devices, {0, 1});
  std::vector<std::string> told(2);
  hetsched::run_on_threads(ends, [&](auto comm) {
    const int r = comm.rank();
    cuda_backend<cuda_check::api> own(devices, r, "rank " + std::to_string(r));
    try {
      (void)hetsched::make_trainer<fake_tensor>(
          layout, [&](int l) { return layer_on(own.compute_queue(), r == 0 ? t : other, l); }, shape_after, comm,
          sgd_on_queue{{.momentum = 0.5}}, {}, own);
    } catch (const input_error& e) {
      told[static_cast<std::size_t>(r)] = e.what();
    }
  });
  for (const auto& text : told) CHECK(text == "layer 0 is not made alike on ranks 0 and 1: parameter 0 begins with other values");
}

namespace {

/// y = tanh(x w), a weight for each column; its numbers and their gradients are floats, whatever comes in and goes out.
template <class In, class Out>
void gate_forward(const In* x, const float* w, Out* y, std::size_t rows, std::size_t columns) {
  for (std::size_t k = 0; k < rows * columns; ++k) y[k] = Out(std::tanh(static_cast<float>(x[k]) * w[k % columns]));
}
template <class In, class Out>
void gate_backward(const In* x, const float* w, const Out* dy, In* dx, float* dw, std::size_t rows, std::size_t columns) {
  for (std::size_t k = 0; k < rows * columns; ++k) {
    const float by = w[k % columns], t = std::tanh(static_cast<float>(x[k]) * by);
    const float slope = static_cast<float>(dy[k]) * (1 - t * t);
    dw[k % columns] += slope * static_cast<float>(x[k]);
    dx[k] = In(slope * by);
  }
}
template <class In, class Out>
struct gate_of_elements {
  using context = const tensor_of<In>*;
  gate_of_elements(const std::vector<float>& from, const fake_queue& q) {
    const tensor_shape shape{1, from.size()};
    weight.emplace_back(shape, q), gradient.emplace_back(shape, q);
    cuda_check::launch(q, "a weight", {writes(weight[0])},
                       [from, to = weight[0].data()](const auto& v) { std::copy(from.begin(), from.end(), v.write(to)); });
  }
  tensor_of<Out> forward(const tensor_of<In>& x, context& c, const fake_queue& q) {
    c = &x;
    tensor_of<Out> y(x.shape(), q);
    cuda_check::launch(q, "a gate", {reads(x), reads(weight[0]), writes(y)},
                       [x = x.data(), w = weight[0].data(), y = y.data(), s = x.shape()](const auto& v) {
                         gate_forward(v.read(x), v.read(w), v.write(y), s[0], s[1]);
                       });
    return y;
  }
  tensor_of<In> backward(const tensor_of<Out>& dy, context& c, const fake_queue& q) {
    tensor_of<In> dx(dy.shape(), q);
    const auto& x = *c;
    const wide &w = weight[0], &dw = gradient[0];
    cuda_check::launch(
        q, "backward of a gate", {reads(x), reads(w), reads(dy), writes(dx), writes(dw)},
        [x = x.data(), w = w.data(), dy = dy.data(), dx = dx.data(), dw = dw.data(), s = x.shape()](const auto& v) {
          gate_backward(v.read(x), v.read(w), v.read(dy), v.write(dx), v.write(dw), s[0], s[1]);
        });
    return dx;
  }
  std::vector<wide>& parameters() { return weight; }
  std::vector<wide>& gradients() { return gradient; }
  std::vector<wide> weight, gradient;
};

struct descent {
  static constexpr float rate = 0.25F;
  [[nodiscard]] static std::string_view name() { return "descent"; }
  [[nodiscard]] static std::span<const std::string_view> state_names() { return {}; }
  static void update(wide& w, wide& g, std::span<wide>, const parameter_id&, std::int64_t, const fake_queue& q) {
    work_on(q, {&g.buffer()}, {&w.buffer()}, [&] {
      cuda_check::launch(q, "an update", {reads(g), writes(w)}, [g = g.data(), w = w.data(), n = w.size()](const auto& v) {
        for (std::size_t k = 0; k < n; ++k) v.write(w)[k] -= rate * v.read(g)[k];
      });
    });
  }
};

/// A step's losses, by hand: layers of floats, with tensors of bf16 numbers between them.
struct by_hand {
  static constexpr std::size_t rows = 2, columns = 6;
  static constexpr int layers = 4, microbatches = 4;
  std::vector<std::vector<float>> weights;
  by_hand() {
    for (int l = 0; l < layers; ++l)
      for (std::size_t c = 0; c < columns; ++c) {
        if (c == 0) weights.emplace_back();
        weights.back().push_back(0.7F + 0.1F * static_cast<float>(l) + 0.03F * static_cast<float>(c));
      }
  }
  static std::vector<float> input(int m) {
    std::vector<float> x;
    for (std::size_t k = 0; k < rows * columns; ++k)
      x.push_back(0.1F * static_cast<float>(m + 1) + 0.05F * static_cast<float>(k));
    return x;
  }
  static double loss_of(const float* y, float* gradient) {  // a mean over rows
    double sum = 0;
    for (std::size_t k = 0; k < rows * columns; ++k) {
      const double d = static_cast<double>(y[k]) - 0.5;
      sum += 0.5 * d * d / static_cast<double>(rows);
      gradient[k] = static_cast<float>(d / static_cast<double>(rows));
    }
    return sum;
  }
  double step() {
    std::vector<std::vector<float>> sums(layers, std::vector<float>(columns));
    double loss = 0;
    for (int m = 0; m < microbatches; ++m) {
      const auto x = input(m);
      std::vector<bf16> y[layers], dy[layers];
      for (auto* all : {y, dy})
        for (int l = 0; l < layers; ++l) all[l].resize(x.size());
      std::vector<float> last(x.size()), gradient(x.size()), first(x.size());
      gate_forward(x.data(), weights[0].data(), y[0].data(), rows, columns);
      gate_forward(y[0].data(), weights[1].data(), y[1].data(), rows, columns);
      gate_forward(y[1].data(), weights[2].data(), y[2].data(), rows, columns);
      gate_forward(y[2].data(), weights[3].data(), last.data(), rows, columns);
      loss += loss_of(last.data(), gradient.data()) / microbatches;
      gate_backward(y[2].data(), weights[3].data(), gradient.data(), dy[2].data(), sums[3].data(), rows, columns);
      gate_backward(y[1].data(), weights[2].data(), dy[2].data(), dy[1].data(), sums[2].data(), rows, columns);
      gate_backward(y[0].data(), weights[1].data(), dy[1].data(), dy[0].data(), sums[1].data(), rows, columns);
      gate_backward(x.data(), weights[0].data(), dy[0].data(), first.data(), sums[0].data(), rows, columns);
    }
    for (std::size_t l = 0; l < layers; ++l)
      for (std::size_t c = 0; c < columns; ++c) weights[l][c] -= descent::rate * (sums[l][c] / microbatches);
    return loss;
  }
};

}  // namespace

TEST_CASE("[threads] boundaries of bf16 numbers between layers whose parameters and gradients are floats") {
  constexpr int steps = 3;
  std::vector<double> wanted;
  by_hand whole;
  for (int i = 0; i < steps; ++i) wanted.push_back(whole.step());
  const auto wire = carried_shape<wide, narrow>({by_hand::rows, by_hand::columns});
  CHECK(wire == tensor_shape{by_hand::rows, by_hand::columns / 2});
  const tensor_shape odd{2, 3};
  CHECK_THROWS_WITH_AS(((void)carried_shape<wide, narrow>(odd)),
                       "a row of 6 bytes is carried in elements of 4: expected is a multiple", input_error);
  for (const int ranks : {1, 2, 4, 3}) {  // the last one's stage has two data ranks
    CAPTURE(ranks);
    const bool shared = ranks == 3;
    std::vector<int> warmups;
    for (int s = shared ? 2 : ranks; s > 0; --s) warmups.push_back(s);
    auto layout = even_layout(by_hand::layers, one_f_one_b(warmups, by_hand::microbatches), by_hand::rows);
    if (shared) layout.pipelines[0].groups = {{.degrees = {.data = 1}}, {.degrees = {.data = 2}}};
    cuda_check::machine machine({.seed = 7, .devices = 4});
    std::vector<double> losses;
    {
      fake_devices devices(cuda_check::api{&machine});
      using channels = cuda_local_communicator<wide, cuda_check::api>;
      hetsched::run_on_threads(channels::connect(devices, numbered_places(ranks)), [&](channels& comm) {
        const cuda_backend<cuda_check::api> own(devices, comm.rank(), "rank " + std::to_string(comm.rank()));
        const auto bound = own.bind();
        const auto q = own.compute_queue();
        using any = any_layer<wide, fake_queue>;
        const auto make = [&](int l) -> any {
          const by_hand start;
          const auto& w = start.weights[static_cast<std::size_t>(l)];
          if (l == 0) return cuda_carried_layer<wide, wide, narrow, gate_of_elements<float, bf16>, cuda_check::api>({w, q});
          if (l + 1 == by_hand::layers)
            return cuda_carried_layer<wide, narrow, wide, gate_of_elements<bf16, float>, cuda_check::api>({w, q});
          return cuda_carried_layer<wide, narrow, narrow, gate_of_elements<bf16, bf16>, cuda_check::api>({w, q},
                                                                                                         {by_hand::columns});
        };
        const auto loss = [](const wide& y, const wide&, const fake_queue& on, double& value) {
          wide gradient(y.shape(), on);
          cuda_check::launch(
              on, "loss", {reads(y), writes(gradient), {&value, sizeof value, true}},
              [y = y.data(), g = gradient.data(), n = y.size(), &value, rows = static_cast<double>(y.shape()[0])](const auto& v) {
                double sum = 0;
                for (std::size_t k = 0; k < n; ++k) {
                  const double d = static_cast<double>(v.read(y)[k]) - 0.5;
                  sum += 0.5 * d * d / rows;
                  v.write(g)[k] = static_cast<float>(d / rows);
                }
                *v.write(&value) = sum;
              });
          return gradient;
        };
        auto trainer = make_trainer<wide>(
            layout, make,
            [](int, int rows) {
              return carried_shape<wide, narrow>({static_cast<std::size_t>(rows), by_hand::columns});
            },
            comm, descent{}, {.deadline_s = 20}, own);
        std::vector<wide> inputs, targets;
        const auto part = trainer.samples();
        for (int m = 0; m < by_hand::microbatches; ++m) {
          const auto all = by_hand::input(m);
          const std::vector<float> mine(all.begin() + part.first * static_cast<std::int64_t>(by_hand::columns),
                                        all.begin() + (part.first + part.size()) * static_cast<std::int64_t>(by_hand::columns));
          wide& x = inputs.emplace_back(tensor_shape{static_cast<std::size_t>(part.size()), by_hand::columns}, q);
          cuda_check::launch(q, "an input", {writes(x)},
                             [mine, to = x.data()](const auto& v) { std::copy(mine.begin(), mine.end(), v.write(to)); });
          targets.emplace_back(x.shape(), q);
        }
        for (int i = 0; i < steps; ++i) {
          const auto done = trainer.step(std::span<const wide>(inputs), std::span<const wide>(targets), loss);
          if (comm.rank() == 0) losses.push_back(done.loss);
        }
        q.finish();
      });
    }
    REQUIRE(losses.size() == steps);
    for (std::size_t i = 0; i < steps; ++i)
      if (shared)
        CHECK(losses[i] == doctest::Approx(wanted[i]).epsilon(1e-6));
      else
        CHECK(losses[i] == wanted[i]);
    expect_clean(machine);
  }
}
