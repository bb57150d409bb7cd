"""Move a running job where its remaining work is clearly cheaper: order the new nodes first, then move it.

The saving over the remaining work must be twice the cost of the move: egress, the restart, and work that no
checkpoint holds. A checkpoint is requested, as for any stop. A job that just moved or started is left alone
for a while, and no job returns to the site that evicted it last.
"""

from __future__ import annotations

from brimful.fleet.state import JobState, Lease, Pool
from brimful.language import Usd, say
from brimful.market.where import Place, is_worth_moving
from brimful.scheduler.actions.trade import order
from brimful.scheduler.cloud.buying import Opening, Shop
from brimful.scheduler.cycle import Cycle

AGAIN_S = 600  # how often to look


def move_for_money(cycle: Cycle) -> None:
    shop, fleet = cycle.shop, cycle.fleet
    if shop is None or not shop.buying.moves or not fleet.cloud.machines:
        return
    for lease in list(fleet.open_leases.values()):
        machine = fleet.cloud.machines.get(lease.node)
        if machine is None or lease.phase != "running" or lease.lease in cycle.spoken_for:
            continue
        state = fleet.jobs[lease.job]
        rested_s = (lease.started_s or cycle.now_s) + max(shop.buying.rest_s, state.job.min_run_s)
        if lease.job in fleet.cloud.reserved or not _may_move(cycle, state, lease):
            continue
        if cycle.now_s < rested_s:
            shop.look_at(rested_s)
            continue
        shop.look_at((cycle.now_s // AGAIN_S + 1) * AGAIN_S)
        found = _cheaper(cycle, shop, state, lease)
        if found is not None:
            opening, here, there = found
            reason = say(
                "scheduler.moves_for_money",
                where=opening.offer.site,
                here=Usd(here.total),
                there=Usd(there.total),
                egress=Usd(there.egress),
                restart=Usd(there.compute - int(there.offer.microusd_per_hour * there.hours)),
            )
            order(cycle, shop, state, opening, reason)


def _may_move(cycle: Cycle, state: JobState, lease: Lease) -> bool:
    """It keeps its progress, its remaining work is known, and its deadline plan allows spot."""
    job = state.job
    if job.checkpoint_interval_s is None or job.predicted_work_s is None or lease.notice_s is not None:
        return False
    verdict = None if cycle.finish is None else cycle.finish.verdicts.get(job.job)
    return verdict is None or verdict.kind in ("spot", "any")


def _cheaper(cycle: Cycle, shop: Shop, state: JobState, lease: Lease) -> tuple[Opening, Place, Place] | None:
    machine = cycle.fleet.cloud.machines[lease.node]
    here = shop.weigh_staying(state, lease, machine)
    best: tuple[Opening, Place] | None = None
    for pool, opening in shop.openings(state).items():
        if opening.microusd_per_hour * here.hours * (lease.speed or 1.0) >= here.total * state.job.rate(
            pool.gpu
        ):
            continue  # the price alone costs more
        if pool == machine.pool or pool.site == _evicted_at(cycle, state) or not _in_time(cycle, state, pool):
            continue
        there = shop.weigh(state, opening)
        if (
            there is not None
            and is_worth_moving(here, there)
            and (best is None or there.total < best[1].total)
        ):
            best = (opening, there)
    return None if best is None else (best[0], here, best[1])


def _evicted_at(cycle: Cycle, state: JobState) -> str:
    """The site that evicted the job's previous lease."""
    if len(state.leases) < 2:
        return ""
    before = cycle.fleet.cloud.gone.get(state.leases[-2].node)
    return before.pool.site if before is not None and before.cause == "evicted" else ""


def _in_time(cycle: Cycle, state: JobState, pool: Pool) -> bool:
    """Whether one restart, and a second one on firm capacity if that fails, fits before the deadline."""
    job = state.job
    if job.deadline_s is None:
        return True
    left_s = state.remaining_s(cycle.now_s) or 0.0
    restarts_s = 2 * job.checkpoint_cost_s + (job.checkpoint_interval_s or 0)
    if pool.tier != "spot":
        restarts_s = job.checkpoint_cost_s
    look_s = 0 if cycle.finish is None else 300
    return cycle.now_s + left_s / job.rate(pool.gpu) + restarts_s + look_s < job.deadline_s
