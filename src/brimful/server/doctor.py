"""Every promise of the design, checked on the data of a live brimful. It looks, and repairs nothing.

The log is folded from its first event, apart from whatever serves users, and what it says is held against the
tables made of it and against the processes that run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.stores import snapshot
from brimful.adapters.stores.past import PastJob
from brimful.adapters.stores.snapshot import Fold
from brimful.adapters.stores.sql import SqlStore
from brimful.errors import BrimfulError
from brimful.fleet.events import Event, LeaseGranted, PoolPriced
from brimful.fleet.job import WHOLE_GPU
from brimful.fleet.state import OVER, JobState, Lease
from brimful.job import damage, whole_ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One promise: how much was looked at, and what was found broken."""

    promise: str
    looked_at: str
    broken: list[str] = field(default_factory=list)

    @property
    def kept(self) -> bool:
        return not self.broken


def examine(store: SqlStore, engines: Sequence[LocalEngine] = ()) -> Iterator[Finding]:
    """Each promise in turn. Engines: those of this machine, if their processes are to be looked at too."""
    log = _LogCheck()
    failed = log.read(store)
    events = f"{log.fold.fleet.seq:,} events"
    yield Finding(promise="the log is whole, and understood", looked_at=events, broken=failed)
    if failed:
        return  # nothing that follows from half a log is worth saying
    jobs = f"{log.jobs:,} jobs"
    yield Finding(promise="no job is lost", looked_at=jobs, broken=log.lost)
    yield Finding(promise="no job runs twice at once", looked_at=jobs, broken=log.twice)
    leases = f"{log.leases:,} leases"
    yield Finding(promise="a GPU has one tenant, or shares that fit", looked_at=leases, broken=log.tenants)
    yield Finding(promise="progress never goes back", looked_at=leases, broken=log.progress)
    yield from _money(log, jobs)
    yield _tables(store, log)
    for engine in engines:
        yield _processes(engine, log)
        yield _checkpoints(engine)


class _LogCheck:
    """The log folded from the beginning, with what is wrong in it."""

    def __init__(self) -> None:
        self.fold = Fold()
        self.jobs = self.leases = 0
        self.lost: list[str] = []
        self.twice: list[str] = []
        self.tenants: list[str] = []
        self.progress: list[str] = []
        self.bills: list[str] = []
        self.budgets: list[str] = []
        self.limits: list[str] = []
        self.prices: list[str] = []
        self.past: dict[str, int] = {}  # jobs that have left memory, and a fingerprint of each
        self._priced: dict[tuple[object, ...], int] = {}
        self._priced_at = -1

    def read(self, store: SqlStore) -> list[str]:
        fleet = self.fold.fleet
        while True:
            try:
                events = store.since(fleet.seq)
            except BrimfulError as error:
                return [error.problem]
            for event in events:
                try:
                    self.fold.apply(event)
                except (AssertionError, KeyError, ValueError) as error:
                    return [f"event {fleet.seq + 1} ({type(event).__name__}) does not follow: {error!r}"]
                self._price(event)
            for past in self.fold.let_go(by_seq=fleet.seq):
                self.past[past.state.job.job] = hash(repr(past))
                self._job(past.state, past.spent_microusd)
            if not events:
                break
        for state in fleet.jobs.values():
            self._job(state, self.fold.ledger.spent_microusd.get(state.job.job, 0))
        self._one_tenant()
        return []

    def _job(self, state: JobState, spent_microusd: int) -> None:
        self.jobs += 1
        self.leases += len(state.leases)
        name, fleet = state.job.job, self.fold.fleet
        placed = {
            "waiting": name in fleet.waiting,
            "held": name in fleet.on_hold,
            "over": state.phase in OVER,
            "running": state.open_lease is not None,
        }
        if sum(placed.values()) != 1:
            self.lost.append(f"{name} is {state.phase}, and {placed}")
        self.twice += _overlaps(name, state.leases)
        self.progress += [
            f"{each.lease} keeps {each.kept_work_s} s of work"
            for each in state.leases
            if each.kept_work_s < 0
        ]
        due = sum(_cost(each) for each in state.leases if each.ended_s is not None)
        budget = state.job.budget_microusd
        if spent_microusd != (due if budget is None else min(due, budget)):
            self.bills.append(
                f"{name} was billed {spent_microusd:,} micro-dollars; its leases come to {due:,}"
            )
        if budget is not None and spent_microusd > budget:
            self.budgets.append(f"{name} was billed {spent_microusd:,} of {budget:,} micro-dollars")
        limit = state.job.limit_microusd_per_gpu_hour
        self.limits += [
            f"{each.lease} pays {each.microusd_per_gpu_hour:,} above its limit of {limit:,}"
            for each in state.leases
            if limit is not None and each.microusd_per_gpu_hour > limit
        ]

    def _one_tenant(self) -> None:
        """By the leases that are open, GPU by GPU; the fold has asserted the same at every event before."""
        held: dict[tuple[str, int], int] = {}
        for lease in self.fold.fleet.open_leases.values():
            share = self.fold.fleet.jobs[lease.job].job.gpu_milli
            for node, gpus in lease.parts:
                for gpu in gpus:
                    held[node, gpu] = held.get((node, gpu), 0) + share
        self.tenants += [
            f"GPU {gpu} of {node} is held to {share / WHOLE_GPU:.0%}"
            for (node, gpu), share in held.items()
            if share > WHOLE_GPU
        ]

    def _price(self, event: Event) -> None:
        if isinstance(event, PoolPriced):
            self._market_price(event)
            self._priced.pop(event.pool, None)  # it may move twice in a second, and so may what grants pay
        if not isinstance(event, LeaseGranted):
            return
        if event.at_s != self._priced_at:
            self._priced, self._priced_at = {}, event.at_s
        lease = self.fold.fleet.leases.get(event.lease)
        if lease is None:
            return
        pool = (lease.site, lease.gpu, getattr(self.fold.fleet.nodes.get(lease.node), "tier", ""))
        first = self._priced.setdefault(pool, lease.microusd_per_gpu_hour)
        if first != lease.microusd_per_gpu_hour:
            self.prices.append(f"{event.lease}: {lease.microusd_per_gpu_hour:,} where others pay {first:,}")

    def _market_price(self, event: PoolPriced) -> None:
        """From here on every holder pays it: none may have a lower limit."""
        fleet = self.fold.fleet
        line = fleet.prices[event.pool]
        for lease in fleet.leases_at.get(event.site, {}).values():
            limit = fleet.jobs[lease.job].job.limit_microusd_per_gpu_hour
            if lease.line is line and limit is not None and event.microusd_per_gpu_hour > limit:
                self.limits.append(
                    f"{lease.lease} pays {event.microusd_per_gpu_hour:,} above its limit of {limit:,}"
                )


def _overlaps(name: str, leases: Sequence[Lease]) -> Iterator[str]:
    for before, after in pairwise(leases):
        if before.ended_s is None:
            yield f"{after.lease} was granted while {before.lease} was open"
        elif (
            before.started_s is not None and after.started_s is not None and after.started_s < before.ended_s
        ):
            early_s = before.ended_s - after.started_s
            yield f"{name}: {after.lease} began {early_s} s before {before.lease} ended"


def _cost(lease: Lease) -> int:
    return lease.cost_microusd(lease.ended_s or 0)


def _money(log: _LogCheck, jobs: str) -> Iterator[Finding]:
    balances = log.fold.ledger.balances
    total = sum(balances.values())
    accounts = f"{len(balances):,} accounts"
    broken = [f"they sum to {total:,} micro-dollars"] if total else []
    yield Finding(promise="accounts sum to zero", looked_at=accounts, broken=broken)
    yield Finding(promise="every lease is billed once, and exactly", looked_at=jobs, broken=log.bills)
    yield Finding(promise="a hard budget is never crossed", looked_at=jobs, broken=log.budgets)
    yield Finding(promise="nobody pays above the limit of a bid", looked_at=jobs, broken=log.limits)
    grants = f"{log.leases:,} grants"
    yield Finding(promise="one price per pool and moment", looked_at=grants, broken=log.prices)


def _tables(store: SqlStore, log: _LogCheck) -> Finding:
    """Snapshot and past jobs are made of the log: they must say what it says."""
    broken: list[str] = []
    fold = snapshot.load(store)
    kept_seq = fold.fleet.seq
    kept = store.snapshot(snapshot.code_id())
    if kept is not None and kept[0] > kept_seq:
        broken.append(f"the snapshot at event {kept[0]:,} is damaged; a start folds the whole log instead")
    fleet = log.fold.fleet
    while fold.fleet.seq < fleet.seq:
        for event in store.since(fold.fleet.seq)[: fleet.seq - fold.fleet.seq]:
            fold.apply(event)
    if list(fold.fleet.jobs) != list(fleet.jobs) or fold.fleet.jobs != fleet.jobs:
        broken.append("jobs of the snapshot differ from those of the log")
    if fold.ledger.balances != log.fold.ledger.balances:
        broken.append("balances of the snapshot differ from those of the log")
    past = {each.state.job.job: hash(repr(each)) for each in _all_past(store)}
    for name, expected in log.past.items():
        if name not in past and name not in fold.fleet.leaving:
            broken.append(f"{name} is over and in no table")
        elif name in past and past[name] != expected:
            broken.append(f"{name} in the table of past jobs differs from the log")
    looked = f"snapshot at {kept_seq:,}, {len(past):,} past jobs"
    return Finding(promise="tables say what the log says", looked_at=looked, broken=broken)


def _all_past(store: SqlStore) -> Iterator[PastJob]:
    before: int | None = None
    while page := store.past_jobs(before=before, limit=1000):
        yield from page
        before = page[-1].state.serial


def _processes(engine: LocalEngine, log: _LogCheck) -> Finding:
    """What runs here, against what should."""
    fleet = log.fold.fleet
    here = fleet.leases_at.get(engine.site, {})
    strays = [name for name in engine.living() if name not in here]
    going = {each.lease: each for each in engine.observe(list(here))}
    broken = [f"processes of {name} run, and its lease is over" for name in strays]
    for name, lease in here.items():
        seen = going.get(name)
        if lease.phase == "running" and (seen is None or seen.state == "absent"):
            broken.append(f"{name} should run, and there is no trace of it")
    broken += engine.complaints().values()
    return Finding(
        promise=f"what runs at {engine.site} is what should",
        looked_at=f"{len(here):,} leases, {len(strays):,} strays",
        broken=broken,
    )


def _checkpoints(engine: LocalEngine) -> Finding:
    checked, broken = 0, []
    for folder in _folders(Path(engine.checkpoints("x")).parent):
        for each in whole_ones(folder):
            checked += 1
            wrong = damage(each)
            if wrong:
                broken.append(f"{each.folder}: {wrong}")
    promise = f"checkpoints at {engine.site} are whole"
    return Finding(promise=promise, looked_at=f"{checked:,} checkpoints", broken=broken)


def _folders(root: Path) -> Iterable[Path]:
    try:
        return [path for path in sorted(root.iterdir()) if path.is_dir()]
    except OSError:
        return []
