"""PyTorch's caching allocator as a simulation: the same requests give the same addresses and segments."""

from brimful.predict.allocator.caching import Allocator, OutOfMemory
from brimful.predict.allocator.run import (
    COMPLETE,
    EMPTY_CACHE,
    FREE,
    MALLOC,
    REQUEST_FREE,
    Outcome,
    Request,
    run,
)
from brimful.predict.allocator.settings import Settings

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
