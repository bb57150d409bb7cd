"""A job's log in pieces, over all its leases."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from brimful.client.answers import LogAnswer
from brimful.errors import NotFound
from brimful.fleet.state import OVER
from brimful.language import Quoted, say
from brimful.server.service.reader import Reader

PIECE_BYTES = 1 << 18
LONGEST_CHARACTER = 4  # bytes of UTF-8: a smaller piece might never hold a whole one


def log_piece(
    reader: Reader, name: str, lease: str | None, *, offset: int, limit: int, rank: int = 0
) -> LogAnswer:
    """A piece of a lease's log, by default of the newest lease. `over`: no more will come.

    An offset belongs to a lease: if that lease has no more output and the job has another, the answer is the
    start of the next.
    """
    with reader.locked():
        state = reader.job(name)
        leases, phase = list(state.leases), state.phase
    names = [each.lease for each in leases]
    if lease is not None and lease not in names:
        raise NotFound(say("server.no_lease", name=name, lease=Quoted(lease)))
    if not leases:
        over = phase in OVER
        return {"lease": None, "text": "", "next_offset": 0, "size": 0, "over": over, "phase": phase}
    at = len(leases) - 1 if lease is None else names.index(lease)
    piece = reader.read_log(leases[at], rank=rank, offset=offset, limit=limit)
    while not piece.data and at + 1 < len(leases):
        at += 1
        piece = reader.read_log(leases[at], rank=rank, offset=0, limit=limit)
    ended = at + 1 < len(leases) or phase in OVER
    # A character may be cut in two at the end of the piece: its first half is left for the next one.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(piece.data, final=ended and piece.start + len(piece.data) >= piece.size)
    return {
        "lease": names[at],
        "text": text,
        "next_offset": piece.start + len(piece.data) - len(decoder.getstate()[0]),
        "size": piece.size,
        "over": phase in OVER and at + 1 == len(leases),
        "phase": phase,
    }


def whole_log(reader: Reader, name: str, *, rank: int) -> Iterator[str]:
    """What is there now, over all leases; callers ask again for later output."""
    with reader.locked():
        first = next((each.lease for each in reader.job(name).leases), None)
    lease, place = first, 0
    while lease is not None:
        piece = log_piece(reader, name, lease, rank=rank, offset=place, limit=PIECE_BYTES)
        if not piece["text"]:
            return
        yield piece["text"]
        lease, place = piece["lease"], piece["next_offset"]
