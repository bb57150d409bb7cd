"""Where a job resumes: its newest complete checkpoint, local or fetched from another site."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from brimful.adapters.files import discard, is_trap, open_to_write
from brimful.adapters.objects.shelf import (
    FETCHING,
    Damaged,
    Sealed,
    Source,
    Tell,
    damage_said,
    fetch,
    number_of,
)
from brimful.job import FENCE, UNFINISHED, Checkpoint, whole_ones
from brimful.language import Sentence, say

TAKE_OVER_S = 10.0


def take_over(here: Path, lease: str) -> None:
    """From now on only this lease may seal checkpoints there; an orphan of an older lease cannot.

    Waits for a lease that is sealing right now, but not forever: it may have been stopped in the middle.
    """
    here.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = here / FENCE
    if is_trap(path):
        discard(path)
    with open_to_write(path, os.O_CREAT) as fence:
        until_s = time.monotonic() + TAKE_OVER_S
        while time.monotonic() < until_s:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fence, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.05)
        fence.truncate(0)
        fence.write(lease.encode())


def make_ready(
    here: Path,
    elsewhere: Sequence[Source] = (),
    *,
    known: Path | None = None,
    since: int = 0,
    tell: Tell = lambda _: None,
) -> Iterator[Sentence]:
    """Make the newest complete checkpoint the newest in `here`; returns what was found on the way.

    Every byte is checked against its seal, also after a fetch. Damaged checkpoints are set aside, not
    deleted, so that someone can inspect them. Unsealed ones are half-written and are deleted.

    `known`: where the same job keeps others, which need not be fetched. `since`: the last lease that kept
    checkpoints, according to the store; anything an older lease sealed here belongs to an orphan.
    """
    here.mkdir(parents=True, exist_ok=True, mode=0o700)
    for rest in [*here.glob(f"{UNFINISHED}*"), *here.glob(f"{FETCHING}*")]:
        discard(rest)
    places = [here] if known is None else [here, known]
    saved = [each.files for each in elsewhere]
    found = [each for place in places for each in whole_ones(place)]
    mine = [Sealed(each) for each in found if each.files in saved or not _is_orphans(each, since)]
    # Among equals, a local one comes first: the sort is stable.
    for each in sorted([*mine, *elsewhere], key=lambda one: one.step, reverse=True):
        is_here = isinstance(each, Sealed) and each in mine
        wrong = _damage_in(each) if is_here else _fetched(each, here, tell)
        if not wrong:
            name = each.name
            yield (
                say("adapters.goes_on_from", name=name)
                if is_here
                else say("adapters.goes_on_fetched", name=name, source=_place(each, of_all=True))
            )
            return
        if is_here and each.place == str(here):
            _put_aside(here / each.name)
        yield say("adapters.not_used", folder=_place(each), wrong=wrong)


def sealed_in(folder: Path) -> list[Sealed]:
    """The checkpoints of another site on this machine."""
    return [Sealed(each) for each in whole_ones(folder)]


def _is_orphans(checkpoint: Checkpoint, since: int) -> bool:
    return bool(checkpoint.lease) and number_of(checkpoint.lease) < since


def _place(source: Source, *, of_all: bool = False) -> Path | str:
    if isinstance(source, Sealed):
        folder = source.checkpoint.folder
        return folder.parent if of_all else folder
    return source.place if of_all else f"{source.name} ({source.place})"


def _damage_in(source: Source) -> Sentence | None:
    assert isinstance(source, Sealed)
    return damage_said(source.checkpoint)


def _fetched(source: Source, here: Path, tell: Tell) -> Sentence | None:
    """What went wrong, or None."""
    try:
        fetch(source, here, tell=tell)
    except Damaged as error:
        return error.said
    return None


def _put_aside(folder: Path) -> None:
    aside = folder.with_name(f"damaged-{folder.name}")
    discard(aside)
    folder.replace(aside)
