"""How long a command takes to start, which is most of the time of a short one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from bench.measure import BARE_PYTHON, Benchmark, bare_python, process

TITLE = "Start-up"

# The script that pip installs, which users start.
BRIMFUL = str(Path(sys.executable).with_name("brimful"))
FIT = "fit examples/nanogpt/train_fineweb.py --gpu rtx-4070"


def benchmarks() -> Iterator[Benchmark]:
    yield Benchmark(
        name="import brimful",
        subject=process([sys.executable, "-c", "import brimful"]),
        peer_name=BARE_PYTHON,
        peer=bare_python,
    )
    yield _command("--help", bar=3)
    yield _command("job --help", bar=3)
    yield _command(FIT, bar=12)
    yield _command("gpus")


def _command(line: str, *, bar: float | None = None) -> Benchmark:
    subject = process([BRIMFUL, *line.split()])
    return Benchmark(
        name=f"brimful {line}", subject=subject, peer_name=BARE_PYTHON, peer=bare_python, bar=bar
    )
