"""Changes to reservations: checked and written under one state of the log."""

from __future__ import annotations

from collections.abc import Mapping

from brimful.adapters.engines.devices import catalog_name
from brimful.errors import BadInput, NotFound, Refused
from brimful.fleet.events import ReservationBought, ReservationExtended
from brimful.fleet.node import Pool
from brimful.fleet.reservations.reservation import Reservation
from brimful.language import Quoted, say
from brimful.market import reservation as rules
from brimful.market.pools import ReserveTerms
from brimful.server.service.reader import Reader
from brimful.server.service.submissions import Submissions

CHANGES = {"pause": rules.pause, "resume": rules.resume, "return": rules.give_back}


class Reserving:
    def __init__(self, reader: Reader, submissions: Submissions) -> None:
        self._reader, self._submissions = reader, submissions

    def find(self, name: str) -> Reservation:
        found = self._reader.fleet.reservations.find(name)
        if found is None:
            raise NotFound(say("market.no_reservation", reservation=Quoted(name[:40])))
        return found

    def pool(self, *, gpu: str, site: str, tier: str) -> Pool:
        """The pool that is meant; if there are several, the caller must say which."""
        pools = sorted(self._reader.fleet.capacity.pools)
        if all(pool.gpu != gpu for pool in pools):
            gpu = catalog_name(gpu)
        wanted = [
            pool for pool in pools if pool.gpu == gpu and site in ("", pool.site) and tier in ("", pool.tier)
        ]
        if not wanted:
            known = ", ".join(f"{pool.gpu} at {pool.site}" for pool in pools)
            named = {"gpu": Quoted(gpu[:60]), "known": known}
            anywhere = say("market.reserve_no_pool_anywhere", **named)
            raise NotFound(say("market.reserve_no_pool", site=site, **named) if site else anywhere)
        if len(wanted) > 1:
            which = ", ".join(f"{pool.site} ({pool.tier})" for pool in wanted)
            raise BadInput(say("market.reserve_which_pool", gpu=gpu, pools=which))
        return wanted[0]

    def quote(
        self, pool: Pool, *, gpus: int, hours: int, start_s: int | None, granted: bool = False
    ) -> rules.Quote:
        reader = self._reader
        with reader.locked():
            return rules.quote(
                reader.fleet,
                reader.market,
                pool,
                gpus=gpus,
                hours=hours,
                start_s=start_s,
                now_s=reader.now_s(),
                granted=granted,
            )

    def buy(
        self,
        pool: Pool,
        *,
        gpus: int,
        hours: int,
        start_s: int | None,
        tenant: str,
        at_most: int | None,
        by: str,
        key: str = "",
        granted: bool = False,
    ) -> Reservation:
        """A second purchase with a buyer's key is the first one: returns what that bought."""
        reader, known = self._reader, ""

        def made() -> list[ReservationBought]:
            nonlocal known
            if (found := reader.fleet.reservations.keyed(by, key)) is not None:
                known = found.reservation
                is_later = start_s is not None and start_s > found.start_s  # an earlier start means now
                same = {
                    "tenant": tenant == found.tenant,
                    "pool": pool == found.pool,
                    "start_s": not is_later,
                    "granted": granted == found.granted,
                    **_same_size(found, by, key, gpus=gpus, hours=hours),
                }
                _check_same(key, known, same)
                return []
            offered = self.quote(pool, gpus=gpus, hours=hours, start_s=start_s, granted=granted)
            terms = ReserveTerms() if reader.market is None else reader.market.reserve
            now_s = reader.now_s()
            who = {"tenant": tenant, "by": by, "key": key}
            made = rules.buy(reader.fleet, offered, terms, at_most=at_most, now_s=now_s, **who)
            known = made.reservation
            return [made]

        self._submissions.note(made)
        return self.find(known)

    def change(self, name: str, verb: str, *, gpus: int | None, by: str) -> Reservation:
        """Pause, resume or return this many of its GPUs; None: as many as possible."""
        reader = self._reader
        self._submissions.note(
            lambda: [CHANGES[verb](reader.fleet, name, gpus=gpus, now_s=reader.now_s(), by=by)]
        )
        return self.find(name)

    def quote_extension(self, name: str, *, hours: int) -> rules.Quote:
        reader = self._reader
        with reader.locked():
            return rules.quote_extension(reader.fleet, reader.market, name, hours=hours, now_s=reader.now_s())

    def extend(self, name: str, *, hours: int, at_most: int | None, by: str, key: str = "") -> Reservation:
        reader = self._reader

        def made() -> list[ReservationExtended]:
            if (found := reader.fleet.reservations.keyed(by, key)) is not None:
                size = _same_size(found, by, key, gpus=0, hours=hours)
                _check_same(key, found.reservation, {"reservation": name == found.reservation, **size})
                return []
            offered = self.quote_extension(name, hours=hours)
            now_s = reader.now_s()
            return [rules.extend(reader.fleet, name, offered, now_s=now_s, at_most=at_most, by=by, key=key)]

        self._submissions.note(made)
        return self.find(name)


def _same_size(found: Reservation, by: str, key: str, *, gpus: int, hours: int) -> dict[str, bool]:
    known_gpus, known_hours = found.keys[by, key]
    return {"gpus": gpus == known_gpus, "hours": hours == known_hours}


def _check_same(key: str, name: str, same: Mapping[str, bool]) -> None:
    """A reused key must come with the same request."""
    if other := ", ".join(each for each, is_same in same.items() if not is_same):
        raise Refused(say("server.key_reused", key=Quoted(key), job=name, other=other), code="key_reused")
