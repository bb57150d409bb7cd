"""What users see: the readers' shared state, and every question about it.

One lock protects it; it is held briefly and never during I/O.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import nlargest
from itertools import islice
from typing import Any, TypeVar

from brimful.adapters.capabilities import Complains, KeepsLogs, LogPiece
from brimful.adapters.stores import snapshot
from brimful.adapters.stores.past import PastJob
from brimful.client.answers import Phase
from brimful.errors import NotFound, Refused, Said
from brimful.fleet.events import Event, PolicyAdopted, SiteLost
from brimful.fleet.gates import Array
from brimful.fleet.state import Fleet, JobState, Lease, Pool
from brimful.language import Quoted, Seconds, Sentence, Several, say
from brimful.market.invoice import Days, Sums
from brimful.market.ledger import Ledger
from brimful.market.pools import Market, floor_of
from brimful.market.survival import PriceRecords
from brimful.scheduler.auction import Auctions
from brimful.scheduler.cloud.buying import Buying
from brimful.scheduler.cloud.providers import Provider
from brimful.scheduler.decide import decide
from brimful.scheduler.load import prices_now
from brimful.scheduler.ordering import waiting_in_order
from brimful.scheduler.plan import Plan
from brimful.scheduler.policies import in_force
from brimful.scheduler.ports import Engine
from brimful.scheduler.rules import Rules
from brimful.server.service.health import Health
from brimful.server.service.history import History
from brimful.server.service.samples import Samples

Made = TypeVar("Made")
RECENT = 4096  # events kept for the loop, which has a separate state


class Reader:
    def __init__(
        self,
        store: History,
        engines: Mapping[str, Engine],
        rules: Rules,
        *,
        policy: str,
        market: Market | None,
        buying: Buying | None,
        providers: Sequence[Provider] = (),
        health: Health,
        clock: Callable[[], float],
    ) -> None:
        """`engines`: by site. `policy`: the name of the rules."""
        self.configured, self.configured_rules = policy, rules
        self.store, self.engines, self.market, self.health = store, engines, market, health
        self.buying, self.providers = buying, providers
        self.samples = Samples(engines)
        self._clock = clock
        self._lock = threading.RLock()
        self._seen = snapshot.Fold()
        self._recent: deque[Event] = deque(maxlen=RECENT)
        self._auctions = None if market is None else Auctions(market)
        self._decided: tuple[tuple[int, int], Plan] | None = None  # at which event and second, and the plan
        self._rest_until = 0.0
        self._once: tuple[tuple[int, int], dict[Callable[[Reader], Any], Any]] = ((-1, 0), {})

    # -- the state -------------------------------------------------------------------------------------

    @property
    def fleet(self) -> Fleet:
        return self._seen.fleet

    @property
    def rules(self) -> Rules:
        """The rules of the adopted policy, otherwise those that the server was started with."""
        return in_force(self.configured_rules, self.fleet.adoption.last)

    @property
    def adopted(self) -> PolicyAdopted | None:
        """The event that adopted the current policy, if it is not the configured one."""
        last = self.fleet.adoption.last
        return (
            None
            if last is None or self.rules == self.configured_rules or last.policy == self.configured
            else last
        )

    @property
    def policy(self) -> str:
        """The name of `rules`."""
        return self.configured if self.adopted is None else self.adopted.policy

    @property
    def ledger(self) -> Ledger:
        return self._seen.ledger

    @property
    def bills(self) -> Sums:
        """Of everything except jobs."""
        return self._seen.bills

    @property
    def days(self) -> Days:
        return self._seen.days

    @property
    def price_records(self) -> PriceRecords:
        return self._seen.price_records

    def locked(self) -> threading.RLock:
        """Hold this while reading several things that must agree, but not during I/O."""
        return self._lock

    def sites(self) -> set[str]:
        """Every site that has nodes or may get some, whether it answers now or not."""
        sold = {pool.site for pool in self.fleet.cloud.offers}
        made = {site for each in self.providers for site in each.sites}
        return {*self.engines, *sold, *made, *(node.site for node in self.fleet.nodes.values())}

    def now_s(self) -> int:
        return int(self._clock())

    def once(self, make: Callable[[Reader], Made]) -> Made:
        """The result of `make`, computed once per state of the log and second, however many people look.

        It does not know who asks, so it must cover all teams, and each view takes its own part.
        """
        with self._lock:
            at = (self.fleet.seq, self.now_s())
            if self._once[0] != at:
                self._once = (at, {})
            known = self._once[1]
            if make not in known:
                known[make] = make(self)
            found: Made = known[make]
            return found

    def load(self) -> None:
        """Start from the newest snapshot."""
        seen = snapshot.load(self.store)
        with self._lock:
            self._seen = seen
            self._recent.clear()
            waiting_in_order(self.fleet, self.rules, now_s=self.now_s())  # kept in order from here on

    def fold(self, events: Sequence[Event], *, after: int) -> None:
        """Apply events that were read from or written to the log, after its first `after` events."""
        with self._lock:
            known = self.fleet.seq - after
            assert known >= 0, "whoever reads or writes the log has told of everything before"
            for event in events[known:]:
                self._seen.apply(event)
                self._recent.append(event)

    def recent(self, *, after: int) -> Sequence[Event]:
        """The events after the first `after`, if still in memory: saves the loop reading them again."""
        with self._lock:
            missing = self.fleet.seq - after
            if not 0 < missing <= len(self._recent):
                return ()
            return list(islice(self._recent, len(self._recent) - missing, None))

    def refresh(self) -> None:
        """Fold what others have written since. The loop does so at every look; readers need not."""
        while events := self.store.since(after := self.fleet.seq):
            self.fold(events, after=after)

    def let_go(self, *, by_seq: int) -> None:
        """Drop jobs that left memory by this event: the store has them."""
        with self._lock:
            self._seen.let_go(by_seq=by_seq)

    # -- jobs ------------------------------------------------------------------------------------------

    def job(self, name: str) -> JobState:
        with self._lock:
            if name in self.fleet.jobs:
                return self.fleet.jobs[name]
            if name in self.fleet.leaving:
                return self.fleet.leaving[name].state
        if (array := self.array(name)) is not None:
            tasks = {"tasks": len(array.indices), "first": f"{name}_{array.indices[0]}"}
            raise NotFound(say("server.is_array", name=name, **tasks), code="is_array")
        past = self.store.past_job(name)
        if past is None:
            is_number = name.isascii() and name.isdigit()
            hint = say("server.hint_job_number", name=f"job-{name[:20]}") if is_number else None
            raise NotFound(say("server.no_job", name=Quoted(name[:100])), hint=hint)
        return past.state

    def array(self, name: str) -> Array | None:
        """The array of this name, until all its tasks have left memory."""
        return self.fleet.gates.arrays.get(name)

    def past_jobs(
        self,
        *,
        before_serial: int | None = None,
        after_serial: int = -1,
        limit: int = 200,
        tenants: Collection[str] | None = None,
    ) -> list[PastJob]:
        """Jobs that have left memory, newest first, with their cost; those in memory are `fleet.jobs`."""
        with self._lock:
            spent = self._seen.spent
            wanted = (
                left.state
                for left in self.fleet.leaving.values()
                if left.state.serial > after_serial
                and (before_serial is None or left.state.serial < before_serial)
                and (tenants is None or left.state.job.tenant in tenants)
            )
            newest = nlargest(limit, wanted, key=lambda state: state.serial)
            leaving = [PastJob(state=each, spent_microusd=spent[each.job.job]) for each in newest]
        kept = self.store.past_jobs(before=before_serial, after=after_serial, limit=limit, tenants=tenants)
        found = {past.state.serial: past for past in (*kept, *leaving)}
        return [found[serial] for serial in sorted(found, reverse=True)[:limit]]

    def tenants_of(self, names: Collection[str]) -> dict[str, str]:
        """The tenants of these jobs, if they exist; one query for all past jobs."""
        with self._lock:
            here = {name: self.fleet.jobs.get(name) for name in names}
            left = {name: self.fleet.leaving[name].state for name in names if name in self.fleet.leaving}
        known = {name: state.job.tenant for name, state in (here | left).items() if state is not None}
        past = [name for name in names if name not in known]
        return known | self.store.past_tenants(past) if past else known

    def spent_microusd(self, name: str) -> int:
        """What is on the ledger for the job, in memory or not."""
        with self._lock:
            if name in self.fleet.jobs or name in self._seen.spent:
                return self.ledger.spent_microusd.get(name, self._seen.spent.get(name, 0))
        past = self.store.past_job(name)
        return 0 if past is None else past.spent_microusd

    def phase_of(self, state: JobState) -> Phase:
        """`unknown` while the job's site does not answer: nobody can tell whether it has ended."""
        lease = state.open_lease
        return "unknown" if lease is not None and lease.site in self.fleet.silent else state.phase

    def why_waiting(self, name: str) -> Said | None:
        """Decided again on the readers' state, because the loop's plan is its own.

        Once per state of the log and second; if that is slow, for at most a tenth of the time.
        """
        with self._lock:
            now_s, began = self.now_s(), time.monotonic()
            if self._decided is None or (
                self._decided[0] != (self.fleet.seq, now_s) and began > self._rest_until
            ):
                plan = decide(
                    self.fleet,
                    self.rules,
                    prices_now(self.fleet, now_s=now_s),
                    now_s=now_s,
                    unreachable=self.health.problems.keys(),
                    market=self._auctions,
                    buying=self.buying,
                )
                self._decided = ((self.fleet.seq, now_s), plan)
                ended = time.monotonic()
                self._rest_until = ended + 9 * (ended - began)
            try:
                reason = self._decided[1].waits.get(name)
            except (KeyError, AssertionError):  # the fleet has changed since
                return None
            if reason is None:
                return None  # nothing to say about a job that is about to start
            sites = self.fleet.jobs[name].job.sites
            for site, silent in self.silent().items():
                if site in self.engines and (not sites or site in sites):
                    reason = say("server.waits_and_silent", reason=reason, site=site, silent=silent)
            return reason

    def has_unread(self, name: str) -> bool:
        """Whether showing the job opens files or the database: it has left memory, or its newest lease has
        ended and may have measured more since. Running ones are measured all the time."""
        state = self.fleet.jobs.get(name)
        if state is None:
            return True
        return bool(state.leases) and not self.samples.is_known(state.leases[-1])

    def measure(self, state: JobState) -> JobState:
        """Read what its newest lease has measured, even if it is over; then `samples` has it."""
        self.samples.read(state.leases[-1:], now_s=self.now_s())
        return state

    def read_log(self, lease: Lease, *, offset: int, limit: int, rank: int = 0) -> LogPiece:
        engine: object = self.engines.get(lease.site)
        if not isinstance(engine, KeepsLogs):
            raise Refused(say("server.no_logs", site=lease.site), code="no_logs")
        if lease.phase == "granted":  # its engine may not know it yet
            return LogPiece(0, b"", 0)
        return engine.log(lease.lease, rank=rank, offset=offset, limit=limit)

    # -- the fleet -------------------------------------------------------------------------------------

    def prices(self) -> Mapping[Pool, int]:
        """What a lease that starts now pays, in micro-dollars per GPU-hour."""
        with self._lock:
            posted = prices_now(self.fleet, now_s=self.now_s())
            if self.market is None:
                return posted
            sold = (pool for pool in self.market.in_fleet(self.fleet) if pool in self.fleet.prices)
            return {**posted, **{pool: self.fleet.prices[pool].last.microusd_per_gpu_hour for pool in sold}}

    def floor_microusd(self, pool: Pool) -> int:
        """The lowest price at which a GPU-hour is sold there."""
        return floor_of(node for node in self.fleet.nodes.values() if node.pool == pool)

    def accrued_microusd(self) -> dict[str, int]:
        """By tenant and by budget: what running leases have cost so far and nobody has paid yet.

        Excludes jobs with separate budgets.
        """
        fleet, now_s, purses = self.fleet, self.now_s(), self.fleet.purses
        found: dict[str, int] = {}
        for lease in fleet.open_leases.values():
            job = fleet.jobs[lease.job].job
            if job.budget_microusd is None:
                accrued = lease.cost_microusd(now_s) - purses.due_microusd(lease.lease)
                for name in {job.tenant, *(each.name for each in purses.line(purses.near(job)))}:
                    found[name] = found.get(name, 0) + accrued
        return found

    def problems(self) -> dict[str, Said]:
        """By site: since when and why it cannot be reached, or what it cannot say about some leases."""
        found: dict[str, Said] = {
            site: Several(tuple(engine.complaints().values()), between="; ")
            for site, engine in self.engines.items()
            if isinstance(engine, Complains) and engine.complaints()
        }
        return {**found, **self.health.problems, **self.silent()}

    def silent(self) -> dict[str, Sentence]:
        """Sites that do not answer, also those that are only watched: since when, and the latest reason."""
        found = {}
        for site, each in self.lost().items():
            silent = Seconds(max(0, self.now_s() - each.at_s))
            found[site] = say("server.silent", silent=silent, reason=self.why_lost(each))
        return found

    def why_lost(self, lost: SiteLost) -> Said | None:
        """The latest reason: at first it may only be that there was no answer yet."""
        return self.health.problems.get(lost.site) or lost.reason

    def lost(self) -> dict[str, SiteLost]:
        """By site that does not answer: the event, or what stands for it where the site is only watched."""
        ours = {site: each for site, each in self.fleet.silent.items() if site in self.engines}
        return {**ours, **self.health.unwatched}
