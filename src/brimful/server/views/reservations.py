"""Reservations, how their hours were used, and what they cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from brimful.client.answers import alike
from brimful.client.reserve_answers import ReservationAnswer, ReservationsAnswer, ReserveQuoteAnswer
from brimful.fleet.reservations.reservation import Reservation
from brimful.market.reservation import Quote
from brimful.server.auth import Principal
from brimful.server.service.reader import Reader


def reservations_view(reader: Reader, who: Principal) -> ReservationsAnswer:
    """Those of visible tenants: nobody sees what others have reserved."""
    with reader.locked():
        held, now_s = reader.fleet.reservations, reader.now_s()
        every = [*held.ended.values(), *held.by_name.values()]
        return {
            "reservations": [reservation_view(reader, each) for each in every if who.sees(each.tenant)],
            "credits": [
                {
                    "tenant": tenant,
                    "microusd": held.credit_microusd(tenant, now_s=now_s),
                    "expires_s": credits[0].expires_s,
                }
                for tenant, credits in sorted(held.credits.items())
                if who.sees(tenant)
            ],
        }


def reservation_view(reader: Reader, found: Reservation) -> ReservationAnswer:
    now_s = reader.now_s()
    each = replace(found)  # a copy counted up to now; the state is unchanged
    each.advance(now_s)
    state: Literal["booked", "open", "ended"] = "booked" if now_s < each.start_s else "open"
    over = each.ended_s is not None or now_s >= each.end_s
    return {
        **alike(ReservationAnswer, each, each.pool),
        "state": "ended" if over else state,
        "idle": each.idle.gpus if state == "open" and not over else 0,
        "paused": 0 if over else each.paused.gpus,
        "used": 0 if over else each.used,
        "net_microusd": each.paid_microusd - each.credits_microusd - each.earned_microusd,
    }


def quote_view(offered: Quote) -> ReserveQuoteAnswer:
    return {
        **alike(ReserveQuoteAnswer, offered, offered.pool),
        "total_microusd": offered.total_microusd,
    }
