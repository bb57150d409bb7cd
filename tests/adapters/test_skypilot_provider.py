"""SkyPilot's answers, as its API server 0.14.1 gives them, and what the provider makes of them."""

from __future__ import annotations

import base64
import json
import pickle
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from brimful.adapters.providers.skypilot import SkyPilotOptions, SkyPilotProvider, skypilot_provider
from brimful.adapters.sites import Site, Surroundings
from brimful.errors import BadInput, WorldFailed
from brimful.fleet.events import NodeOrdered
from brimful.scheduler.cloud.providers import CannotMake
from tests.builders import USD, code_of, refuses

KEY = "-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----"
ROWS = """\
InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region,AvailabilityZone
t4x1,T4,1.0,0.36,0.10,tor1,tor1-a
t4x1,T4,1.0,0.36,0.12,tor1,tor1-b
t4x1,T4,1.0,0.72,,ams3,
t4x1,T4,1.0,0.10,,elsewhere,
,T4,1.0,0.01,,tor1,
"""
NO_CAPACITY = "\x1b[31mFailed to provision.\x1b[0m\nReasons:\n\n  No capacity in tor1.\n"


def a_handle(host: str = "10.0.0.5", port: int = 22) -> str:
    """An object of a class that is not here, with its fields."""
    fields = {
        "_version": 13,
        "stable_internal_external_ips": [("172.16.0.2", host)],
        "stable_ssh_ports": [port],
    }
    begin = b"\x80\x02csky.backends.cloud_vm_ray_backend\nCloudVmRayResourceHandle\n)\x81"
    return base64.b64encode(begin + pickle.dumps(fields, protocol=2)[2:-1] + b"b.").decode()


class Api(ThreadingHTTPServer):
    """What the API server knows: requests, which the test lets end, and clusters."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        self.requests: dict[str, dict[str, Any]] = {}
        self.clusters: dict[str, dict[str, Any]] = {}
        self.moved_to = ""
        self.authorized: list[str | None] = []

    def ask(self, name: str, body: dict[str, Any]) -> str:
        request = f"{len(self.requests):08x}-aaaa"
        self.requests[request] = {
            "request_id": request,
            "name": f"sky.{name}",
            "request_body": json.dumps(body),
            "status": "SUCCEEDED" if name in ("status", "api_cancel") else "PENDING",
            "created_at": time.time() + len(self.requests),
            "return_value": json.dumps(list(self.clusters.values()) if name == "status" else None),
            "error": "null",
            "cluster_name": body.get("cluster_name"),
        }
        for each in body.get("request_ids", ()):
            self.requests[each]["status"] = "CANCELLED"
        return request

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.requests.values() if each["name"] == f"sky.{kind}"]

    def end(self, kind: str, status: str = "SUCCEEDED", message: str = "") -> None:
        each = self.of(kind)[-1]
        each["status"] = status
        if message:
            each["error"] = json.dumps({"object": "gAROLg==", "type": "SomeError", "message": message})

    def cluster(self, name: str, status: str, **more: object) -> None:
        keyed = {"ssh_user": "ubuntu", "ssh_private_key_content": KEY, "ssh_proxy_command": None}
        row = {"name": name, "status": status, "handle": a_handle(), "credentials": keyed}
        self.clusters[name] = {**row, **more}


class Handler(BaseHTTPRequestHandler):
    server: Api

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = self.path[1:].replace("api/", "api_")
        self._answer(200, None, self.server.ask(name, body))

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        asked = parse_qs(url.query)
        self.server.authorized.append(self.headers["Authorization"])
        if self.server.moved_to:
            self.send_response(302)
            self.send_header("Location", self.server.moved_to)
            self.end_headers()
        elif url.path == "/api/get":
            found = self.server.requests[asked["request_id"][0]]
            is_bad = found["error"] != "null"
            self._answer(500 if is_bad else 200, {"detail": found} if is_bad else found)
        elif url.path == "/api/status":
            wanted = {"PENDING", "RUNNING"}
            self._answer(
                200,
                [
                    each
                    for each in self.server.requests.values()
                    if ("all_status" in asked or each["status"] in wanted)
                    and asked.get("cluster_name", [each["cluster_name"]])[0] == each["cluster_name"]
                ],
            )
        else:
            self._answer(200, {"status": "healthy", "api_version": "62", "version": "0.14.1"})

    def _answer(self, status: int, body: object, request: str = "x") -> None:
        self.send_response(status)
        self.send_header("X-SkyPilot-Request-ID", request)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_given: object) -> None:
        """Nothing on the screen."""


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


class World:
    def __init__(self, folder: Path, api: Api) -> None:
        self.api, self.folder = api, folder / "machines"
        (folder / "catalog" / "do").mkdir(parents=True)
        (folder / "catalog" / "do" / "vms.csv").write_text(ROWS)
        self.folder.mkdir()
        self.options = SkyPilotOptions(
            infra=("do/tor1", "do/ams3"), catalog=str(folder / "catalog"), token_env="SKY_TOKEN"
        )
        self.provider = self.new()
        self.prefix = f"brimful-{(self.folder / '.id').read_text()[:8]}-"

    def new(self) -> SkyPilotProvider:
        return SkyPilotProvider("sky", self.options, self.folder, self.api.address)

    def seen(self) -> list[tuple[str, str, str]]:
        """By a server that has just begun."""
        self.provider = self.new()
        return [(each.node, each.state, each.address) for each in self.provider.watch()]


@pytest.fixture
def world(tmp_path: Path, api: Api) -> World:
    return World(tmp_path, api)


def order(node: str, usd: float = 0.36, **more: Any) -> NodeOrdered:
    given = {"site": "sky-do-tor1", "tier": "on_demand", "gpus": 1, **more}
    price = int(usd * USD)
    return NodeOrdered(at_s=100, node=node, gpu="t4", microusd_per_gpu_hour=price, job="job-1", **given)


def test_offers_are_those_of_the_places_that_were_named_at_the_price_of_their_dearest_zone(
    world: World,
) -> None:
    found = {(each.site, each.is_spot): each.microusd_per_hour for each in world.provider.offers()}
    assert found == {
        ("sky-do-tor1", False): 360_000,
        ("sky-do-tor1", True): 120_000,
        ("sky-do-ams3", False): 720_000,
    }
    assert {each for each, _ in found} == set(world.provider.sites)
    assert world.provider.offers() is world.provider.offers()


def test_a_node_is_launched_once_whoever_asks_and_is_reached_by_its_own_key(world: World) -> None:
    assert world.provider.make([order("sky-1", tier="spot")]) == {}
    assert world.new().make([order("sky-1", tier="spot")]) == {}
    (launch,) = world.api.of("launch")
    asked = json.loads(launch["request_body"])
    assert json.loads(asked["task"]) == {
        "resources": {"infra": "do/tor1", "instance_type": "t4x1", "use_spot": True}
    }
    assert asked["cluster_name"] == f"{world.prefix}sky-1"
    assert world.seen() == [("sky-1", "starting", "")]
    world.api.cluster(asked["cluster_name"], "INIT", handle=base64.b64encode(b"N.").decode())
    assert world.seen() == [("sky-1", "starting", "")]
    world.api.end("launch")
    world.api.cluster(asked["cluster_name"], "UP")
    world.api.cluster("somebody-elses", "UP")
    assert world.seen() == [("sky-1", "ready", "sky-1")]
    assert world.provider.make([order("sky-1")]) == {}
    since = world.provider.watch()[0].at_s
    world.api.cluster(
        asked["cluster_name"], "INIT"
    )  # SkyPilot's own daemon on it is unwell: it is ours all the same
    assert [(each.state, each.at_s) for each in world.new().watch()] == [("ready", since)]
    config = world.provider.config.read_text().split()
    assert config[:6] == ["Host", "sky-1", "HostName", "10.0.0.5", "Port", "22"]
    key = world.folder / "sky-1.key"
    assert (key.read_text(), key.stat().st_mode & 0o777) == (KEY + "\n", 0o600)
    del world.api.clusters[asked["cluster_name"]]  # its cloud took it back
    assert world.seen() == []
    assert not key.exists()
    assert world.provider.config.read_text() == ""


@pytest.mark.parametrize(
    ("status", "message", "code"),
    [
        ("FAILED", NO_CAPACITY, "adapters.sky_refused"),
        ("CANCELLED", "", "adapters.sky_cancelled"),
        ("SUCCEEDED", "", "adapters.sky_lost"),
    ],
)
def test_a_launch_that_ends_without_a_machine_is_refused_with_its_reason(
    world: World, status: str, message: str, code: str
) -> None:
    world.provider.make([order("sky-1")])
    world.api.end("launch", status, message)
    for provider in (world.provider, world.new()):
        failed = provider.make([order("sky-1")])["sky-1"]
        assert isinstance(failed, CannotMake)
        assert code_of(failed.said) == code
        assert not message or str(failed.said).endswith("Failed to provision. Reasons: No capacity in tor1.")
    assert len(world.api.of("launch")) == 1


def test_a_machine_whose_launch_ended_half_way_is_removed_before_it_counts_as_refused(world: World) -> None:
    world.provider.make([order("sky-1")])
    world.api.cluster(f"{world.prefix}sky-1", "INIT")
    world.api.end("launch", "FAILED", "ssh did not come up")
    for _ in range(2):
        failed = world.provider.make([order("sky-1")])["sky-1"]
        assert not isinstance(failed, CannotMake), "it is still there"
        assert len(world.api.of("down")) == 1
    assert world.seen() == [("sky-1", "starting", "")]
    world.api.end("down")
    world.api.clusters.clear()
    assert isinstance(world.provider.make([order("sky-1")])["sky-1"], CannotMake)


def test_what_is_not_sold_or_dearer_now_is_not_launched(world: World) -> None:
    assert code_of(world.provider.make([order("sky-1", usd=0.35)])["sky-1"].said) == "adapters.machine_dearer"
    for unsold in (order("sky-2", gpus=2), order("sky-2", site="sky-do-elsewhere")):
        assert isinstance(world.provider.make([unsold])["sky-2"], CannotMake)
    assert world.api.of("launch") == []


def test_removing_gives_up_a_launch_and_takes_down_what_is_there_once(world: World) -> None:
    world.provider.make([order("sky-1")])
    assert world.provider.remove(["sky-1", "never-was"]) == {}
    assert world.api.of("launch")[0]["status"] == "CANCELLED"
    assert world.seen() == []
    world.api.cluster(f"{world.prefix}sky-1", "INIT")  # the launch was faster than its end
    assert world.seen() == [("sky-1", "starting", "")]
    assert world.provider.remove(["sky-1"]) == world.new().remove(["sky-1"]) == {}
    assert len(world.api.of("down")) == 1
    world.api.end("down", "FAILED", "the cloud does not answer")
    world.provider.remove(["sky-1"])
    assert len(world.api.of("down")) == 2


def test_a_machine_that_somebody_stopped_is_gone_and_taken_down(world: World) -> None:
    world.api.cluster(f"{world.prefix}sky-1", "STOPPED")
    assert world.seen() == [("sky-1", "gone", "")]
    assert len(world.api.of("down")) == 1


def test_an_address_that_ssh_alone_cannot_open_is_never_tried_and_a_pickle_never_run(
    world: World, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    attack = f"cos\nsystem\n(S'touch {ran}'\ntR.".encode()
    keyed = {"ssh_user": "root", "ssh_private_key_content": KEY}
    answers: list[dict[str, object]] = [
        {"handle": base64.b64encode(attack).decode()},
        {"handle": a_handle("-oProxyCommand=id")},
        {"handle": a_handle("a\nProxyCommand id")},
        {"handle": a_handle(port=70_000)},
        {"handle": "?"},
        {"credentials": {**keyed, "ssh_user": "root\nProxyCommand id"}},
        {"credentials": {**keyed, "ssh_proxy_command": "ssh -W %h:%p jump"}},
        {"credentials": None},
    ]
    for i, more in enumerate(answers):
        world.api.cluster(f"{world.prefix}sky-{i}", "UP", **more)
    assert {(state, address) for _, state, address in world.seen()} == {("ready", "")}
    assert world.provider.config.read_text() == ""
    assert not ran.exists()


def test_while_nothing_is_there_it_is_seldom_asked(world: World) -> None:
    assert world.provider.watch() == world.provider.watch() == []
    assert len(world.api.of("status")) == 1
    world.provider.make([order("sky-1")])
    assert [each.node for each in world.provider.watch()] == ["sky-1"]


def test_a_token_goes_to_this_server_alone_and_silence_is_said(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKY_TOKEN", "secret")
    world.provider.watch()
    assert set(world.api.authorized) == {"Bearer secret"}
    world.api.moved_to, asked = f"{world.api.address}/elsewhere", len(world.api.authorized)
    with refuses(WorldFailed, "adapters.sky_failed"):
        world.new().watch()
    assert len(world.api.authorized) == asked + 1
    gone = SkyPilotProvider("sky", world.options, world.folder, "http://127.0.0.1:1")
    with refuses(WorldFailed, "adapters.sky_silent"):
        gone.watch()
    world.api.moved_to = ""
    assert world.provider.examine() == {"do/tor1": None, "do/ams3": None}


@pytest.mark.parametrize(
    "given",
    [
        {"infra": ["do"]},
        {"infra": []},
        {"infra": ["kubernetes/here"]},
        {"infra": ["do/tor1"], "lead_s": -1},
        {"infra": ["do/tor1"], "adress": "http://there"},
    ],
)
def test_options_that_cannot_be_right_are_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    surroundings = Surroundings(folder=tmp_path / "sites" / "sky", log_bytes=1, microusd_per_gpu_hour=0)
    good = Site(
        site="sky",
        engine="skypilot",
        checkpoints="s3://kept",
        options={"infra": ["do/tor1", "aws/us-east-1"]},
    )
    vendor = skypilot_provider(good, surroundings)
    assert [engine.site for engine in vendor.engines] == list(vendor.provider.sites)
    assert vendor.provider.sites == ("sky-do-tor1", "sky-aws-us-east-1")
    for wrong in (
        replace(good, options=given),
        replace(good, address="file:///etc/passwd"),
        replace(good, checkpoints=""),
    ):
        with pytest.raises(BadInput):
            skypilot_provider(wrong, surroundings)
