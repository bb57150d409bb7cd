"""FSDP2 on one rank of several, beside bytes counted by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from brimful.tracing.launch import trace_script
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.torch

RANKS, WIDTH, BATCH = 4, 1024, 8
SCRIPT = f"""
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

dist.init_process_group("nccl")
model = torch.nn.Sequential(*(torch.nn.Linear({WIDTH}, {WIDTH}) for _ in range(4)))
WHERE
for layer in model:
    fully_shard(layer, mp_policy=MixedPrecisionPolicy(POLICY))
fully_shard(model, mp_policy=MixedPrecisionPolicy(POLICY))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn({BATCH}, {WIDTH}, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LAYER = WIDTH * WIDTH + WIDTH  # numbers of a layer
SHARD = LAYER // RANKS
STATES = 4 * (SHARD * 4) * 3  # of four layers: weights and two moments in fp32


def traced(folder: Path, *, where: str = "", policy: str = "") -> dict[str, Any]:
    path = folder / "train.py"
    path.write_text(SCRIPT.replace("WHERE", where).replace("POLICY", policy))
    found = trace_script(path, [], gpu="h100", steps=2, limit_s=PATIENCE_S, world=RANKS)
    return {"peak": found["peak_tensor_bytes"], **{item["code"]: item["bytes"] for item in found["items"]}}


@pytest.mark.parametrize("where", ["", "model.cuda()"])
def test_a_rank_holds_its_shards_and_two_layers_whole(where: str, tmp_path: Path) -> None:
    """The peak is at the second layer from the front, going back.

    It and the one before it are whole, it has its gradient, and the layer behind it gives its own to be
    summed over all ranks. The two layers behind have their shards of the gradient.
    """
    found = traced(tmp_path, where=where)
    activation = BATCH * WIDTH * 4

    assert found["weights"] + found["optimizer_state"] == STATES
    assert found["gathered_weights"] == 2 * LAYER * 4
    assert found["ddp_buckets"] == LAYER * 4
    assert found["gradients"] == 2 * SHARD * 4
    # Besides: the gradient itself; what the first two layers read, and a gradient of each way
    whole = STATES + (2 + 1 + 1) * LAYER * 4 + 2 * SHARD * 4
    assert found["peak"] == pytest.approx(whole + 4 * activation, abs=64)  # and the loss


def test_weights_are_gathered_in_16_bits_and_reduced_in_32(tmp_path: Path) -> None:
    found = traced(tmp_path, policy="param_dtype=torch.bfloat16, reduce_dtype=torch.float32")

    assert found["weights"] == 4 * SHARD * 4
    assert found["gathered_weights"] == 2 * LAYER * 2
    assert found["ddp_buckets"] == LAYER * 4
