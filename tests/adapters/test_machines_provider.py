"""Machines of a list: taken once, given back, gone when the list no longer has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from brimful.adapters.providers.machines import MachinesProvider
from brimful.adapters.providers.worker import ProviderWorker
from brimful.adapters.sites import Surroundings, make_provider, read_providers, read_sites_file
from brimful.errors import BadInput
from brimful.fleet.events import NodeOrdered
from brimful.scheduler.cloud.providers import CannotMake
from brimful.specs.offer import Offer
from tests.builders import USD, code_of, eventually, refuses


def row(address: str, usd: str = "0.80", **more: object) -> str:
    rest = "".join(f"{key} = {value!r}\n".replace("'", '"') for key, value in more.items())
    return f'[[machine]]\naddress = "{address}"\ngpu = "t4"\ngpus = 2\nusd_per_hour = {usd}\n{rest}\n'


class Depot:
    def __init__(self, folder: Path) -> None:
        self.path, self.taken = folder / "machines.toml", folder / "taken"
        self.taken.mkdir()
        self.sell(row("a"), row("b"))
        self.provider = MachinesProvider("depot", self.path, self.taken)

    def sell(self, *rows: str) -> None:
        new = self.path.with_suffix(".new")
        new.write_text("".join(rows))
        new.replace(self.path)


@pytest.fixture
def depot(tmp_path: Path) -> Depot:
    return Depot(tmp_path)


def order(node: str, usd: float = 0.8) -> NodeOrdered:
    return NodeOrdered(
        at_s=100,
        node=node,
        site="depot",
        gpu="t4",
        tier="on_demand",
        gpus=2,
        microusd_per_gpu_hour=int(usd * USD) // 2,
        job="job-1",
    )


def test_a_machine_is_taken_once_and_found_again_by_the_next_server(depot: Depot) -> None:
    (offer,) = depot.provider.offers()
    assert (offer.site, offer.microusd_per_gpu_hour, offer.is_there) == ("depot", 400_000, True)
    assert depot.provider.offers() is depot.provider.offers()
    assert depot.provider.make([order("depot-1"), order("depot-1")]) == {}
    again = MachinesProvider("depot", depot.path, depot.taken)
    assert again.make([order("depot-1")]) == {}
    assert [(each.node, each.state, each.address) for each in again.watch()] == [("depot-1", "ready", "a")]
    again.make([order("depot-2")])
    assert not again.offers()[0].is_there
    failed = again.make([order("depot-3")])
    assert isinstance(failed["depot-3"], CannotMake)
    again.remove(["depot-1", "depot-1", "never-was"])
    assert [each.node for each in again.watch()] == ["depot-2"]
    assert again.offers()[0].is_there


def test_what_is_no_longer_listed_is_gone_and_a_dearer_one_is_refused(depot: Depot) -> None:
    depot.provider.make([order("depot-1")])
    depot.sell(row("b", "0.90"))
    assert depot.provider.watch() == []
    failed = depot.provider.make([order("depot-2")])
    assert code_of(failed["depot-2"].said) == "adapters.machine_dearer"
    assert depot.provider.make([order("depot-2", usd=0.9)]) == {}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (row("-oProxyCommand=id"), "adapters.bad_machine"),
        (row("a", tier="owned"), "adapters.bad_machine"),
        (row("a", "-1"), "adapters.bad_machine"),
        (row("a", gpus_=1), "adapters.bad_machine"),
        (row("a") + row("a"), "adapters.machine_twice"),
        (row("a") + row("b", "0.70"), "adapters.machines_prices_differ"),
        ("[[machine", "adapters.machines_unreadable"),
    ],
)
def test_a_list_that_cannot_be_right_is_refused_with_its_place(depot: Depot, text: str, code: str) -> None:
    depot.sell(text)
    with refuses(BadInput, code):
        depot.provider.offers()


def test_that_a_node_is_not_there_means_nothing_while_its_order_is_on_its_way(depot: Depot) -> None:
    now = [0.0]
    worker = ProviderWorker(depot.provider, clock=lambda: now[0])
    worker._look()
    assert worker.make([order("depot-1")]) == {}
    assert [(each.node, each.state) for each in worker.watch()] == [("depot-1", "starting")]
    now[0] = 1.0
    worker._carry_out(worker._next_batch())
    assert [(each.node, each.state) for each in worker.watch()] == [("depot-1", "starting")], "an older look"
    now[0] = 2.0
    worker._look()
    assert [(each.node, each.state) for each in worker.watch()] == [("depot-1", "ready")]
    depot.sell()
    now[0] = 3.0
    worker._look()
    assert worker.watch() == []


def test_a_removed_node_is_gone_however_long_looks_take(
    depot: Depot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop repeats the order until it sees its effect, also during a look."""
    now = [0.0]
    worker, offers = ProviderWorker(depot.provider, clock=lambda: now[0]), depot.provider.offers

    def slowly() -> Sequence[Offer]:
        now[0] += 40.0
        worker.remove(["depot-1"])
        return offers()

    assert depot.provider.make([order("depot-1")]) == {}
    worker._look()
    assert [(each.node, each.state) for each in worker.watch()] == [("depot-1", "ready")]
    worker.remove(["depot-1"])
    worker._carry_out(worker._next_batch())
    monkeypatch.setattr(depot.provider, "offers", slowly)
    now[0] = 1.0
    worker._look()
    assert worker.watch() == []
    worker._carry_out(worker._next_batch())
    assert worker.watch() == []


def test_a_refusal_is_told_when_the_order_is_given_again(depot: Depot) -> None:
    depot.sell(row("a", "0.90"))
    worker = ProviderWorker(depot.provider)
    worker.begin()
    assert worker.make([order("depot-1")]) == {}
    failed: dict[str, object] = {}
    eventually(lambda: failed.update(worker.make([order("depot-1")])) or failed)
    assert isinstance(failed["depot-1"], CannotMake)
    worker.ask_to_close()
    assert worker.has_closed(5)


SITES = """
[providers]
usd_per_hour = 12.5
keep_s = 60

[providers.depot]
kind = "machines"
machines = "/nowhere.toml"
checkpoints = "/store"
"""


def test_providers_stand_beside_the_sites_and_buy_nothing_unless_told(tmp_path: Path) -> None:
    path = tmp_path / "sites.toml"
    path.write_text(SITES)
    found = read_providers(path)
    assert (found.hourly_microusd, found.monthly_microusd, found.keep_s) == (12_500_000, 0, 60)
    assert [(each.site, each.engine, each.checkpoints) for each in found.sellers] == [
        ("depot", "machines", "file:///store")
    ]
    assert read_sites_file(path) == []
    assert found.hourly_of == {}
    path.write_text(SITES + "usd_per_hour = 2.5\n")
    assert read_providers(path).hourly_of == {"depot": 2_500_000}
    path.write_text("[lab]\n")
    assert read_providers(path).sellers == ()


@pytest.mark.parametrize(
    "text",
    [
        "providers = 3",
        "[providers]\nusd_per_hour = true",
        "[providers]\nkeep_s = -1",
        '[providers]\ndry_run = "no"',
        "[providers]\nusd_per_day = 3",
        "[providers.depot]\n",
        '[providers.depot]\nkind = "machines"\nusd_per_hour = "x"',
        '[providers.depot]\nkind = "machines"\nengine = "ssh"',
    ],
)
def test_a_table_of_providers_that_cannot_be_right_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sites.toml"
    path.write_text(text)
    with refuses(BadInput, "sites.bad_file"):
        read_providers(path)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('kind = "magic"', "sites.no_such_provider"),
        ('kind = "machines"\nmachines = "x"', "sites.provider_needs_store"),
        ('kind = "machines"\ncheckpoints = "/s"', "sites.option_missing"),
        ('kind = "catalog"\npath = "x"\nwhat = 1', "sites.unknown_option"),
    ],
)
def test_a_provider_that_cannot_be_made_says_why(tmp_path: Path, text: str, code: str) -> None:
    path = tmp_path / "sites.toml"
    path.write_text(f"[providers.depot]\n{text}\n")
    (seller,) = read_providers(path).sellers
    with refuses(BadInput, code):
        make_provider(seller, Surroundings(folder=tmp_path, log_bytes=0, microusd_per_gpu_hour=0))
