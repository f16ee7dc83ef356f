#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What becomes of the others when one of three ranks over MPI is killed, is stopped, or does not come: usage faults.sh PROGRAM MPIEXEC OPTION...
# Prints what happened, and how many seconds it took.
set -uo pipefail
program=$1
shift
work=$(mktemp -d)
victim=
trap '[[ -z $victim ]] || kill -KILL "$victim" 2>/dev/null; rm -rf "$work"' EXIT
failures=0

fault() { # fault NAME SIGNAL RANK [CASE]: what the ranks print is in $work/out and $work/err then
  local name=$1 signal=$2 rank=$3 what=${4:-mpi: steps without end} starter start
  : >"$work/out"
  "${mpiexec[@]}" 3 "$program" --no-skip --no-colors --test-case="$what" >"$work/out" 2>"$work/err" &
  starter=$!
  for ((i = 0; i < 600; ++i)); do
    (($(grep -ac 'is process' "$work/out") == 3)) && break
    sleep 0.1
  done
  victim=$(sed -n "s/.*rank $rank is process \([0-9]*\).*/\1/p" "$work/out")
  [[ -n $victim ]] || { echo "the ranks did not begin"; cat "$work/out" "$work/err"; kill $starter; return 1; }
  start=$EPOCHREALTIME
  kill -"$signal" "$victim"
  wait $starter
  status=$?
  seconds=$(python3 -c "print(round($EPOCHREALTIME - $start, 1))")
  echo "$name: all have ended after $seconds s, status $status"
  grep -a 'was told' "$work/out"
  grep -av '^-*$' "$work/err" | head -n 12
  [[ -n ${4-} ]] || ((status != 0)) || { echo "$name: the starter has seen no failure"; return 1; }
  python3 -c "exit(not $seconds <= 30)" || { echo "$name: took longer than 30 s"; return 1; }
}

mpiexec=("$@")
fault "rank 1 is killed" KILL 1 || ((++failures))
# It is the starter that ends the others, and says so; in Open MPI's words, MPICH's or Slurm's.
grep -aqE 'signal 9|EXIT CODE: 9|Killed' "$work/out" "$work/err" || { echo "nobody said that a rank was killed"; ((++failures)); }
fault "rank 0 is stopped" STOP 0 || ((++failures))
# Who has waited for it in vain names it before all are ended.
grep -q 'rank [12] was told: .*ended, as rank 0 has not answered for a second' "$work/out" || { echo "nobody named rank 0"; ((++failures)); }
grep -q 'ends all ranks by MPI_Abort: ' "$work/err" || { echo "nobody said who ends all"; ((++failures)); }
"${mpiexec[@]}" 3 "$program" --no-skip --no-colors --test-case='mpi: a rank that does not come' >"$work/out" 2>"$work/err" && { echo "it was waited for"; ((++failures)); }
grep -q 'ends all ranks by MPI_Abort: not all of 3 ranks have come within 0.5' "$work/err" || { echo "nobody said that a rank has not come"; cat "$work/out" "$work/err"; ((++failures)); }
# Where MPI goes on without a rank (Open MPI from 5 on), the others name it, meet again without it, and end by themselves.
if "$program" --no-skip --list-test-cases | grep -q 'mpi: on without a rank'; then
  mpiexec=("$1" --with-ft ulfm "${@:2}")
  fault "rank 1 is killed, and MPI goes on" KILL 1 'mpi: on without a rank' || ((++failures))
  (($(grep -ac 'rank [02] was told: .*rank 1 was lost' "$work/out") == 2)) || { echo "not all were told who was lost"; ((++failures)); }
  (($(grep -ac 'rank [02] goes on' "$work/out") == 2)) || { echo "not all went on"; cat "$work/out" "$work/err"; ((++failures)); }
fi
exit $((failures > 0))
