#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the templates that clang instantiates for a file which only includes a front door, and holds them against a budget.
Counts do not depend on the machine or its load, unlike seconds (bench/compile_time.sh). Exit status 77: no clang 16 or later.

usage: instantiations.py CLANG INCLUDE_FOLDER [-DMACRO...] [HEADER=MOST...]   without budgets: prints the counts
"""
import json
import pathlib
import subprocess
import sys
import tempfile


def count(clang, include, options, header):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "door.cpp").write_text(f"#include <{header}>\n")
        subprocess.run([clang, "-std=c++20", f"-I{include}", *options, "-c", "-ftime-trace", "-ftime-trace-granularity=0", "door.cpp", "-o",
                        "door.o"], cwd=folder, check=True)
        events = json.loads((folder / "door.json").read_text())["traceEvents"]
    return sum(e["name"] in {"InstantiateClass", "InstantiateFunction"} for e in events)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    clang, include = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    if not clang:
        print("skipped: no clang 16 or later")
        sys.exit(77)
    over = False
    options = [argument for argument in sys.argv[3:] if argument.startswith("-D")]
    doors = [argument for argument in sys.argv[3:] if argument not in options] or sorted(f"hetsched/{p.name}" for p in (include / "hetsched").glob("*.hpp"))
    for door in doors:
        header, _, most = door.partition("=")
        found = count(clang, include, options, header)
        over = over or (most and found > int(most))
        print(f"{header}: {found} instantiations" + (f", at most {most}" if most else ""))
    sys.exit(1 if over else 0)


main()
