#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/speed-ups.md: what planning buys in the papers' settings, beside the papers' figures.

usage: paper_tables.py EXAMPLES [--check]     EXAMPLES: the folder of the commands. --check: computes a few quick rows, which have
to stand on the page as they are; status 1 if they do not.
Nothing here plans or computes a time: hetsched-compare, hetsched-plan and hetsched-predict are asked.
"""
import copy, json, pathlib, subprocess, sys, tempfile

root = pathlib.Path(__file__).resolve().parents[1]
page = root / "docs/speed-ups.md"
examples = pathlib.Path(sys.argv[1]).resolve()
checks = "--check" in sys.argv[2:]
work = pathlib.Path(tempfile.mkdtemp())


def setting(name):
    return json.loads((root / "examples/settings" / f"{name}.json").read_text())


def put(name, value):
    (work / name).write_text(json.dumps(value))
    return str(work / name)


def ask(command, cluster, model, batch, *options):
    """What a command prints as JSON; None where there is no plan."""
    given = ["--cluster", put("cluster.json", cluster), "--model", put("model.json", model)]
    done = subprocess.run([str(examples / command), *given, *(["--global-batch", str(batch)] if batch else []), *options, "--json"],
                          capture_output=True, text=True)
    if done.returncode not in (0, 1):
        sys.exit(f"{command} {' '.join(options)}: {done.stderr}")
    return json.loads(done.stdout) if done.returncode == 0 else None


def iteration(cluster, model, batch, planner, *options):
    """Seconds of the planner's iteration, or None."""
    told = ask("hetsched-compare", cluster, model, batch, "--planners", planner, *options)
    return told and told["planners"][0]["iteration_s"]


def times(baseline, ours):
    return "no plan" if baseline is None else f"{baseline / ours:.2f}"


def beside(value, paper):
    return f"{value} ({paper})" if paper else value


# HARP, figure 7 and table 2: nodes of V100e and A100, model, MFU of Megatron, Alpa, HexiScale and Harp
figure7 = {
    "a": (1, 2, "15B", None, None, 41.5, 53.2),
    "b": (2, 1, "15B", 44.1, 38.5, 42.8, 59.7),
    "c": (3, 1, "15B", 46.8, 46.9, 38.8, 59.4),
    "d": (4, 1, "15B", None, 46.0, 37.0, 59.7),
    "e": (4, 1, "30B", None, 41.0, 41.1, 60.4),
    "f": (2, 2, "30B", 35.8, 32.1, 39.4, 54.2),
    "g": (4, 2, "39B", 39.9, 36.3, 42.4, 60.3),
    "h": (4, 4, "39B", 38.2, 28.2, 36.7, 53.8),
}
gpts = {"2.6B": (32, 2560, 32), "6.7B": (32, 4096, 32), "15B": (48, 5120, 32), "30B": (48, 7168, 56), "39B": (48, 8192, 64)}
BLOCKS = ("--granularity", "block")
HARP = ("interop_dp", "--warmup", "h1f1b")
HEXISCALE = ("hexiscale", "--warmup", "1f1b", *BLOCKS)
MEGATRON = ("uniform", "--warmup", "1f1b", *BLOCKS)
ALPA = ("alpa_like", "--warmup", "eager", *BLOCKS)


def gpt(name):
    layers, hidden, heads = gpts[name]
    model = setting("harp-setting1-model")
    model["transformer"].update(layers=layers, hidden=hidden, heads=heads)
    return model


def harp_cluster(letter, gbit_per_s=5):
    v100e, a100 = figure7[letter][:2]
    cluster = setting("harp-setting1-cluster")
    for part in cluster["subclusters"]:
        part["nodes"] = a100 if part["name"] == "a100" else v100e
        if letter == "a" and part["name"] == "a100":
            part["devices_per_node"] = 4
    cluster["links"][0]["gbit_per_s"] = gbit_per_s
    return cluster


def harp_row(letter):
    v100e, a100, name, *mfu, own = figure7[letter]
    cluster, model = harp_cluster(letter), gpt(name)
    ours = iteration(cluster, model, 1024, *HARP)
    cells = [beside(times(iteration(cluster, model, 1024, *how), ours), "–" if told is None else f"{own / told:.2f}")
             for how, told in zip((MEGATRON, ALPA, HEXISCALE), mfu)]
    devices = f"{8 * v100e} V100e, {8 if letter == 'a' else 8 * a100} A100"
    return f"| {letter} | {devices} | {name} | {ours:.1f} s | {' | '.join(cells)} |"


def harp_homogeneous():
    own = iteration(harp_cluster("f"), gpt("30B"), 1024, *HARP)
    alike = setting("harp-setting1-cluster")
    alike["subclusters"], alike["links"] = [dict(alike["subclusters"][0], nodes=3)], []
    return f"{iteration(alike, gpt('30B'), 1024, *MEGATRON) / own:.2f}"


def harp_subclusters(name, three):
    cluster = setting("harp-figure11-cluster")
    if not three:
        cluster["subclusters"], cluster["links"] = cluster["subclusters"][:2], cluster["links"][:1]
    return times(iteration(cluster, gpt(name), 1024, *HEXISCALE), iteration(cluster, gpt(name), 1024, *HARP))


def harp_layers():
    cluster = harp_cluster("h")
    return times(iteration(cluster, gpt("39B"), 1024, *HARP, *BLOCKS), iteration(cluster, gpt("39B"), 1024, *HARP))


def harp_without_transfers():
    """A plan for a link that takes no time, on the link that there is."""
    free = harp_cluster("e", 1e6)
    free["links"][0]["latency_us"] = 0
    plan = ask("hetsched-plan", free, gpt("30B"), 1024, "--planner", *HARP)["plan"]
    told = ask("hetsched-predict", harp_cluster("e"), gpt("30B"), None, "--plan", put("plan.json", plan))
    return times(told["iteration_s"], iteration(harp_cluster("e"), gpt("30B"), 1024, *HARP))


def harp_bandwidth(gbit_per_s):
    cluster, model = harp_cluster("h", gbit_per_s), gpt("39B")
    seconds = [iteration(cluster, model, 1024, *how) for how in (HARP, ALPA, HEXISCALE, MEGATRON)]
    return f"| {gbit_per_s} Gbit/s | " + " | ".join(f"{s:.1f} s" for s in seconds) + " |"


# HexiScale, section 5.1 and table 3: cluster, model, measured and simulated MFU
def homogeneous(nodes, gbit_per_s):
    cluster = setting("hexiscale-homogeneous-cluster")
    cluster["subclusters"][0]["nodes"] = nodes
    cluster["subclusters"][0]["inter_node"] = {"gbit_per_s": gbit_per_s, "latency_us": 50 if gbit_per_s < 80 else 10}
    return cluster


ETHERNET, RDMA = 5.6, 80
llamas = {"7B": "hexiscale-setting1-model", "13B": "hexiscale-13b-model", "30B": "hexiscale-setting3-model"}
table3 = [
    ("7B", "2 x 8 A800, Ethernet", lambda: homogeneous(2, ETHERNET), 41.1, 42.2),
    ("7B", "2 x 8 A800, RDMA", lambda: homogeneous(2, RDMA), 53.7, 54.0),
    ("7B", "setting 1", lambda: setting("hexiscale-setting1-cluster"), 31.2, 32.3),
    ("7B", "setting 2", lambda: setting("hexiscale-setting2-cluster"), 33.5, 33.8),
    ("13B", "2 x 8 A800, Ethernet", lambda: homogeneous(2, ETHERNET), 39.5, 41.0),
    ("13B", "2 x 8 A800, RDMA", lambda: homogeneous(2, RDMA), 51.1, 52.2),
    ("13B", "setting 1", lambda: setting("hexiscale-setting1-cluster"), 27.2, 28.6),
    ("13B", "setting 2", lambda: setting("hexiscale-setting2-cluster"), 31.4, 31.8),
    ("30B", "4 x 8 A800, Ethernet", lambda: homogeneous(4, ETHERNET), 27.8, 28.6),
    ("30B", "4 x 8 A800, RDMA", lambda: homogeneous(4, RDMA), 39.0, 40.4),
    ("30B", "setting 3", lambda: setting("hexiscale-setting3-cluster"), 27.5, 28.0),
]


def hexiscale_row(row):
    name, where, cluster, real, simulated = row
    cluster, model = cluster(), setting(llamas[name])
    best = ask("hetsched-plan", cluster, model, 256, "--planner", *HEXISCALE, "--use-all-devices")["plan"]["predicted"]
    others = [times(iteration(cluster, model, 256, how, "--warmup", "1f1b", *BLOCKS), best["iteration_s"]) for how in ("uniform", "amp")]
    return f"| {name} | {where} | {best['iteration_s']:.1f} s | {100 * best['mfu']:.1f} % | {real} %, {simulated} % | {' | '.join(others)} |"


# HetAuto, table 2: global batches
batches = {"exp1": 128, "exp2": 128, "exp3": 512}


def hetauto_plan(exp, planner, schedule="virtual_1f1b", *options):
    cluster, model = setting(f"hetauto-{exp}-cluster"), setting(f"hetauto-{exp}-model")
    told = ask("hetsched-plan", cluster, model, batches[exp], "--planner", planner, "--schedule", schedule, *BLOCKS, *options)
    return told and told["plan"]


def hetauto_s(*asked):
    plan = hetauto_plan(*asked)
    return plan and plan["predicted"]["iteration_s"]


def hetauto_row(exp):
    even = hetauto_s(exp, "uniform")
    others = [hetauto_s(exp, planner) for planner in ("amp", "metis_like", "hetauto")]
    others.append(hetauto_s(exp, "hetauto", "virtual_1f1b", "--max-context", "8"))
    paper = {"exp1": ["about 1.1", "–", "1.19 to 1.57", ""], "exp2": ["about 1.1", "–", "1.19 to 1.57", ""], "exp3": ["about 1.1", "0.7", "1.57", ""]}
    cells = [beside("no plan" if s is None else f"{even / s:.2f}", told) for s, told in zip(others, paper[exp])]
    return f"| {exp} | {even:.1f} s | {' | '.join(cells)} |"


def hetauto_schedule(exp):
    plain = put("plan.json", hetauto_plan(exp, "hetauto", "1f1b"))
    cells = []
    for sends in ("asynchronous", "grouped", "blocking"):
        told = ask("hetsched-predict", setting(f"hetauto-{exp}-cluster"), setting(f"hetauto-{exp}-model"), None, "--plan", plain, "--sends", sends)
        cells.append(f"{told.get('iteration_with_sends_s', told['iteration_s']) / hetauto_s(exp, 'hetauto'):.2f}")
    return f"| {exp} | {' | '.join(cells)} | 1.68 to 1.84 |"


def single(figure, what, value, paper):
    return f"| {figure} | {what} | {value} | {paper} |"


if checks:
    text = page.read_text()
    wrong = [row for row in (harp_row("b"), hexiscale_row(table3[3]), hetauto_row("exp1")) if row not in text]
    for row in wrong:
        print("not on docs/speed-ups.md:", row)
    sys.exit(bool(wrong))

out = []
say = out.append
say("""# What planning buys

In the settings of three papers: how many times as long an iteration takes as planned by a [baseline](planner.md#baselines) of the paper as by the paper's planner here, and in brackets what the paper measured.
`bench/paper_tables.py` makes this page by asking `hetsched-compare`, `hetsched-plan` and `hetsched-predict`; clusters and models are those of [examples/settings](../examples/settings/README.md), or less of them. All are predictions from datasheets, with recomputation and ZeRO as each planner chooses, of the plans that our versions of the planners find: measured kernels, and what the systems' programs lose besides, are not in them. A cross-cluster link carries what it carries for each pair of stages: several pipelines do not share it here, which flatters `uniform` and `amp`.

## HARP

Figure 7, in setting 1, cross-cluster links of 5 Gbit/s, global batch 1024. Ours is `interop_dp` under H-1F1B, with layers cut within blocks; `uniform` runs 1F1B as Megatron-LM, `alpa_like` Eager-1F1B, `hexiscale` 1F1B, all three with whole blocks. In brackets the ratios of MFU in its table 2. Numbers of devices are those of its tables 3 to 10, on nodes of eight, but for (a), of four A100 each;
models are GPTs of 48 blocks (15B: hidden size 5120, 30B: 7168, 39B: 8192; the paper does not tell them, nor which one is whose).
""")
say("| | devices | GPT | ours | `uniform`, Megatron-LM | `alpa_like`, Alpa | `hexiscale`, HexiScale |\n| --- | --- | --- | --: | --: | --: | --: |")
for letter in figure7:
    say(harp_row(letter))
say("""
Other figures:

| figure | ratio of | ours | paper |
| --- | --- | --: | --: |""")
say(single("10 (c)", "the throughput of 7 (f) to that of `uniform` on 24 A100, whose peak is 1.07 times as high", harp_homogeneous(), "0.83"))
for name in ("2.6B", "6.7B"):
    for three, told in ((False, "1.1 to 1.2"), (True, "1.3 to 1.6")):
        what = f"`hexiscale`'s iteration to ours, GPT-{name} on {'three' if three else 'two'} subclusters of setting 3, 200 Gbit/s between V100 nodes"
        say(single("11", what + (", 5 Gbit/s to the A100" if three else ""), harp_subclusters(name, three), told))
say(single("13 (a)", "the iteration of 7 (h) with whole blocks to that with parts", harp_layers(), "1.2 to 1.6, with 8 to 48 layers"))
say(single("13 (b)", "the iteration of 7 (e) as planned for a link that takes no time to ours", harp_without_transfers(), "1.4 to 3.3"))
say("""
Figure 12, configuration 7 (h) planned anew for each cross-cluster bandwidth; the paper has curves: Harp and Alpa hold out down to about 3 Gbit/s, HexiScale's iteration grows as bandwidth falls, Megatron-LM's does below 7 Gbit/s.

| link | `interop_dp` | `alpa_like` | `hexiscale` | `uniform` |
| --- | --: | --: | --: | --: |""")
for gbit_per_s in (10, 7, 5, 3):
    say(harp_bandwidth(gbit_per_s))
say("""
## HexiScale

Table 3: the MFU of plans of `hexiscale` under 1F1B, on all devices, beside what the paper measured and what it simulated; and how many times as long `uniform` and `amp` take. The global batch is 256, which the paper does not tell; its MFU is that of full recomputation, ours of the recomputation that memory asks for. Its Galvatron, which cuts layers unevenly under equal degrees, is nearest to `amp`: on setting 1 to 3 it was slower by 2.1 on average, and 2.5 at the most, and Megatron-LM had no plan for the 30B on setting 3.
Figure 6 takes away that stages may have unlike tensor degrees, on settings 1 and 3: 1.18 on average and 1.30 at the most (throughput less by 15 and 23 %), which is `amp`, too.

| Llama | cluster | `hexiscale` | MFU | paper: measured, simulated | `uniform` | `amp` |
| --- | --- | --: | --: | --: | --: | --: |""")
for row in table3:
    say(hexiscale_row(row))
say("""
## HetAuto

Figure 7: throughput over that of Uniform, all under Virtual-1F1B, with whole blocks. No planner has context degrees, but `hetauto` in the last column (`--max-context 8`). In exp3, `uniform` and `amp` have 23 stages of 32 devices, as the paper tells of its own.

| | `uniform` | `amp`, AMP | `metis_like`, Metis | `hetauto`, HetAuto | with context degrees |
| --- | --: | --: | --: | --: | --: |""")
for exp in batches:
    say(hetauto_row(exp))
say("""
Figure 13: the iteration under 1F1B over that under Virtual-1F1B, each planned for. Transfers of Virtual-1F1B go on beside computing; those of the paper's 1F1B are synchronous. Here those of 1F1B are beside computing, too, or hold up both of their ranks: all between two computations together, or one by one (`hetsched-predict --sends`). What the paper measured, without telling of which experiment, lies in the range of these two, 1.37 to 2.26.

| | beside computing | `grouped` | `blocking` | paper |
| --- | --: | --: | --: | --: |""")
for exp in batches:
    say(hetauto_schedule(exp))
say("""
## What is not here

| figure | why |
| --- | --- |
| HARP, figure 8 | MoE models of 7B to 10B on setting 2 (`harp-setting2-cluster.json`): eight blocks with experts between eight without, of which hidden sizes, experts and vocabulary are not told. It has H-1F1B 1.14 to 1.20 times as fast as 1F1B, and Harp under 1F1B 1.63 to 1.75 times as fast as HexiScale |
| HARP, figure 10 (a), (b), (d) | the homogeneous clusters are not told; that of (c) follows from its 93 % of the peak |
| HARP, figure 11, transfers of one byte | its HexiScale sends one byte in place of tensors, and Harp does not: no command prices a model so |
| HARP, figure 13 (a), 8 and 16 layers | `--granularity` knows blocks and parts of blocks, not several blocks |
| HexiScale, figure 6, gradient accumulation | without it an iteration is one batch per update, whose size is not told |
| HexiScale, figures 4 and 5 | bars without numbers; what the text says of them stands above |
| HetAuto, figure 12 | curves of its search's exploration weight over wall-clock time on its machine: [our curves](hetauto.md) are over rollouts |""")
page.write_text("\n".join(out) + "\n")
