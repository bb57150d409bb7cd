"""GPUs by type, from what a driver says of its cards."""

from __future__ import annotations

from brimful.adapters.engines.devices import Device, DeviceGroup, group_devices

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
