#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles the programs of bench/doors, each of which includes a door and makes one call, at -O2, and holds the kB of machine code
that come of it against budgets: 40 processor seconds per MB are what they cost to compile. Unlike seconds they do not depend on the
machine. Budgets are some 5 % above what there is (g++ 12).

usage: text_size.py [--all] CXX SOURCE   --all: every door in both modes, which takes minutes, and every budget
"""
import pathlib
import subprocess
import sys
import tempfile

COMPILED = {"costs": 20, "evaluate": 26, "interop_dp": 26, "parallel_pipelines": 26, "hexiscale": 26, "hetauto": 26, "placement": 26, "find_plan": 30, "io": 10}
HEADER_ONLY = {"evaluate": 420, "parallel_pipelines": 1010}
# Planners' doors compile the same of a user's cost model.
SHARE = {"compiled": ["costs", "evaluate", "find_plan", "io"], "header-only": ["evaluate"]}


def kilobytes(cxx, source, door, mode):
    with tempfile.TemporaryDirectory() as folder:
        object = pathlib.Path(folder) / "door.o"
        subprocess.run([cxx, "-std=c++20", "-O2", *mode, f"-I{source}/include", "-c", f"{source}/bench/doors/{door}.cpp", "-o", object], check=True)
        told = subprocess.run(["size", object], check=True, capture_output=True, text=True).stdout
    return int(told.splitlines()[1].split()[0]) / 1000


def main():
    everything = sys.argv[1:2] == ["--all"]
    if len(sys.argv) != 3 + everything:
        sys.exit(__doc__)
    cxx, source = sys.argv[1 + everything], pathlib.Path(sys.argv[2 + everything])
    over = False
    for name, mode, budgets in (("compiled", ["-DHETSCHED_COMPILED"], COMPILED), ("header-only", [], HEADER_ONLY)):
        for door in sorted(p.stem for p in (source / "bench/doors").glob("*.cpp")) if everything else SHARE[name]:
            found, most = kilobytes(cxx, source, door, mode), budgets.get(door)
            over = over or (most is not None and found > most)
            print(f"{name} {door}: {found:.0f} kB" + (f", at most {most}" if most else ""))
    sys.exit(1 if over else 0)


main()
