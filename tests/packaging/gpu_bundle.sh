#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the bundle of what needs a GPU, and runs it: usage gpu_bundle.sh TESTS_GPU_FOLDER LIBRARY_FOLDER. Without a GPU it ends with
# one line and status 2. nvcc reads all that a program includes for the host and for the device again: to save that, definitions are
# linked from LIBRARY_FOLDER, while bundle.sh by itself has every program compile them, optimised, which no test does. What compiles
# them as that does is own_layers.cu in consume.sh cuda_source, for the host and the device; headers.sh --all has all of them for the host.
set -euo pipefail
PATH=$PATH:/usr/local/cuda/bin command -v nvcc >/dev/null || { echo "skipped: no nvcc"; exit 77; }
# Where no GPU runs them, not the one that cuda_source compiles, nor checks once more without NCCL.
programs="rules checks_nccl nccl gpt"
if [[ -e /dev/nvidia0 ]]; then programs=; fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ARCHITECTURES=90 OPTIMISATION=-O0 COMPILED=$2 PROGRAMS=$programs bash "$1/bundle.sh" "$work/bundle" --no-commands
status=0
text=$(bash "$work/bundle/run.sh" "$work/results" 2>&1) || status=$?
echo "$text"
case $status in
  0) grep -q "^0 rows failed" <<<"$text" ;;
  2) grep -q "^there is no GPU to use: " <<<"$text" && [[ $(wc -l <<<"$text") == 1 && ! -e $work/results ]] ;;
  *) exit 1 ;;
esac
