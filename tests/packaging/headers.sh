#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles the public headers with another compiler: usage headers.sh clang|nvcc INCLUDE_FOLDER ROOM_LEFT_OUT...
set -uo pipefail
tool=$1 include=$2
shift 2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
skipped=77

cd "$include" || exit 1
mapfile -t headers < <(find . -name '*.hpp' | sed 's|^\./||' | sort)
for room in "$@"; do
  mapfile -t headers < <(printf '%s\n' "${headers[@]}" | grep -v "^hetsched/$room[/.]")
done
((${#headers[@]} > 0)) || { echo "no headers below $include"; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

case $tool in
  clang)
    compiler=$(bash "$here/../find_clang.sh") || { echo "skipped: no clang 16 or later"; exit $skipped; }
    # That each compiles alone is checked with the project's compiler; here one by one would take minutes.
    echo "$compiler, all headers, in both orders"
    failed=0
    for order in cat tac; do
      printf '#include <%s>\n' "${headers[@]}" | $order | "$compiler" -std=c++20 -fsyntax-only -Wall -Wextra -Wpedantic \
        -Wconversion -Wshadow -Werror -I. -x c++ - || failed=1
    done
    exit $failed ;;
  nvcc)
    compiler=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc) || { echo "skipped: no nvcc"; exit $skipped; }
    echo "$compiler, all headers in one .cu file"
    printf '#include <%s>\n' "${headers[@]}" >"$work/all.cu"
    echo '__global__ void kernel() {}' >>"$work/all.cu"
    "$compiler" -std=c++20 -c -I. "$work/all.cu" -o "$work/all.o" ;;
esac
