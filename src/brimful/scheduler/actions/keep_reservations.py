"""End reservations whose window is over, and say when to look at reservations again."""

from __future__ import annotations

from brimful.fleet.events import NoticeWithdrawn
from brimful.language import say
from brimful.scheduler.cycle import Cycle
from brimful.scheduler.placing.reserved import due_events, ending_leases, next_change_s, withdrawn


def keep_reservations(cycle: Cycle) -> None:
    fleet, now_s = cycle.fleet, cycle.now_s
    if not fleet.reservations:
        return
    notice_s = 0 if cycle.market is None else cycle.market.market.terms.notice_s
    notices, over = ending_leases(fleet, notice_s=notice_s, now_s=now_s)
    back = withdrawn(fleet, notice_s=notice_s, now_s=now_s)
    cycle.market_events = [
        *due_events(fleet, now_s=now_s),
        *notices,
        *(NoticeWithdrawn(at_s=now_s, lease=lease.lease) for lease in back),
    ]
    for lease in over:
        cycle.stop(lease, say("scheduler.reservation_over", reservation=lease.reservation))
    cycle.market_again_s = next_change_s(fleet, notice_s=notice_s, now_s=now_s)
