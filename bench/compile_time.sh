#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints what a door costs its user: processor seconds of compiling a program that includes it and makes one call (bench/doors) at -O2,
# how many times that is of <ranges>, <vector>, <string>, <algorithm> and <functional> together, measured in the same run, and kB of
# machine code; header-only and with hetsched::compiled, whose library is not counted. Then seconds of only including front doors.
# Budgets, in times: with hetsched::compiled 9 for every door; header-only 15 for evaluate, 30 for interop_dp, 50 for
# parallel_pipelines; included with hetsched::compiled 2.5 for the umbrella, 5 for the runtime, 6 for io and 3 for spmd.
# Usage: compile_time.sh [DOOR...], all by default. Ends with status 1 if a door is over its budget. Seconds depend on the machine and
# what else it does, kB do not: tests/packaging/text_size.py holds those against a budget.
set -uo pipefail
compiler=${CXX:-g++}
runs=${RUNS:-3}
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
export LC_ALL=C TIMEFORMAT='%U %S'
object=$(mktemp --suffix=.o)
trap 'rm -f "$object"' EXIT

seconds_of() { # seconds_of ARGUMENTS... : of compiling standard input, the median of runs
  local source
  source=$(cat)
  for ((i = 0; i < runs; ++i)); do
    time "$compiler" -std=c++20 -Iinclude "$@" -x c++ - <<<"$source"
  done 2>&1 | awk 'NF != 2 { print > "/dev/stderr"; next } { printf "%.2f\n", $1 + $2 }' | sort -n | sed -n "$(((runs + 1) / 2))p"
}
budget_of() { # budget_of KIND DOOR
  case $1/$2 in
    compiled/*) echo 9 ;;
    header-only/evaluate) echo 15 ;;
    header-only/interop_dp) echo 30 ;;
    header-only/parallel_pipelines) echo 50 ;;
    included/hetsched) echo 2.5 ;;
    included/runtime) echo 5 ;;
    included/io) echo 6 ;;
    included/spmd) echo 3 ;;
    *) echo - ;;
  esac
}
over=0
row() { # row KIND DOOR SECONDS STANDARD KB
  local times budget mark=
  times=$(awk "BEGIN { printf \"%.1f\", $3 / $4 }")
  budget=$(budget_of "$1" "$2")
  if [[ $budget != - ]] && awk "BEGIN { exit !($times > $budget) }"; then
    mark=' over'
    over=1
  fi
  printf '%-12s %-20s %8s %7s %7s %7s%s\n' "$1" "$2" "$3" "$times" "$budget" "$5" "$mark"
}

(($# > 0)) || mapfile -t doors < <(find bench/doors -name '*.cpp' -printf '%f\n' | sort | sed 's/\.cpp$//')
standard=$'#include <ranges>\n#include <vector>\n#include <string>\n#include <algorithm>\n#include <functional>'
base=$(seconds_of -O2 -c -o "$object" <<<"$standard")
printf 'standard headers: %s s\n%-12s %-20s %8s %7s %7s %7s\n' "$base" mode door seconds times budget kB
for mode in compiled header-only; do
  for door in "$@" "${doors[@]:-}"; do
    [[ $door ]] || continue
    define=()
    [[ $mode == compiled ]] && define=(-DHETSCHED_COMPILED)
    seconds=$(seconds_of -O2 "${define[@]}" -c -o "$object" <"bench/doors/$door.cpp")
    row "$mode" "$door" "$seconds" "$base" "$(size "$object" | awk 'NR == 2 { printf "%.0f", $1 / 1000 }')"
  done
done
(($# > 0)) && exit $over
base=$(seconds_of -fsyntax-only <<<"$standard")
for mode in -DHETSCHED_COMPILED -DHEADER_ONLY; do
  for door in hetsched schedule cost plan planners runtime io spmd; do
    kind=included
    [[ $mode == -DHEADER_ONLY ]] && kind=header-only
    row "$kind" "$door" "$(seconds_of -fsyntax-only "$mode" <<<"#include <hetsched/$door.hpp>")" "$base" ''
  done
done
exit $over
