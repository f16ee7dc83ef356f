// SPDX-License-Identifier: Apache-2.0
// Compares predictions with measurements: writes the summary OUT/accuracy.md, and a page and a picture for each part in
// OUT/accuracy. Usage: hetsched_validate DATA OUT, where DATA holds the tables that the parts read.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>

#include "communication_tables.hpp"
#include "forest.hpp"
#include "iterations.hpp"
#include "memory_tables.hpp"
#include "operator_tables.hpp"
#include "report.hpp"
#include "sailor.hpp"
#include "scatter_svg.hpp"

using namespace validation;

namespace {

constexpr const char* introduction = R"(# Accuracy

This page sets what hetsched predicts beside what others measured and published: operators, whole models, layers, collectives, memory and iterations.
Each part has a page of its own with a picture, a table of errors and the worst cases.

An *error* is predicted / measured - 1. *Mean* and *median* are of absolute errors; the *worst* case is the one that is off by the largest factor, and keeps its sign.
*Held out* means that no constant in a prediction was fitted to measurements of its group, which most often is a device.

What `hetsched-predict` itself says of operators, iterations and memory, row by row and without any formula beside it, stands on a page that the commands make: [through the commands](accuracy/through-the-commands.md). What NCCL makes of the links in a node has [one of its own](accuracy/links-in-a-node.md), too.

## Goals

)";

constexpr const char* parts_heading = R"(
## Parts

The errors are those of the cases that were held out. A part marked "fitted" has none; its errors are those of all cases.

)";

constexpr const char* constants = R"(
## What is fitted to what

| constants | where | fitted to | reproduced by |
| --- | --- | --- | --- |
| `tile_constants` | [tile_constants.hpp](../include/hetsched/cost/operators/tile_constants.hpp) | the operators of NeuSight (its test set), Vidur, DeepBench and inference engines; for the figures here once more without each chip | `hetsched_fit_tile DATA` |
| `fitted_overheads`, the optimizer of stack `deepspeed` | [memory_use.hpp](../include/hetsched/cost/questions/memory_use.hpp), [training_stack.ipp](../include/hetsched/cost/models/training_stack.ipp) | the peaks of Sailor's processes; for the figures here without each kind of node | `hetsched_validate`, which warns where the shipped ones differ |
| efficiency of iterations | none ships: 1 by default | Megatron-LM's tables but the one predicted; one number for all operators | `hetsched_validate` |
| network ports of Sailor's sites | none ships | the gradient reductions of the site's other plans | `hetsched_validate` |
| forests | none ships | measured operators or layers, as each part says | `hetsched_validate` |
| transfer curves | [transfer_curve.hpp](../include/hetsched/cost/network/transfer_curve.hpp) | measurements of the user's machine; none ship with the library | |

All else is shapes, [datasheets](devices.md) and formulas.

## How to read the pages

In a picture, the solid line is equality; the dashed lines are 10 % off and the dotted ones 25 %. Of thousands of points, those that would cover each other are left out.

*Mean*, *median* and *max* are of absolute errors; *bias* is the mean with its sign, and *lowest* and *highest* keep theirs. Lines marked "fitted" were not held out. Columns with names in italics
are other predictors. The list of the worst shows at most two cases of each group and kind.
)";

constexpr const char* sources = R"(
## Sources

NeuSight (sitar-lab/NeuSight, MIT), Vidur (microsoft/vidur, MIT), DeepBench (baidu-research/DeepBench, Apache-2.0), LLMCompass (PrincetonUniversity/LLMCompass,
BSD-3), SimAI (aliyun/SimAI, Apache-2.0), Galvatron (PKU-DAIR/Hetu-Galvatron, Apache-2.0), Sailor (eth-easl/sailor, MIT), MPT (mosaicml/llm-foundry, Apache-2.0), torchtitan (pytorch/torchtitan, BSD-3), inference engines' operators (ai-dynamo/aiconfigurator, Apache-2.0), and the tables of Megatron-LM's papers
(Narayanan et al. 2021, Korthikanti et al. 2023, Smith et al. 2022). Small samples of some of them are [test data](../tests/data/README.md).

## Reproduce

One program writes this page and all behind it from the tables of measurements, which are not part of the repository:

    cmake --preset release
    cmake --build --preset release --target hetsched_validate
    build/release/bench/validation/hetsched_validate DATA docs
)";

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw hetsched::input_error("cannot write " + path.string());
}

std::vector<validation_part> measure(const std::string& data) {
  std::vector<validation_part> parts;
  const auto add = [&](const char* what, const auto& predict) {
    std::fprintf(stderr, "%s\n", what);
    if constexpr (requires { parts.push_back(predict(data)); })
      parts.push_back(predict(data));
    else
      for (auto& part : predict(data)) parts.push_back(std::move(part));
  };
  add("operators and whole models", operator_parts);
  add("fp16 operators with a forest, device held out", corrected_half_operators);
  add("fp16 operators with a forest, models held out", corrected_other_models);
  add("fp32 operators with a forest, devices held out", corrected_single_operators);
  add("layers", sailor_layers);
  add("layers with a forest", corrected_layers_of_sailor);
  add("layers of Llama", galvatron_layers);
  add("collectives", communication_parts);
  add("memory", memory_parts);
  add("iterations of Megatron-LM", megatron_iterations);
  add("iterations of Sailor", sailor_iterations);
  return parts;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) throw hetsched::input_error("usage: hetsched_validate DATA OUT");
  const std::filesystem::path out = argv[2];
  std::filesystem::create_directories(out / "accuracy");
  const auto parts = measure(argv[1]);
  for (const auto& part : parts) {
    write(out / "accuracy" / (slug(part.title) + ".svg"), scatter_svg(part));
    write(out / "accuracy" / (slug(part.title) + ".md"), part_page(part));
  }
  write(out / "accuracy.md", introduction + goals_table(parts) + parts_heading + parts_table(parts) + constants + sources);
  for (const auto& part : parts)
    for (const auto& v : judge(part))
      std::fprintf(stderr, "%-4s %s: %s: %s\n", v.reached ? "yes" : "NO", part.title.c_str(), v.goal.c_str(), v.measured.c_str());
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
