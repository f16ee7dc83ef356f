#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds tests/packaging/consumer the way a user would: usage consume.sh CASE SOURCE BUILD CMAKE CXX
set -euo pipefail
case=$1 source=$2 build=$3 cmake=$4 cxx=$5

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$source/tests/packaging/consumer" "$work/consumer"

# Where the build has LibTorch from.
mapfile -t torch < <(sed -n 's/^\(HETSCHED_TORCH_[A-Z0-9]*:[A-Z]*=.*\)$/-D\1/p' "$build/CMakeCache.txt")

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
component_compiled() {
  install
  find "$work/prefix" -name hetsched-compiled-targets.cmake | grep -q . || { echo "skipped: built without compiled"; exit 77; }
  configure -DHETSCHED_FIND="CONFIG;REQUIRED;COMPONENTS;compiled;io"
  build_and_run compiled_app
  build_and_run compiled_io_app
}
# All of the library is compiled: in few units, without debug information, and by clang where there is one, which is faster.
compiled_add_subdirectory() {
  local clang
  clang=$(bash "$source/tests/find_clang.sh") && local cxx=$clang
  configure -DHETSCHED_TREE="$source" -DHETSCHED_BUILD_COMPILED=ON -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DCMAKE_UNITY_BUILD=ON
  build_and_run compiled_app
}
# One program of a translation unit that brings the definitions and one that has them from the library.
mixed_modes() {
  install
  find "$work/prefix" -name hetsched-compiled-targets.cmake | grep -q . || { echo "skipped: built without compiled"; exit 77; }
  configure -DHETSCHED_FIND="CONFIG;REQUIRED;COMPONENTS;compiled"
  build_and_run mixed_app
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
component_eigen() {
  install
  find "$work/prefix" -name hetsched-eigen-targets.cmake | grep -q . || { echo "skipped: built without Eigen"; exit 77; }
  configure -DHETSCHED_FIND="CONFIG;REQUIRED;COMPONENTS;eigen"
  build_and_run eigen_app
}
no_eigen() {
  install
  find "$work/prefix" -name hetsched-eigen-targets.cmake | grep -q . || { echo "skipped: built without Eigen"; exit 77; }
  local without=-DCMAKE_DISABLE_FIND_PACKAGE_Eigen3=ON
  refused "component eigen needs Eigen" "$without" -DHETSCHED_FIND="CONFIG;REQUIRED;COMPONENTS;eigen"
  configure "$without" -DHETSCHED_FIND="CONFIG;REQUIRED"
}
component_gloo() {
  install
  find "$work/prefix" -name hetsched-gloo-targets.cmake | grep -q . || { echo "skipped: built without Gloo"; exit 77; }
  configure -DHETSCHED_FIND="CONFIG;REQUIRED;COMPONENTS;gloo"
  build_and_run gloo_app
}
component_mpi() {
  install
  find "$work/prefix" -name hetsched-mpi-targets.cmake | grep -q . || { echo "skipped: built without MPI"; exit 77; }
  configure -DHETSCHED_FIND="CONFIG;REQUIRED;COMPONENTS;mpi"
  build_and_run mpi_app
}
component_cuda() {
  install
  find "$work/prefix" -name hetsched-cuda-targets.cmake | grep -q . || { echo "skipped: built without CUDA"; exit 77; }
  configure -DHETSCHED_FIND="CONFIG;REQUIRED;COMPONENTS;cuda"
  build_and_run cuda_app
}
component_cuda_check() {
  install
  find "$work/prefix" -name hetsched-cuda_check-targets.cmake | grep -q . || { echo "skipped: built without cuda_check"; exit 77; }
  configure -DHETSCHED_FIND="CONFIG;REQUIRED;COMPONENTS;cuda_check"
  build_and_run cuda_check_app
}
# Also in one program with CUDA's, where that is.
component_hip() {
  install
  find "$work/prefix" -name hetsched-hip-targets.cmake | grep -q . || { echo "skipped: built without HIP"; exit 77; }
  local components="hip"
  ! find "$work/prefix" -name hetsched-cuda-targets.cmake | grep -q . || components="hip;cuda"
  configure -DHETSCHED_FIND="CONFIG;REQUIRED;COMPONENTS;$components"
  build_and_run hip_app
}
component_nccl() {
  install
  find "$work/prefix" -name hetsched-nccl-targets.cmake | grep -q . || { echo "skipped: built without NCCL"; exit 77; }
  configure -DHETSCHED_FIND="CONFIG;REQUIRED;COMPONENTS;nccl"
  build_and_run nccl_app
}
# A trainer in one .cu file: trains where there is a GPU, else ends with one clear error. The bundle for GPUs has it optimised.
# All definitions that it includes are compiled for the device, too.
cuda_source() {
  local compiler text status=0
  compiler=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc) || { echo "skipped: no nvcc"; exit 77; }
  install
  find "$work/prefix" -name hetsched-cuda-targets.cmake | grep -q . || { echo "skipped: built without CUDA"; exit 77; }
  SECONDS=0
  "$compiler" -std=c++20 -O0 -Werror all-warnings -I "$work/prefix/include" "$source/examples/cuda/own_layers.cu" -o "$work/own_layers"
  echo "compiled in $SECONDS s"
  text=$("$work/own_layers") || status=$?
  echo "$text"
  case $status in
    0) grep -q "the same bits" <<<"$text" ;;
    2) grep -q "^there is no GPU to use: " <<<"$text" && [[ $(wc -l <<<"$text") == 1 ]] ;;
    *) return 1 ;;
  esac
}
component_torch() {
  install
  find "$work/prefix" -name hetsched-torch-targets.cmake | grep -q . || { echo "skipped: built without LibTorch"; exit 77; }
  configure -DHETSCHED_FIND="CONFIG;REQUIRED;COMPONENTS;torch" "${torch[@]}"
  build_and_run torch_app
}
# Without LibTorch, the rest of the package is found.
no_torch() {
  install
  find "$work/prefix" -name hetsched-torch-targets.cmake | grep -q . || { echo "skipped: built without LibTorch"; exit 77; }
  # As if it were nowhere.
  local without=(-DHETSCHED_TORCH_INCLUDE=OFF -DHETSCHED_TORCH_CPU=OFF -DHETSCHED_TORCH_C10=OFF)
  refused "component torch needs LibTorch" "${without[@]}" -DHETSCHED_FIND="CONFIG;REQUIRED;COMPONENTS;torch"
  configure "${without[@]}" -DHETSCHED_FIND="CONFIG;REQUIRED"
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
no_mpi() {
  install
  refused "component mpi" -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON -DHETSCHED_FIND="CONFIG;REQUIRED;COMPONENTS;mpi"
}
no_cuda() {
  install
  refused "component cuda" -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON -DHETSCHED_FIND="CONFIG;REQUIRED;COMPONENTS;cuda"
}
no_hip() {
  install
  find "$work/prefix" -name hetsched-hip-targets.cmake | grep -q . || { echo "skipped: built without HIP"; exit 77; }
  local without=-DHETSCHED_HIP_LIBRARY=OFF
  refused "component hip needs HIP's runtime" "$without" -DHETSCHED_FIND="CONFIG;REQUIRED;COMPONENTS;hip"
  configure "$without" -DHETSCHED_FIND="CONFIG;REQUIRED"
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
# python_tool NAME: prints where the program NAME is, in a virtual environment with the Python registry's package of that name, which
# stays with the build for the next time. Fails where it cannot be had.
python_tool() {
  local folder=$build/python-tools/$1
  [[ -x $folder/bin/$1 ]] || { python3 -m venv "$folder" && "$folder/bin/pip" install -q "$1"; } >&2 || return
  echo "$folder/bin/$1"
}
# The installed tree is moved first.
pkg_config() {
  command -v pkg-config >/dev/null || { echo "skipped: no pkg-config"; exit 77; }
  install
  mv "$work/prefix" "$work/moved prefix"
  local file name component components=0
  export PKG_CONFIG_PATH="$work/moved prefix/share/pkgconfig"
  for file in "$work/moved prefix"/lib*/cmake/hetsched/hetsched*-targets.cmake; do
    name=$(basename "$file" -targets.cmake)
    pkg-config --validate "$name"
    component=${name#hetsched}
    component=${component#-}
    [[ -n $component ]] || continue
    ((++components))
    (
      # Where its user says that LibTorch is.
      [[ $component != torch ]] || LD_LIBRARY_PATH=$(dirname "$(pkg-config --libs "$name" | tr ' ' '\n' | grep libtorch_cpu)")
      export LD_LIBRARY_PATH=${LD_LIBRARY_PATH-}
      cd "$work/consumer"
      eval "'$cxx' -std=c++20 -Wall -Wextra -Werror ${component}_main.cpp -o app $(pkg-config --cflags --libs "$name" | tr '\n' ' ')"
      ./app
    )
  done
  [[ $components == $(find "$PKG_CONFIG_PATH" -name 'hetsched-*.pc' | wc -l) ]]
  # A component is of the version of the core.
  sed -i 's/^Version: .*/Version: 9.9.9/' "$PKG_CONFIG_PATH/hetsched.pc"
  if pkg-config --exists hetsched-io; then
    echo "hetsched-io takes any version of hetsched"
    return 1
  fi
}
conan_create() {
  local conan
  conan=$(type -P conan || python_tool conan) || { echo "skipped: no conan, and the Python registry has none to give"; exit 77; }
  export CONAN_HOME=$work/conan CXX=$cxx
  "$conan" profile detect
  # Nothing from the net: what the recipe requires is the system's.
  "$conan" create "$source/cmake/conan" -pr default -pr "$source/cmake/conan/system.profile" --no-remote \
    -s compiler.cppstd=20 -s build_type=Debug -c tools.cmake.cmake_layout:test_folder="$work/test" -o '&:metis=True'
  local log=$work/log
  for wrong in "-s compiler.cppstd=17" "-s compiler.cppstd=20 -o &:nccl=True"; do
    # shellcheck disable=SC2086
    if "$conan" create "$source/cmake/conan" -pr default -pr "$source/cmake/conan/system.profile" --no-remote $wrong >"$log" 2>&1; then
      echo "conan should refuse $wrong"
      return 1
    fi
    grep -q "hetsched/.*: Invalid: " "$log" || { cat "$log"; return 1; }
  done
}
cps() {
  install
  python3 "$source/tests/packaging/cps.py" "$work/prefix"
}
# By a CMake that reads what CMake 3.25 does not; without the package's own files for CMake.
cps_read() {
  local reader=$cmake
  if ! printf '4.3\n%s\n' "$("$cmake" --version | sed -n 's/^cmake version //p')" | sort -CV; then
    reader=$(python_tool cmake) || { echo "skipped: no CMake from 4.3 on, and the Python registry has none to give"; exit 77; }
  fi
  install
  mv "$work/prefix" "$work/moved"
  rm -r "$work"/moved/lib*/cmake
  "$reader" -S "$work/consumer" -B "$work/build" -G Ninja -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_PREFIX_PATH="$work/moved" \
    -DHETSCHED_FIND="0.1;REQUIRED;COMPONENTS;io"
  "$reader" --build "$work/build" --target io_app
  "$work/build/io_app"
}
# The overlay port, with stubs in place of vcpkg's own functions: the tool comes from where many machines cannot reach.
vcpkg_port() {
  local port=$source/cmake/vcpkg/hetsched
  python3 - "$port/vcpkg.json" "$port/portfile.cmake" "$source/CMakeLists.txt" <<'EOF'
import json, re, sys
said, portfile, project = json.load(open(sys.argv[1])), open(sys.argv[2]).read(), open(sys.argv[3]).read()
assert said["version"] == re.search(r"project\(hetsched VERSION (\S+)", project)[1]
pairs = dict(re.findall(r"^    ([\w-]+) (HETSCHED_\w+)$", portfile, re.M))
assert set(said["features"]) == set(pairs), (set(said["features"]), pairs)
assert all(f"option({option} " in project for option in pairs.values())
EOF
  "$cmake" -DPORT_DIR="$port" -DWORK="$work/vcpkg" -DFEATURES=io -DOPTIONS="-DCMAKE_CXX_COMPILER=$cxx" -P "$source/tests/packaging/vcpkg_steps.cmake"
  local packages=$work/vcpkg/packages
  # What vcpkg complains of: no copyright or usage, empty folders, folders of programs and libraries in a package of headers.
  [[ -s $packages/share/hetsched/copyright && -s $packages/share/hetsched/usage ]]
  [[ -z $(find "$packages" -type d -empty) && ! -e $packages/bin && ! -e $packages/lib && ! -e $packages/debug ]]
  ! grep -rlF "$packages" "$packages" || return 1
  mv "$packages" "$work/prefix"
  configure -DHETSCHED_FIND="CONFIG;REQUIRED;COMPONENTS;io"
  build_and_run io_app
}

"$case"
