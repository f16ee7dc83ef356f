// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <doctest/doctest.h>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cost/operators/tile.hpp>
#include <hetsched/io.hpp>

using namespace hetsched;

namespace {

std::string complaint(const std::string& text) {
  try {
    (void)parse_device(text, "x.json", "x");
  } catch (const file_error& wrong) {
    return wrong.what();
  }
  return {};
}

bool mentions(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a catalogue device written out under another name predicts the same to the last bit") {
  using enum number_format;
  for (auto d : device_catalogue()) {
    INFO(d.name);
    const auto mine = parse_device(to_json(d), "x.json", "somebody's own");
    const auto known = make_tile_device(d), own = make_tile_device(mine);
    int compared = 0;
    for (const auto f : {fp32, tf32, fp16, bf16, fp8, int8}) {
      if (!(known.peak_flops[static_cast<std::size_t>(f)] > 0)) continue;
      for (const auto& op : {gemm(4096, 4096, 4096, f), gemm(100, 3000, 70000, f), batched_gemm(96, 512, 64, 512, f),
                             norm(9000, 4000, f, true), softmax(5000, 2048, f), elementwise(1 << 21, 2, 1, f),
                             embedding(500, 4096, f), flash_attention(64, 8, 1000, 1000, 128, true, f)}) {
        CHECK(predict_operator(own, op).seconds == predict_operator(known, op).seconds);
        ++compared;
      }
    }
    CHECK(compared > 0);
    d.name = mine.name;
    CHECK(mine == d);
  }
}

TEST_CASE("device.json says all itself, and what is wrong with it") {
  auto d = catalogue_device("L4");
  d.price_per_hour = 0.7;
  d.calibration = {.lane_rate = 0.9, .matrix_rate = 1.1, .memory_bandwidth = 0.95, .l2_bandwidth = 1.3, .launch_s = 4.7e-6};
  d.calibration.residuals = {{.kernel = 2, .at = {0.1, -2.7}, .weight = 1 / 3.0}, {.kernel = 16, .weight = -4e-3}};
  CHECK(parse_device(to_json(d), "x.json", "L4") == d);
  d.int8_flops = 200e12;
  d.class_speeds = {0.8, 0.45, 1.1};
  CHECK(parse_device(to_json(d), "x.json", "L4") == d);

  // The catalogue's device of that name fills nothing in.
  const std::string least = R"({"format": "hetsched/device", "version": 1, "peak_tflops": {"fp16": 10}, "memory_gib": 8,
    "memory_bandwidth_gb_per_s": 100)";
  CHECK(parse_device(least + "}", "x.json", "L4").board_watts == 0);
  CHECK(mentions(complaint(R"({"format": "hetsched/device", "version": 1, "memory_gib": 8})"), "/peak_tflops"));
  CHECK(mentions(complaint(R"({"format": "hetsched/cluster", "version": 1})"), "hetsched/device"));
  CHECK(mentions(complaint(least + R"(, "board_wats": 72})"), "board_watts"));
  CHECK(mentions(complaint(least + R"(, "calibration": {"lane_rate": 0}})"), "/calibration/lane_rate"));
  CHECK(mentions(complaint(least + R"(, "calibration": {"speed": 1}})"), "/calibration/speed"));
  CHECK(mentions(complaint(least + R"(, "calibration": {"residuals": [{"kernel": 1, "at": [0], "weight": 1}]}})"),
                 "/calibration/residuals/0/at"));
  CHECK(mentions(complaint(least + R"(, "lanes_per_multiprocessor": -1})"), "/lanes_per_multiprocessor"));
}

TEST_CASE("a cluster may name a device.json that lies beside it, and the file may name the device") {
  const auto folder = std::filesystem::temp_directory_path() / ("hetsched_device_" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  auto d = catalogue_device("L4");
  d.memory_bytes = 48 * gib;
  std::ofstream(folder / "mine.json") << to_json(d);
  std::ofstream(folder / "named.json") << R"({"format": "hetsched/device", "version": 1, "name": "L4-48GB", "like": "NVIDIA L4",
    "memory_gib": 48})";
  const auto of = [&](const std::string& name) {
    return parse_cluster(R"({"format": "hetsched/cluster", "version": 1, "subclusters": [{"name": "s", "device": ")" + name +
                             R"(", "nodes": 1, "devices_per_node": 1}]})",
                         (folder / "cluster.json").string())
        .subclusters[0]
        .device;
  };
  d.name = "mine";
  CHECK(of("mine.json") == d);
  CHECK(of((folder / "mine.json").string()) == d);
  d.name = "L4-48GB";
  CHECK(of("named.json") == d);
  CHECK_THROWS_WITH_AS((void)of("none.json"), doctest::Contains((folder / "none.json").c_str()), file_error);
  std::filesystem::remove_all(folder);
}

TEST_CASE("a whole device.json may stand among the devices of a cluster") {
  auto d = catalogue_device("H100-SXM5-80GB");
  d.calibration.memory_bandwidth = 0.9;
  const auto c = parse_cluster(R"({"format": "hetsched/cluster", "version": 1, "devices": {"mine": )" + to_json(d) + R"(},
    "subclusters": [{"name": "s", "device": "mine", "nodes": 1, "devices_per_node": 1}]})",
                               "x.json");
  d.name = "mine";
  CHECK(c.subclusters[0].device == d);
  CHECK(parse_cluster(to_json(c), "x.json") == c);
}

TEST_CASE("correction.json comes back, and what is wrong with it is told") {
  const auto hardware = make_tile_device(catalogue_device("T4"));
  std::vector<operator_sample> samples;
  for (const std::int64_t m : {512, 1024, 2048, 4096})
    samples.push_back({hardware, gemm(m, 1024, 1024, number_format::fp16), 1e-3 * static_cast<double>(m)});
  const correction_file written{{{"T4", 4}}, operator_correction::train(samples)};
  const auto text = to_json(written);
  CHECK(parse_correction(text, "f.json") == written);
  const auto refused = [](std::string changed, const std::string& from, const std::string& to, const char* why) {
    changed.replace(changed.find(from), from.size(), to);
    CHECK_THROWS_WITH_AS((void)parse_correction(changed, "f.json"), doctest::Contains(why), file_error);
  };
  refused(text, "hetsched/correction", "hetsched/device", "f.json: /format");
  refused(text, "hetsched-forest 1", "hetsched-forest 2", "f.json: /forest");
  refused(text, R"("operators": 4)", R"("operators": 0)", "f.json: /measured/0/operators");
  refused(text, R"("measured")", R"("mesured")", "f.json: /mesured");
}
