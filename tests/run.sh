#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds, and runs the tests of the named lanes, or every test: usage run.sh [LANE...]
#   release  the commands and what the docs print, and, optimised, the tests of searches, of which sanitizers run a share only
#   package  compiles the tree as its users do: all headers, consumers, code in the docs
#   debug    every test file but those of commands, with contracts, AddressSanitizer and UndefinedBehaviorSanitizer (but for what
#            the latter asks of each pointer: that doubles the code; null is found all the same, and the lane fuzz has it)
#   tsan     ThreadSanitizer, tests with threads
#   fuzz     readers of files, with libFuzzer
#   sweeps   only if named: every instance of the random tests, optimised, also of those that take minutes; every definition in a
#            CUDA source; each header, program, benchmark and program of the docs alone; GPT's ranks on fake GPUs; Conan and CPS, by tools of the Python registry
#   torch    what is exported, by PyTorch, Megatron-LM's core, torchtitan and DeepSpeed themselves, and component torch; only if named: it downloads some gigabytes from the Python registry
#   site     only if named: the documentation as a site, without warnings and dead links
#   tutorial only if named: docs/tutorial.md from an empty folder, with its build and two hosts; needs root
#   compilers only if named: g++ 13 and 14 and clang 16 to 19, in an Ubuntu 24.04 that it makes below build/; needs root
# Nearly all of the time is compilation, so a test file is compiled where it proves most: under the sanitizers; optimised only if
# it runs more there (it names tests/sanitizer_share.hpp, or a header that does) or is not built with sanitizers (commands, gpt,
# mpi, onnx, the CUDA runtime). All lanes together are to take 15 minutes on two idle cores, and take 38. Clang compiles
# what has sanitizers in half of g++'s time; without clang, g++ does it.
# The last line is "N passed, N failed", with ", N skipped" if any were.
# A test is a doctest case, or a CTest test that is not a doctest program; each counts once in every lane that runs it.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

(($# > 0)) || set -- release package debug tsan fuzz
for lane in "$@"; do
  [[ $lane =~ ^(release|package|debug|tsan|fuzz|sweeps|torch|site|tutorial|compilers)$ ]] || { echo "no lane: $lane; there are release, package, debug, tsan, fuzz, sweeps, torch, site, tutorial, compilers" >&2; exit 2; }
done
lanes=" $* "
runs() { [[ $lanes == *" $1 "* ]]; }

needed=(g++ cmake ninja-build python3 librange-v3-dev libeigen3-dev nlohmann-json3-dev libcli11-dev doctest-dev)
runs fuzz && [[ $lanes == " fuzz " ]] || needed+=(libgloo-dev libmetis-dev)
runs sweeps && needed+=(coinor-libcbc-dev libbenchmark-dev)
runs release && needed+=(python3-yaml libdlib-dev coinor-libclp-dev coinor-libcbc-dev libonnx-dev libprotobuf-dev iproute2)
runs package && needed+=(libbenchmark-dev pkg-config)
{ runs release || runs package || runs torch; } && needed+=(libopenmpi-dev openmpi-bin)
bash examples/setup.sh "${needed[@]}" || exit 1

log=$(mktemp)
trap 'rm -f "$log"' EXIT
lacking=()
# wanted WHAT PACKAGES...: installs what lanes can do without; what cannot be had is told in the end.
wanted() {
  local what=$1
  shift
  bash examples/setup.sh "$@" >"$log" 2>&1 || lacking+=("$what (Debian: $*)")
}
# Prints a clang with its sanitizers' libraries, libFuzzer among them.
find_sanitizing_clang() {
  local clang
  clang=$(bash tests/find_clang.sh) || return
  echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
    "$clang" -fsanitize=fuzzer,address -x c++ - -o "$log" 2>/dev/null && echo "$clang"
}
wanted "compilations are not kept for the next time" ccache
runs release && wanted "the format is not checked" clang-format-14
{ runs debug || runs release; } && wanted "ranks do not meet in a real Redis" redis-server
runs torch && wanted "the lane torch" python3-venv
runs sweeps && wanted "Conan's recipe and files of the Common Package Specification are not tried out" python3-venv
{ runs release || runs package; } && wanted "component hip is not compiled" libamdhip64-dev
sanitizes() { runs debug || runs tsan || runs fuzz; }
if { sanitizes && ! find_sanitizing_clang >/dev/null; } || { { runs package || runs sweeps; } && ! bash tests/find_clang.sh >/dev/null; }; then
  # The first that the distribution has.
  for version in 16 18 17 19 20; do
    bash examples/setup.sh "clang-$version" "libclang-rt-$version-dev" >"$log" 2>&1 && break
  done
fi
if runs sweeps && ! bash tests/find_clang.sh >/dev/null; then lacking+=("headers are compiled alone with g++, which takes minutes more: no clang from 16 on (Debian: clang-16)"); fi

export CXX=${CXX:-g++}
gxx=$CXX
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
export CTEST_PARALLEL_LEVEL=${CTEST_PARALLEL_LEVEL:-$(nproc)}
command -v ccache >/dev/null && export CMAKE_CXX_COMPILER_LAUNCHER=ccache
passed=0 failed=0 skipped=0

step() { # step NAME COMMAND...: counts as one failure if the command fails
  local name=$1
  shift
  echo "== $name"
  "$@" && return
  echo "== $name: FAILED"
  ((++failed))
  return 1
}

# Reads `ctest -V` and prints "passed failed skipped". A doctest program counts with its cases; if it fails without a failed
# case (a crash, a time-out, a sanitizer's verdict, no program at all) that is one failure more.
count='
  /: \[doctest\] test cases:/ {
    test = $1; sub(/:.*/, "", test)
    line = $0; gsub(/[^0-9|]/, "", line); split(line, n, "|")
    cases[test] = 1; good[test] = n[2]; bad[test] = n[3]
  }
  match($0, /Test +#[0-9]+:/) {
    test = substr($0, RSTART, RLENGTH); gsub(/[^0-9]/, "", test)
    ok = / Passed +[0-9.]+ sec/
    passed += good[test]; failed += bad[test]
    if (/\*\*\*Skipped/) ++skipped
    else if (!ok && bad[test] == 0) ++failed
    else if (ok && !cases[test]) ++passed
  }
  END { print passed + 0, failed + 0, skipped + 0 }'

tests_of() { # tests_of NAME START OPTION...: what ctest finds with these options
  local name=$1 start=$2 p f s
  shift 2
  echo "== test $name"
  ctest "$@" -V >"$log" 2>&1
  local status=$?
  read -r p f s < <(awk "$count" "$log")
  if ((status != 0 && f == 0)); then f=1; fi
  if ((f > 0)); then cat "$log"; else grep -E 'Test +#[0-9]+:|skipped: ' "$log"; fi
  echo "== $name: $p passed, $f failed, $s skipped, in $((SECONDS - start)) s"
  ((passed += p, failed += f, skipped += s))
}

lane() { # lane PRESET OPTION...: configure, build, test
  local preset=$1
  shift
  local start=$SECONDS
  step "configure $preset" cmake --preset "$preset" -DHETSCHED_MERGE_TESTS=ON "$@" || return
  # A target that does not build fails here; the others are still tested.
  step "build $preset" cmake --build --preset "$preset" -- -k 0
  tests_of "$preset" "$start" --preset "$preset"
}

# The CUDA parts are compiled and linked wherever the toolkit is; their tests run on fakes, and without it.
cuda=()
if PATH=$PATH:/usr/local/cuda/bin command -v nvcc >/dev/null; then
  cuda=(-DHETSCHED_CUDA=ON)
  for folder in /usr /usr/local /usr/local/cuda; do
    if [[ -e $folder/include/nccl.h ]]; then cuda=(-DHETSCHED_CUDA=ON -DHETSCHED_NCCL=ON); fi
  done
fi
# So are the HIP parts.
hip=()
if [[ -e ${ROCM_PATH:-/opt/rocm}/include/hip/hip_runtime_api.h || -e /usr/include/hip/hip_runtime_api.h ]]; then hip=(-DHETSCHED_HIP=ON); fi
# Of both, the library is built once; what searches at -O2, as users have it, what runs at -O1, which compiles in three quarters of the time.
if runs release; then
  kinds=optimised
  if runs package; then kinds=release; fi
  lane release -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" -DHETSCHED_SEARCH_FLAGS=-O2 "${cuda[@]}" "${hip[@]}" -DHETSCHED_TESTS="$kinds" -DHETSCHED_BUILD_BENCH="$(runs package && echo ON || echo OFF)" \
    -DHETSCHED_DLIB=ON -DHETSCHED_CLP=ON -DHETSCHED_CBC=ON -DHETSCHED_ONNX=ON -DHETSCHED_MPI=ON
elif runs package; then
  lane package "${cuda[@]}" "${hip[@]}" -DHETSCHED_MPI=ON
fi
if runs sweeps; then
  start=$SECONDS
  step "configure sweeps" cmake --preset release -B build/sweeps -DHETSCHED_MERGE_TESTS=ON -DHETSCHED_TEST_SWEEPS=ON \
    -DHETSCHED_TESTS=release -DHETSCHED_CBC=ON "${cuda[@]}" "${hip[@]}" &&
    step "build sweeps" cmake --build build/sweeps -- -k 0
  tests_of sweeps "$start" --test-dir build/sweeps -L unit
  tests_of "sweeps of the tree" "$SECONDS" --test-dir build/sweeps -R '^packaging\.(alone|conan_create|cps_read|diagnostics|headers_in_cuda_source|text_size)$'
fi
if sanitizes; then CXX=$(find_sanitizing_clang) || CXX=$gxx; fi
# Programs with sanitizers are large: binutils' first linker takes 2.6 processor seconds for one, its second 1.3, LLVM's 0.5.
linker=()
for name in lld gold; do
  if command -v "ld.$name" >/dev/null; then linker=(-DCMAKE_EXE_LINKER_FLAGS="-fuse-ld=$name") && break; fi
done
# Without debug information, which is a tenth of the time: reports name functions, and lines if the preset is built as it is.
# What searches is compiled once and runs in many tests, so the optimiser pays for itself there.
runs debug && lane debug -DHETSCHED_TESTS=unit -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DHETSCHED_SEARCH_FLAGS=-O1 "${linker[@]}"
runs tsan && lane tsan -DCMAKE_CXX_FLAGS_DEBUG=-O0 "${linker[@]}"
if runs fuzz; then
  if find_sanitizing_clang >/dev/null; then
    lane fuzz
  else
    lacking+=("the lane fuzz: no clang 16 or later with libFuzzer (Debian: clang-16 libclang-rt-16-dev)")
    ((++skipped))
  fi
fi

# PyTorch's loader, validation and runtime on what is written for them, and LibTorch in pipelines; PyTorch is kept in build/torch.
torch_lane() {
  local start=$SECONDS script p f
  if ! [[ -x build/torch/bin/torchrun ]]; then
    step "install torch" bash -c 'python3 -m venv build/torch && build/torch/bin/pip install -q torch numpy' || return
  fi
  if ! [[ -x build/torch/bin/deepspeed ]]; then
    # torchtitan and DeepSpeed say which others they need; of Megatron-LM only its core is read.
    step "install trainers" bash -c 'build/torch/bin/pip install -q setuptools wheel torchtitan==0.2.2 &&
      build/torch/bin/pip install -q --no-deps megatron-core && DS_BUILD_OPS=0 build/torch/bin/pip install -q --no-build-isolation deepspeed' || return
  fi
  step "configure torch" cmake --preset release -DHETSCHED_BUILD_TESTS=OFF -DHETSCHED_BUILD_BENCH=OFF -B build/for-torch || return
  step "build torch" cmake --build build/for-torch --target hetsched-simulate hetsched-export hetsched-train || return
  echo "== test torch"
  for script in check trainers group processes; do
    p='' f=''
    TORCH_EXTENSIONS_DIR=$PWD/build/torch-extensions build/torch/bin/python -W ignore tests/torch/$script.py build/for-torch/examples | tee "$log"
    read -r p f < <(tail -n 1 "$log" | sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p')
    echo "== torch, $script: ${p:-0} passed, ${f:-1} failed, in $((SECONDS - start)) s"
    ((passed += ${p:-0}, failed += ${f:-1}))
  done

  start=$SECONDS
  # Without Gloo, of which LibTorch exports another one.
  step "configure LibTorch" cmake --preset release "${cuda[@]}" -DHETSCHED_TORCH=ON -DHETSCHED_GLOO=OFF -DHETSCHED_BUILD_BENCH=OFF \
    -DCMAKE_VERIFY_INTERFACE_HEADER_SETS=ON -B build/libtorch \
    -DCMAKE_PREFIX_PATH="$(build/torch/bin/python -c 'import torch; print(torch.utils.cmake_prefix_path)')" || return
  step "build LibTorch" cmake --build build/libtorch \
    --target hetsched_torch_test train-modules hetsched_torch_verify_interface_header_sets || return
  tests_of LibTorch "$start" --test-dir build/libtorch -R '^(torch|torch_example|packaging\.(component_torch|torch_headers|torch_on_cuda|torch_temporary|torch_tuple|no_torch|pkg_config|cps))$'
}
runs torch && torch_lane

site_lane() {
  step "install mkdocs-material and doxygen" bash examples/setup.sh mkdocs-material doxygen || return
  step "build the site" python3 docs/site/build.py build/site && ((++passed))
}
runs site && site_lane

compilers_lane() {
  local p f
  step "install debootstrap" bash examples/setup.sh debootstrap || return
  mkdir -p build
  bash tests/packaging/compilers.sh "$PWD/build/ubuntu-24.04" . | tee "$log"
  read -r p f < <(tail -n 1 "$log" | sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p')
  ((passed += ${p:-0}, failed += ${f:-1}))
}
runs compilers && compilers_lane

runs tutorial && step "tutorial" python3 tests/docs/check.py tutorial . build "$CXX" "" && ((++passed))

for what in "${lacking[@]}"; do echo "== NOT ON THIS MACHINE: $what"; done
echo "$passed passed, $failed failed$( ((skipped > 0)) && echo ", $skipped skipped")"
((failed == 0 && passed > 0))
