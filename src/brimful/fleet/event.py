"""What every event is."""

from __future__ import annotations

from typing import ClassVar

KINDS: dict[str, type[Event]] = {}  # by the name used in records


class Event:
    """Anything that has happened."""

    __slots__ = ()
    version: ClassVar[int] = 1
    at_s: int

    def __init_subclass__(cls) -> None:
        KINDS[cls.__name__] = cls
