"""Cursors: where a page ends, in an opaque form that clients send back."""

from __future__ import annotations

import base64
from typing import Annotated

from fastapi import Query

from brimful.errors import BadInput
from brimful.language import Quoted, say

Cursor = Annotated[
    str | None, Query(max_length=40, description="`next_cursor` of the previous page; empty: the first page")
]


def page_after(place: int | None) -> str | None:
    return None if place is None else base64.urlsafe_b64encode(f"v1:{place}".encode()).decode().rstrip("=")


def read_cursor(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        version, _, place = (
            base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("ascii").partition(":")
        )
        if version == "v1" and place.isdigit() and len(place) < 19:
            return int(place)
    except ValueError:
        pass
    raise BadInput(say("server.bad_cursor", text=Quoted(text[:40])))
