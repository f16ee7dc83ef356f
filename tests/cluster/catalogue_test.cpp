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
  CHECK(seen.size() == 88);
  CHECK(hetsched::device_catalogue().size() == seen.size());
}

TEST_CASE("devices are found by the names that drivers print") {
  const std::pair<const char*, const char*> printed[] = {
      {"NVIDIA GeForce RTX 3090", "RTX3090"},
      {"GeForce RTX 2080 Ti", "RTX2080Ti"},
      {"NVIDIA GeForce RTX 4070 Ti SUPER", "RTX4070TiS"},
      {"NVIDIA GeForce RTX 5090 Laptop GPU", "RTX5090-Laptop"},
      {"NVIDIA GeForce GTX 1080 Ti", "GTX1080Ti"},
      {"NVIDIA TITAN RTX", "TITAN-RTX"},
      {"Quadro RTX 6000", "RTX6000-Turing"},
      {"NVIDIA RTX 6000 Ada Generation", "RTX6000-Ada"},
      {"NVIDIA RTX A6000", "A6000"},
      {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX-PRO-6000"},
      {"Tesla T4", "T4"},
      {"Tesla P100-PCIE-16GB", "P100-PCIe-16GB"},
      {"Tesla V100-SXM2-32GB", "V100-SXM2-32GB"},
      {"NVIDIA L4", "L4"},
      {"NVIDIA A10", "A10"},
      {"NVIDIA A100-PCIE-40GB", "A100-PCIe-40GB"},
      {"NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"},
      {"NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"},
      {"A100-SXM-80GB", "A100-SXM4-80GB"},
      {"NVIDIA A800 80GB PCIe", "A800-PCIe-80GB"},
      {"NVIDIA H100 PCIe", "H100-PCIe-80GB"},
      {"NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"},
      {"NVIDIA H100 NVL", "H100-NVL-94GB"},
      {"NVIDIA H20", "H20-96GB"},
      {"NVIDIA H20-3e", "H20-141GB"},
      {"NVIDIA H200", "H200-SXM"},
      {"NVIDIA GH200 480GB", "GH200-96GB"},
      {"NVIDIA B200", "B200-SXM"},
      {"AMD Instinct MI300X", "MI300X"},
      {"AMD Radeon RX 7900 XTX", "RX7900XTX"},
      {"Intel(R) Arc(TM) Pro B60 Graphics", "Arc-Pro-B60"},
      {"Intel(R) Data Center GPU Max 1550", "Max-1550"},
      {"Quadro RTX 8000", "RTX8000"},
      {"NVIDIA RTX A4000", "A4000"},
      {"NVIDIA RTX A5000", "A5000"},
      {"NVIDIA GeForce RTX 3060", "RTX3060-12GB"},
      {"NVIDIA GeForce RTX 3080", "RTX3080-10GB"},
      {"NVIDIA GeForce RTX 3080 Laptop GPU", "RTX3080-Laptop-16GB"},
      {"NVIDIA GeForce RTX 4070 SUPER", "RTX4070S"},
      {"NVIDIA GeForce RTX 4080 SUPER", "RTX4080S"},
      {"NVIDIA GeForce RTX 4090 D", "RTX4090D"},
      {"A100-SXM-40GB", "A100-SXM4-40GB"},
      {"NVIDIA H100 80GB HBM2e", "H100-PCIe-80GB"},
      {"NVIDIA H800", "H800-SXM5-80GB"},
      {"NVIDIA H800 PCIe", "H800-PCIe-80GB"},
      {"NVIDIA H200 NVL", "H200-NVL"},
      {"NVIDIA GH200 120GB", "GH200-96GB"},
      {"Arcturus GL-XL [Instinct MI100]", "MI100"},
      {"AMD Instinct MI300X OAM", "MI300X"},
      {"Ascend910B2", "Ascend910B2(A2)"},
      {"Ascend910B3", "Ascend910B3(A2)"},
      {"rtx_3090", "RTX3090"},
      {"v100-sxm2-16gb", "V100-SXM2-16GB"},
  };
  for (const auto& [name, meant] : printed) {
    CAPTURE(name);
    const auto found = hetsched::find_device(name);
    REQUIRE(found);
    CHECK(found->name == meant);
  }
  // of which there are several
  for (const char* name : {"NVIDIA GeForce RTX 4060 Ti", "A100", "NVIDIA H100", "Tesla V100", "NVIDIA", "gpu"})
    CHECK_FALSE(hetsched::find_device(name));
  // None has a name that is another's without its maker.
  std::set<std::string> plain;
  for (const auto& d : hetsched::device_catalogue()) CHECK(plain.insert(hetsched::detail::plain_device_name(d.name)).second);
}

TEST_CASE("two names of one device") {
  CHECK(hetsched::same_device("Tesla T4", "T4"));
  CHECK(hetsched::same_device("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"));
  CHECK(hetsched::same_device("NVIDIA H200", "H200-SXM"));
  CHECK(hetsched::same_device("My GPU", "my-gpu"));
  CHECK_FALSE(hetsched::same_device("T4", "L4"));
  CHECK_FALSE(hetsched::same_device("A100", "A100-SXM4-40GB"));
}

TEST_CASE("devices are found by their name") {
  CHECK(hetsched::find_device("V100-SXM2-16GB")->memory_bytes == 16 * hetsched::gib);
  CHECK(hetsched::find_device("V100-SXM2-32GB")->memory_bytes == 32 * hetsched::gib);
  CHECK_FALSE(hetsched::find_device("V100-SXM2-16/32GB"));
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
