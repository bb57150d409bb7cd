"""Whether a job's predicted memory fits on a GPU type: a job that cannot fit is not started there."""

from __future__ import annotations

from functools import cache

from brimful.errors import BrimfulError
from brimful.fleet.job import WHOLE_GPU, Job


@cache
def usable_bytes(gpu: str) -> int | None:
    """What a framework sees of a card of this type; None if the catalogue does not have the type."""
    from brimful.specs.gpu import find_gpu

    try:
        return find_gpu(gpu).memory_bytes
    except BrimfulError:
        return None


def peak_on(job: Job, gpu: str) -> int | None:
    """The most it needs of a card of this type, by its estimate or its user's statement; None: unknown."""
    return next((size for name, size in job.peak_bytes if name == gpu), job.gpu_memory_bytes or None)


def too_small(job: Job, gpu: str) -> tuple[int, int] | None:
    """(bytes it needs, bytes it would have) if these are too few; None if it fits or this is unknown.

    A share of a GPU comes with that share of its memory. So the jobs on one card never need more than it has.
    """
    needs = peak_on(job, gpu)
    if needs is None:
        return None
    usable = usable_bytes(gpu)
    if usable is None:
        return None
    has = usable * job.gpu_milli // WHOLE_GPU
    return (needs, has) if needs > has else None
