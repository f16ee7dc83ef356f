#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The small GPT of LibTorch's modules on processes that Gloo or MPI connects: fifty steps under six schedules have the losses of
LibTorch alone to 1e-6, and the same bits: processes.cpp, which this compiles and starts, with the MPI of mpicxx (MPICXX and MPIRUN
name others), and with MPICH where Debian's stands beside it. The last line is "N passed, N failed"."""
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
TORCH = Path(torch.__file__).parent
MPIS = {"mpi": [shlex.split(os.environ.get(name, name.lower())) for name in ("MPICXX", "MPIRUN")]}
if shutil.which("mpicxx.mpich") and Path(shutil.which("mpicxx.mpich")).resolve() != Path(shutil.which(MPIS["mpi"][0][0])).resolve():
    MPIS["mpich"] = [["mpicxx.mpich"], ["mpirun.mpich"]]
# Open MPI starts no more ranks than there are processors, and none for root, unless told so.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def build(program, mpicxx):
    """Gloo comes before LibTorch, whose own Gloo is another one."""
    subprocess.run([*mpicxx, "-std=c++20", "-O1", "-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX",
                    f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}", "-I", HERE.parents[1] / "include",
                    "-isystem", TORCH / "include", "-isystem", TORCH / "include/torch/csrc/api/include", HERE / "processes.cpp",
                    "-lgloo", "-L", TORCH / "lib", f"-Wl,-rpath,{TORCH / 'lib'}", "-ltorch_cpu", "-lc10", "-lpthread", "-o",
                    program], check=True)


def output_of(started):
    """What they print, or why they failed."""
    printed = [p.communicate(timeout=600)[0] for p in started]
    codes = [p.returncode for p in started]
    return "".join(printed) if not any(codes) else f"FAILED: status {codes}\n" + "".join(printed)


def start(arguments, **variables):
    return subprocess.Popen([str(a) for a in arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            env={**ENVIRONMENT, **variables})


def main():
    passed = failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for name, (mpicxx, _) in MPIS.items():
            build(folder / name, mpicxx)
        for transport in ("gloo", *MPIS):
            for ranks in (2, 3, 4):
                if transport in MPIS:
                    text = output_of([start([*MPIS[transport][1], "-n", ranks, folder / transport, "mpi"])])
                else:
                    meeting = folder / f"meeting-{ranks}"
                    meeting.mkdir()
                    text = output_of([start([folder / "mpi", "gloo", meeting], RANK=str(r), WORLD_SIZE=str(ranks))
                                      for r in range(ranks)])
                told = re.search(r"^(\d+) passed, (\d+) failed$", text, re.MULTILINE)
                counts = (int(told[1]), int(told[2])) if told and "FAILED: status" not in text else (0, 1)
                if counts[1]:
                    print(text[-3000:])
                print(f"{transport} on {ranks} processes: {counts[0]} passed, {counts[1]} failed", flush=True)
                passed, failed = passed + counts[0], failed + counts[1]
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
