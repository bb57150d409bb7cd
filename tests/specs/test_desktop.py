"""Readings of desktops: each with a source, and their median is what is assumed."""

import tomllib
from pathlib import Path
from statistics import median

from brimful.specs import desktop
from brimful.specs.desktop import desktop_bytes, others_on
from brimful.specs.gpu import all_gpus, find_gpu
from brimful.units import MIB

READINGS = tomllib.loads(Path(desktop.__file__).with_name("desktops.toml").read_text())["readings"]


def test_every_reading_has_a_source_and_is_plausible() -> None:
    for reading in READINGS:
        assert reading["gpu"].startswith(("RTX ", "GTX ")), reading
        assert reading["system"] in ("linux", "windows", "freebsd"), reading
        assert 50 < reading["used_mib"] < 6000, reading
        assert len(reading["source"]) > 10, reading


def test_no_reading_is_listed_twice() -> None:
    sources = [reading["source"] for reading in READINGS]

    assert len(sources) == len(set(sources)) >= 20


def test_the_median_is_assumed_on_every_geforce_card_and_on_no_other() -> None:
    used = desktop_bytes()

    for gpu in all_gpus():
        others = others_on(gpu)
        expected = ("assumed", median(used), len(used)) if "GeForce" in gpu.title else ("none", 0, 0)
        assert (others.basis, others.bytes, others.readings) == expected, gpu.name


def test_what_is_given_counts_on_any_card() -> None:
    for name in ("rtx-4070", "a100-80gb"):
        others = others_on(find_gpu(name), 5 * MIB)
        assert (others.basis, others.bytes) == ("given", 5 * MIB)
