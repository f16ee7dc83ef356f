#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The library as users of Ubuntu 24.04 compile it: usage compilers.sh ROOT SOURCE
# Makes an Ubuntu of its own in ROOT, unless it is there; needs root, debootstrap and the network. There, each of the compilers
# compiles every public header but those of CUDA, and builds and runs a program that plans; then quickstart.sh runs, as README has it,
# with what the distribution calls g++. Prints "N passed, N failed" in the end.
set -uo pipefail
root=$1 source=$2
compilers=(g++-13 g++-14 clang++-16 clang++-17 clang++-18 clang++-19)
mirror=http://archive.ubuntu.com/ubuntu

inside() { chroot "$root" env -u CXX -u CMAKE_CXX_COMPILER_LAUNCHER DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
make_root() {
  [[ -e $root/made ]] && return
  [[ ! -e $root ]] || { echo "$root was not finished: remove it"; return 1; }
  # Debian has no keys of Ubuntu: without them nothing is checked, as in a download from any mirror.
  local keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg trust=--no-check-gpg
  [[ -e $keys ]] && trust=--keyring=$keys
  # Debian's debootstrap may not know the name; all of Ubuntu's are made alike.
  debootstrap --variant=minbase --components=main,universe "$trust" noble "$root" "$mirror" \
    /usr/share/debootstrap/scripts/gutsy || return
  echo "deb $mirror noble-updates main universe" >>"$root/etc/apt/sources.list"
  inside apt-get update -q || return
  inside apt-get install -yq --no-install-recommends "${compilers[@]/clang++/clang}" \
    librange-v3-dev libeigen3-dev nlohmann-json3-dev libcli11-dev libgloo-dev libmetis-dev || return
  touch "$root/made"
}
if ! make_root >"$root.log" 2>&1; then
  tail "$root.log"
  echo "no Ubuntu in $root"
  exit 1
fi

rm -rf "$root/hetsched"
mkdir "$root/hetsched"
tar -C "$source" --exclude=./build --exclude=./.git -c . | tar -C "$root/hetsched" -x
(cd "$root/hetsched/include" && find hetsched -name '*.hpp' ! -path 'hetsched/cuda*' ! -path 'hetsched/hip*' ! -path 'hetsched/torch*' | sort | sed 's/.*/#include <&>/') \
  >"$root/hetsched/headers.cpp"
sed -n '/^## From C++/,/^## /{/^```cpp/,/^```$/{/^```/!p}}' "$source/README.md" >"$root/hetsched/program.cpp"

passed=0 failed=0
check() { # check NAME COMMAND...
  local name=$1 start=$SECONDS
  shift
  if inside "$@" >"$root.log" 2>&1; then
    echo "$name: passed, $((SECONDS - start)) s"
    ((++passed))
  else
    tail -n 50 "$root.log"
    echo "$name: FAILED"
    ((++failed))
  fi
}
warnings="-Wall -Wextra -Wpedantic -Wconversion -Wno-sign-conversion -Wshadow -Werror"
for compiler in "${compilers[@]}"; do
  # In C++23, clang before 18 cannot compile the pairs of libstdc++ 14, which nlohmann/json looks into.
  standards=(20 23)
  [[ $compiler =~ ^clang..-1[67]$ ]] && standards=(20)
  for standard in "${standards[@]}"; do
    # shellcheck disable=SC2086
    check "headers, $compiler, C++$standard" "$compiler" -std=c++$standard $warnings -fsyntax-only -I/hetsched/include -isystem /usr/include/eigen3 /hetsched/headers.cpp
  done
  check "the program in README.md, $compiler" \
    bash -c "cd /hetsched && $compiler -std=c++20 -O1 $warnings -Iinclude program.cpp -o program -pthread && ./program | grep 'per iteration'"
done
check "quickstart.sh" bash -c "cd /hetsched && bash examples/quickstart.sh && test -s quickstart-out/report.html"
echo "$passed passed, $failed failed"
((failed == 0))
