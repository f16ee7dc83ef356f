#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the table of docs/parallel-pipelines.md that compares planners: the quickstart's input (measured layer times on V100 and
A100) and five clusters priced from datasheets. Takes some minutes.

usage: planners.py COMMANDS, the folder of hetsched-plan and sailor-to-profile
"""
import json
import pathlib
import resource
import subprocess
import sys
import tempfile

DATA = pathlib.Path(__file__).resolve().parent.parent / "examples/data"
PLANNERS = ("interop_dp", "hexiscale", "parallel_pipelines")


def subcluster(name, device, nodes, per_node, intra, inter):
    return {"name": name, "device": device, "nodes": nodes, "devices_per_node": per_node,
            "intra_node": {"gbit_per_s": intra, "latency_us": 5}, "inter_node": {"gbit_per_s": inter, "latency_us": 20}}


def cluster(gbit, *parts):
    names = [p["name"] for p in parts]
    return {"format": "hetsched/cluster", "version": 1, "subclusters": list(parts),
            "links": [{"between": [a, b], "gbit_per_s": gbit, "latency_us": 50} for i, a in enumerate(names) for b in names[:i]]}


def gpt(layers, hidden):
    return {"format": "hetsched/model", "version": 1,
            "transformer": {"layers": layers, "hidden": hidden, "heads": hidden // 128, "vocab": 50257, "sequence": 2048, "dtype": "fp16"}}


SETTINGS = {
    "4 x RTX 4090 beside 4 x RTX 3090, 10 Gbit/s, 0.35B":
        (cluster(10, subcluster("rtx4090", "RTX4090", 4, 1, 100, 10), subcluster("rtx3090", "RTX3090", 4, 1, 100, 10)), gpt(24, 1024), 64),
    "2 x 8 V100, 1 x 8 A100, 1 x 8 H100, 25 Gbit/s, 1.3B":
        (cluster(25, subcluster("v100", "V100-SXM2-32GB", 2, 8, 1200, 100), subcluster("a100", "A100-SXM4-40GB", 1, 8, 2400, 200),
                 subcluster("h100", "H100-SXM5-80GB", 1, 8, 3600, 400)), gpt(24, 2048), 128),
    "4 x 8 V100, 4 x 8 A100, 5 Gbit/s, 1.3B":
        (cluster(5, subcluster("v100", "V100-SXM2-32GB", 4, 8, 1200, 200), subcluster("a100", "A100-SXM4-40GB", 4, 8, 2400, 200)), gpt(24, 2048), 128),
    "4 x 8 V100, 4 x 8 A100, 100 Gbit/s, 13B":
        (cluster(100, subcluster("v100", "V100-SXM2-32GB", 4, 8, 1200, 200), subcluster("a100", "A100-SXM4-80GB", 4, 8, 2400, 200)), gpt(40, 5120), 128),
    "16 x 2 T4, 4 x 4 A10, 10 Gbit/s, 0.35B":
        (cluster(10, subcluster("t4", "T4", 16, 2, 64, 10), subcluster("a10", "A10", 4, 4, 128, 25)), gpt(24, 1024), 128),
}


def plan(command, files, batch, planner, out):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run([command, *files, "--global-batch", str(batch), "--planner", planner, "--out", out],
                          capture_output=True, text=True, check=False)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    if done.returncode != 0:
        print(done.stderr, file=sys.stderr)
        return None, seconds
    return json.loads(pathlib.Path(out).read_text()), seconds


def row(name, files, batch, command, out):
    cells = [name]
    for planner in PLANNERS:
        found, seconds = plan(command, files, batch, planner, out)
        if found is None:
            cells.append("none")
            continue
        several = len(found["pipelines"])
        cells.append(f'{found["predicted"]["iteration_s"]:.3f} s' + (f" ({several})" if several > 1 else "") + f", {seconds:.1f} s")
        if planner == PLANNERS[-1]:
            cells.append(f'{found["evidence"]["objective_bound"]:.3f} s')
    print("| " + " | ".join(cells) + " |", flush=True)


def main():
    commands = pathlib.Path(sys.argv[1]).resolve()
    print("| cluster and model | " + " | ".join(PLANNERS) + " | no plan below |\n| --- | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        at = pathlib.Path(folder)
        subprocess.run([commands / "sailor-to-profile", "--csv", DATA / "sailor_gpt_neo_2.7b.csv", "--measured-model", "GPT-Neo-2.7",
                        "--model", DATA / "model.json", "--gpu", "V100-16=V100-SXM2-16GB", "--gpu", "A100-40=A100-SXM4-40GB",
                        "--out", at / "profile.json"], check=True, capture_output=True)
        row("quickstart: 4 x 4 V100, 2 x 4 A100, 5 Gbit/s, GPT-Neo 2.7B, measured",
            ["--cluster", DATA / "cluster.json", "--model", DATA / "model.json", "--profile", at / "profile.json"], 64,
            commands / "hetsched-plan", at / "plan.json")
        for name, (hardware, model, batch) in SETTINGS.items():
            (at / "cluster.json").write_text(json.dumps(hardware))
            (at / "model.json").write_text(json.dumps(model))
            row(name, ["--cluster", at / "cluster.json", "--model", at / "model.json"], batch, commands / "hetsched-plan", at / "plan.json")


if __name__ == "__main__":
    main()
