"""Routes of reservations."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path
from fastapi.responses import Response
from pydantic import Field

from brimful.client.reserve_answers import ReservationAnswer, ReservationsAnswer, ReserveQuoteAnswer
from brimful.errors import NotFound
from brimful.language import Quoted, say
from brimful.server.api.answers import envelope
from brimful.server.api.errors import CHANGING, COMMON, ok
from brimful.server.api.gate import Gate
from brimful.server.api.jobs import Key
from brimful.server.api.requests import MAX_GPUS, Limit, Request, Tenant, Word
from brimful.server.auth import Principal, forbidden, other_team
from brimful.server.service.reader import Reader
from brimful.server.service.reserving import Reserving
from brimful.server.service.submissions import Submissions
from brimful.server.views.reservations import quote_view, reservation_view, reservations_view

Name = Annotated[str, Path(max_length=40, pattern=r"^r[0-9]+$")]
Gpus = Annotated[int, Field(ge=1, le=MAX_GPUS, strict=True)]
Hours = Annotated[int, Field(ge=1, le=10_000, strict=True)]


class WindowRequest(Request):
    gpu: Annotated[Word, Field(min_length=1)]
    site: Annotated[Word, Field(description="may be omitted if only one site has this GPU")] = ""
    tier: Literal["", "owned", "reserved", "on_demand", "spot"] = ""
    gpus: Gpus
    hours: Hours
    start_s: Annotated[
        Annotated[int, Field(ge=0, le=1 << 40, strict=True)] | None,
        Field(description="UTC second; null: now"),
    ] = None


class BuyRequest(WindowRequest):
    tenant: Tenant | None = None
    at_most_microusd_per_gpu_hour: Annotated[
        Limit | None, Field(description="fail instead of charging more if the price has changed")
    ] = None
    granted: Annotated[
        bool,
        Field(description="a quota, from an operator: free; what it earns is added to the tenant's budget"),
    ] = False


class GpusRequest(Request):
    gpus: Annotated[Gpus | None, Field(description="null: as many as possible")] = None


class HoursRequest(Request):
    hours: Hours


class ExtendRequest(HoursRequest):
    at_most_microusd_per_gpu_hour: Limit | None = None


class ReserveVerbs:
    """Actions on reservations with their permissions and audit log, for API and console."""

    def __init__(self, reader: Reader, submissions: Submissions, gate: Gate) -> None:
        self._reader, self._gate, self._reserving = reader, gate, Reserving(reader, submissions)

    def quote(self, asked: WindowRequest) -> ReserveQuoteAnswer:
        pool = self._reserving.pool(gpu=asked.gpu, site=asked.site, tier=asked.tier)
        found = self._reserving.quote(pool, gpus=asked.gpus, hours=asked.hours, start_s=asked.start_s)
        return quote_view(found)

    def buy(self, who: Principal, asked: BuyRequest, key: str = "") -> ReservationAnswer:
        tenant, made = asked.tenant or who.home, ""
        with self._gate.audited(who, "reservation.buy", lambda: f"{tenant} {made}"):
            if not who.may("submitter", tenant):
                raise forbidden(who, "submitter") if who.sees(tenant) else other_team(who, tenant)
            if asked.granted and not who.may("operator"):
                raise forbidden(who, "operator")
            found = self._reserving.buy(
                self._reserving.pool(gpu=asked.gpu, site=asked.site, tier=asked.tier),
                gpus=asked.gpus,
                hours=asked.hours,
                start_s=asked.start_s,
                tenant=tenant,
                at_most=asked.at_most_microusd_per_gpu_hour,
                by=who.name,
                key=key,
                granted=asked.granted,
            )
            made = found.reservation
        return reservation_view(self._reader, found)

    def quote_more(self, who: Principal, name: str, asked: HoursRequest) -> ReserveQuoteAnswer:
        return quote_view(self._reserving.quote_extension(self._own(who, name), hours=asked.hours))

    def extend(self, who: Principal, name: str, asked: ExtendRequest, key: str = "") -> ReservationAnswer:
        with self._gate.audited(who, "reservation.extend", lambda: f"{name} {asked.hours}"):
            at_most, own = asked.at_most_microusd_per_gpu_hour, self._own(who, name)
            with self._reader.locked():
                granted = self._reserving.find(own).granted
            if granted and not who.may("operator"):
                raise forbidden(who, "operator")
            found = self._reserving.extend(own, hours=asked.hours, at_most=at_most, by=who.name, key=key)
        return reservation_view(self._reader, found)

    def change(self, who: Principal, name: str, verb: str, asked: GpusRequest) -> ReservationAnswer:
        with self._gate.audited(who, f"reservation.{verb}", lambda: f"{name} {asked.gpus or 'all'}"):
            found = self._reserving.change(self._own(who, name), verb, gpus=asked.gpus, by=who.name)
        return reservation_view(self._reader, found)

    def _own(self, who: Principal, name: str) -> str:
        """Its name, if the caller may change it; another tenant's reservation does not exist for it."""
        with self._reader.locked():
            found = self._reserving.find(name)
        if not who.sees(found.tenant):
            raise NotFound(say("market.no_reservation", reservation=Quoted(name)))
        if not who.may("submitter", found.tenant):
            raise forbidden(who, "submitter")
        return name


def add_reservation_routes(router: APIRouter, reader: Reader, submissions: Submissions, gate: Gate) -> None:
    viewer, submitter = gate.needs("viewer"), gate.needs("submitter")
    verbs = ReserveVerbs(reader, submissions, gate)

    @router.get("/reservations", response_model=envelope(ReservationsAnswer), responses=COMMON)
    def reservations(who: Principal = viewer) -> Response:
        """Your reservations: bought, used, idle and lent hours, and what they cost."""
        return ok(reservations_view(reader, who))

    @router.post("/reservations/quote", response_model=envelope(ReserveQuoteAnswer), responses=COMMON)
    def quote(body: WindowRequest, who: Principal = viewer) -> Response:
        """What a window would cost now. Buys nothing."""
        del who
        return ok(verbs.quote(body))

    @router.post(
        "/reservations", status_code=201, response_model=envelope(ReservationAnswer), responses=CHANGING
    )
    def buy(body: BuyRequest, key: Key = None, who: Principal = submitter) -> Response:
        """Buy a window, paid up front: from credits first, then from the tenant's budget."""
        return ok(verbs.buy(who, body, key or ""), 201)

    @router.post("/reservations/{name}/quote", response_model=envelope(ReserveQuoteAnswer), responses=COMMON)
    def quote_more(name: Name, body: HoursRequest, who: Principal = submitter) -> Response:
        """What extending it would cost now. Buys nothing."""
        return ok(verbs.quote_more(who, name, body))

    @router.post(
        "/reservations/{name}/extend", response_model=envelope(ReservationAnswer), responses=CHANGING
    )
    def extend(name: Name, body: ExtendRequest, key: Key = None, who: Principal = submitter) -> Response:
        return ok(verbs.extend(who, name, body, key or ""))

    @router.post(
        "/reservations/{name}/{verb}", response_model=envelope(ReservationAnswer), responses=CHANGING
    )
    def change(
        name: Name,
        verb: Literal["pause", "resume", "return"],
        body: GpusRequest,
        who: Principal = submitter,
    ) -> Response:
        """Lend unused GPUs, take them back after the borrowers' notice, or return them for good."""
        return ok(verbs.change(who, name, verb, body))
