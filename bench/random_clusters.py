#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How often another planner of hetsched-plan is ahead of the default one, given the same time, on random clusters of 24 to 512 devices
of one to six kinds. Prints a line for each cluster and budget where one is, and a table at the end. Runs one after another.

A budget of "none" lets each search run to its end.

With --processor-time a second of a budget is a second of the command's processor time, so that other work on the machine does not
count: needs cc and LD_PRELOAD.

random_clusters.py PLAN FIRST COUNT [--budgets 0.1,1,10] [--planners ...] [--processor-time] [--save FOLDER] [--known FILE]
"""
import argparse
import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

DEFAULT = "parallel_pipelines"
OTHERS = ("interop_dp", "hexiscale", "hetauto", "hetauto_exact", "placement")
ROUNDING = 1e-6
GIB = {"H100-SXM5-80GB": 80, "A100-SXM4-80GB": 80, "A100-SXM4-40GB": 40, "V100-SXM2-32GB": 32, "V100-SXM2-16GB": 16, "L40S": 48,
       "A10": 24, "RTX4090": 24, "RTX3090": 24, "T4": 16}
MODELS = {1: (24, 2048), 3: (32, 2560), 7: (32, 4096), 13: (40, 5120), 30: (48, 7168), 70: (80, 8192), 175: (96, 12288)}  # layers, hidden
CLOCK = """#define _GNU_SOURCE
#include <time.h>
#include <sys/syscall.h>
#include <unistd.h>
int clock_gettime(clockid_t which, struct timespec* now) {
  return (int)syscall(SYS_clock_gettime, which == CLOCK_MONOTONIC ? CLOCK_PROCESS_CPUTIME_ID : which, now);
}
"""


def draw_input(seed):
    """A cluster, a model and a global batch."""
    draw = random.Random(seed)
    while True:
        kinds = draw.sample(sorted(GIB), draw.randint(1, 6))
        wanted = 24 * 2 ** draw.uniform(0, 4.4)
        parts = []
        for i, kind in enumerate(kinds):
            each = draw.choice((1, 2, 4, 8, 8))
            nodes = max(1, round(wanted / len(kinds) * draw.uniform(0.4, 1.6) / each))
            parts.append({"name": f"{kind.lower()}-{i}", "device": kind, "nodes": nodes, "devices_per_node": each,
                          "intra_node": {"gbit_per_s": draw.choice((64, 256, 1200, 2400)), "latency_us": 5},
                          "inter_node": {"gbit_per_s": draw.choice((10, 25, 100, 200)), "latency_us": 20}})
        between = draw.choice((1, 5, 25, 100, 200))
        links = [{"between": [a["name"], b["name"]], "gbit_per_s": draw.choice((between, between, 25)), "latency_us": 50}
                 for i, a in enumerate(parts) for b in parts[:i]]
        billions = draw.choice(sorted(MODELS))
        layers, hidden = MODELS[billions]
        batch = draw.choice((32, 64, 128, 256, 512, 1024))
        gib = sum(p["nodes"] * p["devices_per_node"] * GIB[p["device"]] for p in parts)
        count = sum(p["nodes"] * p["devices_per_node"] for p in parts)
        if not (24 <= count <= 512 and gib > 1.3 * 18 * billions):
            continue
        model = {"layers": layers, "hidden": hidden, "heads": hidden // 128, "vocab": draw.choice((32000, 50257)),
                 "sequence": draw.choice((1024, 2048, 4096)), "dtype": "bf16" if draw.random() < 0.3 else "fp16"}
        what = f"{count} devices of {len(parts)} kinds, {billions}B, batch {batch}, {gib / (18 * billions):.1f} times the model's memory"
        return ({"format": "hetsched/cluster", "version": 1, "subclusters": parts, "links": links},
                {"format": "hetsched/model", "version": 1, "transformer": model}, batch, what)


def iteration(command, folder, batch, planner, budget, environment):
    """Seconds; infinity where there is no plan."""
    limits = [] if budget == "none" else ["--time-budget", budget]
    done = subprocess.run([command, "--cluster", folder / "cluster.json", "--model", folder / "model.json", "--global-batch", str(batch),
                           "--planner", planner, *limits, "--json", "--quiet"],
                          capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        if "no plan: " not in done.stderr and "stopped" not in done.stderr:
            print(f"{planner}: status {done.returncode}: {done.stderr.strip()}", file=sys.stderr)
        return float("inf")
    found = json.loads(done.stdout)
    return found.get("plan", found)["predicted"]["iteration_s"]


def spelled(budget):
    return "to the end" if budget == "none" else f"{budget} s"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=pathlib.Path, help="hetsched-plan")
    parser.add_argument("first", type=int, help="seed")
    parser.add_argument("count", type=int)
    parser.add_argument("--budgets", default="0.1,1,10", help="seconds, or none")
    parser.add_argument("--planners", default=",".join(OTHERS), help="that the default is compared with")
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--save", type=pathlib.Path, help="folder for the inputs")
    parser.add_argument("--known", type=pathlib.Path, help="file of the others' iterations, read if it exists, and written")
    given = parser.parse_args()
    known = json.loads(given.known.read_text()) if given.known and given.known.exists() else {}
    behind, seen = collections.defaultdict(list), collections.Counter()
    with tempfile.TemporaryDirectory() as scratch:
        environment = dict(os.environ)
        if given.processor_time:
            source, clock = pathlib.Path(scratch) / "clock.c", pathlib.Path(scratch) / "clock.so"
            source.write_text(CLOCK)
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", source, "-o", clock], check=True)
            environment["LD_PRELOAD"] = str(clock)
        for seed in range(given.first, given.first + given.count):
            cluster, model, batch, what = draw_input(seed)
            folder = (given.save or pathlib.Path(scratch)) / str(seed)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "cluster.json").write_text(json.dumps(cluster))
            (folder / "model.json").write_text(json.dumps(model))
            for budget in given.budgets.split(","):
                def ask(planner):
                    return iteration(given.plan, folder, batch, planner, budget, environment)
                for planner in given.planners.split(","):
                    key = f"{seed} {budget} {planner}"
                    if key not in known:
                        known[key] = ask(planner)
                own = ask(DEFAULT)
                best, other = min((known[f"{seed} {budget} {p}"], p) for p in given.planners.split(","))
                if min(own, best) == float("inf"):
                    continue
                seen[budget] += 1
                if own > best * (1 + ROUNDING):
                    behind[budget].append(own / best - 1)
                    print(f"seed {seed}, {spelled(budget)}: {own:.5g} s, {other} {best:.5g} s, by {100 * (own / best - 1):.3g} % ({what})", flush=True)
            if given.known:
                given.known.write_text(json.dumps(known))
    print("| time | clusters | another is ahead | by more than 1 % | by, at the most |\n| --- | ---: | ---: | ---: | ---: |")
    for budget in given.budgets.split(","):
        by = behind[budget]
        print(f"| {spelled(budget)} | {seen[budget]} | {len(by)} | {sum(b > 0.01 for b in by)} | {100 * max(by, default=0):.3g} % |")


if __name__ == "__main__":
    main()
