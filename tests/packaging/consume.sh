#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds tests/packaging/consumer the way a user would: usage consume.sh CASE SOURCE BUILD CMAKE CXX
set -euo pipefail
case=$1 source=$2 build=$3 cmake=$4 cxx=$5

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$source/tests/packaging/consumer" "$work/consumer"

configure() {
  rm -rf "$work/build"
  "$cmake" -S "$work/consumer" -B "$work/build" -G Ninja -DCMAKE_CXX_COMPILER="$cxx" \
    -DCMAKE_CXX_FLAGS="-Wall -Wextra -Werror" -DCMAKE_PREFIX_PATH="$work/prefix" "$@"
}
# build_and_run APP: only that; the same app need not be built for every case.
build_and_run() {
  "$cmake" --build "$work/build" --target "$1"
  "$work/build/$1"
}
install() { "$cmake" --install "$build" --prefix "$work/prefix" >/dev/null; }
# refused TEXT ARGUMENTS...: configuring must fail, and say TEXT.
refused() {
  local text=$1 log="$work/log"
  shift
  if configure "$@" >"$log" 2>&1; then
    echo "configuring with $* should have failed"
    exit 1
  fi
  # CMake wraps its messages.
  tr -s ' \n' ' ' <"$log" | grep -qF "$text" || { cat "$log"; echo "expected: $text"; exit 1; }
}

find_package() {
  install
  configure -DHETSCHED_FIND="CONFIG;REQUIRED"
  build_and_run app
}
add_subdirectory() {
  configure -DHETSCHED_TREE="$source"
  build_and_run app
}
component_io() {
  install
  configure -DHETSCHED_FIND="CONFIG;REQUIRED;COMPONENTS;io"
  build_and_run io_app
}
component_views() {
  install
  find "$work/prefix" -name hetsched-views-targets.cmake | grep -q . || { echo "skipped: built without views"; exit 77; }
  configure -DHETSCHED_FIND="CONFIG;REQUIRED;COMPONENTS;views"
  build_and_run views_app
}
# Without what only a component needs, the package is found. Building an app would compile what find_package compiles.
no_range() {
  install
  find "$work/prefix" -name hetsched-views-targets.cmake | grep -q . || { echo "skipped: built without views"; exit 77; }
  local without=-DCMAKE_DISABLE_FIND_PACKAGE_range-v3=ON
  refused "component views needs range-v3" "$without" -DHETSCHED_FIND="CONFIG;REQUIRED;COMPONENTS;views"
  configure "$without" -DHETSCHED_FIND="CONFIG;REQUIRED"
}
component_gloo() {
  install
  find "$work/prefix" -name hetsched-gloo-targets.cmake | grep -q . || { echo "skipped: built without Gloo"; exit 77; }
  configure -DHETSCHED_FIND="CONFIG;REQUIRED;COMPONENTS;gloo"
  build_and_run gloo_app
}
component_cuda() {
  install
  find "$work/prefix" -name hetsched-cuda-targets.cmake | grep -q . || { echo "skipped: built without CUDA"; exit 77; }
  configure -DHETSCHED_FIND="CONFIG;REQUIRED;COMPONENTS;cuda"
  build_and_run cuda_app
}
component_nccl() {
  install
  find "$work/prefix" -name hetsched-nccl-targets.cmake | grep -q . || { echo "skipped: built without NCCL"; exit 77; }
  configure -DHETSCHED_FIND="CONFIG;REQUIRED;COMPONENTS;nccl"
  build_and_run nccl_app
}
# A trainer in one .cu file: trains where there is a GPU, else ends with one clear error.
cuda_source() {
  local compiler text status=0
  compiler=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc) || { echo "skipped: no nvcc"; exit 77; }
  install
  find "$work/prefix" -name hetsched-cuda-targets.cmake | grep -q . || { echo "skipped: built without CUDA"; exit 77; }
  SECONDS=0
  "$compiler" -std=c++20 -O2 -Werror all-warnings -I "$work/prefix/include" "$source/examples/cuda/own_layers.cu" -o "$work/own_layers"
  echo "compiled in $SECONDS s"
  text=$("$work/own_layers") || status=$?
  echo "$text"
  case $status in
    0) grep -q "the same bits" <<<"$text" ;;
    2) grep -q "^there is no GPU to use: " <<<"$text" && [[ $(wc -l <<<"$text") == 1 ]] ;;
    *) return 1 ;;
  esac
}
component_metis() {
  install
  find "$work/prefix" -name hetsched-metis-targets.cmake | grep -q . || { echo "skipped: built without METIS"; exit 77; }
  configure -DHETSCHED_FIND="CONFIG;REQUIRED;COMPONENTS;metis"
  build_and_run metis_app
}
no_gloo() {
  install
  refused "component gloo" -DCMAKE_DISABLE_FIND_PACKAGE_Gloo=ON -DHETSCHED_FIND="CONFIG;REQUIRED;COMPONENTS;gloo"
}
no_cuda() {
  install
  refused "component cuda" -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON -DHETSCHED_FIND="CONFIG;REQUIRED;COMPONENTS;cuda"
}
no_nlohmann() {
  install
  local without=-DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON
  refused "component io needs nlohmann_json" "$without" -DHETSCHED_FIND="CONFIG;REQUIRED;COMPONENTS;io"
  configure "$without" -DHETSCHED_FIND="CONFIG;REQUIRED"
}
unknown_component() {
  install
  refused "there is no component warp_drive" -DHETSCHED_FIND="CONFIG;REQUIRED;COMPONENTS;warp_drive"
  configure -DHETSCHED_FIND="CONFIG;REQUIRED;OPTIONAL_COMPONENTS;warp_drive" >/dev/null
}
version() {
  install
  configure -DHETSCHED_FIND="0.1;CONFIG;REQUIRED" >/dev/null
  refused "version: 0.1" -DHETSCHED_FIND="0.2;CONFIG;REQUIRED"
  refused "version: 0.1" -DHETSCHED_FIND="0.0;CONFIG;REQUIRED"
}

"$case"
