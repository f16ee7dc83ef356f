#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The extension of examples/torch over torch's Gloo: group.py. Two processes train nn.Modules under six schedules and a plan, with
PyTorch's own losses; files of their state go both ways; a rank that is killed ends the others; and three keep what communicators
promise. It starts itself again under
torchrun. The last line is "N passed, N failed"."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1] / "examples/torch"))
import train_pipeline as example  # noqa: E402

STEPS, RATE = 50, 1e-2
SHAPES = [[example.SAMPLES, example.FEATURES]] * example.LAYERS + [[example.SAMPLES, example.CLASSES]]
SCHEDULES = ("gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "zb_h1", "zb_v")
results = []


def check(name, holds, detail=""):
    results.append(bool(holds))
    if not holds:
        print(f"FAILED: {name} {detail}", flush=True)


class Plain:
    """The same training by PyTorch alone."""

    def __init__(self):
        self.model = nn.Sequential(*[example.make_layer(layer) for layer in range(example.LAYERS)])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE)

    def step(self, inputs, targets):
        self.optimizer.zero_grad()
        total = 0
        for x, y in zip(inputs, targets):
            loss = cross_entropy(self.model(x), y)
            (loss / len(inputs)).backward()
            total += loss.item()
        self.optimizer.step()
        return total / len(inputs)

    def load(self, path):
        file = torch.load(path)  # with weights_only=True, as it is
        self.model.load_state_dict(file["model"])
        for name, p in self.model.named_parameters():
            self.optimizer.state[p] = file["optimizer"][name]
        return file["step"]

    def save(self, path, step):
        state = {name: self.optimizer.state[p] for name, p in self.model.named_parameters()}
        torch.save({"model": dict(self.model.state_dict()), "optimizer": state, "step": step}, path)


def plan():
    stages = [{"layers": layers, "degrees": {"data": 1}, "devices": [{"subcluster": "a", "first_device": i, "nodes": 1,
               "devices_per_node": 1}]} for i, layers in enumerate(([0, 2], [3, 7]))]
    return {"format": "hetsched/plan", "version": 2, "pipelines": [{"microbatches": example.MICROBATCHES, "stages": stages,
            "microbatch_size": example.SAMPLES, "schedule": {"name": "1f1b"}}],
            "setting": {"costs": "tile", "granularity": "block", "sequence": 1, "precision": "fp32", "attention": "flash"}}


def apart(found, expected):
    return max(abs(a - b) for a, b in zip(found, expected, strict=True))


def train(folder):
    """On each rank."""
    extension = example.extension()
    inputs, targets = example.batch()
    plain = Plain()
    expected = [plain.step(inputs, targets) for _ in range(STEPS)]
    check("it learns", expected[-1] < expected[0] / 2)

    def trainer(how):
        return extension.Trainer(dist.group.WORLD, how, example.make_layer, SHAPES, example.MICROBATCHES, RATE)

    found = {}
    for how in (*SCHEDULES, str(folder / "plan.json")):
        own = trainer(how)
        found[how] = [own.step(inputs, targets, cross_entropy) for _ in range(STEPS)]
        del own
        check(how, apart(found[how], expected) < 1e-6, apart(found[how], expected))
        check(f"{how}: the bits", found[how] == found["gpipe"])

    # From here to Python, and back into another cut.
    half, path, back = STEPS // 2, str(folder / "state.pt"), str(folder / "back.pt")
    own = trainer("zb_v")
    for _ in range(half):
        own.step(inputs, targets, cross_entropy)
    own.save(path)
    dist.barrier()
    plain = Plain()
    check("the step", plain.load(path) == half)
    check("Python goes on", apart([plain.step(inputs, targets) for _ in range(5)], expected[half:half + 5]) < 1e-6)
    if dist.get_rank() == 0:
        plain.save(back, half + 5)
    dist.barrier()
    own = trainer("1f1b")
    own.load(back)
    later = [own.step(inputs, targets, cross_entropy) for _ in range(5)]
    check("a file of Python's", apart(later, expected[half + 5:half + 10]) < 1e-6)
    own.load(path)
    check("its own file", [own.step(inputs, targets, cross_entropy) for _ in range(5)] == found["gpipe"][half:half + 5])
    if dist.get_rank() == 0:
        torch.save(plain.model.state_dict(), folder / "ordered.pt")
    dist.barrier()
    try:
        own.load(str(folder / "ordered.pt"))
        said = ""
    except Exception as e:
        said = str(e)
    check("an OrderedDict is refused with the way out", "torch.save(dict(module.state_dict()), path)" in said, said)

    # What a loss throws on the last rank ends the others with its text.
    def no_loss(output, target):
        raise ValueError("no more data")

    try:
        own.step(inputs, targets, no_loss)
        said = ""
    except Exception as e:
        said = str(e)
    check("what Python throws", "no more data" in said, said)


def keep_promises(folder):
    """What every communicator between processes does, in C++."""
    check("promises", example.extension("hetsched_group", HERE / "group_extension.cpp").run(dist.group.WORLD))


def be_killed(folder):
    """The last rank ends amid the training; how long the others take to notice, and what they say."""
    extension = example.extension()
    inputs, targets = example.batch()
    own = extension.Trainer(dist.group.WORLD, "1f1b", example.make_layer, SHAPES, example.MICROBATCHES, RATE)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # of torchrun
    start = time.monotonic()
    try:
        own.step(inputs, targets, cross_entropy)
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        own.step(inputs, targets, cross_entropy)
        said = ""
    except Exception as e:
        said = str(e)
    check("a killed rank", "rank 1 was lost" in said and time.monotonic() - start < 30, said)
    (folder / "killed-0").write_text(json.dumps(results))
    os._exit(0)


def as_rank(folder, what):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    {"train": train, "keep_promises": keep_promises, "be_killed": be_killed}[what](folder)
    (folder / f"{what}-{dist.get_rank()}").write_text(json.dumps(results))
    dist.destroy_process_group()


def main():
    passed = failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "plan.json").write_text(json.dumps(plan()))
        for what, ranks, files in (("train", 2, ("train-0", "train-1")), ("be_killed", 2, ("killed-0",)),
                                   ("keep_promises", 3, ("keep_promises-0", "keep_promises-1", "keep_promises-2"))):
            run = subprocess.run([Path(sys.executable).parent / "torchrun", "--nproc-per-node", str(ranks), __file__, str(folder),
                                  what], text=True, capture_output=True, timeout=1800,
                                 env={**os.environ, "OMP_NUM_THREADS": "1"})
            print("\n".join(line for line in run.stdout.splitlines() if line.startswith("FAILED")), end="")
            for file in files:
                found = json.loads((folder / file).read_text()) if (folder / file).exists() else [False]
                if not all(found):
                    print(f"{what}: {run.stdout[-1000:]} {run.stderr[-3000:]}")
                passed += sum(found)
                failed += len(found) - sum(found)
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    as_rank(Path(sys.argv[1]), sys.argv[2]) if len(sys.argv) > 2 else main()
