#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long hetsched-plan takes to answer a time budget and a SIGINT on large clusters, by planner: prints a table.

answer_times.py PLAN [--inputs hosts,subclusters,devices] [--planners ...] [--budgets 0,1,10] [--signals 1]
"""
import argparse
import json
import pathlib
import signal
import subprocess
import tempfile
import time

PLANNERS = ["parallel_pipelines", "interop_dp", "hexiscale", "hetauto", "hetauto_exact", "placement"]


def mesh(names, gbit_per_s, latency_us):
    return [{"between": [b, a], "gbit_per_s": gbit_per_s, "latency_us": latency_us} for i, a in enumerate(names) for b in names[i + 1:]]


def hosts(count):
    """Hosts of one GPU each, joined by the internet."""
    names = [f"h{i}" for i in range(count)]
    return {"subclusters": [{"name": n, "device": "RTX3090", "nodes": 1, "devices_per_node": 1} for n in names],
            "links": mesh(names, 1, 5000)}


def subclusters(count):
    """Single nodes of eight GPUs of four kinds, joined by Ethernet."""
    kinds = ["A100-SXM4-80GB", "A100-SXM4-40GB", "V100-SXM2-32GB", "L40S"]
    names = [f"s{i}" for i in range(count)]
    return {"subclusters": [{"name": n, "device": kinds[i % 4], "nodes": 1, "devices_per_node": 8,
                             "intra_node": {"gbit_per_s": 1200, "latency_us": 5}} for i, n in enumerate(names)],
            "links": mesh(names, 25, 50)}


def devices(nodes):
    """Large subclusters of four kinds."""
    kinds = ["H100-SXM5-80GB", "A100-SXM4-80GB", "A100-SXM4-40GB", "V100-SXM2-32GB"]
    shares = [0.2, 0.4, 0.24, 0.16]
    subs = [{"name": k.split("-")[0] + str(i), "device": k, "nodes": int(nodes * s + 0.5), "devices_per_node": 8,
             "intra_node": {"gbit_per_s": 2400, "latency_us": 5}, "inter_node": {"gbit_per_s": 400, "latency_us": 10}}
            for i, (k, s) in enumerate(zip(kinds, shares))]
    return {"subclusters": subs, "links": mesh([s["name"] for s in subs], 100, 50)}


INPUTS = {
    "hosts": (hosts(300), {"layers": 32, "hidden": 4096, "heads": 32, "vocab": 32000, "sequence": 2048, "dtype": "bf16"}, 32),
    "subclusters": (subclusters(100), {"layers": 80, "hidden": 8192, "heads": 64, "vocab": 32000, "sequence": 4096, "dtype": "bf16"}, 512),
    "devices": (devices(1250), {"layers": 96, "hidden": 12288, "heads": 96, "vocab": 50257, "sequence": 2048, "dtype": "bf16"}, 4096),
}


def run(command, interrupt_s, patience_s):
    """Seconds from the start, or from the signal, to the end; the status; and what was printed."""
    start = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        if interrupt_s is not None:
            try:
                child.wait(interrupt_s)
            except subprocess.TimeoutExpired:
                pass
            start = time.monotonic()
            child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        child.kill()
        out, err = child.communicate()
        return time.monotonic() - start, "killed", out + err
    return time.monotonic() - start, child.returncode, out + err


def iteration_of(path):
    if not path.exists():
        return "-"
    return f"{json.loads(path.read_text())['predicted']['iteration_s']:.4g} s"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", help="hetsched-plan")
    parser.add_argument("--inputs", default=",".join(INPUTS))
    parser.add_argument("--planners", default=",".join(PLANNERS))
    parser.add_argument("--budgets", default="0,1,10")
    parser.add_argument("--signals", default="1")
    parser.add_argument("--patience", type=float, default=60, help="seconds until a run is killed")
    given = parser.parse_args()
    split = lambda text: [t for t in text.split(",") if t]
    print("| input | planner | asked | answered after | status | iteration |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name in split(given.inputs):
            cluster, model, batch = INPUTS[name]
            cluster_path, model_path, plan_path = (folder / f"{name}.{what}.json" for what in ("cluster", "model", "plan"))
            cluster_path.write_text(json.dumps({"format": "hetsched/cluster", "version": 1, **cluster}))
            model_path.write_text(json.dumps({"format": "hetsched/model", "version": 1, "transformer": model}))
            for planner in split(given.planners):
                for budget, interrupt in [(b, None) for b in split(given.budgets)] + [(None, float(s)) for s in split(given.signals)]:
                    plan_path.unlink(missing_ok=True)
                    command = [given.plan, "--cluster", str(cluster_path), "--model", str(model_path), "--global-batch", str(batch),
                               "--planner", planner, "--out", str(plan_path)]
                    if budget is not None:
                        command += ["--time-budget", budget]
                    seconds, status, _ = run(command, interrupt, given.patience)
                    asked = f"{budget} s" if budget is not None else f"SIGINT after {interrupt:g} s"
                    print(f"| {name} | {planner} | {asked} | {seconds:.2f} s | {status} | {iteration_of(plan_path)} |", flush=True)


if __name__ == "__main__":
    main()
