"""FLOPs and bytes of every op of a traced run, added up by step, op and number format."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from torch.utils.flop_counter import flop_registry

from brimful.tracing.speed import Cost


class Costs:
    """Fed by the recorder with every op that is a kernel; views are none."""

    def __init__(self) -> None:
        self.steps: defaultdict[int, dict[tuple[str, str], Cost]] = defaultdict(dict)

    def add(
        self,
        func: Any,
        name: str,
        args: Any,
        kwargs: Any,
        out: Any,
        tensors: Sequence[Any],
        *,
        step: int,
        again: bool,
    ) -> None:
        """One call. FLOPs are PyTorch's own count; bytes are every tensor read or written, once."""
        count = flop_registry.get(func._overloadpacket)
        flops = int(count(*args, **kwargs, out_val=out)) if count is not None else 0
        dtype = next((str(t.dtype).removeprefix("torch.") for t in tensors if t.is_floating_point()), "int64")
        cost = self.steps[step].setdefault((name, dtype), Cost())
        cost.calls += 1
        cost.flops += flops
        cost.recomputed_flops += flops if again else 0
        cost.bytes += sum(t.numel() * t.element_size() for t in tensors)
