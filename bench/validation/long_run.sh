#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A training whose ranks are killed, stopped for a while and come again, at random moments, for as long as is asked: the first rank
# lives from beginning to end, and its memory, threads and files are not to grow. In the end the losses have to be those of one
# rank, undisturbed, bit for bit. Prints one line per look, and a summary. usage: long_run.sh HETSCHED-TRAIN [SECONDS [SEED]]
set -uo pipefail
train=$(realpath "$1") seconds=${2:-3600} RANDOM=${3:-1}
place=$(mktemp -d)
pids=()
end() { local p; for p in "${pids[@]}"; do kill -9 "$p"; done; wait; rm -rf "$place"; } 2>/dev/null
trap end EXIT
cd "$place" || exit 1
model=(--layers 2 --hidden 32 --heads 4 --sequence 32 --microbatches 4 --precision fp64)
run=(--transport gloo --store "file:$place/store" --checkpoint state --every 20 --keep 2 --elastic --settle 1.5 --deadline 10)
# come RANK OPTIONS...
come() {
  local name=$1
  shift
  "$train" "${model[@]}" --steps 10000000 "${run[@]}" "$@" >>"$name.out" 2>>"$name.err" &
  pids[$name]=$!
}
for r in 0 1 2; do RANK=$r WORLD_SIZE=3 LOCAL_RANK=$r come "$r" --losses losses.csv; done
first=${pids[0]}
rss() { awk '/^VmRSS/ {print $2}' "/proc/$first/status"; }
threads() { awk '/^Threads/ {print $2}' "/proc/$first/status"; }
files() { find "/proc/$first/fd" -mindepth 1 2>/dev/null | wc -l; }
steps() { tail -n 1 losses.csv 2>/dev/null | cut -d, -f1; }
# All three are there again, and steps are made.
whole() {
  local k before
  for ((k = 0; k < 600; ++k)); do
    kill -0 "$first" 2>/dev/null || return 1
    [[ $(grep -o 'rank 0 of [0-9]*' 0.err | tail -n 1) =~ ^$|of\ 3$ ]] && break
    sleep 0.1
  done
  before=$(steps)
  for ((k = 0; k < 600; ++k)); do [[ $(steps) != "$before" ]] && return 0; sleep 0.1; done
  return 1
}
kills=0 stops=0 looks=()
began=$SECONDS
until [[ -n $(steps) ]]; do kill -0 "$first" || exit 1; sleep 0.1; done
while ((SECONDS - began < seconds)); do
  whole || { echo "the training does not go on"; tail -n 3 ./*.err; exit 1; }
  looks+=("$(rss) $(threads) $(files)")
  echo "$((SECONDS - began)) s, step $(steps): ${looks[-1]} (KiB, threads, files)"
  sleep "$((RANDOM % 4)).$((RANDOM % 10))"
  victim=$((RANDOM % 2 + 1))
  if ((RANDOM % 3 == 0)); then
    kill -STOP "${pids[victim]}"
    sleep "0.$((RANDOM % 10))"
    kill -CONT "${pids[victim]}"
    ((++stops))
  else
    kill -9 "${pids[victim]}"
    wait "${pids[victim]}" 2>/dev/null
    ((++kills))
    come "$victim" --losses losses.csv --join
  fi
done
whole || { echo "the training does not go on"; exit 1; }
kill -TERM "$first"
for p in "${pids[@]}"; do wait "$p"; done
pids=()
last=$(steps)
echo "$((last + 1)) steps in $((SECONDS - began)) s, $kills ranks killed, $stops stopped"
failed=0
python3 - $((last + 1)) "${looks[@]}" <<'P' || failed=1
import statistics, sys
steps = int(sys.argv[1])
looks = [[int(n) for n in l.split()] for l in sys.argv[2:]]
part = max(1, len(looks) // 5)
# The training keeps its losses, 8 bytes each, in a list that doubles when it is full.
losses_kib = 16 * steps / 1024
for name, k, room, more in (("memory (KiB)", 0, 1.05, losses_kib), ("threads", 1, 1, 0), ("files", 2, 1, 0)):
    # The first look is before the first loss of a rank: what only losing one needs is not there yet.
    early, late = (statistics.median(l[k] for l in some) for some in (looks[1:part + 1] or looks, looks[-part:]))
    print(f"{name}: {early:g} in the first fifth, {late:g} in the last")
    if late > room * early + more:
        print(f"{name} grow")
        sys.exit(1)
P
"$train" "${model[@]}" --steps $((last + 1)) --ranks 1 --losses one.csv >/dev/null 2>&1
cmp losses.csv one.csv && echo "the losses are those of one rank, undisturbed" || failed=1
exit $failed
