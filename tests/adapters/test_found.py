"""GPUs by type, from what a driver says of its cards."""

from __future__ import annotations

from brimful.adapters.engines.found import Card, Found, grouped

A100, T4 = "NVIDIA A100-SXM4-80GB", "Tesla T4"


def cards(*names: str) -> list[Card]:
    return [Card(device=str(i), name=name) for i, name in enumerate(names)]


def test_one_card_is_found_by_its_catalog_name() -> None:
    assert grouped(cards("NVIDIA GeForce RTX 4070")) == [Found(gpu="rtx-4070", devices=("0",))]


def test_cards_of_two_kinds_keep_the_drivers_indices() -> None:
    assert grouped(cards(A100, T4, A100)) == [
        Found(gpu="a100-sxm-80gb", devices=("0", "2")),
        Found(gpu="t4", devices=("1",)),
    ]


def test_a_card_nobody_knows_keeps_its_own_name() -> None:
    assert grouped(cards("NVIDIA Quux 9000 Ultra")) == [Found(gpu="nvidia-quux-9000-ultra", devices=("0",))]


def test_a_lost_card_keeps_its_place_so_that_the_others_keep_theirs() -> None:
    lost = Card(device="1", name="", problem="fell off the bus")
    first, _, last = cards(T4, T4, T4)
    assert grouped([first, lost, last]) == [Found(gpu="t4", devices=("0", "1", "2"), holes=(1,))]


def test_a_lost_card_among_several_kinds_is_of_none() -> None:
    lost = Card(device="2", name="", problem="fell off the bus")
    assert [each.devices for each in grouped([*cards(T4, A100), lost])] == [("0",), ("1",)]


def test_each_slice_stands_alone() -> None:
    slices = [Card(device=f"MIG-{i}", name=f"{A100} MIG 3g.40gb", is_slice=True) for i in range(2)]
    assert grouped([*cards(T4), *slices]) == [
        Found(gpu="t4", devices=("0",)),
        Found(gpu="nvidia-a100-sxm4-80gb-mig-3g.40gb", devices=("MIG-0",)),
        Found(gpu="nvidia-a100-sxm4-80gb-mig-3g.40gb", devices=("MIG-1",)),
    ]


def test_nothing_is_found_among_nothing() -> None:
    assert grouped([]) == []
