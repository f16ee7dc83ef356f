#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two ranks, a stage each: what the plan of a measured profile says of an iteration against the median of 50 steps, on threads or over
# sockets, and what the difference is due to. usage: predicted.sh FOLDER-OF-COMMANDS threads|gloo
# On a machine that others use, `chrt -f 3` in front gives it both cores for the two seconds that it takes.
set -euo pipefail
commands=$(realpath "$1") how=${2:-threads}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
model=(--layers 4 --hidden 96 --heads 4 --sequence 64 --untied)
# on_both COMMAND OPTIONS...
on_both() {
  local r
  if [[ $how == threads ]]; then
    "$@" >out 2>&1 || { tail -n 3 out; exit 1; }
    return
  fi
  for r in 0 1; do RANK=$r WORLD_SIZE=2 LOCAL_RANK=$r "$@" --transport gloo --store "file:$place/store" >"$r.out" 2>&1 & done
  wait
}
ranks=()
[[ $how == threads ]] && ranks=(--ranks 2)
on_both "$commands/hetsched-profile" "${model[@]}" "${ranks[@]}" --each-rank --repeats 25 --out-profile profile.json --out-cluster cluster.json --out-model model.json
"$commands/hetsched-plan" --profile profile.json --cluster cluster.json --model model.json --global-batch 16 --microbatch-size 1 \
  --use-all-devices --planner interop_dp --out plan.json >/dev/null 2>&1
on_both "$commands/hetsched-train" "${model[@]}" --plan plan.json --steps 53 --trace-steps 50 --trace measured.json
"$commands/hetsched-compare-timeline" --plan plan.json --measured measured.json
uptime
