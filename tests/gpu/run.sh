#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, where there are a GPU and a compiler: usage tests/gpu/run.sh [FOLDER [ROW...]]. Builds what bundle.sh builds
# in FOLDER (build/gpu by default) for the GPU at hand, and runs its run.sh: a table, and a log for each row.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${1:-$here/../../build/gpu}
shift || true
nvidia-smi -L >/dev/null 2>&1 || { echo "there is no GPU to use" >&2; exit 2; }
ARCHITECTURES=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | tr -d . | sort -un | xargs)
export ARCHITECTURES
bash "$here/bundle.sh" "$folder" || exit 2
bash "$folder/run.sh" "$folder/results" "$@"
