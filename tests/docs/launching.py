#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the lines of docs/launching.md and examples/launch/: usage launching.py SOURCE COMMANDS.

Each line trains on its eight ranks as it stands there, but that its hosts are this one and /shared is a folder, and has the losses
of one process. A launcher that is not installed has a stand-in: this script under the launcher's name, which takes the options
that the line uses and no others, and starts processes with the variables that the launcher sets. Lines of MPI are run where the
commands have it, and the manifest of Kubernetes where there are PyYAML and redis-server; what is not run is printed.
"""
import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOLD = re.compile(r"^(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_\w+|TORCHELASTIC_\w+|OMPI_\w+|PMIX?_\w+|MPI_\w+|FLUX_\w+|SLURM_\w+|JOB_COMPLETION_INDEX)$")


def made(folder):
    """Whether this process, and no other, has made it."""
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


def start_all(ranks, variables, command):
    """Processes of a launcher, with variables(rank); ends as the first that fails does."""
    started = [subprocess.Popen(command, env={**os.environ, **variables(r)}) for r in ranks]
    return max(abs(p.wait()) for p in started)


def stand_in(name, arguments):
    parse = argparse.ArgumentParser(prog=name, allow_abbrev=False)
    n = lambda *names: parse.add_argument(*names, type=int, required=True)
    text = lambda *names, **more: parse.add_argument(*names, **{"required": True, **more})
    if name == "ssh":
        # The other host's shell gets one text; it begins in a home folder and has none of this one's variables.
        parse.add_argument("-n", action="store_true", required=True)
        parse.add_argument("host", choices=["localhost"])
        parse.add_argument("command", nargs=argparse.REMAINDER)
        a = parse.parse_args(arguments)
        kept = {k: os.environ[k] for k in ("PATH", "LAUNCHING_LOSSES", "LAUNCHING_TRAIN") if k in os.environ}
        return subprocess.run(["bash", "-c", " ".join(a.command)], cwd=os.environ["HOME"], env=kept, stdin=subprocess.DEVNULL).returncode
    if name == "torchrun":
        parse.add_argument("--no-python", action="store_true", required=True)
        n("--nnodes"), n("--nproc-per-node"), text("--rdzv-backend", choices=["c10d"]), text("--rdzv-endpoint")
    elif name == "srun":
        n("-N"), n("--ntasks-per-node"), text("--mpi", choices=["pmix"], required=False)
    elif name == "mpiexec":
        n("-n"), n("-ppn"), text("-hosts")
    elif name == "flux":
        if arguments.pop(0) != "run":
            parse.error("only run")
        n("-N"), n("-n")
    else:
        n("-n"), text("-H")
        if name == "prterun":
            text("-x")
    parse.add_argument("command", nargs=argparse.REMAINDER)
    a = parse.parse_args(arguments)
    if name == "torchrun":
        # Its agents agree on who is first; here by who makes a folder.
        host, port = a.rdzv_endpoint.split(":")
        node = next(k for k in range(a.nnodes) if made(Path(f"agent-{k}")))
        first, each = node * a.nproc_per_node, a.nproc_per_node
        return start_all(range(first, first + each), lambda r: {
            "RANK": str(r), "WORLD_SIZE": str(each * a.nnodes), "LOCAL_RANK": str(r - first), "MASTER_ADDR": host, "MASTER_PORT": port,
            "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0", "LAUNCHING_STORE": os.path.abspath("agents")}, a.command)
    if name == "srun":
        each, ranks = a.ntasks_per_node, a.N * a.ntasks_per_node
        if a.mpi:
            return subprocess.run([os.environ["LAUNCHING_MPIRUN"], "-n", str(ranks), *a.command]).returncode
        told = lambda r: {"SLURM_PROCID": r, "SLURM_NTASKS": ranks, "SLURM_LOCALID": r % each, "SLURM_JOB_ID": 17, "SLURM_STEP_ID": 0,
                          "SLURM_NNODES": a.N, "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1"}
    elif name == "mpiexec":
        each, ranks = a.ppn, a.n
        if each * len(a.hosts.split(",")) < ranks:
            parse.error("too few places")
        told = lambda r: {"PMI_RANK": r, "PMI_SIZE": ranks, "MPI_LOCALRANKID": r % each}
    elif name == "flux":
        each, ranks = a.n // a.N, a.n
        told = lambda r: {"FLUX_TASK_RANK": r, "FLUX_JOB_SIZE": ranks, "FLUX_TASK_LOCAL_ID": r % each, "FLUX_JOB_ID": "f2Bx",
                          "PMI_RANK": r, "PMI_SIZE": ranks}
    else:
        places = [int(host.split(":")[1]) for host in a.H.split(",")]
        each, ranks = places[0], a.n
        if sum(places) < ranks:
            parse.error("there are not enough slots")
        if name == "mpirun":
            told = lambda r: {"OMPI_COMM_WORLD_RANK": r, "OMPI_COMM_WORLD_SIZE": ranks, "OMPI_COMM_WORLD_LOCAL_RANK": r % each,
                              "PMIX_NAMESPACE": "7@1", "PMIX_RANK": r}
        else:
            told = lambda r: {"PMIX_RANK": r, "PMIX_NAMESPACE": "prterun-host-7@1", **dict([a.x.split("=")])}
    return start_all(range(ranks), lambda r: {k: str(v) for k, v in told(r).items()}, a.command)


if Path(sys.argv[0]).name == "hetsched-train":  # what the lines do not say: a small model, two steps, where the losses go
    more = ["--store", "file:" + os.environ["LAUNCHING_STORE"]] if "LAUNCHING_STORE" in os.environ else []
    program, *model = os.environ["LAUNCHING_TRAIN"].split("|")
    os.execv(program, [program, *sys.argv[1:], *more, *model, "--losses", os.environ["LAUNCHING_LOSSES"]])
if Path(sys.argv[0]).name != "launching.py":
    sys.exit(stand_in(Path(sys.argv[0]).name, sys.argv[1:]))

source, commands = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
train = str(commands / "hetsched-train")
environment = {k: v for k, v in os.environ.items() if not TOLD.match(k)}
# A line of eight slots is no oversubscription to Open MPI, whose ranks would spin on the few cores that there are.
environment.update({"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
                    "OMPI_MCA_mpi_yield_when_idle": "1",
                    "PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"})
asked = subprocess.run([train, "--transport", "mpi", "--plan", "none.json"], env=environment, capture_output=True, text=True)
has_mpi = "built without MPI" not in asked.stderr and shutil.which("mpirun")
passed = failed = 0


def model_of(layers):
    """Of so many blocks and two layers more; a stage each."""
    return ["--layers", str(layers), "--hidden", "32", "--heads", "4", "--sequence", "32", "--steps", "2", "--connect-deadline", "60"]


def found(name, ran, expected):
    global passed, failed
    if ran == expected:
        passed += 1
    else:
        failed += 1
        print(f"{name}: FAILED: {ran}")


class Place:
    """A folder of a run: plan.json of one process's training of so many ranks, the launchers, /shared and a home."""

    def __init__(self, name, ranks):
        self.folder = Path(name) / "run"
        model = model_of(ranks - 2)
        for folder in ("bin", "shared", "home", "run"):
            (Path(name) / folder).mkdir()
        made = subprocess.run([train, *model, "--ranks", str(ranks), "--microbatches", "4", "--out-plan", str(self.folder / "plan.json"),
                               "--losses", str(self.folder / "expected.csv")], env=environment, capture_output=True, text=True)
        if made.returncode != 0:
            sys.exit(made.stderr)
        shutil.copy(self.folder / "plan.json", Path(name) / "shared")
        self.bin, self.shared = Path(name) / "bin", Path(name) / "shared"
        (self.bin / "hetsched-train").symlink_to(Path(__file__).resolve())
        self.environment = {**environment, "PATH": f"{self.bin}:{environment['PATH']}", "HOME": str(Path(name) / "home"),
                            "LAUNCHING_TRAIN": "|".join([train, *model]), "LAUNCHING_LOSSES": str(self.folder / "losses.csv"),
                            "LAUNCHING_MPIRUN": shutil.which("mpirun") or ""}

    def losses(self):
        written = self.folder / "losses.csv"
        return written.read_text() if written.exists() else ""

    def outcome(self, processes):
        """What there is to say of processes that have been started."""
        deadline, said = time.monotonic() + 240, []
        for p in processes:
            try:
                said.append((p.communicate(timeout=max(1, deadline - time.monotonic()))[1], p.returncode))
            except subprocess.TimeoutExpired:
                p.terminate()
                return "it takes too long: " + p.communicate()[1]
        if any(code for _, code in said):
            return f"status {[code for _, code in said]}: " + "".join(text for text, _ in said)
        return "the losses" if self.losses() == (self.folder / "expected.csv").read_text() else "other losses: " + self.losses()


def run_line(launcher, line, hosts):
    """A line of the page; `hosts`: on how many it is given."""
    with tempfile.TemporaryDirectory() as name:
        place = Place(name, 8)
        real = {"mpiexec": shutil.which("mpiexec.mpich"), "ssh": None}.get(launcher, shutil.which(launcher))
        (place.bin / launcher).symlink_to(real or Path(__file__).resolve())
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        line = re.sub(r"HOST(\d|\$\(\([^)]*\)\))?", "localhost", line).replace(":29500", f":{port}").replace("/shared", str(place.shared))
        begun = time.monotonic()
        ran = place.outcome([subprocess.Popen(["bash", "-c", line], cwd=place.folder, env=place.environment, stdin=subprocess.DEVNULL,
                                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(hosts)])
        return ran, f"{launcher}{'' if real else ', a stand-in'}, {time.monotonic() - begun:.1f} s"


def run_manifest(text, documents):
    """Says what is wrong with a manifest, or runs the pods of its job."""
    service, server, job = (next((d for d in documents if d["kind"] == kind), None) for kind in ("Service", "Pod", "Job"))
    if not (service and server and job and len(documents) == 3):
        return "there are not a service, a pod and a job"
    port = service["spec"]["ports"][0]["port"]
    if not service["spec"]["selector"].items() <= server["metadata"]["labels"].items():
        return "the service finds no pod"
    if server["spec"]["containers"][0]["ports"][0]["containerPort"] != port:
        return "the service has another port than its pod"
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    container = pod["containers"][0]
    told = {e["name"]: e["value"] for e in container["env"]}
    if spec["completionMode"] != "Indexed" or not spec["completions"] == spec["parallelism"] == int(told["WORLD_SIZE"]):
        return "the ranks are not all there at a time"
    if {m["name"] for m in container["volumeMounts"]} != {v["name"] for v in pod["volumes"]}:
        return "a volume is not mounted, or not there"
    with tempfile.TemporaryDirectory() as name, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        here = free.getsockname()[1]
        free.close()
        place = Place(name, spec["completions"])
        redis = subprocess.Popen(["redis-server", "--port", str(here), "--save", "", "--bind", "127.0.0.1"], stdout=subprocess.DEVNULL, cwd=name)
        try:
            mount = container["volumeMounts"][0]["mountPath"]
            meeting = f"{service['metadata']['name']}:{port}"
            command = [word.replace(meeting, f"127.0.0.1:{here}").replace(mount, str(place.shared)) for word in container["command"]]
            for _ in range(1000):
                with socket.socket() as one:
                    if one.connect_ex(("127.0.0.1", here)) == 0:
                        break
                time.sleep(0.05)
            return place.outcome([subprocess.Popen(command, cwd=name, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
                                                   env={**place.environment, **told, "JOB_COMPLETION_INDEX": str(r),
                                                        "HOSTNAME": f"{job['metadata']['name']}-{r}"}) for r in range(spec["completions"])])
        finally:
            redis.terminate()
            redis.wait()


page = (source / "docs/launching.md").read_text()
rows = [[cell.strip() for cell in row.split(" | ")] for row in re.findall(r"^\| (.*) \|$", page.split("\n## ")[0], re.M)][2:]
lines = [(line, "on each host" in cells[2]) for cells in rows for line in re.findall(r"`([^`]*hetsched-train [^`]*)`", cells[2])]
named = [re.match(r"(?:.*\bdo )?(\w+)", line)[1] for line, _ in lines]
found("the page's lines", sorted(set(named)), ["flux", "mpiexec", "mpirun", "prterun", "srun", "ssh", "torchrun"])
for launcher, (line, each_host) in zip(named, lines):
    if "--transport mpi" in line and not has_mpi:
        print(f"skipped: without MPI: {line}")
        continue
    ran, how = run_line(launcher, line, 2 if each_host else 1)
    print(f"{ran} ({how})" if ran == "the losses" else how)
    found(line, ran, "the losses")
# A line that is wrong fails.
for old, new in (("-n 8 ", "-n 7 "), ("-N 2 ", "--nodes-of-another 2 "), ("--store", "--shop"), ("plan.json", "plans.json")):
    line = next(line for line, _ in lines if line.startswith("flux"))
    found(f"{new}for {old}", run_line("flux", line.replace(old, new), 1)[0].startswith("status"), True)

manifest = (source / "examples/launch/kubernetes.yaml").read_text()
try:
    import yaml
except ImportError:
    yaml = None
if yaml and shutil.which("redis-server"):
    found("kubernetes.yaml", run_manifest(manifest, list(yaml.safe_load_all(manifest))), "the losses")
    for old, new in (('"4"', '"5"'), ("Indexed", "NonIndexed"), ("{ app: meeting } }\nspec", "{ app: other } }\nspec"), ("--store", "--shop")):
        found(f"{new} for {old}", run_manifest(manifest, list(yaml.safe_load_all(manifest.replace(old, new)))) == "the losses", False)
else:
    print("skipped: kubernetes.yaml, without PyYAML or redis-server")
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
