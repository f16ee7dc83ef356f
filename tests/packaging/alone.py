#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles by itself, as far as types go: every public header with its definitions, every source of the programs and benchmarks,
and every program in the docs. Tests build many of them together, where one's #include may serve another. All of them read the
declarations alone of what they include, as users of the compiled library do; what compiles so compiles with the definitions, too.

With clang, a file is compiled on top of a precompiled one of the headers that it includes: it sees nothing but what it includes,
and costs little more than its own lines. What it lacks, g++ would lack too: both read the same standard library. Without clang,
the compiler reads everything anew for every file.

usage: alone.py SOURCE COMPILE_COMMANDS COMPILER CLANG_OR_EMPTY ROOM_LEFT_OUT...
       alone.py --self-test COMPILER CLANG_OR_EMPTY
"""
import functools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FLAGS = ["-std=c++20", "-O0", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror", "-DHETSCHED_COMPILED"]
INCLUDE = re.compile(r"^#include <(hetsched[/.][^>]+)>", re.M)


class checker:
    def __init__(self, include, compiler, clang, folder, left_out=()):
        self.include, self.compiler, self.clang, self.folder = include, compiler, clang, folder
        names = [str(path.relative_to(include)) for path in sorted(include.rglob("*.hpp"))]
        self.headers = {name: (include / name).read_text() for name in names
                        if not any(re.match(rf"hetsched/{room}[/.]", name) for room in left_out)}
        self.bases = []

    @functools.lru_cache(maxsize=None)
    def below(self, text):
        """The headers that a text includes, directly or not."""
        direct = [name for name in INCLUDE.findall(text) if name in self.headers]
        return frozenset(direct).union(*(self.below(self.headers[name]) for name in direct))

    @functools.lru_cache(maxsize=None)
    def saved(self, base):
        """Characters that need not be read again behind a base."""
        return sum(len(self.headers[name]) for name in {base} | self.below(self.headers[base]))

    def base(self, text):
        return max(self.below(text).intersection(self.bases), key=lambda name: (self.saved(name), name), default=None)

    def choose_bases(self, texts):
        """Takes the header that saves most, as long as it saves more than it costs."""
        best = dict.fromkeys(texts, 0)

        def gain(base):
            return sum(max(0, self.saved(base) - best[text]) for text in texts if base in self.below(text)) - self.saved(base)

        while self.clang and gain(most := max(self.headers, key=lambda name: (gain(name), name))) > 0:
            self.bases.append(most)
            for text in texts:
                if most in self.below(text):
                    best[text] = max(best[text], self.saved(most))

    def precompiled(self, header):
        return self.folder / (header.replace("/", "-") + ".pch")

    def compiled(self, name, text, options, whole, base, output):
        """What is wrong with a text, "" if nothing. Whole: with the templates that it instantiates."""
        source = self.folder / (re.sub(r"\W", "-", name) + (".in" if output == "/dev/null" else ".base"))
        source.write_text(text)
        command = [self.clang or self.compiler, *FLAGS, *options, f"-I{self.include}"]
        if base:
            command += ["-include-pch", self.precompiled(base)]
        if self.clang and not whole:
            command += ["-x", "c++-header", "-o", output, source]
        else:
            command += ["-fsyntax-only", "-x", "c++", source]
        ran = subprocess.run(command, text=True, capture_output=True)
        return f"{name}:\n{ran.stderr or ran.returncode}\n" if ran.returncode != 0 else ""

    def check(self, name, text, options=(), whole=False, below=None):
        base = self.base(below or text)
        # Clang may fail for its base; what counts is how it fares without.
        if base and not self.compiled(name, text, options, whole, base, "/dev/null"):
            return ""
        return self.compiled(name, text, options, whole, None, "/dev/null")

    def check_all(self, sources, pool):
        """Sources are (name, text, options, whether whole). Returns what is wrong, headers first."""
        def written(name):
            definitions = Path(name).with_suffix(".ipp")
            return f"#include <{name}>\n" + (f"#include <{definitions}>\n" if (self.include / definitions).is_file() else "")

        self.choose_bases([*self.headers.values(), *(text for _, text, _, _ in sources)])
        wrong = list(pool.map(lambda name: self.compiled(name, f"#include <{name}>\n", [], False, None, self.precompiled(name)),
                              self.bases))
        self.bases = [name for name, text in zip(self.bases, wrong) if not text]
        # On a base that the header includes itself: what its definitions include must not serve it.
        wrong += pool.map(lambda name: self.check(name, written(name), below=self.headers[name]),
                          [name for name in self.headers if name not in self.bases or written(name).count("\n") > 1])
        wrong += pool.map(lambda source: self.check(*source), sources)
        return wrong


def built(source, commands):
    """Programs, which are built elsewhere, and benchmarks, which are not, and so are compiled whole."""
    for job in json.loads(commands.read_text()):
        path = Path(job["file"])
        if any(path.is_relative_to(source / folder) for folder in ("examples", "bench")):
            words = shlex.split(job["command"])
            options = [word for word in words if re.match("-[ID]", word)]
            options += [word for at, word in enumerate(words) if "-isystem" in words[max(at - 1, 0):at + 1]]
            yield str(path.relative_to(source)), f'#line 1 "{path}"\n{path.read_text()}', [f"-iquote{path.parent}", *options], \
                path.parent == source / "bench"


def shown(source):
    """Programs in the docs."""
    for page in [source / "README.md", *sorted((source / "docs").glob("*.md"))]:
        text = page.read_text()
        for m in re.finditer(r"^```cpp[^\n]*\n(.*?)^```$", text, re.M | re.S):
            if "int main(" in m[1]:
                line = text.count("\n", 0, m.start()) + 2
                yield f"{page.name}:{line}", f'#line {line} "{page.name}"\n{m[1]}', \
                    ["-Wno-conversion", "-Wno-sign-conversion", "-Wno-shadow"], False  # what a reader would write


def self_test(compiler, clang):
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as pool:
        folder = Path(name)
        (folder / "hetsched/a").mkdir(parents=True)
        headers = {
            "sound": "#include <vector>\ninline std::vector<int> sound() { return {}; }\n",
            "upon": "#include <hetsched/a/sound.hpp>\ninline int upon() { return static_cast<int>(sound().size()); }\n",
            "lacks_standard": "inline std::vector<int> lacks_standard() { return {}; }\n",
            "lacks_other": "#include <vector>\ninline auto lacks_other() { return sound(); }\n",
            "lacks_one_of_two": "#include <hetsched/a/sound.hpp>\ninline int lacks_one_of_two() { return upon(); }\n",
            "upon_wrong": "#include <hetsched/a/lacks_other.hpp>\ninline int upon_wrong() { return 0; }\n",
            "warns": "inline int warns(long x) { return x; }\n",
            "defined": "int defined();\n#ifndef HETSCHED_COMPILED\n#include <hetsched/a/defined.ipp>\n#endif\n",
            "upon_defined": "#include <hetsched/a/defined.hpp>\ninline std::vector<int> upon_defined() { return {}; }\n",
            "defined_wrong": "int defined_wrong();\n#ifndef HETSCHED_COMPILED\n#include <hetsched/a/defined_wrong.ipp>\n#endif\n",
        }
        for name, line in (("defined", "#include <vector>\n"), ("defined_wrong", "")):
            (folder / f"hetsched/a/{name}.ipp").write_text(
                f"#pragma once\n{line}#include <hetsched/a/{name}.hpp>\ninline int {name}() {{ return std::vector<int>(1)[0]; }}\n")
        for header, text in headers.items():
            (folder / f"hetsched/a/{header}.hpp").write_text("#pragma once\n" + text)
        program = "#include <hetsched/a/upon.hpp>\nint main() { return %s; }\n"
        sources = [("sound.cpp", program % "upon()", [], False), ("lacks.cpp", program % "std::abs(1.5) > 1", [], False),
                   ("whole.cpp", program % "upon()", [], True)]
        expected = {f"hetsched/a/{name}.hpp" for name in set(headers) - {"sound", "upon", "defined"}} | {"lacks.cpp"}
        wrong = "".join(checker(folder, compiler, clang, folder).check_all(sources, pool))
        named = set(re.findall(r"^([\w/.]+):$", wrong, re.M))
        print(wrong if named != expected else f"{len(expected)} planted, all found")
        return int(named != expected)


def main():
    if sys.argv[1] == "--self-test":
        sys.exit(self_test(*sys.argv[2:4]))
    source, commands, compiler, clang, *left_out = sys.argv[1:]
    source = Path(source)
    with tempfile.TemporaryDirectory() as folder, \
            ThreadPoolExecutor(int(os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", os.cpu_count()))) as pool:
        alone = checker(source / "include", compiler, clang, Path(folder), left_out)
        sources = [*built(source, Path(commands)), *shown(source)]
        wrong = alone.check_all(sources, pool)
    print("".join(wrong) or f"{len(alone.headers)} headers and {len(sources)} sources, no error")
    sys.exit(1 if any(wrong) or not alone.headers or not sources else 0)


main()
