"""PyTorch's caching allocator as a simulation: the same requests give the same addresses and segments."""

from brimful.allocator.caching import Allocator, OutOfMemory
from brimful.allocator.run import EMPTY_CACHE, FREE, MALLOC, Outcome, Request, run
from brimful.allocator.settings import Settings

__all__ = [
    "EMPTY_CACHE",
    "FREE",
    "MALLOC",
    "Allocator",
    "OutOfMemory",
    "Outcome",
    "Request",
    "Settings",
    "run",
]
