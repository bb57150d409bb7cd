"""`brimful replay`: a recording of PyTorch's allocator, replayed and tried under other settings."""

from __future__ import annotations

import argparse
from pathlib import Path

from brimful.allocator.replay import Replay, replay
from brimful.allocator.timeline import timeline, write_html, write_png
from brimful.cli.commands import NO, YES, Answer
from brimful.cli.gpu.replay_text import text
from brimful.errors import BadInput
from brimful.language import Quoted, say, tongue, words
from brimful.units import MIB, bytes_from_text

EXAMPLE = """brimful replay snapshot.pickle
brimful replay snapshot.pickle --capacity 12GiB
brimful replay snapshot.pickle --conf expandable_segments:True --conf max_split_size_mb:128 --json
brimful replay snapshot.pickle --png timeline.png"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("snapshot")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY:VALUE,…")
    parser.add_argument("--capacity", metavar="SIZE")
    parser.add_argument("--device", type=int, metavar="N")
    parser.add_argument("--html", metavar="FILE")
    parser.add_argument("--png", metavar="FILE")


def run(args: argparse.Namespace) -> Answer:
    replayed = replay(
        args.snapshot, conf=args.conf, capacity_bytes=_capacity(args.capacity), device=args.device
    )
    written = _pictures(args, replayed)
    shown = [text(replayed), *(words("gpu.replay_timeline", path=path) for path in written)]
    return Answer(replayed.as_dict(), "\n".join(shown), NO if replayed.out_of_memory else YES)


def _capacity(written: str | None) -> int | None:
    if written is None:
        return None

    capacity_bytes = bytes_from_text(written)
    if capacity_bytes is None or not 2 * MIB <= capacity_bytes < 1 << 50:
        raise BadInput(say("gpu.capacity_not_a_size", written=Quoted(written[:40])))
    return capacity_bytes


def _pictures(args: argparse.Namespace, replayed: Replay) -> list[str]:
    if args.html or args.png:
        drawn = timeline(replayed, tongue())
        if args.html:
            write_html(drawn, Path(args.html))
        if args.png:
            write_png(drawn, Path(args.png))
    return [path for path in (args.html, args.png) if path]
