# SPDX-License-Identifier: Apache-2.0
"""The small GPT of the examples on torch, for the run.py of an exported plan: the first weights from a checkpoint of
hetsched-train (CHECKPOINT), the samples of its steps (TEXT, SEED). Layer norms, GELU, learned positions, untied. At its end a
rank says how many layers it ran forward."""
import atexit
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, layer_norm, linear, scaled_dot_product_attention

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
from read_checkpoint import read  # noqa: E402

HEADS = int(os.environ.get("HEADS", 4))
SEQUENCE = int(os.environ.get("SEQUENCE", 64))
MASK = (1 << 64) - 1


class Part(nn.Module):
    """A layer with the parameters that a checkpoint has for it, in their order."""

    def __init__(self, values):
        super().__init__()
        self.p = nn.ParameterList(torch.tensor(v, dtype=torch.float64).reshape(s) for s, v in values)


class Embedding(Part):
    def forward(self, tokens):
        return self.p[0][tokens] + self.p[1]


class Block(Part):
    def forward(self, x):
        gain_1, bias_1, qkv, qkv_bias, out, out_bias, gain_2, bias_2, up, up_bias, down, down_bias = self.p
        width = x.shape[-1]
        norm = lambda v, gain, bias: layer_norm(v, (width,), gain.flatten(), bias.flatten(), 1e-5)
        heads = lambda v: v.unflatten(-1, (HEADS, -1)).transpose(-2, -3)
        q, k, v = (norm(x, gain_1, bias_1) @ qkv + qkv_bias).chunk(3, -1)
        mixed = scaled_dot_product_attention(heads(q), heads(k), heads(v), is_causal=True)
        x = x + mixed.transpose(-2, -3).flatten(-2) @ out + out_bias
        return x + gelu(norm(x, gain_2, bias_2) @ up + up_bias, approximate="tanh") @ down + down_bias


class Head(Part):
    def forward(self, x):
        table, gain, bias = self.p
        return linear(layer_norm(x, (x.shape[-1],), gain.flatten(), bias.flatten(), 1e-5), table)


def model():
    layers = {}
    for (layer, name), value in read(os.environ["CHECKPOINT"]).items():
        if name.startswith("parameter."):
            layers.setdefault(layer, []).append((int(name.removeprefix("parameter.")), value))
    run = [0]
    def count(layer, inputs):
        run[0] += 1
    atexit.register(lambda: print(f"rank {os.environ['RANK']}: {run[0]} forwards", flush=True))
    parts = [[v for _, v in sorted(layers[i], key=lambda n: n[0])] for i in range(len(layers))]
    made = [(Embedding if i == 0 else Head if i + 1 == len(parts) else Block)(p) for i, p in enumerate(parts)]
    for layer in made:
        layer.register_forward_pre_hook(count)
    return made


def split_mix(state):
    """The numbers of the library's random_source."""
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        yield z ^ (z >> 31)


step = -1


def samples(count):
    """Of the next step, as hetsched-train draws them."""
    global step
    step += 1
    text = Path(os.environ["TEXT"]).read_bytes()
    by_seed = next(split_mix(int(os.environ["SEED"])))
    by_step = next(split_mix(by_seed ^ step))
    rows = []
    for number in range(count):
        first = int((next(split_mix(by_step ^ number)) >> 11) * 2.0**-53 * (len(text) - SEQUENCE))
        rows.append(list(text[first:first + SEQUENCE + 1]))
    rows = torch.tensor(rows)
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def loss(logits, targets):
    return cross_entropy(logits.flatten(0, -2), targets.flatten())


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=float(os.environ["LR"]))
