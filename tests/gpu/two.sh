#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A command as two processes of this machine that meet in a folder, to NCCL of two hosts: usage two.sh COMMAND ARGUMENT...
# Ends with the first failure's status.
store=$(mktemp -d)
trap 'rm -rf "$store"; kill $(jobs -p) 2>/dev/null' EXIT
export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 NCCL_SOCKET_IFNAME=lo
program=$1
shift
pids=()
for rank in 0 1; do
  RANK=$rank LOCAL_RANK=$rank NCCL_HOSTID=hetsched-$rank "./$program" "$@" --store "file:$store" --address 127.0.0.1 &
  pids+=($!)
done
status=0
for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
exit "$status"
