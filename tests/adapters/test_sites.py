"""A file of sites, and engines that anybody can bring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from brimful.adapters.engines.job_users.users import JobUser, JobUsers
from brimful.adapters.sites import Site, Surroundings, make_engine, options_of, read_sites_file
from brimful.client.settings import read_settings
from brimful.errors import BadInput, WorldFailed
from brimful.server.run.engines import engines_of
from tests.builders import refuses

WHOLE = """
[hpc]
engine = "local"
usd_per_gpu_hour = 2.10
tier = "reserved"
owner = "physics"
gpus = 3
gpu = "h100-sxm-80gb"

[desk]
"""


def a_file(folder: Path, text: str) -> Path:
    path = folder / "sites.toml"
    path.write_text(text)
    return path


def test_each_table_is_a_site_and_what_it_leaves_out_has_a_default(tmp_path: Path) -> None:
    hpc, desk = read_sites_file(a_file(tmp_path, WHOLE))
    assert hpc == Site(
        site="hpc",
        microusd_per_gpu_hour=2_100_000,
        tier="reserved",
        owner="physics",
        options={"gpus": 3, "gpu": "h100-sxm-80gb"},
    )
    assert desk == Site(site="desk", engine="local", tier="owned", mode="run")


def test_a_server_has_an_engine_for_each_site_of_the_file(tmp_path: Path) -> None:
    file = a_file(tmp_path, WHOLE + 'gpus = 1\nusd_per_gpu_hour = "0.05"\n')
    settings = read_settings({"data": str(tmp_path / "data"), "sites": str(file)}, {})
    first, second = (engine.nodes()[0] for engine in engines_of(settings))
    assert (first.site, first.node, first.gpu, first.gpus) == ("hpc", "hpc-0", "h100-sxm-80gb", 3)
    assert (first.tier, first.owner, first.microusd_per_gpu_hour) == ("reserved", "physics", 2_100_000)
    assert (second.site, second.gpu, second.microusd_per_gpu_hour) == ("desk", "slot", 50_000)


def test_without_a_file_this_machine_is_the_only_site(tmp_path: Path) -> None:
    settings = read_settings({"data": str(tmp_path), "slots": 3, "gpu": "h100"}, {})
    (engine,) = engines_of(settings)
    (node,) = engine.nodes()
    assert (engine.site, node.node, node.gpus) == ("local", "local-0", 3)
    assert (tmp_path / "leases").is_dir()


@pytest.mark.parametrize(
    ("text", "code", "value"),
    [
        ("", "sites.none", None),
        ("site = 3", "sites.is_table", None),
        ('["Not A Name"]', "sites.is_table", None),
        ("[a]\nusd_per_gpu_hour = -1", "sites.bad_value", "usd_per_gpu_hour"),
        ("[a]\nusd_per_gpu_hour = true", "sites.bad_value", "usd_per_gpu_hour"),
        ("[a]\nengine = 3", "sites.bad_value", "engine"),
        ('[a]\nowner = "no such/name"', "sites.bad_value", "owner"),
        ('[a]\ntier = "rented"', "sites.bad_choice", "tier"),
        ('[a]\nmode = "watch"', "sites.bad_choice", "mode"),
    ],
)
def test_what_is_wrong_with_the_file_is_said_with_its_place(
    tmp_path: Path, text: str, code: str, value: object
) -> None:
    with refuses(BadInput, "sites.bad_file") as caught:
        read_sites_file(a_file(tmp_path, text))
    why = caught.value.said.as_dict()["why"]
    assert why["code"] == code
    assert value is None or why["key"] == value


def test_a_file_that_is_not_toml_or_not_there_is_refused(tmp_path: Path) -> None:
    with refuses(BadInput, "sites.bad_file"):
        read_sites_file(a_file(tmp_path, "[a"))
    with refuses(WorldFailed, "sites.cannot_read"):
        read_sites_file(tmp_path / "none.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    partition: str
    patience_s: int = 5
    whole: bool = False
    more: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)


def test_options_are_checked_against_what_the_engine_declares() -> None:
    given = {"partition": "gpu", "patience_s": 9, "whole": True, "more": ["-x"], "names": {"a100": "a100"}}
    found = options_of(Site(site="a", options=given), Options)
    assert found == Options(partition="gpu", patience_s=9, whole=True, more=("-x",), names={"a100": "a100"})
    with refuses(BadInput, "sites.option_missing", "partition"):
        options_of(Site(site="a"), Options)
    with refuses(BadInput, "sites.unknown_option", "partitoin"):
        options_of(Site(site="a", options={"partitoin": "gpu"}), Options)
    for key, value in (("partition", 3), ("patience_s", True), ("whole", 1), ("more", "x"), ("names", ["x"])):
        with refuses(BadInput, "sites.bad_option", key):
            options_of(Site(site="a", options={"partition": "gpu", key: value}), Options)


def test_a_package_of_anybody_adds_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip leaves it: a module, and beside it what it registers."""
    (tmp_path / "theirs.py").write_text(
        "def make(site, given):\n    return (site.site, site.options['x'], given.log_bytes)\n"
    )
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[brimful.engines]\ntheirs = theirs:make\nbroken = theirs_not_there:make\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    given = Surroundings(folder=tmp_path, log_bytes=7, microusd_per_gpu_hour=1)
    made: object = make_engine(Site(site="a", engine="theirs", options={"x": 1}), given)
    assert made == ("a", 1, 7)
    with refuses(WorldFailed, "sites.engine_not_loaded", "broken", "theirs_not_there:make"):
        make_engine(Site(site="a", engine="broken"), given)
    with refuses(BadInput, "sites.no_such_engine"):
        make_engine(Site(site="a", engine="lokal"), given)


def test_the_local_engine_says_what_it_does_not_take(tmp_path: Path) -> None:
    given = Surroundings(folder=tmp_path, log_bytes=1, microusd_per_gpu_hour=1)
    with refuses(BadInput, "sites.no_address"):
        make_engine(Site(site="a", address="ssh://host"), given)
    with refuses(BadInput, "sites.no_observing"):
        make_engine(Site(site="a", mode="observe"), given)


@pytest.mark.parametrize("engine", ["kubernetes", "ray"])
def test_a_missing_extra_is_named_before_anything_starts(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brimful.adapters.sites.find_spec", lambda _: None)
    site = Site(site="big", engine=engine, address="10.0.0.5:6379" if engine == "ray" else "")
    with refuses(BadInput, "sites.missing_extra", "big", engine) as caught:
        make_engine(site, Surroundings(folder=tmp_path, log_bytes=0, microusd_per_gpu_hour=0))
    assert caught.value.code == "missing_extra"
    assert caught.value.hint == f"pip install 'brimful[{engine}]'"


def test_kubernetes_refuses_the_users_of_job_users_before_there_is_a_cluster(tmp_path: Path) -> None:
    ann = JobUser(name="ann", uid=20001, gid=20001, groups=(), home="/", shell="/bin/sh")
    site = Site(site="k8s", engine="kubernetes", options={"image": "team/train:1"})
    surroundings = Surroundings(
        folder=tmp_path,
        log_bytes=0,
        microusd_per_gpu_hour=0,
        runs_as=lambda _: JobUsers(tmp_path, {"default": ann}, shares=True),
    )
    with refuses(BadInput, "kubernetes.no_job_users", "k8s"):
        make_engine(site, surroundings)
    make_engine(site, replace(surroundings, runs_as=lambda _: JobUsers(tmp_path, {}, shares=True)))
