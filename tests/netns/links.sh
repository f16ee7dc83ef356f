#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# links.sh PROGRAM: two processes of links_bench in network namespaces. Checks that tensors cross the limited link and no other
# way, that the link limits them, and that H-1F1B is not slower than 1F1B where a transfer takes as long as a microbatch.
set -eu -o pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
program=$1

out=$(timeout 120 bash "$here/../../bench/links.sh" --program "$program" --ranks 2 --rate 100mbit -- \
  --compute-ms 20 --microbatches 24 --repeats 1 --ratios 1 --schedules 1f1b,h1f1b)
echo "$out"
case $out in skipped:*) exit 77 ;; esac

echo "$out" | awk -F '|' '
  function fail(text) { print "FAILED: " text; failed = 1 }
  / Mbit\/s$/ { split($0, word, " "); rate = word[length(word) - 1]; ++links; if (rate > 120) fail("a link of 100 Mbit/s carries " rate) }
  $3 ~ /^ 1f1b $/ { plain = $6 + 0 }
  $3 ~ /^ h1f1b $/ { early = $6 + 0 }
  /has sent [0-9]+ MiB of activations/ { split($0, word, " "); sent = word[5] }
  /has put [0-9]+ MiB on its link to rank 1/ { split($0, word, " "); put = word[5] }
  END {
    if (links != 2) fail("found the rates of " links + 0 " links, expected 2")
    if (!(plain > 0 && early > 0)) fail("no times of both schedules")
    if (early > plain) fail("h1f1b takes " early " s, 1f1b " plain " s")
    if (!(sent > 0 && put >= sent)) fail(put + 0 " MiB have crossed the link, tensors are " sent + 0 " MiB")
    exit failed
  }'
echo "netns.links: passed"
