"""From the state and the prices to a plan. Pure: nothing has happened yet, and nothing else is looked at."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from brimful.fleet.state import Fleet, Pool
from brimful.scheduler.actions.assign_types import assign_types, place_by_type
from brimful.scheduler.actions.clear_market import clear_market
from brimful.scheduler.actions.consolidate import finish_moves
from brimful.scheduler.actions.give_turns import give_turns
from brimful.scheduler.actions.keep_promises import keep_promises
from brimful.scheduler.actions.keep_reservations import keep_reservations
from brimful.scheduler.actions.meet_deadlines import meet_deadlines
from brimful.scheduler.actions.move_for_money import move_for_money
from brimful.scheduler.actions.open_books import open_books
from brimful.scheduler.actions.place_in_order import place_in_order
from brimful.scheduler.actions.resize import resize
from brimful.scheduler.actions.share import share
from brimful.scheduler.actions.stop import stop
from brimful.scheduler.actions.trade import buy, give_back, use_bought
from brimful.scheduler.auction import Auctions
from brimful.scheduler.cloud.buying import Buying, Shop
from brimful.scheduler.cycle import Cycle
from brimful.scheduler.plan import Plan, Review
from brimful.scheduler.rules import Rules, with_queues
from brimful.scheduler.waits import Waits

ACTIONS: tuple[Callable[[Cycle], None], ...] = (
    stop,  # who was cancelled, or is out of time or money
    use_bought,  # nodes that were made for somebody are theirs
    keep_reservations,  # windows that are over end, with notice before
    meet_deadlines,  # who must be done by then uses spot, firm capacity, or waits
    clear_market,  # bids choose who holds the GPUs of market pools
    keep_promises,  # whose slot has begun has its GPUs
    open_books,  # which queues have lent GPUs and want them back
    give_turns,  # who has waited so long that it goes before its class
    finish_moves,  # who was moved to complete a cell goes on elsewhere, and the gang has the cell
    assign_types,  # on a mixed fleet, now and then: who should be on which GPU type
    place_by_type,  # whose type is settled starts there
    place_in_order,  # else: the next in order starts, makes others leave, keeps a cell, or is passed
    share,  # who has none is put beside one with whom it shares a GPU well
    resize,  # elastic gangs share out what is left, and change their size
    give_back,  # nodes that nobody needs, or that the operator's caps no longer pay for
    buy,  # nodes for those who wait and pay
    move_for_money,  # nodes where the rest of a running job is cheaper
)


def decide(
    fleet: Fleet,
    rules: Rules,
    prices: Mapping[Pool, int],
    *,
    now_s: int,
    unreachable: Collection[str] = (),
    market: Auctions | None = None,
    review: Review | None = None,
    buying: Buying | None = None,
) -> Plan:
    """What to start and stop now, why the others wait, and when to think again.

    Nothing starts at a site that cannot be reached. Without a market every pool is a queue pool. `review` is
    what the last plan had: while it is carried out, the next decisions go by it; without it they look anew.
    """
    if fleet.queues:  # set while it runs, and so in the log
        rules = with_queues(rules, fleet.queues)
    cycle = Cycle(fleet, rules, prices, now_s, unreachable, market)
    cycle.review = review
    if buying is not None and (fleet.cloud.offers or fleet.cloud.machines):
        cycle.shop = Shop(fleet, buying, now_s=now_s, unreachable=unreachable)
    for act in ACTIONS:
        act(cycle)
    return Plan(
        cycle.starts,
        cycle.stops,
        Waits(cycle),
        [*cycle.market_events],
        cycle.orders,
        cycle.look_again_s(),
        cycle.review,
    )
