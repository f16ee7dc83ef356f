#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the #include lines below an include folder against the floors of the house; prints each violation.

usage: layering.py INCLUDE_FOLDER | layering.py --self-test
"""
import pathlib
import re
import sys
import tempfile

FLOORS = {"core": 0, "cluster": 1, "model": 1, "reshard": 2, "schedule": 2, "cost": 3, "plan": 4, "planners": 5, "spmd": 5, "runtime": 6, "io": 7, "gloo": 7,
          "cuda": 7}
UMBRELLA = {room for room, floor in FLOORS.items() if floor <= 4}
PLANNING = UMBRELLA | {"planners", "spmd"}
STRANGERS = {("cost", "schedule"), ("io", "planners"), ("io", "spmd")}  # the former does not know the latter, though it stands below
KERNEL = "interop_dp"  # the planner that others may build on
HEAVY = {"iostream", "regex", "chrono", "random", "thread"}
LONGEST = 600
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def room_of(path):
    """The room of a header named as in an #include: hetsched/plan/plan.hpp and hetsched/plan.hpp are both of room plan."""
    parts = path.removesuffix(".hpp").removesuffix(".cuh").split("/")
    return parts[1] if len(parts) > 1 else None


def planner_of(path):
    """The planner of a header below planners/: hetsched/planners/interop_dp/search.hpp and hetsched/planners/interop_dp.hpp."""
    return path.removesuffix(".hpp").split("/")[2]


def violations_of(name, text):
    room = room_of(name)
    umbrella = name == "hetsched/hetsched.hpp"
    if not umbrella and room not in FLOORS:
        yield f"{name}: no such room: {room}"
        return
    lines = text.splitlines()
    if len(lines) > LONGEST:
        yield f"{name}: {len(lines)} lines, at most {LONGEST}"
    if lines[:2] != ["// SPDX-License-Identifier: Apache-2.0", "#pragma once"]:
        yield f"{name}: does not begin with the SPDX line and #pragma once"
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, target = match.groups()
        place = f"{name}:{number}: includes {target}"
        if quote == '"':
            yield f"{place}: write <hetsched/...>"
        elif target.startswith("hetsched/"):
            other = room_of(target)
            if other not in FLOORS:
                yield f"{place}: no header includes the umbrella"
            elif umbrella:
                if other not in UMBRELLA:
                    yield f"{place}: the umbrella holds core to plan only"
            elif other != room and FLOORS[other] >= FLOORS[room]:
                yield f"{place}: {room} stands on floor {FLOORS[room]}, {other} on {FLOORS[other]}"
            elif other == room and target == f"hetsched/{room}.hpp":
                yield f"{place}: a room does not enter by its own front door"
            elif (room, other) in STRANGERS:
                yield f"{place}: {room} and {other} do not know each other"
            elif room == other == "planners" and planner_of(target) not in {planner_of(name), KERNEL}:
                yield f"{place}: of other planners, only {KERNEL} may be built on"
        elif target.startswith("range/v3/"):
            if name != "hetsched/core/views.hpp":
                yield f"{place}: range-v3 enters through hetsched/core/views.hpp"
        elif target.startswith("nlohmann/"):
            if room != "io":
                yield f"{place}: nlohmann/json belongs to io"
        elif target in HEAVY and (umbrella or room in PLANNING):
            yield f"{place}: too heavy for {room}"


def violations_below(folder):
    headers = sorted(p for p in folder.rglob("*") if p.suffix in {".hpp", ".cuh", ".h", ".inc"})
    if not headers:
        yield f"no headers below {folder}"
    for path in headers:
        yield from violations_of(path.relative_to(folder).as_posix(), path.read_text())


def self_test():
    head = "// SPDX-License-Identifier: Apache-2.0\n#pragma once\n"
    allowed = {
        "hetsched/plan/a.hpp": "#include <vector>\n#include <hetsched/plan/b.hpp>\n#include <hetsched/cost.hpp>\n",
        "hetsched/core/views.hpp": "#include <range/v3/view/zip.hpp>\n",
        "hetsched/io/json.hpp": "#include <nlohmann/json.hpp>\n#include <chrono>\n#include <hetsched/plan/plan.hpp>\n",
        "hetsched/cost.hpp": "#include <hetsched/cost/concepts.hpp>\n",
        "hetsched/planners/a.hpp": "#include <hetsched/plan.hpp>\n#include <hetsched/planners/a/b.hpp>\n#include <hetsched/planners/interop_dp.hpp>\n",
        "hetsched/hetsched.hpp": "#include <hetsched/plan.hpp>\n",
    }
    planted = [
        ("hetsched/cost/a.hpp", "#include <hetsched/schedule/pipeline.hpp>\n"),
        ("hetsched/core/a.hpp", "#include <hetsched/cluster.hpp>\n"),
        ("hetsched/schedule/a.hpp", "  #  include <hetsched/plan/plan.hpp>\n"),
        ("hetsched/plan/a.hpp", "#include <hetsched/io/json.hpp>\n"),
        ("hetsched/plan/a.hpp", "#include <hetsched/plan.hpp>\n"),
        ("hetsched/plan/a.hpp", "#include <hetsched/hetsched.hpp>\n"),
        ("hetsched/plan/a.hpp", '#include "b.hpp"\n'),
        ("hetsched/hetsched.hpp", "#include <hetsched/io.hpp>\n"),
        ("hetsched/hetsched.hpp", "#include <hetsched/planners/a.hpp>\n"),
        ("hetsched/cost/a.hpp", "#include <hetsched/schedule.hpp>\n"),
        ("hetsched/plan/a.hpp", "#include <hetsched/planners/a.hpp>\n"),
        ("hetsched/planners/a/b.hpp", "#include <hetsched/planners/c.hpp>\n"),
        ("hetsched/io/a.hpp", "#include <hetsched/planners/a.hpp>\n"),
        ("hetsched/model/a.hpp", "#include <range/v3/view/zip.hpp>\n"),
        ("hetsched/model/a.hpp", "#include <nlohmann/json_fwd.hpp>\n"),
        ("hetsched/schedule/a.hpp", "#include <thread>\n"),
        ("hetsched/hetsched.hpp", "#include <iostream>\n"),
        ("hetsched/plan/a.hpp", "\n" * 600),
        ("hetsched/garage/a.hpp", ""),
        ("hetsched/plan/a.hpp", None),
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)

        def write(path, text):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)

        for path, text in allowed.items():
            write(path, head + text)
        unexpected = list(violations_below(folder))
        missed = []
        for path, text in planted:
            before = (folder / path).read_text() if (folder / path).exists() else None
            write(path, "int x;\n" if text is None else head + text)
            if len(list(violations_below(folder))) != 1:
                missed.append(f"not found, or not exactly once, in {path}: {text!r:.80}")
            if before is None:
                (folder / path).unlink()
            else:
                write(path, before)
    return unexpected + missed


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    found = self_test() if sys.argv[1] == "--self-test" else list(violations_below(pathlib.Path(sys.argv[1])))
    print("\n".join(found) or "no violations")
    sys.exit(1 if found else 0)


main()
