#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the schedules of the 1F1B family over slow links against what is predicted: 2 and 3 processes, each in a network
# namespace of its own, joined by links of limited rate. Needs root. Prints markdown tables.
#   bash bench/links.sh [--rate 200mbit] [--delay 5ms] [--segment 32000] [--ranks "2 3"] [--program FILE]
#     [-- options of links_bench]
# The kernel limits links in threads without priority: on a busy machine links stand still meanwhile, and where they are the
# bottleneck (c = t_max), times say more about the machine than about the schedule. What is printed below each table tells.
set -eu -o pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/netns.sh"

rate=200mbit ranks="2 3" program=""
while [ $# -gt 0 ]; do
  case $1 in
    --rate) rate=$2 && shift 2 ;;
    --delay) netns_delay=$2 && shift 2 ;;
    --segment) netns_segment=$2 && shift 2 ;;
    --ranks) ranks=$2 && shift 2 ;;
    --program) program=$2 && shift 2 ;;
    --) shift && break ;;
    *) echo "links.sh: there is no option $1" >&2 && exit 2 ;;
  esac
done

missing=$(netns_missing)
if [ -z "$missing" ] && [ -n "$netns_delay" ] && ! netns_has_netem; then missing="the kernel has no netem to delay with"; fi
if [ -n "$missing" ]; then
  echo "skipped: $missing"
  exit 0
fi

# What else runs here must not hold up layers that only sleep; layers that spin would starve the rest.
first=()
case " $* " in
  *" --spin "*) ;;
  *) ! chrt -f 5 true 2> /dev/null || first=(chrt -f 5) ;;
esac

scratch=$(mktemp -d)
pids=()
finish() {
  local pid
  for pid in "${pids[@]}"; do kill "$pid" 2> /dev/null || true; done
  wait
  netns_down
  rm -rf "$scratch"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
if [ -z "$program" ]; then
  program=$scratch/links_bench
  echo "compiling links_bench" >&2
  ${CXX:-g++} -std=c++20 -O2 -DNDEBUG -I "$here/../include" "$here/links_bench.cpp" -o "$program" -lgloo -lhiredis -pthread
fi

packet_wait_ms() {
  local pid sum=0
  for pid in $(pgrep -x 'ksoftirqd/[0-9]+'); do sum=$((sum + $(cut -d ' ' -f 2 "/proc/$pid/schedstat" 2> /dev/null || echo 0) / 1000000)); done
  echo "$sum"
}

for count in $ranks; do
  netns_up "$count" "$rate"
  echo "### $count ranks, links of $rate per direction"
  echo
  pids=() waited=$(packet_wait_ms)
  for ((r = count - 1; r >= 0; --r)); do
    RANK=$r WORLD_SIZE=$count ip netns exec "$(netns_name "$r")" "${first[@]}" "$program" --rendezvous "file:$scratch/store$count" \
      --address "$(netns_address "$r")" "$@" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid"; done
  pids=()
  echo "the kernel's threads for packets have waited $(($(packet_wait_ms) - waited)) ms for a processor meanwhile"
  for ((r = 0; r + 1 < count; ++r)); do
    echo "rank $r has put $(($(netns_bytes_to_next "$r") >> 20)) MiB on its link to rank $((r + 1))"
  done
  echo
  netns_down
done
