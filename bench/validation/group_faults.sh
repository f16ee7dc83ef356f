#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Kills ranks of trainings whose stages are groups of processes, and resumes them: hetsched-train over Gloo, checkpoints every
# two steps, kill -9 of a random rank of a group at a random moment. The others have to end with status 3 within 30 s, naming the
# rank that was lost; the losses and the last checkpoint of the training that goes on have to be, bit for bit, those of one that
# nothing happened to. Prints a markdown table of all kills and a line of figures; status 1 if anything is not as it has to be.
#   bash bench/validation/group_faults.sh --program FILE [--kills 20] [--seed 7]
set -eu -o pipefail

program="" kills=20 seed=7
while [ $# -gt 0 ]; do
  case $1 in
    --program) program=$(realpath "$2") && shift 2 ;;
    --kills) kills=$2 && shift 2 ;;
    --seed) seed=$2 && shift 2 ;;
    *) echo "group_faults.sh: there is no option $1" >&2 && exit 2 ;;
  esac
done
[ -x "$program" ] || { echo "group_faults.sh: --program FILE is required: hetsched-train, built with Gloo" >&2 && exit 2; }

exec 3>&2 # for what is wrong; bash tells of every kill besides
scratch=$(mktemp -d)
pids=()
end() {
  for p in "${pids[@]}"; do kill -9 "$p" 2> /dev/null || true; done
  rm -rf "$scratch"
}
trap end EXIT
cd "$scratch"
RANDOM=$seed

# Stages as data x tensor, in the order of the pipeline; four blocks, so layers 0 to 5.
shapes=("1x2 1x1" "1x1 1x2" "2x2 1x1" "1x1 2x2" "1x2 1x1 2x1")

plan() {  # plan SHAPE > plan.json: layers in equal parts, devices in order
  local stages=($1) text="" boundaries="" first=0 device=0 i
  for i in "${!stages[@]}"; do
    local d=${stages[i]%x*} t=${stages[i]#*x} last=$((6 * (i + 1) / ${#stages[@]}))
    text+="${text:+, }{\"layers\": [$first, $((last - 1))], \"degrees\": {\"data\": $d, \"tensor\": $t},
      \"devices\": [{\"subcluster\": \"local\", \"first_device\": $device, \"devices_per_node\": $((d * t))}]}"
    [ "$i" -eq 0 ] || boundaries+="${boundaries:+, }{\"forward_s\": 0, \"backward_s\": 0}"
    first=$last device=$((device + d * t))
  done
  printf '{"format": "hetsched/plan", "version": 2, "subclusters": [{"name": "local", "devices": %d}], "pipelines": [\n' "$device"
  printf ' {"microbatches": 4, "microbatch_size": 2, "schedule": {"name": "gpipe"}, "stages": [%s],
   "boundaries": [%s]}]}\n' "$text" "$boundaries"
}

ranks_of() {
  local stage n=0
  for stage in $1; do n=$((n + ${stage%x*} * ${stage#*x})); done
  echo "$n"
}

# The ranks of the stages of several devices.
members_of() {
  local stage n=0 size k
  for stage in $1; do
    size=$((${stage%x*} * ${stage#*x}))
    for ((k = 0; k < size; ++k)); do [ "$size" -eq 1 ] || echo $((n + k)); done
    n=$((n + size))
  done
}

start() {  # start NAME RANKS OPTIONS...: all ranks in the background; their ids in pids
  local name=$1 ranks=$2 r
  shift 2
  pids=()
  for ((r = 0; r < ranks; ++r)); do
    RANK=$r WORLD_SIZE=$ranks LOCAL_RANK=$r "$program" --layers 4 --hidden 32 --heads 4 --sequence 32 --plan plan.json \
      --transport gloo --store "file:store-$name" --every 2 --keep 2 "$@" > "$name-$r.out" 2> "$name-$r.err" &
    pids[r]=$!
  done
}

join() {  # join NAME: waits until all have ended well
  local r
  for r in "${!pids[@]}"; do
    wait "${pids[r]}" || { echo "group_faults.sh: $1: rank $r failed: $(tail -n 1 "$1-$r.err")" >&3 && exit 1; }
  done
  pids=()
}

now_ms() { echo $(($(date +%s%N) / 1000000)); }

newest() {
  local found
  found=$(find "$1" -maxdepth 1 -name 'step-??????' 2> /dev/null | sort | tail -n 1)
  [ -z "$found" ] && echo 0 || echo $((10#${found##*step-}))
}

bad=0 slowest=0 equal=0 told=0
echo "| stages (data x tensor) | killed | when | others ended after | resumed from step | as undisturbed |"
echo "| --- | --- | --- | --- | --- | --- |"
for ((i = 0; i < kills; ++i)); do
  shape=${shapes[i % ${#shapes[@]}]} ranks=$(ranks_of "${shapes[i % ${#shapes[@]}]}")
  members=($(members_of "$shape"))
  victim=${members[RANDOM % ${#members[@]}]}
  # Every fifth from the start of the processes on, while they meet and make their layers; the others while they train.
  early=$((RANDOM % 5 == 0)) after_ms=$((RANDOM % 1500))
  [ "$early" -eq 0 ] || after_ms=$((after_ms / 10))
  rm -rf state whole store-*
  plan "$shape" > plan.json
  start killed "$ranks" --steps 1000000 --checkpoint state
  if [ "$early" -eq 0 ]; then
    for ((k = 0; k < 6000; ++k)); do [ ! -d state/step-000004 ] || break && sleep 0.01; done
  fi
  sleep "$((after_ms / 1000)).$(printf %03d $((after_ms % 1000)))"
  begin=$(now_ms)
  kill -9 "${pids[victim]}" || true
  while [ -n "$(jobs -rp)" ] && [ $(($(now_ms) - begin)) -lt 60000 ]; do sleep 0.02; done
  took=$(($(now_ms) - begin))
  for p in $(jobs -rp); do kill -9 "$p"; done
  named=1
  for ((r = 0; r < ranks; ++r)); do
    status=0
    wait "${pids[r]}" 2> /dev/null || status=$?
    if [ "$r" -eq "$victim" ]; then continue; fi
    [ "$status" -eq 3 ] && grep -q "rank $victim\b" "killed-$r.err" || {
      named=0 && echo "kill $i: rank $r ended with status $status: $(tail -n 1 "killed-$r.err")" >&3
    }
  done
  pids=()
  [ "$took" -le "$slowest" ] || slowest=$took
  told=$((told + named))
  # What goes on, and what nothing happened to, end with the same step.
  from=$(newest state) steps=$(($(newest state) + 6))
  start resumed "$ranks" --steps "$steps" --checkpoint state --resume --losses resumed.csv
  join resumed
  start whole "$ranks" --steps "$steps" --checkpoint whole --losses whole.csv
  join whole
  same=yes
  cmp -s <(tail -n 6 whole.csv) <(tail -n +2 resumed.csv) && [ "$(wc -l < resumed.csv)" -eq 7 ] || same="no: losses"
  for part in "whole/step-$(printf %06d "$steps")"/part-*; do cmp -s "$part" "state/${part#whole/}" || same="no: checkpoint"; done
  if [ "$same" = yes ]; then equal=$((equal + 1)); fi
  if [ "$same" != yes ] || [ "$named" -ne 1 ] || [ "$took" -gt 30000 ]; then bad=1; fi
  moment=$([ "$early" -eq 1 ] && echo "$after_ms ms after the start" || echo "$after_ms ms after step 4")
  echo "| ${shape// /, } | rank $victim of $ranks | $moment | $took ms | $from | $same |"
done 2> /dev/null
echo
echo "$kills kills: the slowest end took $slowest ms; all named the cause after $told; resumed as undisturbed: $equal."
exit $bad
