#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints what every public header costs its includer: processor seconds of -fsyntax-only (median of 5)
# and lines after preprocessing.
# Budgets: 0.25 s for a header of a planning room, 0.8 s for the umbrella; io/, runtime/ and core/views.hpp are outside of them.
# Ends with status 1 when a header is over its budget. Seconds depend on the machine, lines do not.
set -uo pipefail
compiler=${CXX:-g++}
cd "$(dirname "${BASH_SOURCE[0]}")/../include" || exit 1
export LC_ALL=C TIMEFORMAT='%U %S'

budget_of() {
  case $1 in
    hetsched/io.hpp | hetsched/io/* | hetsched/runtime.hpp | hetsched/runtime/* | hetsched/core/views.hpp) echo - ;;
    hetsched/hetsched.hpp) echo 0.8 ;;
    *) echo 0.25 ;;
  esac
}

over=0
printf '%-44s %9s %9s %9s\n' header seconds budget lines
for header in $(find hetsched -name '*.hpp' | sort); do
  source="#include <$header>"
  lines=$("$compiler" -std=c++20 -I. -E -P -x c++ - <<<"$source" | wc -l) || { echo "$header does not compile"; over=1; continue; }
  seconds=$(for _ in 1 2 3 4 5; do
    time "$compiler" -std=c++20 -I. -fsyntax-only -x c++ - <<<"$source"
  done 2>&1 | awk '{ printf "%.2f\n", $1 + $2 }' | sort -n | sed -n 3p)
  budget=$(budget_of "$header")
  mark=
  if [[ $budget != - ]] && awk "BEGIN { exit !($seconds > $budget) }"; then
    mark=' over'
    over=1
  fi
  printf '%-44s %9s %9s %9s%s\n' "$header" "$seconds" "$budget" "$lines" "$mark"
done
exit $over
