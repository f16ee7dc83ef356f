#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles the public headers in one .cu file: usage headers.sh [--all] INCLUDE_FOLDER ROOM_LEFT_OUT...
# nvcc reads it for the host and for the device, in minutes each with all definitions, and g++ compiles what it has written of the
# host's. With --all the host's part has definitions; without it only the device's is compiled, from declarations, of which the host's
# parser is the same; what g++ makes of the rest, gpu_bundle.sh and consume.sh cuda_source ask of programs.
set -uo pipefail
all=0
if [[ $1 == --all ]]; then
  all=1
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
printf '#if defined(__CUDA_ARCH__) || !%s\n#define HETSCHED_COMPILED\n#endif\n' "$all" >"$work/all.cu"
printf '#include <%s>\n' "${headers[@]}" >>"$work/all.cu"
echo '__global__ void kernel() {}' >>"$work/all.cu"
"$compiler" -std=c++20 "$( ((all)) && echo -c || echo -ptx)" -I. "$work/all.cu" -o "$work/all.out"
