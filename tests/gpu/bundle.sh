#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a folder of at most 64 MiB that runs all that needs a GPU on a bare x86-64 machine with a driver (no compiler, no network): usage
# bundle.sh FOLDER [--no-commands]. There: FOLDER/run.sh. Needs here: the CUDA toolkit with cuBLAS and NCCL; for hetsched-train and
# hetsched-profile, which --no-commands leaves out, CMake, Gloo, Eigen, and what else hetsched's commands need; no GPU.
# ARCHITECTURES: "80 90", whose programs newer GPUs run, too. OPTIMISATION: of what runs on the host, -O2. COMPILED: a folder with
# libhetsched_compiled.a, if the programs are to be linked with it rather than compile the library's definitions. PROGRAMS: the names
# of those that are wanted; all.
set -euo pipefail
[[ $# == 1 || ($# == 2 && ${2:-} == --no-commands) ]] || { echo "usage: bundle.sh FOLDER [--no-commands]" >&2; exit 2; }
commands=(hetsched-train hetsched-profile)
if (($# == 2)); then commands=(); fi
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$(realpath -m "$1")
export PATH=$PATH:/usr/local/cuda/bin
command -v nvcc >/dev/null || { echo "no nvcc: the CUDA toolkit is needed" >&2; exit 2; }
mkdir -p "$folder/bin" "$folder/lib"

architectures=${ARCHITECTURES:-80 90}
codes=()
for a in $architectures; do codes+=(-gencode "arch=compute_$a,code=sm_$a") newest=$a; done
codes+=(-gencode "arch=compute_$newest,code=compute_$newest")
build=(nvcc -std=c++20 "${OPTIMISATION:--O2}" -fmad=false "${codes[@]}" -I "$source/include" -I "$source/examples" -Xlinker -s
  -Xcompiler -static-libstdc++,-static-libgcc)
libraries=() wanted=()
if [[ -n ${COMPILED:-} ]]; then build+=(-DHETSCHED_COMPILED) libraries=("$COMPILED/libhetsched_compiled.a"); fi
programs=(
  "$source/examples/cuda/own_layers.cu -o $folder/bin/own_layers"
  "$source/tests/gpu/rules.cu -o $folder/bin/rules"
  "$source/tests/gpu/checks.cu -o $folder/bin/checks"
  "$source/tests/gpu/checks.cu -o $folder/bin/checks_nccl -DCHECKS_NCCL -lnccl"
  "$source/tests/gpu/nccl.cu -o $folder/bin/nccl -lnccl"
  "$source/tests/gpu/gpt.cu -o $folder/bin/gpt -lcublas -lcublasLt")
for name in ${PROGRAMS:-}; do wanted+=(-e "/bin/$name\( \|$\)"); done
if [[ -z ${PROGRAMS:-} ]]; then wanted=(-e .); fi
printf '%s\n' "${programs[@]}" | grep "${wanted[@]}" | xargs -P "$(nproc)" -I{} bash -c "echo \"\$1\" >&2; ${build[*]@Q} \$1 ${libraries[*]@Q}" _ {}

if ((${#commands[@]} > 0)); then
  mkdir -p "$folder.build"
  cmake -S "$source" -B "$folder.build" -DCMAKE_BUILD_TYPE=Release -DHETSCHED_BUILD_TESTS=OFF -DHETSCHED_BUILD_BENCH=OFF -DHETSCHED_EIGEN=ON \
    -DHETSCHED_BUILD_TRAIN=ON -DHETSCHED_GLOO=ON -DHETSCHED_CUDA=ON -DHETSCHED_NCCL=ON -DCMAKE_CUDA_ARCHITECTURES="${architectures// /;}" \
    -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags -DCMAKE_BUILD_RPATH='$ORIGIN/../lib' >"$folder.build/configure.log"
  cmake --build "$folder.build" --target hetsched-train hetsched-profile -j "$(nproc)" >"$folder.build/build.log"
fi
for command in "${commands[@]}"; do
  install -s "$folder.build/examples/$command" "$folder/bin/"
  # What a machine with a driver has: the C library, and NVIDIA's own.
  ldd "$folder.build/examples/$command" | awk '$3 ~ /^\// && $1 !~ /^(libc|libm|libdl|librt|libpthread|libnccl|libcublas|libcublasLt|libcuda)\.so/ { print $3 }' |
    while read -r library; do cp -L "$library" "$folder/lib/"; done
done
cp "$source/examples/gpt/alice.txt" "$folder/text.txt"
cp "$source/tests/gpu/rows.txt" "$source/tests/gpu/two.sh" "$folder/"
cp "$source/tests/gpu/run_rows.sh" "$folder/run.sh"
chmod +x "$folder"/*.sh
bytes=$(du -sb "$folder" | cut -f1)
echo "$folder: $((bytes >> 20)) MiB"
((bytes <= 64 << 20)) || { echo "more than 64 MiB" >&2; exit 1; }
