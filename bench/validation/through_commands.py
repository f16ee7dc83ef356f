#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/accuracy/through-the-commands.md: what hetsched-predict says beside measurements, row by row.

usage: through_commands.py EXAMPLES [--check]     EXAMPLES: the folder of the commands. --check: the page has to be as it is.
Nothing here computes a time: clusters, models, plans and stacks are written as a user would, and the command is asked.
Status 1 if the page differs.
"""
import collections, csv, io, json, pathlib, subprocess, sys, tempfile

root = pathlib.Path(__file__).resolve().parents[2]
page = root / "docs/accuracy/through-the-commands.md"
predict = pathlib.Path(sys.argv[1]).resolve() / "hetsched-predict"
work = pathlib.Path(tempfile.mkdtemp())


def rows(name):
    with open(root / "tests/data" / name, newline="") as file:
        return list(csv.DictReader(file))


def put(name, value):
    (work / name).write_text(value if isinstance(value, str) else json.dumps(value))
    return str(work / name)


def ask(*arguments):
    done = subprocess.run([str(predict), *arguments], capture_output=True, text=True)
    if done.returncode not in (0, 1) or not done.stdout:
        sys.exit(f"{' '.join(arguments)}: {done.stderr}")
    return done.stdout


def operators(device, table):
    """Errors, as predicted / measured - 1, of rows of an operators.csv."""
    text = ",".join(table[0]) + "\n" + "".join(",".join(r.values()) + "\n" for r in table)
    told = csv.DictReader(io.StringIO(ask("--device", device, "--operators", put("operators.csv", text))))
    return [float(r["error_percent"]) / 100 for r in told]


LINKS = {  # what a user would write by docs/files.md: NVLink within a node, and its latency; eight ports between nodes
    "H100-SXM5-80GB": (3600, 5, 400),
    "A100-SXM4-80GB": (2400, 9, 200),
    "A100-SXM4-40GB": (2400, 9, 200),
}


def iteration(device, gpus, model, samples, microbatches, zero, recompute, stack):
    """Seconds of an iteration of one stage of data ranks, and whether it fits."""
    nodes, each = max(1, gpus // 8), min(8, gpus)
    within, latency, port = LINKS[device]
    cluster = {"format": "hetsched/cluster", "version": 1, "subclusters": [
        {"name": "all", "device": device, "nodes": nodes, "devices_per_node": each,
         "intra_node": {"gbit_per_s": within, "latency_us": latency}, "nics": 8, "inter_node": {"gbit_per_s": port, "latency_us": 8}}]}
    layers = model.pop("blocks") + 2
    stage = {"layers": [0, layers - 1], "devices": [{"subcluster": "all", "first_device": 0, "nodes": nodes, "devices_per_node": each}],
             "degrees": {"data": gpus}, "zero": zero, "recompute": recompute, "warmup": 1}
    plan = {"format": "hetsched/plan", "version": 2, "planner": "by hand", "objective": "iteration",
            "subclusters": [{"name": "all", "devices": gpus}],
            "setting": {"costs": "tile", "granularity": "block", "sequence": model.pop("tokens"), "precision": "bf16", "attention": "flash"},
            "pipelines": [{"schedule": {"name": "1f1b"}, "microbatches": microbatches, "microbatch_size": samples * gpus, "stages": [stage]}]}
    told = json.loads(ask("--cluster", put("cluster.json", cluster), "--model", put("model.json", model), "--plan", put("plan.json", plan),
                          "--stack", stack if isinstance(stack, str) else put("stack.json", stack), "--json"))
    return told["iteration_s"], told["fits"]


groups = []  # (name, errors, goal of the mean or None, rows refused or None)


def group(name, errors, goal=None, refused=None):
    groups.append((name, errors, goal, refused))


# Operators on one H100, measured with PyTorch
measured = rows("h100_operators.csv")
for dtype, goal in (("bf16", 0.12), ("fp8", 0.15)):
    table = [{k: r[k] for k in ("op", "batch", "m", "n", "k", "dtype", "measured_ms")} for r in measured if r["op"] == "gemm" and r["dtype"] == dtype]
    group(f"H100: products of {dtype}", operators("H100-SXM5-80GB", table), goal)
table = [dict(r, op="flash_attention") for r in measured if r["op"] == "decode"]
group("H100: attention of a token over a cache, FlashAttention-2", operators("H100-SXM5-80GB", table), 0.20)
least = 0.12  # ms; below it the host's calls are what was measured
table = [{k: ("flash_attention_causal" if k == "op" else r[k]) for k in ("op", "batch", "m", "n", "k", "dtype", "measured_ms")}
         for r in measured if r["op"] == "cudnn" and r["batch"] == r["kv_heads"] and float(r["measured_ms"]) > least]
group("H100: attention of training, forward, cuDNN's kernel (fitted)", operators("H100-SXM5-80GB", table))

# Iterations on one H100, measured with PyTorch. pure: all in bf16, as FSDP's mixed precision computes; autocast: as ddp
by = collections.defaultdict(list)
for r in rows("h100_iterations.csv"):
    n = {k: int(r[k]) for k in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "sequence", "samples")}
    if r["model"] == "gpt2":
        model = {"model_type": "gpt2", "n_layer": n["layers"], "n_embd": n["hidden"], "n_head": n["heads"], "n_positions": n["sequence"],
                 "vocab_size": n["vocab"], "torch_dtype": "bfloat16", "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    else:
        model = {"model_type": "llama", "num_hidden_layers": n["layers"], "hidden_size": n["hidden"], "num_attention_heads": n["heads"],
                 "num_key_value_heads": n["kv_heads"], "intermediate_size": n["ffn"], "max_position_embeddings": n["sequence"],
                 "vocab_size": n["vocab"], "torch_dtype": "bfloat16", "tie_word_embeddings": False}
    for stack in ("fsdp" if r["precision"] == "pure" else "ddp", "hetsched"):
        seconds, _ = iteration("H100-SXM5-80GB", 1, dict(model, blocks=n["layers"], tokens=n["sequence"]), n["samples"], 1, 0, "none", stack)
        by[r["model"] if stack != "hetsched" else r["precision"], stack].append(seconds / float(r["iteration_s"]) - 1)
group("H100: iterations of GPT-2, all in bf16 (`fsdp`)", by["gpt2", "fsdp"], 0.10)
group("H100: iterations of Llama, all in bf16 (`fsdp`)", by["llama", "fsdp"], 0.10)
group("H100: iterations of GPT-2 under autocast (`ddp`)", by["gpt2", "ddp"], 0.10)
group("The same all in bf16 without `--stack`", by["pure", "hetsched"])
group("The same under autocast without `--stack`", by["autocast", "hetsched"])

# MosaicML's runs of MPT
shapes = {"125m": (12, 768, 12), "350m": (24, 1024, 16), "760m": (24, 1536, 12), "1b": (24, 2048, 16), "3b": (32, 2560, 20),
          "7b": (32, 4096, 32), "13b": (40, 5120, 40), "30b": (48, 7168, 56), "70b": (80, 8192, 64)}
foundry = {"format": "hetsched/stack", "version": 1, "name": "llm-foundry of 2023", "like": "fsdp", "attention": "first", "autocast": True}
readings = {"as `fsdp` is": "fsdp", "with FlashAttention-2": dict(foundry, attention="second"), "without autocast": dict(foundry, autocast=False)}
by, refused = collections.defaultdict(list), collections.Counter()
for r in rows("mpt_iterations.csv"):
    if "fp8" in r["precision"]:
        continue
    layers, hidden, heads = shapes[r["model"]]
    about = {"format": "hetsched/model", "version": 1, "blocks": layers, "tokens": int(r["sequence"]),
             "transformer": {"layers": layers, "hidden": hidden, "heads": heads, "vocab": 50368, "sequence": int(r["sequence"]), "dtype": "bf16",
                             "dropout": False, "biases": False, "norm": "layer_without_bias"}}
    zero = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}.get(r["sharding"], 0)
    for name, stack in {r["device"]: foundry, **readings}.items():
        seconds, fits = iteration(r["device"], int(r["gpus"]), dict(about), int(r["samples"]), int(r["microbatches"]), zero,
                                  "full" if r["recompute"] == "1" else "none", stack)
        by[name].append(seconds / float(r["iteration_s"]) - 1)
        refused[name] += not fits
for device in LINKS:
    group(f"MPT on {device}, 8 to 512 GPUs (llm-foundry's stack)", by[device], 0.10, refused[device])
for name in readings:
    group(f"MPT on all of these, {name}", by[name], None, refused[name])


def percent(x, signed=False):
    return f"{100 * x:{'+' if signed else ''}.1f} %"


lines = ["# Through the commands", "",
         "What `hetsched-predict` says beside measurements, row by row: [bench/validation/through_commands.py](../../bench/validation/through_commands.py) writes cluster, model, plan and stack as a user would, from datasheets and nominal links, and computes nothing itself. A test compares this page with what the commands say today.", "",
         "| what | rows | mean | bias | lowest | highest | goal of the mean | refused for memory |", "| --- | ---: | ---: | ---: | ---: | ---: | --- | --- |"]
for name, errors, goal, out in groups:
    mean, bias = sum(map(abs, errors)) / len(errors), sum(errors) / len(errors)
    reached = "" if goal is None else f"{100 * goal:.0f} %: " + ("reached" if mean <= goal else "**missed**")
    lines.append(f"| {name} | {len(errors)} | {percent(mean)} | {percent(bias, True)} | {percent(min(errors), True)} | {percent(max(errors), True)} | {reached} | {'' if out is None else f'{out} of {len(errors)}'} |")
lines += ["",
          "* The H100's operators and iterations were measured for this page on 27 November 2026, on one H100 80GB HBM3 with PyTorch 2.11 (products and a token's attention in CUDA graphs, on random numbers). No constant was fitted to products, to a token's attention or to iterations; attention of training on Hopper was fitted to these kernels, by generation (`flash_of`).",
          "* llm-foundry's stack is `{\"like\": \"fsdp\", \"attention\": \"first\", \"autocast\": true}`: MPT's table was made in 2023 with FlashAttention's first version in Triton, which takes twice the second's time (Dao 2023), under `amp_bf16`. Rows in fp8 are left out, as training in fp8 is not priced.",
          "* That stack is a reading: no number in it was fitted to the runs, but `first` and `autocast` were taken from what is known of llm-foundry with this table in view, and so was `fsdp`'s margin of memory, which is none. The other readings stand beside it.",
          "* `ddp` and llm-foundry are priced by counting what autocast adds: norms and residual sums are in fp32, and weights that are not held in 16 bits are rounded for each product.", "",
          "[All parts](../accuracy.md), and [how to read the pages](../accuracy.md#how-to-read-the-pages).", ""]
text = "\n".join(lines)
if "--check" in sys.argv:
    if page.read_text() != text:
        print("the page is not what the commands say; write it anew without --check\n" + text)
        sys.exit(1)
    print("as the commands say")
else:
    page.write_text(text)
    print(text)
