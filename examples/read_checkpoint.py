#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads a checkpoint: `read_checkpoint.py run/step-000120` lists its tensors, with what their layers call
them and the sums of their elements times 1, 2, 3 ... Element kinds are f32, f64 and i64."""
import array
import json
import pathlib
import sys

KINDS = {"f32": "f", "f64": "d", "i64": "q"}


def read(folder):
    """{(layer, name): (shape, values)}, the last extent running fastest."""
    folder = pathlib.Path(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    parts = [(folder / f"part-{p}.bin").read_bytes() for p in range(len(manifest["parts"]))]
    tensors = {}
    for s in manifest["slices"]:
        count = 1
        for extent in s["shape"]:
            count *= extent
        kind = KINDS[s["element"]]
        empty = array.array(kind, bytes(count * array.array(kind).itemsize))
        shape, values = tensors.setdefault((s["layer"], s["name"]), (s["shape"], empty))
        held = array.array(kind)
        held.frombytes(parts[s["part"]][s["offset"]:s["offset"] + s["count"] * held.itemsize])
        rows = s.get("rows", 1)
        length = s["count"] // rows
        for row in range(rows):
            first = s["first"] + row * s.get("apart", 0)
            values[first:first + length] = held[row * length:(row + 1) * length]
    return tensors


def own_names(folder):
    """{(layer, name): what the layer calls the parameter or buffer that it is, or is of}"""
    manifest = json.loads((pathlib.Path(folder) / "manifest.json").read_text())
    return {(s["layer"], s["name"]): s.get("own_name", "") for s in manifest["slices"]}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    own = own_names(sys.argv[1])
    for (layer, name), (shape, values) in sorted(read(sys.argv[1]).items()):
        weighted = sum((i + 1) * value for i, value in enumerate(values))
        print(f"{layer:4} {name:28} {own[layer, name]:24} {' x '.join(map(str, shape)) or '1':16} weighted sum {weighted:.17g}")
