"""The card, and what other programs hold of it: as the user says, as the driver says, or as assumed."""

from __future__ import annotations

import argparse

from brimful.errors import BadInput, BrimfulError
from brimful.language import Sentence, Size, say
from brimful.specs.gpu import Gpu
from brimful.units import MIB

_MAX_OTHER_MIB = 1_000_000


def add_others(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--other-mib", type=int, metavar="N")
    parser.add_argument("--headless", action="store_true")


def other_bytes(args: argparse.Namespace) -> int | None:
    """What the user says; None if not given."""
    if args.other_mib is None:
        return 0 if args.headless else None
    if args.headless and args.other_mib:
        raise BadInput(say("operate.headless_and_other", other_mib=args.other_mib))
    if not 0 <= args.other_mib <= _MAX_OTHER_MIB:
        raise BadInput(say("operate.other_mib_out_range", other_mib=args.other_mib))
    return int(args.other_mib) * MIB


def own_card(args: argparse.Namespace) -> tuple[Gpu, Sentence]:
    """This machine's first card if none is named, and what other programs hold there, from its driver."""
    from brimful.meter.nvml import read_gpus
    from brimful.meter.peak import find_card

    try:
        card = read_gpus(0.0)[0]
        gpu = find_card(card.name, card.memory_total_bytes)
    except (BrimfulError, IndexError) as error:
        raise BadInput(say("gpu.no_card"), hint=say("gpu.hint_name_card")) from error
    used = card.memory_used_bytes or 0
    if args.other_mib is None and not args.headless:
        args.other_mib = round(used / MIB)
    return gpu, say("gpu.card_asked", gpu=gpu.title, used=Size(used))
