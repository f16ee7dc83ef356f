// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <iterator>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/units.hpp>

namespace hetsched::detail {

struct catalogue_row {
  const char* name;
  double fp32, tf32, fp16, bf16;  // dense TFLOP/s, 0 where the device lacks the precision
  double memory_gib, memory_gb_per_s, l2_mib;
  int multiprocessors;
  double clock_mhz;
  const char *generation, *memory_type;
  int lanes;  // that multiply in fp32, of a multiprocessor; 0 where not known
  double watts, fp8;
};

// How sure each row is: docs/devices.md.
inline constexpr catalogue_row catalogue_rows[] = {
    // clang-format off
    {"P4", 5.7, 0, 0, 0, 8, 192, 2, 20, 1113, "Pascal", "GDDR5", 128, 75, 0},
    {"P100-PCIe-16GB", 9.3, 0, 18.7, 0, 16, 732, 4, 56, 1303, "Pascal", "HBM2", 64, 250, 0},
    {"P100-SXM2-16GB", 10.6, 0, 21.2, 0, 16, 732, 4, 56, 1480, "Pascal", "HBM2", 64, 300, 0},
    {"GTX1080", 8.9, 0, 0, 0, 8, 320, 2, 20, 1733, "Pascal", "GDDR5X", 128, 180, 0},
    {"GTX1080Ti", 11.3, 0, 0, 0, 11, 484, 2.75, 28, 1582, "Pascal", "GDDR5X", 128, 250, 0},
    {"P40", 11.8, 0, 0, 0, 24, 346, 3, 30, 1531, "Pascal", "GDDR5", 128, 250, 0},
    {"V100-PCIe-16GB", 14.1, 0, 112, 0, 16, 900, 6, 80, 1380, "Volta", "HBM2", 64, 250, 0},
    {"V100-PCIe-32GB", 14.1, 0, 112, 0, 32, 900, 6, 80, 1380, "Volta", "HBM2", 64, 250, 0},
    {"V100-SXM2-16GB", 15.7, 0, 125, 0, 16, 900, 6, 80, 1530, "Volta", "HBM2", 64, 300, 0},
    {"V100-SXM2-32GB", 15.7, 0, 125, 0, 32, 900, 6, 80, 1530, "Volta", "HBM2", 64, 300, 0},
    {"T4", 8.1, 0, 65, 0, 16, 320, 4, 40, 1590, "Turing", "GDDR6", 64, 70, 0},
    {"RTX2080", 10.1, 0, 40.3, 0, 8, 448, 4, 46, 1710, "Turing", "GDDR6", 64, 215, 0},
    {"RTX2080Ti", 13.4, 0, 53.8, 0, 11, 616, 5.5, 68, 1545, "Turing", "GDDR6", 64, 250, 0},
    {"TITAN-RTX", 16.3, 0, 130.5, 0, 24, 672, 6, 72, 1770, "Turing", "GDDR6", 64, 280, 0},
    {"RTX6000-Turing", 16.3, 0, 130.5, 0, 24, 672, 6, 72, 1770, "Turing", "GDDR6", 64, 260, 0},
    {"RTX8000", 16.3, 0, 130.5, 0, 48, 672, 6, 72, 1770, "Turing", "GDDR6", 64, 260, 0},
    {"A2", 4.5, 9, 18, 18, 16, 200, 2, 10, 1770, "Ampere", "GDDR6", 128, 60, 0},
    {"A10", 31.2, 62.5, 125, 125, 24, 600, 6, 72, 1695, "Ampere", "GDDR6", 128, 150, 0},
    {"A30", 10.3, 82, 165, 165, 24, 933, 24, 56, 1440, "Ampere", "HBM2", 64, 165, 0},
    {"A40", 37.4, 74.8, 149.7, 149.7, 48, 696, 6, 84, 1740, "Ampere", "GDDR6", 128, 300, 0},
    {"RTX3080Ti", 34.1, 34.1, 68.2, 68.2, 12, 912, 6, 80, 1665, "Ampere", "GDDR6X", 128, 350, 0},
    {"RTX3090", 35.6, 35.6, 71.2, 71.2, 24, 936, 6, 82, 1695, "Ampere", "GDDR6X", 128, 350, 0},
    {"RTX3090Ti", 40, 40, 80, 80, 24, 1008, 6, 84, 1860, "Ampere", "GDDR6X", 128, 450, 0},
    {"RTX3060-12GB", 12.7, 12.7, 25.5, 25.5, 12, 360, 3, 28, 1777, "Ampere", "GDDR6", 128, 170, 0},
    {"RTX3060Ti", 16.2, 16.2, 32.4, 32.4, 8, 448, 4, 38, 1665, "Ampere", "GDDR6", 128, 200, 0},
    {"RTX3070", 20.3, 20.3, 40.6, 40.6, 8, 448, 4, 46, 1725, "Ampere", "GDDR6", 128, 220, 0},
    {"RTX3070Ti", 21.7, 21.7, 43.5, 43.5, 8, 608, 4, 48, 1770, "Ampere", "GDDR6X", 128, 290, 0},
    {"RTX3080-10GB", 29.8, 29.8, 59.5, 59.5, 10, 760, 5, 68, 1710, "Ampere", "GDDR6X", 128, 320, 0},
    {"RTX3060-Laptop", 13.1, 13.1, 26.2, 26.2, 6, 336, 3, 30, 1703, "Ampere", "GDDR6", 128, 115, 0},
    {"RTX3080-Laptop-16GB", 21, 21, 42, 42, 16, 448, 4, 48, 1710, "Ampere", "GDDR6", 128, 150, 0},
    {"A4000", 19.2, 38.3, 76.7, 76.7, 16, 448, 4, 48, 1560, "Ampere", "GDDR6", 128, 140, 0},
    {"A5000", 27.8, 55.5, 111.1, 111.1, 24, 768, 6, 64, 1695, "Ampere", "GDDR6", 128, 230, 0},
    {"A6000", 38.7, 77.4, 154.8, 154.8, 48, 768, 6, 84, 1800, "Ampere", "GDDR6", 128, 300, 0},
    {"A100-PCIe-40GB", 19.5, 156, 312, 312, 40, 1555, 40, 108, 1410, "Ampere", "HBM2", 64, 250, 0},
    {"A100-SXM4-40GB", 19.5, 156, 312, 312, 40, 1555, 40, 108, 1410, "Ampere", "HBM2", 64, 400, 0},
    {"A100-PCIe-80GB", 19.5, 156, 312, 312, 80, 1935, 40, 108, 1410, "Ampere", "HBM2e", 64, 300, 0},
    {"A100-SXM4-80GB", 19.5, 156, 312, 312, 80, 2039, 40, 108, 1410, "Ampere", "HBM2e", 64, 400, 0},
    {"A800-PCIe-80GB", 19.5, 156, 312, 312, 80, 1935, 40, 108, 1410, "Ampere", "HBM2e", 64, 300, 0},
    {"A800-SXM4-80GB", 19.5, 156, 312, 312, 80, 2039, 40, 108, 1410, "Ampere", "HBM2e", 64, 400, 0},
    {"H100-PCIe-80GB", 51.2, 378, 756, 756, 80, 2000, 50, 114, 1755, "Hopper", "HBM2e", 128, 350, 1512},
    {"H100-NVL-94GB", 60, 417.5, 835.5, 835.5, 94, 3938, 50, 132, 1785, "Hopper", "HBM3", 128, 400, 1671},
    {"H100-SXM5-80GB", 66.9, 494.5, 989.4, 989.4, 80, 3350, 50, 132, 1980, "Hopper", "HBM3", 128, 700, 1978.8},
    {"H800-SXM5-80GB", 66.9, 494.5, 989.4, 989.4, 80, 3350, 50, 132, 1980, "Hopper", "HBM3", 128, 700, 1978.8},
    {"H800-PCIe-80GB", 51.2, 378, 756, 756, 80, 2000, 50, 114, 1755, "Hopper", "HBM2e", 128, 350, 1512},
    {"H20-96GB", 44, 74, 148, 148, 96, 4000, 60, 78, 1980, "Hopper", "HBM3", 128, 400, 296},
    {"H20-141GB", 44, 74, 148, 148, 141, 4800, 60, 78, 1980, "Hopper", "HBM3e", 128, 400, 296},
    {"H200-SXM", 66.9, 494.5, 989.4, 989.4, 141, 4800, 50, 132, 1980, "Hopper", "HBM3e", 128, 700, 1978.8},
    {"H200-NVL", 60, 417.5, 835.5, 835.5, 141, 4800, 50, 132, 1785, "Hopper", "HBM3e", 128, 600, 1671},
    {"GH200-96GB", 66.9, 494.5, 989.4, 989.4, 96, 4000, 50, 132, 1980, "Hopper", "HBM3", 128, 700, 1978.8},
    {"L4", 30.3, 60, 121, 121, 24, 300, 48, 58, 2040, "Ada", "GDDR6", 128, 72, 242},
    {"L20", 59.8, 59.8, 119.5, 119.5, 48, 864, 96, 92, 2520, "Ada", "GDDR6", 128, 275, 239},
    {"L40", 90.5, 90.5, 181, 181, 48, 864, 96, 142, 2490, "Ada", "GDDR6", 128, 300, 362},
    {"L40S", 91.6, 183, 362, 362, 48, 864, 96, 142, 2520, "Ada", "GDDR6", 128, 350, 724},
    {"RTX6000-Ada", 91.1, 182.1, 364.2, 364.2, 48, 960, 96, 142, 2505, "Ada", "GDDR6", 128, 300, 728.4},
    {"RTX4090", 82.6, 82.6, 165.2, 165.2, 24, 1008, 72, 128, 2520, "Ada", "GDDR6X", 128, 450, 330.4},
    {"RTX4090D", 73.5, 73.5, 147.1, 147.1, 24, 1008, 72, 114, 2520, "Ada", "GDDR6X", 128, 425, 294.2},
    {"RTX4060", 15.1, 15.1, 30.2, 30.2, 8, 272, 24, 24, 2460, "Ada", "GDDR6", 128, 115, 60.4},
    {"RTX4060Ti-8GB", 22.1, 22.1, 44.1, 44.1, 8, 288, 32, 34, 2535, "Ada", "GDDR6", 128, 160, 88.2},
    {"RTX4060Ti-16GB", 22.1, 22.1, 44.1, 44.1, 16, 288, 32, 34, 2535, "Ada", "GDDR6", 128, 165, 88.2},
    {"RTX4070", 29.1, 29.1, 58.3, 58.3, 12, 504, 36, 46, 2475, "Ada", "GDDR6X", 128, 200, 116.6},
    {"RTX4070S", 35.5, 35.5, 71, 71, 12, 504, 48, 56, 2475, "Ada", "GDDR6X", 128, 220, 142},
    {"RTX4070Ti", 40.1, 40.1, 80.2, 80.2, 12, 504, 48, 60, 2610, "Ada", "GDDR6X", 128, 285, 160.4},
    {"RTX4070TiS", 44.1, 44.1, 88.2, 88.2, 16, 672, 48, 66, 2610, "Ada", "GDDR6X", 128, 285, 176.4},
    {"RTX4080", 48.7, 48.7, 97.5, 97.5, 16, 717, 64, 76, 2505, "Ada", "GDDR6X", 128, 320, 195},
    {"RTX4080S", 52.2, 52.2, 104.4, 104.4, 16, 736, 64, 80, 2550, "Ada", "GDDR6X", 128, 320, 208.8},
    {"RTX4060-Laptop", 14.6, 14.6, 29.1, 29.1, 8, 256, 32, 24, 2370, "Ada", "GDDR6", 128, 115, 58.2},
    {"RTX4090-Laptop", 39.7, 39.7, 79.4, 79.4, 16, 576, 64, 76, 2040, "Ada", "GDDR6", 128, 150, 158.8},
    {"B200-SXM", 80, 1125, 2250, 2250, 180, 8000, 126, 148, 1965, "Blackwell", "HBM3e", 128, 1000, 4500},
    {"RTX5070", 30.9, 30.9, 61.7, 61.7, 12, 672, 48, 48, 2512, "Blackwell-RTX", "GDDR7", 128, 250, 123.4},
    {"RTX5070Ti", 43.9, 43.9, 87.9, 87.9, 16, 896, 48, 70, 2452, "Blackwell-RTX", "GDDR7", 128, 300, 175.8},
    {"RTX5080", 56.3, 56.3, 112.6, 112.6, 16, 960, 64, 84, 2617, "Blackwell-RTX", "GDDR7", 128, 360, 225.2},
    {"RTX5090", 104.8, 104.8, 209.5, 209.5, 32, 1792, 96, 170, 2407, "Blackwell-RTX", "GDDR7", 128, 575, 419},
    {"RTX-PRO-6000", 126, 251.9, 503.8, 503.8, 96, 1792, 128, 188, 2617, "Blackwell-RTX", "GDDR7", 128, 600, 1007.6},
    {"RTX5090-Laptop", 45.3, 45.3, 90.7, 90.7, 24, 896, 64, 82, 2160, "Blackwell-RTX", "GDDR7", 128, 150, 181.4},
    {"MI100", 23.1, 0, 184.6, 92.3, 32, 1229, 8, 120, 1502, "CDNA1", "HBM2", 64, 300, 0},
    {"MI210", 22.6, 0, 181, 181, 64, 1638, 8, 104, 1700, "CDNA2", "HBM2e", 64, 300, 0},
    {"MI250", 45.3, 0, 362.1, 362.1, 128, 3277, 16, 208, 1700, "CDNA2", "HBM2e", 64, 560, 0},
    {"MI250X", 47.9, 0, 383, 383, 128, 3277, 16, 220, 1700, "CDNA2", "HBM2e", 64, 560, 0},
    {"MI300X", 163.4, 653.7, 1307.4, 1307.4, 192, 5300, 32, 304, 2100, "CDNA3", "HBM3", 128, 750, 2614.8},
    {"MI325X", 163.4, 653.7, 1307.4, 1307.4, 256, 6000, 32, 304, 2100, "CDNA3", "HBM3e", 128, 1000, 2614.8},
    {"MI355X", 157.3, 0, 2516.6, 2516.6, 288, 8000, 32, 256, 2400, "CDNA4", "HBM3e", 128, 1400, 5033.2},
    {"RX7900XTX", 61.4, 0, 122.9, 122.9, 24, 960, 6, 96, 2500, "RDNA3", "GDDR6", 128, 355, 0},
    {"Arc-Pro-B60", 12.3, 0, 98.3, 98.3, 24, 456, 18, 20, 2400, "Xe2", "GDDR6", 128, 200, 0},
    {"Max-1550", 52.4, 419, 839, 839, 128, 3277, 408, 128, 1600, "Xe-HPC", "HBM2e", 128, 600, 0},
    {"Ascend910B2(A2)", 0, 0, 354, 354, 64, 1600, 192, 24, 1800, "DaVinci-220", "HBM2e", 0, 0, 0},
    {"Ascend910B3(A2)", 0, 0, 295, 295, 64, 1600, 192, 20, 1800, "DaVinci-220", "HBM2e", 0, 0, 0},
    {"Trainium1", 47.5, 95, 190, 190, 32, 820, 48, 2, 0, "NeuronCore-v2", "HBM", 0, 0, 0},
    {"Trainium2", 181, 667, 667, 667, 96, 2900, 0, 8, 0, "NeuronCore-v3", "HBM3", 0, 500, 1334},
    // clang-format on
};

// What drivers print that is not the name itself without its maker.
struct printed_device {
  const char *printed, *name;
};

inline constexpr printed_device printed_devices[] = {
    {"Quadro RTX 6000", "RTX6000-Turing"},
    {"Quadro RTX 8000", "RTX8000"},
    {"RTX A4000", "A4000"},
    {"RTX A5000", "A5000"},
    {"RTX A6000", "A6000"},
    {"RTX 3060", "RTX3060-12GB"},
    {"RTX 3080", "RTX3080-10GB"},
    {"RTX 3080 Laptop GPU", "RTX3080-Laptop-16GB"},
    {"RTX 4070 SUPER", "RTX4070S"},
    {"RTX 4070 Ti SUPER", "RTX4070TiS"},
    {"RTX 4080 SUPER", "RTX4080S"},
    {"RTX PRO 6000 Blackwell Workstation Edition", "RTX-PRO-6000"},
    {"RTX PRO 6000 Blackwell", "RTX-PRO-6000"},
    {"A100-SXM-40GB", "A100-SXM4-40GB"},
    {"A100-SXM-80GB", "A100-SXM4-80GB"},
    {"A100 80GB PCIe", "A100-PCIe-80GB"},
    {"A800 80GB PCIe", "A800-PCIe-80GB"},
    {"H100 PCIe", "H100-PCIe-80GB"},
    {"H100 80GB HBM2e", "H100-PCIe-80GB"},
    {"H100 80GB HBM3", "H100-SXM5-80GB"},
    {"H100 NVL", "H100-NVL-94GB"},
    {"H800", "H800-SXM5-80GB"},
    {"H800 PCIe", "H800-PCIe-80GB"},
    {"H20", "H20-96GB"},
    {"H20-3e", "H20-141GB"},
    {"H200", "H200-SXM"},
    {"GH200 480GB", "GH200-96GB"},
    {"GH200 120GB", "GH200-96GB"},
    {"B200", "B200-SXM"},
    {"Arcturus GL-XL [Instinct MI100]", "MI100"},
    {"MI300X OAM", "MI300X"},
    {"Data Center GPU Max 1550", "Max-1550"},
    {"Ascend910B2", "Ascend910B2(A2)"},
    {"Ascend910B3", "Ascend910B3(A2)"},
};

HETSCHED_INLINE std::string plain_device_name(std::string_view name) {
  constexpr std::string_view makers[] = {"nvidia", "corporation", "geforce", "tesla",  "amd",        "radeon",     "instinct",
                                         "intel",  "r",           "tm",      "gpu",    "graphics",   "generation", "edition",
                                         "aws",    "huawei",      "google",  "series", "accelerator"};
  std::string plain, word;
  const auto end_word = [&] {
    if (std::find(std::begin(makers), std::end(makers), word) == std::end(makers)) plain += word;
    word.clear();
  };
  for (const char c : name) {
    const char small = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if ((small >= 'a' && small <= 'z') || (small >= '0' && small <= '9') || small == '.')
      word += small;
    else
      end_word();
  }
  end_word();
  return plain;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE std::optional<device> find_device(std::string_view name) {
  for (const auto& d : device_catalogue())
    if (d.name == name) return d;
  const auto plain = detail::plain_device_name(name);
  for (const auto& d : device_catalogue())
    if (detail::plain_device_name(d.name) == plain) return d;
  for (const auto& [printed, meant] : detail::printed_devices)
    if (detail::plain_device_name(printed) == plain) return find_device(meant);
  return std::nullopt;
}

HETSCHED_INLINE bool same_device(std::string_view a, std::string_view b) {
  if (a == b || detail::plain_device_name(a) == detail::plain_device_name(b)) return true;
  const auto one = find_device(a), other = find_device(b);
  return one && other && one->name == other->name;
}

HETSCHED_INLINE const std::vector<device>& device_catalogue() {
  static const std::vector<device> devices = [] {
    std::vector<device> all;
    for (const auto& row : detail::catalogue_rows)
      all.push_back({.name = row.name,
                     .peak_flops = {row.fp32 * 1e12, row.tf32 * 1e12, row.fp16 * 1e12, row.bf16 * 1e12},
                     .memory_bytes = static_cast<bytes_t>(row.memory_gib * static_cast<double>(gib)),
                     .memory_bandwidth = row.memory_gb_per_s * 1e9,
                     .multiprocessors = row.multiprocessors,
                     .l2_bytes = static_cast<bytes_t>(row.l2_mib * static_cast<double>(mib)),
                     .clock_hz = row.clock_mhz * 1e6,
                     .board_watts = row.watts,
                     .generation = row.generation,
                     .fp8_flops = row.fp8 * 1e12,
                     .memory_type = row.memory_type,
                     .lanes_per_multiprocessor = row.lanes});
    return all;
  }();
  return devices;
}

}  // namespace hetsched
