"""Where a job goes on: its newest whole checkpoint, here or fetched from another site."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from brimful.job import UNFINISHED, Checkpoint, damage, read_seal, whole_ones

FETCHING = ".fetching-"


def make_ready(here: Path, elsewhere: Path | None = None) -> Iterator[str]:
    """Leave the newest whole checkpoint as the newest in `here`; tell what was found on the way.

    Every byte is checked against its seal, after it was copied too. What is damaged is put aside, not thrown
    away: somebody may want to look at it. What was never sealed is half-written, and goes.
    """
    here.mkdir(parents=True, exist_ok=True, mode=0o700)
    for rest in [*here.glob(f"{UNFINISHED}*"), *here.glob(f"{FETCHING}*")]:
        shutil.rmtree(rest, ignore_errors=True)
    found = whole_ones(here) + (whole_ones(elsewhere) if elsewhere is not None else [])
    # Of equal ones that which is here already comes first: the sort is stable.
    for each in sorted(found, key=lambda one: one.step, reverse=True):
        mine = each.folder.parent == here
        wrong = damage(each) if mine else _fetch(each, here)
        if not wrong:
            yield f"goes on from {each.folder.name}" + (
                "" if mine else f", fetched from {each.folder.parent}"
            )
            return
        if mine:
            _put_aside(each.folder)
        yield f"{each.folder} is not used: {wrong}"


def _fetch(source: Checkpoint, here: Path) -> str:
    """Copy it here; what went wrong, or nothing."""
    half = here / f"{FETCHING}{source.folder.name}"
    try:
        shutil.rmtree(half, ignore_errors=True)
        shutil.copytree(source.folder, half)
    except (OSError, shutil.Error) as error:
        shutil.rmtree(half, ignore_errors=True)
        return f"it cannot be copied: {str(error)[:200]}"
    copied = read_seal(half)
    wrong = "its seal cannot be read" if copied is None else damage(copied)
    if wrong:
        shutil.rmtree(half, ignore_errors=True)
        return wrong
    shutil.rmtree(here / source.folder.name, ignore_errors=True)
    half.replace(here / source.folder.name)
    return ""


def _put_aside(folder: Path) -> None:
    aside = folder.with_name(f"damaged-{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    folder.replace(aside)
