"""Random histories of reservations through the production `tick`, checked by an independent count.

Owners buy, pause, resume, return and extend; they and borrowers submit jobs; the server dies now and then and
starts again from its log. Inside one organisation (`tokens`), owners are granted quotas too, which earn
tokens. The watcher sees only the log: it tracks every reserved GPU second by second, and computes credits,
what lenders earn, who holds what and how long owners wait, by brute force.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from itertools import pairwise

from brimful.errors import BrimfulError
from brimful.fleet import events
from brimful.fleet.events import Event, from_record, to_record
from brimful.fleet.job import PRIORITIES, Job
from brimful.fleet.node import Node, Pool
from brimful.fleet.state import Fleet
from brimful.market.ledger import Ledger
from brimful.market.pools import Market, ReserveTerms
from brimful.market.reservation import buy, extend, give_back, pause, quote, quote_extension, resume
from brimful.market.spot import Terms
from brimful.scheduler.auction import Auctions
from brimful.scheduler.loop import catch_up, tick
from brimful.scheduler.ports import Ports
from brimful.scheduler.rules import Rules
from brimful.sim.kernel import Kernel
from brimful.sim.world import SITE, Due, MemoryStore, TimedEngine
from brimful.units import HOUR_S

POOL = Pool(SITE, "h100")
USD = 1_000_000
RULES = Rules(grace_s=10)
LATE_S = 120  # beyond the notice


class Died(Exception):
    """The server died between writing what it wants and doing it."""


@dataclass(slots=True)
class _Gpu:
    """One reserved GPU according to the log: paused stretches, and when it was returned."""

    paused_s: int | None = None
    pauses: list[tuple[int, int]] = field(default_factory=list)
    returned_s: int | None = None
    used: bool = False


@dataclass(slots=True)
class _Bought:
    event: events.ReservationBought
    spans: list[tuple[int, int, int, int, int]]  # from, to, unit, pause and return price
    gpus: list[_Gpu]
    paid: int
    clock_s: int
    credited: int = 0
    earned: int = 0
    # What it should have earned, by hand; and at most, if the clock of who returned it was behind.
    expected: Fraction = Fraction(0)
    at_most: Fraction = Fraction(0)
    shares: int = 0  # of borrowers' leases in it; each is rounded down
    changes: int = 0  # each may round down once
    over: bool = False
    returned_s: tuple[int, int] | None = None  # when the last of it was, by that clock and by ours
    returned: float = 0.0  # the remaining value of what was returned, at its price

    @property
    def end_s(self) -> int:
        return self.spans[-1][1]

    def left(self) -> list[_Gpu]:
        return [gpu for gpu in self.gpus if gpu.returned_s is None]

    def idle(self) -> list[_Gpu]:
        return [gpu for gpu in self.left() if not gpu.used and gpu.paused_s is None]


@dataclass(slots=True)
class Watcher:
    """What must hold after every event, and what was measured."""

    notice_s: int
    capacity: int
    ledger: Ledger = field(default_factory=Ledger)
    fleet: Fleet = field(default_factory=Fleet)
    bought: dict[str, _Bought] = field(default_factory=dict)
    waits_s: list[int] = field(default_factory=list)  # of owners, for GPUs that were theirs
    lent_microusd: int = 0
    token_microusd: int = 0  # of it, what quotas earned
    spent_microusd: int = 0  # credit that paid for windows
    expired_microusd: int = 0
    _prices: list[tuple[int, int]] = field(default_factory=list)  # since when, per GPU-hour
    _lent: list[events.ReservedLent] = field(default_factory=list)
    _of_lease: dict[str, tuple[str, int]] = field(default_factory=dict)
    _due_since: dict[str, int] = field(default_factory=dict)

    def see(self, event: Event, *, now_s: int) -> None:
        """`now_s`: when it was seen; its writer may have another clock."""
        known = len(self.ledger.transfers)
        self.fleet.apply(event)
        self.ledger.apply(event)
        for moved in self.ledger.transfers[known:]:
            if moved.kind == "credit":
                self.bought[moved.reservation].credited += moved.microusd
            elif moved.kind == "lent":
                each = self.bought[moved.reservation]
                assert each.event.granted != moved.target.startswith("seller:")
                each.earned += moved.microusd
                self.lent_microusd += moved.microusd
                self.token_microusd += moved.microusd if each.event.granted else 0
            self.spent_microusd += moved.microusd if moved.kind == "spend_credit" else 0
            self.expired_microusd += moved.microusd if moved.kind == "expire" else 0
        self._earn(event)
        for name in self._about(event):  # time never goes backwards for any of them
            each = self.bought[name]
            each.clock_s = max(each.clock_s, event.at_s)
            self._follow(event, each.clock_s)
            if each.over and each.returned_s is None:
                each.returned_s = (each.clock_s, max(each.clock_s, now_s))
        if isinstance(event, events.ReservationBought):
            self._buy(event)
        self._check(event)
        self._waits(event, now_s)

    def _about(self, event: Event) -> list[str]:
        if isinstance(event, events.ReservedLent):
            return [name for name, _ in event.lent]
        if isinstance(event, events.LeaseEnded) and event.lease in self._of_lease:
            return [self._of_lease[event.lease][0]]
        name = getattr(event, "reservation", "")
        return [name] if name in self.bought else []

    def _earn(self, event: Event) -> None:
        """What each lender should get of a borrower's lease that has ended: its part of every second."""
        match event:
            case events.PoolPriced():
                self._prices.append((event.at_s, event.microusd_per_gpu_hour))
            case events.ReservedLent():
                self._lent.append(event)
            case events.LeaseEnded(lease=lease) if lease not in self._of_lease:
                charge = self.fleet.leases[lease]
                if charge.started_s is not None:
                    tenant = self.fleet.jobs[charge.job].job.tenant
                    self._share(tenant, charge.size, charge.started_s, event.at_s)
            case _:
                pass

    def _share(self, tenant: str, gpus: int, from_s: int, to_s: int) -> None:
        ends = [each.at_s for each in self._lent[1:]] + [to_s]
        for lent, until_s in zip(self._lent, ends, strict=False):
            for name, n in lent.lent:
                each = self.bought[name]
                if each.event.tenant == tenant:
                    continue
                part = Fraction(n * gpus * each.event.share_permille, 1000 * HOUR_S * max(1, lent.gpus))
                first, last = max(from_s, lent.at_s), min(to_s, until_s, each.end_s)
                early_s, late_s = each.returned_s or (last, last)
                each.expected += part * self._price_s(first, min(last, early_s))
                each.at_most += part * self._price_s(first, min(last, late_s))
                each.shares += 1

    def _price_s(self, first_s: int, last_s: int) -> int:
        """Price x seconds."""
        steps = pairwise([*self._prices, (max(last_s, self._prices[-1][0]), 0)])
        return sum(price * max(0, min(last_s, to_s) - max(first_s, s)) for (s, price), (to_s, _) in steps)

    def _buy(self, event: events.ReservationBought) -> None:
        span = (event.start_s, event.end_s, *_prices(event))
        hours = (event.end_s - event.start_s) // HOUR_S
        assert event.paid_microusd == event.microusd_per_gpu_hour * event.gpus * hours
        gpus = [_Gpu() for _ in range(event.gpus)]
        made = _Bought(event=event, spans=[span], gpus=gpus, paid=event.paid_microusd, clock_s=event.at_s)
        self.bought[event.reservation] = made

    def _follow(self, event: Event, at_s: int) -> None:
        match event:
            case events.ReservationExtended(reservation=name):
                each = self.bought[name]
                each.spans.append((each.end_s, event.end_s, *_prices(event)))
                each.paid += event.paid_microusd
            case events.ReservationChanged(verb="pause", reservation=name, gpus=n):
                for gpu in self.bought[name].idle()[:n]:
                    gpu.paused_s = at_s
            case events.ReservationChanged(verb="resume", reservation=name, gpus=n):
                self._unpause(self.bought[name], n, at_s)
            case events.ReservationChanged(verb="return", reservation=name, gpus=n):
                each = self.bought[name]
                freed = self._unpause(each, min(n, _paused(each)), at_s)
                for gpu in list({id(gpu): gpu for gpu in (*freed, *each.idle())}.values())[:n]:
                    gpu.returned_s = at_s
                    each.returned += sum(
                        price * max(0, b - max(a, at_s)) / HOUR_S for a, b, _, _, price in each.spans
                    )
                each.over = not each.left()
                each.changes += 1
            case events.ReservationEnded(reservation=name):
                each = self.bought[name]
                self._unpause(each, _paused(each), min(at_s, each.end_s))
                each.over = True
            case events.LeaseGranted(reservation=name, lease=lease) if name:
                n = len(event.gpus) + sum(len(part) for _, part in event.rest)
                each = self.bought[name]
                assert event.microusd_per_gpu_hour == 0
                assert self.fleet.jobs[event.job].job.tenant == each.event.tenant
                assert each.event.start_s <= event.at_s < each.end_s
                for gpu in each.idle()[:n]:
                    gpu.used = True
                self._of_lease[lease] = (name, n)
            case events.LeaseEnded(lease=lease) if lease in self._of_lease:
                name, n = self._of_lease.pop(lease)
                for gpu in [gpu for gpu in self.bought[name].left() if gpu.used][:n]:
                    gpu.used = False
            case _:
                pass

    def _unpause(self, each: _Bought, n: int, at_s: int) -> list[_Gpu]:
        paused = [gpu for gpu in each.left() if gpu.paused_s is not None]
        newest = sorted(paused, key=lambda gpu: -(gpu.paused_s or 0))[:n]
        for gpu in newest:
            gpu.pauses.append((gpu.paused_s or 0, at_s))
            gpu.paused_s = None
        each.changes += 1
        return newest

    def _check(self, event: Event) -> None:
        ledger = self.ledger
        assert sum(ledger.balances.values()) == 0
        for budget in self.fleet.purses.budgets.values():
            assert budget.left_microusd == ledger.balance(budget.account) >= 0, budget.name
        for tenant, credits in self.fleet.reservations.credits.items():
            assert sum(each.microusd for each in credits) == ledger.balance(f"credit:{tenant}") > 0, tenant
        for account, n in ledger.balances.items():
            assert n >= 0 or not account.startswith(("reservation:", "credit:")), account
        if isinstance(event, events.ReservationBought | events.ReservationExtended):
            self._never_sold_twice()
        if isinstance(event, events.ReservedLent):
            assert sum(n for _, n in event.lent) <= event.gpus <= self.capacity
            for name, n in event.lent:
                assert n <= sum(not gpu.used for gpu in self.bought[name].left()), name

    def _never_sold_twice(self) -> None:
        open_ = [each for each in self.bought.values() if not each.over]
        for at_s in {each.event.start_s for each in open_}:
            sold = sum(len(each.left()) for each in open_ if each.event.start_s <= at_s < each.end_s)
            assert sold <= self.capacity, f"{sold} of {self.capacity} GPUs are sold"

    def _waits(self, event: Event, now_s: int) -> None:
        """How long each owner's job waited while its owner's GPUs could have run it."""
        if isinstance(event, events.LeaseStarted):
            lease = self.fleet.open_leases[event.lease]
            since_s = self._due_since.pop(lease.job, None)
            if lease.reservation and since_s is not None:
                self.waits_s.append(max(0, event.at_s - since_s))
        due = set(self.due(now_s))
        for job in due:
            self._due_since.setdefault(job, now_s)
        for job in [job for job in self._due_since if job not in due]:
            if job in self.fleet.waiting:  # it is no longer entitled: its owner paused or returned them
                del self._due_since[job]

    def due(self, now_s: int) -> list[str]:
        found = []
        for each in self.bought.values():
            if each.over or not each.event.start_s <= now_s < each.end_s - self.notice_s:
                continue
            left = len(each.idle())
            jobs = [s for s in self.fleet.waiting.values() if s.job.tenant == each.event.tenant]
            for state in sorted(jobs, key=lambda s: (PRIORITIES[s.job.priority], s.serial)):
                if state.job.gpus <= left and state.job.job not in found:
                    left -= state.job.gpus
                    found.append(state.job.job)
        return found

    def credits_by_hand(self) -> None:
        """From every GPU's own record: no second is in two credits, and they add up to what was granted."""
        for name, each in self.bought.items():
            exact = each.returned
            for gpu in each.gpus:
                stretches = sorted(gpu.pauses)
                for (_, to_s), (from_s, _) in pairwise(stretches):
                    assert to_s <= from_s, name
                if gpu.returned_s is not None:
                    assert all(to_s <= gpu.returned_s for _, to_s in stretches), name
                for paused_s, until_s in stretches:
                    from_s, to_s = max(paused_s, each.event.start_s), min(until_s, each.end_s)
                    if to_s - from_s >= HOUR_S:
                        exact += sum(
                            price * max(0, min(b, to_s) - max(a, from_s)) / HOUR_S
                            for a, b, _, price, _ in each.spans
                        )
            assert exact - 2 * each.changes - 1 <= each.credited <= exact + 1e-3, (name, exact, each.credited)
            assert each.credited <= each.paid, name
            assert each.paid == 0 or not each.event.granted, name
            # Parts of the supply are cut off after six digits, and what each lease pays is rounded down.
            least = each.expected * Fraction(1_000_000 - self.capacity, 1_000_000) - each.shares
            assert least <= each.earned <= each.at_most, (name, each.earned, float(each.expected))


def _prices(event: events.ReservationBought | events.ReservationExtended) -> tuple[int, int, int]:
    return (
        event.microusd_per_gpu_hour,
        event.pause_microusd_per_gpu_hour,
        event.return_microusd_per_gpu_hour,
    )


def _paused(each: _Bought) -> int:
    return sum(gpu.paused_s is not None for gpu in each.left())


class History:
    """One random history. Same seed, same bytes."""

    def __init__(self, seed: int, *, actions: int = 25, tokens: bool = False) -> None:
        self.rng = rng = random.Random(seed)
        gpus = rng.choice((2, 4, 8))
        self.nodes = [
            Node(site=SITE, node=f"n{i}", gpu="h100", gpus=gpus, microusd_per_gpu_hour=USD, declared=True)
            for i in range(rng.randint(1, 3))
        ]
        notice_s = rng.choice((60, 120, 300))
        terms = Terms(notice_s=notice_s, period_s=rng.choice((120, 600)))
        reserve = ReserveTerms(idle_s=rng.choice((300, 900, 3600)), credit_s=rng.choice((6, 48)) * HOUR_S)
        self.market = Market(terms=terms, reserve=reserve)
        self.actions, self.tokens = actions, tokens
        self.kernel: Kernel[Due] = Kernel()
        self.work_s: dict[str, float] = {}
        self.engine = TimedEngine(self.nodes, self.work_s, self.kernel)
        self.store = MemoryStore()
        self.now_s, self.jobs, self.refused, self.crashes = 0, 0, 0, 0
        self.watcher = Watcher(notice_s=notice_s, capacity=gpus * len(self.nodes))
        self._seen = 0
        self._dies_in = 0
        self._start_server()
        if tokens:  # given out by the organisation; a team without a budget of its own draws on nothing
            self._append(events.BudgetSet(at_s=0, tenant="org", microusd=rng.randint(200, 4000) * USD))
        for tenant in ("ann", "bob", "xi", "yan") if tokens else ("ann", "bob"):
            if tokens or rng.random() < 0.5:
                sum_, within = rng.randint(20, 2000) * USD, "org" if tokens else ""
                self._append(events.BudgetSet(at_s=0, tenant=tenant, microusd=sum_, within=within))

    def run(self) -> Watcher:
        for _ in range(self.actions):
            self._until(self.now_s + int(self.rng.expovariate(1 / 1500)))
            self._act()
            self._tick()
        ends = [each.end_s for each in self.fleet.reservations.by_name.values()]
        self._until(max([self.now_s, *ends]) + self.market.terms.notice_s + 60)
        self.watcher.credits_by_hand()
        assert not any(name.startswith("reservation:") for name in self.watcher.ledger.balances)
        return self.watcher

    def _start_server(self) -> None:
        """From the log, through JSON: what a restarted server finds."""
        records = [json.loads(json.dumps(to_record(event))) for event in self.store.log]
        self.store.log = [from_record(*record) for record in records]
        self.fleet = Fleet()
        self.ports = Ports(
            store=self.store,
            engines={SITE: self.engine},
            market=Auctions(self.market),
            may_act=self._may_act,
        )
        catch_up(self.fleet, self.ports)

    def _may_act(self) -> None:
        if self._dies_in:
            self._dies_in -= 1
            if not self._dies_in:
                raise Died

    def _until(self, until_s: int) -> None:
        while (next_s := self._next_s()) is not None and next_s < until_s:
            self.now_s = next_s
            self._tick()
        self.now_s = max(self.now_s, until_s)
        self._tick()

    def _next_s(self) -> int | None:
        times = (self.kernel.next_s(), self.ports.decided.plan.look_again_s)
        found = [at_s for at_s in times if at_s is not None]
        return max(self.now_s + 1, min(found)) if found else None

    def _tick(self) -> None:
        self.engine.now_s = self.now_s
        while (at_s := self.kernel.next_s()) is not None and at_s <= self.now_s:
            for what in self.kernel.due(at_s):
                if isinstance(what, str):
                    self.engine.finish(what)
        try:
            tick(self.fleet, self.ports, RULES, now_s=self.now_s)
        except Died:
            self.crashes += 1
            self._start_server()
            tick(self.fleet, self.ports, RULES, now_s=self.now_s)
        for event in self.store.log[self._seen :]:
            self.watcher.see(event, now_s=self.now_s)
        self._seen = len(self.store.log)

    def _append(self, *made: Event) -> None:
        self.store.log.extend(made)
        catch_up(self.fleet, self.ports)

    def _act(self) -> None:
        rng = self.rng
        verb = rng.choices(
            ("submit", "buy", "pause", "resume", "return", "extend", "crash"), (40, 14, 16, 10, 6, 6, 8)
        )[0]
        # Some servers' clocks are slightly behind others'.
        now_s = self.now_s - (rng.randint(0, 600) if rng.random() < 0.05 else 0)
        open_ = sorted(self.fleet.reservations.by_name)
        try:
            if verb == "submit":
                self._submit()
            elif verb == "crash":
                self._dies_in = rng.randint(1, 3)
            elif verb == "buy":
                self._buy(now_s)
            elif open_:
                self._change(verb, rng.choice(open_), now_s)
        except BrimfulError:
            self.refused += 1

    def _submit(self) -> None:
        rng, self.jobs = self.rng, self.jobs + 1
        name, owner = f"j{self.jobs}", rng.random() < 0.4
        job = Job(
            job=name,
            gpus=rng.choice((1, 1, 2, self.nodes[0].gpus)),
            tenant=rng.choice(("ann", "bob")) if owner else rng.choice(("xi", "yan")),
            limit_microusd_per_gpu_hour=int(USD * rng.lognormvariate(1.0, 0.4)),
            priority=rng.choice(tuple(PRIORITIES)),
            within=rng.choice(("node", "any")),
            checkpoint_interval_s=0,
            command=("true",),
            folder="/",
        )
        self.work_s[name] = rng.expovariate(1 / (3 * HOUR_S)) + 60
        self._append(events.JobSubmitted(self.now_s, job))

    def _buy(self, now_s: int) -> None:
        rng = self.rng
        most = sum(node.gpus for node in self.nodes)
        offered = quote(
            self.fleet,
            self.market,
            POOL,
            gpus=rng.randint(1, most),
            hours=rng.randint(1, 12),
            now_s=now_s,
            start_s=None if rng.random() < 0.6 else now_s + rng.randint(0, 6 * HOUR_S),
            granted=self.tokens and rng.random() < 0.7,
        )
        tenant = rng.choice(("ann", "bob"))
        self._append(buy(self.fleet, offered, self.market.reserve, tenant=tenant, now_s=now_s))

    def _change(self, verb: str, name: str, now_s: int) -> None:
        fleet, rng = self.fleet, self.rng
        gpus = None if rng.random() < 0.5 else rng.randint(1, 8)
        if verb == "pause":
            self._append(pause(fleet, name, gpus=gpus, now_s=now_s))
        elif verb == "resume":
            self._append(resume(fleet, name, gpus=gpus, now_s=now_s))
        elif verb == "return":
            self._append(give_back(fleet, name, gpus=gpus, now_s=now_s))
        else:
            offered = quote_extension(fleet, self.market, name, hours=rng.randint(1, 6), now_s=now_s)
            self._append(extend(fleet, name, offered, now_s=now_s))


def dump(log: Sequence[Event]) -> bytes:
    """The state of reservations and accounts, from a log."""
    fleet, ledger = Fleet(), Ledger()
    for event in log:
        fleet.apply(event)
        ledger.apply(event)
    held = fleet.reservations
    assert held == ledger.reservations, "fleet and ledger agree"
    facts = {
        "log": [to_record(event) for event in log],
        "open": {name: repr(each) for name, each in held.by_name.items()},
        "ended": {name: repr(each) for name, each in held.ended.items()},
        "credits": {name: [asdict(each) for each in found] for name, found in held.credits.items()},
        "balances": sorted(ledger.balances.items()),
        "transfers": [asdict(each) for each in ledger.transfers],
        "purses": repr(fleet.purses),
    }
    return json.dumps(facts, default=str, sort_keys=True).encode()


@dataclass(slots=True)
class Found:
    histories: int = 0
    events: int = 0
    reservations: int = 0
    crashes: int = 0
    lent_microusd: int = 0
    token_microusd: int = 0
    spent_microusd: int = 0
    expired_microusd: int = 0
    waits_s: list[int] = field(default_factory=list)  # beyond the notice; negative: earlier

    @property
    def in_time(self) -> float:
        return sum(wait_s <= LATE_S for wait_s in self.waits_s) / len(self.waits_s) if self.waits_s else 1.0


def try_histories(seeds: range, *, actions: int = 25, tokens: bool = False) -> Found:
    """Generate them, check them, and replay each from its own bytes."""
    found = Found()
    for seed in seeds:
        history = History(seed, actions=actions, tokens=tokens)
        try:
            seen = history.run()
        except AssertionError as error:
            raise AssertionError(f"history {seed}: {error}") from error
        again = [from_record(*json.loads(json.dumps(to_record(e)))) for e in history.store.log]
        assert dump(again) == dump(history.store.log), f"history {seed}: replay differs"
        found.histories += 1
        found.events += len(history.store.log)
        found.reservations += len(seen.bought)
        found.crashes += history.crashes
        found.lent_microusd += seen.lent_microusd
        found.token_microusd += seen.token_microusd
        found.spent_microusd += seen.spent_microusd
        found.expired_microusd += seen.expired_microusd
        found.waits_s += (wait_s - seen.notice_s for wait_s in seen.waits_s)
    return found
