#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the #include lines below an include folder against the floors of the house; prints each violation.

usage: layering.py INCLUDE_FOLDER | layering.py --self-test
"""
import pathlib
import re
import sys
import tempfile

FLOORS = {"core": 0, "cluster": 1, "model": 1, "reshard": 2, "schedule": 2, "cost": 3, "plan": 4, "evaluate": 5, "search": 6, "planners": 7, "spmd": 7,
          "runtime": 8, "io": 9, "views": 9, "gloo": 9, "mpi": 9, "cuda": 9, "torch": 10, "cuda_check": 10, "hip": 10}
# The floors of wings, the folders inside a room; "" is the room's own folder. detail/ belongs to the folder that it lies in.
WINGS = {
    "cost": {"questions": 0, "memory": 1, "network": 1, "operators": 1, "models": 2},
    "io": {"": 0, "json": 1, "page": 1, "checkpoint": 2, "export": 2, "inventory": 2, "trace": 2},
    "runtime": {"tensor": 0, "device": 1, "communicator": 2, "layer": 2, "group": 3, "executor": 4, "spmd": 4, "": 1, "layout": 5, "trainer": 6,
                "inference": 7, "measure": 7},
    "schedule": {"": 0, "builders": 1, "check": 1, "simulate": 2, "search": 3},
}
UMBRELLA = {room for room, floor in FLOORS.items() if floor <= 5}
PLANNING = UMBRELLA | {"planners", "spmd"}
STRANGERS = {("cost", "schedule"), ("io", "planners"), ("io", "spmd")}  # the former does not know the latter, though it stands below
KERNEL = "interop_dp"  # the planner that others may build on
ALSO = {"placement": {"parallel_pipelines"}}  # whose search over rows of stages it takes
FRONT = {"table", "plan_request", "first_plan", "find_plan", "find_inference_plan", "what_if"}  # of planners/: what stands over all of them
HEAVY = {"iostream", "regex", "chrono", "random", "thread"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def room_of(path):
    """The room of a header named as in an #include: hetsched/plan/plan.hpp and hetsched/plan.hpp are both of room plan."""
    parts = re.sub(r"\.(hpp|ipp|cuh)$", "", path).split("/")
    return parts[1] if len(parts) > 1 else None


def planner_of(path):
    """The planner of a header below planners/: hetsched/planners/interop_dp/detail/search.hpp and hetsched/planners/interop_dp.hpp."""
    return re.sub(r"\.(hpp|ipp)$", "", path).split("/")[2]


def wing_of(path):
    """The wing of a header: hetsched/cost/models/detail/a.hpp is of models, hetsched/plan/a.hpp of no wing."""
    folders = [part for part in path.split("/")[2:-1] if part != "detail"]
    return folders[0] if folders else ""


def circle_among(arrows):
    """The arrows of a circle in a graph {from: {to: arrow}}; none: an empty list."""
    done, path = set(), []

    def visit(node):
        if node in path:
            round_trip = path[path.index(node):] + [node]
            return [arrows[a][b] for a, b in zip(round_trip, round_trip[1:])]
        if node in done:
            return []
        path.append(node)
        for other in sorted(arrows.get(node, {})):
            if found := visit(other):
                return found
        done.add(path.pop())
        return []

    for node in sorted(arrows):
        if found := visit(node):
            return found
    return []


def circles_below(files):
    """Circles between the wings of a room, and between headers. A definition file x.ipp and its x.hpp are one: where headers bring
    the definitions, a circle through them is one of headers."""
    headers, wings = {}, {}
    for name, text in files.items():
        for number, line in enumerate(text.splitlines(), 1):
            match = INCLUDE.match(line)
            if not match or match[2] not in files:
                continue
            place = f"{name}:{number}: includes {match[2]}"
            header, target = (re.sub(r"\.ipp$", ".hpp", file) for file in (name, match[2]))
            if header == target:
                continue
            headers.setdefault(header, {})[target] = place
            room = room_of(name)
            front_door = name == f"hetsched/{room}.hpp"
            if room == room_of(target) and wing_of(name) != wing_of(target) and room != "planners" and not front_door:
                wings.setdefault((room, wing_of(name)), {})[(room, wing_of(target))] = place
    for what, arrows in (("wings", wings), ("headers", headers)):
        circle = circle_among(arrows)
        if circle:
            yield f"a circle of {what}: " + "; ".join(circle)


def violations_of(name, text):
    room = room_of(name)
    umbrella = name == "hetsched/hetsched.hpp"
    if not umbrella and room not in FLOORS:
        yield f"{name}: no such room: {room}"
        return
    lines = text.splitlines()
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
        elif target == "hetsched/core/views.hpp" and room != "views":
            yield f"{place}: range-v3 belongs to component views"
        elif target.startswith("hetsched/"):
            other = room_of(target)
            if other not in FLOORS:
                yield f"{place}: no header includes the umbrella"
            elif umbrella:
                if other not in UMBRELLA:
                    yield f"{place}: the umbrella holds core to evaluate only"
            elif other != room and FLOORS[other] >= FLOORS[room]:
                yield f"{place}: {room} stands on floor {FLOORS[room]}, {other} on {FLOORS[other]}"
            elif other == room and target == f"hetsched/{room}.hpp":
                yield f"{place}: a room does not enter by its own front door"
            elif other == room and room in WINGS and wing_of(target) != wing_of(name) and name != f"hetsched/{room}.hpp":
                floors = WINGS[room]
                for wing in (wing_of(name), wing_of(target)):
                    if wing not in floors:
                        yield f"{place}: {room} has no wing {wing or '(its own folder)'}"
                        break
                else:
                    if floors[wing_of(target)] >= floors[wing_of(name)]:
                        yield f"{place}: wing {wing_of(name)} stands on floor {floors[wing_of(name)]} of {room}, {wing_of(target)} on {floors[wing_of(target)]}"
            elif (room, other) in STRANGERS:
                yield f"{place}: {room} and {other} do not know each other"
            elif room == other == "planners" and name != "hetsched/planners.hpp" and planner_of(name) not in FRONT and planner_of(target) not in {planner_of(name), KERNEL} | ALSO.get(planner_of(name), set()):
                yield f"{place}: of other planners, only {KERNEL} may be built on"
        elif target.startswith("range/v3/"):
            if name != "hetsched/core/views.hpp":
                yield f"{place}: range-v3 enters through hetsched/core/views.hpp"
        elif target.startswith(("Eigen/", "unsupported/Eigen/")):
            if name != "hetsched/runtime/eigen.hpp":
                yield f"{place}: Eigen enters through hetsched/runtime/eigen.hpp"
        elif target.startswith(("torch/", "ATen/", "c10/", "caffe2/")):
            if room != "torch":
                yield f"{place}: LibTorch belongs to component torch"
        elif target == "mpi.h":
            if room != "mpi":
                yield f"{place}: MPI belongs to component mpi"
        elif target.startswith("nlohmann/"):
            if room != "io":
                yield f"{place}: nlohmann/json belongs to io"
        elif target in HEAVY and (umbrella or room in PLANNING):
            yield f"{place}: too heavy for {room}"


def violations_below(folder):
    headers = sorted(p for p in folder.rglob("*") if p.suffix in {".hpp", ".ipp", ".cuh", ".h", ".inc"})
    if not headers:
        yield f"no headers below {folder}"
    files = {path.relative_to(folder).as_posix(): path.read_text() for path in headers}
    for name, text in files.items():
        yield from violations_of(name, text)
    yield from circles_below(files)


def self_test():
    head = "// SPDX-License-Identifier: Apache-2.0\n#pragma once\n"
    allowed = {
        "hetsched/plan/a.hpp": "#include <vector>\n#include <hetsched/plan/b.hpp>\n#include <hetsched/cost.hpp>\n",
        "hetsched/core/views.hpp": "#include <range/v3/view/zip.hpp>\n",
        "hetsched/views/a.hpp": "#include <hetsched/core/views.hpp>\n#include <hetsched/plan/plan.hpp>\n",
        "hetsched/runtime/eigen.hpp": "#include <Eigen/Core>\n",
        "hetsched/torch/a.hpp": "#include <torch/types.h>\n#include <hetsched/runtime/layer/a.hpp>\n",
        "hetsched/mpi/a.hpp": "#include <mpi.h>\n#include <hetsched/runtime/communicator/a.hpp>\n",
        "hetsched/io/json.hpp": "#include <nlohmann/json.hpp>\n#include <chrono>\n#include <hetsched/plan/plan.hpp>\n",
        "hetsched/cost.hpp": "#include <hetsched/cost/questions/concepts.hpp>\n",
        "hetsched/planners/a.hpp": "#include <hetsched/plan.hpp>\n#include <hetsched/planners/a/b.hpp>\n#include <hetsched/planners/interop_dp.hpp>\n",
        "hetsched/hetsched.hpp": "#include <hetsched/plan.hpp>\n",
        "hetsched/planners/find_plan.ipp": "#include <hetsched/planners/c.hpp>\n#include <hetsched/planners/table.hpp>\n",
        "hetsched/cost/models/b.hpp": "#include <hetsched/cost/network/b.hpp>\n",
        "hetsched/cost/network/b.hpp": "#include <hetsched/cost/questions/detail/b.hpp>\n",
        "hetsched/reshard/new/a.hpp": "#include <hetsched/reshard/old/b.hpp>\n",
        "hetsched/reshard/old/b.hpp": "",
        "hetsched/plan/b.hpp": "",
    }
    planted = [
        ("hetsched/cost/a.hpp", "#include <hetsched/schedule/pipeline.hpp>\n"),
        ("hetsched/gloo/a.hpp", "#include <mpi.h>\n"),
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
        ("hetsched/planners/a/b.hpp", "#include <hetsched/planners/find_plan.hpp>\n"),
        ("hetsched/model/a.hpp", "#include <range/v3/view/zip.hpp>\n"),
        ("hetsched/plan/a.hpp", "#include <hetsched/core/views.hpp>\n"),
        ("hetsched/io/a.hpp", "#include <hetsched/views/a.hpp>\n"),
        ("hetsched/runtime/layer/a.hpp", "#include <Eigen/Core>\n"),
        ("hetsched/runtime/layer/a.hpp", "#include <torch/types.h>\n"),
        ("hetsched/model/a.hpp", "#include <nlohmann/json_fwd.hpp>\n"),
        ("hetsched/schedule/a.hpp", "#include <thread>\n"),
        ("hetsched/hetsched.hpp", "#include <iostream>\n"),
        ("hetsched/cost/questions/a.hpp", "#include <hetsched/cost/models/b.hpp>\n"),
        ("hetsched/cost/memory/a.hpp", "#include <hetsched/cost/network/b.hpp>\n"),
        ("hetsched/cost/attic/a.hpp", "#include <hetsched/cost/questions/b.hpp>\n"),
        ("hetsched/plan/b.hpp", "#include <hetsched/plan/a.hpp>\n"),
        ("hetsched/plan/b.ipp", "#include <hetsched/plan/a.hpp>\n"),
        ("hetsched/reshard/old/a.hpp", "#include <hetsched/reshard/new/a.hpp>\n"),
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
