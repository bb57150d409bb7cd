"""From the state and the prices to a plan. Pure: nothing has happened yet, and nothing else is looked at."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from brimful.fleet.state import Fleet, Pool
from brimful.scheduler.actions.assign_types import assign_types, place_by_type, reclaim
from brimful.scheduler.actions.clear_market import clear_market
from brimful.scheduler.actions.give_turns import give_turns
from brimful.scheduler.actions.meet_deadlines import meet_deadlines
from brimful.scheduler.actions.open_books import open_books
from brimful.scheduler.actions.place_in_order import place_in_order
from brimful.scheduler.actions.stop import stop
from brimful.scheduler.auction import Auctions
from brimful.scheduler.cycle import Cycle
from brimful.scheduler.plan import Plan
from brimful.scheduler.rules import Rules, with_queues
from brimful.scheduler.waits import Waits

ACTIONS: tuple[Callable[[Cycle], None], ...] = (
    stop,  # who was cancelled, or is out of time or money
    clear_market,  # bids choose who holds the GPUs of market pools
    meet_deadlines,  # who must be done by then uses spot, firm capacity, or waits
    open_books,  # which queues have lent GPUs and want them back
    give_turns,  # who has waited so long that it goes before its class
    assign_types,  # on a mixed fleet, now and then: who should be on which GPU type
    place_by_type,  # whose type is settled starts there
    reclaim,  # who found no place there has back what its queue has lent
    place_in_order,  # else: the next in order starts, makes others leave, keeps a cell, or is passed
)


def decide(
    fleet: Fleet,
    rules: Rules,
    prices: Mapping[Pool, int],
    *,
    now_s: int,
    unreachable: Collection[str] = (),
    market: Auctions | None = None,
) -> Plan:
    """What to start and stop now, why the others wait, and when to think again.

    Nothing starts at a site that cannot be reached. Without a market every pool is a queue pool.
    """
    if fleet.queues:  # set while it runs, and so in the log
        rules = with_queues(rules, fleet.queues)
    cycle = Cycle(fleet, rules, prices, now_s, unreachable, market)
    for act in ACTIONS:
        act(cycle)
    return Plan(cycle.starts, cycle.stops, Waits(cycle), [*cycle.market_events], cycle.look_again_s())
