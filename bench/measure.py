"""How a benchmark is measured: CPU seconds, best of five, as a ratio to a peer in the same run.

Seconds vary between machines and hours; a ratio to something measured alongside varies little. CPU time (user
and system, including children) leaves out what other programs on the machine do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 5
ENOUGH_S = 0.02  # a body is repeated until it takes this long: the clock ticks in microseconds

# One measurement: runs once and returns the CPU seconds it took.
Subject = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A subject beside its peer; `bar` is the promised upper limit of their ratio, if any."""

    name: str
    subject: Subject
    peer_name: str
    peer: Subject
    bar: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    name: str
    cpu_s: float
    peer_name: str
    peer_cpu_s: float
    bar: float | None

    @property
    def ratio(self) -> float:
        return self.cpu_s / self.peer_cpu_s

    @property
    def missed(self) -> bool:
        return self.bar is not None and self.ratio > self.bar


def measure(benchmark: Benchmark, *, rounds: int = ROUNDS) -> Result:
    """Best of `rounds`; subject and peer alternate, so that a slow phase hits both."""
    pairs = [(benchmark.subject(), benchmark.peer()) for _ in range(rounds)]
    return Result(
        name=benchmark.name,
        cpu_s=min(subject for subject, _ in pairs),
        peer_name=benchmark.peer_name,
        peer_cpu_s=min(peer for _, peer in pairs),
        bar=benchmark.bar,
    )


def process(arguments: Sequence[str]) -> Subject:
    """CPU seconds of a program from start to end, including its children."""
    # As for a user: modules are compiled once, in the first round, not at every start.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def once() -> float:
        child = subprocess.Popen(
            arguments, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        # 1 is a valid answer too: "does not fit".
        assert child.returncode in (0, 1), f"{' '.join(arguments)} exited with {child.returncode}"
        return usage.ru_utime + usage.ru_stime

    return once


def body(function: Callable[[], object], clock: Callable[[], float] = time.process_time) -> Subject:
    """CPU seconds of one call, averaged over enough calls for a long measurement."""

    def once() -> float:
        calls = 1
        while True:
            start_s = clock()
            for _ in range(calls):
                function()
            spent_s = clock() - start_s
            if spent_s >= ENOUGH_S:
                return spent_s / calls
            calls = max(calls * 2, int(calls * ENOUGH_S / max(spent_s, 1e-6)))

    return once


BARE_PYTHON = "bare Python start-up"
bare_python = process([sys.executable, "-c", "pass"])

CALIBRATION = "calibration loop"


def _loop() -> int:
    """A fixed mix of typical Python code: arithmetic, a dict, a list, a string."""
    counts: dict[int, int] = {}
    for i in range(10_000):
        counts[i % 97] = counts.get(i % 97, 0) + i * i
    return len(",".join(str(n) for n in sorted(counts.values())))


calibration = body(_loop)
