#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own word on what is written for it: check.py FOLDER_OF_COMMANDS. The last line is "N passed, N failed"."""
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch  # noqa: F401
from torch.distributed.pipelining import schedules as pipelining

commands = Path(sys.argv[1]).resolve()
here = Path(__file__).resolve().parent
passed, failed = 0, []


def check(name, holds, detail=""):
    global passed
    if holds:
        passed += 1
    else:
        failed.append(name)
        print(f"FAILED: {name} {detail}", flush=True)


def run(command, *options, **more):
    found = subprocess.run([commands / command, *options], capture_output=True, text=True, **more)
    if found.returncode:
        raise RuntimeError(f"{command} {' '.join(map(str, options))}: {found.stderr}")
    return found.stdout


class Stage:
    """What schedules ask of a stage before they run."""

    def __init__(self, index, stages, ranks):
        self.stage_index, self.num_stages, self.group_size, self.group_rank = index, stages, ranks, 0
        self.is_first, self.is_last, self.has_backward = index == 0, index == stages - 1, True
        self.submod = self.group = None
        self.device, self.stage_index_to_group_rank = "cpu", {}


def schedule_of(kind, ranks, per_rank, microbatches):
    stages = [Stage(i * ranks, ranks * per_rank, ranks) for i in range(per_rank)]
    return kind(stages, microbatches, loss_fn=lambda output, target: output)


def runs(schedule):
    """Whether torch's dry run gets to the end; it does not know work on parameters."""
    order = {rank: [a for a in row if a.computation_type.value not in
                    ("UNSHARD", "RESHARD", "REDUCE_GRAD", "WAIT_REDUCE_GRAD")]
             for rank, row in schedule.pipeline_order_with_comms.items()}
    fused = any(a.sub_actions for row in order.values() for a in row)
    if not fused:  # nor fused actions
        pipelining._simulate_comms_compute(order, lambda s: schedule.stage_index_to_group_rank[s], schedule._num_stages)


def pipeline(path, ranks, microbatches):
    fast = [0.010 + 0.002 * (i % 3) for i in range(ranks)]
    path.write_text(str({"format": "hetsched/pipeline", "version": 1, "microbatches": microbatches, "forward_s": fast,
                         "backward_s": [2 * f for f in fast], "transfer_s": [0.004] * (ranks - 1),
                         "weight_backward_s": fast}).replace("'", '"'))
    return path


def makespan(*options):
    return json.loads(run("hetsched-simulate", "--json", *options))["makespan_s"]


def written_for_torch(folder):
    """Every schedule of one direction, with and without communication, through torch's loader and validation."""
    for ranks, microbatches in ((2, 6), (4, 8)):
        of = pipeline(folder / "pipeline.json", ranks, microbatches)
        for name in ("gpipe", "1f1b", "eager_1f1b", "h1f1b", "exact_1f1b", "virtual_1f1b", "interleaved_1f1b", "looped_bfs",
                     "zb_h1", "zb_h2", "zb_v", "v_half", "v_min", "dualpipe_v", "auto"):
            plain, comms = folder / f"{name}.csv", folder / f"{name}.comms.csv"
            run("hetsched-simulate", "--pipeline", of, "--schedule", name, "--schedule-csv", plain, "--schedule-csv-comms", comms)
            stages = 1 + max(int(c.lstrip("(").split("F")[0]) for row in plain.read_text().splitlines()
                             for cell in row.split(",") for c in cell.split(";") if c.lstrip("(")[1:2] == "F")
            for path, form in ((plain, "compute_only"), (comms, "compute_comms")):
                what = f"{name} on {ranks} ranks, {form}"
                try:
                    schedule = schedule_of(pipelining._PipelineScheduleRuntime, ranks, stages // ranks, microbatches)
                    schedule._load_csv(str(path), format=form)
                    runs(schedule)
                    check(what, True)
                except Exception as wrong:  # noqa: BLE001
                    check(what, False, wrong)


def written_by_torch(folder):
    """Torch's schedules as it lowers them: read, played as long as without communication, written back to the letter."""
    for name, per_rank in (("Interleaved1F1B", 2), ("Interleaved1F1B", 3), ("LoopedBFS", 2), ("InterleavedZeroBubble", 2),
                           ("ZBVZeroBubble", 2), ("DualPipeV", 2)):
        for ranks, microbatches in ((2, 6), (4, 8)):
            what = f"{name} of {ranks} ranks x {per_rank}"
            of = pipeline(folder / "pipeline.json", ranks, microbatches)
            plain, comms, back = (folder / f"torch{end}.csv" for end in ("", ".comms", ".back"))
            schedule = schedule_of(pipelining.get_schedule_class(name), ranks, per_rank, microbatches)
            schedule._dump_csv(str(plain), format="compute_only")
            schedule._dump_csv(str(comms), format="compute_comms")
            alone = makespan("--pipeline", of, "--schedule", f"@{plain}")
            with_comms = makespan("--pipeline", of, "--schedule", f"@{comms}")
            print(f"{what}: {1e3 * alone:.1f} ms without communication listed, {1e3 * with_comms:.1f} ms with")
            check(what + ": time", abs(with_comms - alone) < 1e-9, f"{alone} {with_comms}")
            run("hetsched-simulate", "--pipeline", of, "--schedule", f"@{comms}", "--schedule-csv-comms", back)
            check(what + ": back", back.read_text() == comms.read_text())


def trained(folder, out, ranks):
    """What an exported plan says that trains the small GPT for two steps."""
    gpt = str(here / "gpt.py") + ":"
    text = here.parents[1] / "examples" / "gpt" / "alice.txt"
    return subprocess.run(
        [Path(sys.executable).parent / "torchrun", "--nproc-per-node", str(ranks), out / "run.py", "--model", gpt + "model",
         "--input", gpt + "samples", "--loss", gpt + "loss", "--optimizer", gpt + "optimizer", "--steps", "2"],
        capture_output=True, text=True, timeout=300,
        env={**os.environ, "CHECKPOINT": str(folder / "first" / "step-000001"), "TEXT": str(text), "SEED": "1",
             "SEQUENCE": "32", "HEADS": "4", "LR": "0.5", "OMP_NUM_THREADS": "1"})


def trains(folder):
    """A plan of hetsched-train, exported, trains over gloo with the same losses."""
    model = ["--layers", "4", "--hidden", "32", "--heads", "4", "--sequence", "32", "--untied", "--precision", "fp64",
             "--optimizer", "sgd", "--clip", "0", "--microbatches", "4", "--microbatch-size", "2"]
    run("hetsched-train", "--ranks", "1", "--steps", "1", "--lr", "0", "--checkpoint", folder / "first", *model)
    for ranks, schedule, recomputed, blocks in ((2, "1f1b", [], False), (2, "1f1b", [0, 1], True),
                                                (2, "interleaved_1f1b", [0, 1], False), (3, "zb_h1", [], False)):
        losses, plan, out = folder / "losses.csv", folder / "plan.json", folder / "exported"
        chunks = ["--chunks", "2"] if schedule == "interleaved_1f1b" else []
        run("hetsched-train", "--ranks", str(ranks), "--schedule", schedule, *chunks, "--steps", "2", "--lr", "0.5", "--losses",
            losses, "--out-plan", plan, *model)
        of = json.loads(plan.read_text())
        for stage in recomputed:  # which changes no bit of it
            of["pipelines"][0]["stages"][stage]["recompute"] = "full"
        if blocks:  # of a transformer, whose embedding and head are kept
            of["setting"] = {"costs": "tile", "granularity": "block", "sequence": 32}
        plan.write_text(json.dumps(of))
        run("hetsched-export", "--plan", plan, "--to", "torch", "--out", out)
        found = trained(folder, out, ranks)
        theirs = [float(line.split()[-1]) for line in found.stdout.splitlines() if line.startswith("step ")]
        ours = [float(line.split(",")[1]) for line in losses.read_text().splitlines()[1:]]
        forwards = {int(rank): int(count) for rank, count in re.findall(r"rank (\d+): (\d+) forwards", found.stdout)}
        layers, again = [0] * ranks, [0] * ranks
        for stage in json.loads((out / "stages.json").read_text())["stages"]:
            held = range(stage["first_layer"], 1 + stage["last_layer"])
            layers[stage["pipeline_rank"]] += len(held)
            if stage["pipeline_rank"] in recomputed:
                again[stage["pipeline_rank"]] += sum(not blocks or 0 < layer < 5 for layer in held)
        what = schedule + (f", ranks {recomputed} recompute{' blocks' if blocks else ''}" if recomputed else "")
        # Of two steps of four microbatches, and what stages run to learn shapes: each layer once or twice.
        check(f"forwards of {what}", all(0 <= forwards.get(r, 0) - 2 * 4 * (layers[r] + again[r]) <= 2 * layers[r]
                                         for r in range(ranks)), f"{forwards} {layers} {again}")
        print(f"{what} on {ranks} ranks: {theirs} here, {ours} by hetsched-train")
        check(f"losses of {what}", len(theirs) == 2 and all(abs(a - b) < 1e-5 for a, b in zip(theirs, ours)),
              found.stderr[-2000:] if not theirs else "")


def replicas(folder):
    """Two data ranks a stage, whose state is whole or shared out, and stages that lie on ranks out of order, train to the same."""
    model = ["--layers", "4", "--hidden", "32", "--heads", "4", "--sequence", "32", "--untied", "--precision", "fp64",
             "--optimizer", "sgd", "--clip", "0", "--microbatches", "4", "--microbatch-size", "2"]
    run("hetsched-train", "--ranks", "2", "--steps", "2", "--lr", "0.5", "--losses", folder / "losses.csv", "--out-plan",
        folder / "plan.json", *model)
    ours = [float(line.split(",")[1]) for line in (folder / "losses.csv").read_text().splitlines()[1:]]
    order = "\n".join(",".join(f"{s}{kind}{m}" for m in range(4) for kind, stages in (("F", (a, b)), ("B", (b, a))) for s in stages)
                      for a, b in ((1, 2), (0, 3)))
    for what, data, zero, actions in (("replicas", 2, 0, None), ("replicas with ZeRO 1", 2, 1, None), ("stages out of order", 1, 0, order)):
        of = json.loads((folder / "plan.json").read_text())
        line = of["pipelines"][0]
        stages = [{"layers": s["layers"], "degrees": {"data": data}, "zero": zero,
                   "devices": [{"subcluster": "a", "first_device": data * i, "nodes": 1, "devices_per_node": data}]}
                  for i, s in enumerate(line["stages"])]
        schedule = {"name": "mine", "actions": actions} if actions else {"name": "1f1b"}
        (folder / "data.json").write_text(json.dumps({"format": "hetsched/plan", "version": 2, "pipelines": [
            {"microbatches": 4, "microbatch_size": 2, "stages": stages, "schedule": schedule}]}))
        run("hetsched-export", "--plan", folder / "data.json", "--to", "torch", "--out", folder / "data")
        found = trained(folder, folder / "data", 2 * data)
        theirs = [float(line.split()[-1]) for line in found.stdout.splitlines() if line.startswith("step ")]
        print(f"{what}: {theirs} here, {ours} by hetsched-train")
        check(f"losses of {what}", len(theirs) == 2 and all(abs(a - b) < 1e-5 for a, b in zip(theirs, ours)), found.stderr[-2000:])


def meets(folder):
    """Processes of a torchrun meet in its store, the same after a restart, and train as threads do."""
    model = ["--layers", "4", "--hidden", "32", "--heads", "4", "--sequence", "32", "--microbatches", "4", "--steps", "2"]
    run("hetsched-train", "--ranks", "3", "--losses", folder / "threads.csv", *model)
    fails_once = folder / "fails_once.sh"
    fails_once.write_text('mkdir "$1/failed" 2>/dev/null && exit 1\nshift\nexec "$@"\n')
    found = subprocess.run(
        [Path(sys.executable).parent / "torchrun", "--no-python", "--nproc-per-node", "3", "--max-restarts", "1",
         "bash", fails_once, folder, commands / "hetsched-train", "--transport", "gloo", "--losses", folder / "torchrun.csv", *model],
        capture_output=True, text=True, timeout=300)
    check("the store of torchrun", found.returncode == 0 and
          (folder / "torchrun.csv").read_text() == (folder / "threads.csv").read_text(), found.stderr[-2000:])


with tempfile.TemporaryDirectory() as name:
    for part in (written_for_torch, written_by_torch, trains, replicas, meets):
        try:
            part(Path(name))
        except Exception as wrong:  # noqa: BLE001
            check(part.__name__, False, wrong)
print(f"{passed} passed, {len(failed)} failed")
sys.exit(1 if failed else 0)
