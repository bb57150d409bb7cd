"""Access for tests of the server: an operator, and tokens of other roles and tenants."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from fastapi import FastAPI

from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.identity.oidc import Oidc
from brimful.adapters.identity.settings import OidcSettings
from brimful.adapters.identity.store import AccessStore
from brimful.adapters.stores.past import PastJob
from brimful.adapters.stores.sql import SqlStore
from brimful.fleet.events import to_record
from brimful.fleet.state import OVER
from brimful.scheduler.ports import Engine
from brimful.scheduler.rules import Rules
from brimful.server.app import make_app
from brimful.server.auth import EVERYBODY, Access, Principal
from brimful.server.service.service import Service
from brimful.sim.world import MemoryStore
from tests.builders import eventually

OIDC = Oidc(OidcSettings(issuer="https://login.example.org", client_id="brimful"))  # nobody is there
OPERATOR = Principal(token="0" * 16, name="tester", roles={EVERYBODY: "operator"})


def an_access(store: SqlStore) -> Access:
    return Access(AccessStore(store))


def an_app() -> FastAPI:
    """The application with all its routes, to be looked at: nothing is behind it."""
    app = make_app(Service(MemoryHistory(), [], Rules()), None, secure=True, oidc=OIDC)._app  # type: ignore[arg-type]
    assert isinstance(app, FastAPI)
    return app


def bearer(
    access: Access,
    role: str = "operator",
    tenant: str = EVERYBODY,
    *,
    ttl_s: int | None = None,
    name: str = "",
) -> dict[str, str]:
    """The header of a new token."""
    text, _ = access.issue(name=name or f"{role} of {tenant}", tenant=tenant, role=role, ttl_s=ttl_s)
    return {"authorization": f"Bearer {text}"}


def wind_down(service: Service) -> None:
    """Cancel what is left, and wait until nothing of it runs and no runner is left to be reaped."""
    reader = service.reader
    for name, state in reader.fleet.jobs.items():
        if state.phase not in OVER:
            service.submissions.cancel(name)

    def is_still() -> bool:
        stops = service.driver.tick().plan.stops
        return not stops and not reader.fleet.open_leases and not any(map(_runners, reader.engines.values()))

    eventually(is_still)


def _runners(engine: Engine) -> object:
    assert isinstance(engine, LocalEngine)
    return engine._runners


class MemoryHistory(MemoryStore):
    """The log in memory: jobs that are over stay there too, so that none is past and none in a snapshot."""

    def end(self) -> int:
        return len(self.log)

    def records(self, seq: int, limit: int) -> Sequence[dict[str, Any]]:
        return [
            {"seq": seq + i, "at_s": event.at_s, "kind": kind, "version": version, "body": body}
            for i, event in enumerate(self.log[seq : seq + limit], start=1)
            for kind, version, body in [to_record(event)]
        ]

    def past_job(self, name: str) -> PastJob | None:
        return None

    def past_jobs(self, **_which: object) -> Sequence[PastJob]:
        return []

    def past_tenants(self, names: Collection[str]) -> dict[str, str]:
        return {}

    def snapshot(self, code: str) -> tuple[int, bytes] | None:
        return None

    def snapshot_seq(self) -> int:
        return 0

    def keep_snapshot(self, *_args: object, **_more: object) -> None:
        raise NotImplementedError
