#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles the public headers in one .cu file: usage headers.sh [--definitions] INCLUDE_FOLDER ROOM_LEFT_OUT...
# nvcc reads it for the host and for the device, in minutes each with all definitions. With --definitions they are read for the
# host, without it for neither: then of a program's calls alone (see gpu_bundle.sh).
set -uo pipefail
definitions=0
if [[ $1 == --definitions ]]; then
  definitions=1
  shift
fi
include=$1
shift
compiler=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc) || { echo "skipped: no nvcc"; exit 77; }

cd "$include" || exit 1
mapfile -t headers < <(find . -name '*.hpp' | sed 's|^\./||' | sort)
for room in "$@"; do
  mapfile -t headers < <(printf '%s\n' "${headers[@]}" | grep -v "^hetsched/$room[/.]")
done
((${#headers[@]} > 0)) || { echo "no headers below $include"; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "$compiler, all headers in one .cu file"
printf '#if defined(__CUDA_ARCH__) || !%s\n#define HETSCHED_COMPILED\n#endif\n' "$definitions" >"$work/all.cu"
printf '#include <%s>\n' "${headers[@]}" >>"$work/all.cu"
echo '__global__ void kernel() {}' >>"$work/all.cu"
"$compiler" -std=c++20 -c -I. "$work/all.cu" -o "$work/all.o"
