"""Readings of desktops: each with a source, and their median is what is assumed."""

from statistics import median

from brimful.specs.desktop import desktop_readings, others_on
from brimful.specs.gpu import all_gpus, find_gpu
from brimful.units import MIB


def test_every_reading_has_a_source_and_is_plausible() -> None:
    for reading in desktop_readings():
        assert reading.gpu.startswith(("RTX ", "GTX ")), reading
        assert reading.system in ("linux", "windows", "freebsd"), reading
        assert 50 * MIB < reading.used_bytes < 6000 * MIB, reading
        assert len(reading.source) > 10, reading


def test_no_reading_is_listed_twice() -> None:
    sources = [reading.source for reading in desktop_readings()]

    assert len(sources) == len(set(sources)) >= 20


def test_the_median_is_assumed_on_every_geforce_card_and_on_no_other() -> None:
    used = [reading.used_bytes for reading in desktop_readings()]

    for gpu in all_gpus():
        others = others_on(gpu)
        expected = ("assumed", median(used), len(used)) if "GeForce" in gpu.title else ("none", 0, 0)
        assert (others.basis, others.bytes, others.readings) == expected, gpu.name


def test_what_is_given_counts_on_any_card() -> None:
    for name in ("rtx-4070", "a100-80gb"):
        others = others_on(find_gpu(name), 5 * MIB)
        assert (others.basis, others.bytes) == ("given", 5 * MIB)
