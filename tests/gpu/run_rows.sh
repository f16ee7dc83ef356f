#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the rows of a bundle on the GPUs at hand, each a process with a time limit: usage run.sh [RESULTS_FOLDER [ROW...]]. ROW: a part of
# a row's name; without any, all rows. Writes a log for each row, table.txt, and all of it as RESULTS_FOLDER.tar.gz. Needs a driver, and
# for some rows NCCL, cuBLAS (both are looked for in the linker's folders, CUDA's and Python's packages) or compute-sanitizer.
# Status 0: all rows are good; 1: some are not; 2: there is no GPU.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
results=$(realpath -m "${1:-$here/results}")
shift || true
cd "$here/bin" || exit 2

export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
./rules gpus >/dev/null 2>&1 || { ./rules gpus; exit 2; }
mkdir -p "$results" || exit 2
export results

# find_library NAME: whether it can be loaded; adds its folder where that is not one of the linker's.
packages=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2>/dev/null)
find_library() {
  ldconfig -p 2>/dev/null | grep -q "$1" && return
  local found
  for folder in ${LD_LIBRARY_PATH//:/ } /usr/local/cuda/lib64 "${packages:-/none}"/nvidia/*/lib "${packages:-/none}"/nvidia/*/lib64; do
    found=$folder/$1
    [[ -e $found ]] || continue
    [[ :$LD_LIBRARY_PATH: == *:$folder:* ]] || export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
    return 0
  done
  return 1
}
PATH=$PATH:/usr/local/cuda/bin
declare -A has
find_library libnccl.so.2 && has[nccl]=1
find_library libcublas.so.13 && find_library libcublasLt.so.13 && has[cublas]=1
command -v compute-sanitizer >/dev/null && has[sanitizer]=1

table=$results/table.txt
{
  date -u +%Y-%m-%d
  ./rules gpus
} | tee "$table"
failed=0
while read -r limit needs rest; do
  [[ $limit =~ ^[0-9]+$ ]] || continue
  name=${rest%%  *}
  command=${rest#"$name"}
  wanted=$(($# == 0))
  for part in "$@"; do [[ $name == *"$part"* ]] && wanted=1; done
  ((wanted)) || continue
  log=$results/$(tr -cs 'a-z0-9\n' _ <<<"${name,,}").log
  missing=
  for one in ${needs//,/ }; do [[ $one == - || -n ${has[$one]:-} ]] || missing+=" $one"; done
  if [[ -n $missing ]]; then
    printf '%-40s %s\n' "$name" "not run: needs$missing" | tee -a "$table"
    continue
  fi
  command=${command#"${command%%[! ]*}"}
  program=${command#../two.sh }
  if [[ $program != compute-sanitizer* && ! -e ./${program%% *} ]]; then
    printf '%-40s %s\n' "$name" "not run: ${program%% *} is not in this bundle" | tee -a "$table"
    continue
  fi
  begin=$EPOCHREALTIME status=0
  [[ $command == compute-sanitizer* ]] || command=./$command
  eval "timeout -k 5 $limit $command" >"$log" 2>&1 || status=$?
  word=ok
  ((status == 0)) || { word="FAILED ($status)"; ((++failed)); }
  ((status == 124 || status == 137)) && word="FAILED (more than $limit s)"
  printf '%-40s %-12s %6.1f s\n' "$name" "$word" "$(awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }')" | tee -a "$table"
  # Lines of checks are part of the table; of all else that failed, the end.
  if grep -qE ' (ok|FAILED) ' "$log"; then sed 's/^/  /' "$log" | tee -a "$table"; elif ((status != 0)); then tail -n 5 "$log" | sed 's/^/  /' | tee -a "$table"; fi
done <"$here/rows.txt"
tar -C "$(dirname "$results")" -czf "$results.tar.gz" "$(basename "$results")"
echo "$failed rows failed; logs: $results, $results.tar.gz"
((failed == 0))
