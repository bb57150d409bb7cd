"""Which jobs were moved within their pool to complete a cell for a gang, in the last hour."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from brimful.fleet.lease import Lease
from brimful.units import HOUR_S

MOVED = "scheduler.completes_cell"


class Move(NamedTuple):
    at_s: int
    gang: str  # whose cell it completes
    lease: Lease  # that ended for it


class Moves:
    """Written when a lease is told to end: after a restart the log says what is under way."""

    def __init__(self) -> None:
        self._moves: deque[Move] = deque()

    def ending(self, lease: Lease, *, at_s: int) -> None:
        why = {} if lease.reason is None else lease.reason.as_dict()
        if why.get("code") == MOVED:
            self._moves.append(Move(at_s, str(why["job"]), lease))
            while self._moves[0].at_s <= at_s - HOUR_S:
                self._moves.popleft()

    def after(self, at_s: int) -> Iterator[Move]:
        """The newest first."""
        for move in reversed(self._moves):
            if move.at_s <= at_s:
                return
            yield move
