#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints what every public header costs its includer: processor seconds of -fsyntax-only (median of 5), how many times that is of
# <ranges>, <vector>, <string>, <algorithm> and <functional> together, measured in the same run, and lines after preprocessing.
# Budgets: 2.5 times for the umbrella, 1.5 times for the doors of schedule, cost and plan.
# Usage: compile_time.sh [HEADER...], all headers by default. Ends with status 1 when a header is over its budget. Seconds depend
# on the machine; lines do not, nor do the counts of tests/packaging/instantiations.py.
set -uo pipefail
compiler=${CXX:-g++}
cd "$(dirname "${BASH_SOURCE[0]}")/../include" || exit 1
export LC_ALL=C TIMEFORMAT='%U %S'

budget_of() {
  case $1 in
    hetsched/hetsched.hpp) echo 2.5 ;;
    hetsched/schedule.hpp | hetsched/cost.hpp | hetsched/plan.hpp) echo 1.5 ;;
    *) echo - ;;
  esac
}
seconds_of() { # seconds_of SOURCE
  for _ in 1 2 3 4 5; do
    time "$compiler" -std=c++20 -I. -fsyntax-only -x c++ - <<<"$1"
  done 2>&1 | awk '{ printf "%.2f\n", $1 + $2 }' | sort -n | sed -n 3p
}

standard=$(seconds_of $'#include <ranges>\n#include <vector>\n#include <string>\n#include <algorithm>\n#include <functional>')
over=0
printf 'standard headers: %s s\n%-52s %9s %9s %9s %9s\n' "$standard" header seconds times budget lines
(($# > 0)) || mapfile -t all < <(find hetsched -name '*.hpp' | sort)
for header in "$@" "${all[@]:-}"; do
  [[ $header ]] || continue
  source="#include <$header>"
  lines=$("$compiler" -std=c++20 -I. -E -P -x c++ - <<<"$source" | wc -l) || { echo "$header does not compile"; over=1; continue; }
  seconds=$(seconds_of "$source")
  times=$(awk "BEGIN { printf \"%.2f\", $seconds / $standard }")
  budget=$(budget_of "$header")
  mark=
  if [[ $budget != - ]] && awk "BEGIN { exit !($times > $budget) }"; then
    mark=' over'
    over=1
  fi
  printf '%-52s %9s %9s %9s %9s%s\n' "$header" "$seconds" "$times" "$budget" "$lines" "$mark"
done
exit $over
