"""The fold of the start of a log, stored so that a server start reads only what came after.

A snapshot is a cache in the form of a pickle. Its unpickler knows the classes of `fleet` and `market` and
refuses every other name. Only the code that wrote it can read it; any other version folds the log again.
"""

from __future__ import annotations

import hashlib
import io
import logging
import pickle
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import brimful.fleet
import brimful.market
from brimful.adapters.stores.past import PastJob
from brimful.fleet.state import Fleet
from brimful.language import sentence
from brimful.market.invoice import Days, Invoices, Sums
from brimful.market.ledger import Ledger
from brimful.market.survival import PriceRecords
from brimful.scheduler.ports import Store

log = logging.getLogger("brimful")

KEEP = 5_000  # finished jobs that stay in memory
TRANSFERS = 5_000
EVERY = 10_000  # events between two snapshots
ROOMS = (brimful.fleet, brimful.market)
PLAIN = {("collections", "deque"), ("builtins", "set"), ("builtins", "frozenset")}


class KeepsSnapshots(Store, Protocol):
    def end(self) -> int:
        """The number of events."""

    def snapshot(self, code: str) -> tuple[int, bytes] | None:
        """The newest snapshot that this code can read."""

    def keep_snapshot(
        self, seq: int, code: str, body: bytes, *, left: Sequence[PastJob], fence: int | None = None
    ) -> None:
        """Write the snapshot and the jobs it drops in one transaction; `fence`: the leader's token."""


class Fold:
    """Fleet, ledger, bills and price records after the same events, with old jobs moved out of memory."""

    def __init__(self) -> None:
        self.fleet = Fleet(keep=KEEP)
        self.ledger = Ledger()
        self._invoices = Invoices(self.ledger)
        self.bills = Sums("team", "user", "site", "gpu", "day")  # too many jobs for a dimension
        self.days = Days()
        self.price_records = PriceRecords()
        self.spent: dict[str, int] = {}  # by job, for the jobs in `fleet.leaving`

    def apply(self, event: Any) -> None:  # noqa: ANN401 - any event
        before = len(self.fleet.leaving)
        self.fleet.apply(event)
        lines = self._invoices.apply(event)
        self.bills.add(lines)
        self.days.add(lines)
        self.price_records.apply(event)
        if len(self.fleet.leaving) != before:
            for name in list(self.fleet.leaving)[before:]:
                self.spent[name] = self.ledger.forget(name)
            if len(self.ledger.transfers) > 2 * TRANSFERS:
                self.ledger.forget_transfers(keep=TRANSFERS)

    def let_go(self, *, by_seq: int) -> list[PastJob]:
        """The jobs that had left memory by this event: from now on the caller keeps them."""
        gone = [name for name, left in self.fleet.leaving.items() if left.seq <= by_seq]
        return [
            PastJob(state=self.fleet.leaving.pop(name).state, spent_microusd=self.spent.pop(name))
            for name in gone
        ]


def load(store: KeepsSnapshots) -> Fold:
    """The fold of the newest readable snapshot, or an empty one."""
    found = store.snapshot(code_id())
    if found is None:
        return Fold()
    try:
        fold: Fold = _Unpickler(io.BytesIO(zlib.decompress(found[1]))).load()
        assert fold.fleet.seq == found[0], "a snapshot says how far it goes"
    except Exception as error:  # noqa: BLE001 - only a cache, whatever is wrong with it
        log.warning("the snapshot at event %d is damaged (%s); the log is folded anew", found[0], error)
        return Fold()
    return fold


def advance(store: KeepsSnapshots, *, fence: int | None = None, at_least: int = EVERY) -> int:
    """Write a new snapshot if enough events came after the last one; returns how many events it covers.

    It continues from the last snapshot by itself, so that users of the live fold do not wait for it.
    """
    found = store.snapshot(code_id())
    start, end = (0 if found is None else found[0]), store.end()
    if end - start < at_least:
        return 0
    fold = load(store)
    while events := store.since(fold.fleet.seq):
        for event in events:
            fold.apply(event)
    seq = fold.fleet.seq
    left = fold.let_go(by_seq=seq)
    fold.ledger.forget_transfers(keep=TRANSFERS)
    store.keep_snapshot(seq, code_id(), dump(fold), left=left, fence=fence)
    return seq - start


def dump(fold: Fold) -> bytes:
    return zlib.compress(pickle.dumps(fold, protocol=5), level=1)


@cache
def code_id() -> str:
    """Identifies the code that wrote it: any change to the classes changes it."""
    digest = hashlib.sha256()
    for room in ROOMS:
        for path in sorted(Path(room.__path__[0]).rglob("*.py")):
            digest.update(path.name.encode() + path.read_bytes())
    for module in (__file__, sentence.__file__):
        digest.update(Path(module).read_bytes())
    return digest.hexdigest()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401
        ours = module == sentence.__name__ or any(module.startswith(f"{room.__name__}.") for room in ROOMS)
        if (module, name) in PLAIN or (ours and "." not in name) or (module, name) == (__name__, "Fold"):
            found = super().find_class(module, name)
            if isinstance(found, type):
                return found
        raise pickle.UnpicklingError(f"a snapshot may not name {module}.{name}")
