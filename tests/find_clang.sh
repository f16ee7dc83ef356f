#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the newest clang++ from 16 on (older ones cannot compile the ranges of libstdc++ 12), or fails.
set -uo pipefail
for compiler in $(compgen -c clang++ | grep -xE 'clang\+\+(-[0-9]+)?' | sort -Vru); do
  (($("$compiler" -dumpversion | cut -d. -f1) >= 16)) && { echo "$compiler"; exit 0; }
done
exit 1
