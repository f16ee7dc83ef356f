#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains eight nn.Modules as a pipeline over torch's own processes, by a schedule or by a plan.json of hetsched-plan:

  torchrun --nproc-per-node 2 examples/torch/train_pipeline.py zb_h1

The extension is compiled by the first start, which takes a minute or two (g++, ninja, nlohmann's json)."""
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.cpp_extension import load

LAYERS, MICROBATCHES, SAMPLES, FEATURES, CLASSES = 8, 8, 4, 32, 10
HERE = Path(__file__).resolve().parent


def extension(name="hetsched_pipeline", source=HERE / "pipeline_extension.cpp"):
    """Rank 0 compiles it, unless it is there; the others then load it."""
    def built():
        return load(name, str(source), extra_include_paths=[str(HERE.parents[1] / "include")], extra_cflags=["-std=c++20", "-O2"])

    first = built() if dist.get_rank() == 0 else None
    dist.barrier()
    return first or built()


def make_layer(layer):
    torch.manual_seed(layer)  # the same numbers, whichever rank makes it
    return nn.Sequential(nn.LayerNorm(FEATURES), nn.Linear(FEATURES, FEATURES if layer + 1 < LAYERS else CLASSES), nn.GELU())


def batch():
    torch.manual_seed(1)
    return ([torch.randn(SAMPLES, FEATURES) for _ in range(MICROBATCHES)],
            [torch.randint(CLASSES, (SAMPLES,)) for _ in range(MICROBATCHES)])


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    shapes = [[SAMPLES, FEATURES]] * LAYERS + [[SAMPLES, CLASSES]]
    trainer = extension().Trainer(dist.group.WORLD, sys.argv[1] if len(sys.argv) > 1 else "1f1b", make_layer, shapes, MICROBATCHES,
                                  learning_rate=1e-2)
    inputs, targets = batch()
    for step in range(40):
        loss = trainer.step(inputs, targets, cross_entropy)
        if dist.get_rank() == 0 and step in (0, 39):
            print(f"step {step}: loss {loss:.6f}", flush=True)
    del trainer  # before the group that it uses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
