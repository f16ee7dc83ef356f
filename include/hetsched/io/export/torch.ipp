// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/io/export/assumptions.hpp>
#include <hetsched/io/export/hosts.hpp>
#include <hetsched/io/export/torch.hpp>
#include <hetsched/io/json_reader.hpp>

namespace hetsched {

namespace detail {

inline constexpr const char* torch_script = R"py(#!/usr/bin/env python3
"""Runs the plan in this folder with torch.distributed.pipelining: torchrun --nproc-per-node RANKS run.py

--model FILE:FUNCTION  a function that returns the layers of stages.json, in order, as a list of modules; else a small example
--input FILE:FUNCTION  a function of the number of samples that returns a batch and its targets, called once a step
--loss FILE:FUNCTION   a function of a microbatch's output and targets; default: cross entropy, of the example's mean square
--optimizer FILE:FUNCTION  a function of parameters; default: SGD with rate 0.01
"""
import argparse
import importlib.util
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.utils.checkpoint import checkpoint

here = Path(__file__).resolve().parent
plan = json.loads((here / "stages.json").read_text())


def load(name):
    path, _, function = name.partition(":")
    spec = importlib.util.spec_from_file_location("users", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)


class Stage(nn.Sequential):
    """Layers, of some of which only the inputs are kept for the backward pass."""

    recomputed = ()

    def forward(self, x):
        for n, layer in enumerate(self):
            x = checkpoint(layer, x, use_reentrant=False) if n in self.recomputed else layer(x)
        return x


def example_model():
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(plan["layers"])]


def example_input(samples):
    torch.manual_seed(1)
    return torch.randn(samples, 32), torch.randn(samples, 32)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", type=load, default=example_model)
    options.add_argument("--input", type=load, default=example_input)
    options.add_argument("--loss", type=load)
    options.add_argument("--optimizer", type=load, default=lambda parameters: torch.optim.SGD(parameters, lr=0.01))
    options.add_argument("--steps", type=int, default=2)
    options = options.parse_args()
    cuda = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, pipeline, data = dist.get_rank(), plan["pipeline_ranks"], plan["data"]
    if dist.get_world_size() != pipeline * data:
        raise SystemExit(f"the plan has {pipeline * data} ranks, found {dist.get_world_size()}")
    # Ranks are those of ranks.json: stage by stage, replicas next to each other.
    place, replica = divmod(rank, data)
    lines = [dist.new_group([p * data + d for p in range(pipeline)]) for d in range(data)]
    replicas = [dist.new_group([p * data + d for d in range(data)]) for p in range(pipeline)]
    layers = options.model()
    if len(layers) != plan["layers"]:
        raise SystemExit(f"the plan has {plan['layers']} layers, the model {len(layers)}")
    count = len(plan["stages"])
    stages = []
    for s in plan["stages"]:
        if s["pipeline_rank"] == place:
            part = Stage(*layers[s["first_layer"]:s["last_layer"] + 1]).to(device)
            part.recomputed = [n - s["first_layer"] for n in s["recomputed_layers"]]
            if s["zero"]:  # parameters, gradients and state are shared out but while the pipeline runs
                fully_shard(part, mesh=DeviceMesh.from_group(replicas[place], device.type), reshard_after_forward=False)
            stages.append(PipelineStage(part, s["stage"], count, device, group=lines[replica]))
    loss = options.loss or (nn.MSELoss() if options.model is example_model else nn.CrossEntropyLoss())
    schedule = _PipelineScheduleRuntime(stages, plan["microbatches"], loss_fn=loss)
    schedule._load_csv(str(here / "schedule.csv"))
    parameters = [p for s in stages for p in s.submod.parameters()]
    summed = [p for s in stages if not isinstance(s.submod, FSDPModule) for p in s.submod.parameters()]  # FSDP adds up its own
    optimizer = options.optimizer(parameters)
    samples = plan["microbatches"] * plan["microbatch_size"]
    held = {s.stage_index for s in stages}
    for step in range(options.steps):
        batch, target = (t.chunk(data)[replica].to(device) for t in options.input(samples))
        losses = []
        schedule.step(*([batch] if 0 in held else []), **({"target": target, "losses": losses} if count - 1 in held else {}))
        if data > 1:
            for p in summed:
                dist.all_reduce(p.grad, group=replicas[place])
                p.grad /= data
        optimizer.step()
        optimizer.zero_grad()
        if losses:
            mean = torch.stack([l.detach() for l in losses]).mean()
            if data > 1:
                dist.all_reduce(mean, group=replicas[place])
            if replica == 0:
                print(f"step {step}: loss {mean.item() / data:.9f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
)py";

/// Embedding and head of a model, which are not priced as recomputed. In plans of other costs layers are what they are.
[[nodiscard]] inline bool is_end(const placed_plan& placed, int layer) {
  return !placed.setting().granularity.empty() && (layer == 0 || layer == placed.layers() - 1);
}

}  // namespace detail

HETSCHED_INLINE plan_export export_torch(const placed_plan& placed) {
  const auto& order = placed.order();
  const auto& line = placed.line();
  auto stages = nlohmann::ordered_json::array();
  for (std::size_t v = 0; v < placed.layout.stages.size(); ++v) {
    const auto layers = placed.layout.stages[v].layers;
    auto modules = nlohmann::ordered_json::array();
    for (int l = layers.first; l < layers.last; ++l) modules.push_back(module_name(placed, l));
    const int rank = order.rank(0, static_cast<int>(v));
    const bool recomputes = at(line.stages, rank).recompute != recomputation::none;
    auto recomputed = nlohmann::ordered_json::array();
    for (int l = layers.first; l < layers.last && recomputes; ++l)
      if (!detail::is_end(placed, l)) recomputed.push_back(l);
    stages.push_back({{"stage", v},
                      {"pipeline_rank", rank},
                      {"first_layer", layers.first},
                      {"last_layer", layers.last - 1},
                      {"modules", std::move(modules)},
                      {"zero", line.stages.front().degrees.data > 1 ? std::min(at(line.stages, rank).zero, 1) : 0},
                      {"recompute", name_of(recomputes ? recomputation::full : recomputation::none)},
                      {"recomputed_layers", std::move(recomputed)}});
  }
  plan_export result;
  for (std::size_t s = 0; s < line.stages.size(); ++s)
    if (line.stages[s].zero > 1 && line.stages[s].degrees.data > 1) {
      result.remarks.push_back("stage " + std::to_string(s) + " has ZeRO stage " + std::to_string(line.stages[s].zero) +
                               ", and in run.py 1");
      break;
    }
  result.files = {{"stages.json", detail::dump(nlohmann::ordered_json{{"layers", placed.layers()},
                                                                      {"pipeline_ranks", order.ranks},
                                                                      {"data", line.stages.front().degrees.data},
                                                                      {"microbatches", line.microbatches},
                                                                      {"microbatch_size", line.microbatch_size},
                                                                      {"stages", std::move(stages)}})},
                  {"schedule.csv", computed_csv(placed)},
                  {"run.py", detail::torch_script},
                  {"ranks.json", ranks_json(placed)}};
  for (auto& f : launch_files(placed, "\"$here/run.py\"")) result.files.push_back(std::move(f));
  for (auto& f : assumption_files(placed)) result.files.push_back(std::move(f));
  if (const auto& stack = placed.setting().stack; stack && stack->fp8_products)
    result.remarks.push_back(detail::fp8_remark(placed));
  for (std::size_t s = 0; s < line.stages.size(); ++s)
    if (line.stages[s].recompute == recomputation::selective) {
      result.remarks.push_back("stage " + std::to_string(s) + " recomputes selectively, and in run.py whole layers");
      break;
    }
  return result;
}

}  // namespace hetsched
