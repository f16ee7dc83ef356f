#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two ranks over Gloo train while the second becomes slower by a factor of two: from step 30 on it is stopped half of the time, for
# 2 ms each. Layers move (--replan-layers). Prints the seconds of each five steps beside what was predicted for them.
# usage: slow_rank.sh HETSCHED-TRAIN [HIDDEN]
set -euo pipefail
train=$(realpath "$1") hidden=${2:-96}
place=$(mktemp -d)
trap 'kill "${brake:-}" 2>/dev/null || true; rm -rf "$place"' EXIT
cd "$place"
model=(--layers 8 --hidden "$hidden" --heads 4 --sequence 128 --microbatches 8 --steps 60)
for r in 0 1; do
  RANK=$r WORLD_SIZE=2 LOCAL_RANK=$r "$train" "${model[@]}" --transport gloo --store "file:$place/store" --log log.jsonl \
    --losses losses.csv --replan-every 5 --replan-layers >"$r.out" 2>"$r.err" &
  pids[$r]=$!
done
until [[ $(cat log.jsonl 2>/dev/null | wc -l) -ge 30 ]]; do sleep 0.01; done
echo "slowed after step $(wc -l <log.jsonl)"
while kill -STOP "${pids[1]}" 2>/dev/null; do sleep 0.002; kill -CONT "${pids[1]}"; sleep 0.002; done &
brake=$!
wait "${pids[0]}" "${pids[1]}"
grep -hE "layers move|works in another order|an iteration takes" 0.err || echo "nothing changed"
python3 - <<'P'
import json, statistics
seconds = [json.loads(l)["ranks"] for l in open("log.jsonl")]
span = [max(r["span_s"] for r in ranks) for ranks in seconds]
for first in range(0, len(span), 5):
    part = span[first:first + 5]
    print(f"steps {first:2d} to {first + len(part) - 1:2d}: median {statistics.median(part) * 1e3:.1f} ms, {min(part) * 1e3:.1f} to {max(part) * 1e3:.1f}")
P
"$train" "${model[@]}" --ranks 1 --losses one.csv >/dev/null 2>&1
cmp losses.csv one.csv && echo "the losses are those of one rank, undisturbed"
