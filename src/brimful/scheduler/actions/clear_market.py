"""Let the market choose who holds GPUs of its pools, and at what price."""

from __future__ import annotations

from brimful.scheduler.cycle import Cycle


def clear_market(cycle: Cycle) -> None:
    if cycle.market is None:
        return
    done = cycle.market.hold(
        cycle.fleet,
        now_s=cycle.now_s,
        unreachable=cycle.unreachable,
        money=cycle.money,
        not_now=lambda state: cycle.not_now(state) if cycle.may_be_held(state.job) else None,
    )
    cycle.market_events, cycle.market_again_s = done.events, done.look_again_s
    cycle.prices = {**cycle.prices, **done.prices}
    for lease, reason in done.stops:
        cycle.stop(lease, reason)
    for state, parts in done.starts:
        cycle.start(state, parts)
        cycle.settled.add(state.job.job)
