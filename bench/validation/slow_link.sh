#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two ranks in two network namespaces train while the link between them becomes slower (tbf); needs root and iproute2. Prints the
# seconds of each step beside what `auto` predicts. usage: slow_link.sh HETSCHED-TRAIN [FAST SLOW], in Mbit/s
set -euo pipefail
train=$(realpath "$1") fast=${2:-400} slow=${3:-40}
place=$(mktemp -d) a=hsslow${$}a b=hsslow${$}b
end() { ip netns del $a; ip netns del $b; rm -rf "$place"; } 2>/dev/null
trap end EXIT
ip netns add $a && ip netns add $b
ip link add veth${$}a netns $a type veth peer name veth${$}b netns $b
for s in a b; do
  ip -n hsslow${$}$s addr add 10.199.9.$([[ $s == a ]] && echo 1 || echo 2)/24 dev veth${$}$s
  ip -n hsslow${$}$s link set veth${$}$s up
  ip -n hsslow${$}$s link set lo up
done
rate() { for s in a b; do ip netns exec hsslow${$}$s tc qdisc replace dev veth${$}$s root tbf rate "$1"mbit burst 64kb latency 400ms; done; }
rate "$fast"
cd "$place"
for r in 0 1; do
  RANK=$r WORLD_SIZE=2 LOCAL_RANK=0 ip netns exec "$([[ $r == 0 ]] && echo $a || echo $b)" "$train" --layers 2 --hidden 128 --heads 4 \
    --sequence 128 --microbatches 8 --microbatch-size 2 --steps 45 --transport gloo --store "file:$place/store" --log log.jsonl \
    --losses losses.csv --schedule auto --replan-every 5 >"$r.out" 2>"$r.err" &
done
until [[ $(cat log.jsonl 2>/dev/null | wc -l) -ge 20 ]]; do sleep 0.01; done
rate "$slow"
echo "slowed after step $(wc -l <log.jsonl)"
wait
grep -E "works in another order|an iteration takes" 0.err || echo "no other order"
python3 - <<'P'
import json, statistics
seconds = [json.loads(l)["ranks"] for l in open("log.jsonl")]
span = [max(r["span_s"] for r in ranks) for ranks in seconds]
for first in range(0, len(span), 5):
    part = span[first:first + 5]
    print(f"steps {first:2d} to {first + len(part) - 1:2d}: median {statistics.median(part) * 1e3:.1f} ms, {min(part) * 1e3:.1f} to {max(part) * 1e3:.1f}")
P
"$train" --layers 2 --hidden 128 --heads 4 --sequence 128 --microbatches 8 --microbatch-size 2 --steps 45 --ranks 1 --losses one.csv >/dev/null 2>&1
cmp losses.csv one.csv && echo "the losses are those of one rank, undisturbed"
