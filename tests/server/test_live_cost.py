"""What an open page costs: the live part stays small and quick, however many jobs and GPUs there are."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment
from markupsafe import Markup
from sqlalchemy.sql.compiler import Compiled
from starlette.testclient import TestClient

from brimful.adapters.identity.store import AccessStore
from brimful.adapters.stores.sql import SqlStore
from brimful.fleet.events import Event, JobSubmitted, LeaseEnded, LeaseGranted, LeaseStarted, NodeJoined
from brimful.fleet.job import Job
from brimful.fleet.ranked import Order
from brimful.fleet.state import Node
from brimful.language import Quoted, verbatim
from brimful.scheduler.rules import Rules
from brimful.server.app import make_app
from brimful.server.auth import Access, Principal
from brimful.server.console import pages as module
from brimful.server.console.page_data import live_page
from brimful.server.console.pages import Pages
from brimful.server.console.templating import make_templates, warm_up
from brimful.server.service.reader import Reader
from brimful.server.service.service import Service
from brimful.server.views.fleet import fleet_view
from brimful.server.views.money import budgets_view, spend_view
from tests.patience import PATIENCE_S
from tests.server.builders import OPERATOR, MemoryHistory, bearer

NOW_S = 1_700_000_000
JOBS, RUNNING, NODES, GPUS = 20_000, 1000, 1000, 8  # GPUs of a node, and of a job
RUNS = f"/jobs/job-{JOBS - RUNNING}/live"
MOST_BYTES = 20_000


def crowd() -> Iterator[Event]:
    """So many jobs over, 1,000 that run on all GPUs, 1,000 that wait for them; each with a budget."""
    for i in range(NODES):
        node = Node(
            site="here",
            node=f"node-{i}",
            gpu="h100-sxm-80gb",
            gpus=GPUS,
            microusd_per_gpu_hour=2_000_000,
            declared=True,
        )
        yield NodeJoined.of(node, at_s=NOW_S)
    for i in range(1, JOBS + 1):
        given: dict[str, Any] = {
            "tenant": f"team-{i % 20}",
            "name": f"train a model, take {i}",
            "budget_microusd": 80_000_000,
        }
        yield JobSubmitted(
            at_s=NOW_S, job=Job(job=f"job-{i}", gpus=GPUS, command=("python", "train.py"), **given)
        )
        if i > JOBS - RUNNING:
            continue
        lease = f"job-{i}.1"
        where: dict[str, Any] = {
            "node": f"node-{i % NODES}",
            "gpus": tuple(range(GPUS)),
            "microusd_per_gpu_hour": 2_000_000,
        }
        yield LeaseGranted(at_s=NOW_S + i, lease=lease, job=f"job-{i}", **where)
        yield LeaseStarted(at_s=NOW_S + i, lease=lease)
        if i <= JOBS - 2 * RUNNING:
            yield LeaseEnded(at_s=NOW_S + i, lease=lease, exit_code=0, reason=verbatim("finished"))


@pytest.fixture(scope="module")
def crowded() -> Service:
    service = Service(MemoryHistory(), [], Rules(), clock=lambda: NOW_S + JOBS + 10)
    service.reader.fold(list(crowd()), after=0)
    return service


def test_an_update_of_a_crowded_page_is_small_and_its_sums_are_the_apis(crowded: Service) -> None:
    reader, pages = crowded.reader, Pages(crowded.reader)
    body = pages.live(reader, OPERATOR)  # as it goes over the wire
    assert len(body) <= MOST_BYTES
    shown, fleet = live_page(reader, OPERATOR), fleet_view(reader, OPERATOR)
    held = sum(gpu["held"] for node in fleet["nodes"] for gpu in node["gpus"])
    assert (shown["running"], shown["waiting"], shown["held"]) == (RUNNING, RUNNING, held)
    assert [(pool["gpus"], pool["held"]) for pool in shown["pools"]] == [(8000, 8000)]
    full = spend_view(reader, OPERATOR)
    assert full["sum_microusd"] == 0
    assert shown["spend"].items() <= full.items()
    holds = sum(n for account, n in full["balances"].items() if account.startswith("hold:"))
    assert shown["spend"]["held_microusd"] == holds > 0


def test_who_sees_the_same_shares_one_rendering_and_others_never_do(
    crowded: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[object] = []

    def counted(reader: Reader, who: Principal, kept: dict[str, Any] | None = None) -> dict[str, Any]:
        made.append(who)
        return live_page(reader, who, kept)

    monkeypatch.setattr(module, "live_page", counted)
    store = SqlStore(f"sqlite:///{tmp_path / 'log.db'}")
    access = Access(AccessStore(store))
    http = TestClient(make_app(crowded, access), base_url="http://127.0.0.1")
    teams = [bearer(access, "viewer", f"team-{i}", name=f"v{i}-{n}") for i in (1, 2) for n in (1, 2)]
    bodies = [http.get("/console/live", headers=headers).text for headers in teams]
    assert len(made) == 2
    assert bodies[0] == bodies[1] != bodies[2] == bodies[3]
    assert "team-2<" not in bodies[0]
    assert "team-1<" not in bodies[2]
    crowded.reader.health.error = verbatim("the disk is full")
    try:
        http.get("/console/live", headers=teams[0])
        assert len(made) == 3, "what has changed is rendered again"
    finally:
        crowded.reader.health.error = None
    access.close()
    store.close()


def test_sums_found_once_for_all_are_told_to_each_in_its_own_part(crowded: Service) -> None:
    """Whoever asked first, of the same second: what others asked changes nothing, and says nothing."""
    reader = crowded.reader
    ones = [Principal(token="", name=f"v{i}", roles={f"team-{i}": "viewer"}) for i in range(20)]
    whole, *views = [spend_view(reader, who) for who in (OPERATOR, *ones)]
    for i, (who, mine) in enumerate(zip(ones, views, strict=True)):
        budgets = {each["tenant"] for each in budgets_view(reader, who)}
        assert {*mine["by_tenant"]} == {f"team-{i}"} == budgets
    assert whole["accruing_microusd"] == sum(mine["accruing_microusd"] for mine in views) > 0
    assert whole["held_microusd"] == sum(mine["held_microusd"] for mine in views) > 0
    running = [reader.fleet.jobs[lease.job] for lease in reader.fleet.open_leases.values()]
    for i, mine in enumerate(views):
        theirs = [state for state in running if state.job.tenant == f"team-{i}"]
        assert mine["accruing_microusd"] == sum(state.cost_microusd(reader.now_s()) for state in theirs)
        assert mine["microusd_per_hour"] == 2_000_000 * GPUS * len(theirs)


def test_tabs_that_wait_keep_nobody_from_the_threads_that_answer(
    crowded: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Sixty updates stand still; there are forty threads, and a list of jobs needs one."""
    slow, begun = threading.Event(), threading.Event()

    def stuck(reader: Reader, who: Principal, kept: dict[str, Any] | None = None) -> dict[str, Any]:
        begun.set()
        slow.wait(PATIENCE_S)
        return live_page(reader, who, kept)

    monkeypatch.setattr(module, "live_page", stuck)
    store = SqlStore(f"sqlite:///{tmp_path / 'log.db'}")
    access = Access(AccessStore(store))
    answered: list[int] = []
    with (
        TestClient(make_app(crowded, access), base_url="http://127.0.0.1") as http,
        ThreadPoolExecutor(61) as pool,
    ):
        people = [bearer(access, "viewer", f"team-{i}", name=f"v{i}") for i in range(3)]
        tabs = [pool.submit(http.get, "/console/live", headers=who) for who in people for _ in range(20)]
        try:
            assert begun.wait(PATIENCE_S)
            jobs = pool.submit(http.get, "/v1/jobs?limit=1", headers=people[0])
            answered.append(jobs.result(PATIENCE_S / 2).status_code)
        finally:
            slow.set()
        answered += [tab.result(PATIENCE_S).status_code for tab in tabs]
    assert answered == [200] * 61
    access.close()
    store.close()


def test_no_page_compiles_a_template_after_the_start_and_every_update_is_small_and_without_a_key(
    crowded: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The time of an update is measured by `make bench ARGS=console`."""
    warm_up()
    monkeypatch.setattr(Environment, "compile", lambda *_, **__: pytest.fail("a template is compiled late"))
    store = SqlStore(f"sqlite:///{tmp_path / 'log.db'}")
    access = Access(AccessStore(store))
    http = TestClient(make_app(crowded, access), base_url="http://127.0.0.1")
    http.headers.update(bearer(access))
    for path in ("/console/live", "/jobs", RUNS, "/fleet", "/market", "/teams", "/audit", "/operate"):
        answer = http.get(path if path.endswith("live") else f"{path}?live=1")
        assert answer.status_code == 200
        assert answer.headers["content-encoding"] == "gzip"
        assert int(answer.headers["content-length"]) <= MOST_BYTES, path
        assert set(re.findall(r'name="form_key" value="([^"]*)"', answer.text)) <= {""}, path
        assert http.get("/" if path == "/console/live" else path.removesuffix("/live")).status_code == 200
    access.close()
    store.close()


def test_a_template_reads_the_fields_of_an_answer_and_a_field_named_like_a_method_hides_no_method() -> None:
    site = {"items": "a site of this name", "gpus": 8}
    page = make_templates("en").from_string(
        "{{ site.gpus }} {{ site.items()|length }} {{ site.none_such is defined }}"
    )
    assert page.render(site=site) == "8 2 False"


def test_a_value_is_escaped_marked_and_named_whatever_its_type() -> None:
    page = make_templates("en").from_string("{% for each in values %}{{ each }}|{% endfor %}")
    values = ["a<b>&\"'", "plain", Markup("<i>"), 3, 2.5, True, None, "x\x1by", Quoted("a\u202eb"), ["<"]]
    shown = page.render(values=values).split("|")
    assert shown[:7] == ["a&lt;b&gt;&amp;&#34;&#39;", "plain", "<i>", "3", "2.5", "True", "unknown"]
    assert shown[7] == "x\ufffdy"
    assert shown[8:] == ["&#39;a\\u202eb&#39;", "[&#39;&lt;&#39;]", ""]


def test_once_the_server_is_up_no_page_groups_jobs_or_compiles_a_statement(
    crowded: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = SqlStore(f"sqlite:///{tmp_path / 'log.db'}")
    access = Access(AccessStore(store))
    app = make_app(crowded, access)
    app.warm_up()
    http = TestClient(app, base_url="http://127.0.0.1")
    http.headers.update(bearer(access))
    http.get("/v1/jobs?limit=1")  # the first token
    for late, method in ((Order, "__init__"), (Compiled, "__init__"), (Environment, "compile")):
        monkeypatch.setattr(late, method, lambda *_, what=late, **__: pytest.fail(f"late: {what}"))
    for path in ("/console/live", "/jobs", RUNS, "/fleet", "/market", "/teams", "/operate"):
        assert http.get(path if path.endswith("live") else f"{path}?live=1").status_code == 200
    monkeypatch.undo()
    access.close()
    store.close()
