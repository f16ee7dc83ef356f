// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cost/models/analytic.hpp>
#include <hetsched/cost/models/tile_cost.hpp>
#include <hetsched/model/families.hpp>

using namespace hetsched;

namespace {

cluster mixed_cluster() {
  return {{{"a", *find_device("A100-SXM4-40GB"), 2, 4, {5e-6, 300e9}, {1e-5, 25e9}},
           {"v", *find_device("V100-SXM2-32GB"), 1, 4, {5e-6, 150e9}, {}}},
          {{0, 1, {5e-5, 1e9}}}};
}

transformer small_model() { return gpt({.layers = 3, .hidden = 1024, .heads = 16, .sequence = 512}); }

doctest::Approx near(double x) { return doctest::Approx(x).epsilon(1e-12); }

constexpr placement one{{0, 1, 1}, {}};

double sum(const tile_device& d, const std::vector<operator_use>& operators) {
  double seconds = 0;
  for (const auto& use : operators) seconds += use.times * predict_operator(d, use.op).seconds;
  return seconds;
}

// Layers of a product thrice, twice that often in backward, and once for selective recomputation.
struct two_layers {
  layer_chain layers{{{.name = "a"}, {.name = "b"}}};

  [[nodiscard]] const layer_chain& chain() const { return layers; }
  [[nodiscard]] int kind(int index) const { return index; }
  [[nodiscard]] layer_operators operators(int, const layer_share& share) const {
    const operator_use use{gemm(share.samples, 1, 1, number_format::fp16), 3};
    return {{use}, {use, use}, {use}, {{use.op, 1}}};
  }
};

// A second for each row.
struct row_timer {
  double operator()(const tile_device&, const operator_shape& op) const { return static_cast<double>(op.m); }
};

}  // namespace

TEST_CASE("on one device a layer takes what its operators take") {
  const auto model = make_tile_cost(mixed_cluster(), small_model(), {.microbatch_size = 4},
                                    {.attention = attention_kernels::flash}, granularity::sublayer);
  const auto device = make_tile_device(*find_device("A100-SXM4-40GB"));
  stage_cost total;
  for (int i = 0; i < model.layer_count(); ++i) {
    const auto operators = model.model().operators(i, {.samples = 4});
    const auto cost = model.layer(i, one);
    CHECK(cost.forward_s == near(sum(device, operators.forward)));
    CHECK(cost.backward_s == near(sum(device, operators.backward)));
    CHECK(cost.weight_backward_s == near(sum(device, operators.weight_backward)));
    total += cost;
  }
  drop_copies(total, {0, model.layer_count()}, model.copies(one));
  CHECK(model.stage({0, model.layer_count()}, one) == total);
  CHECK(model.model().style().format == number_format::fp16);
  CHECK(make_tile_cost(mixed_cluster(), small_model(), {.precision = precision::tf32}).model().style().format ==
        number_format::tf32);
}

TEST_CASE("times, efficiency, launches and recomputation by hand") {
  const auto layer = [](tile_cost_options options) {
    options.microbatch_size = 2;
    auto where = one;
    where.recompute = options.recompute.front();
    return tile_cost_model(mixed_cluster(), two_layers{}, options, row_timer{}).layer(0, where);
  };
  CHECK(layer({}).forward_s == 6);
  CHECK(layer({}).backward_s == 12);
  CHECK(layer({}).weight_backward_s == 6);
  CHECK(layer({.efficiency = {{"A100-SXM4-40GB", {1, 1, 0.5, 1}}, {"V100-SXM2-32GB", {1, 1, 0.1, 1}}}}).forward_s == 12);
  CHECK(layer({.host_launch_s = 1}).forward_s == 6);
  CHECK(layer({.host_launch_s = 10}).forward_s == 30);
  CHECK(layer({.host_launch_s = 10}).backward_s == 60);
  CHECK(layer({.recompute = {recomputation::selective}}).backward_s == 14);
  CHECK(layer({.recompute = {recomputation::full}}).backward_s == 18);
  CHECK(layer({.recompute = {recomputation::full}}).forward_s == 6);
  CHECK(layer({.recompute = {recomputation::full}, .host_launch_s = 10}).backward_s == 90);
}

TEST_CASE("memory, placements, collectives, transfers and updates are the analytic model's") {
  const auto hardware = mixed_cluster();
  for (const auto recompute : {recomputation::none, recomputation::selective, recomputation::full})
    for (int zero = 0; zero <= 3; ++zero) {
      // Operators that take no time leave the communication.
      const auto timer = [](const tile_device&, const operator_shape&) { return 0.0; };
      const tile_cost_model silent(hardware, transformer_operators(small_model()),
                                   {.microbatch_size = 8, .recompute = {recompute}, .zero = {zero}, .max_context = 2}, timer);
      const analytic_options options{
          .microbatch_size = 8, .recompute = {recompute}, .zero = {zero}, .layer_overhead_s = 0, .max_context = 2};
      const analytic_cost_model slow(hardware, make_chain(small_model()), options);
      auto without = make_chain(small_model());
      for (auto& l : without.layers) l.forward_flops = l.backward_flops = l.weight_backward_flops = l.selective_flops = 0;
      auto fast = hardware;
      for (auto& s : fast.subclusters) s.device.memory_bandwidth = 1e30;
      const analytic_cost_model communication(fast, without, options);
      for (const auto& mesh : submeshes(hardware.subclusters[0], 0)) {
        CHECK(silent.placements(mesh) == slow.placements(mesh));
        for (const auto& where : silent.placements(mesh)) {
          for (int i = 0; i < silent.layer_count(); ++i) {
            const auto cost = silent.layer(i, where), expected = slow.layer(i, where), pure = communication.layer(i, where);
            CHECK(cost.weight_bytes == expected.weight_bytes);
            CHECK(cost.activation_bytes == expected.activation_bytes);
            CHECK(cost.gradient_bytes == expected.gradient_bytes);
            CHECK(cost.optimizer_bytes == expected.optimizer_bytes);
            CHECK(cost.temporary_bytes == expected.temporary_bytes);
            CHECK(cost.forward_s == near(pure.forward_s));
            CHECK(cost.backward_s == near(pure.backward_s));
          }
          CHECK(silent.update({1, 4}, where) == slow.update({1, 4}, where));
          const placement other{{1, 1, 4}, {1, 1, 4}};
          CHECK(silent.transfer(1, where, other) == slow.transfer(1, where, other));
          CHECK(silent.overheads(where) == slow.overheads(where));
          const std::vector<placement> holders{where, other};
          CHECK(silent.gradient_sync({1, 4}, holders) == slow.gradient_sync({1, 4}, holders));
        }
      }
    }
}

TEST_CASE("each share has its own price, also on submeshes that the cluster does not list") {
  const auto model = make_tile_cost(mixed_cluster(), small_model(), {.microbatch_size = 6});
  const auto device = make_tile_device(*find_device("A100-SXM4-40GB"));
  // Data parallel stages communicate nothing in forward; 3 devices are no usual submesh.
  for (const int data : {1, 2, 3})
    CHECK(model.layer(1, {{0, 1, data}, {data, 1, 1}}).forward_s ==
          near(sum(device, model.model().operators(1, {.samples = 6 / data}).forward)));
  const double reduced = 6 * static_cast<double>(model.model().chain().layers[1].tensor_reduce_bytes);
  for (const int tensor : {2, 4})
    CHECK(model.layer(1, {{0, 1, tensor}, {1, 1, tensor}}).forward_s ==
          near(sum(device, model.model().operators(1, {.samples = 6, .tensor = tensor}).forward) +
               2 * (tensor - 1) * (5e-6 + reduced / tensor / 300e9)));
  CHECK(model.layer(1, {{1, 1, 1}, {}}).forward_s > model.layer(1, one).forward_s);
}

TEST_CASE("what makes no sense is refused, and the device named") {
  const auto refused = [](cluster hardware, const tile_cost_options& options, const std::string& named) {
    try {
      (void)make_tile_cost(std::move(hardware), small_model(), options);
      FAIL("no error");
    } catch (const input_error& e) {
      CAPTURE(e.what());
      CHECK(std::string(e.what()).find(named) != std::string::npos);
    }
  };
  auto hardware = mixed_cluster();
  hardware.subclusters[1].device.multiprocessors = 0;
  refused(hardware, {}, "V100-SXM2-32GB");
  hardware = mixed_cluster();
  hardware.subclusters[0].device.peak_flops = {0, 0, 1e14, 0};
  refused(hardware, {.precision = precision::fp32}, "A100-SXM4-40GB");
  refused(mixed_cluster(), {.microbatch_size = 0}, "microbatch_size");
  refused(mixed_cluster(), {.host_launch_s = -1}, "host_launch_s");
  refused(mixed_cluster(), {.host_launch_s = std::nan("")}, "host_launch_s");
  refused(mixed_cluster(), {.efficiency = {{"A100-SXM4-40GB", {}}}}, "efficiency of A100-SXM4-40GB");
  refused(mixed_cluster(), {.zero = {4}}, "ZeRO");
}

TEST_CASE("both formula models price what a device lacks in the same other precision") {
  for (const auto& d : device_catalogue()) {
    if (d.multiprocessors < 1) continue;
    CAPTURE(d.name);
    const auto tiles = make_tile_device(d);
    for (const auto p : {precision::fp32, precision::tf32, precision::fp16, precision::bf16}) {
      const auto at = [](precision q) { return static_cast<std::size_t>(format_of(q)); };
      CHECK(tiles.peak_flops[at(p)] == d.flops(d.computes_in(p)));
      CHECK(tiles.on_matrix_units[at(p)] == tiles.on_matrix_units[at(d.computes_in(p))]);
    }
  }
  // A V100 has fp16 for bf16, of the same bytes; an A100 has both.
  const auto cluster = mixed_cluster();
  const auto small = small_model();
  const std::vector<device_efficiency> shares{{"V100-SXM2-32GB", {0.9, 0.8, 0.25, 0.5}}};
  for (const placement where : {placement{{0, 1, 2}, {1, 1, 2}}, placement{{1, 1, 2}, {1, 1, 2}}}) {
    for (const auto& efficiency : {std::vector<device_efficiency>{}, shares}) {
      const auto tile = [&](precision p) {
        const auto costs = make_tile_cost(cluster, small, {.precision = p, .efficiency = efficiency});
        return costs.stage({0, costs.layer_count()}, where);
      };
      const auto formula = [&](precision p) {
        const analytic_cost_model costs(cluster, make_chain(small, granularity::block),
                                        {.precision = p, .efficiency = efficiency});
        return costs.stage({0, costs.layer_count()}, where);
      };
      CHECK(tile(precision::bf16) == tile(precision::fp16));
      CHECK(formula(precision::bf16) == formula(precision::fp16));
      if (where.mesh.subcluster == 1) CHECK(formula(precision::tf32) == formula(precision::fp32));
    }
  }
}
