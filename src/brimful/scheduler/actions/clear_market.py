"""Let the market choose which jobs hold the GPUs of its pools, and at what price."""

from __future__ import annotations

from brimful.errors import Said
from brimful.fleet.state import JobState
from brimful.scheduler.cycle import Cycle
from brimful.scheduler.placing.sizes import Bidders
from brimful.scheduler.quotas import Shares


def clear_market(cycle: Cycle) -> None:
    if cycle.market is None:
        return
    bidders = Bidders(cycle)
    limits = bidders.limits

    def not_now(state: JobState) -> Said | None:
        """A bidder may win, so it counts against later bidders of the same user and queue."""
        verdict = None if cycle.finish is None else cycle.finish.verdicts.get(state.job.job)
        if verdict is not None and verdict.kind in ("wait", "firm", "refused"):
            return verdict.reason
        if not cycle.may_be_held(state.job):
            return None
        types = {pool.gpu for pool in cycle.fleet.able_pools(state.shape)}
        over = limits and (limits.over_user(state.job) or limits.over_type(state.job, types))
        reason = over or cycle.not_now(state)
        if reason is None:
            bidders.take(state.job, types)
        return reason

    done = cycle.market.hold(
        cycle.fleet,
        now_s=cycle.now_s,
        unreachable=cycle.unreachable,
        money=cycle.money,
        not_now=not_now,
        planned=cycle.planned,
        sizes=bidders.sizes,
        shares=Shares(cycle.fleet, cycle.rules, cycle.held) if cycle.rules.quotas else None,
        leaving=cycle.spoken_for,
    )
    cycle.market_events = [*cycle.market_events, *done.events]
    times = (cycle.market_again_s, done.look_again_s)
    cycle.market_again_s = min((at_s for at_s in times if at_s is not None), default=None)
    cycle.prices = {**cycle.prices, **done.prices}
    for lease, reason in done.stops:
        cycle.stop(lease, reason)
    for state, parts in done.starts:
        cycle.start(state, parts, reservation=done.reserved.get(state.job.job, ""))
        cycle.settled.add(state.job.job)
