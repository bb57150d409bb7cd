"""Routes of money: prices, tenants' budgets, invoices."""

from __future__ import annotations

import csv
import io
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from brimful.client.answers import BillAnswer, BudgetAnswer, BudgetsAnswer, InvoiceAnswer, SpendDaysAnswer
from brimful.client.price_answers import ForecastAnswer, PricesAnswer
from brimful.language.printable import for_spreadsheet
from brimful.market.invoice import DAYS_KEPT, MONTH
from brimful.server.api.answers import envelope
from brimful.server.api.errors import CHANGING, COMMON, ok
from brimful.server.api.gate import Gate
from brimful.server.api.requests import BudgetRequest, CreditRequest
from brimful.server.api.verbs import Verbs
from brimful.server.auth import TENANT, Principal
from brimful.server.service.reader import Reader
from brimful.server.views.forecast import Ahead
from brimful.server.views.money import Bills, budgets_view, prices_view, spend_days_view

By = Literal["team", "user", "job", "site", "gpu", "day"]
Split = Literal["team", "user", "gpu"]
LastDays = Annotated[int, Query(ge=1, le=DAYS_KEPT)]
CSV: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/csv": {}}, "description": "a bill in each row"}
}
TenantName = Annotated[str, Path(max_length=60, pattern=TENANT)]
OnlyTenant = Annotated[str | None, Query(max_length=60, pattern=TENANT, description="only this one's")]
OnlyMonth = Annotated[
    str | None, Query(pattern=MONTH, description="only this month's (UTC), such as 2026-03")
]


def add_market_routes(router: APIRouter, reader: Reader, verbs: Verbs, gate: Gate) -> None:
    _add_price_routes(router, reader, gate)
    _add_budget_routes(router, reader, verbs, gate)
    _add_bill_routes(router, reader, gate)


def _add_price_routes(router: APIRouter, reader: Reader, gate: Gate) -> None:
    viewer, ahead = gate.needs("viewer"), Ahead(reader)

    @router.get("/prices", response_model=envelope(PricesAnswer), responses=COMMON)
    def prices(
        since_s: Annotated[
            int | None, Query(ge=0, le=1 << 40, description="include history from this UTC second")
        ] = None,
        who: Principal = viewer,
    ) -> Response:
        """The price of every pool. Depth is anonymous: nobody sees who bids what."""
        del who
        return ok({"now_s": reader.now_s(), "pools": prices_view(reader, since_s=since_s)})

    @router.get("/forecast", response_model=envelope(ForecastAnswer), responses=COMMON)
    def forecast(
        hours: Annotated[int, Query(ge=1, le=48)] = 24,
        limit_microusd: Annotated[
            int | None, Query(ge=1, le=1 << 50, description="also the chance for this price per GPU-hour")
        ] = None,
        who: Principal = viewer,
    ) -> Response:
        """The load of every pool, hour by hour, how long spot lasts, and whether market prices stay low.

        Chances are given for every limit that is bid, without names, and for each bid of your teams.
        Each forecast comes with the score of earlier ones.
        """
        return ok(ahead.view(who, hours=hours, limit_microusd=limit_microusd))


def _add_budget_routes(router: APIRouter, reader: Reader, verbs: Verbs, gate: Gate) -> None:
    viewer, operator = gate.needs("viewer"), gate.needs("operator")

    @router.get("/budgets", response_model=envelope(BudgetsAnswer), responses=COMMON)
    def budgets(who: Principal = viewer) -> Response:
        return ok({"budgets": budgets_view(reader, who)})

    @router.post("/budgets/{tenant}", response_model=envelope(BudgetAnswer), responses=CHANGING)
    def budget(tenant: TenantName, body: BudgetRequest, who: Principal = operator) -> Response:
        """A limit on what the tenant, or one of its projects, may spend; null removes it."""
        name = body.name_of(tenant)
        verbs.set_budget(who, name, body)
        return ok(_budget_of(reader, who, name))

    @router.post("/budgets/{tenant}/credit", response_model=envelope(BudgetAnswer), responses=CHANGING)
    def credit(tenant: TenantName, body: CreditRequest, who: Principal = operator) -> Response:
        verbs.credit(who, tenant, body.microusd, body.reason)
        return ok(_budget_of(reader, who, tenant))


def _add_bill_routes(router: APIRouter, reader: Reader, gate: Gate) -> None:
    viewer, bills = gate.needs("viewer"), Bills(reader)

    @router.get("/spend/days", response_model=envelope(SpendDaysAnswer), responses=COMMON)
    def spend_days(by: Split = "team", days: LastDays = 28, who: Principal = viewer) -> Response:
        """What was billed on each of the last days (UTC), split by team, user or GPU type."""
        return ok(spend_days_view(reader, who, by=by, days=days))

    @router.get("/invoice", response_model=envelope(InvoiceAnswer), responses=COMMON)
    def invoice(
        by: By = "team",
        tenant: OnlyTenant = None,
        month: OnlyMonth = None,
        who: Principal = viewer,
    ) -> Response:
        """What was billed and how much of it was wasted, by team, user, job, site, GPU type or day (UTC)."""
        return ok(bills.view(who, by=by, tenant=tenant, month=month))

    @router.get("/invoice.csv", response_class=Response, responses={**COMMON, **CSV})
    def invoice_csv(
        by: By = "team", tenant: OnlyTenant = None, month: OnlyMonth = None, who: Principal = viewer
    ) -> Response:
        """The same for a spreadsheet; money in micro-dollars."""
        text = io.StringIO()
        table = csv.DictWriter(text, list(BillAnswer.__annotations__))
        table.writeheader()
        for bill in bills.view(who, by=by, tenant=tenant, month=month)["bills"]:
            table.writerow({**bill, "of": for_spreadsheet(bill["of"]), "name": for_spreadsheet(bill["name"])})
        name = f"brimful-{by}{f'-{month}' if month else ''}.csv"
        return Response(
            text.getvalue(),
            media_type="text/csv",
            headers={"content-disposition": f'attachment; filename="{name}"'},
        )


def _budget_of(reader: Reader, who: Principal, tenant: str) -> BudgetAnswer:
    return next(each for each in budgets_view(reader, who, tenant) if each["tenant"] == tenant)
