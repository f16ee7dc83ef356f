#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times iterations of GPT-2 and Llama in eager PyTorch on one CUDA GPU, as tests/data/torch_iterations.csv has them.

usage: torch_iterations.py DEVICE [SECONDS]     DEVICE: its name in hetsched's catalogue. SECONDS: no row begins later (150).
Writes CSV on standard output; a row that does not fit the GPU's memory is told on standard error and left out.
Needs PyTorch 2.4 or later. Medians of at least four iterations, by CUDA events; parts are timed apart, with a wait behind each.
"""
import csv, datetime, gc, statistics, sys, time
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

device_name, limit = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 150.0
begin = time.monotonic()
device = torch.device("cuda")
torch.set_float32_matmul_precision("high")


class Norm(nn.Module):
    def __init__(self, width, llama):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), None if llama else nn.Parameter(torch.zeros(width))

    def forward(self, x):
        if self.bias is None:
            return F.rms_norm(x, self.weight.shape, self.weight)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias)


def rotated(x, table):
    half = x.shape[-1] // 2
    return x * table[0] + torch.cat((-x[..., half:], x[..., :half]), -1) * table[1]


class Block(nn.Module):
    def __init__(self, llama, hidden, heads, kv_heads, ffn):
        super().__init__()
        self.width, self.grouped = hidden // heads, kv_heads != heads
        self.sizes = (hidden, kv_heads * self.width, kv_heads * self.width)
        self.norms = nn.ModuleList(Norm(hidden, llama) for _ in range(2))
        self.qkv, self.out = nn.Linear(hidden, sum(self.sizes), bias=not llama), nn.Linear(hidden, hidden, bias=not llama)
        self.gate = nn.Linear(hidden, ffn, bias=False) if llama else None
        self.up, self.down = nn.Linear(hidden, ffn, bias=not llama), nn.Linear(ffn, hidden, bias=not llama)

    def forward(self, x, table):
        samples, tokens, hidden = x.shape
        q, k, v = (t.view(samples, tokens, -1, self.width).transpose(1, 2) for t in self.qkv(self.norms[0](x)).split(self.sizes, -1))
        if table is not None:
            q, k = rotated(q, table).to(v.dtype), rotated(k, table).to(v.dtype)
        read = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.grouped)
        x = x + self.out(read.transpose(1, 2).reshape(samples, tokens, hidden))
        y = self.norms[1](x)
        inner = F.silu(self.gate(y)) * self.up(y) if self.gate else F.gelu(self.up(y), approximate="tanh")
        return x + self.down(inner)


class Model(nn.Module):
    def __init__(self, llama, layers, hidden, heads, kv_heads, ffn, vocab, tokens):
        super().__init__()
        self.words, self.places = nn.Embedding(vocab, hidden), None if llama else nn.Embedding(tokens, hidden)
        self.blocks = nn.ModuleList(Block(llama, hidden, heads, kv_heads, ffn) for _ in range(layers))
        self.norm, self.head, self.width = Norm(hidden, llama), nn.Linear(hidden, vocab, bias=False), hidden // heads
        if not llama:
            self.head.weight = self.words.weight

    def forward(self, tokens, recompute):
        x, table = self.words(tokens), None
        places = torch.arange(tokens.shape[1], device=tokens.device)
        if self.places is not None:
            x = x + self.places(places)
        else:
            angles = torch.outer(places.float(), 10000.0 ** (-torch.arange(0, self.width, 2, device=tokens.device) / self.width))
            angles = torch.cat((angles, angles), -1)
            table = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blocks:
            x = checkpoint(block, x, table, use_reentrant=False) if recompute else block(x, table)
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), tokens.flatten())


def measure(model, optimizer, tokens, microbatches, autocast, recompute):
    """Seconds of forward, backward, optimizer and iteration."""
    def iteration(parts=None):
        marks = []

        def mark():
            if parts is not None:
                torch.cuda.synchronize()
                marks.append(time.perf_counter())
        for _ in range(microbatches):
            mark()
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                loss = model(tokens, recompute)
            mark()
            loss.backward()
        mark()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mark()
        if parts is not None:
            forward = sum(marks[2 * i + 1] - marks[2 * i] for i in range(microbatches))
            parts.append((forward, marks[-2] - marks[0] - forward, marks[-1] - marks[-2]))

    for _ in range(3):
        iteration()
    torch.cuda.synchronize()
    start = time.perf_counter()
    iteration()
    torch.cuda.synchronize()
    times = max(4, min(100, int(0.5 / (time.perf_counter() - start))))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
    events[0].record()
    for event in events[1:]:
        iteration()
        event.record()
    torch.cuda.synchronize()
    whole = statistics.median(a.elapsed_time(b) for a, b in zip(events, events[1:])) * 1e-3
    parts = []
    for _ in range(3):
        iteration(parts)
    return *(statistics.median(column) for column in zip(*parts)), whole


def gpt2(layers, hidden, heads):
    return ("gpt2", layers, hidden, heads, heads, 4 * hidden, 50304)


def llama(layers, hidden, heads, kv_heads, ffn, vocab=32000):
    return ("llama", layers, hidden, heads, kv_heads, ffn, vocab)


# Model, tokens of a sample, samples, microbatches
ROWS = [
    (gpt2(12, 768, 12), 1024, 8, 1), (gpt2(12, 768, 12), 1024, 1, 1), (gpt2(12, 768, 12), 1024, 32, 1), (gpt2(24, 1024, 16), 1024, 8, 1),
    (gpt2(24, 1024, 16), 2048, 2, 4), (gpt2(36, 1280, 20), 1024, 8, 1), (gpt2(24, 2048, 16), 2048, 4, 1), (gpt2(24, 2048, 16), 2048, 1, 4),
    (gpt2(24, 1536, 16), 8192, 1, 1), (gpt2(12, 768, 12), 16384, 1, 1), (llama(16, 2048, 32, 8, 8192, 128256), 2048, 2, 1),
    (llama(16, 2048, 32, 8, 8192, 128256), 8192, 1, 1), (llama(22, 2048, 32, 4, 5632), 2048, 4, 1), (llama(28, 3072, 24, 8, 8192), 2048, 2, 1),
    (llama(8, 4096, 32, 32, 11008), 4096, 1, 1), (llama(8, 4096, 32, 8, 14336), 4096, 1, 2), (llama(8, 4096, 32, 32, 11008), 2048, 4, 1),
    (llama(4, 8192, 64, 8, 28672), 4096, 1, 1), (llama(16, 2048, 16, 16, 5504), 4096, 2, 1), (llama(12, 1024, 16, 16, 2816), 512, 16, 1)]

out = csv.writer(sys.stdout, lineterminator="\n")
out.writerow("device,day,model,precision,layers,hidden,heads,kv_heads,ffn,vocab,sequence,samples,microbatches,recompute,forward_s,"
             "backward_s,optimizer_s,iteration_s,peak_gib".split(","))
for precision in ("autocast", "pure"):
    for i, (shape, tokens, samples, microbatches) in enumerate(ROWS):
        for recompute in (0, 1) if precision == "pure" and i % 3 == 0 else (0,):
            if time.monotonic() - begin > limit:
                sys.exit("time is up")
            torch.manual_seed(1)
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            try:
                with device:
                    model = Model(shape[0] == "llama", *shape[1:], tokens)
                if precision == "pure":
                    model = model.to(torch.bfloat16)
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
                batch = torch.randint(0, shape[-1], (samples, tokens), device=device)
                seconds = measure(model, optimizer, batch, microbatches, precision == "autocast", recompute)
                out.writerow((device_name, datetime.date.today(), shape[0], precision, *shape[1:], tokens, samples, microbatches, recompute,
                              *(f"{s:.6g}" for s in seconds), f"{torch.cuda.max_memory_allocated() / 2**30:.4g}"))
                sys.stdout.flush()
            except torch.OutOfMemoryError:
                print("not enough memory:", shape, tokens, samples, precision, file=sys.stderr)
            model = optimizer = batch = None
