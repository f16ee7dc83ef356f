// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>

namespace {

std::filesystem::path source_root() {
#ifdef HETSCHED_SOURCE_DIR
  return HETSCHED_SOURCE_DIR;
#else
  return std::filesystem::path(__FILE__).parent_path() / ".." / "..";
#endif
}

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream in(line);
  for (std::string cell; std::getline(in, cell, ',');) cells.push_back(cell);
  if (!line.empty() && line.back() == ',') cells.emplace_back();
  return cells;
}

double number(const std::string& cell) { return cell.empty() ? 0 : std::stod(cell); }

// Entries that a row of the CSV stands for: its name and memory, or two of them for "16/32GB".
std::vector<std::pair<std::string, double>> entries(const std::string& name, double memory) {
  const auto combined = name.find("16/32GB");
  if (combined == std::string::npos) return {{name, memory}};
  const auto stem = name.substr(0, combined);
  return {{stem + "16GB", 16.0}, {stem + "32GB", 32.0}};
}

}  // namespace

TEST_CASE("the catalogue equals the table of datasheet figures, and the docs list every device") {
  std::ifstream csv(source_root() / "tests" / "data" / "gpu_specs.csv");
  REQUIRE(csv);
  std::ifstream page(source_root() / "docs" / "devices.md");
  REQUIRE(page);
  const std::string docs{std::istreambuf_iterator<char>(page), {}};

  std::string line;
  std::getline(csv, line);
  const auto header = split(line);
  const auto column = [&](const std::vector<std::string>& row, const std::string& name) {
    for (std::size_t i = 0; i < header.size(); ++i)
      if (header[i] == name) return row.at(i);
    FAIL("no column " << name);
    return std::string{};
  };

  std::set<std::string> seen;
  while (std::getline(csv, line)) {
    const auto row = split(line);
    for (const auto& [name, memory] : entries(column(row, "name"), number(column(row, "mem_gb")))) {
      CAPTURE(name);
      seen.insert(name);
      const auto d = hetsched::find_device(name);
      REQUIRE(d);
      CHECK(d->name == name);
      using enum hetsched::precision;
      const auto peak = [&](hetsched::precision p) { return d->peak_flops[static_cast<std::size_t>(p)]; };
      CHECK(peak(fp32) == doctest::Approx(number(column(row, "fp32_tflops")) * 1e12).epsilon(1e-12));
      CHECK(peak(tf32) == doctest::Approx(number(column(row, "tf32_tflops_dense")) * 1e12).epsilon(1e-12));
      CHECK(peak(fp16) == doctest::Approx(number(column(row, "fp16_tensor_tflops_dense")) * 1e12).epsilon(1e-12));
      CHECK(peak(bf16) == doctest::Approx(number(column(row, "bf16_tensor_tflops_dense")) * 1e12).epsilon(1e-12));
      CHECK(static_cast<double>(d->memory_bytes) == memory * 1073741824.0);
      CHECK(d->memory_bandwidth == doctest::Approx(number(column(row, "mem_bw_GBs")) * 1e9).epsilon(1e-12));
      CHECK(static_cast<double>(d->l2_bytes) == number(column(row, "l2_mb")) * 1048576.0);
      CHECK(d->multiprocessors == number(column(row, "sm")));
      CHECK(d->clock_hz == doctest::Approx(number(column(row, "fp32_boost_mhz")) * 1e6).epsilon(1e-12));

      CHECK(d->board_watts == number(column(row, "tdp_w")));
      CHECK(d->generation == column(row, "arch"));
      CHECK(d->lanes_per_multiprocessor == number(column(row, "fp32_lanes_per_sm")));
      CHECK((d->memory_type.starts_with("HBM") || d->memory_type.starts_with("GDDR")));
      CHECK((d->fp8_flops == 0 || d->fp8_flops == doctest::Approx(2 * peak(fp16)).epsilon(1e-12)));

      const auto at = docs.find("| `" + name + "` |");
      REQUIRE(at != std::string::npos);
      const auto listed = docs.substr(at, docs.find('\n', at) - at);
      for (const char* figure : {"fp32_tflops", "fp16_tensor_tflops_dense", "mem_bw_GBs", "sm"}) {
        const auto text = column(row, figure);
        CHECK(listed.find("| " + (text.empty() ? "–" : text) + " |") != std::string::npos);
      }
    }
  }
  CHECK(seen.size() == 58);
  CHECK(hetsched::device_catalogue().size() == seen.size());
}

TEST_CASE("devices are found by their exact name") {
  CHECK(hetsched::find_device("V100-SXM2-16GB")->memory_bytes == 16 * hetsched::gib);
  CHECK(hetsched::find_device("V100-SXM2-32GB")->memory_bytes == 32 * hetsched::gib);
  CHECK_FALSE(hetsched::find_device("V100-SXM2-16/32GB"));
  CHECK_FALSE(hetsched::find_device("v100-sxm2-16gb"));
  CHECK_FALSE(hetsched::find_device(""));
}

TEST_CASE("a precision that a device lacks falls back") {
  const auto v100 = *hetsched::find_device("V100-SXM2-32GB");
  CHECK(v100.flops(hetsched::precision::bf16) == v100.flops(hetsched::precision::fp16));
  CHECK(v100.flops(hetsched::precision::tf32) == v100.flops(hetsched::precision::fp32));
  CHECK(v100.computes_in(hetsched::precision::bf16) == hetsched::precision::fp16);
  CHECK(v100.computes_in(hetsched::precision::fp16) == hetsched::precision::fp16);
  CHECK(v100.computes_in(hetsched::precision::tf32) == hetsched::precision::fp32);
  const auto p4 = *hetsched::find_device("P4");
  CHECK(p4.computes_in(hetsched::precision::bf16) == hetsched::precision::fp32);
  CHECK(p4.computes_in(hetsched::precision::fp16) == hetsched::precision::fp32);
  CHECK(p4.flops(hetsched::precision::bf16) == p4.flops(hetsched::precision::fp32));
}

TEST_CASE("precisions have names") {
  for (const auto p :
       {hetsched::precision::fp32, hetsched::precision::tf32, hetsched::precision::fp16, hetsched::precision::bf16})
    CHECK(hetsched::find_precision(name_of(p)) == p);
  CHECK(!hetsched::find_precision("fp8"));
  CHECK(!hetsched::find_precision(""));
}
