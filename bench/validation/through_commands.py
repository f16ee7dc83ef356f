#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/accuracy/through-the-commands.md: what hetsched-predict says beside measurements, row by row.

usage: through_commands.py EXAMPLES [--check]     EXAMPLES: the folder of the commands. --check: the page has to be as it is.
Nothing here computes a time: clusters, models, plans and stacks are written as a user would, and the command is asked.
Status 1 if the page differs.
"""
import collections, csv, io, json, pathlib, re, subprocess, sys, tempfile

root = pathlib.Path(__file__).resolve().parents[2]
page = root / "docs/accuracy/through-the-commands.md"
examples = pathlib.Path(sys.argv[1]).resolve()
work = pathlib.Path(tempfile.mkdtemp())


def rows(name):
    with open(root / "tests/data" / name, newline="") as file:
        return list(csv.DictReader(file))


def put(name, value):
    (work / name).write_text(value if isinstance(value, str) else json.dumps(value))
    return str(work / name)


def ask(*arguments, command="hetsched-predict"):
    done = subprocess.run([str(examples / command), *arguments], capture_output=True, text=True)
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
    "H200-SXM": (3600, 5, 400),
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


def seconds_of(told):
    """An iteration as the stack sends."""
    return told.get("iteration_with_sends_s", told["iteration_s"])


def told_of(cluster, model, stages, microbatches, microbatch_size, setting, stack, schedule="1f1b"):
    """What the command says of a plan of one pipeline."""
    plan = {"format": "hetsched/plan", "version": 2, "planner": "by hand", "objective": "iteration",
            "subclusters": [{"name": s["name"], "devices": s["nodes"] * s["devices_per_node"]} for s in cluster["subclusters"]],
            "setting": {"costs": "tile", **setting},
            "pipelines": [{"schedule": {"name": schedule}, "microbatches": microbatches, "microbatch_size": microbatch_size, "stages": stages}]}
    return json.loads(ask("--cluster", put("cluster.json", cluster), "--model", put("model.json", model), "--plan", put("plan.json", plan),
                          "--stack", stack, "--json"))


def of_paper(name):
    return json.loads((root / "examples/settings" / f"{name}.json").read_text())


groups = []  # (name, errors, goal of the mean or None, rows refused or None, goal of the bias or None)


def group(name, errors, goal=None, refused=None, bias=None):
    groups.append((name, errors, goal, refused, bias))


# Operators on one H100, measured with PyTorch
measured = rows("h100_operators.csv")
COLUMNS = ("op", "batch", "m", "n", "k", "dtype", "measured_ms")
for dtype, goal in (("bf16", 0.12), ("fp8", 0.15)):
    table = [dict({k: r[k] for k in COLUMNS}, op="scaled_mm") for r in measured if r["op"] == "gemm" and r["dtype"] == dtype]
    group(f"H100: products of {dtype}", operators("H100-SXM5-80GB", table), goal)
table = [dict(r, op="flash_attention") for r in measured if r["op"] == "decode"]
group("H100: attention of a token over a cache, FlashAttention-2", operators("H100-SXM5-80GB", table), 0.20)

# Operators of inference engines
engines = rows("engine_products.csv")
for device in ("A100-SXM4-80GB", "H200-SXM", "L40S"):
    for dtype, goal in (("bf16", 0.12), ("fp8", 0.15)):
        table = [dict(op="linear", batch="1", **{k: r[k] for k in COLUMNS[2:]}) for r in engines if r["device"] == device and r["dtype"] == dtype]
        if table:
            group(f"{device}: engines' linear layers in {dtype} (fitted)", operators(device, table), goal)
cached = rows("attention.csv")
for device in ("A100-SXM4-80GB", "H200-SXM", "L40S"):
    for of, goal in (("prompts", 0.15), ("tokens", 0.20)):
        table = [{"op": "flash_attention_causal" if r["causal"] == "1" else "flash_attention", "batch": r["heads"], "kv_heads": r["kv_heads"],
                  **{k: r[k] for k in "mnk"}, "dtype": "bf16", "measured_ms": r["measured_ms"]}
                 for r in cached if r["device"] == device and (r["m"] == "1") == (of == "tokens")]
        group(f"{device}: engines' attention of {of} (fitted)", operators(device, table), goal)

# Attention of training on that H100
least = 0.12  # ms; below it the host's calls are what was measured
table = [{k: ("flash_attention_causal" if k == "op" else r[k]) for k in ("op", "batch", "m", "n", "k", "dtype", "measured_ms")}
         for r in measured if r["op"] == "cudnn" and r["batch"] == r["kv_heads"] and float(r["measured_ms"]) > least]
group("H100: attention of training, forward, cuDNN's kernel (fitted)", operators("H100-SXM5-80GB", table))

later = [{"op": "flash_attention_causal" + r["op"].removeprefix("cudnn"), **{k: r[k] for k in ("batch", "m", "n", "k", "dtype", "measured_ms")}}
         for r in rows("h100_attention.csv")]
for of, suffix in (("forward", ""), ("backward", "_backward")):
    group(f"H100: attention of training, {of}, cuDNN's kernel, other shapes",
          operators("H100-SXM5-80GB", [r for r in later if r["op"] == "flash_attention_causal" + suffix]), 0.15)

# Iterations on one GPU, measured with PyTorch. pure: all in bf16, the optimizer, too; autocast: as ddp
PURE = {"format": "hetsched/stack", "version": 1, "name": "PyTorch, all in bf16", "like": "ddp", "autocast": False,
        "bf16": {"weight_bytes": 2, "gradient_bytes": 2, "optimizer_bytes": 4, "accumulation_bytes": 6}}
by = collections.defaultdict(list)
for r in rows("torch_iterations.csv"):
    if r["precision"] == "fp32":  # in TF32, by PyTorch's leave
        continue
    n = {k: int(r[k]) for k in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "sequence", "samples", "microbatches")}
    if r["model"] == "gpt2":
        model = {"model_type": "gpt2", "n_layer": n["layers"], "n_embd": n["hidden"], "n_head": n["heads"], "n_positions": n["sequence"],
                 "vocab_size": n["vocab"], "torch_dtype": "bfloat16", "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    else:
        model = {"model_type": "llama", "num_hidden_layers": n["layers"], "hidden_size": n["hidden"], "num_attention_heads": n["heads"],
                 "num_key_value_heads": n["kv_heads"], "intermediate_size": n["ffn"], "max_position_embeddings": n["sequence"],
                 "vocab_size": n["vocab"], "torch_dtype": "bfloat16", "tie_word_embeddings": False}
    for stack in ({"pure": PURE, "autocast": "ddp"}[r["precision"]], "fsdp", "hetsched"):
        seconds, _ = iteration(r["device"], 1, dict(model, blocks=n["layers"], tokens=n["sequence"]), n["samples"], n["microbatches"], 0,
                               "full" if r["recompute"] == "1" else "none", stack)
        error = seconds / float(r["iteration_s"]) - 1
        if stack in ("fsdp", "hetsched"):
            by[r["precision"], stack].append(error)
        else:
            by[r["day"], r["device"], r["model"], r["precision"]].append(error)
            by["several" if n["microbatches"] > 1 else "one"].append(error)
for (day, device, model, precision), errors in sorted((key, errors) for key, errors in by.items() if isinstance(key, tuple) and len(key) == 4):
    how = {"pure": "all in bf16", "autocast": "under autocast (`ddp`)"}[precision]
    group(f"{device}: iterations of {model.replace('gpt', 'GPT-').replace('llama', 'Llama')} {how}, {day}", errors, 0.10, bias=0.05)
group("Of these, of two or four microbatches", by["several"])
group("All of these in bf16 as `fsdp`", by["pure", "fsdp"])
group("All of these in bf16 without `--stack`", by["pure", "hetsched"])
group("All of these under autocast without `--stack`", by["autocast", "hetsched"])

# MosaicML's runs of MPT
shapes = {"125m": (12, 768, 12), "350m": (24, 1024, 16), "760m": (24, 1536, 12), "1b": (24, 2048, 16), "3b": (32, 2560, 20),
          "7b": (32, 4096, 32), "13b": (40, 5120, 40), "30b": (48, 7168, 56), "70b": (80, 8192, 64)}
foundry = {"format": "hetsched/stack", "version": 1, "name": "llm-foundry of 2023", "like": "fsdp", "attention": "first", "autocast": True}
eighths = dict(foundry, name="llm-foundry in fp8", products="fp8")
readings = {"as `fsdp` is": "fsdp", "with FlashAttention-2": dict(foundry, attention="second"), "without autocast": dict(foundry, autocast=False)}
by, refused = collections.defaultdict(list), collections.Counter()
for r in rows("mpt_iterations.csv"):
    layers, hidden, heads = shapes[r["model"]]
    about = {"format": "hetsched/model", "version": 1, "blocks": layers, "tokens": int(r["sequence"]),
             "transformer": {"layers": layers, "hidden": hidden, "heads": heads, "vocab": 50368, "sequence": int(r["sequence"]), "dtype": "bf16",
                             "dropout": False, "biases": False, "norm": "layer_without_bias"}}
    zero = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}.get(r["sharding"], 0)
    for name, stack in ({"fp8": eighths, "fp8 as bf16": foundry} if "fp8" in r["precision"] else {r["device"]: foundry, **readings}).items():
        seconds, fits = iteration(r["device"], int(r["gpus"]), dict(about), int(r["samples"]), int(r["microbatches"]), zero,
                                  "full" if r["recompute"] == "1" else "none", stack)
        by[name].append(seconds / float(r["iteration_s"]) - 1)
        refused[name] += not fits
for device in ("H100-SXM5-80GB", "A100-SXM4-80GB", "A100-SXM4-40GB"):
    group(f"MPT on {device}, 8 to 512 GPUs (llm-foundry's stack)", by[device], 0.10, refused[device], 0.05)
group("MPT in fp8 on 8 H100 (llm-foundry's stack with products in fp8)", by["fp8"], 0.10, refused["fp8"], 0.05)
group("The same, priced in bf16", by["fp8 as bf16"], None, refused["fp8 as bf16"])
for name in readings:
    group(f"MPT on all of these, {name}", by[name], None, refused[name])


# Megatron-LM's tables, but for rows of several chunks
unfused = put("unfused.json", {"format": "hetsched/stack", "version": 1, "name": "Megatron-LM of 2021", "like": "megatron",
                               "fp16": {"accumulation_bytes": 6}})
by = collections.defaultdict(list)
for r in rows("megatron.csv"):
    n = {key: int(value) for key, value in r.items() if key not in ("table", "iteration_s")}
    if n["chunks"] > 1:
        continue
    each, stages = n["tensor"] * n["data"], n["pipeline"]
    cluster = {"format": "hetsched/cluster", "version": 1, "subclusters": [
        {"name": "all", "device": "A100-SXM4-80GB", "nodes": stages * each // 8, "devices_per_node": 8,
         "intra_node": {"gbit_per_s": 2400, "latency_us": 9}, "nics": 8, "inter_node": {"gbit_per_s": 200, "latency_us": 8}}]}
    model = {"format": "hetsched/model", "version": 1, "transformer": {"layers": n["layers"], "hidden": n["hidden"], "heads": n["heads"],
                                                                       "vocab": 51200, "sequence": 2048, "dtype": "fp16"}}
    share = n["layers"] // stages  # the embedding stands before the first one, the head behind the last one
    line = [{"layers": [i * share + (i > 0), (i + 1) * share + (i + 1 == stages)],
             "devices": [{"subcluster": "all", "first_device": i * each, "nodes": each // 8, "devices_per_node": 8}],
             "degrees": {"data": n["data"], "tensor": n["tensor"]}, "zero": 0, "recompute": "selective" if n["selective"] else "full"}
            for i in range(stages)]
    for stack in ("megatron", unfused):
        told = told_of(cluster, model, line, n["microbatches"], n["microbatch"] * n["data"],
                       {"granularity": "block", "sequence": 2048, "precision": "fp16", "attention": "standard"}, stack)
        by[r["table"].split(" Table")[0], stack].append(seconds_of(told) / float(r["iteration_s"]) - 1)
group("Megatron-LM on A100, SC'21 Tables 1 and 2, 32 to 2,240 GPUs (`megatron`)", by["SC21", "megatron"], 0.10, bias=0.05)
group("The same, gradients added by kernels of their own, as before 2022", by["SC21", unfused])
group("Megatron-LM on A100, Korthikanti Table 5, 8 and 512 GPUs (`megatron`)", by["Korthikanti", "megatron"], 0.10, bias=0.05)
group("The same, gradients added by kernels of their own", by["Korthikanti", unfused])

# HARP, Table 2: the MFU of its plans, Tables 3 to 10. A stage: v (V100e) or a (A100), its layers, data x tensor degree
gpts = {"15B": (5120, 32), "30B": (7168, 56), "39B": (8192, 64)}
harp = [
    ("15B", 53.2, 4, "v0-39:2x4 a40-92:1x4 a93-145:1x4"),
    ("15B", 59.7, 8, "v0-15:4x1 v16-32:4x1 v33-49:4x1 v50-66:4x1 a67-76:1x1 a77-86:1x1 a87-106:2x1 a107-126:2x1 a127-145:2x1"),
    ("15B", 59.4, 8, "v0-12:4x1 v13-26:4x1 v27-40:4x1 v41-54:4x1 v55-82:8x1 a83-97:2x1 a98-114:2x1 a115-145:4x1"),
    ("15B", 59.7, 8, "v0-21:8x1 v22-44:8x1 v45-67:8x1 v68-90:8x1 a91-118:4x1 a119-145:4x1"),
    ("30B", 60.4, 8, "v0-10:4x1 v11-22:4x1 v23-34:4x1 v35-46:4x1 v47-58:4x1 v59-70:4x1 v71-82:4x1 v83-94:4x1 a95-107:1x2 a108-132:2x2 a133-145:2x1"),
    ("30B", 54.2, 8, "v0-9:2x2 v10-19:2x2 v20-29:2x2 v30-39:2x2 a40-46:1x1 a47-53:1x1 a54-60:1x1 a61-66:1x1 a67-73:1x1 a74-80:1x1 "
                     "a81-93:2x1 a94-106:2x1 a107-119:2x1 a120-132:2x1 a133-145:2x1"),
    ("39B", 60.3, 8, "v0-15:4x2 v16-24:4x1 v25-33:4x1 v34-42:4x1 v43-51:4x1 v52-60:4x1 v61-69:4x1 a70-79:1x2 a80-89:1x2 a90-108:2x2 "
                     "a109-127:2x2 a128-145:2x2"),
    ("39B", 53.8, 8, "v0-9:4x2 v10-19:4x2 v20-29:4x2 v30-39:4x2 a40-46:2x1 a47-53:2x1 a54-60:2x1 a61-67:2x1 a68-80:4x1 a81-93:4x1 "
                     "a94-106:4x1 a107-119:4x1 a120-132:4x1 a133-145:4x1"),
]
by = collections.defaultdict(list)
for recompute in ("full", "none"):
    for name, mfu, a100_node, text in harp:
        cluster, model = of_paper("harp-setting1-cluster"), of_paper("harp-setting1-model")
        hidden, heads = gpts[name]
        model["transformer"].update(layers=48, hidden=hidden, heads=heads)
        used, line = {"v": 0, "a": 0}, []
        for kind, first, last, data, tensor in (re.match(r"(.)(\d+)-(\d+):(\d)x(\d)", stage).groups() for stage in text.split()):
            devices = int(data) * int(tensor)
            line.append({"layers": [int(first), int(last)],
                         "devices": [{"subcluster": {"v": "v100e", "a": "a100"}[kind], "first_device": used[kind], "nodes": 1,
                                      "devices_per_node": devices}],
                         "degrees": {"data": int(data), "tensor": int(tensor)}, "zero": int(int(data) > 1), "recompute": recompute})
            used[kind] += devices
        for part in cluster["subclusters"]:
            part["devices_per_node"] = a100_node if part["name"] == "a100" else 8
            part["nodes"] = used[part["name"][0]] // part["devices_per_node"]
        samples = max(stage["degrees"]["data"] for stage in line)
        told = told_of(cluster, model, line, 1024 // samples, samples,
                       {"granularity": "sublayer", "sequence": 1024, "precision": "fp16", "attention": "standard"}, "hetsched", "h1f1b")
        by[recompute].append(mfu / (100 * told["mfu"] * (4 / 3 if recompute == "full" else 1)) - 1)
        by[recompute, "refused"].append(not told["fits"])
group("HARP Table 2, eight plans, all recomputed (hetsched)", by["full"], 0.10, sum(by["full", "refused"]), 0.05)
group("The same, nothing recomputed", by["none"], None, sum(by["none", "refused"]))


# HexiScale, Table 3: measured MFU; its plans are not told, so ours by its search
def homogeneous(nodes, gbit_per_s):
    cluster = of_paper("hexiscale-homogeneous-cluster")
    cluster["subclusters"][0].update(nodes=nodes, inter_node={"gbit_per_s": gbit_per_s, "latency_us": 50 if gbit_per_s < 80 else 10})
    return cluster


llamas = {"7B": "hexiscale-setting1-model", "13B": "hexiscale-13b-model", "30B": "hexiscale-setting3-model"}
unlike = [of_paper(f"hexiscale-setting{k}-cluster") for k in (1, 2, 3)]
waiting = {how: put(f"{how}.json", {"format": "hetsched/stack", "version": 1, "name": "HexiScale's", "sends": how}) for how in ("grouped", "blocking")}
by = collections.defaultdict(list)
for kind, name, cluster, mfu in (("even", "7B", homogeneous(2, 5.6), 41.1), ("even", "7B", homogeneous(2, 80), 53.7),
                                 ("even", "13B", homogeneous(2, 5.6), 39.5), ("even", "13B", homogeneous(2, 80), 51.1),
                                 ("even", "30B", homogeneous(4, 5.6), 27.8), ("even", "30B", homogeneous(4, 80), 39.0),
                                 ("mixed", "7B", unlike[0], 31.2), ("mixed", "7B", unlike[1], 33.5), ("mixed", "13B", unlike[0], 27.2),
                                 ("mixed", "13B", unlike[1], 31.4), ("mixed", "30B", unlike[2], 27.5)):
    for sends in ("blocking", "grouped", None):
        told = json.loads(ask("--cluster", put("cluster.json", cluster), "--model", put("model.json", of_paper(llamas[name])), "--global-batch", "256",
                              "--planner", "hexiscale", "--search", "published", "--warmup", "1f1b", "--granularity", "block", "--recompute", "full",
                              "--use-all-devices", "--json", *(["--stack", waiting[sends]] if sends else []), command="hetsched-plan"))
        predicted = told["plan"]["predicted"]
        beside = predicted["iteration_s"]
        by[kind, sends].append(mfu / (100 * predicted["mfu"] * beside / told.get("iteration_with_sends_s", beside)) - 1)
for kind, what in (("even", "16 and 32 A800"), ("mixed", "unlike GPUs on slow links")):
    group(f"HexiScale Table 3, {what} (a stack that blocks)", by[kind, "blocking"], 0.10, bias=0.05)
    group("The same, transfers between two computations together (`grouped`)", by[kind, "grouped"])
    group(f"HexiScale Table 3, {what} (hetsched)", by[kind, None])

# HetAuto, Table 1: tokens per second of a device
subclusters = {s["name"]: s for exp in (1, 2, 3) for s in of_paper(f"hetauto-exp{exp}-cluster")["subclusters"]}
speeds = {}
for recompute, anchored in (("full", False), ("none", False), ("full", True), ("none", True)):
    for name, nodes, each, data, context, tensor, samples, tokens in (("a100", 2, 8, 8, 2, 1, 1, 3395.6), ("h20", 2, 8, 16, 1, 1, 1, 2218.6),
                                                                      ("ascend", 1, 16, 4, 1, 4, 2, 2286.7)):
        cluster = {"format": "hetsched/cluster", "version": 1,
                   "subclusters": [dict(subclusters[name], nodes=nodes, devices_per_node=each)]}
        line = [{"layers": [0, 25], "devices": [{"subcluster": name, "first_device": 0, "nodes": nodes, "devices_per_node": each}],
                 "degrees": {"data": data, "context": context, "tensor": tensor}, "zero": 1, "recompute": recompute, "warmup": 1}]
        llama = dict(of_paper("hetauto-exp1-model"), num_hidden_layers=24)
        if anchored:
            cluster["devices"] = {cluster["subclusters"][0]["device"]: {"measured": [
                {"model": llama, "nodes": nodes, "degrees": line[0]["degrees"], "recompute": recompute, "zero": 1,
                 "microbatch_size": samples * data, "microbatches": 64 // (samples * data), "tokens_per_s": tokens}]}}
        told = told_of(cluster, llama, line, 64 // (samples * data), samples * data,
                       {"granularity": "block", "sequence": 8192, "precision": "bf16", "attention": "flash"}, "megatron")
        speeds[recompute, anchored, name] = (64 * 8192 / 16 / told["iteration_s"], tokens)
for recompute, name, goal, bias in (("full", "HetAuto Table 1, 16 A100, H20 and Ascend A2, all recomputed (`megatron`)", 0.10, 0.05),
                                    ("none", "The same, nothing recomputed", None, None)):
    group(name, [measured / told - 1 for (*how, _), (told, measured) in speeds.items() if how == [recompute, False]], goal, bias=bias)
for recompute in ("full", "none"):  # an anchor says what it was scaled to
    for name in subclusters:
        told, measured = speeds.get((recompute, True, name), (1, 1))
        if abs(measured / told - 1) > 0.005:
            sys.exit(f"HetAuto Table 1: {name}, anchored, {told:.0f} tokens per second, measured {measured}")


def percent(x, signed=False):
    return f"{100 * x:{'+' if signed else ''}.1f} %"


lines = ["# Through the commands", "",
         "What `hetsched-predict` says beside measurements, row by row: [bench/validation/through_commands.py](../../bench/validation/through_commands.py) writes cluster, model, plan and stack as a user would, from datasheets and nominal links, and computes no time itself. A test compares this page with what the commands say today.", "",
         "| what | rows | mean | bias | lowest | highest | goals of mean and bias | refused for memory |", "| --- | ---: | ---: | ---: | ---: | ---: | --- | --- |"]
for name, errors, goal, out, most_bias in groups:
    mean, bias = sum(map(abs, errors)) / len(errors), sum(errors) / len(errors)
    goals = [(f"{100 * g:.0f} %", abs(value) <= g) for g, value in ((goal, mean), (most_bias, bias)) if g is not None]
    reached = ", ".join(f"{text}: " + ("reached" if holds else "**missed**") for text, holds in goals)
    lines.append(f"| {name} | {len(errors)} | {percent(mean)} | {percent(bias, True)} | {percent(min(errors), True)} | {percent(max(errors), True)} | {reached} | {'' if out is None else f'{out} of {len(errors)}'} |")
ratios = "; ".join(
    f"{pair[0]} to {pair[1]} {speeds['full', False, pair[0]][0] / speeds['full', False, pair[1]][0]:.2f}, measured {speeds['full', False, pair[0]][1] / speeds['full', False, pair[1]][1]:.2f}"
    for pair in (("a100", "h20"), ("a100", "ascend"), ("ascend", "h20")))
lines += ["",
          "* The H100's operators were measured for this page on 27 November 2026, on one H100 80GB HBM3 with PyTorch 2.11 (products and a token's attention in CUDA graphs, on random numbers). No constant was fitted to products or to a token's attention; attention of training on Hopper was fitted to these kernels, by generation (`flash_of`). Other shapes, measured the day after, are the line of attention that is not fitted.",
          "* Iterations on one GPU were measured with the same PyTorch, eager, by [bench/validation/torch_iterations.py](../../bench/validation/torch_iterations.py): AdamW (`fused`), `scaled_dot_product_attention`, PyTorch's loss in fp32. All in bf16 is the stack `{\"like\": \"ddp\", \"autocast\": false, \"bf16\": {\"weight_bytes\": 2, \"gradient_bytes\": 2, \"optimizer_bytes\": 4, \"accumulation_bytes\": 6}}`. With the rows of 27 November in view `long_power` was chosen; with those of the H100 of the day after what the optimizer sustains of the memory's bandwidth (0.7) and what the host needs for each kernel (20 us, of rows of a single short sample, which no device explains); kernels were counted again, from PyTorch's code, where a profile of one of these models had shown others. Nothing was fitted to the H200's rows, which were measured last.",
          "* Rows marked fitted are a sample of those that constants were fitted to, by generation where attention is meant. With the constants fitted without the chip, all rows of linear layers are off by what stands on the pages of engines' linear layers in [bf16](engines-linear-layers-in-bf16.md) and [fp8](engines-linear-layers-in-fp8.md). `linear` in fp8 rounds its inputs first, `scaled_mm`, as on the H100, does not.",
          "* llm-foundry's stack is `{\"like\": \"fsdp\", \"attention\": \"first\", \"autocast\": true}`: MPT's table was made in 2023 with FlashAttention's first version in Triton, which takes twice the second's time (Dao 2023), under `amp_bf16`. Its rows in fp8, under `amp_fp8`, are that stack with `\"products\": \"fp8\"`, to which nothing was fitted: no other iterations in fp8 were measured.",
          "* That stack is a reading: no number in it was fitted to the runs, but `first` and `autocast` were taken from what is known of llm-foundry with this table in view, and so was `fsdp`'s margin of memory, which is none. The other readings stand beside it.",
          "* `ddp` and llm-foundry are priced by counting what autocast adds: norms and residual sums are in fp32, and weights that are not held in 16 bits are rounded for each product. What eager PyTorch takes to add the gradients of a microbatch to those before, three passes over them, is `accumulation_bytes`: 12 a parameter in fp32, 6 in bf16, by a kernel for each tensor that the host launches. Nothing of it was fitted; without it the rows of several microbatches were 15.5 % too fast on average.",
          "* Megatron-LM's rows are those of one chunk in [its tables](megatron-lm-iterations.md), in fp16, recomputed in full unless the table says selectively. What that page does besides, rings as they were measured and one fitted efficiency, is not here: from datasheets alone Megatron-LM is predicted too fast. Its products add gradients to earlier ones as they make them; before 2022, when the code for that came, `main_grad.add_(grad)` did, which the readings beside it have (6 bytes a parameter in fp16). Which of the two made each table is not told.",
          "* HARP's MFU counts what is recomputed, as its base Alpa counts FLOPs (`compute_gpt_tflops`, 96 of 72 parts), so the command's MFU is taken by 4/3: a reading, chosen since all plans then fit in memory, of which 7 do not if nothing is recomputed, and with both in view. Not in the paper: models (here as for [what planning buys](../speed-ups.md)), microbatches (a sample for each rank of the widest data degree). V100e there are slowed A100.",
          "* HexiScale's plans and batch (here 256) are not told: the plans are what `hetsched-plan --planner hexiscale --search published` finds, under full recomputation, which its MFU does not count. Its trainer waits for transfers, as the stack `{\"sends\": \"blocking\"}` says: one by one, or, as `grouped`, all between two computations together. On unlike GPUs all rows are too fast with transfers beside computing. One by one, settings 1 and 3 are 13 to 27 % too slow and setting 2 is 13 % too fast still; what else its trainer did, and by which plans, is not known, and nothing was fitted to these rows. That goal is missed.",
          f"* HetAuto does not say what is recomputed, nor the ffn (11008 here) and vocabulary (32000). With all recomputed, speeds are {ratios}: in the order that was measured. With nothing recomputed all three are too fast by a fifth to a third. With its row as [anchor](../files.md#clusterjson) each device is as fast as was measured, within 0.5 %, either way recomputed; that tells that anchors hold, not how far they carry, as no device has a second row.", "",
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
