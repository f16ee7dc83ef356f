#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files as other programs write them, and damaged ones, through the commands that read them.

    foreign_files.py FOLDER-OF-COMMANDS [--list] [--share=N] [NAME...]

NAME: a part of a file's name, of which all are tried; --share=N: every N-th file alone.

Each file is answered in one of three ways: read, with what the undamaged file gives on standard output; told, which is read with
a line on standard error that names what was left out; or refused, with status 2 and a line that names the file and the place, and
nothing on standard output. Forms of tables are those that pandas 3.1, polars 2.1, R 4.2 with jsonlite, numpy, openpyxl and
torch.profiler wrote, retyped; nothing but Python's standard library is needed.
"""
import bz2, gzip, json, lzma, os, re, shlex, subprocess, sys, tempfile, zipfile
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

# ---- the undamaged files ----

CLUSTER = {
    "format": "hetsched/cluster", "version": 1,
    "devices": {"Own": {"peak_tflops": {"fp16": 125.0, "fp32": 15.7}, "memory_gib": 32, "memory_bandwidth_gb_per_s": 900,
                        "multiprocessors": 80, "l2_mib": 6, "clock_mhz": 1530}},
    "subclusters": [
        {"name": "old", "device": "Own", "nodes": 1, "devices_per_node": 4,
         "intra_node": {"gbit_per_s": 1200, "latency_us": 5}},
        {"name": "new", "device": "A100-SXM4-40GB", "nodes": 1, "devices_per_node": 4,
         "intra_node": {"gbit_per_s": 2400, "latency_us": 5}}],
    "links": [{"between": ["old", "new"], "gbit_per_s": 25, "latency_us": 100}]}
MODEL = {"format": "hetsched/model", "version": 1,
         "transformer": {"layers": 8, "hidden": 1024, "heads": 16, "vocab": 50257, "sequence": 1024, "dtype": "fp16"}}
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816,
          "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 32000,
          "max_position_embeddings": 1024, "rms_norm_eps": 1e-05, "torch_dtype": "bfloat16", "tie_word_embeddings": False}
STAGE = {"degrees": {"data": 2, "tensor": 2}, "zero": 1}
PLAN = {"format": "hetsched/plan", "version": 2, "setting": {"granularity": "block"},
        "pipelines": [{"microbatches": 8, "microbatch_size": 4, "stages": [
            {"layers": [0, 4], **STAGE,
             "devices": [{"subcluster": "old", "first_device": 0, "nodes": 1, "devices_per_node": 4}]},
            {"layers": [5, 9], **STAGE,
             "devices": [{"subcluster": "new", "first_device": 0, "nodes": 1, "devices_per_node": 4}]}],
            "schedule": {"name": "1f1b"}}]}
STACK = {"format": "hetsched/stack", "version": 1, "name": "mine", "like": "megatron",
         "bf16": {"gradient_bytes": 2, "reduced_bytes": 2}, "update_overlap": 1}
TARGET = {"format": "hetsched/target", "version": 1, "name": "fork", "like": "megatron", "most": {"tensor": 8},
          "recompute": ["none", "full"], "schedules": ["1f1b"]}
PIPELINE = {"format": "hetsched/pipeline", "version": 1, "microbatches": 12, "forward_s": [0.01] * 4, "backward_s": [0.02] * 4,
            "transfer_s": [0.002, 0.015, 0.002]}
DEVICE = {"format": "hetsched/device", "version": 1, "name": "Own", **CLUSTER["devices"]["Own"]}
GRAPH = {"format": "hetsched/graph", "version": 1, "nodes": [
    {"name": "x", "op": "placeholder", "shape": [1024, 512]}, {"name": "w1", "op": "parameter", "shape": [512, 2048]},
    {"name": "h", "op": "matmul", "inputs": ["x", "w1"]}, {"name": "a", "op": "relu", "inputs": ["h"]},
    {"name": "loss", "op": "sum", "inputs": ["a"]}]}
COSTS = {"forward_s": [0.001] * 10, "backward_s": [0.002] * 10, "weight_bytes": [1000000] * 10, "activation_bytes": [100000] * 10}
PROFILE = {"format": "hetsched/profile", "version": 2,
           "layers": [{"name": f"layer {i}", "boundary_bytes_per_sample": 2097152} for i in range(10)],
           "costs": [{"device": d, "tensor": 2, "context": 1, "microbatch_size": 2, **COSTS} for d in ("Own", "A100-SXM4-40GB")]}
SAILOR = {"1": {"1": {str(l): [0.001, 0.002, 0.0001] for l in range(10)}}}
METIS = {"model": {"model_name": "GPT", "num_layers": 10,
                   "parameters": {"total_parameters_bytes": 1000, "parameters_per_layer_bytes": [100] * 10}},
         "execution_time": {"total_time_ms": 40.0, "forward_backward_time_ms": 31.0, "batch_generator_time_ms": 0.8,
                            "layernorm_grads_all_reduce_time_ms": 0.01, "embedding_grads_all_reduce_time_ms": 0.02,
                            "optimizer_time_ms": 8.0, "layer_compute_total_ms": [3.0] * 10},
         "execution_memory": {"total_memory": 10000, "layer_memory_total_mb": [100.0] * 10}}
GALVATRON = {"layertype_0_bsz8_seq1024": 1.5, "layertype_other_bsz8_seq1024": 4.5}
ACTIONS = [("0F0", 0, 10), ("0F1", 10, 10), ("0B0", 20, 20), ("0B1", 40, 20)]
TORCH = {"schemaVersion": 1, "deviceProperties": [], "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
         "traceEvents": [{"ph": "X", "cat": "user_annotation", "name": "PP:" + name, "pid": 7, "tid": 7, "ts": 1e6 + at, "dur": dur}
                         for name, at, dur in ACTIONS], "traceName": "t.json"}
KERNELS = {"schemaVersion": 1, "traceEvents": [
    event for i, (m, us) in enumerate([(4096, 250.0), (2048, 80.0), (1024, 35.0), (8192, 900.0)]) for event in (
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": i * 1e3, "dur": 50,
         "args": {"External id": i + 1, "Input Dims": [[m, 4096], [4096, 4096]], "Input type": ["c10::Half", "c10::Half"]}},
        {"ph": "X", "cat": "kernel", "name": "sm90_gemm", "pid": 0, "tid": 7, "ts": i * 1e3 + 20, "dur": us,
         "args": {"External id": i + 1, "device": 0}})]}

ROWS = [("gemm", 1, 4096, 4096, 4096, "fp16"), ("softmax", 1, 4096, 2048, None, "fp16"),
        ("layernorm", 1, 2048, 1024, None, "fp32"), ("gelu", 1, 1024, 4096, None, "bf16")]
HEADING = ["op", "batch", "m", "n", "k", "dtype"]


def table(rows=ROWS, heading=HEADING, sep=",", end="\n", none="", quote=lambda c: False, form=str, q='"'):
    def cell(c, is_heading=False):
        text = none if c is None else c if isinstance(c, str) else form(c)
        return q + text + q if quote(c) and not (c is None and none != "") else text
    lines = [[cell(h) for h in heading]] + [[cell(c) for c in row] for row in rows]
    return "".join(sep.join(line) + end for line in lines)


OPERATORS = table()
SCHEDULE = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
GPUS = "".join(f"GPU {i}: NVIDIA A100-SXM4-80GB (UUID: GPU-{i}5a6c0f2-8a3d-9d3e-0f7c-2b6d1c1c1c1c)\n" for i in range(4))
TOPOLOGY = ("\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
            "GPU0\t X \tNV12\tNV12\tNV12\tPXB\t0-63\t0\t\tN/A\n" "GPU1\tNV12\t X \tNV12\tNV12\tPXB\t0-63\t0\t\tN/A\n"
            "GPU2\tNV12\tNV12\t X \tNV12\tSYS\t64-127\t1\t\tN/A\n" "GPU3\tNV12\tNV12\tNV12\t X \tSYS\t64-127\t1\t\tN/A\n"
            "NIC0\tPXB\tPXB\tSYS\tSYS\t X \t\t\t\t\n\nLegend:\n\n  X    = Self\n"
            "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)\n"
            "  NV#  = Connection traversing a bonded set of # NVLinks\n\nNIC Legend:\n\n  NIC0: mlx5_0\n")
HOSTFILE = "gpu01 slots=4\ngpu02 slots=4\n"
IBSTAT = ("CA 'mlx5_0'\n\tCA type: MT4123\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n"
          "\t\tRate: 200\n\t\tLink layer: InfiniBand\n")

# A door: the command, {} is the file that is tried; the others are those of FILES, by name.
DOORS = {
    "cluster": ("cluster.json", CLUSTER, "hetsched-predict --plan plan.json --cluster {} --model model.json --json"),
    "model": ("model.json", MODEL, "hetsched-predict --plan plan.json --cluster cluster.json --model {} --json"),
    "config": ("config.json", CONFIG, "hetsched-predict --plan plan.json --cluster cluster.json --model {} --json"),
    "plan": ("plan.json", PLAN, "hetsched-predict --plan {} --cluster cluster.json --model model.json --json"),
    "stack": ("stack.json", STACK, "hetsched-predict --plan plan.json --cluster cluster.json --model model.json --stack {} --json"),
    "target": ("target.json", TARGET, "hetsched-plan --for {} --cluster cluster.json --model model.json --global-batch 8 "
               "--microbatch-size 4 --granularity block --planner interop_dp --recompute none --zero 0 --json --out made-{}"),
    "pipeline": ("pipeline.json", PIPELINE, "hetsched-simulate --pipeline {} --schedule 1f1b --json"),
    "device": ("device.json", DEVICE, "hetsched-predict --device {} --operators operators.csv"),
    "graph": ("graph.json", GRAPH, "hetsched-spmd --graph {} --cluster cluster.json --json"),
    "profile": ("profile.json", PROFILE, "hetsched-predict --plan bare.json --cluster cluster.json --profile {} --json"),
    "sailor": ("sailor.json", SAILOR, "sailor-to-profile --csv {} --model model.json --gpu A=A100-SXM4-40GB --out -"),
    "metis": ("DeviceType.A100_tp1_bs1.json", METIS,
              "metis-to-profile --measured {} --model model.json --gpu A100=A100-SXM4-40GB --out -"),
    "galvatron": ("galvatron.json", GALVATRON, "galvatron-to-profile --measured {} --model model.json --gpu A=A100-SXM4-40GB --out -"),
    "torch": ("torch.json", TORCH, "hetsched-compare-timeline --pipeline one.json --schedule gpipe --measured {} --json"),
    "kernels": ("kernels.json", KERNELS, "hetsched-predict --device H100-SXM5-80GB --operators {}"),
    "operators": ("operators.csv", OPERATORS, "hetsched-predict --device H100-SXM5-80GB --operators {}"),
    "schedule": ("order.csv", SCHEDULE, "hetsched-simulate --pipeline two.json --schedule @{} --json"),
    "gpus": ("gpus.txt", GPUS, "hetsched-cluster --gpus {} --topology topo.txt"),
    "topology": ("topo.txt", TOPOLOGY, "hetsched-cluster --gpus gpus.txt --topology {}"),
    "hostfile": ("hosts", HOSTFILE, "hetsched-cluster --hostfile {} --device A100-SXM4-80GB:4"),
    "ibstat": ("ibstat.txt", IBSTAT, "hetsched-cluster --gpus gpus.txt --ibstat {}"),
}
TWO = {**PIPELINE, "microbatches": 2, "forward_s": [0.01] * 2, "backward_s": [0.02] * 2, "transfer_s": [0.002]}


def text_of(content):
    return content if isinstance(content, str) else json.dumps(content, indent=2) + "\n"


def data_of(content):
    return content if isinstance(content, bytes) else text_of(content).encode()


# ---- what is tried ----

READ, TOLD, REFUSED = "read", "told", "refused"


class Trial:
    """One file for one door, and how it is to be answered."""

    def __init__(self, door, name, content, answer, *words, place=None):
        self.door, self.name, self.content, self.answer, self.words = door, name, content, answer, words
        self.place = place  # how the file lies there, where it is no plain file


def zipped(name, data):
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        z.writestr(zipfile.ZipInfo(name), data)
    return out.getvalue()


PICKLE = bytes.fromhex("80049512000000000000008c0670616e646173948c0944617461467261") + b"me\x94\x93\x94."
NUMPY = b"\x93NUMPY\x01\x00v\x00{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }" + b" " * 55 + b"\n" + bytes(24)


def packed(text):
    """What a text becomes when it is packed or written by mistake in another form; and the word that must be said of it."""
    data = text.encode()
    return [
        ("gz", gzip.compress(data, mtime=0), "gzip"), ("xz", lzma.compress(data), "xz"), ("bz2", bz2.compress(data), "bzip2"),
        ("zip", zipped("f", data), "zip"), ("zst", b"\x28\xb5\x2f\xfd" + data[:9], "zstd"),
        ("lz4", b"\x04\x22\x4d\x18" + data[:9], "lz4"), ("parquet", b"PAR1" + bytes(40) + b"PAR1", "Parquet"),
        ("feather", b"ARROW1\0\0" + bytes(40), "Arrow"), ("pkl", PICKLE, "pickle"), ("npy", NUMPY, "NumPy"),
        ("npz", zipped("x.npy", NUMPY), "zip"), ("h5", b"\x89HDF\r\n\x1a\n" + bytes(40), "HDF5"),
        ("xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(40), "Excel"), ("pdf", b"%PDF-1.4\n", "PDF"),
        ("avro", b"Obj\x01\x02\x16avro.schema", "Avro"), ("sqlite", b"SQLite format 3\0" + bytes(40), "SQLite"),
        ("utf16", b"\xff\xfe" + text.encode("utf-16-le"), "UTF-16"), ("utf16be", b"\xfe\xff" + text.encode("utf-16-be"), "UTF-16"),
        ("utf16le", text.encode("utf-16-le"), "UTF-16"), ("utf32", b"\xff\xfe\0\0" + text.encode("utf-32-le"), "UTF-32"),
    ]


def texts_of_any_door(door, text):
    data = text.encode()
    for form, content, word in packed(text):
        yield Trial(door, form, content, REFUSED, word)
    yield Trial(door, "bom", b"\xef\xbb\xbf" + data, READ)
    yield Trial(door, "crlf", data.replace(b"\n", b"\r\n"), READ)
    yield Trial(door, "no-last-newline", data.rstrip(b"\n"), READ)
    # A schedule's row without actions is a rank without work.
    yield Trial(door, "more-newlines", data + b"\n\n", REFUSED if door == "schedule" else READ)
    for what, content in (("empty", b""), ("newline", b"\n"), ("blanks", b"   \n  \n"), ("zeros", bytes(64)),
                          ("html", b"<!DOCTYPE html>\n<html><body>Sign in</body></html>\n"),
                          ("lfs", b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"),
                          ("noise", bytes((i * 97 + 13) % 256 for i in range(200)))):
        yield Trial(door, what, content, REFUSED)
    yield Trial(door, "folder", None, REFUSED, "folder", place="folder")
    gone = "neither" if door in ("stack", "target") else "cannot be opened"
    yield Trial(door, "missing", None, REFUSED, gone, place="missing")
    yield Trial(door, "loop", None, REFUSED, gone, place="loop")
    yield Trial(door, "null-device", None, REFUSED, place="null")
    if door != "metis":  # whose names tell the half
        yield Trial(door, "fifo", data, READ, place="fifo")
    yield Trial(door, "link", data, READ, place="link")
    if os.geteuid() != 0:
        yield Trial(door, "not-permitted", data, REFUSED, "cannot be opened", place="secret")


def walk(value, path=()):
    """All values inside, with their paths."""
    yield path, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from walk(inner, path + (key,))


def put(root, path, value):
    """A copy of the document with another value there."""
    copy = json.loads(json.dumps(root))
    at = copy
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return copy


def pointer(path):
    return "".join(f"/{key}" for key in path)


def boxed(value):
    """As R's jsonlite writes lists without auto_unbox: each scalar in an array."""
    if isinstance(value, dict):
        return {k: boxed(v) for k, v in value.items()}
    if isinstance(value, list):
        return [boxed(v) if isinstance(v, (dict, list)) else v for v in value]
    return [value]


def with_texts(value):
    if isinstance(value, dict):
        return {k: with_texts(v) for k, v in value.items()}
    if isinstance(value, list):
        return [with_texts(v) for v in value]
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


# Numbers that a door's command reads, where the first one is not read, may be a list, or stands in one.
VALUES = {"config": ("intermediate_size",), "graph": ("nodes", 0, "shape", 1), "metis": ("execution_time", "optimizer_time_ms"),
          "torch": ("traceEvents", 1, "ts"), "kernels": ("traceEvents", 1, "dur")}
# Values there that are right all the same: a list of one for each block; -4 us since the clock was set.
TAKEN = {("config", "[4]"), ("torch", "-4")}


def jsons(door, root):
    text = text_of(root)
    numbers = [(p, v) for p, v in walk(root) if isinstance(v, (int, float)) and not isinstance(v, bool)]
    path = VALUES.get(door) or next(p for p, v in numbers if p[-1] != "version")

    def raw(value):
        return json.dumps(put(root, path, "@@"), indent=2).replace('"@@"', value) + "\n"
    where = pointer(path)
    yield Trial(door, "one-line", json.dumps(root, separators=(",", ":")), READ)
    yield Trial(door, "tabs", json.dumps(root, indent="\t"), READ)
    yield Trial(door, "sorted", json.dumps(root, indent=1, sort_keys=True), READ)
    for what, content in (("half", text[:len(text) // 2]), ("last-brace", text.rstrip()[:-1]), ("twice", text + text),
                          ("comments", text.replace("{", "{ // sizes", 1)), ("hash", "# sizes\n" + text),
                          ("trailing-comma", re.sub(r"\n}\s*$", ",\n}\n", text)), ("python", repr(root)),
                          ("bare-keys", re.sub(r'"(\w+)":', r"\1:", text)), ("yaml", re.sub(r'[{}",\[\]]', "", text)),
                          ("in-list", "[" + text + "]"), ("list", "[]"), ("null", "null"), ("text", json.dumps(text)),
                          ("number", "3"), ("latin", text.replace('"', '"\xe9', 1).encode("latin-1")),
                          ("deep", "[" * 100000), ("lone", text.replace('"', '"\\ud800', 1))):
        yield Trial(door, what, content, REFUSED)
    if door != "sailor":  # which has lists alone
        yield Trial(door, "boxed", text_of(boxed(root)), REFUSED, "expected")
    yield Trial(door, "numbers-as-texts", text_of(with_texts(root)), REFUSED, "expected")
    yield Trial(door, "wrapped", text_of({"data": root}), REFUSED)
    for value in ("NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 40, "null", "true", '"4"', "[4]", "{}", "-4"):
        if (door, value) in TAKEN:
            continue
        yield Trial(door, f"value{value[:9]}", raw(value), REFUSED, *([where] if value[:2] not in ("Na", "In", "-I", "1e") else []))
    if not isinstance(path[-1], int):
        yield Trial(door, "comma-number", raw("1,5"), REFUSED)
    # Each object's first key, twice.
    key = next(iter(root))
    yield Trial(door, "same-key-twice", text.replace("{", "{" + f'"{key}": {json.dumps(root[key])}, ', 1), REFUSED,
                "/" + key.replace("/", "~1"), "twice")
    if "format" in root:
        yield Trial(door, "no-format", text_of({k: v for k, v in root.items() if k != "format"}), REFUSED, "format")
        yield Trial(door, "other-format", text_of({**root, "format": "hetsched/other"}), REFUSED, "/format", "hetsched/other")
        yield Trial(door, "version-99", text_of({**root, "version": 99}), REFUSED, "/version", "99")
        yield Trial(door, "version-text", text_of({**root, "version": "1"}), REFUSED, "/version")
        yield Trial(door, "empty-object", "{}", REFUSED, "format")
        # A key too many, and a key misspelt, in every object.
        for at, value in walk(root):
            if isinstance(value, dict) and value and at[:1] != ("layers",) and at != ("devices",):  # which has names
                yield Trial(door, "key-too-many" + pointer(at).replace("/", "-"), text_of(put(root, at + ("coment",), 1) if at else
                            {**root, "coment": 1}), REFUSED, pointer(at) + "/coment", "unknown")
    for other, (_, content, _) in DOORS.items():
        if other != door and not isinstance(content, str) and content.get("format") != root.get("format", "none") and (
                other, door) not in (("kernels", "torch"), ("torch", "kernels"), ("model", "config"), ("config", "model")):
            yield Trial(door, "is-" + other, text_of(content), REFUSED)


def tables():
    """operators.csv as programs write it."""
    t = lambda name, content, answer, *words: Trial("operators", name, content, answer, *words)
    is_text = lambda c: isinstance(c, str)
    floats = [r[:4] + (None if r[4] is None else float(r[4]),) + r[5:] for r in ROWS]  # an empty cell makes a column so
    yield t("pandas", table(floats), READ)
    yield t("pandas-Int64", table(), READ)
    yield t("pandas-float-format", table(form=lambda v: f"{float(v):.3f}"), READ)
    yield t("pandas-exponents", table(form=lambda v: f"{float(v):.3e}"), READ)
    for none in ("NA", "nan", "NaN", "null", "NULL", "None", "<NA>", "N/A", "#N/A", "-", "\\N"):
        yield t("none-" + none, table(floats, none=none), READ)
    yield t("pandas-quote-all", table(floats, quote=lambda c: True), READ)
    yield t("pandas-quote-nonnumeric", table(floats, quote=is_text), READ)
    yield t("pandas-quotechar", table(floats, quote=is_text, q="'"), REFUSED, "line 1")
    yield t("pandas-cr", table(floats, end="\r"), READ)
    for sep, word in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars"), (" ", "blanks")):
        yield t("separator-" + word, table(floats, sep=sep), REFUSED, "line 1", word)
    yield t("pandas-header-false", "".join(table(floats).splitlines(True)[1:]), REFUSED, "line 1")
    yield t("pandas-T", "\n".join(",".join(str(c) for c in column) for column in zip(HEADING, *ROWS)) + "\n", REFUSED, "line 1")
    yield t("pandas-columns-twice", table([r + (1,) for r in ROWS], HEADING + ["m"]), REFUSED, "line 1", "two columns")
    yield t("pandas-multiindex-columns", table([[None] + list(r) for r in floats], [None] + ["a"] * 6), REFUSED, "line 1")
    yield t("pandas-to-string", "          op  batch     m     n       k dtype\n0       gemm      1  4096  4096  4096.0  fp16\n", REFUSED,
            "line 1", "blanks")
    yield t("pandas-html", '<table border="1" class="dataframe">\n  <thead>\n', REFUSED, "line 1")
    yield t("markdown", "| op | batch |\n|:--|--:|\n| gemm | 1 |\n", REFUSED, "line 1", "bars")
    records = [dict(zip(HEADING, r)) for r in ROWS]
    for name, content in (("records", records), ("split", {"columns": HEADING, "index": [0, 1, 2, 3], "data": ROWS}),
                          ("table", {"schema": {"fields": []}, "data": records}),
                          ("columns", {h: {str(i): r[c] for i, r in enumerate(ROWS)} for c, h in enumerate(HEADING)}),
                          ("r-columns", {h: [r[c] for r in ROWS] for c, h in enumerate(HEADING)})):
        yield t("json-" + name, text_of(content), REFUSED, "JSON", "expected")
    yield t("ndjson", "".join(json.dumps(r) + "\n" for r in records), REFUSED, "JSON", "expected")
    yield t("r-noquote", table(none="NA"), READ)
    yield t("r-write.csv", table(none="NA", quote=is_text), READ)
    yield t("r-write.csv2", table(none="NA", quote=is_text, sep=";"), REFUSED, "line 1", "semicolons")
    yield t("r-write.table", table([(str(i + 1),) + r for i, r in enumerate(ROWS)], none="NA", quote=is_text, sep=" "), REFUSED,
            "line 1", "blanks")
    yield t("half-a-row", OPERATORS[:-12], TOLD, "line 5", "left out")
    yield t("a-cell-too-many", OPERATORS.replace("fp32\n", "fp32,\n"), TOLD, "line 4", "found 7 cells", "left out")
    yield t("comma-for-point", OPERATORS.replace("1024,4096,", '"1.024,5",4096,'), TOLD, "line 5", "left out")
    yield t("thousands", OPERATORS.replace("1024,4096,", '"1,024",4096,'), TOLD, "line 5", "column m", "left out")
    yield t("unknown-operator", OPERATORS.replace("gelu", "gleu"), TOLD, "line 5", "gelu", "left out")
    yield t("unknown-dtype", OPERATORS.replace("bf16", "bfloat"), TOLD, "line 5", "column dtype", "left out")
    yield t("negative", OPERATORS.replace("1024,4096,", "-1024,4096,"), TOLD, "line 5", "column m", "left out")
    yield t("empty-row-within", OPERATORS.replace("layernorm", "\nlayernorm"), TOLD, "line 4", "left out")
    yield t("heading-alone", OPERATORS.splitlines(True)[0], REFUSED)


def lists():
    """What drivers and launchers print, cut and changed."""
    yield Trial("gpus", "mig", GPUS + "  MIG 1g.5gb      Device  0: (UUID: MIG-1)\n", REFUSED, "MIG")
    yield Trial("gpus", "a-line-less", "".join(GPUS.splitlines(True)[1:]), REFUSED, "3 devices", place="of a pair")
    yield Trial("gpus", "csv", "name, memory.total [MiB]\nNVIDIA A100-SXM4-80GB, 81920 MiB\n", REFUSED, "nvidia-smi -L")
    yield Trial("topology", "half", TOPOLOGY[:TOPOLOGY.index("GPU3\tNV12")], REFUSED, "rows of 4 GPUs, found 3")
    yield Trial("topology", "half-a-row", TOPOLOGY[:TOPOLOGY.index("GPU3\tNV12") + 12], REFUSED, "GPU3")
    yield Trial("hostfile", "no-number", HOSTFILE.replace("4", "four", 1), REFUSED, "line 1", "four")
    yield Trial("hostfile", "twice", HOSTFILE + HOSTFILE, REFUSED, "line 3", "twice")
    yield Trial("hostfile", "unlike", HOSTFILE.replace("4", "8", 1), REFUSED, "line 2")
    yield Trial("hostfile", "commas", "gpu01,gpu02\n", REFUSED, "line 1")
    yield Trial("hostfile", "json", '{"hosts": ["gpu01"]}\n', REFUSED, "line 1", "no name of a host")
    yield Trial("hostfile", "ansible", "[gpus]\ngpu01\n", REFUSED, "line 1", "no name of a host")
    yield Trial("hostfile", "comments", "# the lab\n\n" + HOSTFILE.replace("\n", "  # rack 1\n"), READ)
    yield Trial("ibstat", "down", IBSTAT.replace("Active", "Down"), REFUSED, "active ports")
    yield Trial("schedule", "word", SCHEDULE.replace("1F1", "one"), REFUSED, "row 2, column 3", "one")
    yield Trial("schedule", "a-row-less", SCHEDULE.splitlines(True)[0], REFUSED)
    yield Trial("schedule", "half", SCHEDULE[:-5], REFUSED)


def trials():
    yield from tables()
    yield from lists()
    for door, (name, content, _) in DOORS.items():
        yield from texts_of_any_door(door, text_of(content))
        if not isinstance(content, str):
            yield from jsons(door, content)


def lay(trial, folder, number):
    """Puts the file where the command is to find it, and gives its name."""
    original = Path(DOORS[trial.door][0])
    home = folder / str(number)
    home.mkdir()
    path = home / original.name
    content = None if trial.content is None else data_of(trial.content)
    if trial.place in (None, "fifo", "of a pair"):
        path.write_bytes(content)
    elif trial.place == "link":
        (home / "target").write_bytes(content)
        path.symlink_to("target")
    elif trial.place == "folder":
        path.mkdir()
    elif trial.place == "loop":
        path.symlink_to(original.name)
    elif trial.place == "null":
        return Path("/dev/null")
    elif trial.place == "secret":
        path.write_bytes(content)
        path.chmod(0)
    return path.relative_to(folder)


def run(commands, folder, line, path, fifo=False):
    words = shlex.split(line.replace("made-{}", "-").replace("{}", "/dev/stdin" if fifo else shlex.quote(str(path))))
    with open(folder / path, "rb") if fifo else open(os.devnull, "rb") as given:
        if not fifo:
            return subprocess.run([commands / words[0], *words[1:]], cwd=folder, stdin=given, capture_output=True, timeout=60)
        feed = subprocess.Popen(["cat"], stdin=given, stdout=subprocess.PIPE)
        r = subprocess.run([commands / words[0], *words[1:]], cwd=folder, stdin=feed.stdout, capture_output=True, timeout=60)
        feed.stdout.close()
        feed.wait()
        return r


def said(trial, output):
    """What an answer says. Rows of operators are printed as they came: of them, what was predicted."""
    text = output.decode().splitlines()
    return [line.rpartition(",")[2] for line in text] if trial.door == "operators" else text


def complaint(trial, r, whole):
    """What is wrong with an answer; nothing if it is right."""
    error = r.stderr.decode(errors="replace")
    if r.returncode not in (0, 1, 2):
        return f"status {r.returncode}"
    if trial.answer == REFUSED:
        if r.returncode != 2:
            return f"status {r.returncode}, expected 2"
        if r.stdout:
            return "refused, with something on standard output"
        name = "/dev/null" if trial.place == "null" else DOORS[trial.door][0]
        if name not in error and trial.place != "of a pair":  # of files that tell of each other
            return f"{name} is not named"
    else:
        if r.returncode != 0:
            return f"status {r.returncode}, expected 0"
        if trial.answer == READ and said(trial, r.stdout) != said(trial, whole.stdout):
            return "read, but not as the undamaged file"
        if trial.answer == TOLD and error == whole.stderr.decode():
            return "nothing is told"
    if any(ord(c) < 0x20 and c != "\n" for c in error):
        return "a control character on standard error"
    if max(map(len, error.split("\n"))) > 1500:
        return "a line of more than 1500 characters"
    for word in trial.words:
        if word not in error:
            return f"{word!r} is not said"
    return None


def main():
    commands = Path(sys.argv[1]).resolve()
    listed = "--list" in sys.argv
    share = next((int(a.removeprefix("--share=")) for a in sys.argv if a.startswith("--share=")), 1)
    wanted = [a for a in sys.argv[2:] if not a.startswith("--")]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name, content, _ in DOORS.values():
            (folder / name).write_bytes(data_of(content))
        (folder / "two.json").write_text(text_of(TWO))
        (folder / "one.json").write_text(text_of({**TWO, "forward_s": [0.01], "backward_s": [0.02], "transfer_s": []}))
        (folder / "bare.json").write_text(text_of(PLAN).replace('"zero": 1', '"zero": 0'))
        whole = {door: run(commands, folder, line, name) for door, (name, _, line) in DOORS.items()}
        failed = 0
        for door, r in whole.items():
            if r.returncode != 0 or not r.stdout:
                print(f"FAILED {door}: the undamaged file: status {r.returncode}: {r.stderr.decode()}")
                failed += 1
        all_trials = [t for t in trials() if not wanted or any(w in f"{t.door}/{t.name}" for w in wanted)][::share]

        def answer(numbered):
            number, trial = numbered
            path = lay(trial, folder, number)
            return run(commands, folder, DOORS[trial.door][2], path, trial.place == "fifo")

        with ThreadPoolExecutor(2) as pool:
            for trial, r in zip(all_trials, pool.map(answer, enumerate(all_trials))):
                wrong = complaint(trial, r, whole[trial.door])
                failed += wrong is not None
                if wrong or listed:
                    print(f"{'FAILED' if wrong else 'ok'} {trial.door}/{trial.name}: {wrong or trial.answer}: "
                          f"{r.stderr.decode(errors='replace')[:400].strip()!r}")
        print(f"{len(all_trials) + len(whole) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
