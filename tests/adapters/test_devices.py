"""GPUs by type, from what a driver says of its cards."""

from __future__ import annotations

import pytest

from brimful.adapters.engines.devices import (
    MOST_GPUS,
    Device,
    DeviceGroup,
    catalog_names,
    group_devices,
    why_strange,
)
from tests.builders import code_of

A100, T4 = "NVIDIA A100-SXM4-80GB", "Tesla T4"


def devices(*names: str) -> list[Device]:
    return [Device(device=str(i), name=name) for i, name in enumerate(names)]


def test_one_card_is_found_by_its_catalog_name() -> None:
    assert group_devices(devices("NVIDIA GeForce RTX 4070")) == [DeviceGroup(gpu="rtx-4070", devices=("0",))]


def test_cards_of_two_kinds_keep_the_drivers_indices() -> None:
    assert group_devices(devices(A100, T4, A100)) == [
        DeviceGroup(gpu="a100-sxm-80gb", devices=("0", "2")),
        DeviceGroup(gpu="t4", devices=("1",)),
    ]


def test_a_card_nobody_knows_keeps_its_own_name() -> None:
    assert group_devices(devices("NVIDIA Quux 9000 Ultra")) == [
        DeviceGroup(gpu="nvidia-quux-9000-ultra", devices=("0",))
    ]


def test_a_lost_card_keeps_its_place_so_that_the_others_keep_theirs() -> None:
    lost = Device(device="1", name="", problem="fell off the bus")
    first, _, last = devices(T4, T4, T4)
    assert group_devices([first, lost, last]) == [DeviceGroup(gpu="t4", devices=("0", "1", "2"), holes=(1,))]


def test_a_lost_card_among_several_kinds_is_of_none() -> None:
    lost = Device(device="2", name="", problem="fell off the bus")
    assert [each.devices for each in group_devices([*devices(T4, A100), lost])] == [("0",), ("1",)]


def test_each_slice_stands_alone() -> None:
    slices = [Device(device=f"MIG-{i}", name=f"{A100} MIG 3g.40gb", is_slice=True) for i in range(2)]
    assert group_devices([*devices(T4), *slices]) == [
        DeviceGroup(gpu="t4", devices=("0",)),
        DeviceGroup(gpu="nvidia-a100-sxm4-80gb-mig-3g.40gb", devices=("MIG-0",)),
        DeviceGroup(gpu="nvidia-a100-sxm4-80gb-mig-3g.40gb", devices=("MIG-1",)),
    ]


def test_nothing_is_found_among_nothing() -> None:
    assert group_devices([]) == []


@pytest.mark.parametrize(
    ("node", "gpus"),
    [
        ("n-0\nn-1", 8),
        ("n-0\x1b[2J", 8),
        ("n-0@hpc", 8),  # as the fleet calls another site's node
        ("a,b", 8),
        ("a|b", 8),
        ("../a", 8),
        ("", 8),
        ("n" * 254, 8),
        ("n-0", MOST_GPUS + 1),
    ],
)
def test_a_node_that_cannot_be_is_not_believed(node: str, gpus: int) -> None:
    assert code_of(why_strange(node, gpus)) == "adapters.strange_node"


@pytest.mark.parametrize("node", ["n-0", "10.0.0.5", "fe80::1", "gpu_7.example.org", "mixed:mig-1g.10gb"])
def test_a_node_that_can_be_is_believed(node: str) -> None:
    assert why_strange(node, MOST_GPUS) is None


def test_a_name_that_several_cards_share_asks_for_any_of_them() -> None:
    assert catalog_names(["a100", "H100"]) == [
        "a100",  # a site may call its own just that
        "a100-sxm-40gb",
        "a100-sxm-80gb",
        "a100-pcie-40gb",
        "a100-pcie-80gb",
        "h100-sxm-80gb",
    ]
    assert catalog_names(["A100 80GB PCIe", "our-own"]) == ["a100-pcie-80gb", "our-own"]
