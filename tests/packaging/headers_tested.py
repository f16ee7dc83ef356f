#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every header has a test of its name: include/hetsched/a/b.hpp has tests/a/b_test.cpp, or says in its first lines
what tests it instead: "// Tested by tests/a/c_test.cpp." Front doors need none. Prints the headers without one.

usage: headers_tested.py SOURCE | headers_tested.py --self-test
"""
import collections
import pathlib
import re
import sys
import tempfile

FIRST_LINES = 6
ELSEWHERE = re.compile(r"^\s*//.*?\bTested by (tests/\S+?\.c(?:pp|u))\.\s*$")


def violations_of(source):
    headers = source / "include/hetsched"
    found = sorted(p for p in headers.rglob("*") if p.suffix in {".hpp", ".cuh"})
    if not found:
        yield None, f"no headers below {headers}"
    for path in found:
        inside = path.relative_to(headers)
        if len(inside.parts) == 1:
            continue  # a front door
        room = inside.parts[0]
        own = pathlib.Path("tests") / inside.parent / (inside.stem + "_test.cpp")
        named = [m[1] for line in path.read_text().splitlines()[:FIRST_LINES] if (m := ELSEWHERE.match(line))]
        for test in named:
            if not (source / test).is_file():
                yield room, f"include/hetsched/{inside}: there is no {test}"
        if not named and not (source / own).is_file():
            yield room, f"include/hetsched/{inside}: neither {own} nor a line \"// Tested by tests/....cpp.\""


def self_test():
    with tempfile.TemporaryDirectory() as name:
        source = pathlib.Path(name)

        def write(path, text=""):
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            (source / path).write_text(text)

        head = "// SPDX-License-Identifier: Apache-2.0\n#pragma once\n"
        write("include/hetsched/a.hpp")
        write("include/hetsched/a/own.hpp", head)
        write("include/hetsched/a/wing/own.hpp", head)
        write("include/hetsched/a/other.hpp", head + "// Tested by tests/a/own_test.cpp.\n")
        write("tests/a/own_test.cpp")
        write("tests/a/wing/own_test.cpp")
        wrong = [f"not allowed: {text}" for _, text in violations_of(source)]
        planted = [
            ("a/none.hpp", head),
            ("a/wing/other.hpp", head),
            ("b/own.hpp", head),
            ("a/lost.hpp", head + "// Tested by tests/a/lost_test.cpp.\n"),
            ("a/late.hpp", head + "\n" * FIRST_LINES + "// Tested by tests/a/own_test.cpp.\n"),
            ("a/said.hpp", head + "// Tested by its neighbours.\n"),
        ]
        for path, text in planted:
            write("include/hetsched/" + path, text)
            if len(list(violations_of(source))) != 1:
                wrong.append(f"not found, or not exactly once: {path}: {text!r}")
            (source / "include/hetsched" / path).unlink()
        return wrong


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--self-test":
        found = self_test()
    else:
        rooms, found = collections.Counter(), []
        for room, text in violations_of(pathlib.Path(sys.argv[1])):
            rooms[room] += 1
            found.append(text)
        found += [f"{room}: {count} without a test" for room, count in rooms.items()]
    print("\n".join(found) or "no violations")
    sys.exit(1 if found else 0)


main()
