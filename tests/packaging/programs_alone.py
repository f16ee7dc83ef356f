#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles every source of the programs by itself, as far as types go: tests build them together, where one's #include may
serve another. usage: programs_alone.py COMPILE_COMMANDS FOLDER
"""
import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

folder = Path(sys.argv[2]).resolve()
jobs = [j for j in json.loads(Path(sys.argv[1]).read_text()) if Path(j["file"]).is_relative_to(folder)]


def check(job):
    words = shlex.split(job["command"])
    for option in ("-o", "-MF", "-MT"):
        if option in words:
            del words[words.index(option):words.index(option) + 2]
    words = [w for w in words if w != "-MD"]
    ran = subprocess.run([*words, "-fsyntax-only"], cwd=job["directory"], text=True, capture_output=True)
    return f"{job['file']}:\n{ran.stderr}" if ran.returncode != 0 else None


with ThreadPoolExecutor(int(os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", 2))) as pool:
    wrong = [text for text in pool.map(check, jobs) if text]
print("\n".join(wrong) or f"{len(jobs)} sources, no error")
sys.exit(1 if wrong or not jobs else 0)
