#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits what cached_attention takes of a chip beyond its datasheet (attention_constants in cost/operators/tile_constants.hpp) to
kernels of inference engines, by random search over mean |log(predicted / measured)|, and prints constants and errors.

usage: fit_attention.py attention.csv [DEVICE], with the columns device, heads, kv_heads, m, n, k, causal, measured_ms
A DEVICE is left out of the fit; what belongs to its generation is then the geometric mean of the others'.
"""
import collections
import csv
import math
import random
import sys

CHIPS = {"A100-SXM4-80GB": ("ampere", 108, 2039e9, 312e12, 1.41e9, 40 * 2**20),
         "H200-SXM": ("hopper", 132, 4800e9, 989e12, 1.98e9, 50 * 2**20),
         "L40S": ("ada", 142, 864e9, 362e12, 2.52e9, 96 * 2**20)}
EXPONENTIAL_SHARE = {"ampere": 1.5, "hopper": 0.5, "ada": 1.0}
Row = collections.namedtuple("Row", "generation units bandwidth peak clock l2 heads kv m n k causal seconds")


def beside_l2(row, moved, reach, share):
    return 1 - (1 - share) / (1 + (moved / (reach * row.l2)) ** 3)


def prefill_s(row, c):
    block = 128 if row.heads * math.ceil(row.m / 128) >= row.units else 64
    blocks = math.ceil(row.m / block)
    rate = c["prefill_share", row.generation] * row.peak / row.units
    of_key = block * (4 * row.k / rate + EXPONENTIAL_SHARE[row.generation] / (16 * row.clock))
    seen = min(row.n, row.n / 2 + block / 2) if row.causal else row.n
    everything, longest = row.heads * blocks / row.units * of_key * seen, of_key * row.n
    compute = max(everything, longest) + c["tail"] * min(everything, longest)
    traffic = 4 * (row.heads * row.m + row.kv * row.n) * row.k
    moved = 2 * (row.heads + 2 * row.kv) * row.m * row.k
    per_byte = beside_l2(row, moved, c["l2_reach"], c["l2_share"]) / row.bandwidth
    memory = traffic / 0.85 * per_byte
    return max(compute, memory) + 0.12 * min(compute, memory) + c["passes"] * moved * per_byte + c["launch_s", row.generation]


def decode_s(row, c):
    traffic = 4 * (row.heads * row.m + row.kv * row.n) * row.k
    memory = traffic / (c["bandwidth_share"] * row.bandwidth) * beside_l2(row, traffic, c["l2_reach"], c["l2_share"])
    splits_all = row.generation == "hopper"
    splits = (splits_all or row.heads > row.kv) and row.kv < row.units
    ways = min(max(1, row.n / 256), row.units / row.kv) if splits else 1
    waves = row.kv * ways / row.units
    busy = 1 if waves <= 1 else waves + 0.2 * (math.ceil(waves) - waves)
    compute = 4 * row.n * row.k / ways * busy / (c["cycle_bytes"] * (3 if splits_all else 1) * row.clock)
    return max(memory, compute) + c["launch_s", row.generation] + (c["split_s"] if ways > 1 else 0)


def fitted(model, rows, constants, rounds=2500):
    def misfit(c):
        return sum(abs(math.log(model(r, c) / r.seconds)) for r in rows) / len(rows)
    source, step = random.Random(1), 0.3
    best, least = constants, misfit(constants)
    for i in range(rounds):
        other = {name: x * math.exp(source.gauss(0, step)) for name, x in best.items()}
        if (now := misfit(other)) < least:
            best, least = other, now
        if i % 300 == 299:
            step *= 0.6
    return best


def main():
    rows = []
    with open(sys.argv[1], encoding="utf-8") as file:
        for r in csv.DictReader(file):
            if r["device"] in CHIPS:
                rows.append(Row(*CHIPS[r["device"]], *(int(r[x]) for x in ("heads", "kv_heads", "m", "n", "k")),
                                r["causal"] == "1", float(r["measured_ms"]) * 1e-3))
    generations = ("ampere", "hopper", "ada")
    without = CHIPS[sys.argv[2]][0] if len(sys.argv) > 2 else None
    launch = {("launch_s", g): 1e-5 for g in generations}
    prefill = {"tail": 0.3, "passes": 2.5, "l2_reach": 1, "l2_share": 0.4, **launch, **{("prefill_share", g): 0.7 for g in generations}}
    decode = {"bandwidth_share": 0.83, "cycle_bytes": 14, "split_s": 5e-6, "l2_reach": 0.7, "l2_share": 0.4, **launch}
    for name, model, start, chosen in (("prefill", prefill_s, prefill, [r for r in rows if r.m > 1]),
                                       ("decode", decode_s, decode, [r for r in rows if r.m == 1])):
        found = fitted(model, [r for r in chosen if r.generation != without], start)
        for what in {k[0] for k in found if without in k}:
            found[what, without] = math.prod(found[what, g] for g in generations if g != without) ** (1 / (len(generations) - 1))
        print(name, {" ".join(k) if isinstance(k, tuple) else k: float(f"{x:.3g}") for k, x in found.items()})
        for g in generations:
            errors = [model(r, found) / r.seconds - 1 for r in chosen if r.generation == g]
            print(f"  {g}: {100 * sum(map(abs, errors)) / len(errors):.1f} % on average, bias {100 * sum(errors) / len(errors):.1f} %")


if __name__ == "__main__":
    main()
