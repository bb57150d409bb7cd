"""A run of the simulated allocator, written down as PyTorch writes a memory snapshot."""

from __future__ import annotations

import random
from typing import Any

from brimful.allocator import Allocator, OutOfMemory, Settings
from brimful.allocator.blocks import DEFAULT_POOL, FREE, USED, Block, PoolId
from brimful.units import KIB, MIB


class Logged(Allocator):
    """It also writes down when a block comes back, also where a full GPU waits for it."""

    def complete(self, address: int) -> None:
        block = self.pending[address]
        assert self.log is not None
        self.log.append(("free_completed", address, block.requested, block.stream))
        super().complete(address)


class Recording:
    """Every event and, at any moment, the segments: what torch.cuda.memory._snapshot() would say."""

    def __init__(self, conf: str = "", capacity_bytes: int | None = None) -> None:
        self.settings = Settings.parse(conf)
        self.log: list[tuple[str, int, int, int]] = []
        self.allocator = Logged(self.settings, capacity_bytes, log=self.log)
        self.trace: list[dict[str, Any]] = []
        self.requested: dict[int, tuple[int, int, PoolId]] = {}
        self.emptying = False

    def _say(self, action: str, address: int, nbytes: int, stream: int, owner: PoolId = DEFAULT_POOL) -> None:
        inner = [{"name": "empty_cache", "filename": "/venv/torch/cuda/memory.py", "line": 1}] * self.emptying
        self.trace.append(
            {
                "action": action,
                "addr": address,
                "size": nbytes,
                "stream": stream,
                "time_us": 1_700_000_000_000_000 + len(self.trace),
                "pool_id": owner,
                "frames": [*inner, {"name": "step", "filename": "/src/me/train.py", "line": 7}],
            }
        )

    def _flush(self, owner: PoolId = DEFAULT_POOL) -> None:
        for action, address, nbytes, stream in self.log:
            self._say(action, address, nbytes, stream, owner)
        self.log.clear()

    def malloc(self, nbytes: int, stream: int = 0, owner: PoolId = DEFAULT_POOL) -> int:
        try:
            address = self.allocator.malloc(nbytes, stream, owner)
        except OutOfMemory as error:
            self._flush(owner)
            self._say("oom", error.free_bytes, self.allocator.round_size(nbytes), stream, owner)
            raise
        self._flush(owner)
        self.requested[address] = (nbytes, stream, owner)
        self._say("alloc", address, nbytes, stream, owner)
        return address

    def free(self, address: int, *, later: bool = False) -> None:
        nbytes, stream, owner = self.requested[address]
        self.allocator.request_free(address)
        self._say("free_requested", address, nbytes, stream, owner)
        if not later:
            self.complete(address)

    def complete(self, address: int) -> None:
        if address in self.allocator.pending:
            self.allocator.complete(address)
            self._flush(self.requested[address][2])

    def empty_cache(self) -> None:
        for address in tuple(self.allocator.pending):
            self.complete(address)
        self.allocator.empty_cache()
        self.emptying = True
        self._flush()
        self.emptying = False

    def snapshot(self, first: int = 0) -> dict[str, Any]:
        """The dict that _dump_snapshot pickles, with the events from `first` on."""
        divisions = self.settings.divisions or (0,) * 16
        return {
            "segments": self._segments(),
            "device_traces": [self.trace[first:]],
            "allocator_settings": {
                "PYTORCH_CUDA_ALLOC_CONF": str(self.settings),
                "max_split_size": self.settings.max_split_bytes or -1,
                "garbage_collection_threshold": self.settings.garbage_collection_threshold,
                "expandable_segments": self.settings.expandable_segments,
                "roundup_power2_divisions": {str(1 << i): part for i, part in enumerate(divisions)},
            },
            "external_annotations": [],
        }

    def _segments(self) -> list[dict[str, Any]]:
        blocks: dict[int, Block] = {}
        pools = [pool for pair in self.allocator.pools.values() for pool in pair]
        for block in (*(b for pool in pools for b in pool.in_order()), *self.allocator.live.values()):
            blocks[block.address] = block
        blocks |= self.allocator.pending
        heads = [b for b in blocks.values() if b.before is None or not b.before.mapped]
        return [_segment(head) for head in sorted(heads, key=lambda b: b.address)]


def _segment(head: Block) -> dict[str, Any]:
    blocks, block = [], head
    while True:
        state = {FREE: "inactive", USED: "active_allocated"}.get(block.state, "active_awaiting_free")
        blocks.append(
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested,
                "state": state,
                "frames": [],
            }
        )
        if block.after is None or not block.after.mapped:
            break
        block = block.after
    return {
        "device": 0,
        "address": head.address,
        "total_size": sum(b["size"] for b in blocks),
        "allocated_size": sum(b["size"] for b in blocks if b["state"] == "active_allocated"),
        "active_size": sum(b["size"] for b in blocks if b["state"] != "inactive"),
        "requested_size": 0,
        "stream": head.stream,
        "segment_type": "small" if head.pool.small else "large",
        "segment_pool_id": head.pool.owner,
        "is_expandable": head.va is not None,
        "frames": [],
        "blocks": blocks,
    }


def a_run(recording: Recording, steps: int, seed: int, *, streams: int = 1, pools: int = 1) -> Recording:
    """A random program: small and large tensors, some freed late, the cache emptied now and then."""
    choose = random.Random(seed)
    sizes = [choose.randrange(1, 40 * MIB) for _ in range(12)] + [
        choose.randrange(1, 900 * KIB) for _ in range(12)
    ]
    live: list[int] = []
    late: list[int] = []
    for _ in range(steps):
        what = choose.random()
        if what < 0.52 or not live:
            jitter = choose.choice((0, 0, choose.randrange(2 * MIB)))
            stream = choose.randrange(streams)
            owner = (choose.randrange(pools), 0)
            try:
                live.append(recording.malloc(choose.choice(sizes) + jitter, stream, owner))
            except OutOfMemory:
                for address in live[::2]:
                    recording.free(address)
                live = live[1::2]
        elif what < 0.985:
            address = live.pop(choose.randrange(len(live)))
            later = streams > 1 and choose.random() < 0.3
            recording.free(address, later=later)
            if later:
                late.append(address)
        else:
            recording.empty_cache()
            late.clear()
        if late and choose.random() < 0.3:
            recording.complete(late.pop(0))
    return recording
