"""The process that carries a lease's checkpoints: `python -m brimful.adapters.objects.carrier LEASE_FOLDER`.

Started by the lease's runner, so that no store trouble can reach the runner or the loop. Its standard input
is one line of JSON: where to fetch from, what to send, and to which store. `carried.json` in the lease's
folder says what it has moved and what it is doing.

    fetch   put the newest checkpoint where the job looks for it; report what was found
    send    send each sealed checkpoint until standard input ends; then send the last one and exit
"""

from __future__ import annotations

import contextlib
import json
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from brimful.adapters.engines.checkpoints import make_ready, take_over
from brimful.adapters.files import open_to_write, read_json, write_json
from brimful.adapters.objects.shelf import Damaged, Overtaken, Saved, Shelf
from brimful.adapters.objects.store import StoreFailed, open_store
from brimful.errors import BrimfulError, Said
from brimful.job import newest
from brimful.language import Size, say
from brimful.language.record import as_record

T = TypeVar("T")

LOOK_S = 1.0  # between two looks for a new checkpoint
AGAIN_S = 2.0  # before a failed store is tried again
PATIENCE_S = 600.0  # how long it is retried: starting from scratch would lose all progress
CARRIED = "carried.json"


class Account:
    """What was moved, written to the lease's folder at most once a second."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / CARRIED
        self._facts: dict[str, Any] = {"sent_bytes": 0, "fetched_bytes": 0, **(read_json(self._path) or {})}
        self._written = 0.0

    def begin(self, doing: str, of_bytes: int) -> None:
        self._facts |= {"doing": doing, "done_bytes": 0, "of_bytes": of_bytes, "problem": None}
        self.write()

    def moved(self, kind: str, size: int) -> None:
        self._facts[kind] += size
        self._facts["done_bytes"] = self._facts.get("done_bytes", 0) + size
        if time.monotonic() - self._written >= 1:
            self.write()

    def done(self, **more: object) -> None:
        self._facts |= {"doing": "", "problem": None, **more}
        self.write()

    def failed(self, problem: Said) -> None:
        self._facts["problem"] = as_record(problem)
        self.write()

    def write(self) -> None:
        self._written = time.monotonic()
        write_json(self._path, self._facts)


def main(folder: Path) -> int:
    order = json.loads(sys.stdin.readline())
    account = Account(folder)
    if order["do"] == "send":
        return _send(order, account)
    try:
        print(json.dumps(_fetch(order, account)), flush=True)  # noqa: T201 - to the runner
    except BrimfulError as error:
        account.failed(error.said)
        print(json.dumps({"failed": as_record(error.said)}), flush=True)  # noqa: T201
    return 0


def _patiently(ask: Callable[[], T], account: Account, *, for_s: float = PATIENCE_S) -> T:
    until_s = time.monotonic() + for_s
    while True:
        try:
            return ask()
        except StoreFailed as error:
            account.failed(error.said)
            if time.monotonic() >= until_s:
                raise
            time.sleep(AGAIN_S)


def _fetch(order: dict[str, Any], account: Account) -> dict[str, Any]:
    here, lease = Path(order["here"]), order["lease"]
    found: list[Saved] = []
    before = 0
    for uri in order["from"]:
        shelf = Shelf(open_store(uri), lease)
        found += _patiently(shelf.take_over, account)
        before = max(before, shelf.before)
    if order["fence"]:
        take_over(here, lease)
    size = max((sum(block.size for block in each.held) for each in found), default=0)
    account.begin("fetch", size)

    def ready() -> list[Said]:
        return list(
            make_ready(
                here,
                found,
                known=Path(order["known"]) if order["known"] else None,
                since=before,
                tell=lambda more: account.moved("fetched_bytes", more),
            )
        )

    said = _patiently(ready, account)
    account.done()
    return {"said": [as_record(each) for each in said], "before": before}


def _send(order: dict[str, Any], account: Account) -> int:
    """Until its runner closes our standard input or is gone."""
    shelf, here = Shelf(open_store(order["store"]), order["lease"]), Path(order["here"])
    log = Path(order["log"])
    sent: tuple[int, int] | None = None
    problem: Said | None = None
    last_s: float | None = None  # until when the last pass may continue
    while True:
        found = newest(here)
        try:
            # An earlier lease sealed what was fetched, so it is already in the store.
            is_mine = found is not None and found.lease in {"", order["lease"]}
            if found is not None and is_mine and (found.step, found.at_s) != sent:
                size = sum(size for size, _ in found.files.values())
                account.begin("send", size)
                moved = shelf.send(found, tell=lambda more: account.moved("sent_bytes", more))
                sent = (found.step, found.at_s)
                account.done(sealed_s=found.at_s, step=found.step)
                name = found.folder.name
                words = say("adapters.sent", name=name, uri=shelf.uri, sent=Size(moved), size=Size(size))
                _tell(log, words)
                shelf.retain(order["keep"])
            problem = None
        except Overtaken as error:
            account.failed(error.said)
            _tell(log, error.said)
            return 1
        except (StoreFailed, Damaged) as error:
            # If damaged, the job may just be replacing it. A store may come back.
            if problem is None or str(problem) != str(error.said):
                _tell(log, say("adapters.not_sent", why=error.said))
            problem = error.said
            account.failed(error.said)
        if last_s is not None and (problem is None or time.monotonic() > last_s):
            return 0 if problem is None else 1
        if last_s is None and _has_ended(LOOK_S if problem is None else AGAIN_S):
            last_s = time.monotonic() + PATIENCE_S
        elif last_s is not None:
            time.sleep(AGAIN_S)


def _has_ended(within_s: float) -> bool:
    """Whether our standard input has ended; waits up to this long."""
    return bool(select.select([sys.stdin], [], [], within_s)[0])


def _tell(log: Path, said: Said) -> None:
    with contextlib.suppress(OSError), open_to_write(log) as file:
        file.write(f"brimful: {said}\n".encode())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
