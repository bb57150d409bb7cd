"""What ranks print, copied here piece by piece: Pods and their logs are deleted when a lease is over.

Kubernetes returns lines since a given second, with nanosecond timestamps, which tell us what we already have.
`begun.json` is what the runner says about itself when its job starts (runner.py), `sample.json` the latest
Meter sample (rank.py); neither is part of the log.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brimful.adapters.capabilities import LogPiece
from brimful.adapters.engines import logs, samples
from brimful.adapters.engines.kubernetes.client import Api
from brimful.adapters.engines.kubernetes.rank import SAMPLE
from brimful.adapters.engines.lease_folders import failing
from brimful.adapters.engines.runner import BEGINS
from brimful.adapters.files import NOTE_BYTES, read_json, write_json
from brimful.files import write_whole

PIECE_BYTES = 4 << 20
LATEST_S = 1 << 33  # times after 2242 are rejected
PIECES = 16  # fetched at once


class Spool:
    """The logs of a site's leases, in their folders here."""

    def __init__(self, root: Path, api: Api, *, log_bytes: int) -> None:
        self._root, self._api, self._log_bytes = root, api, log_bytes
        self._begun: dict[tuple[str, int], Mapping[str, Any]] = {}  # saves opening 2,000 files
        self._lock = threading.Lock()  # both the site's worker and readers fetch

    def began(self, lease: str, rank: int) -> Mapping[str, Any]:
        """Empty: its job has not started, as far as we have fetched."""
        if (lease, rank) not in self._begun:
            found = read_json(self._place(lease, rank) / "begun.json", most_bytes=NOTE_BYTES)
            if found is None:
                return {}
            self._begun[lease, rank] = found
        return self._begun[lease, rank]

    def forget(self, lease: str) -> None:
        """Drop what was kept in memory for a lease that is over."""
        for key in [key for key in self._begun if key[0] == lease]:
            del self._begun[key]

    def bring(self, lease: str, rank: int, pod: str) -> None:
        place = self._place(lease, rank)
        with self._lock, failing("adapters.cannot_read_log", lease=lease):
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            last = str((read_json(place / "brought.json") or {}).get("last", ""))
            for _ in range(PIECES):
                found = self._api.log(pod, since=_second(last), limit_bytes=PIECE_BYTES)
                last, more = self._add(place, found, last)
                if not more:
                    break
            if self._log_bytes and (place / "log").exists():
                logs.shorten(place / "log", keep_bytes=self._log_bytes)

    def read(self, lease: str, rank: int, *, offset: int, limit: int) -> LogPiece:
        with failing("adapters.cannot_read_log", lease=lease):
            place = self._place(lease, rank)
            return (
                logs.read(place / "log", offset=offset, limit=limit)
                if place.is_dir()
                else LogPiece(0, b"", 0)
            )

    def sample(self, lease: str) -> bytes | None:
        place = self._place(lease, 0)
        return samples.read_sample(place) if place.is_dir() else None

    def _add(self, place: Path, found: bytes, last: str) -> tuple[str, bool]:
        """The timestamp of the last line, and whether there may already be more."""
        is_whole = len(found) < PIECE_BYTES
        lines = io.BytesIO(found).readlines()  # not splitlines: only \n has a timestamp after it
        if not is_whole and len(lines) > 1:
            lines.pop()  # incomplete
        new = []
        for line in lines:
            moment, _, text = line.partition(b" ")
            if moment.decode(errors="replace") > last:
                new.append((moment.decode(errors="replace"), text))
        if not new:
            return last, False
        begun = (place / "begun.json").exists()
        with (place / "log").open("ab") as log:
            for _, text in new:
                if not begun and text.startswith(BEGINS):
                    begun = True
                    write_json(place / "begun.json", _facts(text))
                else:
                    own, _, sample = text.partition(SAMPLE)
                    log.write(own)
                    if sample:
                        write_whole(place / samples.NAME, sample, mode=0o600)
        write_json(place / "brought.json", {"last": new[-1][0]})
        return new[-1][0], not is_whole

    def _place(self, lease: str, rank: int) -> Path:
        return self._root / lease / "ranks" / str(rank)


def _second(moment: str) -> str:
    return f"{moment[:19]}Z" if moment else ""


def _facts(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text.removeprefix(BEGINS))
        return {key: max(0, min(int(found[key]), LATEST_S)) for key in ("at_s", "resumes_s")}
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return {"at_s": 0, "resumes_s": 0}
