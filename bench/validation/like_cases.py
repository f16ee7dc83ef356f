#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes from docs/accuracy/ what summaries say of like cases: writes the tables in like_cases.ipp and docs/how-sure.md.

usage: like_cases.py [--check]     --check: both have to be as they are.
Status 1 if one differs, or a page lacks a line.
"""
import pathlib, re, sys

root = pathlib.Path(__file__).resolve().parents[2]
COMMANDS = "through-the-commands"

# Which lines of which page are like which costs: basis, stack, what they are, page, lines
GROUPED = ("megatron",)  # stacks whose rows on that page are iterations with grouped sends

CASES = [
    ("datasheets", "hetsched", "iterations on one H100 or H200", COMMANDS,
     ["All of these in bf16 without `--stack`", "All of these under autocast without `--stack`"]),
    ("datasheets", "hetsched", "iterations of plans of HARP and HexiScale", COMMANDS,
     ["HARP Table 2, eight plans, all recomputed (hetsched)", "HexiScale Table 3, 16 and 32 A800 (hetsched)",
      "HexiScale Table 3, unlike GPUs on slow links (hetsched)"]),
    ("datasheets", "hetsched", "layers on seven unlike GPUs", "sailor-layers-in-training-on-seven-gpus", ["**all**"]),
    ("datasheets", "megatron", "iterations on 8 to 2,240 A100", COMMANDS,
     ["Megatron-LM on A100, SC'21 Tables 1 and 2, 32 to 2,240 GPUs (`megatron`)",
      "Megatron-LM on A100, Korthikanti Table 5, 8 and 512 GPUs (`megatron`)"]),
    ("datasheets", "megatron", "iterations on 16 A100, H20 and Ascend A2", COMMANDS,
     ["HetAuto Table 1, 16 A100, H20 and Ascend A2, all recomputed (`megatron`)"]),
    ("datasheets", "fsdp", "iterations on one H100 or H200", COMMANDS,
     ["All of these in bf16 as `fsdp`"]),
    ("datasheets", "ddp", "iterations on one H100 or H200", COMMANDS,
     [f"{device}: iterations of {model} under autocast (`ddp`), {day}"
      for device, model, day in (("H100-SXM5-80GB", "GPT-2", "2026-11-27"), ("H100-SXM5-80GB", "GPT-2", "2026-11-28"),
                                 ("H100-SXM5-80GB", "Llama", "2026-11-28"), ("H200-SXM", "GPT-2", "2026-11-28"),
                                 ("H200-SXM", "Llama", "2026-11-28"))]),
    ("datasheets", "llm-foundry of 2023", "iterations on 8 to 512 A100 and H100", COMMANDS,
     [f"MPT on {device}, 8 to 512 GPUs (llm-foundry's stack)" for device in ("H100-SXM5-80GB", "A100-SXM4-80GB", "A100-SXM4-40GB")]),
    ("datasheets", "inference", "products and attention on one H100", COMMANDS,
     ["H100: products of bf16", "H100: products of fp8", "H100: attention of a token over a cache, FlashAttention-2"]),
    ("calibrated", "", "products on seven GPUs", "calibrated-on-twenty-products", ["**all**"]),
    ("calibrated", "", "vector operators on six GPUs", "calibrated-on-twenty-vector-operators", ["**all**"]),
    ("profile", "", "iterations on GH200 and mixed RTX nodes", "sailor-whole-iterations-on-gh200-and-mixed-rtx-nodes", ["**all**"]),
]


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def line_of(name, line):
    """Cases, bias and mean, both in percent, of a line of a page."""
    heading = None
    for text in (root / f"docs/accuracy/{name}.md").read_text().splitlines():
        if not text.startswith("|"):
            heading = None
        elif heading is None:
            heading = cells(text)
        elif cells(text)[0] == line and "rows" in heading:
            found = dict(zip(heading, cells(text)))
            return int(found["rows"]), *(float(found[key].rstrip(" %")) for key in ("bias", "mean"))
    sys.exit(f"docs/accuracy/{name}.md has no line {line}")


rows = []
for basis, stack, what, name, lines in CASES:
    found = [line_of(name, line) for line in lines]
    cases = sum(n for n, _, _ in found)
    bias, mean = (sum(f[0] * f[i] for f in found) / cases for i in (1, 2))
    rows.append((basis, stack, what, cases, bias, mean, name))



def between(path, begin, lines, end):
    """The file with these lines between its line `begin` and its line `end`."""
    text = path.read_text()
    before, rest = text.split(begin + "\n", 1)
    return before + begin + "\n" + "".join(line + "\n" for line in lines) + rest[rest.index(end + "\n"):]


library, page = root / "include/hetsched/cost/models/like_cases.ipp", root / "docs/how-sure.md"
made = {
    library: between(library, "      // clang-format off",
                     [f'      {{cost_basis::{basis}, "{stack}", "{what}", {cases}, {bias / 100:.4f}, {mean / 100:.4f}, "{name}"'
                      + (", send_mode::grouped}," if stack in GROUPED else "},")
                      for basis, stack, what, cases, bias, mean, name in rows], "      // clang-format on"),
    page: between(page, "<!-- like cases -->",
                  ["", "| costs rest on | stack | like cases | bias | mean | page |", "| --- | --- | --- | ---: | ---: | --- |"] +
                  [f"| {basis} | {f'`{stack}`' if stack else 'any'} | {cases} {what}{', with grouped sends' if stack in GROUPED else ''} | {bias:+.1f} % | {mean:.1f} % | [page](accuracy/{name}.md) |"
                   for basis, stack, what, cases, bias, mean, name in rows] + [""], "<!-- /like cases -->")}
wrong = [path for path, text in made.items() if path.read_text() != text]
if "--check" not in sys.argv:
    for path in wrong:
        path.write_text(made[path])
elif wrong:
    sys.exit("not what the accuracy pages say; run bench/validation/like_cases.py: " + ", ".join(str(p.relative_to(root)) for p in wrong))
print("like cases as the pages say")
