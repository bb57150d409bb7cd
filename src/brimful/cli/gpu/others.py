"""`--other-mib` and `--headless`: what other programs hold of the card, as the user says or as is assumed."""

from __future__ import annotations

import argparse

from brimful.errors import BadInput
from brimful.language import say
from brimful.units import MIB

_MAX_OTHER_MIB = 1_000_000


def add_others(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--other-mib", type=int, metavar="N")
    parser.add_argument("--headless", action="store_true")


def other_bytes(args: argparse.Namespace) -> int | None:
    """What the user says; None where nothing was said."""
    if args.other_mib is None:
        return 0 if args.headless else None
    if args.headless and args.other_mib:
        raise BadInput(say("operate.headless_and_other", other_mib=args.other_mib))
    if not 0 <= args.other_mib <= _MAX_OTHER_MIB:
        raise BadInput(say("operate.other_mib_out_range", other_mib=args.other_mib))
    return int(args.other_mib) * MIB
