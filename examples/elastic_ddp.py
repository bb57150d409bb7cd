"""Data-parallel training that may change its number of GPUs while it runs, in plain PyTorch.

    brimful submit examples/jobs/elastic.yaml

brimful says how many GPUs the gang has now (`BRIMFUL_GANG_GPUS`) and how many micro-batches each of them
adds up (`BRIMFUL_ACCUMULATE`): the effective batch, and with it the loss curve, stays the same at every size.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import nullcontext

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from brimful.job import LEFT_IN_TIME, Run

EFFECTIVE_BATCH, INPUTS = 48, 16


def a_batch(step: int):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(EFFECTIVE_BATCH, INPUTS, generator=generator)
    return x, x.sin().sum(dim=1, keepdim=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--pause", type=float, default=0.0)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    micro = int(os.environ.get("BRIMFUL_ACCUMULATE", "1"))

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(INPUTS, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    run, start = Run(), 0
    if run.latest:
        state = torch.load(run.latest / "state.pt")
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
    model = DistributedDataParallel(net)
    if rank == 0:
        print(f"{world} workers, {micro} micro-batches each, from step {start}", flush=True)

    for step in range(start, args.steps):
        x, y = (part.chunk(world * micro)[rank * micro : (rank + 1) * micro] for part in a_batch(step))
        optimizer.zero_grad()
        total = torch.zeros(())
        for i in range(micro):
            with nullcontext() if i == micro - 1 else model.no_sync():
                loss = nn.functional.mse_loss(model(x[i]), y[i]) / micro
                loss.backward()
                total += loss.detach()
        optimizer.step()
        leaving = torch.tensor(float(run.told))
        dist.all_reduce(total)
        dist.all_reduce(leaving, dist.ReduceOp.MAX)  # all of them leave after the same step
        if rank == 0:
            print(f"step {step} loss {total.item() / world:.5f}", flush=True)
        if leaving:
            if rank == 0:
                with run.saving(step + 1) as folder:
                    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
                    torch.save(state, folder / "state.pt")
            dist.barrier()
            sys.exit(LEFT_IN_TIME)
        time.sleep(args.pause)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
