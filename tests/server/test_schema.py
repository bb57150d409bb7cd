"""Whatever is sent, the API answers as its own description says: no 5xx, no other shape, no other status.

schemathesis makes requests from the description, valid and broken ones, and holds every answer against it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks
from starlette.testclient import TestClient

from brimful.adapters.code import CodeStore
from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.stores.notices import NotifyStore
from brimful.adapters.stores.sql import SqlStore
from brimful.scheduler.rules import Rules
from brimful.server.app import make_app
from brimful.server.service.notify import Outbound
from brimful.server.service.service import Service
from tests.builders import a_node
from tests.server.builders import OPERATOR, an_access, an_app, bearer
from tests.server.test_auth import OPEN, SECRET, House, a_session

EXAMPLES = int(os.environ.get("BRIMFUL_EXAMPLES", "15"))  # of each kind for each operation
# That what is broken is refused is pydantic's, which takes "1" for 1 where the description does not.
CHECKS = (
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.unsupported_method,
)


def operations() -> list[tuple[str, str, GenerationMode]]:
    app = an_app()
    # A stream that is allowed goes on for ever; tests/server/test_stream.py reads those.
    return [
        (path, method, mode)
        for path, methods in app.openapi()["paths"].items()
        for method in methods
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        if not path.endswith("/stream")
        # These take nothing that could be broken.
        and not (mode is GenerationMode.NEGATIVE and path in ("/v1/health", "/v1/ready"))
    ]


class Described:
    """A server with a job that waits and one that may run, and its own description."""

    def __init__(self, schema: Any, headers: dict[str, str]) -> None:
        self.schema, self.headers = schema, headers


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Described]:
    folder = tmp_path_factory.mktemp("schema")
    store = SqlStore(f"sqlite:///{folder / 'log.db'}")
    service = Service(
        store,
        [LocalEngine(folder / "leases", [a_node(gpus=2)], site="here")],
        Rules(),
        code=CodeStore(folder / "code"),
        notify=(NotifyStore(store), Outbound()),
    )
    service.driver.tick()
    access = an_access(store)
    app = make_app(service, access)
    headers = {**bearer(access), "host": "127.0.0.1"}
    with TestClient(app, base_url="http://127.0.0.1", headers=headers) as http:
        for body in ({"command": ["true"], "folder": "/"}, {"command": ["x"], "folder": "/", "gpus": 9}):
            assert http.post("/v1/jobs", json=body).status_code == 201
        schema = schemathesis.openapi.from_asgi("/v1/openapi.json", app, headers=headers)
        yield Described(schema, headers)
    access.close()
    store.close()


@pytest.mark.parametrize(("path", "method", "mode"), operations(), ids=str)
def test_every_answer_is_as_the_description_says(
    described: Described, path: str, method: str, mode: GenerationMode
) -> None:
    operation = described.schema[path][method.upper()]

    @seed(6)
    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def asked(case: schemathesis.Case[Any]) -> None:
        case.call_and_validate(headers=described.headers, checks=list(CHECKS))

    asked()


class Strangers:
    """Red's job, team and tokens, and the headers of all who may not see them."""

    def __init__(self, house: House) -> None:
        self.house = house
        expired = bearer(house.access, ttl_s=10)
        session = {"authorization": f"Bearer {a_session(house, OPERATOR)}"}
        house.now_s += 20
        self.refused: dict[str, dict[str, str]] = {"expired": expired, "session": session, "none": {}}
        self.blue = bearer(house.access, "submitter", "blue")
        headers = {**house.operator, "host": "127.0.0.1"}
        self.schema = schemathesis.openapi.from_asgi("/v1/openapi.json", house.app, headers=headers)

    def reds(self) -> object:
        """What no stranger may change."""
        fleet, ledger = self.house.service.reader.fleet, self.house.service.reader.ledger
        state = fleet.jobs[self.house.job]
        tokens = [each for each in self.house.access.tokens(OPERATOR) if each.tenant != "blue"]
        return (
            state.phase,
            state.job,
            list(state.leases),
            sorted(fleet.drained),
            dict(ledger.balances),
            tokens,
        )


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Strangers]:
    house = House(tmp_path_factory.mktemp("house"))
    yield Strangers(house)
    house.close()


@pytest.mark.parametrize(("path", "method"), sorted({each[:2] for each in operations()}), ids=str)
def test_whatever_a_stranger_sends_nothing_leaks(strangers: Strangers, path: str, method: str) -> None:
    """Each names red's own things, with whatever else the description allows: as a submitter of another team,
    with an expired token, with a session as a bearer token, and with none."""
    house, operation = strangers.house, strangers.schema[path][method.upper()]
    names = {"name": house.job, "node": "node-0", "tenant": "red", "user": "ann", "token": "0" * 16}
    before = strangers.reds()

    @seed(6)
    @settings(
        max_examples=max(1, EXAMPLES // 3),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
    def asked(case: schemathesis.Case[Any]) -> None:
        case.path_parameters.update({key: names[key] for key in case.path_parameters if key in names})
        for who, headers in strangers.refused.items():
            answer = case.call(headers={**headers, "host": "127.0.0.1"})
            assert SECRET not in answer.text, who
            assert answer.status_code < 500 if path in OPEN else answer.status_code == 401, (who, answer.text)
        answer = case.call_and_validate(headers={**strangers.blue, "host": "127.0.0.1"}, checks=list(CHECKS))
        assert SECRET not in answer.text
        if {"name", "tenant"} & case.path_parameters.keys():
            assert answer.status_code >= 400, answer.text

    asked()
    assert strangers.reds() == before
