#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trainings on processes are killed, stopped, cut off, given a full disk, damaged checkpoints and strangers, at random moments. Each has to
# end within its deadline and 2 s with the true cause, and what goes on from its checkpoint has to have the losses of an
# undisturbed training, bit for bit. usage: trials.sh HETSCHED-TRAIN [TRIALS [SEED]]
set -uo pipefail
train=$(realpath "$1") trials=${2:-40} RANDOM=${3:-1}
place=$(mktemp -d)
mounted=
cables=(hscut${$}a hscut${$}b) cabled=
# Two ranks in network namespaces of their own, with one link between them.
lay_cable() {
  ip netns add "${cables[0]}" && ip netns add "${cables[1]}" &&
    ip link add cut${$}a netns "${cables[0]}" type veth peer name cut${$}b netns "${cables[1]}" || return 1
  cabled=1
  local k
  for k in 0 1; do
    ip -n "${cables[k]}" addr add 10.198.7.$((k + 1))/24 dev cut${$}$([[ $k == 0 ]] && echo a || echo b)
    ip -n "${cables[k]}" link set cut${$}$([[ $k == 0 ]] && echo a || echo b) up
    ip -n "${cables[k]}" link set lo up
  done
}
take_cable() { ip netns del "${cables[0]}"; ip netns del "${cables[1]}"; cabled=; } 2>/dev/null
end() { [[ -n $cabled ]] && take_cable; [[ -n $mounted ]] && umount "$mounted"; rm -rf "$place"; }
trap end EXIT
cd "$place" || exit 1
deadline=3
steps=200
model=(--layers 2 --hidden 32 --heads 4 --sequence 32 --microbatches 4 --precision fp64 --steps $steps)
"$train" "${model[@]}" --ranks 1 --losses whole.csv >/dev/null 2>&1 || exit 1

now() { date +%s%N; }
# start FOLDER RANKS OPTIONS...: fills pids
start() {
  local folder=$1 ranks=$2 r
  shift 2
  pids=()
  for ((r = 0; r < ranks; ++r)); do
    local there=()
    [[ -n $cabled ]] && there=(ip netns exec "${cables[r]}")
    RANK=$r WORLD_SIZE=$ranks LOCAL_RANK=$([[ -n $cabled ]] && echo 0 || echo "$r") "${there[@]}" "$train" "${model[@]}" --transport gloo --store "file:$folder/store" \
      --checkpoint "$folder/state" --deadline $deadline "$@" >"$folder/$r.out" 2>"$folder/$r.err" &
    pids+=($!)
  done
}
newest() { find "$1/state" -maxdepth 1 -name 'step-*' ! -name '*.*' -printf '%f\n' 2>/dev/null | sort | tail -1; }
# Waits until a checkpoint is there, and a moment more.
some_steps() {
  local k
  for ((k = 0; k < 3000; ++k)); do [[ -n $(newest "$1") ]] && break; sleep 0.01; done
  sleep "0.$((RANDOM % 4))$((RANDOM % 10))"
}
failed=0 worst=0
declare -A count
complain() { echo "trial $trial ($kind): $*"; tail -n 2 "$folder"/*.err; ((++failed)); }

for ((trial = 1; trial <= trials; ++trial)); do
  kinds=(kill kill stop cut disk damage strangers twice)
  kind=${kinds[RANDOM % ${#kinds[@]}]}
  count[$kind]=$((${count[$kind]:-0} + 1))
  folder=trial$trial ranks=$((RANDOM % 3 + 2))
  mkdir "$folder"
  victim=$((RANDOM % ranks)) cause="rank $victim"
  if [[ $kind == disk ]]; then
    mkdir "$folder/state"
    mount -t tmpfs -o size=3m none "$folder/state" 2>/dev/null && mounted=$folder/state || { echo "trial $trial: no right to mount, skipped"; continue; }
    cause="No space left"
  fi
  if [[ $kind == cut ]]; then
    ranks=2
    lay_cable 2>/dev/null || { echo "trial $trial: no right to make network namespaces, skipped"; continue; }
    cause="rank [01]"
  fi
  start "$folder" "$ranks" --every 3 --keep 100
  some_steps "$folder"
  began=$(now)
  case $kind in
    kill) kill -9 "${pids[victim]}" ;;
    twice) # two at once
      other=$(((victim + 1) % ranks))
      kill -9 "${pids[victim]}" "${pids[other]}"
      cause="rank ($victim|$other)" ;;
    stop) kill -STOP "${pids[victim]}" ;;
    cut) ip -n "${cables[0]}" link set cut${$}a down ;;
    damage) kill -9 "${pids[victim]}" ;;
    strangers) # while they run nobody listens; the ports of the ranks' connections are tried all the same
      ss -tlnpH 2>/dev/null | grep -q "pid=${pids[victim]}," && complain "rank $victim listens while it runs"
      kill -9 "${pids[victim]}" ;;
  esac
  for ((r = 0; r < ranks; ++r)); do
    [[ $kind == stop && $r == "$victim" ]] && continue
    wait "${pids[r]}"
    status=$?
    ended=$((($(now) - began) / 1000000))
    if [[ $kind == disk ]]; then
      ((status == 3)) || ((status == 0)) || complain "rank $r: status $status"
      continue
    fi
    ((status == 137)) && continue
    ((status == 0)) && continue # it was over before
    ((status == 3)) || complain "rank $r: status $status"
    grep -qE "$cause" "$folder/$r.err" || complain "rank $r does not name the cause"
    ((ended > worst)) && worst=$ended
    ((ended <= (deadline + 2) * 1000)) || complain "rank $r ended after $ended ms"
  done
  [[ $kind == stop ]] && { kill -9 "${pids[victim]}"; wait "${pids[victim]}"; } 2>/dev/null
  if [[ $kind == disk ]]; then
    grep -qhE "$cause" "$folder"/*.err || complain "nobody says that the disk is full"
    mount -o remount,size=60m "$mounted"
  fi
  if [[ $kind == damage && $(find "$folder/state" -maxdepth 1 -name 'step-*' ! -name '*.*' | wc -l) -gt 1 ]]; then
    last=$(newest "$folder")
    part=$(find "$folder/state/$last" -type f | sort | sed -n "$((RANDOM % 2 + 1))p")
    printf '\x55' | dd of="$part" bs=1 seek=$((RANDOM % $(stat -c %s "$part"))) conv=notrunc 2>/dev/null
  fi
  [[ -n $cabled ]] && take_cable
  # What is committed is not lost, and what goes on from it has the losses of the undisturbed.
  before=$(newest "$folder")
  start "$folder" $((RANDOM % 3 + 2)) --every 1000 --resume --losses "$folder/resumed.csv"
  for p in "${pids[@]}"; do wait "$p" || complain "it does not go on: status $?"; done
  first=$(sed -n 2p "$folder/resumed.csv" 2>/dev/null | cut -d, -f1)
  if [[ $kind != damage && -n $first && -n $before ]]; then
    ((first == 10#${before#step-})) || complain "went on at step $first, the newest checkpoint is $before"
  fi
  if [[ -n $first ]]; then
    diff <(sed 1d "$folder/resumed.csv") <(sed 1d whole.csv | tail -n +$((first + 1))) >/dev/null || complain "losses differ"
  fi
  [[ -n $mounted ]] && umount "$mounted" && mounted=
  rm -rf "$folder"
done
for k in "${!count[@]}"; do echo "$k: ${count[$k]}"; done
echo "$trials trials, $failed complaints; the last rank ended within $worst ms (deadline $deadline s)"
((failed == 0))
