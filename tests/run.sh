#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds, and runs every test. The last line is "N passed, N failed", with ", N skipped" if any were.
# A test is a doctest case, or a CTest test that is not a doctest program; each counts once in every lane that runs it.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

bash examples/setup.sh g++ cmake ninja-build python3 librange-v3-dev libeigen3-dev nlohmann-json3-dev \
  libcli11-dev doctest-dev libbenchmark-dev libgloo-dev libdlib-dev libonnx-dev libprotobuf-dev iproute2 || exit 1

export CXX=${CXX:-g++}
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
export CTEST_PARALLEL_LEVEL=${CTEST_PARALLEL_LEVEL:-$(nproc)}
passed=0 failed=0 skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

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

lane() { # lane PRESET OPTION...: configure, build, test
  local preset=$1 p f s
  shift
  step "configure $preset" cmake --preset "$preset" -DHETSCHED_MERGE_TESTS=ON "$@" || return
  # A target that does not build fails here; the others are still tested.
  step "build $preset" cmake --build --preset "$preset" -- -k 0
  echo "== test $preset"
  ctest --preset "$preset" -V >"$log" 2>&1
  local status=$?
  read -r p f s < <(awk "$count" "$log")
  if ((status != 0 && f == 0)); then f=1; fi
  if ((f > 0)); then cat "$log"; else grep -E 'Test +#[0-9]+:|skipped: ' "$log"; fi
  echo "== $preset: $p passed, $f failed, $s skipped"
  ((passed += p, failed += f, skipped += s))
}

lane release -DHETSCHED_DLIB=ON -DHETSCHED_ONNX=ON
lane debug
lane tsan
if CXX=$(bash tests/find_clang.sh) &&
  echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
  "$CXX" -fsanitize=fuzzer -x c++ - -o "$log" 2>/dev/null; then
  lane fuzz
else
  echo "== fuzz: skipped: no clang 16 or later with libFuzzer"
  ((++skipped))
fi

echo "$passed passed, $failed failed$( ((skipped > 0)) && echo ", $skipped skipped")"
((failed == 0 && passed > 0))
