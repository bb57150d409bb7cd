"""Provider nodes: used by the jobs they were made for, returned when idle, ordered for jobs that pay."""

from __future__ import annotations

from brimful.errors import Said
from brimful.fleet.cloud import NOT_USABLE, Machine
from brimful.fleet.events import NodeOrdered, NodeReturned, Parts
from brimful.fleet.lease import OVER
from brimful.fleet.state import JobState, Pool
from brimful.language import Seconds, Usd, count, say
from brimful.market.where import Place
from brimful.scheduler.cloud.buying import Opening, Shop
from brimful.scheduler.cycle import Cycle
from brimful.scheduler.placing.place import place

MAKE_S = 1800  # an order not ready after this and four times the usual time is given up
JOIN_S = 600  # so is a node that is ready and billed but cannot be used


def use_bought(cycle: Cycle) -> None:
    """Start a job once all of its nodes are there; a job that runs elsewhere leaves for them."""
    if cycle.shop is None:
        return
    fleet = cycle.fleet
    leaving = [each.node for each in fleet.cloud.machines.values() if each.returned_s is not None]
    for node in (*leaving, *fleet.cloud.lingering):
        if node in fleet.capacity.by_name:
            cycle.draft.hold(fleet.capacity.by_name[node].index)
    for name, nodes in fleet.cloud.reserved.items():
        state = fleet.jobs.get(name)
        machines = [fleet.cloud.machines[node] for node in nodes]
        if state is None or state.phase in OVER:
            continue
        parts = _parts(cycle, state, machines)
        if parts is not None and state.phase == "waiting":
            cycle.start(state, parts)
            cycle.settled.add(name)
            continue
        lease = state.open_lease
        if parts is not None and lease is not None and lease.phase == "running":
            cycle.stop(lease, machines[0].order.reason)
        for machine in machines:  # reserved for the job, whatever else would fit
            slot = fleet.capacity.by_name.get(machine.node)
            if slot is not None:
                cycle.draft.hold(slot.index)


def _parts(cycle: Cycle, state: JobState, machines: list[Machine]) -> Parts | None:
    """The gang spread over its nodes, in their order; None until all of them are there."""
    parts: list[tuple[str, tuple[int, ...]]] = []
    missing = state.job.gpus
    for machine in machines:
        slot = cycle.fleet.capacity.by_name.get(machine.node)
        if machine.ready_s is None or slot is None or machine.returned_s is not None:
            return None
        gpus = tuple(slot.free[: min(missing, machine.order.gpus)])
        parts.append((machine.node, gpus))
        missing -= len(gpus)
    return tuple(parts) if not missing else None


def give_back(cycle: Cycle) -> None:
    """Keep an idle node for as long as a new one would take to start, and while it is already paid for.

    This is the ski rental rule: returning a node and needing one again at once pays for a second start.
    """
    shop = cycle.shop
    if shop is None or not cycle.fleet.cloud.machines:
        return
    over = {machine.node for machine in shop.too_many()}
    taken = {name for start in cycle.starts for name, _ in ((start.node, start.gpus), *start.rest)}
    for machine in cycle.fleet.cloud.machines.values():
        if machine.returned_s is not None:
            continue
        if machine.node in taken:
            if machine.node in over:
                shop.look_at(cycle.now_s + 1)  # once the lease starting there can be told to stop
            continue
        leases = cycle.fleet.leases_on.get(machine.node, {})
        if machine.node in over:
            for lease in leases.values():
                cycle.stop(lease, say("scheduler.cap_reached", node=machine.node))
            _return(cycle, machine, "scheduler.cap_reached")  # removed once its leases have stopped
            continue
        gives_up_s = _give_up_at_s(machine)
        if gives_up_s is not None and gives_up_s <= cycle.now_s:
            _return(cycle, machine, NOT_USABLE)
            continue
        if gives_up_s is not None:
            shop.look_at(gives_up_s)
        if leases or _is_kept(cycle, machine):
            continue
        due_s = _due_s(shop, machine)
        if due_s <= cycle.now_s:
            _return(cycle, machine, "scheduler.node_idle")
        else:
            shop.look_at(due_s)


def _give_up_at_s(machine: Machine) -> int | None:
    """When to stop waiting for it; None: it is in use, or could be."""
    if machine.ready_s is None:
        return machine.order.at_s + max(MAKE_S, 4 * machine.offer.lead_s)
    return None if machine.away_s is None else machine.away_s + JOIN_S


def _is_kept(cycle: Cycle, machine: Machine) -> bool:
    """Whether the job it was made for still wants it."""
    state = cycle.fleet.jobs.get(machine.job) if machine.job else None
    return state is not None and state.phase not in OVER


def _due_s(shop: Shop, machine: Machine) -> int:
    """When an idle node goes back."""
    if machine.ready_s is None or machine.used_s is None:
        return shop.now_s
    keep_s = machine.offer.lead_s if shop.buying.keep_s is None else shop.buying.keep_s
    if machine.offer.quantum_s > 1 or machine.offer.least_s:
        # Keeping what is already paid for costs nothing; it must be gone before the next billing quantum
        # begins.
        paid_s = machine.billed_until_s(max(shop.now_s, machine.used_s + keep_s)) - 1
        return max(paid_s, machine.used_s)
    return machine.used_s + keep_s


def _return(cycle: Cycle, machine: Machine, code: str) -> None:
    idle_s = cycle.now_s - (machine.used_s or cycle.now_s)
    reason = say(code, idle=Seconds(idle_s)) if code.endswith("idle") else say(code, node=machine.node)
    cycle.orders.append(NodeReturned(at_s=cycle.now_s, node=machine.node, reason=reason))


def buy(cycle: Cycle) -> None:
    """Order nodes for waiting jobs that pay for them, earliest deadline first."""
    shop, fleet = cycle.shop, cycle.fleet
    if shop is None or not len(fleet.waiting):
        return
    starting = {start.job for start in cycle.starts}
    for state in sorted(fleet.waiting.values(), key=_urgency):
        name = state.job.job
        if name in starting or name in cycle.cells or name in fleet.cloud.reserved:
            continue
        best = _best(cycle, shop, state)
        if best is None:
            continue
        opening, sum_ = best
        reason = say(
            "scheduler.bought_for",
            job=name,
            nodes=count("node", opening.nodes),
            where=opening.offer.site,
            hourly=Usd(opening.microusd_per_hour),
            total=Usd(opening.microusd_per_hour if sum_ is None else sum_.total),
        )
        order(cycle, shop, state, opening, reason)


def order(cycle: Cycle, shop: Shop, state: JobState, opening: Opening, reason: Said) -> bool:
    """Order all of the nodes, or none and say why."""
    refused = shop.over_cap(opening)
    if refused is None and shop.buying.dry_run:
        refused = say("scheduler.would_buy", nodes=count("node", opening.nodes), where=opening.offer.site)
    if refused is not None:
        shop.refusals[state.job.job] = refused
        return False
    shop.take(opening)
    offer = opening.offer
    for _ in range(opening.nodes):
        number = cycle.fleet.cloud.ordered + sum(isinstance(each, NodeOrdered) for each in cycle.orders)
        cycle.orders.append(
            NodeOrdered(
                at_s=cycle.now_s,
                node=f"{offer.site}-{number + 1}",
                site=offer.site,
                gpu=offer.gpu,
                tier=offer.tier,
                gpus=offer.gpus,
                microusd_per_gpu_hour=offer.microusd_per_gpu_hour,
                job=state.job.job,
                reason=reason,
            )
        )
    return True


def _urgency(state: JobState) -> tuple[float, int]:
    due_s = state.job.deadline_s
    return float("inf") if due_s is None else float(due_s), state.serial


def _best(cycle: Cycle, shop: Shop, state: JobState) -> tuple[Opening, Place | None] | None:
    """Where the rest of the job costs least, within its plan and its money."""
    found: list[tuple[float, str, Opening, Place | None]] = []
    openings = shop.openings(state)
    if not openings or (cycle.may_be_held(state.job) and cycle.not_now(state) is not None):
        return None
    pools = cycle.planned(state, list(openings))
    if any(_has_room(cycle, state, pool) for pool in cycle.planned(state, cycle.pools(state.shape))):
        return None  # it waits for something other than a node
    budget = state.job.budget_microusd
    left = None if budget is None else budget - state.cost_microusd(cycle.now_s)
    for pool in pools:
        opening = openings[pool]
        place_ = shop.weigh(state, opening)
        if place_ is None and shop.buying.by == "sum":
            continue
        needs = opening.microusd_per_hour if place_ is None else place_.compute
        if left is not None and state.job.deadline_s is None and needs > left:
            shop.refusals[state.job.job] = say("scheduler.budget_too_small", cost=Usd(needs), left=Usd(left))
            continue
        score: float = opening.microusd_per_hour / state.job.rate(pool.gpu)
        if shop.buying.by == "sum" and place_ is not None:
            score = place_.total
        found.append((score, pool.site, opening, place_))
    if not found:
        return None
    best = min(found, key=lambda each: each[:2])
    return best[2], best[3]


def _has_room(cycle: Cycle, state: JobState, pool: Pool) -> bool:
    return place(state.job, cycle.draft, pool) is not None
