"""PyTorch's caching allocator as a simulation: the same requests give the same addresses and segments."""

from brimful.allocator.caching import Allocator, OutOfMemory
from brimful.allocator.run import (
    COMPLETE,
    EMPTY_CACHE,
    FREE,
    MALLOC,
    REQUEST_FREE,
    Outcome,
    Request,
    run,
)
from brimful.allocator.settings import Settings

__all__ = [
    "COMPLETE",
    "EMPTY_CACHE",
    "FREE",
    "MALLOC",
    "REQUEST_FREE",
    "Allocator",
    "OutOfMemory",
    "Outcome",
    "Request",
    "Settings",
    "run",
]
