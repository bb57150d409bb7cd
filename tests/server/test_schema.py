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
from tests.server.builders import an_access, an_app, bearer

EXAMPLES = int(os.environ.get("BRIMFUL_EXAMPLES", "3"))  # of each kind for each operation
# Who may do what is tests/server/test_auth.py's: here every request carries the operator's token. That what
# is broken is refused is pydantic's, which takes "1" for 1 where the description does not.
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
