#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every source file is as clang-format 14 leaves it; other versions differ in places: usage formatted.sh SOURCE
set -uo pipefail
cd "$1" || exit 1
for tool in clang-format-14 clang-format; do
  [[ $("$tool" --version 2>/dev/null) == *"version 14."* ]] && break
  tool=
done
[[ $tool ]] || { echo "skipped: no clang-format 14"; exit 77; }
mapfile -t files < <(find include examples tests bench -regex '.*\.\(hpp\|ipp\|cpp\|cuh\|cu\)' | sort)
((${#files[@]} > 0)) || { echo "no sources below $1"; exit 1; }
"$tool" --dry-run -Werror "${files[@]}" || { echo "run: git ls-files '*.hpp' '*.cpp' | xargs $tool -i"; exit 1; }
echo "${#files[@]} files, all formatted"
