"""Jobs that hold GPUs without useful work: detected off the loop, written to the log, stopped by rule.

`meter.idle.last_useful_s` defines what is useful. Findings are in the log, so that a bill can say what idle
GPUs cost; if neither steps nor the driver tell anything about a lease, nothing is said about it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from brimful.adapters.capabilities import SeesActivity
from brimful.errors import BadInput
from brimful.fleet.events import Event, LeaseBusy, LeaseEnding, LeaseIdle
from brimful.fleet.state import Lease
from brimful.language import Quoted, Seconds, count, say
from brimful.meter.idle import BUSY_FRAC, last_useful_s
from brimful.server.service.reader import Reader

LOOK_S = 15.0
RULE = re.compile(r"(\*|[A-Za-z0-9][\w.-]*)=(\d{1,6})([smhd])(?:/(\d{1,6})([smhd]))?", re.ASCII)
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class IdleRule:
    warn_s: int
    stop_s: int | None = None  # None: never


def read_idle(text: str) -> dict[str, IdleRule]:
    """`*=30m vision=15m/2h`: by tenant, after how long to warn, and to stop. `*`: all others."""
    found: dict[str, IdleRule] = {}
    for part in text.split():
        match = RULE.fullmatch(part)
        warn_s = int(match[2]) * SECONDS[match[3]] if match else 0
        stop_s = int(match[4]) * SECONDS[match[5]] if match and match[4] else None
        if match is None or warn_s < LOOK_S or (stop_s is not None and stop_s < warn_s):
            raise BadInput(say("server.bad_idle", part=Quoted(part[:60]), least=Seconds(LOOK_S)))
        found[match[1]] = IdleRule(warn_s, stop_s)
    return found


Write = Callable[[Callable[[], Sequence[Event]]], object]


@dataclass(slots=True)
class IdleHolders:
    reader: Reader
    write: Write  # appends events computed from the state at that time
    rules: dict[str, IdleRule]
    _busy_s: dict[str, int] = field(default_factory=dict)  # lease -> when its cards were last seen busy

    def look(self) -> None:
        now_s = self.reader.now_s()
        with self.reader.locked():
            leases = [lease for lease in self.reader.fleet.open_leases.values() if lease.phase == "running"]
        useful = {lease.lease: self._useful_s(lease, now_s=now_s) for lease in leases}
        self._busy_s = {name: at_s for name, at_s in self._busy_s.items() if name in useful}
        known = {name: at_s for name, at_s in useful.items() if at_s is not None}
        if known:
            self.write(lambda: [event for name in known for event in self._events(name, known[name], now_s)])

    def _useful_s(self, lease: Lease, *, now_s: int) -> int | None:
        """Asks the driver, so must not hold a lock."""
        engine: object = self.reader.engines.get(lease.site)
        busy = engine.busy_frac(lease.node, lease.gpus) if isinstance(engine, SeesActivity) else None
        if busy is not None and (busy >= BUSY_FRAC or lease.lease not in self._busy_s):
            self._busy_s[lease.lease] = now_s  # nobody is blamed for the time before we looked
        step_s = self.reader.samples.step_s(lease)
        found = last_useful_s(step_s=step_s, busy_s=self._busy_s.get(lease.lease))
        return None if found is None else max(int(found), lease.started_s or 0)

    def _events(self, name: str, useful_s: int, now_s: int) -> list[Event]:
        fleet = self.reader.fleet
        lease = fleet.open_leases.get(name)
        if lease is None or lease.phase != "running":
            return []
        state = fleet.jobs[lease.job]
        rule = self.rules.get(state.job.tenant) or self.rules.get("*")
        quiet_s = now_s - useful_s
        if rule is None or quiet_s < rule.warn_s:
            is_news = lease.idle_since_s is not None or not lease.is_watched
            return [LeaseBusy(at_s=now_s, lease=name)] if is_news else []
        if lease.idle_since_s is None:
            return [LeaseIdle(at_s=now_s, lease=name, since_s=useful_s)]
        if rule.stop_s is None or quiet_s < rule.stop_s or state.cancel_requested:
            return []
        facts = {"gpus": count("gpu", lease.size), "quiet": Seconds(quiet_s), "limit": Seconds(rule.stop_s)}
        reason = say("server.idle_stopped", **facts)
        return [LeaseEnding(at_s=now_s, lease=name, reason=reason, requeue=False)]
