// SPDX-License-Identifier: Apache-2.0
// hetsched-calibrate as a user calls it.
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

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

// Every second row that engines measured of linear layers in bf16 on a device, from the first or the second.
std::string engine_rows(const std::string& device, int first) {
  std::ifstream file(HETSCHED_SOURCE_DIR "/tests/data/engine_products.csv");
  std::string line, text = "op,batch,m,n,k,dtype,measured_ms\n";
  for (int row = 0; std::getline(file, line);) {
    std::istringstream cells(line);
    std::vector<std::string> cell;
    for (std::string one; std::getline(cells, one, ',');) cell.push_back(one);
    if (cell.at(0) != device || cell.at(2) != "bf16" || row++ % 2 != first) continue;
    text += "linear,1," + cell.at(3) + "," + cell.at(4) + "," + cell.at(5) + ",bf16," + cell.at(6) + "\n";
  }
  return text;
}

double off(const std::string& errors) { return std::stod(errors.substr(errors.find("off the measured times by ") + 26)); }

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

TEST_CASE("hetsched-calibrate --forest: operators that were not shown to it are nearer") {
  const workplace w;
  w.put("shown.csv", engine_rows("A100-SXM4-80GB", 0));
  w.put("others.csv", engine_rows("A100-SXM4-80GB", 1));
  w.put("l40s.csv", engine_rows("L40S", 0));
  const auto grown = w.run("hetsched-calibrate --device A100-SXM4-80GB --operators shown.csv --forest f.json");
  REQUIRE(grown.status == 0);
  CHECK(grown.complaints() == "");
  const std::string others = "hetsched-predict --device A100-SXM4-80GB --operators others.csv";
  const double listed = off(w.run(others).errors), corrected = off(w.run(others + " --cost forest:f.json").errors);
  MESSAGE("off by ", listed, " % as listed, by ", corrected, " % corrected");
  CHECK(corrected < 0.9 * listed);
  const auto two = w.run(
      "hetsched-calibrate --device A100-SXM4-80GB --operators shown.csv --device L40S --operators l40s.csv --forest g.json "
      "--json");
  REQUIRE(two.status == 0);
  const auto told = nlohmann::json::parse(two.output);
  CHECK(told["devices"].size() == 2);
  for (const auto& d : told["devices"]) CHECK(d["error_unseen"].get<double>() != d["error_before"].get<double>());
  CHECK(nlohmann::json::parse(w.get("g.json"))["measured"][1]["device"] == "L40S");
}

TEST_CASE("a forest prices plans, which name it and are found with it again") {
  const workplace w;
  w.put("m.csv", measured(w, "A100-SXM4-80GB", 2));
  REQUIRE(w.run("hetsched-calibrate --device A100-SXM4-80GB --operators m.csv --forest f.json").status == 0);
  w.put("c.json", R"({"format": "hetsched/cluster", "version": 1, "subclusters": [{"name": "s", "device": "A100-SXM4-80GB",
    "nodes": 1, "devices_per_node": 2, "intra_node": {"gbit_per_s": 2400, "latency_us": 5}}]})");
  w.put("model.json", R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 4, "hidden": 4096, "heads": 32,
    "vocab": 32000, "sequence": 2048, "dtype": "fp16"}})");
  const std::string of = " --cluster c.json --model model.json ",
                    plan = "hetsched-plan" + of + "--global-batch 4 --recompute none ";
  const auto iteration = [&](const std::string& file) {
    return nlohmann::json::parse(w.get(file))["predicted"]["iteration_s"].get<double>();
  };
  REQUIRE(w.run(plan + "--out plain.json").status == 0);
  REQUIRE(w.run(plan + "--cost forest:f.json --out p.json").status == 0);
  CHECK(nlohmann::json::parse(w.get("p.json"))["setting"]["costs"] == "forest:f.json");
  CHECK(iteration("p.json") > 1.3 * iteration("plain.json"));  // products take twice as long
  const std::string predict = "hetsched-predict" + of + "--plan p.json --json";
  const auto again = nlohmann::json::parse(w.run(predict).output);
  CHECK(again["iteration_s"].get<double>() == iteration("p.json"));
  CHECK(again["costs"] == "forest:f.json");
  CHECK(again["like_cases"].empty());
  CHECK(nlohmann::json::parse(w.run(predict + " --cost tile").output)["iteration_s"].get<double>() < 0.8 * iteration("p.json"));

  const auto refused = [&](const std::string& command, const std::string& why) {
    const auto run = w.run(command);
    CAPTURE(command);
    CAPTURE(run.errors);
    CHECK(run.status == 2);
    CHECK(run.errors.find(why) != std::string::npos);
  };
  w.put("chain.json", R"({"format": "hetsched/model", "version": 1, "layers": [{"name": "a", "forward_flops": 1e9,
    "weight_bytes": 8, "activation_bytes": 8, "boundary_bytes": 8}]})");
  refused("hetsched-plan --cluster c.json --model chain.json --global-batch 4 --cost forest:f.json",
          "forest needs a transformer");
  refused(plan + "--cost forest:", "expected tile, analytic, forest:F or hexiscale");
  refused(plan + "--cost forest:m.csv", "m.csv");
  refused("hetsched-plan" + of + "--cost forest:f.json --objective latency", "forest is of training");
  refused("hetsched-calibrate --device A100-SXM4-80GB --operators m.csv --out d.json --forest f.json",
          "either --out or --forest");
  refused("hetsched-calibrate --device A100-SXM4-80GB --device T4 --operators m.csv --forest f.json",
          "found 1, expected one for");
  REQUIRE(w.run("hetsched-calibrate --device A100-SXM4-80GB --operators m.csv --out mine.json").status == 0);
  refused("hetsched-predict --device mine.json --operators m.csv --cost forest:f.json",
          "the calibration of mine does not go with");
  std::filesystem::rename(w.path("f.json"), w.path("elsewhere.json"));
  refused(predict, "p.json: /setting/costs: found forest:f.json, and it is not there");
  CHECK(nlohmann::json::parse(w.run(predict + " --cost forest:elsewhere.json").output)["iteration_s"] == again["iteration_s"]);
}
