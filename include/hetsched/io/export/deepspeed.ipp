// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <hetsched/core/compiled.hpp>
#include <hetsched/io/export/assumptions.hpp>
#include <hetsched/io/export/deepspeed.hpp>
#include <hetsched/io/export/hosts.hpp>
#include <hetsched/io/json_reader.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched {

namespace detail {

inline constexpr const char* deepspeed_script = R"py(#!/usr/bin/env python3
"""Trains the plan in this folder with DeepSpeed's pipelines: torchrun --nproc-per-node RANKS run.py --model FILE:FUNCTION ...

--model FILE:FUNCTION  a function that returns the layers of stages.json, in order: modules or LayerSpecs
--data FILE:FUNCTION   a function of a microbatch's samples that returns an iterator over pairs of inputs and targets
--loss FILE:FUNCTION   a function of outputs and targets; default: cross entropy
--optimizer FILE:FUNCTION  a function of parameters; default: Adam with rate 1e-4
"""
import argparse
import importlib.util
import json
from pathlib import Path

import deepspeed
import torch
from deepspeed.pipe import PipelineModule

here = Path(__file__).resolve().parent
plan = json.loads((here / "stages.json").read_text())


class PlannedModule(PipelineModule):
    """Cut where the plan says, and recomputed in the stages that the plan recomputes. Ranks go stage by stage, as in ranks.json."""

    def _partition_layers(self, method="plan"):
        stages = plan["stages"]
        if len(self._layer_specs) != plan["layers"]:
            raise SystemExit(f"the plan has {plan['layers']} layers, the model {len(self._layer_specs)}")
        self.parts = [s["first_layer"] for s in stages] + [plan["layers"]]
        self._set_bounds(start=self.parts[self.stage_id], stop=self.parts[self.stage_id + 1])

    def _build(self):
        self.activation_checkpoint_interval = 1 if plan["stages"][self.stage_id]["recompute"] else 0
        super()._build()


def load(name):
    path, _, function = name.partition(":")
    spec = importlib.util.spec_from_file_location("users", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", type=load, required=True)
    options.add_argument("--data", type=load, required=True)
    options.add_argument("--loss", type=load, default=torch.nn.CrossEntropyLoss())
    options.add_argument("--optimizer", type=load, default=lambda parameters: torch.optim.Adam(parameters, lr=1e-4))
    options.add_argument("--steps", type=int, default=2)
    options = options.parse_args()
    deepspeed.init_distributed()
    ranks = len(plan["stages"]) * plan["data"]
    if torch.distributed.get_world_size() != ranks:
        raise SystemExit(f"the plan has {ranks} ranks, found {torch.distributed.get_world_size()}")
    model = PlannedModule(layers=options.model(), num_stages=len(plan["stages"]), loss_fn=options.loss)
    parameters = [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=parameters, optimizer=options.optimizer(parameters),
                                      config=str(here / "ds_config.json"))
    data = options.data(plan["microbatch_size"] // plan["data"])
    for step in range(options.steps):
        loss = engine.train_batch(data_iter=data)
        if torch.distributed.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.9f}", flush=True)


if __name__ == "__main__":
    main()
)py";

/// Precision and ZeRO of ds_config.json.
inline void add_types(const placed_plan& placed, nlohmann::ordered_json& config, std::vector<std::string>& remarks) {
  const int zero = common_zero(placed, 1, remarks);  // its pipelines take no more
  if (zero == 1 && placed.copies > 1)
    remarks.push_back("DeepSpeed shards over all replicas, and the plan over those of each pipeline: it takes less memory");
  config["zero_optimization"] = {{"stage", zero}};
  const auto used = precision_of(placed);
  if (used != precision::bf16 && used != precision::fp16) return;
  config[std::string(name_of(*used))] = {{"enabled", true}};
  // Without ZeRO it takes gradients in the model's type only.
  if (zero == 1 && gradient_bytes(placed, *used) >= 4) config["data_types"] = {{"grad_accum_dtype", "fp32"}};
}

}  // namespace detail

HETSCHED_INLINE plan_export export_deepspeed(const placed_plan& placed) {
  const auto& line = placed.line();
  const int data = line.stages.front().degrees.data;
  nlohmann::ordered_json config{{"train_batch_size", sample_count(placed.file.plan)},
                                {"train_micro_batch_size_per_gpu", placed.line().microbatch_size / data},
                                {"gradient_accumulation_steps", line.microbatches}};
  plan_export result;
  detail::add_types(placed, config, result.remarks);
  auto stages = nlohmann::ordered_json::array();
  for (std::size_t s = 0; s < line.stages.size(); ++s) {
    if (line.stages[s].recompute == recomputation::selective)
      result.remarks.push_back("stage " + std::to_string(s) + " recomputes selectively, and with DeepSpeed whole layers");
    const auto layers = placed.layout.stages[s].layers;
    auto modules = nlohmann::ordered_json::array();
    for (int l = layers.first; l < layers.last; ++l) modules.push_back(module_name(placed, l));
    stages.push_back({{"stage", s},
                      {"first_layer", layers.first},
                      {"last_layer", layers.last - 1},
                      {"recompute", line.stages[s].recompute != recomputation::none},
                      {"modules", std::move(modules)}});
  }
  result.files = {{"ds_config.json", detail::dump(config)},
                  {"stages.json", detail::dump(nlohmann::ordered_json{{"layers", placed.layers()},
                                                                      {"data", data},
                                                                      {"microbatches", line.microbatches},
                                                                      {"microbatch_size", line.microbatch_size},
                                                                      {"stages", std::move(stages)}})},
                  {"run.py", detail::deepspeed_script},
                  {"ranks.json", ranks_json(placed)}};
  for (auto& f : launch_files(placed, "\"$here/run.py\"")) result.files.push_back(std::move(f));
  for (auto& f : assumption_files(placed)) result.files.push_back(std::move(f));
  for (auto& more : remarks_under_1f1b(placed, "deepspeed")) result.remarks.push_back(std::move(more));
  return result;
}

}  // namespace hetsched
