#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds the commands, and plans GPT-Neo-2.7B from measured layer times on a cluster of V100 and A100 nodes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash examples/setup.sh g++ ninja-build cmake nlohmann-json3-dev librange-v3-dev libcli11-dev

build=build/quickstart
out=quickstart-out
data=examples/data
mkdir -p "$build" "$out"
[[ -f $build/build.ninja ]] || rm -f "$build/CMakeCache.txt"  # of an earlier version, for make
# Quick to compile: what searches at -O1, all else at -O0, and rooms together. Commands to keep are built as the README says.
echo "Building the commands (about a minute); the log is $build/log.txt"
{
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O0 -DNDEBUG" -DHETSCHED_SEARCH_FLAGS=-O1 -DHETSCHED_IO=ON -DHETSCHED_VIEWS=ON -DHETSCHED_BUILD_EXAMPLES=ON -DHETSCHED_BUILD_TRAIN=OFF -DHETSCHED_BUILD_TESTS=OFF -DHETSCHED_BUILD_BENCH=OFF -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=8 &&
    cmake --build "$build" -j2 --target hetsched-plan sailor-to-profile
} > "$build/log.txt" 2>&1 || { tail -n 40 "$build/log.txt" >&2; exit 3; }

"$build/examples/sailor-to-profile" --csv "$data/sailor_gpt_neo_2.7b.csv" --measured-model GPT-Neo-2.7 --model "$data/model.json" \
  --gpu V100-16=V100-SXM2-16GB --gpu A100-40=A100-SXM4-40GB --out "$out/profile.json"
echo
"$build/examples/hetsched-plan" --cluster "$data/cluster.json" --model "$data/model.json" --profile "$out/profile.json" \
  --global-batch 64 --planner interop_dp --out "$out/plan.json" --report "$out/report.html" --trace "$out/trace.json"
echo
echo "The plan is $out/plan.json. Open $out/report.html in a browser, and $out/trace.json in https://ui.perfetto.dev."
