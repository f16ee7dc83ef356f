# SPDX-License-Identifier: Apache-2.0
"""What an action costs PyTorch's pipelining over gloo: 1F1B of 64 microbatches with stages that do nothing, as in
bench/gloo_executor_bench.cpp. Time and processor time per action of a rank (computations, sends and receives), in microseconds:
medians over 5 times 20 steps, of the slowest rank.
    torchrun --nproc-per-node RANKS torch_actions.py [NUMBERS-PER-TENSOR]"""
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

microbatches, steps, repeats = 64, 20, 5
numbers = int(sys.argv[1]) if len(sys.argv) > 1 else 1
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
stage = PipelineStage(torch.nn.Identity(), rank, ranks, torch.device("cpu"))
schedule = Schedule1F1B(stage, n_microbatches=microbatches, loss_fn=lambda output, target: output.sum())
batch = torch.zeros(microbatches, numbers, dtype=torch.float64, requires_grad=True)


def step():
    if rank == 0 and ranks == 1:
        schedule.step(batch, target=batch)
    elif rank == 0:
        schedule.step(batch)
    else:
        schedule.step(**({"target": batch} if rank == ranks - 1 else {}))


for _ in range(3):
    step()
neighbours = (rank > 0) + (rank < ranks - 1)
actions = steps * microbatches * (2 + 2 * neighbours)
found = []
for _ in range(repeats):
    dist.barrier()
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    found.append((1e6 * (time.perf_counter() - wall) / actions, 1e6 * (time.process_time() - processor) / actions))
mine = torch.tensor([statistics.median(v) for v in zip(*found)], dtype=torch.float64)
dist.all_reduce(mine, dist.ReduceOp.MAX)
if rank == 0:
    print(f"{ranks} ranks, {8 * numbers} bytes: {mine[0]:.1f} us, {mine[1]:.1f} us of the processor per action")
dist.destroy_process_group()
