"""The GPU catalog: a lookup must stay cheap however many cards are known."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from bench.measure import BARE_PYTHON, Benchmark, bare_python, process

TITLE = "GPU catalog, in a new process"


def benchmarks() -> Iterator[Benchmark]:
    yield _python("find one GPU", "from brimful.specs.gpu import find_gpu; find_gpu('rtx4070')")
    yield _python("load every GPU", "from brimful.specs.gpu import all_gpus; all_gpus()")


def _python(name: str, code: str) -> Benchmark:
    subject = process([sys.executable, "-c", code])
    return Benchmark(name=name, subject=subject, peer_name=BARE_PYTHON, peer=bare_python)
