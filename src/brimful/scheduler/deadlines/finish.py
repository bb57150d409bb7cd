"""A deadline, and a budget, as the bid: which pools a job may use now, in a fleet with spot and firm pools.

Firm is every tier except spot: capacity held there stays. If a job could run on either, each look decides to
wait, use spot or use firm, whichever `programme.py` finds cheapest, within two safety nets:

- time: from the last moment at which firm capacity can still do all work that no checkpoint holds, start
  included, the job takes firm capacity and stays there;
- money: the job holds spot only while the rest of its budget would still pay for that, at the job's own limit
  where bids set the price.

Spot may be a market pool: the job bids there, and losing spot means being outbid. Firm capacity is in queue
pools, where no bid can take it away. Each job has a claim on its own firm GPUs: others may use them until
then, and leave when the time comes (`Claims`).

If the budget does not pay for firm capacity at all, the job may use only spot and is told that it may be
late; if it does not pay for spot either, the job does not start. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from math import ceil, inf, log2
from typing import Literal, NamedTuple

from brimful.fleet.job import WHOLE_GPU, Job
from brimful.fleet.memory import too_small
from brimful.fleet.state import Fleet, JobState, Lease, Pool
from brimful.language import Seconds, Sentence, Usd, say
from brimful.market.pools import limit_of
from brimful.market.spells import Following, Spells, follow, spells_of
from brimful.scheduler.cloud.buying import Opening, Shop
from brimful.scheduler.deadlines.claims import Claims
from brimful.scheduler.deadlines.programme import (
    Held,
    Programme,
    Seen,
    Task,
    uniform_progress,
)
from brimful.scheduler.draft import Draft
from brimful.scheduler.placing.place import ONE_NODE, place
from brimful.scheduler.placing.pools import allowed_pools
from brimful.scheduler.rules import Rules
from brimful.units import HOUR_S

LEARN_S = 4 * HOUR_S  # how often the belief about spot is renewed
# Seconds between two looks: a two-hundredth of the time there was, within these bounds.
LOOK_S = (10, 300)
# How many programmes one decision may solve, for the jobs due first; any other job just keeps pace. A
# programme takes up to 0.1 s each time and 4 MB; jobs with about as much work and time left share it.
PROGRAMMES = 32
CELLS = 28_000  # of 35 numbers of 4 bytes
# Spot is not left idle for hours to save a cent; this is also more than the error of the programme's grid.
WAIT_GAIN = 0.02
MOST_BONUS = 150  # percent: the most that the limit of a job holding GPUs of a market pool may count


class Verdict(NamedTuple):
    """What a job with a deadline may use until the next look."""

    # refused: it would not reach its end. any: nothing can be planned, and nothing is held back.
    kind: Literal["wait", "spot", "firm", "refused", "any"]
    pools: tuple[Pool, ...]
    reason: Sentence


@dataclass(slots=True)
class Finish:
    """The verdicts of one decision, by job."""

    verdicts: dict[str, Verdict] = field(default_factory=dict)
    moves: list[tuple[Lease, Sentence]] = field(default_factory=list)  # between spot and firm, and why
    due_now: list[JobState] = field(default_factory=list)  # jobs that need firm GPUs now, earliest first
    look_again_s: int | None = None

    def only(self, job: str, pools: list[Pool]) -> list[Pool]:
        """The ones of these pools that the job may use now."""
        verdict = self.verdicts.get(job)
        if verdict is None or verdict.kind == "any":
            return pools
        return [pool for pool in pools if pool in verdict.pools]

    def targets(self, fleet: Fleet) -> dict[str, Pool | None]:
        """The pool of each job, for a review of GPU types; running jobs stay."""
        found: dict[str, Pool | None] = {}
        for name, verdict in self.verdicts.items():
            lease = fleet.jobs[name].open_lease
            if verdict.kind != "any":
                here = None if lease is None else fleet.nodes[lease.node].pool
                found[name] = here or (verdict.pools[0] if verdict.pools else None)
        return found


def finish(
    fleet: Fleet,
    draft: Draft,
    rules: Rules,
    prices: Mapping[Pool, int],
    *,
    now_s: int,
    shop: Shop | None = None,
) -> Finish:
    """Decide for every job with a deadline. Called only if the fleet has, or had, spot.

    A pool in which nodes could be bought now counts as having room.
    """
    done, claims = Finish(), Claims(fleet, draft)
    records = _Records(fleet, now_s=now_s)
    due_first = sorted(fleet.due.values(), key=lambda each: (each.job.deadline_s, each.serial))
    for state in due_first:
        lease = state.open_lease
        if state.phase not in ("waiting", "running"):
            continue  # starting, stopping or on hold: the next look sees the outcome
        if shop is not None and (verdict := _stays(state, fleet, draft, rules, shop, now_s=now_s)):
            done.verdicts[state.job.job] = verdict
            continue
        case = _case(state, fleet, draft, rules, prices, now_s=now_s, shop=shop)
        if case is None:
            continue
        case.records = records
        case.may_solve = (shop is None or shop.buying.programmes) and find_spec("numpy") is not None
        case.is_claimed = case.for_sale or claims.claim(state.job, case.firm, here=case.lease)
        verdict = case.verdict()
        done.verdicts[state.job.job] = verdict
        if lease is None and verdict.kind == "firm" and not case.for_sale:  # otherwise nodes are made for it
            done.due_now.append(state)
        if lease is not None and verdict.kind in ("spot", "firm") and verdict.kind != case.held:
            done.moves.append((lease, verdict.reason))
        if case.left_s > 0 and (lease is not None or verdict.kind in ("wait", "spot", "firm")):
            again_s = (now_s // case.look_s + 1) * case.look_s
            done.look_again_s = min(again_s, done.look_again_s or again_s)
    return done


class _Records:
    """The spot history that one decision needs, read once for all jobs that may use the same pools."""

    def __init__(self, fleet: Fleet, *, now_s: int) -> None:
        self.fleet = fleet
        self.until_s = now_s // LEARN_S * LEARN_S
        self.solved: set[object] = set()  # programmes that this decision has solved
        self._together: dict[tuple[Pool, ...], list[int]] = {}
        self._known: dict[Pool, tuple[int, ...]] = {}

    def together(self, pools: tuple[Pool, ...]) -> list[int]:
        found = self._together.get(pools)
        if found is None:
            found = self._together[pools] = _together([self.fleet.spot[pool].changes for pool in pools])
        return found

    def known(self, pools: tuple[Pool, ...]) -> tuple[tuple[int, ...], ...]:
        """The changes of each pool up to the last time the belief was renewed."""
        for pool in pools:
            if pool not in self._known:
                changes = self.fleet.spot[pool].changes
                self._known[pool] = tuple(at_s for at_s in changes if at_s <= self.until_s)
        return tuple([self._known[pool] for pool in pools])


@dataclass(slots=True, kw_only=True)
class _Case:
    """One job at one look: money in micro-dollars, work in seconds on the firm GPUs it would get."""

    state: JobState
    fleet: Fleet
    now_s: int
    look_s: int
    held: Literal["none", "spot", "firm"]
    lease: Lease | None
    firm: tuple[Pool, ...]  # the cheapest with room; all that could hold the job if none has room
    firm_hourly: float
    # Every spot pool it could use, up now or not: the cost of an hour of work, or the usual cost if bids have
    # driven it above firm capacity.
    spot: dict[Pool, float]
    here_hourly: float  # of the spot it holds; 0: none
    up: list[Pool]  # the ones with room for it now, or the one it holds
    worst_hourly: float  # of the cheapest of them, if bids drive its price up to the job's own limit
    speed: float  # of those firm GPUs
    work_s: float | None
    worst_s: float  # work left if its GPUs were lost now
    left_s: int
    margin_s: int
    units: float  # GPUs billed per hour
    shop: Shop | None = None
    for_sale: bool = False  # whether the firm capacity would be bought
    records: _Records = field(init=False)
    may_solve: bool = True  # False: keep pace only
    is_claimed: bool = True  # False: jobs due earlier need all the firm capacity there is

    def verdict(self) -> Verdict:
        job = self.state.job
        if self.work_s is None:
            return Verdict("any", (), say("scheduler.unplanned"))
        if self.work_s <= 0 and self.lease is not None:  # the estimate has run out: it may end any moment
            firm = self.held == "firm"
            pools = self.firm if firm else tuple(self.up)
            return Verdict("firm" if firm else "spot", pools, say("scheduler.ends_soon"))
        setup_s = job.checkpoint_cost_s if self.held != "firm" and self.state.leases else 0
        budget = self._budget()
        firm_cost = self._cost(self.firm_hourly, self._to_do_s() + setup_s)
        if self.held == "spot" and self.left_s < self.worst_s + setup_s:
            why = say("scheduler.firm_too_late", tier=self._tier, deadline=self._deadline())
            return Verdict("spot", tuple(self.up), why)
        if firm_cost > budget:
            return self._over_budget(firm_cost, budget, setup_s)
        if not self.is_claimed and self.held != "firm" and self.up and job.checkpoint_interval_s:
            why = say("scheduler.net_is_others", tier=self._tier, deadline=self._deadline())
            return Verdict("spot", (self._best_zone(),), why)
        only_firm = self._why_firm(budget, setup_s)
        return self._cheapest() if only_firm is None else Verdict("firm", self.firm, only_firm)

    def _why_firm(self, budget: float, setup_s: float) -> Sentence | None:
        """Why only firm capacity will do now; None if there is a choice."""
        job = self.state.job
        assert self.work_s is not None
        tier, deadline = self._tier, self._deadline()
        if self.left_s < self._to_do_s() + setup_s:
            return say("scheduler.firm_only_late", tier=tier, work=self._work(setup_s), deadline=deadline)
        if not job.checkpoint_interval_s:
            return say("scheduler.firm_only_unsaved", tier=tier)
        restart_s = job.checkpoint_cost_s
        if self.left_s - self.margin_s < self.worst_s + restart_s:
            return say("scheduler.firm_only_now", tier=tier, work=self._work(restart_s), deadline=deadline)
        tried = self._cost(self.worst_hourly, self.look_s)
        tried += self._cost(self.firm_hourly, self.worst_s + restart_s)
        if tried > budget:
            return say("scheduler.firm_only_paid", tier=tier, tried=Usd(int(tried)), left=Usd(int(budget)))
        return None

    def _cheapest(self) -> Verdict:
        """Time and money suffice either way: choose the lowest expected cost."""
        job, choice = self.state.job, self._choose()
        if self.lease is not None and self.held == "firm" and choice != "on_demand":
            stays = choice == "none" or self.lease.billed_s(self.now_s) < job.min_run_s + self.lease.setup_s
            choice = "on_demand" if stays else choice
        slack = Seconds(self.left_s - (self.work_s or 0.0))
        if choice == "on_demand":
            why = say("scheduler.firm_cheapest", tier=self._tier, slack=slack)
            return Verdict("firm", self.firm, why)
        if choice == "spot":
            spot, firm = Usd(int(min(self.spot.values()))), Usd(int(self.firm_hourly))
            why = say("scheduler.moves_to_spot", spot=spot, firm=firm, slack=slack)
            return Verdict("spot", (self._best_zone(),), why)
        until_s = max(0, self.left_s - self.margin_s - self.worst_s - job.checkpoint_cost_s)
        code = "scheduler.waits_for_lasting_spot" if self.up else "scheduler.waits_for_spot"
        return Verdict("wait", (), say(code, tier=self._tier, slack=slack, until=Seconds(until_s)))

    def _choose(self) -> Held:
        job, lease = self.state.job, self.lease
        assert job.deadline_s is not None
        assert job.predicted_work_s is not None
        assert self.work_s is not None
        task = Task(
            work_s=job.predicted_work_s / self.speed,
            deadline_s=job.deadline_s - self.state.ready_s,
            # A start costs the time until it works again, plus the work since the last checkpoint.
            restart_s=job.checkpoint_cost_s + (job.checkpoint_interval_s or 0) / 2,
            spot_usd_per_hour=min(self.spot.values()) / 1e6,
            on_demand_usd_per_hour=self.firm_hourly / 1e6,
        )
        if task.spot_usd_per_hour >= task.on_demand_usd_per_hour:
            return "on_demand"
        pools, is_up = tuple(self.spot), bool(self.up)
        # Of the zone that would be taken; of all zones together if none has spot.
        changes = self.fleet.spot[self._best_zone()].changes if is_up else self.records.together(pools)
        as_recorded = is_up == bool(len(changes) % 2)  # a zone may be up but full
        seen = Seen(
            left_s=self.left_s,
            work_s=self.work_s,
            held="on_demand" if self.held == "firm" else self.held,
            setup_s=0.0 if lease is None else max(0, lease.setup_s - lease.billed_s(self.now_s)),
            is_up=is_up,
            age_s=max(0, self.now_s - changes[-1]) if as_recorded and changes else 0.0,
        )
        if seen.held == "spot" and (self.here_hourly - self.firm_hourly) * self.work_s > (
            self.firm_hourly * task.restart_s
        ):
            return "on_demand"  # bids have driven spot so high that restarting on firm capacity is worth it
        if seen.held == "spot":
            return "spot"  # as fast, and cheaper, as long as it lasts; the safety nets were checked above
        if task.work_s + 2 * task.restart_s + 2 * self.look_s >= task.deadline_s:
            return "on_demand"  # there was never time to spare
        records = self.records
        shared = _shared_task(task, seen, units=self.units)
        is_new = (shared, pools) not in records.solved
        if not self.may_solve or (is_new and len(records.solved) >= PROGRAMMES):
            return uniform_progress(task, seen, tick_s=self.look_s)
        records.solved.add((shared, pools))
        return _programme(shared, records.known(pools), records.until_s, self.look_s).decide(seen)

    def _best_zone(self) -> Pool:
        """Where an hour of work costs least, including the restarts that a short spell will cause."""
        if self.held == "spot" or len(self.up) == 1:
            return self.up[0]
        if self.shop is not None and (best := self._best_offer(self.shop)) is not None:
            return best
        restart = self.state.job.checkpoint_cost_s / HOUR_S

        def cost(pool: Pool) -> float:
            changes = self.fleet.spot[pool].changes
            life = _spells(tuple(changes), self.now_s).expected_hours(max(0, self.now_s - changes[-1]))
            return self.spot[pool] * (1 + restart / life)

        return min(self.up, key=cost)

    def _best_offer(self, shop: Shop) -> Pool | None:
        """The same, by total cost with egress and lost work; None: some zone is not on offer."""
        openings = shop.openings(self.state)
        if shop.buying.by == "price":
            return min(self.up, key=lambda pool: (self.spot[pool], pool))
        sums = {
            pool: place.total
            for pool in self.up
            if pool in openings and (place := shop.weigh(self.state, openings[pool])) is not None
        }
        return min(self.up, key=lambda pool: (sums[pool], pool)) if len(sums) == len(self.up) else None

    def _over_budget(self, firm_cost: float, budget: float, setup_s: float) -> Verdict:
        """The hard cap: the budget cannot pay for firm capacity to the end."""
        assert self.work_s is not None
        cost, left = Usd(int(firm_cost)), Usd(max(0, int(budget)))
        dear = say("scheduler.firm_too_dear", tier=self._tier, work=self._work(setup_s), cost=cost, left=left)
        spot_cost = self._cost(min(self.spot.values()), self.work_s + setup_s)
        if spot_cost > budget and self.lease is None:
            return Verdict(
                "refused", (), say("scheduler.cannot_pay", too_dear=dear, spot=Usd(int(spot_cost)))
            )
        if self.held == "firm" and (spot_cost > budget or not self.up):
            return Verdict("firm", self.firm, dear)
        why = say("scheduler.spot_only", too_dear=dear, spot=Usd(int(spot_cost)))
        return Verdict("spot", (self._best_zone(),) if self.up else (), why)

    def _to_do_s(self) -> float:
        """Work left for firm capacity: a job that leaves spot restarts from its last checkpoint."""
        return self.worst_s if self.held == "spot" else self.work_s or 0.0

    def _work(self, setup_s: float) -> Sentence:
        work = Seconds(self._to_do_s())
        if not setup_s:
            return say("scheduler.work", work=work)
        return say("scheduler.work_and_start", work=work, setup=Seconds(setup_s))

    def _deadline(self) -> Sentence:
        if self.left_s < 0:
            return say("scheduler.past_deadline", ago=Seconds(-self.left_s))
        return say("scheduler.to_deadline", left=Seconds(self.left_s))

    @property
    def _tier(self) -> str:
        return self.firm[0].tier

    def _budget(self) -> float:
        budget = self.state.job.budget_microusd
        return inf if budget is None else budget - self.state.cost_microusd(self.now_s)

    def _cost(self, hourly: float, seconds: float) -> float:
        return hourly * ceil(seconds) / HOUR_S  # bills count whole seconds


def _case(
    state: JobState,
    fleet: Fleet,
    draft: Draft,
    rules: Rules,
    prices: Mapping[Pool, int],
    *,
    now_s: int,
    shop: Shop | None,
) -> _Case | None:
    """The job's situation; None if it has no choice between spot and firm, or the market chooses."""
    job, lease = state.job, state.open_lease
    assert job.deadline_s is not None
    spot = _spot_pools(job, fleet, draft)
    able = allowed_pools(fleet, state.shape, draft, prices)
    openings = {} if shop is None else shop.openings(state)
    firm = [pool for pool in {**dict.fromkeys(able), **openings} if pool.tier != "spot"]
    prices = {pool: each.offer.microusd_per_gpu_hour for pool, each in openings.items()} | {**prices}
    here = None
    if lease is not None:
        node = fleet.nodes.get(lease.node)
        if node is None or (node.pool in draft.sold and node.tier != "spot"):
            return None
        here = node.pool
        firm = firm if here.tier == "spot" else [here]
    if not spot or not firm:
        return None
    units = job.gpus * job.gpu_milli / WHOLE_GPU
    firm = _cheapest_with_room(job, draft, firm, prices, here=here, openings=openings)
    if shop is not None and here is None and firm[0] in openings:
        firm = [shop.cheapest(state, [pool for pool in openings if pool.tier != "spot"])]
    speed = min(job.rate(pool.gpu) for pool in firm)
    if job.within not in ONE_NODE and job.gpus > 1:
        speed *= min(1.0, job.spread_rate)
    by_work = {pool: units * speed / job.rate(pool.gpu) for pool in spot}
    firm_hourly = max(prices[pool] for pool in firm) * units
    now = {pool: _spot_price(state, fleet, draft, pool) * each for pool, each in by_work.items()}
    usual = {pool: fleet.spot[pool].microusd_per_gpu_hour * each for pool, each in by_work.items()}
    dear = {pool for pool in spot if pool in draft.sold and now[pool] >= firm_hourly}
    up: list[Pool | None] = [here]
    if here not in spot:
        up = [p for p in spot if p in openings or (_is_up(state, fleet, draft, p, able) and p not in dear)]
    lead_s = max((openings[pool].offer.lead_s for pool in firm if pool in openings), default=0)
    left = state.remaining_s(now_s)
    look_s = min(LOOK_S[1], max(LOOK_S[0], (job.deadline_s - state.ready_s) // 200))
    return _Case(
        state=state,
        fleet=fleet,
        now_s=now_s,
        look_s=look_s,
        held="none" if here is None else "spot" if here.tier == "spot" else "firm",
        lease=lease,
        firm=tuple(firm),
        firm_hourly=firm_hourly,
        spot={pool: usual[pool] if pool in dear else each for pool, each in now.items()},
        here_hourly=now[here] if here in spot else 0.0,
        up=[pool for pool in up if pool is not None],
        worst_hourly=min(_most(job, fleet, draft, pool) * each for pool, each in by_work.items()),
        speed=speed,
        work_s=None if left is None else left / speed,
        worst_s=((left or 0.0) + _unsaved_s(job, lease, now_s=now_s)) / speed,
        left_s=job.deadline_s - now_s,
        margin_s=look_s + rules.grace_s + lead_s,
        units=units,
        shop=shop,
        for_sale=any(pool in openings for pool in firm),
    )


def _stays(
    state: JobState, fleet: Fleet, draft: Draft, rules: Rules, shop: Shop, *, now_s: int
) -> Verdict | None:
    """A shortcut for most jobs at most looks: it runs on bought spot and has time to spare.

    While it works its slack stays the same, so nothing needs another look until something happens. None: a
    full look is needed.
    """
    job, lease = state.job, state.open_lease
    machine = None if lease is None else fleet.cloud.machines.get(lease.node)
    if lease is None or machine is None or machine.pool.tier != "spot" or machine.pool in draft.sold:
        return None
    left_s = state.remaining_s(now_s)
    if not left_s or not job.checkpoint_interval_s or job.budget_microusd is not None or not lease.speed:
        return None
    firm = [(pool, each) for pool, each in shop.openings(state).items() if pool.tier != "spot"]
    if not firm:
        return None
    slowest = min([lease.speed, *(job.rate(pool.gpu) for pool, _ in firm)])
    if job.within not in ONE_NODE and job.gpus > 1:
        slowest *= min(1.0, job.spread_rate)
    dearest = machine.microusd_per_hour * len(lease.parts) / lease.speed
    if any(each.microusd_per_hour / job.rate(pool.gpu) <= dearest for pool, each in firm):
        return None
    assert job.deadline_s is not None
    lead_s = max(each.offer.lead_s for _, each in firm)
    net_s = left_s / slowest + job.checkpoint_interval_s + 2 * job.checkpoint_cost_s
    if job.deadline_s - now_s - LOOK_S[1] - rules.grace_s - lead_s < net_s:
        return None
    slack = Seconds(job.deadline_s - now_s - left_s / lease.speed)
    spot, dear = Usd(int(dearest)), Usd(int(min(each.microusd_per_hour for _, each in firm)))
    why = say("scheduler.moves_to_spot", spot=spot, firm=dear, slack=slack)
    return Verdict("spot", (machine.pool,), why)


def _spot_pools(job: Job, fleet: Fleet, draft: Draft) -> list[Pool]:
    """Spot pools it could use at a price it accepts, including those that are down now."""
    limit = job.limit_microusd_per_gpu_hour
    whole = job.gpu_milli == WHOLE_GPU  # only whole-GPU jobs bid
    return [
        pool
        for pool, record in fleet.spot.items()
        if job.may_be_in(site=pool.site, tier=pool.tier)
        and job.rate(pool.gpu) > 0.0
        and too_small(job, pool.gpu) is None
        and (limit is None or record.microusd_per_gpu_hour <= limit)
        and (whole or pool not in draft.sold)
    ]


def _is_up(state: JobState, fleet: Fleet, draft: Draft, pool: Pool, able: Sequence[Pool]) -> bool:
    """Whether the pool has room for the job now; in a market pool, whether its bid may win."""
    if pool not in draft.sold:
        return pool in able and place(state.job, draft, pool) is not None
    if pool not in fleet.able_pools(state.shape) or pool.site in draft.closed:
        return False
    most, outbids = _most(state.job, fleet, draft, pool), _outbid_at(state.job, fleet, draft, pool)
    return 100 * most > MOST_BONUS * outbids and most >= _spot_price(state, fleet, draft, pool)


def _spot_price(state: JobState, fleet: Fleet, draft: Draft, pool: Pool) -> int:
    """What a GPU-hour costs there, or would once it bids: the limit of the jobs it then displaces."""
    posted = fleet.spot[pool].microusd_per_gpu_hour
    if pool not in draft.sold:
        return posted
    line, lease = fleet.prices.get(pool), state.open_lease
    now = posted if line is None else line.last.microusd_per_gpu_hour
    if lease is not None and (node := fleet.nodes.get(lease.node)) is not None and node.pool == pool:
        return now
    return max(now, _outbid_at(state.job, fleet, draft, pool))


def _outbid_at(job: Job, fleet: Fleet, draft: Draft, pool: Pool) -> int:
    """The highest limit of the jobs holding the GPUs it would need; 0: enough are free."""
    needed = job.gpus - (draft.free_in(pool) if pool in fleet.capacity.pools else 0)
    floor = fleet.spot[pool].microusd_per_gpu_hour
    held = sorted(
        (limit_of(fleet.jobs[lease.job].job, floor=floor), lease.size)
        for lease in fleet.leases_at.get(pool.site, {}).values()
        if (node := fleet.nodes.get(lease.node)) is not None and node.pool == pool and lease.phase != "ending"
    )
    highest = 0
    for limit, gpus in held:
        if needed <= 0:
            break
        highest, needed = limit, needed - gpus
    return highest


def _most(job: Job, fleet: Fleet, draft: Draft, pool: Pool) -> int:
    """What an hour there may cost before the job leaves."""
    posted = fleet.spot[pool].microusd_per_gpu_hour
    return limit_of(job, floor=posted) if pool in draft.sold else posted


def _cheapest_with_room(
    job: Job,
    draft: Draft,
    firm: list[Pool],
    prices: Mapping[Pool, int],
    *,
    here: Pool | None,
    openings: Mapping[Pool, Opening],
) -> list[Pool]:
    if len(firm) == 1 or here in firm:
        return firm
    free = [pool for pool in firm if pool in openings or place(job, draft, pool) is not None]
    return [min(free, key=lambda pool: prices[pool] / job.rate(pool.gpu))] if free else firm


def _unsaved_s(job: Job, lease: Lease | None, *, now_s: int) -> float:
    """Work of this lease that no checkpoint holds."""
    if lease is None:
        return 0.0
    worked_s = max(0, lease.billed_s(now_s) - lease.setup_s)
    every_s = job.checkpoint_interval_s
    return lease.speed * (worked_s % every_s if every_s else worked_s)


def _together(zones: Sequence[Sequence[int]]) -> list[int]:
    """When the first of these zones came up, and when the last of them went down."""
    if len(zones) == 1:
        return list(zones[0])
    steps = sorted((at_s, i % 2) for zone in zones for i, at_s in enumerate(zone))
    found: list[int] = []
    there = 0
    for at_s, goes in steps:
        before, there = there, there - 1 if goes else there + 1
        if bool(before) != bool(there):
            found.append(at_s)
    return found


def _shared_task(task: Task, seen: Seen, *, units: float) -> Task:
    """A task whose programme also serves this one: the same work and slack left per GPU, or slightly more.

    A programme's answer depends on the work and time left, not on how long the task was.
    """
    work_s = _rounded_up(seen.work_s)
    return Task(
        work_s=work_s,
        deadline_s=work_s + _rounded_up(max(seen.left_s - seen.work_s, task.restart_s)),
        restart_s=task.restart_s,
        spot_usd_per_hour=round(task.spot_usd_per_hour / units, 4),
        on_demand_usd_per_hour=round(task.on_demand_usd_per_hour / units, 4),
    )


def _rounded_up(seconds: float) -> float:
    """To the next power of the square root of 2."""
    return float(2 ** (ceil(2 * log2(max(1.0, seconds))) / 2))


@lru_cache(maxsize=2 * PROGRAMMES)
def _programme(task: Task, zones: tuple[tuple[int, ...], ...], until_s: int, look_s: int) -> Programme:
    """Solved once per `LEARN_S` for each job; what was seen after `until_s` does not count yet."""
    return Programme(task, _following(zones, until_s), tick_s=look_s, cells=CELLS, wait_gain=WAIT_GAIN)


@lru_cache(maxsize=8)
def _following(zones: tuple[tuple[int, ...], ...], until_s: int) -> Following:
    return follow(zones, until_s=until_s)


@lru_cache(maxsize=2 * PROGRAMMES)
def _spells(changes: tuple[int, ...], until_s: int) -> Spells:
    """Cached; callers must not modify it."""
    return spells_of(changes, until_s=until_s)
