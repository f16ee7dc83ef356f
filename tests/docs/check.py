#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that README.md, CONTRIBUTING.md and docs/*.md tell the truth: usage check.py CASE SOURCE BUILD CXX INCLUDES.

cpp       every ```cpp block compiles without a warning, all of them together; a program (it has a main) also runs, and prints the
          ```text block that follows it, if one does. Other blocks are declarations, or statements if they begin with "// ...".
json      every ```json block is accepted by the reader of its format.
console   every "$ command" of a ```console block prints what stands below it; a line "..." stands for any lines, and inside a line for any text.
          Lines of progress, which tell the seconds that a busy machine has taken, do not count.
          The name behind ```json or ```sh is the file that the commands find; all blocks of a page share one folder. Pages that
          make network namespaces have these for themselves; without root, these pages are skipped.
cmake     the first ```cmake block of README.md builds its first program, and the others one that only includes a header.
links     every relative link and #anchor leads somewhere.
examples  the example programs print what they are there to show.
tutorial  docs/tutorial.md from an empty folder, with its build, in less than fifteen minutes; only if asked for.
"""
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

case, source, build, cxx, includes = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], sys.argv[5]
pages = [source / "README.md", source / "CONTRIBUTING.md", source / "CHANGELOG.md", *sorted((source / "docs").glob("*.md"))]
commands = build / "examples"
flags = ["-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror"]
for directory in set(includes.split("|")) - {"", "/usr/include"}:
    flags += ["-I" if Path(directory).is_relative_to(source) else "-isystem", directory]
failures = 0


def fail(where, what):
    global failures
    failures += 1
    print(f"{where}: {what}")


def blocks(page):
    """(line, language, name, text) of every fenced block."""
    found, text = [], page.read_text()
    for m in re.finditer(r"^```(\w+)[ ]*([^\n]*)\n(.*?)^```$", text, re.M | re.S):
        found.append((text.count("\n", 0, m.start()) + 1, m[1], m[2].strip(), m[3]))
    return found


def compare(where, expected, printed):
    """Lines must agree; "..." stands for any number of lines, or inside a line for any text."""
    pattern = "\n".join(r"(?:.*\n)*?.*" if line.strip() == "..." else re.escape(line.rstrip()).replace(r"\.\.\.", ".*")
                        for line in expected)
    lines = [line.rstrip() for line in printed]
    while lines and not lines[-1]:
        lines.pop()
    if not re.fullmatch(pattern, "\n".join(lines)):
        fail(where, "prints something else:\n" + "\n".join(difflib.unified_diff(expected, lines, "shown", "printed", lineterm="")))


def workplace(page):
    """A folder with the files of a page, and those of the tree that its commands and programs name."""
    folder = Path(tempfile.mkdtemp(prefix="hetsched_docs_"))
    (folder / "examples").symlink_to(source / "examples")
    for _, language, name, text in blocks(page):
        if language in ("json", "sh") and name:
            (folder / name).write_text(text)
    return folder


def shell(script, folder, inside=()):
    path = f"{commands}:{os.environ['PATH']}"
    # Entering a namespace changes the folder.
    ran = subprocess.run([*inside, "bash", "-c", f"cd '{folder}'\n{script}"], cwd=folder, env={**os.environ, "PATH": path}, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return ran.returncode, ran.stdout


class own_hosts:
    """Where commands make network namespaces that nobody else sees, and that are gone at the end. `inside` is what to put before a
    command; none where namespaces cannot be made."""

    def __enter__(self):
        self.keeper = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", "mkdir -p /run/netns && mount -t tmpfs none /run/netns && echo here && exec sleep 3600"],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        there = self.keeper.stdout.readline().strip() == "here"
        self.inside = ["nsenter", f"--mount=/proc/{self.keeper.pid}/ns/mnt"] if there else None
        probe = "ip netns add probe && ip -n probe link add eth0 type veth peer name eth1 && " \
            "tc -n probe qdisc add dev eth0 root tbf rate 100mbit burst 16kb latency 50ms && ip netns del probe"
        if there and shell(probe, "/", self.inside)[0] != 0:
            self.inside = None
        return self

    def __exit__(self, *_):
        self.keeper.kill()
        self.keeper.wait()


def check_cpp():
    """Programs are compiled together, each in a namespace of its own, and called by number; that each compiles by itself is checked
    by packaging.alone."""
    folders, programs, includes, bodies, calls = [], [], {}, "", ""
    fragments = "#include <hetsched/hetsched.hpp>\n#include <hetsched/io.hpp>\n#include <hetsched/planners/find_inference_plan.hpp>\n#include <hetsched/planners/interop_dp.hpp>\n#include <hetsched/search.hpp>\n"
    count = 0
    for page in pages:
        folders.append(folder := workplace(page))
        found = blocks(page)
        for (line, language, _, text), following in zip(found, [*found[1:], (0, "", "", "")]):
            if language != "cpp":
                continue
            count += 1
            here = f'#line {line + 1} "{page.name}"\n'
            if "int main(" in text:
                includes.update(dict.fromkeys(re.findall(r"^#include .*$", text, re.M)))
                # Only main itself may end without saying what it returns.
                body = re.sub(r"\n}\s*\Z", "\nreturn 0;\n}\n", text.replace("int main(", "int program_main("))
                bodies += f"namespace program{count} {{\n{here}{body}}}\n"
                calls += f'  if (name == "{count}") return program{count}::program_main();\n'
                programs.append((f"{page.name}:{line}", count, following[3] if following[1] == "text" else None, folder))
            elif text.startswith("// ..."):
                fragments += f"void fragment{count}();\nvoid fragment{count}() {{\n{here}{text}}}\n"
            else:
                fragments += f"namespace fragment{count} {{\n{here}{text}}}\n"
    work = Path(tempfile.mkdtemp(prefix="hetsched_docs_"))
    folders.append(work)
    (work / "fragments.cpp").write_text(fragments)
    (work / "programs.cpp").write_text("\n".join(includes) + f"\n#include <string_view>\n{bodies}int main(int, char** argv) {{\n"
                                       f"  const std::string_view name = argv[1];\n{calls}  return 127;\n}}\n")
    # With what the build has compiled, where it has; docs.cmake builds a program that includes the definitions, too.
    library = [str(path) for name in ("_io", "") if (path := build / f"libhetsched_compiled{name}.a").exists()]
    mode = ["-DHETSCHED_COMPILED"] if library else []
    with ThreadPoolExecutor(2) as pool:
        built = list(pool.map(lambda options: subprocess.run([cxx, *flags, *mode, *options], cwd=work, text=True, capture_output=True),
                              [["-o", "programs", "programs.cpp", *library], ["-fsyntax-only", "fragments.cpp"]]))
    for name, ran in zip(("programs", "fragments"), built):
        if ran.returncode != 0:
            fail(name, "do not compile:\n" + ran.stderr)
    for where, number, expected, folder in programs if built[0].returncode == 0 else []:
        status, output = shell(f"'{work}/programs' {number}", folder)
        if status != 0:
            fail(where, f"ends with status {status}:\n{output}")
        if expected is not None:
            compare(where, expected.splitlines(), output.splitlines())
    drawn = [f / "timeline.svg" for f in folders if (f / "timeline.svg").exists()]
    if len(drawn) != 1 or drawn[0].read_text() != (source / "docs/timeline.svg").read_text():
        fail("docs/timeline.svg", "is not what the program in the docs draws")
    return count, folders


def check_json():
    count, folders = 0, []
    for page in pages:
        folders.append(folder := workplace(page))
        for line, language, name, text in blocks(page):
            if language != "json":
                continue
            count += 1
            file = folder / (name or "unnamed.json")
            file.write_text(text)
            ran = subprocess.run([build / "tests/docs/hetsched_read_json", file], text=True, capture_output=True)
            if ran.returncode != 0:
                fail(f"{page.name}:{line}", ran.stderr)
    return count, folders


def quickstart(folder):
    """The commands of quickstart.sh behind the build."""
    script = (source / "examples/quickstart.sh").read_text()
    _, _, rest = script.partition("exit 3; }\n")
    (folder / "quickstart-out").mkdir(exist_ok=True)
    (folder / "build").mkdir(exist_ok=True)
    return 'set -e; echo "Building the commands (about a minute); the log is build/quickstart/log.txt"\n' + \
        f"build='{build}' out=quickstart-out data=examples/data\n" + rest


def run_console(page, line, text, folder, inside=()):
    """Runs the commands of a block and compares what they print; returns how many there are."""
    status, count = 0, 0
    for command, shown in re.findall(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", text, re.M):
        where = f"{page.name}:{line}: {command}"
        shown = shown.rstrip().splitlines()
        count += 1
        if command == "bash tests/run.sh":
            if not re.fullmatch(r"\d+ passed, 0 failed(, \d+ skipped)?", shown[-1]):
                fail(where, "ends with something else")
            continue
        script = quickstart(folder) if command == "bash examples/quickstart.sh" else command
        status, output = shell(f"(exit {status}); {script}", folder, inside)
        compare(where, shown, [line for line in output.splitlines() if not re.match(r"\d+ s: ", line)])
    return count


def check_console():
    count, folders = 0, []
    for page in pages:
        folders.append(folder := workplace(page))
        found = [(line, text) for line, language, _, text in blocks(page) if language == "console"]
        if not any("ip netns add" in text for _, text in found):
            count += sum(run_console(page, line, text, folder) for line, text in found)
            continue
        with own_hosts() as hosts:
            if hosts.inside is None:
                print(f"{page.name}: skipped: network namespaces cannot be made here")
                continue
            count += sum(run_console(page, line, text, folder, hosts.inside) for line, text in found)
    return count, folders


def check_tutorial():
    """All blocks in order, with what git knows of the tree in a folder that is empty otherwise."""
    global commands
    page, start, count = source / "docs/tutorial.md", time.monotonic(), 0
    folder = Path(tempfile.mkdtemp(prefix="hetsched_docs_"))
    commands = folder / "build/examples"
    (folder / "hetsched").mkdir()
    subprocess.run(f"git ls-files -z | xargs -0 cp --parents -t {folder}/hetsched", cwd=source, shell=True, check=True)
    with own_hosts() as hosts:
        if hosts.inside is None:
            fail(page.name, "network namespaces cannot be made here")
        for line, language, name, text in blocks(page) if hosts.inside is not None else []:
            if name:
                (folder / name).write_text(text)
            elif language == "console":
                count += run_console(page, line, text, folder, hosts.inside)
            elif language == "sh":
                count += 1
                status, output = shell(f"set -e\n{text}", folder)
                if status != 0:
                    fail(f"{page.name}:{line}", output)
                print(f"{page.name}:{line}: done after {time.monotonic() - start:.0f} s")
    took = time.monotonic() - start
    print(f"the tutorial took {took:.0f} s")
    if took > 900:
        fail(page.name, "takes longer than fifteen minutes")
    return count, [folder]


def check_cmake():
    page = source / "README.md"
    folder = workplace(page)
    program = next(text for _, language, _, text in blocks(page) if language == "cpp")
    lean = "#include <hetsched/core/error.hpp>\nint main() {}\n"
    found = [text for _, language, _, text in blocks(page) if language == "cmake"]
    install = ["cmake", "--install", build, "--prefix", folder / "prefix"]
    subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
    for i, text in enumerate(found):
        project = folder / f"project{i}"
        project.mkdir()
        (project / "hetsched").symlink_to(source)
        (project / "main.cpp").write_text(program if i == 0 else lean)
        (project / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(demo LANGUAGES CXX)\nadd_executable(trainer main.cpp)\n" + text)
        configure = f"cmake -S . -B build -DCMAKE_CXX_COMPILER='{cxx}' -DCMAKE_PREFIX_PATH='{folder}/prefix'"
        status, output = shell(f"{configure} && cmake --build build && cd '{folder}' && '{project}/build/trainer'", project)
        if status != 0:
            fail(f"README.md: cmake block {i + 1}", output)
    return len(found), [folder]


def anchors(page):
    """GitHub's names of the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.M)}


def check_links():
    count = 0
    for page in pages:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
        if re.search(r"^(<{7}|>{7}) ", text, re.M):
            fail(page.name, "holds both sides of a merge")
        for target in re.findall(r"\]\(([^)]+)\)", text):
            if "://" in target:
                continue
            count += 1
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists():
                fail(page.name, f"leads nowhere: {target}")
            elif anchor and anchor not in anchors(file):
                fail(page.name, f"no such heading: {target}")
    return count, []


def check_examples():
    def run(name):
        status, output = shell(name, source)
        if status != 0:
            fail(name, f"ends with status {status}:\n{output}")
        return output

    planned = run("own-cost-model")
    if "fused pairs cut apart: 0" not in planned or not all(f"x {name}" in planned for name in ("a100", "t4")):
        fail("own-cost-model", "should use both kinds of machine and cut no fused pair:\n" + planned)

    compared = run("compare-warmups")
    rows = {m[1].strip(): [float(x) for x in m[2].split()]
            for m in re.finditer(r"^(.+?)((?:\s+[\d.]+){4}) %$", compared, re.M)}
    try:
        period, makespan, in_flight, bubble = zip(*(rows[name] for name in ("exact", "h1f1b, tolerance 0", "1f1b", "exact, at most 10")))
        holds = period[0] == period[1] == 1 < period[3] < period[2] and in_flight[3] < in_flight[0] < in_flight[1] and \
            min(makespan) >= 1 and bubble[0] < bubble[2]
    except KeyError:
        holds = False
    if not holds:
        fail("compare-warmups", "exact warm-ups should reach the best period with fewer microbatches in flight:\n" + compared)

    averaged = run("averaged-weights")
    losses = [float(x) for x in re.findall(r"([\d.]+) by", averaged)]
    if len(losses) != 2 or not losses[1] < losses[0] / 3:
        fail("averaged-weights", "the average should be far less noisy than the last weights:\n" + averaged)
    return 3, []


count, folders = {"cpp": check_cpp, "json": check_json, "console": check_console, "cmake": check_cmake, "links": check_links,
                  "examples": check_examples, "tutorial": check_tutorial}[case]()
for used in folders:
    shutil.rmtree(used)
print(f"{count} checked, {failures} wrong")
sys.exit(failures > 0 or count == 0)
