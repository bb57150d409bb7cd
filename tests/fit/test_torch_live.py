"""Live bytes at every op of a real training step of a small GPT, beside the peak we predict."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from brimful.fit.count import parameters
from brimful.fit.memory import peak_memory
from brimful.fit.overhead import workspace_bytes
from brimful.specs.framework import PLAIN
from brimful.specs.gpu import find_gpu
from tests.fit.builders import a_model, a_training
from tests.fit.test_torch import a_gpt

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:Failed to initialize NumPy"),
]

GPU = find_gpu("a100-sxm-80gb")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Many threads on few cores wait for each other most of the time."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def live_bytes() -> Any:
    """Counts storages from the op that makes them until nobody holds them."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Live(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.now_bytes = self.peak_bytes = 0
            self.sizes: dict[int, int] = {}

        def drop(self, key: int) -> None:
            self.now_bytes -= self.sizes.pop(key, 0)

        def added_into(self, first: int, total: int) -> None:
            """The engine adds a second gradient into the first, unless somebody watches it: as we do."""
            if self.sizes.get(first) == self.sizes[total]:
                self.now_bytes -= self.sizes[first]
                self.sizes[first] = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = function(*args, **(kwargs or {}))
            for tensor in tree_leaves(made):
                if isinstance(tensor, torch.Tensor):
                    storage = tensor.untyped_storage()
                    key = storage._cdata
                    if key not in self.sizes:
                        self.sizes[key] = storage.nbytes()
                        self.now_bytes += storage.nbytes()
                        weakref.finalize(storage, self.drop, key)
                        if function is torch.ops.aten.add.Tensor and torch._C._current_graph_task_id() != -1:
                            self.added_into(args[0].untyped_storage()._cdata, key)
            self.peak_bytes = max(self.peak_bytes, self.now_bytes)
            return made

    return Live()


@pytest.mark.parametrize(
    ("layers", "width", "vocab", "batch", "tokens", "accumulation"),
    [
        (2, 128, 50304, 1, 64, 2),  # the tied table is nearly all there is
        (8, 128, 20000, 1, 64, 2),
        (4, 128, 20000, 1, 64, 1),
        (2, 128, 20000, 2, 128, 2),  # the logits
        (4, 128, 500, 4, 128, 2),  # the activations
    ],
)
def test_the_peak_of_a_real_step_is_within_5_percent(
    layers: int, width: int, vocab: int, batch: int, tokens: int, accumulation: int
) -> None:
    import torch

    model = a_model(layers=layers, width=width, heads=width // 64, vocab=vocab, positions=tokens)
    # autocast on a CPU runs the log-softmax in fp32 as well, like a loss that casts by itself on a GPU
    early = replace(PLAIN, casts_logits=True)
    training = a_training(
        batch_size=batch, sequence_tokens=tokens, accumulation=accumulation, compiled=False, framework=early
    )
    gpt, ids = a_gpt(model), torch.zeros((batch, tokens), dtype=torch.long)
    adamw = torch.optim.AdamW(gpt.parameters(), fused=True)

    def step() -> None:
        for _ in range(accumulation):
            with torch.autocast("cpu", torch.bfloat16):
                _, loss = gpt(ids)
            (loss / accumulation).backward()
        adamw.step()
        adamw.zero_grad(set_to_none=True)

    step()  # so that AdamW has its state
    live = live_bytes()
    with live:
        step()
    measured = live.peak_bytes + 12 * parameters(model)  # weights and state were there before
    predicted = peak_memory(model, training, GPU).allocated_bytes.likely
    predicted -= workspace_bytes(GPU)  # a CPU has none

    assert predicted == pytest.approx(measured, rel=0.05)
