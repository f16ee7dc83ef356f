#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU: usage tests/gpu/run.sh [FOLDER]. Builds, runs, and prints a short table last; FOLDER (build/gpu by
# default) keeps the log of every part and the table. Needs the CUDA toolkit and a GPU. Takes some minutes.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
out=${1:-build/gpu}
mkdir -p "$out" || exit 1
export PATH=$PATH:/usr/local/cuda/bin
command -v nvcc >/dev/null || { echo "no nvcc: the CUDA toolkit is needed" >&2; exit 2; }
nvidia-smi -L >/dev/null 2>&1 || { echo "there is no GPU" >&2; exit 2; }

table=$out/table.txt
: >"$table"
failed=0
part() { # part NAME COMMAND...: one line of the table, and a log
  local name=$1 log begin=$SECONDS status=0 word=ok
  shift
  log=$out/$(tr -c "a-z0-9\n" _ <<<"${name,,}").log
  "$@" >"$log" 2>&1 || status=$?
  ((status == 0)) || { word="FAILED ($status)"; ((++failed)); }
  printf '%-32s %-12s %4d s\n' "$name" "$word" $((SECONDS - begin)) | tee -a "$table"
  return "$status"
}

{
  date -u +%Y-%m-%d
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  nvcc --version | tail -1
} | tee -a "$table"

build=(nvcc -std=c++20 -O2 -fmad=false -arch=native -I include)
if part "build the example" "${build[@]}" examples/cuda/own_layers.cu -o "$out/own_layers" &&
  part "the example" "$out/own_layers"; then
  if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
      part "the example under $tool" compute-sanitizer --error-exitcode 1 --tool "$tool" "$out/own_layers"
    done
  else
    echo "compute-sanitizer is not there: no memcheck, no racecheck" | tee -a "$table"
  fi
fi
nccl=()  # where it is there
echo '#include <nccl.h>' | nvcc -E -x cu - >/dev/null 2>&1 && nccl=(-DCHECKS_NCCL -lnccl)
if part "build the checks" "${build[@]}" tests/gpu/checks.cu -o "$out/checks" "${nccl[@]}"; then
  part "the checks" "$out/checks"
  cat "$out/the_checks.log" | tee -a "$table"
fi
if part "build the GPT" "${build[@]}" -I examples tests/gpu/gpt.cu -o "$out/gpt" -lcublas; then
  part "the GPT" "$out/gpt"
  cat "$out/the_gpt.log" | tee -a "$table"
  if command -v compute-sanitizer >/dev/null; then part "the GPT under memcheck" compute-sanitizer --error-exitcode 1 "$out/gpt"; fi
fi
echo "log: $out"
((failed == 0))
