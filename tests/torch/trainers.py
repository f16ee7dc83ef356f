#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Other trainers' own word on what is exported for them: trainers.py FOLDER_OF_COMMANDS. Megatron-LM reads layouts, torchtitan and
DeepSpeed train small models on processes of this host, and torchrun gives ranks to starts. The last line is "N passed, N failed"."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

failed, passed = [], 0


def check(name, holds, detail=""):
    global passed
    if holds:
        passed += 1
    else:
        failed.append(name)
        print(f"FAILED: {name} {detail}", flush=True)


def plan(cuts, schedule, data=1, **more):
    """Stages of so many layers, each on `data` devices."""
    stages, first = [], 0
    for i, layers in enumerate(cuts):
        stages.append({"layers": [first, first + layers - 1], "degrees": {"data": data}, **more,
                       "devices": [{"subcluster": "a", "first_device": i * data, "nodes": 1, "devices_per_node": data}]})
        first += layers
    return {"format": "hetsched/plan", "version": 2, "pipelines": [{"microbatches": 8, "microbatch_size": 4, "stages": stages,
            "schedule": {"name": schedule}}],
            "setting": {"costs": "tile", "granularity": "block", "sequence": 64, "precision": "fp32", "attention": "flash"}}


def exported(commands, folder, target, of, *more):
    (folder / "plan.json").write_text(json.dumps(of))
    out = folder / target
    subprocess.run([commands / "hetsched-export", "--plan", folder / "plan.json", "--to", target, "--out", out, *more], check=True,
                   capture_output=True)
    return out


def torchrun(ranks, *words):
    return subprocess.run([Path(sys.executable).parent / "torchrun", "--nproc-per-node", str(ranks), *map(str, words)],
                          capture_output=True, text=True, timeout=900, env={**os.environ, "OMP_NUM_THREADS": "1"})


def megatron(commands, folder):
    from megatron.core.transformer.enums import LayerType
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
    for cuts, schedule, per_rank in (((4, 1, 7, 3), "1f1b", 1), ((8, 6), "interleaved_1f1b", 2), ((6, 6, 6), "interleaved_1f1b", 2)):
        of = plan(cuts, schedule)
        further = per_rank - 1
        if further:
            of["setting"]["further_tokens"] = further
        if schedule != "1f1b":
            of["pipelines"][0]["microbatches"] = 4 * len(cuts)
        out = exported(commands, folder, "megatron", of)
        text = (out / "pipeline_layout.txt").read_text().strip()
        layout = PipelineParallelLayerLayout(text, len(cuts))
        layout.validate_layer_layout(sum(cuts) - 2, further or None)
        found = [sum(len(stage) for stage in rank) for rank in layout.layout]
        check(f"Megatron-LM: {text}", found == [c + further * (r + 1 == len(cuts)) for r, c in enumerate(cuts)] and all(len(rank) == per_rank for rank in layout.layout), found)
        check("Megatron-LM: embedding and loss", layout.layout[0][0][0] == LayerType.embedding and
              layout.layout[-1][-1][-1] == LayerType.loss)


def torchtitan_rank(folder):
    """A rank of what torchtitan's trainer does with a configuration: its parser, its mesh, its split, its schedule."""
    import torch
    import torch.distributed as dist
    import torchtitan.distributed.parallel_dims as parallel_dims
    from torchtitan.config import ConfigManager
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed.pipeline_parallel import pipeline_llm
    from torchtitan.models.llama3 import llama3_args
    from torchtitan.models.llama3.model.model import Transformer
    parallel_dims.device_type = "cpu"
    config = ConfigManager().parse_args(["--job.config_file", f"{folder}/torchtitan.toml", "--model.name", "llama3",
                                         "--model.flavor", "debugmodel",
                                         "--parallelism.pipeline_parallel_schedule_csv", f"{folder}/schedule.csv"])
    p = config.parallelism
    dist.init_process_group("gloo")
    dims = ParallelDims(dp_replicate=p.data_parallel_replicate_degree, dp_shard=p.data_parallel_shard_degree,
                        cp=p.context_parallel_degree, tp=p.tensor_parallel_degree, pp=p.pipeline_parallel_degree,
                        ep=p.expert_parallel_degree, etp=p.expert_tensor_parallel_degree, world_size=dist.get_world_size())
    dims.build_mesh()
    size = llama3_args["debugmodel"]
    size.update_from_config(config)
    torch.manual_seed(0)
    model = Transformer(size)
    with torch.no_grad():
        model.init_weights()
    schedule, _, first, last = pipeline_llm(
        model, dims, config, torch.device("cpu"), size, lambda m, *_: m,
        lambda output, target: torch.nn.functional.cross_entropy(output.flatten(0, 1).float(), target.flatten(0, 1)))
    tokens = torch.randint(0, size.vocab_size, (config.training.local_batch_size, config.training.seq_len))
    losses = []
    schedule.step(*([tokens] if first else []), **({"target": tokens.roll(-1, 1), "losses": losses} if last else {}))
    print(f"rank {dist.get_rank()}: {json.dumps([[s.stage_index for s in schedule._stages], len(losses)])}", flush=True)


def torchtitan(commands, folder):
    for schedule, per_rank in (("1f1b", 1), ("interleaved_1f1b", 2), ("zb_v", 2)):
        out = exported(commands, folder, "torchtitan", plan((5, 3), schedule, data=2, zero=2))  # six blocks
        run = torchrun(4, Path(__file__).resolve(), "--rank", out)
        found = dict(line.split(": ") for line in run.stdout.splitlines() if line.startswith("rank "))
        ranks = json.loads((out / "ranks.json").read_text())["ranks"]
        last = 2 * per_rank - 1
        for r in ranks:
            held = r["stages"]
            check(f"torchtitan: {schedule}, rank {r['rank']}",
                  json.loads(found.get(f"rank {r['rank']}", "null")) == [held, 8 if last in held else 0],
                  run.stderr[-1500:] if len(found) < 4 else found)


def deepspeed(commands, folder):
    (folder / "users.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def model():\n    torch.manual_seed(0)\n    return [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(8)]\n"
        "def data(samples):\n    g = torch.Generator().manual_seed(1)\n"
        "    while True:\n        yield torch.randn(samples, 16, generator=g), torch.randn(samples, 16, generator=g)\n"
        "def loss(output, target):\n    return nn.functional.mse_loss(output, target)\n")
    found = []
    for cuts in ((3, 5), (8,)):
        out = exported(commands, folder, "deepspeed", plan(cuts, "1f1b"))
        users = f"{folder}/users.py:"
        run = torchrun(len(cuts), out / "run.py", "--model", users + "model", "--data", users + "data", "--loss", users + "loss")
        losses = [float(line.split()[-1]) for line in run.stdout.splitlines() if line.startswith("step ")]
        check(f"DeepSpeed trains stages of {cuts}", len(losses) == 2, run.stderr[-1500:])
        found.append(losses)
    check("DeepSpeed: two stages have the losses of one", all(abs(a - b) < 1e-6 for a, b in zip(*found)), found)


def starts(commands, folder):
    """torchrun gives ranks to starts of unlike sizes, two of which are on one host, as start_all.sh makes them."""
    def host(name, devices):
        return {"name": name, "device": "A100-SXM4-80GB", "nodes": 1, "devices_per_node": devices,
                "intra_node": {"gbit_per_s": 2400, "latency_us": 3}}
    (folder / "cluster.json").write_text(json.dumps(
        {"format": "hetsched/cluster", "version": 1, "subclusters": [host("a", 4), host("b", 2)],
         "links": [{"between": ["a", "b"], "gbit_per_s": 50, "latency_us": 20}]}))
    of = plan((3, 3, 3, 1), "zb_h1")
    devices = [stage["devices"][0] for stage in of["pipelines"][0]["stages"]]
    devices[2].update(subcluster="b", first_device=0)
    devices[3].update(first_device=2)
    out = exported(commands, folder, "torch", of, "--cluster", folder / "cluster.json")
    hosts = (out / "hosts.txt").read_text()
    check("starts: sizes", [line.split()[1] for line in hosts.splitlines()[1:]] == ["slots=2", "slots=1", "slots=1"], hosts)
    (out / "hosts.txt").write_text(hosts.replace("a-0", "localhost").replace("b-0", "localhost"))
    (folder / "ssh").write_text('#!/bin/bash\nshift\nbash -c "$*"\n')
    (folder / "ssh").chmod(0o755)
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    run = subprocess.run(["bash", out / "start_all.sh", "ssh", "--steps", "3"], capture_output=True, text=True, timeout=300,
                         env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"})
    check("starts: four ranks train", run.stdout.count("step ") == 3, run.stderr[-1500:])


if len(sys.argv) > 2 and sys.argv[1] == "--rank":
    torchtitan_rank(sys.argv[2])
    sys.exit(0)
with tempfile.TemporaryDirectory() as name:
    for part in (megatron, torchtitan, deepspeed, starts):
        try:
            part(Path(sys.argv[1]).resolve(), Path(name))
        except Exception as wrong:  # noqa: BLE001
            check(part.__name__, False, wrong)
print(f"{passed} passed, {len(failed)} failed")
sys.exit(1 if failed else 0)
