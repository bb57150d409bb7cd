"""Where a job goes on: its newest whole checkpoint, here or fetched from another site."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from brimful.adapters.files import discard
from brimful.job import (
    BLOCK_BYTES,
    FENCE,
    SEAL,
    UNFINISHED,
    Checkpoint,
    damage,
    open_plain,
    read_seal,
    whole_ones,
)
from brimful.language import Sentence, os_words, say

FETCHING = ".fetching-"
TAKE_OVER_S = 10.0


def take_over(here: Path, lease: str) -> None:
    """From here on only this lease may seal checkpoints there: an orphan of an older one cannot.

    One that is about to seal is waited for, yet not for ever: it may have been stopped in the middle of it.
    """
    here.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = here / FENCE
    if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
        discard(path)  # a trap: a pipe would be waited for, a link followed
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "r+") as fence:
        until_s = time.monotonic() + TAKE_OVER_S
        while time.monotonic() < until_s:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fence, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.05)
        fence.truncate(0)
        fence.write(lease)


def make_ready(here: Path, elsewhere: Path | None = None) -> Iterator[Sentence]:
    """Leave the newest whole checkpoint as the newest in `here`; tell what was found on the way.

    Every byte is checked against its seal, after it was copied too. What is damaged is put aside, not thrown
    away: somebody may want to look at it. What was never sealed is half-written, and goes.
    """
    here.mkdir(parents=True, exist_ok=True, mode=0o700)
    for rest in [*here.glob(f"{UNFINISHED}*"), *here.glob(f"{FETCHING}*")]:
        discard(rest)
    found = whole_ones(here) + (whole_ones(elsewhere) if elsewhere is not None else [])
    # Of equal ones that which is here already comes first: the sort is stable.
    for each in sorted(found, key=lambda one: one.step, reverse=True):
        mine = each.folder.parent == here
        wrong = damage_said(each) if mine else _fetch(each, here)
        if not wrong:
            name = each.folder.name
            yield (
                say("adapters.goes_on_from", name=name)
                if mine
                else say("adapters.goes_on_fetched", name=name, source=each.folder.parent)
            )
            return
        if mine:
            _put_aside(each.folder)
        yield say("adapters.not_used", folder=each.folder, wrong=wrong)


def _fetch(source: Checkpoint, here: Path) -> Sentence | None:
    """Copy what its seal names, and nothing else; what went wrong, or nothing."""
    half = here / f"{FETCHING}{source.folder.name}"
    discard(half)
    try:
        for name in (*source.files, SEAL):
            (half / name).parent.mkdir(parents=True, exist_ok=True)
            with (
                open_plain(source.folder / name, below=source.folder.parent) as file,
                (half / name).open("xb") as copy,
            ):
                shutil.copyfileobj(file, copy, BLOCK_BYTES)
    except OSError as error:
        discard(half)
        return say("adapters.cannot_copy", why=os_words(error))
    copied = read_seal(half)
    wrong = say("adapters.bad_seal") if copied is None else damage_said(copied)
    if wrong:
        discard(half)
        return wrong
    discard(here / source.folder.name)
    half.replace(here / source.folder.name)
    return None


def damage_said(checkpoint: Checkpoint) -> Sentence | None:
    found = damage(checkpoint)
    if found is None:
        return None
    values = {key: os_words(it) if isinstance(it, OSError) else it for key, it in found.values.items()}
    return say(f"job.{found.kind}", **values)


def _put_aside(folder: Path) -> None:
    aside = folder.with_name(f"damaged-{folder.name}")
    discard(aside)
    folder.replace(aside)
