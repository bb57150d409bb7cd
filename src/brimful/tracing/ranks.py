"""One rank of a distributed run, alone: collectives return at once and move nothing.

`init_process_group` with any backend returns PyTorch's own fake process group. What a rank holds for the
others (DDP's gradient buckets, FSDP2's gathered weights) is then made by the same code as on a real cluster.
NCCL's own buffers are not.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from brimful.language import say
from brimful.tracing.recorder import Recorder

NOTE = say("tracing.note_nccl")


def _reduced_at_once(_, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202  DDP reads annotations
    """A bucket of gradients that has been summed over all ranks: in its own memory, as NCCL does."""
    done: Any = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def rank_changes(recorder: Recorder) -> list[tuple[Any, str, Any]]:
    """A fake process group on request; no changes if PyTorch was built without distributed."""
    if not dist.is_available():
        return []
    tape = recorder.tape
    begin = dist.init_process_group

    def init(*_: Any, **kwargs: Any) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        world = kwargs.get("world_size") or -1
        world = world if world > 0 else int(os.environ.get("WORLD_SIZE", "1"))
        rank = kwargs.get("rank") or -1
        rank = rank if rank >= 0 else int(os.environ.get("RANK", "0"))
        tape.rules[f"process group: {world} ranks, faked"] += 1
        if world > 1:
            tape.note(NOTE)
        begin(backend="fake", store=FakeStore(), rank=rank, world_size=world)

    from torch.nn.parallel import distributed

    parallel = distributed.DistributedDataParallel
    make, set_hook = parallel.__init__, parallel.register_comm_hook

    def wrap(model: Any, *args: Any, **kwargs: Any) -> None:
        before = len(tape.blocks)
        make(model, *args, **kwargs)
        for block in tape.blocks[before:]:
            block.role = block.role or "ddp_buckets"
        set_hook(model, None, _reduced_at_once)

    return [
        *_shard_changes(recorder),
        (parallel, "__init__", wrap),
        (parallel, "register_comm_hook", lambda *_, **__: None),
        (dist, "init_process_group", init),
        (dist.distributed_c10d, "init_process_group", init),
        # Compares shapes and copies weights between ranks by reading them: there is nothing to read.
        (distributed, "_verify_param_shape_across_processes", lambda *_, **__: True),
        (distributed, "_sync_module_states", lambda *_, **__: None),
        # Reorders buckets after the first step, by numbers that ranks exchange; sizes stay about the same.
        (dist.Reducer, "_rebuild_buckets", lambda *_: False),
        # Times collectives with CUDA events, which a CPU build does not have.
        (dist.Logger, "set_runtime_stats_and_log", lambda *_: None),
    ]


def _shard_changes(recorder: Recorder) -> list[tuple[Any, str, Any]]:
    """FSDP2 runs unchanged: only what it gathers and reduces is labelled here."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group as groups
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    tape = recorder.tape
    propagate = ShardingPropagator._propagate_tensor_meta_non_cached
    reduce = groups.foreach_reduce

    def unseen(*args: Any) -> Any:
        # A DTensor learns the shape of a result by running the op on fake tensors of the full size.
        recorder.paused += 1
        try:
            return propagate(*args)
        finally:
            recorder.paused -= 1

    def gathering(plain: Callable[..., Any]) -> Callable[..., Any]:
        def gathered(*args: Any, **kwargs: Any) -> Any:
            before = len(tape.blocks)
            found = plain(*args, **kwargs)
            for block in tape.blocks[before:]:
                block.role = block.role or "gathered_weights"
            return found

        return gathered

    def reduced(*args: Any, **kwargs: Any) -> Any:
        found = reduce(*args, **kwargs)
        number = recorder.block_of(found[0])  # what is summed over all ranks; this rank keeps its shard of it
        if number is not None:
            tape.blocks[number].role = "ddp_buckets"
        return found

    gathers = ("foreach_all_gather", "foreach_all_gather_copy_out")
    return [
        (ShardingPropagator, "_propagate_tensor_meta_non_cached", unseen),
        *((groups, name, gathering(getattr(groups, name))) for name in gathers),
        (groups, "foreach_reduce", reduced),
    ]
