#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks for plans that contradict what hetsched-plan says: small random clusters of one to four kinds of devices, with little memory
and few microbatches, go through all planners and warm-up rules. Reports

* a bound above the iteration of a plan of its space that anybody found, and a "complete" search that such a plan beats by more than
  its gap;
* a plan of the default planner that is worse than another planner's with the same time;
* a plan that is worse than that of a smaller space: fewer ways to save memory, one microbatch size, fewer devices.

Each pool takes some fifteen seconds. Ends with status 1 if anything was found.

usage: random_pools.py FOLDER FIRST COUNT, the folder of hetsched-plan, the first seed and how many
"""
import concurrent.futures
import json
import pathlib
import random
import subprocess
import sys
import tempfile

DEFAULT = "parallel_pipelines"
PLANNERS = (DEFAULT, "interop_dp", "hexiscale", "hetauto", "hetauto_exact", "placement")
RULES = ("exact", "1f1b", "h1f1b", "eager")
BUDGETS = (0.1, 1)
GAP, ROUNDING = 0.001, 1e-6
DEVICES = ("RTX4090", "RTX3090", "RTX3060", "RTX4060", "T4", "V100-SXM2-16GB", "V100-SXM2-32GB", "A100-SXM4-40GB")


def pool(draw):
    """A cluster, a model and a global batch."""
    kinds = draw.sample(DEVICES, draw.randint(1, 4))
    most = 8 // len(kinds)
    parts = []
    for kind in kinds:
        nodes = draw.randint(1, min(2, most))
        parts.append({"name": kind.lower(), "device": kind, "nodes": nodes, "devices_per_node": draw.randint(1, max(1, most // nodes)),
                      "intra_node": {"gbit_per_s": draw.choice((64, 256, 1200)), "latency_us": 5},
                      "inter_node": {"gbit_per_s": draw.choice((1, 10, 100)), "latency_us": 30}})
    links = [{"between": [a["name"], b["name"]], "gbit_per_s": draw.choice((1, 5, 25, 100)), "latency_us": 50}
             for i, a in enumerate(parts) for b in parts[:i]]
    hidden = draw.choice((1024, 1536, 2048, 2560, 3072))
    model = {"layers": draw.randint(3, 24), "hidden": hidden, "heads": hidden // 128, "vocab": draw.choice((1000, 32000, 50257)),
             "sequence": draw.choice((512, 1024, 2048, 4096)), "dtype": "fp16"}
    return ({"format": "hetsched/cluster", "version": 1, "subclusters": parts, "links": links},
            {"format": "hetsched/model", "version": 1, "transformer": model}, draw.choice((2, 3, 4, 6, 8, 12, 16, 24, 32)))


def without(cluster, name):
    return {**cluster, "subclusters": [s for s in cluster["subclusters"] if s["name"] != name],
            "links": [link for link in cluster["links"] if name not in link["between"]]}


def contains(space, plan):
    """Whether a bound of that space speaks of the plan."""
    if space.startswith("one pipeline or more"):
        return True
    if space == "one pipeline, on any devices in any order":
        return len(plan["pipelines"]) == 1
    stages = [s for line in plan["pipelines"] for s in line["stages"]]
    alone = all(g["nodes"] * g["devices_per_node"] == 1 for s in stages for g in s["devices"])
    if space.startswith("all layers on one device"):
        return len(stages) == 1 and alone
    return len(plan["pipelines"]) == 1 and alone  # placement's


def same_rule(*plans):
    names = {line["schedule"]["name"] for p in plans if p for line in p["pipelines"]}
    return len(names) < 2


class Pool:
    def __init__(self, command, folder, seed):
        self.command, self.folder, self.faults, self.runs = command, pathlib.Path(folder), [], 0
        self.seed = seed
        cluster, model, self.batch = pool(random.Random(seed))
        self.names = [s["name"] for s in cluster["subclusters"]]
        self.cluster = cluster
        self.write("cluster.json", cluster)
        self.write("model.json", model)

    def write(self, name, value):
        (self.folder / name).write_text(json.dumps(value))

    def plan(self, *options, cluster="cluster.json"):
        self.runs += 1
        done = subprocess.run([self.command, "--cluster", self.folder / cluster, "--model", self.folder / "model.json", "--global-batch",
                               str(self.batch), "--json", *map(str, options)], capture_output=True, text=True, check=False)
        if done.returncode != 0 and "no plan: " not in done.stderr:
            self.fault(f"status {done.returncode} of {options}: {done.stderr.strip()}")
        if done.returncode != 0:
            return None
        found = json.loads(done.stdout)
        return found.get("plan", found)

    def fault(self, text):
        self.faults.append(f"seed {self.seed}: {text}")

    def not_worse(self, what, larger, of_what, smaller):
        a, b = (p["predicted"]["iteration_s"] if p else float("inf") for p in (larger, smaller))
        if a > b * (1 + ROUNDING):
            self.fault(f"{what} {a:.6g} s is worse than {of_what} {b:.6g} s, by {100 * (a / b - 1):.3g} %")

    def check(self):
        plans = {(p, r): self.plan("--planner", p, "--warmup", r) for p in PLANNERS for r in RULES}
        found = {key: p for key, p in plans.items() if p}
        hurried = {(p, b): self.plan("--planner", p, "--time-budget", b) for p in PLANNERS for b in BUDGETS}
        everything = {**found, **{key: p for key, p in hurried.items() if p}}
        smaller = {"--recompute": ("none", "full"), "--zero": (0, 1), "--microbatch-size": (1, self.batch)}
        for option, values in smaller.items():
            for value in values:
                less = self.plan(option, value)
                self.not_worse("the default", plans[DEFAULT, "exact"], f"{option} {value}", less)
                if less:
                    everything[option, value] = less
        if len(self.names) > 1:
            self.write("less.json", without(self.cluster, self.names[0]))
            self.not_worse("the default", plans[DEFAULT, "exact"], f"without {self.names[0]}", self.plan(cluster="less.json"))
        for key, p in everything.items():
            told = p.get("evidence") or {}
            bound, own = told.get("objective_bound", 0), p["predicted"]["iteration_s"]
            if key[0] in smaller:
                continue
            inside = [(q["predicted"]["iteration_s"], str(k)) for k, q in everything.items() if contains(told.get("space", ""), q)]
            if not inside:
                continue
            seconds, other = min(inside)
            if bound > seconds * (1 + ROUNDING):
                self.fault(f"{key}: bound {bound:.6g} s, but {other} takes {seconds:.6g} s")
            if told.get("complete") and seconds < own * (1 - GAP) * (1 - ROUNDING):
                self.fault(f"{key}: complete at {own:.6g} s, but {other} takes {seconds:.6g} s")
        for rule in RULES:
            for p in PLANNERS[1:]:
                if same_rule(plans[DEFAULT, rule], plans[p, rule]):  # hetauto has its own
                    self.not_worse(f"the default under {rule}", plans[DEFAULT, rule], p, plans[p, rule])
            self.not_worse("the default", plans[DEFAULT, "exact"], f"under {rule}", plans[DEFAULT, rule])
        for budget in BUDGETS:
            for p in PLANNERS[1:]:
                self.not_worse(f"the default in {budget} s", hurried[DEFAULT, budget], p, hurried[p, budget])
        return self.runs, bool(found), self.faults


def look_at(command, seed):
    with tempfile.TemporaryDirectory() as folder:
        return Pool(command, folder, seed).check()


def main():
    command = pathlib.Path(sys.argv[1]) / "hetsched-plan"
    first, count = int(sys.argv[2]), int(sys.argv[3])
    runs, feasible, wrong = 0, 0, 0
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as workers:
        for more, any_plan, faults in workers.map(lambda seed: look_at(command, seed), range(first, first + count)):
            runs += more
            feasible += any_plan
            wrong += bool(faults)
            for text in faults:
                print(text, flush=True)
    print(f"{count} pools, {feasible} of them with a plan, {runs} runs; {wrong} pools with something wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
