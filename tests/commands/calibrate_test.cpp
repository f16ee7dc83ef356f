// SPDX-License-Identifier: Apache-2.0
// hetsched-calibrate as a user calls it.
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "workplace.hpp"

using hetsched::test::workplace;

namespace {

const std::string shapes[] = {"gemm,1,4096,4096,4096,fp16", "gemm,1,8192,2048,4096,fp16", "gemm,1,4096,4096,4096,fp32",
                              "softmax,1,65536,4096,,fp16", "gelu,1,65536,8192,,fp16",    "layernorm,1,65536,4096,,fp16"};

// What hetsched-predict says, times `factor` for products.
std::string measured(const workplace& w, const std::string& device, double factor) {
  std::string plain = "op,batch,m,n,k,dtype\n";
  for (const auto& shape : shapes) plain += shape + "\n";
  w.put("plain.csv", plain);
  const auto run = w.run("hetsched-predict --device " + device + " --operators plain.csv");
  REQUIRE(run.status == 0);
  std::string text = "op,batch,m,n,k,dtype,measured_ms\n";
  std::size_t at = run.output.find('\n') + 1;
  for (const auto& shape : shapes) {
    const auto end = run.output.find('\n', at);
    const auto row = run.output.substr(at, end - at);
    const double ms = std::stod(row.substr(row.rfind(',') + 1));
    text += shape + "," + std::to_string(shape.starts_with("gemm") ? ms * factor : ms) + "\n";
    at = end + 1;
  }
  return text;
}

}  // namespace

TEST_CASE("hetsched-calibrate: the device that it writes predicts what was measured, by itself and in a cluster") {
  const workplace w;
  w.put("m.csv", measured(w, "A100-SXM4-80GB", 1.3));
  const auto run = w.run("hetsched-calibrate --device A100-SXM4-80GB --operators m.csv --out mine.json");
  CHECK(run.errors == "");
  REQUIRE(run.status == 0);
  CHECK(run.output.find("wrote mine.json") != std::string::npos);
  const auto device = nlohmann::json::parse(w.get("mine.json"));
  CHECK(device["format"] == "hetsched/device");
  CHECK(device["calibration"]["matrix_rate"].get<double>() == doctest::Approx(1 / 1.3).epsilon(0.05));
  const auto again = w.run("hetsched-predict --device mine.json --operators m.csv");
  REQUIRE(again.status == 0);
  const auto off = [](const std::string& text) { return std::stod(text.substr(text.find(" by ") + 4)); };
  CHECK(off(again.errors) < 3);
  CHECK(off(w.run("hetsched-predict --device A100-SXM4-80GB --operators m.csv").errors) > 10);
  w.put("c.json", R"({"format": "hetsched/cluster", "version": 1, "devices": {"Mine": )" + w.get("mine.json") +
                      R"(}, "subclusters": [{"name": "s", "device": "Mine", "nodes": 1, "devices_per_node": 1}]})");
  CHECK(w.run("hetsched-predict --device Mine --cluster c.json --operators m.csv").output == again.output);
}

TEST_CASE("times in another unit than milliseconds are told") {
  const workplace w;
  for (const double factor : {1000.0, 0.001}) {
    std::string text = "op,batch,m,n,k,dtype,measured_ms\n";
    for (const int m : {2048, 4096, 8192})  // 2 m 4096^2 FLOP at half of the peak of 312 TFLOP/s
      text += "gemm,1," + std::to_string(m) + ",4096,4096,fp16," + std::to_string(m * 2.15e-4 * factor) + "\n";
    w.put("m.csv", text);
    const std::string about = factor > 1 ? "times as long as the datasheet says: are they microseconds?"
                                         : "times as short as the datasheet says: are they seconds?";
    const auto run = w.run("hetsched-calibrate --device A100-SXM4-80GB --operators m.csv --out mine.json");
    CHECK(run.status == 2);
    CHECK(run.errors.find(about) != std::string::npos);
    CHECK(w.files().count("mine.json") == 0);
    const auto told = w.run("hetsched-predict --device A100-SXM4-80GB --operators m.csv");
    CHECK(told.status == 0);
    CHECK(told.errors.find(about) != std::string::npos);
  }
}

TEST_CASE("hetsched-calibrate: bad input is told, and nothing is written") {
  const workplace w;
  w.put("m.csv", measured(w, "T4", 1));
  const auto refused = [&](const std::string& options, const std::string& why) {
    const auto run = w.run("hetsched-calibrate " + options);
    CAPTURE(options);
    CHECK(run.status == 2);
    CHECK(run.errors.find(why) != std::string::npos);
    CHECK(w.files().count("out.json") == 0);
  };
  refused("--device T5 --operators m.csv --out out.json", "there is no device \"T5\"");
  refused("--device T4 --operators plain.csv --out out.json", "measured_ms");
  refused("--device T4 --operators none.csv --out out.json", "none.csv");
  refused("--device T4 --operators m.csv --out m.csv", "an input, which would be overwritten");
  w.put("empty.csv", "op,batch,m,n,k,dtype,measured_ms\n");
  refused("--device T4 --operators empty.csv --out out.json", "empty.csv");
}
