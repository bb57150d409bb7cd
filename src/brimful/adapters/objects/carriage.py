"""The runner's side of the process that carries a lease's checkpoints (carrier.py)."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, NamedTuple

from brimful.adapters.files import NOTE_BYTES, open_to_write, read_json
from brimful.adapters.objects.store import is_store
from brimful.errors import BrimfulError, Said, WorldFailed
from brimful.language import Size, say
from brimful.language.record import said_by_anybody

CARRIED = "carried.json"
MOST_BYTES = 1 << 60
KEEP = 2  # checkpoints of a job kept in a store
FINISH_S = 660.0  # longer than the carrier takes to give up by itself


class Carried(NamedTuple):
    """What the carrier says it has moved for a lease so far."""

    sent_bytes: int = 0
    fetched_bytes: int = 0
    doing: str = ""  # fetch, send, or empty
    done_bytes: int = 0
    of_bytes: int = 0
    sealed_s: int = 0  # when the newest sent checkpoint was sealed
    problem: Said | None = None

    @property
    def moved_bytes(self) -> int:
        return self.sent_bytes + self.fetched_bytes

    @property
    def said(self) -> Said:
        """What a lease waits for before its job starts."""
        if self.problem is not None:
            return self.problem
        if self.doing == "fetch" and self.of_bytes:
            return say("adapters.fetches", done=Size(self.done_bytes), of=Size(self.of_bytes))
        return say("adapters.readies_checkpoints")


def read_carried(folder: Path) -> Carried:
    """For the lease with this folder. A job may have written there, so only plausible values are used."""
    try:
        facts = read_json(folder / CARRIED, most_bytes=NOTE_BYTES) or {}
        problem = said_by_anybody(facts.get("problem"))
    except (BrimfulError, OSError, TypeError, ValueError, KeyError):
        return Carried()
    numbers = {name: facts.get(name) for name in Carried._fields if name not in {"doing", "problem"}}
    plain = {n: x for n, x in numbers.items() if isinstance(x, int) and 0 <= x <= MOST_BYTES}
    doing = facts.get("doing")
    return Carried(**plain, doing=doing if doing in {"fetch", "send"} else "", problem=problem)


class Carriage:
    """Carries the checkpoints of one lease, if they have a destination."""

    def __init__(self, folder: Path, order: dict[str, Any]) -> None:
        self._folder, self._order = folder, order
        self._store: str = order.get("store") or ""
        places = (order.get("checkpoints_from") or "", self._store)
        self._from = [each for each in dict.fromkeys(places) if is_store(each)]
        self._process: subprocess.Popen[bytes] | None = None
        self.before = 0  # the last lease that kept checkpoints; older ones found here belong to an orphan

    @property
    def goes(self) -> bool:
        """Whether there is a store to fetch from."""
        return bool(self._from)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def fetch(self, here: Path, *, fence: bool) -> list[Said]:
        """Fetch the newest checkpoint into the folder; returns what was found. Raises if the store is down.

        `fence`: the folder is the job's own, and from now on only this lease may write to it.
        """
        checkpoints = Path(self._order["checkpoints"])
        known = "" if here == checkpoints else str(checkpoints)
        asked = {"here": str(here), "known": known, "fence": fence, "from": self._from}
        with self._start("fetch", asked) as carrier:
            try:
                out, _ = carrier.communicate()
            except BaseException:
                carrier.kill()  # told to stop meanwhile
                raise
        answer: dict[str, Any] = json.loads(out) if out else {"failed": None}
        if "failed" in answer:
            raise WorldFailed(said_by_anybody(answer["failed"]) or say("adapters.carrier_ended"))
        self.before = int(answer["before"])
        return [each for one in answer["said"] if (each := said_by_anybody(one)) is not None]

    def begin_sending(self) -> None:
        if self._store:
            log = str(self._folder / "log")
            here = self._order["checkpoints"]
            self._process = self._start(
                "send", {"store": self._store, "here": here, "log": log, "keep": KEEP}
            )

    def finish(self) -> None:
        """Have the last checkpoint sent, and wait for it."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(FINISH_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def sealed_s(self) -> int | None:
        """When the newest checkpoint that another site can fetch was sealed; None: no store."""
        return read_carried(self._folder).sealed_s if self._store else None

    def _start(self, do: str, asked: dict[str, object]) -> subprocess.Popen[bytes]:
        # Only this process gets credentials, never the job: from the store's own chain, or with the order.
        env = {**os.environ, **(self._order.get("store_env") or {})}
        with open_to_write(self._folder / "runner.err") as complaints:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "brimful.adapters.objects.carrier", str(self._folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if do == "fetch" else subprocess.DEVNULL,
                stderr=complaints,
                env=env,
                process_group=0,  # so that ending the job or the runner does not end it
            )
        stdin: IO[bytes] | None = process.stdin
        assert stdin is not None
        stdin.write(json.dumps({"do": do, "lease": self._order["lease"], **asked}).encode() + b"\n")
        stdin.flush()
        return process
