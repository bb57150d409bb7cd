"""What a run did to GPU memory: blocks, and the events that made and freed them, in order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from brimful.allocator import EMPTY_CACHE, FREE, MALLOC, Allocator, Request
from brimful.language import Sentence
from brimful.specs.parts import Part

SETUP, FORWARD, BACKWARD, OPTIMIZER = "setup", "forward", "backward", "optimizer"


class Place(NamedTuple):
    """Where memory was requested: op, module, line of the user's code, and when."""

    op: str
    module: str
    line: str
    phase: str


@dataclass(slots=True)
class Block:
    """One piece of GPU memory: a storage, or a kernel's own allocation."""

    bytes: int
    place: Place
    step: int  # optimizer steps completed before it
    born: int  # index of its event
    sources: tuple[int, ...] = ()  # blocks the op read
    shape: tuple[int, ...] = ()
    dtype: str = ""
    role: Part | None = None  # if known: weights, gradients, workspaces, …
    died: int | None = None
    holders: int = 1  # storages that share it: an in-place op gives one block two names
    address: int = 0


@dataclass(slots=True)
class Tape:
    """Events in order, the blocks they refer to, and what had to be invented on the way."""

    blocks: list[Block] = field(default_factory=list)
    events: list[tuple[str, int]] = field(default_factory=list)  # (MALLOC | FREE | EMPTY_CACHE, block)
    step_ends: list[int] = field(default_factory=list)  # index of the first event after each optimizer step
    backward_starts: list[int] = field(default_factory=list)
    rules: Counter[str] = field(default_factory=Counter)  # rule -> times it applied
    values: Counter[str] = field(default_factory=Counter)  # line that asked for a value -> times
    shaped: Counter[str] = field(default_factory=Counter)  # line where such a value became a size -> times
    empty: Counter[str] = field(default_factory=Counter)  # model called with an empty tensor -> times
    memory_fraction: float | None = None  # as the script set it
    closed: bool = False  # the run is over: what is freed from now on is our own clean-up
    notes: dict[str, Sentence] = field(default_factory=dict)  # by code: what a reader must know, once each
    ops: int = 0
    # Answers torch.cuda.memory_allocated and similar calls while the script runs.
    allocator: Allocator = field(default_factory=Allocator)

    def note(self, said: Sentence) -> None:
        self.notes.setdefault(said.code, said)

    def alloc(
        self, size: int, place: Place, *, role: Part | None = None, sources: tuple[int, ...] = ()
    ) -> int:
        number = len(self.blocks)
        block = Block(size, place, len(self.step_ends), len(self.events), sources, role=role)
        block.address = self.allocator.malloc(size)
        self.blocks.append(block)
        self.events.append((MALLOC, number))
        return number

    def let_go(self, number: int) -> None:
        """One holder fewer; the last one frees it."""
        if self.closed:
            return
        block = self.blocks[number]
        block.holders -= 1
        if block.holders == 0:
            block.died = len(self.events)
            self.events.append((FREE, number))
            self.allocator.free(block.address)

    def close(self) -> None:
        """The run is over."""
        self.closed = True

    def empty_cache(self) -> None:
        self.events.append((EMPTY_CACHE, -1))
        self.allocator.empty_cache()

    def reset_peaks(self) -> None:
        """A script's own reset affects only its own questions; the report reads the events."""
        allocator = self.allocator
        allocator.peak_allocated_bytes = allocator.allocated_bytes
        allocator.peak_requested_bytes = allocator.requested_bytes
        allocator.peak_reserved_bytes = allocator.reserved_bytes

    def requests(self) -> list[Request]:
        """The same events as allocator requests."""
        return [
            Request(MALLOC, number, self.blocks[number].bytes)
            if action == MALLOC
            else Request(action, number)
            for action, number in self.events
        ]
