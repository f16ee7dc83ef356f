// SPDX-License-Identifier: Apache-2.0
#include "hostile.hpp"

#include <array>
#include <optional>
#include <vector>

#include <hetsched/cost/models/anchor.hpp>
#include <hetsched/cost/models/copied_part.hpp>
#include <hetsched/cost/models/corrected.hpp>
#include <hetsched/cost/models/hexiscale.hpp>
#include <hetsched/cost/models/layer_features.hpp>
#include <hetsched/cost/models/operator_correction.hpp>
#include <hetsched/cost/models/tile_cost.hpp>
#include <hetsched/cost/models/training_costs.hpp>
#include <hetsched/cost/models/training_stack.hpp>
#include <hetsched/cost/operators/calibrate.hpp>
#include <hetsched/cost/operators/residual.hpp>
#include <hetsched/cost/operators/tile.hpp>
#include <hetsched/cost/questions/check_cost.hpp>
#include <hetsched/cost/questions/describe.hpp>
#include <hetsched/cost/questions/memory_use.hpp>
#include <hetsched/cost/questions/parts.hpp>

using namespace hetsched;
using namespace hetsched::test;

namespace {

placement some_placement(random_source& r) {
  return {.mesh = {mostly(r, r.integer(0, 1), 30), mostly(r, 1, 30), mostly(r, 2, 30)},
          .degrees = {mostly(r, 2, 30), mostly(r, 1, 30), mostly(r, 1, 30), mostly(r, 1, 30)}};
}
transformer small_model() { return {.layers = 2, .hidden = 64, .heads = 4, .vocab = 128, .sequence = 32}; }
transformer some_model(random_source& r) {
  auto m = small_model();
  if (one_in(r, 3)) m.hidden = some_int(r);
  if (one_in(r, 4)) m.heads = some_int(r);
  if (one_in(r, 4)) m.sequence = some_int(r);
  // Legal models that are too many to make here are left out.
  if (one_in(r, 4)) m.layers = r.integer(-1, 3);
  return m;
}
hexiscale_cost::layer_shape some_shape(random_source& r) {
  return {some_time(r, 20), one_in(r, 10) ? some_double(r) : 32, one_in(r, 10) ? some_double(r) : 64, some_time(r, 20)};
}
std::vector<device_id> some_devices(random_source& r) {
  std::vector<device_id> all;
  for (int i = r.integer(one_in(r, 6) ? 0 : 1, 3); i > 0; --i)
    all.push_back({mostly(r, r.integer(0, 1), 20), mostly(r, r.integer(0, 1), 20), mostly(r, r.integer(0, 3), 20)});
  return all;
}
memory_overheads some_overheads(random_source& r) {
  return {.runtime_bytes = mostly64(r, 100),
          .buffer_bytes = mostly64(r, 10),
          .fragmentation = some_time(r),
          .margin = some_time(r),
          .communicator_bytes = mostly64(r, 50)};
}
stage_cost some_cost(random_source& r) {
  return {.forward_s = some_time(r, 20),
          .backward_s = some_time(r, 20),
          .weight_bytes = mostly64(r, 100, 20),
          .activation_bytes = mostly64(r, 10, 20),
          .weight_backward_s = some_time(r, 20),
          .gradient_bytes = mostly64(r, 20, 20),
          .optimizer_bytes = mostly64(r, 60, 20),
          .temporary_bytes = mostly64(r, 3, 20)};
}
operator_shape some_operator(random_source& r) {
  const auto f = static_cast<number_format>(r.integer(0, 5));
  auto op = one_in(r, 3)   ? gemm(64, 32, 16, f)
            : one_in(r, 3) ? flash_attention(4, 2, 64, 64, 32, true, f)
            : one_in(r, 3) ? cached_attention(4, 2, one_in(r, 2) ? 1 : 64, 64, 32, true, f)
            : one_in(r, 2) ? softmax(64, 32, f)
                           : elementwise(1000, 1, 1, f);
  if (one_in(r, 12)) op.m = some_int64(r);
  if (one_in(r, 12)) op.n = some_int64(r);
  if (one_in(r, 12)) op.k = some_int64(r);
  if (one_in(r, 12)) op.batch = some_int64(r);
  if (one_in(r, 12)) op.traffic_bytes = some_double(r);
  if (one_in(r, 20)) op.causal_share = some_double(r);
  if (one_in(r, 20)) op.key_heads = some_int64(r);
  return op;
}
device some_device(random_source& r) {
  auto d = catalogue_device(one_in(r, 2) ? "T4" : "A10");
  if (one_in(r, 8)) d.multiprocessors = some_int(r);
  if (one_in(r, 8)) d.memory_bandwidth = some_double(r);
  if (one_in(r, 8)) d.l2_bytes = some_int64(r);
  if (one_in(r, 8)) d.clock_hz = some_double(r);
  if (one_in(r, 8)) d.board_watts = some_double(r);
  if (one_in(r, 8)) d.peak_flops[1] = some_double(r);
  if (one_in(r, 16)) d.fp8_flops = some_double(r);
  if (one_in(r, 16)) d.int8_flops = some_double(r);
  if (one_in(r, 16)) d.class_speeds[1] = some_double(r);
  if (one_in(r, 16)) d.speed = some_double(r);
  return d;
}
/// Four layers that cost the same anywhere.
struct plain_costs {
  [[nodiscard]] int layer_count() const { return 4; }
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const { return {{.mesh = mesh}}; }
  [[nodiscard]] stage_cost layer(int, const placement&) const { return {.forward_s = 1, .backward_s = 2, .weight_bytes = 3}; }
  [[nodiscard]] stage_cost stage(layer_range l, const placement&) const {
    return {.forward_s = 1.0 * l.size(), .backward_s = 2.0 * l.size()};
  }
  [[nodiscard]] transfer_cost transfer(int, const placement&, const placement&) const { return 0.5; }
  [[nodiscard]] int slices() const { return 4; }
  [[nodiscard]] parts_cost sliced_stage(layer_range, std::span<const stage_part> parts) const {
    return {.parts = std::vector<stage_cost>(parts.size())};
  }
};
std::vector<stage_part> some_parts(random_source& r) {
  std::vector<stage_part> parts;
  const bool sliced = one_in(r, 3);
  for (int i = one_in(r, 8) ? 0 : r.integer(1, 3); i > 0; --i)
    parts.push_back({.where = {.mesh = {i % 2, 1, 1}, .degrees = {}},
                     .devices = {{{i % 2, 1, 1}, i}},
                     .samples = mostly(r, r.integer(1, 3), 20),
                     .slices = sliced          ? mostly(r, 2, 20)
                               : one_in(r, 20) ? some_int(r)
                                               : 0});
  return parts;
}
struct layer_copy {
  std::optional<copied_part> copy_of;
};

const std::vector<door> doors{
    {"exchange_s",
     [](random_source& r) {
       expect(hexiscale_cost::exchange_s(hardware(), some_devices(r), one_in(r, 6) ? some_double(r) : 1e6) >= 0, "a time");
     }},
    {"compute_layer_s",
     [](random_source& r) {
       expect(hexiscale_cost::compute_layer_s(some_shape(r), one_in(r, 6) ? some_double(r) : 1e12, mostly(r, 4)) >= 0, "a time");
     }},
    {"tensor_layer_s",
     [](random_source& r) { expect(hexiscale_cost::tensor_layer_s(some_shape(r), hardware(), some_devices(r)) >= 0, "a time"); }},
    {"gradient_layer_s",
     [](random_source& r) {
       expect(hexiscale_cost::gradient_layer_s(some_shape(r), hardware(), some_devices(r)) >= 0, "a time");
     }},
    {"boundary_s",
     [](random_source& r) {
       expect(hexiscale_cost::boundary_s(some_shape(r), hardware(), some_devices(r), some_devices(r)) >= 0, "a time");
     }},
    {"layer_bytes", [](random_source& r) { expect(hexiscale_cost::layer_bytes(some_shape(r), mostly(r, 4)) >= 0, "bytes"); }},
    {"layer_features",
     [](random_source& r) {
       const layer_case l{.sequence = 32,
                          .heads = 4,
                          .head_size = one_in(r, 8) ? some_double(r) : 16,
                          .context = one_in(r, 8) ? some_double(r) : 1,
                          .tensor = one_in(r, 8) ? some_double(r) : 2,
                          .samples = one_in(r, 8) ? some_double(r) : 1};
       for (const double x : layer_features(l)) expect(std::isfinite(x), "a feature is no number");
     }},
    {"anchored",
     [](random_source& r) {
       const device_anchor a{.device = one_in(r, 8) ? "B" : "T4",
                             .model = some_model(r),
                             .degrees = {mostly(r, 2, 12), mostly(r, 1, 12), mostly(r, 2, 12)},
                             .nodes = mostly(r, 1, 12),
                             .microbatch_size = mostly(r, 2, 12),
                             .zero = mostly(r, r.integer(0, 3), 12),
                             .microbatches = mostly(r, r.integer(0, 3), 12),
                             .tokens_per_s = one_in(r, 6) ? some_double(r) : 1000,
                             .layer_s = one_in(r, 6) ? some_double(r) : 0};
       const auto c = anchored(hardware(), std::array{a});
       expect(c.subclusters[0].device.speed > 0 && std::isfinite(c.subclusters[0].device.speed), "a speed");
     }},
    {"anchor_residuals",
     [](random_source& r) {
       const device_anchor a{.device = one_in(r, 8) ? "B" : "T4",
                             .model = some_model(r),
                             .microbatch_size = mostly(r, 2, 12),
                             .microbatches = mostly(r, r.integer(0, 3), 12),
                             .tokens_per_s = one_in(r, 6) ? some_double(r) : 1000};
       for (const double off : anchor_residuals(hardware(), std::array{a})) expect(off > -1 && std::isfinite(off), "a residual");
     }},
    {"validate_copies",
     [](random_source& r) {
       std::vector<layer_copy> layers(3);
       layers[1].copy_of = copied_part{mostly(r, 0, 2), one_in(r, 3) ? some_double(r) : 0.5};
       validate_copies(layers);
     }},
    {"correction_features_of",
     [](random_source& r) {
       const corrected_layers of{.model = some_model(r), .microbatch_size = mostly(r, 2)};
       for (const double x :
            correction_features_of(of, some_device(r), mostly(r, 1), mostly(r, 6), some_placement(r).degrees, some_cost(r)))
         expect(!std::isnan(x), "a feature is no number");
     }},
    {"features_of",
     [](random_source& r) {
       const auto d = make_tile_device(some_device(r));
       const auto op = some_operator(r);
       for (const double x : features_of(d, op, predict_operator(d, op)).values) expect(!std::isnan(x), "a feature is no number");
     }},
    {"known_by_operators", [](random_source& r) { (void)known_by_operators(some_device(r)); }, false},
    {"make_tile_cost",
     [](random_source& r) {
       const tile_cost_options o{
           .microbatch_size = mostly(r, 2), .host_launch_s = some_time(r), .max_tensor = one_in(r, 8) ? some_int(r) : 2};
       (void)make_tile_cost(hardware(), some_model(r), o);
     }},
    {"formulas_for",
     [](random_source& r) { (void)formulas_for(hardware(), one_in(r, 2), static_cast<cost_formulas>(r.integer(0, 2))); }, false},
    {"training_costs",
     [](random_source& r) {
       training_cost_options o;
       o.stack.host_launch_s = some_time(r);
       o.stack.update_bandwidth = one_in(r, 6) ? some_double(r) : 1;
       o.stack.gather_overlap = one_in(r, 6) ? some_double(r) : 1;
       o.max_context = mostly(r, 1);
       o.batch = mostly(r, 4);
       o.stack.bf16.accumulation_bytes = mostly(r, 12);
       const auto costs = training_costs(hardware(), some_model(r), o)(mostly(r, 2));
       expect(cost_of::layer_count(costs) > 0, "layers");
     }},
    {"find_training_stack", [](random_source& r) { (void)find_training_stack(one_in(r, 2) ? "fsdp" : "?"); }, false},
    {"check_cost",
     [](random_source& r) {
       check_cost(some_cost(r), hardware(), {0, 2}, {.mesh = {0, 1, 2}});
     }},
    {"check_copies",
     [](random_source& r) {
       const parameter_copy c{mostly(r, 0), mostly(r, 3), mostly64(r, 100), mostly64(r, 10), mostly64(r, 10), mostly64(r, 10)};
       check_copies(std::array{c}, mostly(r, 4));
     }},
    {"check_transfer",
     [](random_source& r) {
       transfer_cost t{some_time(r), some_time(r), mostly64(r, 1), mostly64(r, 1)};
       if (one_in(r, 3)) t.forward_occupied_s = some_time(r);
       check_transfer(t, hardware(), 0, {.mesh = {0, 1, 2}}, {.mesh = {1, 1, 2}});
     }},
    {"missing_links", [](random_source&) { (void)missing_links(hardware()); }, false},
    {"in_gib", [](random_source& r) { (void)in_gib(some_double(r)); }, false},
    {"alone",
     [](random_source& r) {
       const auto o = alone(some_overheads(r));
       expect(o.runtime_bytes >= 0 && o.communicator_bytes == 0, "overheads of one device");
     }},
    {"memory_of",
     [](random_source& r) {
       expect(memory_of(some_cost(r), some_overheads(r), one_in(r, 6) ? some_double(r) : 3).total() >= 0, "bytes");
     }},
    {"room_within",
     [](random_source& r) {
       const auto room = room_within(mostly64(r, gib), some_overheads(r));
       expect(std::isfinite(room.room) && room.scale >= 1, "a room");
     }},
    {"update_of_parts",
     [](random_source& r) {
       expect(update_of_parts([](int) { return any_cost_model(plain_costs{}); }, {0, 2}, some_parts(r)) >= 0, "a time");
     }},
    {"cost_of_parts",
     [](random_source& r) {
       const auto parts = some_parts(r);
       expect(cost_of_parts([](int) { return any_cost_model(plain_costs{}); }, {0, 2}, parts).parts.size() == parts.size(),
              "a cost for each");
     }},
    {"transfer_of_parts",
     [](random_source& r) {
       const auto one = [](const stage_part&, const stage_part&, int samples) -> transfer_cost { return 0.1 * samples; };
       expect(transfer_of_parts(some_parts(r), some_parts(r), one).forward_s >= 0, "a time");
     }},
    {"calibrate_device",
     [](random_source& r) {
       std::vector<operator_shape> operators;
       for (int i = r.integer(one_in(r, 8) ? 0 : 1, 2); i > 0; --i) operators.push_back(some_operator(r));
       const auto c = calibrate_device(some_device(r), operators, some_times(r, static_cast<int>(operators.size())));
       expect(std::isfinite(c.error_after), "an error");
     }},
    {"make_tile_device", [](random_source& r) { expect(make_tile_device(some_device(r)).memory_bandwidth > 0, "a device"); }},
    {"predict_operator",
     [](random_source& r) {
       expect(predict_operator(make_tile_device(some_device(r)), some_operator(r)).seconds > 0, "a time");
     }},
};

TEST_CASE("public functions of cost's models, operators and questions refuse what they cannot take") { knock(doors, 30'000); }

}  // namespace
