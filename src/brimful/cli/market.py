"""`brimful market`: clear a book of bids. A file in, an answer out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from brimful.cli.commands import Answer
from brimful.cli.render import bar, paint, table
from brimful.errors import BadInput, WorldFailed
from brimful.units import MICROUSD, counted, show_usd

if TYPE_CHECKING:
    import argparse

    from brimful.market.auction import Cleared
    from brimful.market.bid import Book

EXAMPLE = """brimful market clear examples/book.json"""
MOST_BYTES = 256 * 1024**2
SHOWN = 12  # losers a person looks at


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["clear"], help="clear: who wins a book, at what price")
    parser.add_argument("file", metavar="FILE", help="the book (JSON)")


def run(args: argparse.Namespace) -> Answer:
    return {"clear": _clear}[args.action](args)


def _clear(args: argparse.Namespace) -> Answer:
    from brimful.market.auction import clear
    from brimful.market.book import parse_book

    book = parse_book(_text(args.file))
    cleared = clear(book)
    return Answer(_as_dict(cleared), _shown(book, cleared))


def _as_dict(cleared: Cleared) -> dict[str, Any]:
    return {
        "pool": cleared.pool,
        "price": cleared.price / MICROUSD,
        "winners": [
            {"bid": win.bid.bid, "quantity": win.units, "limit": win.bid.limit / MICROUSD}
            for win in cleared.wins
        ],
        "losers": [
            {
                "bid": loss.bid.bid,
                "reason": loss.reason,
                "shadow_price": None if loss.shadow_price is None else loss.shadow_price / MICROUSD,
                "limit": loss.bid.limit / MICROUSD,
                "displaced_by": list(loss.displaced_by),
                "detail": loss.detail,
            }
            for loss in cleared.losses
        ],
    }


def _shown(book: Book, cleared: Cleared) -> str:
    used = cleared.units
    lines = [
        (
            f"{paint(cleared.pool, 'bold')}  {show_usd(cleared.price)} per GPU-hour"
            f"  {bar(used / book.units, 16)}  {used} of {counted(book.units, 'GPU')}"
        ),
        "",
        _depth(cleared),
    ]
    if cleared.losses:
        rows = [
            (
                loss.bid.bid,
                show_usd(loss.bid.limit),
                "-" if loss.shadow_price is None else show_usd(loss.shadow_price),
                loss.reason.replace("_", " "),
            )
            for loss in cleared.losses[:SHOWN]
        ]
        more = len(cleared.losses) - SHOWN
        lines += ["", table(("lost", "limit", "would win at", "why"), rows, right=(1, 2))]
        lines += [f"… and {more} more (--json has all)"] if more > 0 else []
        blocked = next((loss for loss in cleared.losses if loss.displaced_by), None)
        lines += ["", f"{blocked.bid.bid}: {blocked.detail}"] if blocked else []
    return "\n".join(lines)


def _depth(cleared: Cleared) -> str:
    """The demand curve: who holds what, dearest first."""
    if not cleared.wins:
        return "nobody wins: no bid reaches the floor with a size that fits"
    highest = max(win.bid.limit for win in cleared.wins)
    rows = [
        (
            win.bid.bid + (" (running)" if win.bid.running else ""),
            str(win.units),
            show_usd(win.bid.limit),
            bar(win.bid.limit / highest, 24).rstrip(),
        )
        for win in sorted(cleared.wins, key=lambda win: -win.bid.limit)[:SHOWN]
    ]
    more = len(cleared.wins) - SHOWN
    text = table(("won", "GPUs", "limit", ""), rows, right=(1, 2))
    return text + (f"\n… and {more} more" if more > 0 else "")


def _text(name: str) -> str:
    path = Path(name)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BadInput(f"{name} has {path.stat().st_size:,} bytes", hint=f"at most {MOST_BYTES:,}")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise BadInput(f"there is no file {name}", hint="name a file", code="not_found") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{name} is not text", hint="a JSON file in UTF-8") from error
    except OSError as error:
        raise WorldFailed(f"{name} cannot be read: {error.strerror}", hint="check the path") from error
