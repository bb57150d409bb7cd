"""From the state and the prices to a plan. Pure: no side effects, and no other input."""

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
    stop,  # jobs that were cancelled or are out of time or money
    use_bought,  # start jobs on the nodes made for them
    keep_reservations,  # end windows that are over, with notice before
    meet_deadlines,  # spot, firm capacity or waiting, for jobs with a deadline
    clear_market,  # bids choose who holds the GPUs of market pools
    keep_promises,  # jobs whose slot has begun get its GPUs
    open_books,  # which queues have lent GPUs and want them back
    give_turns,  # jobs that waited so long that they go before their class
    finish_moves,  # restart jobs that moved to complete a cell, and start the gang in it
    assign_types,  # at each review of a mixed fleet: choose each job's GPU type
    place_by_type,  # start jobs on the type chosen for them
    place_in_order,  # otherwise: the next in order starts, preempts, keeps a cell, or is passed over
    share,  # put jobs without a GPU beside a job they share well with
    resize,  # share the rest among elastic gangs, and change their size
    give_back,  # return nodes that are not needed, or that the operator's caps no longer cover
    buy,  # nodes for waiting jobs that pay
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
    """What to start and stop now, why the other jobs wait, and when to think again.

    Nothing starts at a site that cannot be reached. Without a market every pool is a queue pool. `review`
    comes from the last plan: while it is carried out, decisions follow it; without one, they start a new one.
    """
    if fleet.queues:  # set at run time, and so in the log
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
